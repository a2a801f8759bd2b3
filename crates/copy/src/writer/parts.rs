//! The names of parts, and parts that earlier copies have left.
//!
//! Each copy draws its own names, so copies to one path do not meet before their parts get the
//! file's name, whichever hosts share the directory. The process that writes a part holds a lock on
//! it (flock(2)).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;

use rustix::fs::{FileType, FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use super::directory::Directory;

/// The end of the name of a file that is not complete.
const PART: &str = ".treecast-part";

/// The hexadecimal digits that tell which host has made a part, and those that are random.
const HOST_DIGITS: usize = 8;
const RANDOM_DIGITS: usize = 16;

/// The longest name of a file, in bytes (`NAME_MAX` of limits.h).
const NAME_BYTES_MAX: usize = 255;

/// A longer name of a file is cut in those of its parts.
const CUT_BYTES_MAX: usize = NAME_BYTES_MAX - 2 - HOST_DIGITS - RANDOM_DIGITS - PART.len();

/// Names that are tried; 64 random bits are taken twice hardly ever.
const ATTEMPTS: u32 = 16;

/// A part of another host is abandoned after this time without a change, by the clock of the file
/// system. A copy that is alive writes to its part much more often.
const OLD_SECONDS: i64 = 24 * 3_600;

/// The parts in a directory, by the cut names of their files.
#[derive(Default)]
pub(super) struct Parts(BTreeMap<Vec<u8>, Vec<OsString>>);

impl Parts {
    /// Finds all parts. There are none in a directory that cannot be read.
    pub fn find(directory: &Directory) -> Self {
        let mut parts = Self::default();
        for name in directory.names().unwrap_or_default() {
            if let Some((cut, _)) = split(name.as_bytes()) {
                parts.0.entry(cut.into()).or_default().push(name);
            }
        }
        parts
    }

    /// The parts of a file.
    pub fn of(&self, name: &OsStr) -> &[OsString] {
        self.0.get(cut(name)).map_or(&[], Vec::as_slice)
    }

    /// Removes the abandoned parts of a file. Errors are of no interest: they stay for the next
    /// copy.
    pub fn remove_abandoned(&self, directory: &Directory, name: &OsStr, now_seconds: i64) {
        for part in self.of(name) {
            let _ = remove_if_abandoned(directory, part, now_seconds);
        }
    }
}

/// Removes a part if no process holds its lock, and this host made it, or it is old.
fn remove_if_abandoned(directory: &Directory, part: &OsStr, now_seconds: i64) -> io::Result<()> {
    let there = directory.status(part)?;
    // The time of the last change of its status: copies set that of the last modification.
    let is_old = now_seconds.saturating_sub(there.st_ctime) > OLD_SECONDS;
    let is_own = split(part.as_bytes()).is_some_and(|(_, host)| host == own_host().as_bytes());
    match FileType::from_raw_mode(there.st_mode) {
        FileType::Symlink if is_old => return directory.remove(part),
        FileType::RegularFile if is_own || is_old => {}
        _ => return Ok(()),
    }
    // Locked until it is removed: a copy that has just made it and cannot lock it makes another
    // one.
    let file = directory.open_file(part, OFlags::RDWR)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => directory.remove(part),
        Err(Errno::WOULDBLOCK) => Ok(()),
        Err(_) if is_old => directory.remove(part),
        Err(_) => Ok(()),
    }
}

/// `.NAME.HOST RANDOM.treecast-part`, without the space.
fn draw(name: &OsStr) -> io::Result<OsString> {
    let mut random = [0; RANDOM_DIGITS / 2];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let mut digits = own_host().to_owned();
    for byte in random {
        let _ = write!(digits, "{byte:02x}");
    }
    let parts = [b".", cut(name), b".", digits.as_bytes(), PART.as_bytes()];
    Ok(OsString::from_vec(parts.concat()))
}

/// Whether a name is that of a part.
pub(super) fn is_part(name: &OsStr) -> bool {
    split(name.as_bytes()).is_some()
}

/// The cut name of the file, and the host, of a part's name.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let name = name.strip_prefix(b".")?.strip_suffix(PART.as_bytes())?;
    let (cut, digits) = name.split_at_checked(name.len().checked_sub(HOST_DIGITS + RANDOM_DIGITS)?)?;
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let cut = cut.strip_suffix(b".").filter(|cut| !cut.is_empty())?;
    digits.iter().all(is_digit).then(|| (cut, &digits[..HOST_DIGITS]))
}

