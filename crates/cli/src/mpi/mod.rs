//! MPI programs: which MPI a program uses, and the shim for it.

mod launcher;
mod program;
mod shim;

use std::fmt;
use std::str::FromStr;

pub use launcher::{LabHosts, Launcher, find_launcher};
pub use program::{Found, find};
pub use shim::{directories, find_shim};

/// A binary interface of MPI. A program is compiled for one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// Open MPI: `libmpi.so.40`.
    OpenMpi,
    /// MPICH and those that agree with it: Intel MPI, MVAPICH, Cray MPI. `libmpi.so.12`, and
    /// `libmpich.so.12` in Debian.
    Mpich,
    /// The standard ABI of MPI 5: `libmpi_abi.so`.
    Standard,
}

impl Interface {
    pub const NAMES: [(&'static str, Self); 3] =
        [("openmpi", Self::OpenMpi), ("mpich", Self::Mpich), ("standard", Self::Standard)];

    /// The interface of a library with this name, if it is one of MPI.
    pub fn of_library(name: &str) -> Option<Self> {
        let is_of = |stem: &str| name.strip_prefix(stem).is_some_and(|rest| rest.starts_with(".so"));
        match name {
            _ if is_of("libmpi_abi") => Some(Self::Standard),
            _ if is_of("libmpich") || name.starts_with("libmpi.so.12") => Some(Self::Mpich),
            _ if name.starts_with("libmpi.so.40") => Some(Self::OpenMpi),
            _ => None,
        }
    }

    /// The interface of an MPI with this description, which `mpirun --version` or
    /// `MPI_Get_library_version` gives.
    pub fn of_version(text: &str) -> Option<Self> {
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if has(&["Open MPI", "OpenRTE", "PRRTE"]) {
            Some(Self::OpenMpi)
        } else if has(&["MPICH", "HYDRA", "Hydra", "Intel(R) MPI", "MVAPICH", "CRAY MPI"]) {
            Some(Self::Mpich)
        } else {
            None
        }
    }

    /// The file name of the shim.
    pub fn shim(self) -> String {
        format!("libtreecast_mpi_{self}.so")
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(Self::NAMES[*self as usize].0)
    }
}

impl FromStr for Interface {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, interface)| interface).ok_or("openmpi, mpich or standard")
    }
}

#[cfg(test)]
mod tests {
    use super::Interface::{self, Mpich, OpenMpi, Standard};

    #[test]
    fn names_are_in_the_order_of_the_interfaces() {
        for (name, interface) in Interface::NAMES {
            assert_eq!((interface.to_string().as_str(), name.parse()), (name, Ok(interface)));
        }
        assert_eq!("lam".parse::<Interface>(), Err("openmpi, mpich or standard"));
    }

    #[test]
    fn libraries_and_versions_tell_the_interface() {
        let cases = [
            ("libmpi.so.40", Some(OpenMpi)),
            ("libmpi.so.12", Some(Mpich)),
            ("libmpich.so.12", Some(Mpich)),
            ("libmpi_abi.so.0", Some(Standard)),
            ("libmpi_cxx.so.40", None),
            ("libmpifoo.so", None),
            ("libc.so.6", None),
        ];
        for (library, interface) in cases {
            assert_eq!(Interface::of_library(library), interface, "{library}");
        }
        assert_eq!(Interface::of_version("mpirun (Open MPI) 4.1.4"), Some(OpenMpi));
        assert_eq!(Interface::of_version("HYDRA build details:\n    Version: 4.0.2"), Some(Mpich));
        assert_eq!(Interface::of_version("Intel(R) MPI Library for Linux* OS"), Some(Mpich));
        assert_eq!(Interface::of_version("slurm 23.02.1"), None);
    }
}
