use std::path::PathBuf;
use std::time::Duration;

use crate::stream::Hash;

/// The result of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The files, as they were sent.
    pub files: Vec<CopiedFile>,
    /// The files that a dry run would copy.
    pub planned: Vec<Planned>,
    /// Sources that could not be read, or are no files, and why.
    pub left_out: Vec<(PathBuf, String)>,
    /// How often it was tried: the bytes and the time are those of all attempts.
    pub attempts: u32,
    /// The bytes of all files that were sent.
    pub bytes: u64,
    /// The bytes of the stream with them, after compression.
    pub stream_bytes: u64,
    /// From the start of the first receiver until the last one was done.
    pub duration: Duration,
    /// Whether files went into the destination, and did not become it.
    pub into: bool,
    /// The hosts that became leaves of the tree because they forwarded or wrote slowly, in order.
    pub relieved: Vec<Relieved>,
    /// The hosts that served others from their own files, in order.
    pub served_by: Vec<Served>,
    /// In the order in which they were given.
    pub hosts: Vec<HostReport>,
}

/// What a complete host has sent to the others instead of the host that copies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Served {
    /// The host.
    pub host: String,
    /// The bytes of the messages that it sent.
    pub bytes: u64,
    /// Why the host that copies sent some or all messages itself, if it did.
    pub refusal: Option<String>,
    /// Why it could not serve to the end: the hosts that it served are not complete.
    pub failure: Option<String>,
}

/// A host that became a leaf of the tree, so that it does not delay others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relieved {
    /// The host.
    pub host: String,
    /// The only host to which it sent slowly; none: it was slow to several, or wrote slowly.
    pub to: Option<String>,
    /// What was slow.
    pub cause: Cause,
}

/// What was slow at a host that became a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It forwarded slowly, by its link or its processor.
    Forwarding,
    /// Its disk was slow.
    Disk,
    /// It wrote slowly, by its processor, or for an unknown reason.
    Writing,
}

/// A file, directory or link that some hosts lack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The path of the source.
    pub source: PathBuf,
    /// The bytes of a file; none for others.
    pub length: Option<u64>,
    /// The hosts, in the order in which they were given.
    pub hosts: Vec<String>,
}

/// A file that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedFile {
    /// The path of the source.
    pub source: PathBuf,
    /// The bytes.
    pub length: u64,
    /// The BLAKE3 hash of its contents.
    pub hash: Hash,
}

/// The result of a copy at a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostReport {
    /// The host.
    pub host: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The bytes of files that it has said it wrote: those of the last half second may be missing.
    pub bytes: u64,
    /// The files that are complete there, and those that were kept as they were.
    pub files: u64,
    /// Those that were kept as they were.
    pub kept: u64,
    /// Files, links and directories that were deleted, or would have been where nothing is changed.
    pub deleted: u64,
    /// The first of them, where nothing is changed.
    pub deletions: Vec<String>,
}

/// How a copy ended at a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Outcome {
    /// All files are there.
    #[default]
    Complete,
    /// Some files are not: these, and why. Of many failures the first are listed.
    Incomplete {
        /// The files.
        failures: Vec<String>,
        /// The number of all failures.
        count: u64,
    },
    /// It took no part, or not to the end: why.
    Failed(String),
}

impl CopiedFile {
    /// The hash in hexadecimal digits, as b3sum prints it.
    pub fn hash_text(&self) -> String {
        blake3::Hash::from_bytes(self.hash).to_hex().to_string()
    }
}

impl HostReport {
    /// Whether it has written something that a later copy may find there, as far as is known.
    pub const fn has_written(&self) -> bool {
        self.bytes > 0 || self.files > 0
    }
}

impl Report {
    /// The hosts that do not have everything.
    pub fn incomplete(&self) -> impl Iterator<Item = &HostReport> {
        self.hosts.iter().filter(|host| host.outcome != Outcome::Complete)
    }

    /// A complete host that can serve the others, of those that are not among `asked`: the first
    /// one, if possible one that was not slow.
    pub fn server(&self, asked: &[String]) -> Option<&str> {
        let names = self.hosts.iter().filter(|host| host.outcome == Outcome::Complete);
        let names = names.map(|host| host.host.as_str()).filter(|name| !asked.iter().any(|one| one == name));
        let is_slow = |name: &&str| self.relieved.iter().any(|slow| slow.host == *name);
        names.min_by_key(is_slow)
    }

    /// Takes the outcomes of another copy of the same files to some of the hosts.
    pub fn update(&mut self, later: Self) {
        for new in later.hosts {
            if let Some(old) = self.hosts.iter_mut().find(|old| old.host == new.host) {
                *old = new;
            }
        }
        if self.files.is_empty() {
            self.files = later.files;
        }
        self.left_out = later.left_out;
        self.relieved.extend(later.relieved);
        self.served_by.extend(later.served_by);
        self.attempts += later.attempts;
        self.bytes += later.bytes;
        self.stream_bytes += later.stream_bytes;
        self.duration += later.duration;
    }

    /// Whether all hosts have all that was to be copied.
    pub fn is_complete(&self) -> bool {
        self.left_out.is_empty() && self.hosts.iter().all(|host| host.outcome == Outcome::Complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_host_that_is_not_slow_serves() {
        let host = |(host, outcome): (&str, Outcome)| HostReport {
            host: host.into(),
            outcome,
            ..HostReport::default()
        };
        let failed = Outcome::Failed("down".into());
        let outcomes = [("a", failed), ("b", Outcome::Complete), ("c", Outcome::Complete)];
        let relieved = vec![Relieved { host: "b".into(), to: None, cause: Cause::Disk }];
        let report = Report { hosts: outcomes.map(host).into(), relieved, ..Report::default() };
        assert_eq!(report.server(&[]), Some("c"));
        assert_eq!(report.server(&["c".into()]), Some("b"));
        assert_eq!(report.server(&["b".into(), "c".into()]), None);
    }
}
