//! The congestion control of a group's streams, as its settings name it.

use std::os::fd::AsFd;
use std::{fmt, fs};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use serde::{Deserialize, Serialize};

use super::error::NodeError;

/// An algorithm of the kernel's TCP for congestion control, by a name that the kernel may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CongestionControl(String);

/// The algorithms that the kernel has, and those that it lets processes without rights use.
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

impl CongestionControl {
    /// The longest name, in bytes: `TCP_CA_NAME_MAX` of the kernel without the final zero.
    pub const NAME_BYTES_MAX: usize = 15;

    /// None for a name that no algorithm can have, and for `auto`, which leaves the choice open.
    pub fn new(name: &str) -> Option<Self> {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        let fits = (1..=Self::NAME_BYTES_MAX).contains(&name.len());
        (fits && name != "auto" && name.bytes().all(is_valid)).then(|| Self(name.into()))
    }

    /// Gives a socket this algorithm.
    ///
    /// # Errors
    /// `ENOENT`, if the kernel does not have it; `EPERM`, if this process may not use it.
    pub fn set(&self, socket: &impl AsFd) -> Result<(), Errno> {
        sockopt::set_tcp_congestion(socket, &self.0)
    }

    /// Checks that the kernel has the algorithm, and that this process may use it.
    ///
    /// # Errors
    /// [`NodeError::CongestionControl`], [`NodeError::System`].
    pub fn check(&self) -> Result<(), NodeError> {
        // With CAP_NET_ADMIN the name alone would make the kernel load a module, and a root chooses
        // the name for the members that join it.
        if names(AVAILABLE).is_some_and(|available| !available.contains(&self.0)) {
            return Err(self.refused(false));
        }
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None);
        match socket.and_then(|socket| self.set(&socket)) {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(self.refused(false)),
            Err(Errno::PERM) => Err(self.refused(true)),
            Err(error) => {
                Err(NodeError::System { what: "cannot try tcp_congestion on a socket", source: error.into() })
            }
        }
    }

    /// Checks that a process without rights may use the algorithm, for which this process sets it.
    ///
    /// # Errors
    /// [`NodeError::CongestionControl`].
    pub fn check_allowed(&self) -> Result<(), NodeError> {
        match names(ALLOWED) {
            Some(allowed) if allowed.contains(&self.0) => Ok(()),
            _ => Err(self.refused(true)),
        }
    }

    fn refused(&self, is_available: bool) -> NodeError {
        let list = |path| names(path).map_or_else(|| "unknown".into(), |names| names.join(", "));
        NodeError::CongestionControl {
            name: self.0.clone(),
            is_available,
            available: list(AVAILABLE),
            allowed: list(ALLOWED),
        }
    }
}

/// The names in a file of the kernel; none if it cannot be read.
fn names(path: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.split_whitespace().map(Into::into).collect())
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl From<CongestionControl> for String {
    fn from(algorithm: CongestionControl) -> Self {
        algorithm.0
    }
}

impl TryFrom<String> for CongestionControl {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        Self::new(&name).ok_or("invalid name of a congestion control")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_kernel_may_have() {
        for name in ["bbr", "cubic", "dctcp-reno", "a_b", "123456789012345"] {
            assert_eq!(CongestionControl::new(name).unwrap().to_string(), name);
        }
        for wrong in ["", "auto", "1234567890123456", "two words", "../reno", "r\u{e9}no", "reno\0"] {
            assert_eq!(CongestionControl::new(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn an_algorithm_that_the_kernel_does_not_have_is_refused_with_those_that_it_has() {
        let nonsense = CongestionControl::new("nonsense").unwrap();
        for (error, adjective) in [(nonsense.check(), "available"), (nonsense.check_allowed(), "allowed")] {
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(&format!("tcp_congestion=nonsense is not {adjective}: ")), "{error}");
            // Every kernel has it.
            assert!(error.contains("reno"), "{error}");
            assert!(error.contains("net.ipv4.tcp_allowed_congestion_control"), "{error}");
        }
        CongestionControl::new("reno").unwrap().check().unwrap();
    }
}
