//! Hosts that are directories of this machine, and what is copied to them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

pub const TREECAST: &str = env!("CARGO_BIN_EXE_treecast");

/// Hosts that are directories: a remote shell that changes to the directory with the host's name,
/// as ssh does to the home directory.
pub struct Hosts {
    pub directory: TempDir,
}

impl Hosts {
    pub fn new(names: &[&str]) -> Self {
        Self::with_prologue(names, "")
    }

    /// The lines of `prologue` run on each host before the command, which is the variable
    /// `command`. The command replaces the shell, and has its process number ([`receiver_of`]).
    ///
    /// [`receiver_of`]: Self::receiver_of
    pub fn with_prologue(names: &[&str], prologue: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in names {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let script = format!(
            "#!/bin/sh\nhost=$1; shift; command=$*\ncd '{}'/\"$host\" || {{ echo \"no route to $host\" >&2; exit 255; }}\n\
             export SSH_CONNECTION='127.0.0.1 1 127.0.0.1 2' HOME=\"$PWD\"\n\
             echo $$ > \"../receiver-$host\"\n{prologue}\nexec sh -c \"$command\"\n",
            directory.path().display()
        );
        let shell = directory.path().join("shell");
        fs::write(&shell, script).unwrap();
        fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory }
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// The process of the receiver that was last started on a host.
    pub fn receiver_of(&self, host: &str) -> String {
        fs::read_to_string(self.path(&format!("receiver-{host}"))).unwrap().trim().into()
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(TREECAST);
        command.arg("cp").arg("--shell").arg(self.path("shell")).args(arguments);
        command.current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    pub fn cp(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.command(arguments).output().unwrap();
        (output.status.code().unwrap_or(-1), text(&output))
    }

    pub fn cp_right(&self, arguments: &[&str]) -> String {
        let (status, text) = self.cp(arguments);
        assert_eq!(status, 0, "{text}");
        text
    }

    /// All that is below a path, sorted.
    pub fn list(&self, path: &str) -> Vec<String> {
        let mut command = Command::new("find");
        let output =
            command.arg(self.path(path)).args(["-mindepth", "1", "-printf", "%P\\0"]).output().unwrap();
        let mut names: Vec<String> = text(&output).split_terminator('\0').map(Into::into).collect();
        names.sort();
        names
    }
}

pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Bytes that no compression or mistake reproduces.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..length).map(next).collect()
}

/// A tree with everything that is copied: long and empty files, holes, links, names that are no
/// text, modes and times.
pub fn make_tree(at: &Path) {
    fs::create_dir_all(at.join("sub/empty directory")).unwrap();
    fs::write(at.join("long"), noise(3_000_000, 1)).unwrap();
    fs::write(at.join("empty"), "").unwrap();
    fs::write(at.join(OsStr::from_bytes(b"no text \xff\n'\"$")), "odd").unwrap();
    fs::write(at.join("sub/run me"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(at.join("sub/run me"), fs::Permissions::from_mode(0o751)).unwrap();
    symlink("../long", at.join("sub/link")).unwrap();
    symlink("/nowhere", at.join("sub/dangling")).unwrap();
    let sparse = fs::File::create(at.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"island", 20 << 20).unwrap();
    let past = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::File::open(at.join("long")).unwrap().set_modified(past).unwrap();
    fs::set_permissions(at.join("sub"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::File::open(at.join("sub")).unwrap().set_modified(past).unwrap();
}

pub fn assert_same_tree(one: &Path, other: &Path) {
    let compared = Command::new("diff").args(["-r", "--no-dereference"]).args([one, other]).output().unwrap();
    assert!(compared.status.success(), "{}", text(&compared));
}

/// Bytes that were sent, as the report says.
pub fn sent_bytes(hosts: &Hosts, arguments: &[&str]) -> u64 {
    report(hosts, arguments)["bytes"].as_u64().unwrap()
}

pub fn report(hosts: &Hosts, arguments: &[&str]) -> Value {
    let output = hosts.command(arguments).arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}
