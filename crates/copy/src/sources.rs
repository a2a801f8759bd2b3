use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use walkdir::WalkDir;

use crate::chunks::Lacking;
use crate::entry::Attribute;
use crate::exclusion::Exclusion;
use crate::{CopyError, Entry, Kind};

/// The files, directories and symbolic links to copy, sorted by name, each directory before its
/// contents.
#[derive(Debug)]
pub struct Sources {
    pub(crate) all: Vec<Source>,
    /// Paths that could not be read or cannot be copied, with the reasons.
    pub left_out: Vec<(PathBuf, String)>,
    /// The bytes of all files.
    pub bytes: u64,
    /// How many were named.
    pub named: usize,
    /// Whether one of them is a directory.
    pub has_directory: bool,
    /// Whether one of them is the contents of a directory, such as `data/.`.
    pub has_contents: bool,
}

#[derive(Debug)]
pub(crate) struct Source {
    /// Where it is on this host; `-` for standard input.
    pub path: PathBuf,
    pub entry: Entry,
    /// Whether it is standard input, which is read once, and has no length before.
    pub is_input: bool,
}

/// The name of standard input among sources.
const INPUT: &str = "-";

/// The permissions of a file that is made of it, without the bits of the umask.
const INPUT_MODE: u32 = 0o666;

