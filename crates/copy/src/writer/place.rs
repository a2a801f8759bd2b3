//! Where entries go.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::directory::Directory;
use super::parts::Parts;
use crate::Entry;

/// A name in a directory at the destination.
#[derive(Clone)]
pub(super) struct Place {
    pub directory: Arc<Directory>,
    pub name: OsString,
    /// The path for messages.
    pub path: PathBuf,
    /// The parts in the directory, once they are asked for.
    parts: Arc<OnceLock<Parts>>,
}

impl Place {
    /// The parts that copies have left of the file with this name.
    pub fn parts(&self) -> &[OsString] {
        self.all_parts().of(&self.name)
    }

    /// Removes those of them that nobody writes. A new part has just been made, at `now_seconds`.
    pub fn remove_abandoned(&self, now_seconds: i64) {
        self.all_parts().remove_abandoned(&self.directory, &self.name, now_seconds);
    }

    fn all_parts(&self) -> &Parts {
        self.parts.get_or_init(|| Parts::find(&self.directory))
    }
}

/// A directory, and the parts in it.
type Listed = (Arc<Directory>, Arc<OnceLock<Parts>>);

/// The destination, which gives entries their places.
pub(super) struct Places {
    destination: PathBuf,
    /// The destination, or the directory that it is in; none if there is none yet, and none is
    /// made.
    top: Option<Arc<Directory>>,
    /// The destination's name, if the first entry gets it.
    name: Option<OsString>,
    /// The directory of the last place, by its path below `top`: entries of one directory follow
    /// one another.
    last: Option<(PathBuf, Listed)>,
}

impl Places {
    /// Opens the destination: the directory that entries are written `into`, or the name that the
    /// first one gets.
    ///
    /// # Errors
    /// It, or the directory that it is in, does not exist, unless it `may_be_missing`.
    pub fn new(destination: PathBuf, into: bool, may_be_missing: bool) -> io::Result<Self> {
        let (top, name) = if into {
            (destination.as_path(), None)
        } else {
            let name = destination.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
            (destination.parent().unwrap_or(Path::new("")), Some(name.to_owned()))
        };
        let top = if top.as_os_str().is_empty() { Path::new(".") } else { top };
        let top = match Directory::open(top) {
            Err(error) if may_be_missing && error.kind() == io::ErrorKind::NotFound => None,
            opened => Some(Arc::new(opened?)),
        };
        Ok(Self { destination, top, name, last: None })
    }

    /// The path of an entry for messages.
    pub fn path(&self, entry: &Path) -> PathBuf {
        if self.name.is_none() {
            return self.destination.join(entry);
        }
        self.destination.iter().chain(entry.iter().skip(1)).collect()
    }

    /// The directory that an entry is.
    ///
    /// # Errors
    /// Those of [`Directory::below`].
    pub fn directory(&self, entry: &Path) -> io::Result<Directory> {
        self.top()?.below(&self.below(entry))
    }

    fn top(&self) -> io::Result<&Directory> {
        Ok(self.top.as_deref().ok_or(io::ErrorKind::NotFound)?)
    }

    /// The path of an entry below `top`.
    fn below(&self, entry: &Path) -> PathBuf {
        match &self.name {
            None => entry.into(),
            Some(name) => std::iter::once(name.as_os_str()).chain(entry.iter().skip(1)).collect(),
        }
    }

    /// The place of an entry.
    ///
    /// # Errors
    /// Those of [`Directory::below`], and an entry without a name.
    pub fn place(&mut self, entry: &Entry) -> io::Result<Place> {
        let below = self.below(&entry.path);
        let name = below.file_name().map(OsStr::to_owned).ok_or(io::ErrorKind::InvalidFilename)?;
        let parent = below.parent().unwrap_or(Path::new(""));
        let (directory, parts) = match &self.last {
            Some((last, listed)) if last == parent => listed.clone(),
            _ => {
                let listed = (Arc::new(self.top()?.below(parent)?), Arc::default());
                self.last.insert((parent.into(), listed)).1.clone()
            }
        };
        Ok(Place { directory, name, path: self.path(&entry.path), parts })
    }
}
