//! Broadcasts of other software, measured in the same lab and in the same run.

mod launcher;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde::Deserialize;
use tempfile::TempDir;
use treecast_lab::Lab;
use treecast_plan::Arrangement;
use treecast_remote::excerpt;
use treecast_terms::Operation;

use launcher::Launcher;

use crate::control::{Delay, Measured};
use crate::error::BenchError;
use crate::peer::Peer;

/// How many of the last lines of an error output are quoted.
const LINES_MAX: usize = 4;

/// The program that measures a peer, compiled.
#[derive(Debug)]
pub(crate) struct PeerProgram {
    peer: Peer,
    /// That of an MPI.
    launcher: Option<Launcher>,
    /// The library that is preloaded into its processes.
    shim: Option<PathBuf>,
    directory: TempDir,
}

/// The task of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PeerRun {
    pub operation: Operation,
    pub bytes: usize,
    pub messages: u32,
    pub warm_up_messages: u32,
    pub is_stream: bool,
    /// When messages are sent one per period; `None`: by a barrier, or in a stream.
    pub schedule: Option<Schedule>,
    /// How ranks are numbered over hosts.
    pub placement: Arrangement,
}

/// One message per period, from a time on that the root chooses when all ranks are there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    pub period_ns: u64,
    pub delay: Delay,
}

impl PeerRun {
    /// The first arguments of each program.
    fn arguments(self) -> [String; 4] {
        let Self { bytes, messages, warm_up_messages, is_stream, schedule, .. } = self;
        let pace = match schedule {
            Some(_) => "period",
            None if is_stream => "stream",
            None => "barrier",
        };
        [bytes.to_string(), messages.to_string(), warm_up_messages.to_string(), pace.into()]
    }
}

/// Measurements of a rank of the program, as [`Measured`].
#[derive(Debug, Deserialize)]
struct OfRank {
    at_ns: Vec<u64>,
    span_ns: Vec<u64>,
    call_cpu_ns: Vec<u64>,
    cpu_ns: u64,
}

impl From<OfRank> for Measured {
    fn from(OfRank { at_ns, span_ns, call_cpu_ns, cpu_ns }: OfRank) -> Self {
        Self { at_ns, span_ns, call_cpu_ns, cpu_ns, ..Self::default() }
    }
}

/// How to install a peer.
const INSTALL: &str = "on Debian and Ubuntu: apt-get install openmpi-bin libopenmpi-dev";

const INSTALL_MPICH: &str = "on Debian and Ubuntu: apt-get install mpich libmpich-dev";

const INSTALL_COMPILER: &str = "on Debian and Ubuntu: apt-get install gcc libc6-dev";

impl PeerProgram {
    /// Compiles the program.
    ///
    /// # Errors
    /// [`BenchError::Peer`] where the peer is not installed.
    pub fn compile(peer: Peer, shim: Option<PathBuf>) -> Result<Self, BenchError> {
        let failed = |why: String| BenchError::Peer { peer, why };
        let (install, source): (_, &[u8]) = match peer {
            Peer::OpenMpi => (INSTALL, include_bytes!("mpi.c")),
            Peer::Mpich => (INSTALL_MPICH, include_bytes!("mpi.c")),
            Peer::TcpTree | Peer::TcpChain => (INSTALL_COMPILER, include_bytes!("tcp_tree.c")),
        };
        let launcher = peer.is_mpi().then(|| {
            Launcher::find(peer)
                .ok_or_else(|| failed(format!("no mpirun of this MPI is in the PATH ({install})")))
        });
        let launcher = launcher.transpose()?;
        let compiler = launcher.map_or("cc", |launcher| launcher.compiler);
        let directory = tempfile::tempdir().map_err(|why| failed(format!("a temporary directory: {why}")))?;
        let program = Self { peer, launcher, shim, directory };
        let mut command = Command::new(compiler);
        // Libraries use functions of the program by the same names (epoll_wait in mpi.c).
        command.args(["-O2", "-rdynamic", "-x", "c", "-", "-o"]).arg(program.path());
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let compiled = command.spawn().and_then(|mut child| {
            child.stdin.take().map_or(Ok(()), |mut input| input.write_all(source))?;
            child.wait_with_output()
        });
        match compiled {
            Ok(output) if output.status.success() => Ok(program),
            Ok(output) => Err(failed(format!("{compiler}: {}", excerpt(&output.stderr, LINES_MAX)))),
            Err(why) if why.kind() == io::ErrorKind::NotFound => {
                Err(failed(format!("{compiler}: {why} ({install})")))
            }
            Err(why) => Err(failed(format!("{compiler}: {why}"))),
        }
    }

    pub const fn has_shim(&self) -> bool {
        self.shim.is_some()
    }

