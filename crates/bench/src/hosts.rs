//! The hosts of a benchmark, and the command that runs a worker on each.

use std::path::PathBuf;
use std::process::Command;

use treecast_lab::LabSettings;
use treecast_remote::RemoteShell;

use crate::error::BenchError;

/// The command that runs a worker.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    /// The path of the executable, the same on every host.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl WorkerCommand {
    pub(crate) fn with_arguments(&self, mut command: Command) -> Command {
        command.args(&self.arguments);
        command
    }
}

/// The hosts of a benchmark; the first is the root.
#[derive(Debug, Clone)]
pub enum Hosts {
    /// Hosts of a lab.
    Lab(LabSettings),
    /// This many processes on this machine's loopback interface; needs no rights.
    Loopback(u32),
    /// Machines that a remote shell reaches.
    Remote(RemoteHosts),
}

impl Hosts {
    /// The error with the name of the host, if the hosts are remote: their numbers are those of a
    /// list that may be long.
    pub(crate) fn name_in(&self, error: BenchError) -> BenchError {
        let Self::Remote(RemoteHosts { names, shell }) = self else { return error };
        let name = |host: usize| names.get(host).cloned().unwrap_or_default();
        match error {
            BenchError::Worker { worker, why } => {
                BenchError::Shell { name: name(worker.host), shell: shell.to_string(), why }
            }
            BenchError::Failed { worker, why } => BenchError::FailedRemotely { name: name(worker.host), why },
            other => other,
        }
    }

    /// The number of hosts.
    pub fn count(&self) -> u32 {
        match self {
            Self::Lab(settings) => settings.hosts,
            Self::Loopback(hosts) => *hosts,
            Self::Remote(hosts) => hosts.names.len() as u32,
        }
    }
}

/// Machines that a remote shell reaches.
#[derive(Debug, Clone)]
pub struct RemoteHosts {
    /// Their names, for the shell and the resolver.
    pub names: Vec<String>,
    /// The shell that starts the workers.
    pub shell: RemoteShell,
}

impl RemoteHosts {
    /// The command that starts a worker on a host. It ends when its standard input is closed, as
    /// the worker does.
    pub(crate) fn command(&self, host: usize, worker: &WorkerCommand) -> Command {
        let mut command = self.shell.command(&self.names[host]);
        command.arg(&worker.path);
        worker.with_arguments(command)
    }
}
