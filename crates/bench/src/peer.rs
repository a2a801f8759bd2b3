//! Other software whose broadcasts are measured.

use std::fmt;
use std::str::FromStr;

/// Other software that broadcasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// `MPI_Bcast`, `MPI_Allreduce` and `MPI_Barrier` of Open MPI 4 or 5, over TCP between hosts
    /// and shared memory inside. Ranks that wait yield the processor (`mpi_yield_when_idle`), since
    /// the hosts of a lab share processors.
    OpenMpi,
    /// The same of MPICH. Its ranks yield too.
    Mpich,
    /// A broadcast that a user would write: a tree of blocking TCP connections with two children at
    /// each host.
    TcpTree,
    /// The same with one child at each host.
    TcpChain,
}

impl Peer {
    /// All, with their names.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("openmpi", Self::OpenMpi),
        ("mpich", Self::Mpich),
        ("tcp-tree", Self::TcpTree),
        ("tcp-chain", Self::TcpChain),
    ];

    /// Whether it is an MPI, for which there is a shim.
    #[must_use]
    pub const fn is_mpi(self) -> bool {
        matches!(self, Self::OpenMpi | Self::Mpich)
    }

    /// The fan-out of a tree of TCP connections.
    pub(crate) const fn fan_out(self) -> Option<u32> {
        match self {
            Self::OpenMpi | Self::Mpich => None,
            Self::TcpTree => Some(2),
            Self::TcpChain => Some(1),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(Self::NAMES[*self as usize].0)
    }
}

impl FromStr for Peer {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, peer)| peer).ok_or("openmpi, mpich, tcp-tree or tcp-chain")
    }
}