    /// The name of its configuration.
    pub fn name(&self) -> String {
        if self.has_shim() { format!("{}+shim", self.peer) } else { self.peer.to_string() }
    }

    /// The shim, its settings and their values; none without it.
    fn variables(&self) -> Vec<(OsString, OsString)> {
        let Some(shim) = &self.shim else { return Vec::new() };
        let is_setting = |name: &OsString| name.to_str().is_some_and(|name| name.starts_with("TREECAST_MPI"));
        let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| is_setting(name)).collect();
        // A benchmark is there to find out which lengths are faster, so the shim takes all of them.
        if variables.iter().all(|(name, _)| name != "TREECAST_MPI_CHOICE") {
            variables.push(("TREECAST_MPI_CHOICE".into(), "always".into()));
        }
        variables.push(("LD_PRELOAD".into(), shim.into()));
        variables
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join(self.peer.to_string())
    }

    /// Runs the program with this number of processes on each of these hosts of a lab. If messages
    /// are scheduled, `delays_ns` are those of all calls of rank 0, then of rank 1, and so on.
    /// Returns what the ranks have measured, the root's first.
    pub fn run(
        &self,
        lab: &Lab,
        hosts: &[&str],
        processes: u32,
        run: PeerRun,
        delays_ns: Option<&[u64]>,
    ) -> Result<Vec<Measured>, BenchError> {
        let Some(launcher) = self.launcher else {
            return self.run_on_each_host(lab, hosts.len() as u32, run);
        };
        let failed = |why: String| BenchError::Peer { peer: self.peer, why };
        let mut command = lab.command(0, "sh")?;
        command.args(launcher.shell());
        command.args(self.variables().iter().flat_map(|(name, value)| launcher.variable(name, value)));
        command.args(launcher.hosts(hosts, processes, run.placement)).arg(self.path());
        command.args(run.arguments()).arg(run.operation.to_string());
        if let Some((Schedule { period_ns, .. }, delays)) = run.schedule.zip(delays_ns) {
            // The hosts of a lab share the machine's files.
            let path = self.directory.path().join("delays");
            let bytes: Vec<u8> = delays.iter().flat_map(|ns| ns.to_ne_bytes()).collect();
            fs::write(&path, bytes).map_err(|why| failed(format!("{}: {why}", path.display())))?;
            command.arg(period_ns.to_string()).arg(path);
        }
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|why| failed(format!("mpirun: {why}")))?;
        if !output.status.success() {
            return Err(failed(format!("mpirun: {}", excerpt(&output.stderr, LINES_MAX))));
        }
        // The launcher may have written before the program.
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().rev().find(|line| line.starts_with('[')).unwrap_or_default();
        let ranks: Vec<OfRank> =
            serde_json::from_str(line).map_err(|why| failed(format!("unexpected output: {why}")))?;
        Ok(ranks.into_iter().map(Measured::from).collect())
    }

    /// Runs the program as one process on each host of a lab, which find each other by the lab's
    /// variables.
    fn run_on_each_host(&self, lab: &Lab, hosts: u32, run: PeerRun) -> Result<Vec<Measured>, BenchError> {
        let failed = |why: String| BenchError::Peer { peer: self.peer, why };
        let mut processes = Vec::new();
        for host in 0..hosts {
            let mut command = lab.command(host, self.path())?;
            let fan_out = self.peer.fan_out().map(|count| count.to_string());
            command.args(run.arguments()).args(fan_out).stdin(Stdio::null());
            let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            processes.push(process.map_err(|why| failed(format!("host {host}: {why}")))?);
        }
        // What one of them writes fits no pipe, and all wait for each other: each is read by a
        // thread.
        let outputs: Vec<io::Result<Output>> = std::thread::scope(|scope| {
            let reading = processes.into_iter().map(|process| scope.spawn(|| process.wait_with_output()));
            let reading: Vec<_> = reading.collect();
            reading.into_iter().map(|thread| thread.join().expect("reading does not panic")).collect()
        });
        let mut measured = Vec::new();
        for (host, output) in outputs.into_iter().enumerate() {
            let output = output.map_err(|why| failed(format!("host {host}: {why}")))?;
            if !output.status.success() {
                return Err(failed(format!("host {host}: {}", excerpt(&output.stderr, LINES_MAX))));
            }
            let of_rank: OfRank = serde_json::from_slice(&output.stdout)
                .map_err(|why| failed(format!("unexpected output of host {host}: {why}")))?;
            measured.push(of_rank.into());
        }
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_the_peers() {
        for (number, (name, peer)) in Peer::NAMES.into_iter().enumerate() {
            assert_eq!((peer as usize, peer.to_string().as_str()), (number, name));
            assert_eq!(name.parse(), Ok(peer));
        }
        assert_eq!("lam".parse::<Peer>(), Err("openmpi, mpich, tcp-tree or tcp-chain"));
    }
}
