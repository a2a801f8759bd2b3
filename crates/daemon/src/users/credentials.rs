//! Who a client is, as the kernel reports it: a client cannot forge that.

#![expect(unsafe_code, reason = "SO_PEERGROUPS")]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::sockopt;

/// The credentials of a client's process, from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerCredentials {
    pub user: u32,
    /// The group ids of the process.
    pub groups: Vec<u32>,
    pub process: i32,
}

impl fmt::Display for PeerCredentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match nix::unistd::User::from_uid(self.user.into()).ok().flatten() {
            Some(user) => write!(formatter, "{}", user.name)?,
            None => write!(formatter, "user {}", self.user)?,
        }
        write!(formatter, ", process {}", self.process)
    }
}

/// The credentials of the peer's process.
///
/// # Errors
/// Those of `getsockopt(2)`.
pub(crate) fn peer_credentials(socket: &OwnedFd) -> io::Result<PeerCredentials> {
    let peer = sockopt::socket_peercred(socket)?;
    let mut groups = peer_groups(socket)?;
    groups.push(peer.gid.as_raw());
    Ok(PeerCredentials { user: peer.uid.as_raw(), groups, process: peer.pid.as_raw_pid() })
}

/// The supplementary groups of the peer's process when it connected (`SO_PEERGROUPS`).
fn peer_groups(socket: &OwnedFd) -> io::Result<Vec<u32>> {
    const GROUPS_MAX: usize = 65_536;
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut bytes = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the system writes at most `bytes` bytes, which the vector has, and returns their
        // number.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        if answer == 0 {
            groups.truncate(bytes as usize / size_of::<libc::gid_t>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || groups.len() >= GROUPS_MAX {
            return Err(error);
        }
        groups.resize(groups.len() * 4, 0);
    }
}
