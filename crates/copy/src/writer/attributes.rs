//! Modes, owners, times and extended attributes of what was written.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chmod, chown, chownat, fchmod, fchown,
    futimens, lsetxattr, utimensat,
};

use crate::Entry;
use crate::sources::described;

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
    fn owner(&self, entry: &Entry) -> Option<(Option<Uid>, Option<Gid>)> {
        let (user, group) = entry.owner;
        (self.preserves && self.is_root).then(|| (Some(Uid::from_raw(user)), Some(Gid::from_raw(group))))
    }

    /// A file was made with the source's mode without the bits of the umask. Extended attributes come last: a change of the owner takes
    /// capabilities away.
    pub fn set_of_file(&self, file: &File, entry: &Entry) -> io::Result<()> {
        if let Some((user, group)) = self.owner(entry) {
            fchown(file, user, group)?;
        }
        if self.preserves {
            fchmod(file, Mode::from_raw_mode(entry.mode))?;
            futimens(file, &times(entry))?;
        }
        Ok(())
    }

    pub fn set_of_directory(&self, path: &Path, entry: &Entry) -> io::Result<()> {
        let mode = Mode::from_raw_mode(entry.mode);
        if let Some((user, group)) = self.owner(entry) {
            chown(path, user, group)?;
        }
        chmod(path, if self.preserves { mode } else { mode.difference(self.umask) })?;
        if self.preserves {
            utimensat(CWD, path, &times(entry), AtFlags::empty())?;
        }
        set_extended(path, entry)
    }

    /// A link has no mode of its own.
    pub fn set_of_link(&self, path: &Path, entry: &Entry) -> io::Result<()> {
        if let Some((user, group)) = self.owner(entry) {
            chownat(CWD, path, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if self.preserves {
            utimensat(CWD, path, &times(entry), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }
}

/// Sets all extended attributes that can be set. Returns the first error.
pub(super) fn set_extended(path: &Path, entry: &Entry) -> io::Result<()> {
    let mut done = Ok(());
    for attribute in &entry.attributes {
        let name = OsStr::from_bytes(&attribute.name);
        if let Err(error) = lsetxattr(path, name, &attribute.value, XattrFlags::empty())
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
