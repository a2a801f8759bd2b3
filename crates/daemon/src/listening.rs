//! The socket at which a daemon, or a process that shares its node, listens for clients.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use treecast_engine::settings::error::NodeError;

/// The most connections that wait for `accept`.
const BACKLOG: i32 = 128;

/// The name of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SocketName {
    /// A file, which the file system protects.
    Path(PathBuf),
    /// An abstract name (unix(7)): of this network namespace, and gone with the process that
    /// listens. Anybody may take it, so clients check who that is.
    Abstract(String),
}

impl SocketName {
    pub fn address(&self) -> io::Result<SocketAddrUnix> {
        Ok(match self {
            Self::Path(path) => SocketAddrUnix::new(path)?,
            Self::Abstract(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        })
    }
}

impl fmt::Display for SocketName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(formatter, "{}", path.display()),
            Self::Abstract(name) => write!(formatter, "@{name}"),
        }
    }
}

/// A socket that listens. Its file, if it has one, is removed when it is dropped.
#[derive(Debug)]
pub(super) struct ListeningSocket {
    descriptor: OwnedFd,
    /// The path of its file, with the device and inode.
    file: Option<(PathBuf, (u64, u64))>,
}

impl ListeningSocket {
    /// Listens at a path, whose directory is created if it is missing. The socket of a daemon that
    /// has died is replaced.
    ///
    /// # Errors
    /// [`NodeError::Daemon`].
    pub fn open(path: &Path) -> Result<Self, NodeError> {
        let (descriptor, file) = open_socket(path)?;
        Ok(Self { descriptor, file: Some((path.into(), file)) })
    }

    /// Listens at an abstract name.
    ///
    /// # Errors
    /// Those of bind(2): `AddrInUse`, if another process listens there.
    pub fn open_abstract(name: &SocketName) -> io::Result<Self> {
        let descriptor = new_socket()?;
        bind(&descriptor, &name.address()?)?;
        listen(&descriptor, BACKLOG)?;
        Ok(Self { descriptor, file: None })
    }

    pub const fn descriptor(&self) -> &OwnedFd {
        &self.descriptor
    }
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        // Another daemon may have replaced the socket meanwhile.
        if let Some((path, file)) = &self.file
            && file_of(path).ok() == Some(*file)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Opens the socket; returns it with the device and inode of its file.
fn open_socket(path: &Path) -> Result<(OwnedFd, (u64, u64)), NodeError> {
    let fail = |source: io::Error| {
        NodeError::Daemon(format!("the daemon cannot listen at {}: {source}", path.display()))
    };
    let directory =
        path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory).map_err(fail)?;
    // The lock orders two daemons that start at the same time.
    let lock = fs::File::open(directory).map_err(fail)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| fail(error.into()))?;
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(fail(io::Error::other("the file is not a socket")));
        }
        if is_served(path) {
            return Err(fail(io::Error::other("another daemon listens there")));
        }
        fs::remove_file(path).map_err(fail)?;
    }
    let open = || {
        let socket = new_socket()?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        listen(&socket, BACKLOG)?;
        Ok((socket, file_of(path)?))
    };
    open().map_err(fail)
}

fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Whether a process listens at a socket.
fn is_served(path: &Path) -> bool {
    let try_it = || Ok::<_, io::Error>(connect(&new_socket()?, &SocketAddrUnix::new(path)?)?);
    // Any other error, such as a full backlog, comes from a process that listens.
    try_it().err().is_none_or(|error| error.kind() != io::ErrorKind::ConnectionRefused)
}
