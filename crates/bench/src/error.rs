//! Errors of benchmarks.

use std::fmt;

use thiserror::Error;

use crate::peer::Peer;

/// The worker that an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerId {
    /// The number of its host.
    pub host: usize,
    /// Its number on the host; `None` if it is the only one there.
    pub process: Option<u32>,
}

impl fmt::Display for WorkerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "host {}", self.host)?;
        self.process.map_or(Ok(()), |process| write!(formatter, ", process {process}"))
    }
}

/// Why a benchmark failed.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A number out of bounds.
    #[error("{what} must be from {min} to {max}, and not {given}")]
    Bounds {
        /// The name of the number.
        what: &'static str,
        /// The number.
        given: u64,
        /// The smallest valid number.
        min: u64,
        /// The largest valid number.
        max: u64,
    },
    /// Settings that exclude each other.
    #[error("{what}: {why}")]
    Combination {
        /// The settings.
        what: String,
        /// Why they exclude each other.
        why: &'static str,
    },
    /// A host name that cannot be resolved.
    #[error("cannot resolve host {name}: {why}")]
    Host {
        /// The host's name.
        name: String,
        /// The resolver's error.
        why: std::io::Error,
    },
    /// A limit of the machine cannot be measured.
    #[error("cannot measure the limits of this machine: {0}")]
    Limits(std::io::Error),
    /// There is no file in which the workers of this machine can meet.
    #[error("cannot make a temporary directory: {0}")]
    NoMeeting(std::io::Error),
    /// No token can be drawn for the groups.
    #[error("cannot draw a token: {0}")]
    NoToken(std::io::Error),
    /// The fabric cannot be used.
    #[error(transparent)]
    Fabric(#[from] treecast_fabric::FabricError),
    /// The lab cannot be created.
    #[error(transparent)]
    Lab(#[from] treecast_lab::LabError),
    /// A worker cannot be started, or has died.
    #[error("the worker of {worker}: {why}")]
    Worker {
        /// The worker.
        worker: WorkerId,
        /// The system's error.
        why: std::io::Error,
    },
    /// The remote shell of a worker cannot be started, or has ended.
    #[error("host {name}: the remote shell '{shell}': {why}")]
    Shell {
        /// The name of the host.
        name: String,
        /// The shell and its options.
        shell: String,
        /// The cause.
        why: std::io::Error,
    },
    /// A worker on a remote host has reported an error.
    #[error("host {name}: {why}")]
    FailedRemotely {
        /// The name of the host.
        name: String,
        /// The worker's error message.
        why: String,
    },
    /// A peer cannot be measured.
    #[error("{peer} cannot be measured: {why}")]
    Peer {
        /// The peer.
        peer: Peer,
        /// Why.
        why: String,
    },
    /// A worker has reported an error.
    #[error("{worker}: {why}")]
    Failed {
        /// The worker.
        worker: WorkerId,
        /// The worker's error message.
        why: String,
    },
}
