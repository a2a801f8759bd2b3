use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A file, directory or symbolic link that is copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its path below the destination, which need not be text; empty for the destination itself,
    /// where the contents of a directory go.
    #[serde(with = "bytes_of_path")]
    pub path: PathBuf,
    /// Its kind.
    pub kind: Kind,
    /// The permissions.
    pub mode: u32,
    /// The owner's user and group.
    pub owner: (u32, u32),
    /// When it was modified, in seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// Its extended attributes, if they are to be copied.
    pub attributes: Vec<Attribute>,
}

/// A file, directory or symbolic link to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A file, with its length in bytes when it was found.
    File {
        /// The bytes.
        length: u64,
        /// Whether it has holes: its blocks take less than its length.
        is_sparse: bool,
    },
    /// A directory.
    Directory,
    /// A symbolic link to this path.
    Link(#[serde(with = "bytes_of_path")] PathBuf),
}

/// An extended attribute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribute {
    /// The name, such as `user.comment`.
    pub name: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

impl Entry {
    /// The bytes of a file; 0 for others.
    pub const fn length(&self) -> u64 {
        if let Kind::File { length, .. } = self.kind { length } else { 0 }
    }

    /// Whether it is the destination itself.
    pub fn is_top(&self) -> bool {
        self.path.as_os_str().is_empty()
    }

    /// Whether the path leads to no place but below the destination, as far as names say.
    pub fn is_below(&self) -> bool {
        self.path.components().all(|part| matches!(part, Component::Normal(_)))
    }
}

/// Paths are bytes on Linux, and need not be text.
mod bytes_of_path {
    use serde::{Deserializer, Serializer};

    use super::{Deserialize, OsStrExt, OsString, OsStringExt, Path, PathBuf, Serialize};

    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(serializer)
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Vec::deserialize(deserializer).map(|bytes| OsString::from_vec(bytes).into())
    }
}
