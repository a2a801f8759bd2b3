//! Directories at the destination, by descriptors.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, DirEntry, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, readlinkat, renameat,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

/// An open directory. Every operation takes a single name in it, and none follows a symbolic link,
/// so a user who changes the tree during a copy cannot lead it out of the destination. The tree is
/// walked a name at a time (`openat2` does the same in fewer calls, but not on kernels before 5.6).
pub(super) struct Directory {
    /// Opened with `O_PATH`, which needs no permission to read the directory.
    descriptor: OwnedFd,
}

/// The flags with which `Directory` opens everything.
const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

impl Directory {
    /// Opens the directory that a user has named: symbolic links in `path` are followed.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { descriptor: openat(CWD, path, flags, Mode::empty())? })
    }

    /// Opens the directory at a path of names below this one.
    ///
    /// # Errors
    /// One of them is missing, is a symbolic link, or is not a directory.
    pub fn below(&self, path: &Path) -> io::Result<Self> {
        let mut directory = Self { descriptor: self.descriptor.try_clone()? };
        for name in path {
            directory = directory.child(name)?;
        }
        Ok(directory)
    }

    fn child(&self, name: &OsStr) -> io::Result<Self> {
        match openat(self, name, FLAGS | OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
            Ok(descriptor) => Ok(Self { descriptor }),
            Err(Errno::NOTDIR) if self.type_of(name) == Some(FileType::Symlink) => {
                let why = format!("{} is a symbolic link, which is not followed", name.display());
                Err(io::Error::other(why))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a directory unless there is one. Returns it, and whether it is new.
    pub fn create_directory(&self, name: &OsStr, mode: u32) -> io::Result<(Self, bool)> {
        let is_new = match mkdirat(self, name, Mode::from_raw_mode(mode)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        Ok((self.child(name)?, is_new))
    }

    /// The device and the number of the directory, which no other one has.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let there = fstat(self)?;
        Ok((there.st_dev, there.st_ino))
    }

    /// The directory, open for reading.
    pub fn readable(&self) -> io::Result<OwnedFd> {
        Ok(openat(self, c".", FLAGS | OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?)
    }

    /// The names of all that is in the directory.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = Dir::new(self.readable()?)?;
        let name = |entry: DirEntry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
        let names = entries.map(|entry| entry.map(name).map_err(io::Error::from));
        names.filter(|name| !name.as_ref().is_ok_and(|name| name == "." || name == "..")).collect()
    }

    /// The status of what has a name.
    pub fn status(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(statat(self, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The kind of the entry with this name; none if it does not exist.
    pub fn type_of(&self, name: &OsStr) -> Option<FileType> {
        self.status(name).ok().map(|there| FileType::from_raw_mode(there.st_mode))
    }

    /// Creates a file, open for reading and writing.
    ///
    /// # Errors
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists), and those of the system.
    pub fn create_file(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = FLAGS | OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
        Ok(openat(self, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Opens a file for reading, or for reading and writing.
    ///
    /// # Errors
    /// It is not a regular file, and those of the system.
    pub fn open_file(&self, name: &OsStr, access: OFlags) -> io::Result<File> {
        // A pipe does not wait for its other end.
        let file: File = openat(self, name, FLAGS | OFlags::NONBLOCK | access, Mode::empty())?.into();
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// Creates a symbolic link.
    pub fn create_link(&self, name: &OsStr, to: &Path) -> io::Result<()> {
        Ok(symlinkat(to, self, name)?)
    }

    /// Opens a symbolic link itself, so that its attributes can be set.
    ///
    /// # Errors
    /// It is not a symbolic link, and those of the system.
    pub fn open_link(&self, name: &OsStr) -> io::Result<OwnedFd> {
        let link = openat(self, name, FLAGS | OFlags::PATH, Mode::empty())?;
        let is_link = FileType::from_raw_mode(fstat(&link)?.st_mode) == FileType::Symlink;
        if is_link { Ok(link) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// Gives a part its name, in place of the file or link that has it.
    ///
    /// # Errors
    /// Those of [`check_replaceable`](Self::check_replaceable), and those of the system.
    pub fn replace(&self, part: &OsStr, name: &OsStr) -> io::Result<()> {
        self.check_replaceable(name)?;
        Ok(renameat(self, part, self, name)?)
    }

    /// Checks that no device, pipe or socket has a name.
    pub fn check_replaceable(&self, name: &OsStr) -> io::Result<()> {
        match self.type_of(name) {
            None | Some(FileType::RegularFile | FileType::Symlink | FileType::Directory) => Ok(()),
            Some(_) => Err(io::Error::other("is a device, a pipe or a socket, which is not replaced")),
        }
    }

    /// Where a symbolic link leads.
    pub fn link_target(&self, name: &OsStr) -> io::Result<OsString> {
        let target = readlinkat(self, name, Vec::new())?;
        Ok(OsStr::from_bytes(target.to_bytes()).to_owned())
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(self, name, AtFlags::REMOVEDIR)?)
    }

    /// Removes a file or link.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(self, name, AtFlags::empty())?)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