impl Source {
    /// Opens the file, if it is still one: a pipe that has taken its name is not waited for.
    pub fn open(&self) -> io::Result<File> {
        if self.is_input {
            return Ok(io::stdin().as_fd().try_clone_to_owned()?.into());
        }
        let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(nonblocking).open(&self.path)?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(changed()) }
    }

    /// Reads at an offset. Standard input is read in order, whatever the offset.
    pub fn read_at(&self, mut file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            let read = if self.is_input { file.read(bytes) } else { file.read_at(bytes, offset) };
            match read {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Checks that the file still has the length and the time of modification with which it was
    /// found.
    ///
    /// # Errors
    /// It was changed.
    pub fn check_unchanged(&self, file: &File) -> io::Result<()> {
        if self.is_input {
            return Ok(());
        }
        let metadata = file.metadata()?;
        let is_same = metadata.len() == self.entry.length() && modified(&metadata) == self.entry.modified;
        if is_same { Ok(()) } else { Err(changed()) }
    }
}

/// The error of a file that is not as it was found.
pub(crate) fn changed() -> io::Error {
    io::Error::other("it has changed while it was copied")
}

fn modified(metadata: &Metadata) -> (i64, u32) {
    (metadata.mtime(), metadata.mtime_nsec() as u32)
}

/// How sources are found.
#[derive(Debug, Clone, Default)]
pub struct SourceSettings {
    /// Whether directories are copied, with all that is in them.
    pub is_recursive: bool,
    /// Glob patterns of files and directories that are left out, also of sources. A pattern with a
    /// slash is matched against the whole path, which begins with the source's name; one without a
    /// slash is matched against names.
    pub exclude: Vec<String>,
    /// Whether extended attributes are copied.
    pub attributes: bool,
}

impl Sources {
    /// Finds all sources. `-` is standard input, and cannot be combined with others. A symbolic
    /// link is followed if it is named here, and copied as a link if it is in a directory. A
    /// directory whose path ends with `.` or `..` stands for its contents, as with cp(1).
    ///
    /// # Errors
    /// [`CopyError::Source`] if one of `paths` does not exist or cannot be read; what is in a
    /// directory and cannot be read is left out. [`CopyError::Directory`], [`CopyError::Special`],
    /// [`CopyError::SameName`], [`CopyError::InputAndOthers`], [`CopyError::Pattern`],
    /// [`CopyError::AllExcluded`].
    pub fn find(paths: &[PathBuf], settings: &SourceSettings) -> Result<Self, CopyError> {
        let exclude = Exclusion::new(&settings.exclude)?;
        let mut found = Self {
            all: Vec::new(),
            left_out: Vec::new(),
            bytes: 0,
            named: paths.len(),
            has_directory: false,
            has_contents: false,
        };
        let mut names: BTreeMap<OsString, PathBuf> = BTreeMap::new();
        for path in paths {
            if path.as_os_str() == INPUT {
                if paths.len() > 1 {
                    return Err(CopyError::InputAndOthers);
                }
                found.add_input();
                continue;
            }
            let of_source = |why| CopyError::Source { path: path.clone(), why };
            let metadata = fs::metadata(path).map_err(of_source)?;
            // None for the contents of a directory, which have names of their own.
            let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/."));
            if name.is_none() && settings.is_recursive {
                for entry in fs::read_dir(path).map_err(of_source)? {
                    let entry = entry.map_err(of_source)?;
                    check_is_new(&mut names, &entry.file_name(), &entry.path())?;
                }
                found.has_contents = true;
            }
            let name = name.unwrap_or_default();
            if !name.is_empty() {
                check_is_new(&mut names, name, path)?;
                if exclude.matches(Path::new(name)) {
                    continue;
                }
            }
            if metadata.is_dir() {
                if !settings.is_recursive {
                    return Err(CopyError::Directory(path.clone()));
                }
                found.has_directory = true;
                // Without the dot at its end, for messages.
                let path: PathBuf = path.components().collect();
                found.walk(&path, name, &exclude, settings.attributes)?;
            } else if metadata.is_file() {
                fs::File::open(path).map_err(of_source)?;
                found.add(path.clone(), name.into(), &metadata, settings.attributes)?;
            } else {
                return Err(CopyError::Special(path.clone()));
            }
        }
        if found.all.is_empty() && found.left_out.is_empty() {
            return Err(CopyError::AllExcluded);
        }
        Ok(found)
    }

    fn add_input(&mut self) {
        let modified = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let entry = Entry {
            path: INPUT.into(),
            kind: Kind::File { length: 0, is_sparse: false },
            mode: INPUT_MODE,
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            modified: (modified.as_secs().cast_signed(), modified.subsec_nanos()),
            attributes: Vec::new(),
        };
        self.all.push(Source { path: INPUT.into(), entry, is_input: true });
    }

    /// The bytes of the files that hosts lack.
    pub(crate) fn bytes_of(&self, lacking: &Lacking) -> u64 {
        let lacked = self.all.iter().enumerate().filter(|(number, _)| lacking.has(*number));
        lacked.map(|(_, source)| source.entry.length()).sum()
    }

    /// Whether standard input is the source.
    pub fn is_input(&self) -> bool {
        self.all.iter().any(|source| source.is_input)
    }

    /// The number of files, directories and links.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    fn walk(
        &mut self,
        top: &Path,
        name: &OsStr,
        exclude: &Exclusion,
        attributes: bool,
    ) -> Result<(), CopyError> {
        let below = |path: &Path| {
            let rest = path.strip_prefix(top).unwrap_or(path);
            if rest.as_os_str().is_empty() { PathBuf::from(name) } else { Path::new(name).join(rest) }
        };
        let entries = WalkDir::new(top).follow_root_links(true).sort_by_file_name().into_iter();
        // The directory of contents is copied even if a pattern such as * matches the empty path.
        let is_excluded = |path: &Path| !path.as_os_str().is_empty() && exclude.matches(path);
        for entry in entries.filter_entry(|entry| !is_excluded(&below(entry.path()))) {
            let (path, metadata) = match entry {
                Ok(entry) if entry.depth() == 0 => (top.to_path_buf(), fs::metadata(top)),
                Ok(entry) => (entry.path().to_path_buf(), entry.path().symlink_metadata()),
                Err(error) => {
                    let path = error.path().unwrap_or(top).to_path_buf();
                    let why = error.into_io_error().unwrap_or_else(|| io::Error::other("a cycle of links"));
                    self.left_out.push((path, format!("could not be read: {}", described(&why))));
                    continue;
                }
            };
            match metadata {
                Ok(metadata) => self.add(path.clone(), below(&path), &metadata, attributes)?,
                Err(why) => {
                    self.left_out.push((path, format!("could not be read: {}", described(&why))));
                }
            }
        }
        Ok(())
    }

    fn add(
        &mut self,
        path: PathBuf,
        below: PathBuf,
        metadata: &Metadata,
        attributes: bool,
    ) -> Result<(), CopyError> {
        let kind = if metadata.is_file() {
            let length = metadata.len();
            self.bytes += length;
            // Blocks of 512 bytes, whatever the file system's are (stat(2)).
            Kind::File { length, is_sparse: metadata.blocks() * 512 < length }
        } else if metadata.is_dir() {
            Kind::Directory
        } else if metadata.is_symlink() {
            match fs::read_link(&path) {
                Ok(target) => Kind::Link(target),
                Err(why) => {
                    self.left_out.push((path, format!("could not be read: {}", described(&why))));
                    return Ok(());
                }
            }
        } else {
            self.left_out.push((path, "is neither a file nor a directory nor a link".into()));
            return Ok(());
        };
        if self.all.len() >= u32::MAX as usize {
            return Err(CopyError::TooMany);
        }
        let attributes = if attributes { attributes_of(&path) } else { Vec::new() };
        let entry = Entry {
            path: below,
            kind,
            mode: metadata.mode() & 0o7777,
            owner: (metadata.uid(), metadata.gid()),
            modified: modified(metadata),
            attributes,
        };
        self.all.push(Source { path, entry, is_input: false });
        Ok(())
    }
}

