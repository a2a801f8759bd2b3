//! Removing what is in copied directories and was not among the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::directory::Directory;
use super::parts::is_part;
use super::place::Places;
use crate::exclusion::Exclusion;

/// How many deletions are listed where nothing is changed.
const LISTED_MAX: usize = 1_000;

/// Removes what is to be deleted, or says what it would remove.
pub(super) struct Deletion<'a> {
    places: &'a Places,
    /// The patterns of entries that stay.
    protected: Exclusion,
    is_dry: bool,
    /// How many files, links and directories were deleted, or would be.
    pub count: u64,
    /// The first of them, where nothing is changed.
    pub listed: Vec<String>,
    pub failures: Vec<(PathBuf, io::Error)>,
}

impl<'a> Deletion<'a> {
    pub const fn new(places: &'a Places, protected: Exclusion, is_dry: bool) -> Self {
        Self { places, protected, is_dry, count: 0, listed: Vec::new(), failures: Vec::new() }
    }

    /// Deletes everything in directories whose name is not among those given for it.
    pub fn run(&mut self, names: &BTreeMap<PathBuf, BTreeSet<OsString>>) {
        for (path, names) in names {
            match self.places.directory(path) {
                Ok(directory) => {
                    self.remove_in(&directory, path, &|name| names.contains(name));
                }
                // It is not there yet, where nothing is changed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.failures.push((self.places.path(path), error)),
            }
        }
    }

    /// Removes what is in a directory and is not kept. Returns whether all is gone. Each level
    /// keeps a descriptor open, so the limit of open files bounds the depth; a deeper directory is
    /// reported, and stays.
    fn remove_in(&mut self, directory: &Directory, path: &Path, is_kept: &dyn Fn(&OsStr) -> bool) -> bool {
        let names = match directory.names() {
            Ok(names) => names,
            Err(error) => {
                self.failures.push((self.places.path(path), error));
                return false;
            }
        };
        let mut is_empty = true;
        for name in names {
            let below = path.join(&name);
            is_empty &= !is_kept(&name) && self.remove(directory, &name, &below);
        }
        is_empty
    }

    /// Removes what has a name, unless it is protected, or something in it is. Returns whether it
    /// is gone.
    fn remove(&mut self, directory: &Directory, name: &OsStr, path: &Path) -> bool {
        // Parts are of other copies, or are removed when they are old.
        if is_part(name) || self.protected.matches(path) {
            return false;
        }
        let removed = if directory.type_of(name) == Some(FileType::Directory) {
            match directory.below(Path::new(name)) {
                Ok(child) if !self.remove_in(&child, path, &|_| false) => return false,
                Ok(_) if self.is_dry => Ok(()),
                Ok(_) => directory.remove_directory(name),
                Err(error) => Err(error),
            }
        } else if self.is_dry {
            Ok(())
        } else {
            directory.remove(name)
        };
        match removed {
            Ok(()) => {
                self.count += 1;
                if self.is_dry && self.listed.len() < LISTED_MAX {
                    self.listed.push(self.places.path(path).display().to_string());
                }
                true
            }
            Err(error) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => true,
            Err(error) => {
                self.failures.push((self.places.path(path), error));
                false
            }
        }
    }
}