fn cut(name: &OsStr) -> &[u8] {
    let name = name.as_bytes();
    &name[..name.len().min(CUT_BYTES_MAX)]
}

/// The name of this host, which tells its part files from those of hosts whose locks are invisible
/// here.
fn own_host() -> &'static str {
    static OWN_HOST: LazyLock<String> = LazyLock::new(|| {
        let hash = blake3::hash(rustix::system::uname().nodename().to_bytes());
        hash.to_hex()[..HOST_DIGITS].to_owned()
    });
    &OWN_HOST
}

/// Makes what will get a name, under a name of a part that nothing has.
pub(super) fn make<T>(name: &OsStr, make: impl Fn(&OsStr) -> io::Result<T>) -> io::Result<(OsString, T)> {
    for _ in 0..ATTEMPTS {
        let part = draw(name)?;
        match make(&part) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return Ok((part, made?)),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// Locks a new part until it is closed, and returns its status. On file systems without locks,
/// parts are abandoned when they are old.
///
/// # Errors
/// [`AlreadyExists`](ErrorKind::AlreadyExists) if another copy has taken it for abandoned before.
pub(super) fn lock(file: &File) -> io::Result<Metadata> {
    let is_locked_by_another =
        flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
    let there = file.metadata()?;
    if is_locked_by_another || there.nlink() == 0 {
        return Err(ErrorKind::AlreadyExists.into());
    }
    Ok(there)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    fn part_of(name: &str, host: &str) -> String {
        format!(".{name}.{host}0123456789abcdef.treecast-part")
    }

    fn names(directory: &Directory) -> Vec<OsString> {
        let mut names = directory.names().unwrap();
        names.sort();
        names
    }

    #[test]
    fn a_part_is_recognised_by_its_name() {
        for name in ["file", "a.b", &"n".repeat(255)] {
            let part = draw(name.as_ref()).unwrap();
            assert!(part.len() <= NAME_BYTES_MAX);
            assert_eq!(split(part.as_bytes()), Some((cut(name.as_ref()), own_host().as_bytes())));
        }
        for other in [".file.treecast-part", "file", ".treecast-part", &part_of("", "01234567")] {
            assert_eq!(split(other.as_bytes()), None, "{other}");
        }
        assert_eq!(split(part_of("x", "0123456G").as_bytes()), None);
    }

    #[test]
    fn parts_that_somebody_may_write_stay() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::open(temporary.path()).unwrap();
        let own = own_host();
        let write = |name: &str| fs::write(temporary.path().join(name), "part").unwrap();
        let [foreign, other] = [part_of("file", "01234567"), part_of("other", own)];
        let [abandoned, user] = [part_of("file", own), String::from(".file.treecast-part")];
        for name in [&foreign, &other, &abandoned, &user] {
            write(name);
        }
        let create = |part: &OsStr| {
            let file = directory.create_file(part, 0o600)?;
            lock(&file).map(|_| file)
        };
        let (alive, file) = make("file".as_ref(), create).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        let remove = |now| Parts::find(&directory).remove_abandoned(&directory, "file".as_ref(), now);
        let sorted = |names: &[&OsStr]| {
            let mut names: Vec<OsString> = names.iter().map(OsString::from).collect();
            names.sort();
            names
        };
        remove(now);
        assert_eq!(
            names(&directory),
            sorted(&[foreign.as_ref(), other.as_ref(), user.as_ref(), &alive]),
            "the own host's is removed at once"
        );
        remove(now + OLD_SECONDS + 60);
        assert_eq!(
            names(&directory),
            sorted(&[other.as_ref(), user.as_ref(), &alive]),
            "another host's when it is old, and none that is locked"
        );
        drop(file);
        remove(now);
        assert_eq!(names(&directory), sorted(&[other.as_ref(), user.as_ref()]));
    }

    #[test]
    fn a_part_that_was_taken_for_abandoned_is_made_again() {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::open(temporary.path()).unwrap();
        let attempts = std::cell::Cell::new(0);
        let create = |part: &OsStr| {
            let file = directory.create_file(part, 0o600)?;
            attempts.set(attempts.get() + 1);
            if attempts.get() == 1 {
                directory.remove(part)?;
            }
            lock(&file).map(|_| file)
        };
        let (part, _file) = make("file".as_ref(), create).unwrap();
        assert_eq!((attempts.get(), names(&directory)), (2, vec![part]));
    }
}
