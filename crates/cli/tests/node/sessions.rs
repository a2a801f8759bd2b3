//! Roots and relays that end and start again: no member gets a message of another session.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::has_kernel_engine;
use crate::{address, check, file, node, signal, text, wait_for};

/// Members that are listed in a file, on loopback.
struct Members {
    directory: TempDir,
    addresses: Vec<String>,
    engine: &'static str,
}

fn engines() -> impl Iterator<Item = &'static str> {
    ["user", "ebpf"].into_iter().filter(|engine| *engine == "user" || has_kernel_engine())
}

impl Members {
    fn new(count: usize, engine: &'static str) -> Self {
        let addresses: Vec<String> = (0..count).map(|_| address()).collect();
        let directory = tempfile::tempdir().unwrap();
        file(&directory, "members", addresses.join("\n").as_bytes());
        Self { directory, addresses, engine }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A member of a chain that starts.
    fn start(&self, number: usize, arguments: &[&str]) -> Child {
        self.start_with(number, self.engine, arguments)
    }

    fn start_with(&self, number: usize, engine: &str, arguments: &[&str]) -> Child {
        let members = self.path("members");
        let common = ["--members", text(&members), "--bind", &self.addresses[number], "--engine", engine];
        let chain = ["--set", "scheme=serial", "--wait", "20"];
        let mut command = node(&[&common[..], &chain, arguments].concat());
        command.env("TREECAST_TOKEN", "secret").stdin(Stdio::piped()).spawn().unwrap()
    }

    /// The root, whose messages are the lines that are typed.
    fn start_root(&self) -> Child {
        self.start(0, &["--send", "-"])
    }

    fn start_reader(&self, number: usize, copy: &Path) -> Child {
        self.start(number, &["--receive", text(copy)])
    }
}

/// Types lines of a session, and waits until a member that prints what it receives has printed
/// them.
fn type_lines(root: &mut Child, session: &str, count: usize, printed: &mut impl Iterator<Item = String>) {
    let typed = root.stdin.as_mut().unwrap();
    for number in 0..count {
        writeln!(typed, "{session} {number}").unwrap();
        assert_eq!(printed.next().unwrap(), format!("{session} {number}"));
    }
}

fn lines_of(child: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap)
}

#[test]
fn a_root_that_starts_again_is_not_taken_for_the_old_one() {
    for engine in engines() {
        let members = Members::new(3, engine);
        let copy = members.path("copy");
        let mut old_root = members.start_root();
        let old_reader = members.start_reader(1, &copy);
        let mut old_printer = members.start(2, &["--receive", "-"]);
        type_lines(&mut old_root, "old", 20, &mut lines_of(&mut old_printer));
        signal(&old_root, "KILL");
        old_root.wait().unwrap();
        // On a busy machine the kernel takes longer to verify the program than the members wait for
        // the root.
        let mut root = members.start_with(0, "user", &["--send", "-"]);
        check(old_reader, 5, "the root has started again");
        check(old_printer, 5, "the root has started again");
        assert!(!copy.exists(), "a part of a file is not kept");

        let reader = members.start_reader(1, &copy);
        let mut printer = members.start(2, &["--receive", "-"]);
        let mut printed = lines_of(&mut printer);
        type_lines(&mut root, "new", 20, &mut printed);
        drop(root.stdin.take());
        check(root, 0, "treecast: sent");
        check(reader, 0, "the group is closed");
        assert_eq!(printed.next(), None);
        check(printer, 0, "the group is closed");
        let expected: Vec<String> = (0..20).map(|number| format!("new {number}")).collect();
        assert!(fs::read_to_string(&copy).unwrap().lines().eq(expected));
    }
}

