//! Modes, owners, times and extended attributes of what was written.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod, fchown, fsetxattr,
    futimens, utimensat,
};
use rustix::io::Errno;

use super::directory::Directory;
use crate::Entry;
use crate::sources::described;

/// Mode bits of each part: its owner can open it, to find out whether a process holds its lock.
pub(super) const PART_MODE: u32 = 0o600;

/// Which of the sources' attributes are set.
pub(super) struct Attributes {
    /// Whether modes, times and owners are those of the sources.
    preserves: bool,
    /// Whether this process may give files to other users.
    is_root: bool,
    umask: Mode,
}

impl Attributes {
    pub fn new(preserves: bool) -> Self {
        // The mask can be read only by setting it.
        let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
        rustix::process::umask(umask);
        Self { preserves, is_root: rustix::process::geteuid().is_root(), umask }
    }

    /// The owner to be, if it is to change.
    ///
    /// # Errors
    /// A number that no user or group has: chown(2) takes it for no change.
    fn owner(&self, entry: &Entry) -> io::Result<Option<(Option<Uid>, Option<Gid>)>> {
        let (user, group) = entry.owner;
        if !(self.preserves && self.is_root) {
            return Ok(None);
        }
        if [user, group].contains(&u32::MAX) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "invalid owner"));
        }
        Ok(Some((Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))))
    }

    /// A file was made with the source's mode and [`PART_MODE`], without the bits of the umask.
    /// Extended attributes come last: a change of the owner takes capabilities away.
    pub fn set_of_file(&self, file: &File, entry: &Entry) -> io::Result<()> {
        if let Some((user, group)) = self.owner(entry)? {
            fchown(file, user, group)?;
        }
        if self.preserves {
            fchmod(file, Mode::from_raw_mode(entry.mode))?;
            futimens(file, &times(entry))?;
        } else if entry.mode & PART_MODE != PART_MODE {
            fchmod(file, Mode::from_raw_mode(entry.mode & 0o777).difference(self.umask))?;
        }
        Ok(())
    }

    /// `.` is the directory itself: a descriptor with `O_PATH` takes no attributes directly.
    pub fn set_of_directory(&self, directory: &Directory, entry: &Entry) -> io::Result<()> {
        let mode = Mode::from_raw_mode(entry.mode);
        let (own, flags) = (c".", AtFlags::empty());
        if let Some((user, group)) = self.owner(entry)? {
            chownat(directory, own, user, group, flags)?;
        }
        let mode = if self.preserves { mode } else { mode.difference(self.umask) };
        chmodat(directory, own, mode, flags)?;
        if self.preserves {
            utimensat(directory, own, &times(entry), flags)?;
        }
        if entry.attributes.is_empty() { Ok(()) } else { set_extended(directory.readable()?, entry) }
    }

    /// A link has no mode of its own.
    pub fn set_of_link(&self, link: &OwnedFd, entry: &Entry) -> io::Result<()> {
        if let Some((user, group)) = self.owner(entry)? {
            chownat(link, c"", user, group, AtFlags::EMPTY_PATH)?;
        }
        if self.preserves {
            match utimensat(link, c"", &times(entry), AtFlags::EMPTY_PATH) {
                // Kernels before 5.8 set no times of a link by its descriptor.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Sets all extended attributes that can be set. Returns the first error.
pub(super) fn set_extended(of: impl AsFd, entry: &Entry) -> io::Result<()> {
    let mut done = Ok(());
    for attribute in &entry.attributes {
        let name = OsStr::from_bytes(&attribute.name);
        if let Err(error) = fsetxattr(&of, name, &attribute.value, XattrFlags::empty())
            && done.is_ok()
        {
            let why = described(&error.into());
            done = Err(io::Error::other(format!("extended attribute {}: {why}", name.display())));
        }
    }
    done
}

/// The time of the last access becomes that of the last modification.
fn times(entry: &Entry) -> Timestamps {
    let (tv_sec, nanoseconds) = entry.modified;
    let time = Timespec { tv_sec, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::Kind;

    /// The system calls take this number for no change, and the library asserts that it is not
    /// given.
    #[test]
    fn a_number_that_no_user_has_is_an_error() {
        let attributes = Attributes { preserves: true, is_root: true, umask: Mode::empty() };
        let file = tempfile::tempfile().unwrap();
        for owner in [(u32::MAX, 0), (0, u32::MAX)] {
            let kind = Kind::File { length: 0, is_sparse: false };
            let (path, attributes_of) = ("file".into(), Vec::new());
            let entry = Entry { path, kind, mode: 0o644, owner, modified: (0, 0), attributes: attributes_of };
            let error = attributes.set_of_file(&file, &entry).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    }
}