/// Checks that no other source has the name at the destination.
///
/// # Errors
/// [`CopyError::SameName`].
fn check_is_new(names: &mut BTreeMap<OsString, PathBuf>, name: &OsStr, path: &Path) -> Result<(), CopyError> {
    match names.insert(name.into(), path.into()) {
        Some(other) => Err(CopyError::SameName(other, path.into())),
        None => Ok(()),
    }
}

/// The message of a system error, without its number.
pub(crate) fn described(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map_or(text.as_str(), |(text, _)| text).to_owned()
}

/// The most bytes of one extended attribute, and of the names of all (xattr(7)).
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// The extended attributes that can be read.
fn attributes_of(path: &Path) -> Vec<Attribute> {
    let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
    let Ok(length) = rustix::fs::llistxattr(path, &mut names) else { return Vec::new() };
    let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
    let mut read = |name: &[u8]| {
        let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value).ok()?;
        Some(Attribute { name: name.into(), value: value.get(..length)?.into() })
    };
    let names = names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    names.filter_map(&mut read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        fs::create_dir_all(data.join("sub/deep")).unwrap();
        fs::write(data.join("one.txt"), "1").unwrap();
        fs::write(data.join("sub/two.o"), "22").unwrap();
        fs::write(data.join("sub/deep/three.txt"), "333").unwrap();
        std::os::unix::fs::symlink("../one.txt", data.join("sub/link")).unwrap();
        directory
    }

    fn found(exclude: &[&str]) -> Vec<String> {
        let directory = tree();
        let settings = SourceSettings {
            is_recursive: true,
            exclude: exclude.iter().map(ToString::to_string).collect(),
            attributes: false,
        };
        let sources = Sources::find(&[directory.path().join("data/")], &settings).unwrap();
        sources.all.iter().map(|source| source.entry.path.display().to_string()).collect()
    }

    #[test]
    fn directories_come_before_what_is_in_them() {
        assert_eq!(
            found(&[]),
            [
                "data",
                "data/one.txt",
                "data/sub",
                "data/sub/deep",
                "data/sub/deep/three.txt",
                "data/sub/link",
                "data/sub/two.o"
            ]
        );
    }

    #[test]
    fn patterns_leave_out_names_and_paths() {
        assert_eq!(found(&["*.o", "deep"]), ["data", "data/one.txt", "data/sub", "data/sub/link"]);
        assert_eq!(found(&["data/sub/"]), ["data", "data/one.txt"]);
        assert_eq!(found(&["sub/deep"]).len(), 7, "a pattern with a slash is of a whole path");
        assert_eq!(found(&["**/deep/*"]).len(), 6);
    }

    #[test]
    fn a_dot_at_the_end_stands_for_the_contents() {
        let directory = tree();
        let find = |path: &str, exclude: &str| {
            let settings = SourceSettings {
                is_recursive: true,
                exclude: vec![exclude.into()],
                ..SourceSettings::default()
            };
            let found = Sources::find(&[directory.path().join(path)], &settings).unwrap();
            assert!(found.has_contents && found.has_directory);
            found.all.iter().map(|source| source.entry.path.display().to_string()).collect::<Vec<_>>()
        };
        let all = ["", "one.txt", "sub", "sub/deep", "sub/deep/three.txt", "sub/link", "sub/two.o"];
        for path in ["data/.", "data/./.", "data/sub/.."] {
            assert_eq!(find(path, "none"), all, "{path}");
        }
        assert_eq!(find("data/sub/.", "/deep"), ["", "link", "two.o"]);
        assert_eq!(find("data/.", "*"), [""]);
    }

    #[test]
    fn patterns_leave_out_sources() {
        let directory = tree();
        let find = |paths: &[&str], exclude: &str| {
            let paths: Vec<PathBuf> = paths.iter().map(|path| directory.path().join(path)).collect();
            let exclude = vec![exclude.into()];
            Sources::find(&paths, &SourceSettings { is_recursive: true, exclude, attributes: false })
        };
        let some = find(&["data/one.txt", "data/sub/two.o"], "*.o").unwrap();
        assert_eq!((some.count(), some.bytes, some.named), (1, 1, 2));
        assert_eq!(find(&["data/sub", "data/one.txt"], "sub").unwrap().count(), 1);
        for (path, exclude) in [("data/one.txt", "one.txt"), ("data/one.txt", "/*"), ("data", "d*")] {
            assert!(matches!(find(&[path], exclude), Err(CopyError::AllExcluded)), "{path} {exclude}");
        }
        assert!(matches!(find(&["missing"], "missing"), Err(CopyError::Source { .. })));
    }

    #[test]
    fn what_cannot_be_copied_is_an_error_with_its_path() {
        let directory = tree();
        let find = |paths: &[&str], is_recursive| {
            let paths: Vec<PathBuf> = paths.iter().map(|path| directory.path().join(path)).collect();
            Sources::find(&paths, &SourceSettings { is_recursive, ..SourceSettings::default() })
        };
        assert!(matches!(find(&["data"], false), Err(CopyError::Directory(_))));
        assert!(matches!(find(&["missing"], true), Err(CopyError::Source { .. })));
        assert!(matches!(find(&["data/."], false), Err(CopyError::Directory(_))));
        assert!(matches!(find(&["data/one.txt/."], true), Err(CopyError::Source { .. })));
        assert!(matches!(find(&["data/.", "data/one.txt"], true), Err(CopyError::SameName(..))));
        assert!(matches!(find(&["data/.", "data/sub/.."], true), Err(CopyError::SameName(..))));
        assert!(matches!(find(&["data/one.txt", "data/sub/../one.txt"], true), Err(CopyError::SameName(..))));
        assert!(matches!(
            Sources::find(&["/dev/null".into()], &SourceSettings::default()),
            Err(CopyError::Special(_))
        ));
        let one = find(&["data/one.txt"], false).unwrap();
        assert!(!one.has_directory && one.named == 1 && one.bytes == 1);
    }
}
