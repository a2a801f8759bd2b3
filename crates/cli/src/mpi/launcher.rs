//! The launcher of an MPI in a lab.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::Interface;
use super::program::{executable, output_of};

/// A launcher, and the options with which it starts ranks on the hosts of a lab.
#[derive(Debug)]
pub struct Launcher {
    pub path: PathBuf,
    pub options: Vec<OsString>,
}

/// The data that a lab gives to the commands on its hosts.
#[derive(Debug)]
pub struct LabHosts {
    /// The path of the remote shell.
    pub agent: OsString,
    pub count: u32,
}

impl LabHosts {
    /// The lab that this process is in, if it is in one.
    pub fn of_environment() -> Option<Self> {
        let agent = std::env::var_os("TREECAST_LAB_AGENT")?;
        let count = std::env::var("TREECAST_LAB_HOSTS").ok()?.parse().ok()?;
        Some(Self { agent, count })
    }

    /// Each host with its number of ranks, as launchers take them.
    fn list(&self, ranks: u32) -> OsString {
        let hosts: Vec<String> = (0..self.count).map(|host| format!("n{host}:{ranks}")).collect();
        hosts.join(",").into()
    }
}

/// Finds the launcher of an interface: beside the program, as in a virtual environment of Python,
/// or where a shell finds it.
pub fn find_launcher(
    interface: Interface,
    program: &OsStr,
    hosts: &LabHosts,
    ranks: u32,
) -> Option<Launcher> {
    let names = [format!("mpirun.{interface}"), "mpirun".into(), "mpiexec".into(), "mpirun.mpich".into()];
    let beside = executable(program).and_then(|path| path.parent().map(Path::to_path_buf));
    let beside = names.iter().filter_map(|name| executable(beside.as_ref()?.join(name).as_os_str()));
    let found = names.iter().filter_map(|name| executable(OsStr::new(name)));
    // Any MPI with the standard ABI may start its programs; today that is MPICH.
    let of_launcher = if interface == Interface::Standard { Interface::Mpich } else { interface };
    let (path, version) = beside.chain(found).find_map(|path| {
        let version = output_of(&path, &["--version"])?;
        (Interface::of_version(&version)? == of_launcher).then_some((path, version))
    })?;
    let options = match of_launcher {
        Interface::OpenMpi => options_of_open_mpi(hosts, ranks, is_with_prrte(&version)),
        _ => options_of_hydra(hosts, ranks),
    };
    Some(Launcher { path, options })
}

/// Whether the launcher is that of Open MPI 5, which has PRRTE.
fn is_with_prrte(version: &str) -> bool {
    let number = version.split(") ").nth(1).and_then(|rest| rest.split('.').next());
    let major = number.and_then(|major| major.parse::<u32>().ok());
    version.contains("PRRTE") || major.is_some_and(|major| major >= 5)
}

/// By TCP alone: the hosts of a lab have different addresses, but one kernel. Ranks that wait yield
/// the processor, which the hosts share.
///
/// The daemons of PRRTE would each start a session, for which Linux makes a scheduling group
/// (`autogroup` in sched(7)). Next to the busy ranks of another group, Linux 6.18 let threads that
/// could run wait for tens of seconds.
///
/// Ranks are not bound. The launcher takes each host of a lab for a machine of its own, and would
/// bind the ranks of all hosts to the same processors; that of Open MPI 5 ends at once if a host
/// has more ranks than processors.
fn options_of_open_mpi(hosts: &LabHosts, ranks: u32, has_prrte: bool) -> Vec<OsString> {
    let mut options: Vec<OsString> = Vec::new();
    if rustix::process::geteuid().is_root() {
        options.push("--allow-run-as-root".into());
    }
    options.extend(if has_prrte {
        [
            "--leave-session-attached".into(),
            "--prtemca".into(),
            "plm_ssh_agent".into(),
            hosts.agent.clone(),
            "--mca".into(),
            "pml".into(),
            "ob1".into(),
        ]
        .to_vec()
    } else {
        let interface = ["--mca".into(), "oob_tcp_if_include".into(), "eth0".into()];
        ["--mca".into(), "plm_rsh_agent".into(), hosts.agent.clone()].into_iter().chain(interface).collect()
    });
    for setting in [["btl", "tcp,self"], ["btl_tcp_if_include", "eth0"], ["mpi_yield_when_idle", "1"]] {
        options.push("--mca".into());
        options.extend(setting.map(OsString::from));
    }
    options.extend(["--bind-to".into(), "none".into(), "--host".into(), hosts.list(ranks)]);
    options
}

fn options_of_hydra(hosts: &LabHosts, ranks: u32) -> Vec<OsString> {
    let words = ["-launcher", "rsh", "-launcher-exec"].map(OsString::from);
    let rest = ["-iface".into(), "eth0".into(), "-hosts".into(), hosts.list(ranks)];
    words.into_iter().chain([hosts.agent.clone()]).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_take_hosts_with_their_ranks() {
        let hosts = LabHosts { agent: "/agent".into(), count: 3 };
        assert_eq!(hosts.list(2), "n0:2,n1:2,n2:2");
        let options = options_of_hydra(&hosts, 1);
        assert!(options.contains(&"/agent".into()) && options.contains(&"n0:1,n1:1,n2:1".into()));
    }

    #[test]
    fn open_mpi_5_has_options_of_its_own() {
        assert!(
            !is_with_prrte("mpirun (Open MPI) 4.1.4\n") && !is_with_prrte("mpirun.openmpi (OpenRTE) 4.1.4\n")
        );
        assert!(is_with_prrte("mpirun (Open MPI) 5.0.11\n"));
        assert!(is_with_prrte("prterun (PRRTE) 3.0.14\n"));
        let hosts = LabHosts { agent: "/agent".into(), count: 1 };
        let of_each = [(false, "plm_rsh_agent"), (true, "plm_ssh_agent"), (true, "--leave-session-attached")];
        for (has_prrte, option) in of_each {
            let options = options_of_open_mpi(&hosts, 1, has_prrte);
            assert!(options.contains(&option.into()) && options.contains(&"none".into()));
        }
    }
}