#[test]
fn a_relay_that_slept_through_a_restart_feeds_nobody() {
    for engine in engines() {
        let members = Members::new(3, engine);
        let mut old_root = members.start_root();
        let relay = members.start(1, &[]);
        let mut old_printer = members.start(2, &["--receive", "-"]);
        type_lines(&mut old_root, "old", 10, &mut lines_of(&mut old_printer));
        // It stops while it may still have packets to forward.
        signal(&relay, "STOP");
        (0..10).for_each(|number| writeln!(old_root.stdin.as_mut().unwrap(), "old {number}").unwrap());
        signal(&old_root, "KILL");
        signal(&old_printer, "KILL");
        old_root.wait().unwrap();
        old_printer.wait().unwrap();

        // The members of the next run: another port takes the relay's place.
        let next = Members::new(3, engine);
        let mut addresses = members.addresses.clone();
        addresses[1].clone_from(&next.addresses[1]);
        file(&next.directory, "members", addresses.join("\n").as_bytes());
        let next = Members { addresses, ..next };
        let mut root = next.start_root();
        let new_relay = next.start(1, &[]);
        let mut printer = next.start(2, &["--receive", "-"]);
        let mut printed = lines_of(&mut printer);
        type_lines(&mut root, "new", 10, &mut printed);
        signal(&relay, "CONT");
        let until = Instant::now() + Duration::from_millis(500);
        let mut number = 10;
        while Instant::now() < until {
            writeln!(root.stdin.as_mut().unwrap(), "new {number}").unwrap();
            assert_eq!(printed.next().unwrap(), format!("new {number}"));
            number += 1;
        }
        drop(root.stdin.take());
        check(root, 0, "treecast: sent");
        check(new_relay, 0, "the group is closed");
        assert_eq!(printed.next(), None);
        check(printer, 0, "the group is closed");
        check(relay, 5, "the root");
    }
}

/// A chain whose root dies: all members end in one bound, whatever their depth.
#[test]
fn the_death_of_the_root_is_known_to_all_at_once() {
    for engine in engines() {
        let members = Members::new(6, engine);
        let mut root = members.start_root();
        let relays: Vec<Child> = (1..5).map(|number| members.start(number, &[])).collect();
        let mut printer = members.start(5, &["--receive", "-"]);
        type_lines(&mut root, "a line", 5, &mut lines_of(&mut printer));
        signal(&root, "KILL");
        root.wait().unwrap();
        let mut first = None;
        for member in relays.into_iter().chain([printer]) {
            check(member, 5, "the root was silent for");
            first.get_or_insert_with(Instant::now);
        }
        // At the same time, and not 2.7 s later for each level of the tree.
        let elapsed = first.unwrap().elapsed();
        assert!(elapsed < Duration::from_secs(10), "the last member ended {elapsed:?} after the first");
    }
}

/// A root in the kernel's packet path whose last member goes does not wait for room for ever.
#[test]
fn a_root_without_members_does_not_wait_for_room() {
    for engine in engines() {
        let members = Members::new(2, engine);
        let mut root = members.start_root();
        let mut member = members.start(1, &["--receive", "-"]);
        let stderr = wait_for(&mut root, "ready");
        (0..100).for_each(|number| writeln!(root.stdin.as_mut().unwrap(), "{number}").unwrap());
        // Once it prints, it handles signals: before, SIGTERM ends it without a word to the root.
        let mut printed = BufReader::new(member.stdout.take().unwrap()).lines();
        assert_eq!(printed.next().unwrap().unwrap(), "0");
        signal(&member, "TERM");
        member.wait().unwrap();
        let mut typed = root.stdin.take().unwrap();
        // More packets than there are slots.
        for number in 0..3_000 {
            if writeln!(typed, "{number}").and_then(|()| typed.flush()).is_err() {
                break;
            }
        }
        drop(typed);
        let rest: Vec<String> = stderr.lines().map(Result::unwrap).collect();
        let status = root.wait().unwrap();
        assert_eq!(status.code(), Some(5), "{rest:?}");
        assert!(rest.iter().any(|line| line.contains("left the group")), "{rest:?}");
    }
}
