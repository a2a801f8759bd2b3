//! Which of the entries that are to come are here already.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;

use rustix::fs::{FileType, OFlags, Stat};

use super::place::Place;
use crate::chunks::hash_of;
use crate::control::Existing;
use crate::stopper::Stopper;
use crate::stream::Hash;
use crate::{Entry, Kind};

/// The entries that were listed.
#[derive(Default)]
pub(super) struct Listing {
    /// Their number.
    count: u32,
    /// Ranges of those that are not here.
    lacking: Vec<(u32, u32)>,
    /// Those that are here, by their numbers.
    here: BTreeMap<u32, Entry>,
    /// The names in each directory that was listed.
    pub names: BTreeMap<PathBuf, BTreeSet<OsString>>,
}

impl Listing {
    /// Adds the next entry: it is here, or lacking.
    pub fn add(&mut self, entry: Entry, is_here: bool) {
        if let Some((parent, name)) = entry.path.parent().zip(entry.path.file_name())
            && let Some(names) = self.names.get_mut(parent)
        {
            names.insert(name.into());
        }
        if entry.kind == Kind::Directory {
            // The destination is listed once for each directory whose contents go there.
            self.names.entry(entry.path.clone()).or_default();
        }
        match self.lacking.last_mut() {
            _ if is_here => {
                self.here.insert(self.count, entry);
            }
            Some((_, end)) if *end == self.count => *end += 1,
            _ => self.lacking.push((self.count, self.count + 1)),
        }
        self.count += 1;
    }

    /// The answer: ranges of the numbers of entries that are not here. None if another number of
    /// entries was listed.
    pub fn answer(&mut self, count: u32) -> Option<Vec<(u32, u32)>> {
        (count == self.count).then(|| std::mem::take(&mut self.lacking))
    }

    /// Takes an entry that was here when it was listed.
    pub fn take(&mut self, number: u32) -> Option<Entry> {
        self.here.remove(&number)
    }
}

/// Whether what has the name is to stay as it is.
pub(super) fn is_here(place: &Place, entry: &Entry, hash: Option<&Hash>, existing: Existing) -> bool {
    let Ok(there) = place.directory.status(&place.name) else { return false };
    let kind = FileType::from_raw_mode(there.st_mode);
    match (&entry.kind, existing) {
        (Kind::Directory, _) => kind == FileType::Directory,
        (_, Existing::Keep) => true,
        (_, Existing::Replace) => false,
        (_, Existing::Newer) => (there.st_mtime, there.st_mtime_nsec) >= modified(entry),
        (Kind::Link(to), Existing::Changed) => {
            place.directory.link_target(&place.name).is_ok_and(|target| target == to.as_os_str())
        }
        (Kind::File { length, .. }, Existing::Changed) => {
            kind == FileType::RegularFile
                && there.st_size.cast_unsigned() == *length
                && match hash {
                    Some(hash) => {
                        let file = place.directory.open_file(&place.name, OFlags::RDONLY);
                        file.and_then(|file| hash_of(&file, &Stopper::default()))
                            .is_ok_and(|here| here == *hash)
                    }
                    None => has_time(&there, entry),
                }
        }
    }
}

/// Whether it was modified when the entry was. Some file systems know seconds only.
pub(super) fn has_time(there: &Stat, entry: &Entry) -> bool {
    let (seconds, nanoseconds) = modified(entry);
    there.st_mtime == seconds && [0, nanoseconds].contains(&there.st_mtime_nsec)
}

fn modified(entry: &Entry) -> (i64, i64) {
    (entry.modified.0, entry.modified.1.into())
}
