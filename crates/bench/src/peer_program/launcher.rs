//! The launchers of MPIs in a lab.

use std::ffi::{OsStr, OsString};
use std::process::Command;

use treecast_plan::Arrangement;

use crate::peer::Peer;

/// The launcher of an installed MPI, and the compiler of the same installation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Launcher {
    command: &'static str,
    pub compiler: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Up to version 4.
    OpenMpi,
    /// Version 5, which has PRRTE.
    OpenMpi5,
    /// The launcher of MPICH.
    Hydra,
}

/// Open MPI starts its processes on the other hosts by the lab's remote shell, whose path is a
/// variable of the lab's hosts. It would bind the ranks of each host to that host's first
/// processors: hosts of a lab have the same ones, so that all ranks would share them, and others be
/// idle. Ranks of one host share memory.
const OPEN_MPI: &str = "exec \"$0\" --allow-run-as-root --bind-to none --mca plm_rsh_agent \"$TREECAST_LAB_AGENT\" \
     --mca btl tcp,vader,self --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \
     --mca mpi_yield_when_idle 1 \"$@\"";

/// The daemons must not start sessions of their own: next to the busy ranks of another session's
/// scheduling group, Linux 6.18 lets threads wait for tens of seconds until they run.
const OPEN_MPI_5: &str = "exec \"$0\" --allow-run-as-root --bind-to none --leave-session-attached \
     --prtemca plm_ssh_agent \"$TREECAST_LAB_AGENT\" --prtemca prte_if_include eth0 --mca pml ob1 \
     --mca btl tcp,sm,self --mca btl_tcp_if_include eth0 --mca mpi_yield_when_idle 1 \"$@\"";

/// UCX would find that all hosts of a lab have one kernel, and use its shared memory.
const HYDRA: &str = "export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 FI_PROVIDER=tcp; \
     exec \"$0\" -launcher rsh -launcher-exec \"$TREECAST_LAB_AGENT\" -iface eth0 \"$@\"";

impl Launcher {
    /// Finds the launcher of a peer: the first of the `PATH`, or the one that Debian has beside
    /// those of other MPIs.
    pub fn find(peer: Peer) -> Option<Self> {
        let beside = match peer {
            Peer::Mpich => ("mpirun.mpich", "mpicc.mpich"),
            _ => ("mpirun.openmpi", "mpicc.openmpi"),
        };
        [("mpirun", "mpicc"), beside].into_iter().find_map(|(command, compiler)| {
            let version = Command::new(command).arg("--version").output().ok()?;
            let kind = Kind::of_version(&String::from_utf8_lossy(&version.stdout))?;
            ((kind == Kind::Hydra) == (peer == Peer::Mpich)).then_some(Self { command, compiler, kind })
        })
    }

    /// The first words of a command that runs on a host of the lab.
    pub fn shell(self) -> [&'static str; 3] {
        let line = match self.kind {
            Kind::OpenMpi => OPEN_MPI,
            Kind::OpenMpi5 => OPEN_MPI_5,
            Kind::Hydra => HYDRA,
        };
        ["-c", line, self.command]
    }

    /// The options by which ranks on all hosts get a variable.
    pub fn variable(self, name: &OsStr, value: &OsStr) -> Vec<OsString> {
        if self.kind == Kind::Hydra {
            return vec!["-genv".into(), name.into(), value.into()];
        }
        let mut variable = name.to_os_string();
        variable.push("=");
        variable.push(value);
        vec!["-x".into(), variable]
    }

    /// The options that place this number of ranks on each host. Hydra goes round its list of hosts
    /// until all ranks are placed.
    pub fn hosts(self, hosts: &[&str], ranks: u32, placement: Arrangement) -> Vec<String> {
        let goes_round = self.kind == Kind::Hydra && placement == Arrangement::Cyclic;
        let on_each = if goes_round { 1 } else { ranks };
        let list: Vec<String> = hosts.iter().map(|host| format!("{host}:{on_each}")).collect();
        let (list, all) = (list.join(","), (hosts.len() as u32 * ranks).to_string());
        let words: [&str; 4] = match (self.kind, placement) {
            (Kind::Hydra, _) => ["-hosts", &list, "-n", &all],
            (_, Arrangement::Block) => ["--host", &list, "--map-by", "slot"],
            (_, Arrangement::Cyclic) => ["--host", &list, "--map-by", "node"],
        };
        words.map(str::to_owned).into()
    }
}

impl Kind {
    /// The launcher that describes its version like this.
    fn of_version(text: &str) -> Option<Self> {
        if text.contains("HYDRA") {
            return Some(Self::Hydra);
        }
        // "mpirun (Open MPI) 5.0.11"
        let number = text.split_once("(Open MPI) ")?.1.split('.').next()?;
        Some(if number.parse::<u32>().ok()? < 5 { Self::OpenMpi } else { Self::OpenMpi5 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_told_by_their_versions() {
        for (text, kind) in [
            ("mpirun (Open MPI) 4.1.4\n\nReport bugs to", Some(Kind::OpenMpi)),
            ("mpirun (Open MPI) 5.0.11\n", Some(Kind::OpenMpi5)),
            ("HYDRA build details:\n    Version: 4.0.2\n", Some(Kind::Hydra)),
            ("Intel(R) MPI Library for Linux* OS", None),
        ] {
            assert_eq!(Kind::of_version(text), kind, "{text}");
        }
    }

    #[test]
    fn each_launcher_places_ranks_by_its_own_options() {
        let of = |kind| Launcher { command: "mpirun", compiler: "mpicc", kind };
        let (hosts, cyclic) = (["n0", "n1"], Arrangement::Cyclic);
        assert_eq!(of(Kind::OpenMpi).hosts(&hosts, 2, cyclic), ["--host", "n0:2,n1:2", "--map-by", "node"]);
        assert_eq!(of(Kind::Hydra).hosts(&hosts, 2, cyclic), ["-hosts", "n0:1,n1:1", "-n", "4"]);
        assert_eq!(of(Kind::Hydra).variable("A".as_ref(), "1".as_ref()), ["-genv", "A", "1"]);
        assert_eq!(of(Kind::OpenMpi5).variable("A".as_ref(), "1".as_ref()), ["-x", "A=1"]);
    }
}
