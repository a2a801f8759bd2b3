use std::path::PathBuf;

use thiserror::Error;
use treecast_node::NodeError;

/// Why nothing could be copied.
#[derive(Debug, Error)]
pub enum CopyError {
    /// A destination without a colon.
    #[error("'{0}' is no destination: it is HOSTS:PATH, such as node[01-16]:/scratch/")]
    NoDestination(String),
    /// A source that cannot be read.
    #[error("{} could not be read: {why}", path.display())]
    Source {
        /// Its path.
        path: PathBuf,
        /// The cause.
        why: std::io::Error,
    },
    /// The command, which hosts that lack it are sent.
    #[error("{} could not be read: {why}", path.display())]
    Program {
        /// Its path.
        path: PathBuf,
        /// The cause.
        why: std::io::Error,
    },
    /// A directory is copied with all that is in it only on request.
    #[error("{} is a directory: give -r to copy it with all that is in it", .0.display())]
    Directory(PathBuf),
    /// Neither a file nor a directory nor a symbolic link.
    #[error("{} is neither a file nor a directory", .0.display())]
    Special(PathBuf),
    /// Standard input beside other sources.
    #[error("standard input (-) cannot be combined with other sources")]
    InputAndOthers,
    /// Standard input would be copied into a directory.
    #[error("standard input has no name: give one, as in n1:{}", path.join("NAME").display())]
    InputName {
        /// The directory.
        path: PathBuf,
    },
    /// Two sources would be copied to one place.
    #[error("{} and {} have the same name at the destination", .0.display(), .1.display())]
    SameName(PathBuf, PathBuf),
    /// A pattern that is none.
    #[error("--exclude '{text}': {why}")]
    Pattern {
        /// The pattern.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Patterns that match every source.
    #[error("nothing is left to copy: --exclude matches every source")]
    AllExcluded,
    /// More entries than have numbers.
    #[error("more than {} files", u32::MAX)]
    TooMany,
    /// The same host twice.
    #[error("host {0} is named twice")]
    SameHost(String),
    /// More hosts than a group has members.
    #[error("{given} hosts: {} at most", CopyError::HOSTS_MAX)]
    Hosts {
        /// The number of hosts.
        given: usize,
    },
    /// The destination is a directory on some hosts only.
    #[error("{} is a directory on {there} and not on {not_there}: with / at its end it is a directory everywhere", path.display())]
    Mixed {
        /// The destination's path.
        path: PathBuf,
        /// A host where it is one.
        there: String,
        /// A host where it is not.
        not_there: String,
    },
    /// Several sources, or a directory, would be copied to one file.
    #[error("{} is a file on {host}, and several files are copied into a directory", path.display())]
    NoDirectory {
        /// The destination's path.
        path: PathBuf,
        /// A host where it is one.
        host: String,
    },
    /// This host has no address towards the others.
    #[error("no address of this host leads to {host}: {why}; --bind gives one")]
    Address {
        /// The first host.
        host: String,
        /// The cause.
        why: std::io::Error,
    },
    /// The group could not be made, or has ended.
    #[error(transparent)]
    Node(#[from] NodeError),
}

impl CopyError {
    /// The most hosts: a group has 4,096 members, and this host is one.
    pub const HOSTS_MAX: usize = 4_095;
}
