//! A record of an earlier run of the command, sent again into a later run with the same token.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::attacker::{Datagram, Forger, Recorder};
use super::chain::{LEAF, RELAY, ROOT, STRANGER, TOKEN};
use super::hosts::Hosts;
use super::with_both_engines;
use crate::{check, file, text, utf8};

#[test]
fn a_record_of_an_earlier_run_changes_nothing_in_a_later_one() {
    with_both_engines(|engine| {
        let Some(hosts) = Hosts::start(4) else { return };
        let directory = tempfile::tempdir().unwrap();
        let addresses: Vec<String> = (ROOT..=LEAF).map(|host| hosts.node_address(host).to_string()).collect();
        file(&directory, "members", addresses.join("\n").as_bytes());
        let recorders = [ROOT, RELAY].map(|host| hosts.run_on(host, Recorder::start));
        let forger = hosts.run_on(STRANGER, Forger::start);

        let earlier: Vec<String> =
            (0..10).map(|number| format!("line of the first run {number}\n")).collect();
        run(&hosts, directory.path(), &engine.to_string(), &earlier, &forger, &[]);
        let recorded: Vec<Datagram> = recorders.iter().flat_map(Recorder::take).collect();
        // Lines of the same length, and then shorter ones.
        let line =
            |number| format!("{} {number}\n", if number < 5 { "line of the other run" } else { "a line" });
        let later: Vec<String> = (0..10).map(line).collect();
        let stray_lines = run(&hosts, directory.path(), &engine.to_string(), &later, &forger, &recorded);
        assert_eq!(stray_lines, 3, "all members tell that they drop packets");
    });
}

/// Runs a group whose members receive lines, while what was recorded is sent again and again.
/// Returns how many of them tell that datagrams belonged to no group.
fn run(
    hosts: &Hosts,
    directory: &Path,
    engine: &str,
    lines: &[String],
    forger: &Forger,
    recorded: &[Datagram],
) -> usize {
    /// Also when a check fails.
    struct SetWhenDropped<'a>(&'a AtomicBool);
    impl Drop for SetWhenDropped<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let (is_over, times_sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _over = SetWhenDropped(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                forger.send_all(recorded);
                times_sent.fetch_add(1, Ordering::AcqRel);
                thread::sleep(Duration::from_millis(10));
            }
        });
        let outputs = run_members(hosts, directory, engine, lines, &times_sent);
        outputs.iter().filter(|stderr| stderr.contains("datagrams belonged to no group")).count()
    })
}

/// Runs the group until the record was sent some times while it was open; what each member says.
fn run_members(
    hosts: &Hosts,
    directory: &Path,
    engine: &str,
    lines: &[String],
    times_sent: &AtomicUsize,
) -> Vec<String> {
    let copy = directory.join("copy");
    let mut root = start(hosts, ROOT, directory, engine, &["--send", "-"]);
    let relay = start(hosts, RELAY, directory, engine, &["--receive", text(&copy)]);
    let mut leaf = start(hosts, LEAF, directory, engine, &["--receive", "-"]);
    let mut typed = root.stdin.take().unwrap();
    let mut printed = BufReader::new(leaf.stdout.take().unwrap());
    let mut received = String::new();
    for line in lines {
        // Each becomes a message.
        typed.write_all(line.as_bytes()).unwrap();
        printed.read_line(&mut received).unwrap();
        thread::sleep(Duration::from_millis(10));
    }
    let before = times_sent.load(Ordering::Acquire);
    while times_sent.load(Ordering::Acquire) < before + 2 {
        thread::sleep(Duration::from_millis(5));
    }
    drop(typed);
    printed.read_to_string(&mut received).unwrap();
    let root = check(root, 0, "treecast: sent");
    let relay = check(relay, 0, "the group is closed");
    let leaf = check(leaf, 0, "the group is closed");
    let sent = lines.concat();
    assert_eq!(received, sent, "{engine}");
    assert_eq!(fs::read_to_string(&copy).unwrap(), sent, "{engine}");
    [root, relay, leaf].iter().map(|output| utf8(&output.stderr)).collect()
}

fn start(hosts: &Hosts, host: usize, directory: &Path, engine: &str, arguments: &[&str]) -> Child {
    let mut command = hosts.lab.command(host as u32, env!("CARGO_BIN_EXE_treecast")).unwrap();
    command.args(["node", "--members"]).arg(directory.join("members"));
    command.args(["--bind", &hosts.node_address(host).to_string(), "--engine", engine]);
    command.args(["--set", "scheme=serial", "--wait", "20"]).args(arguments).env("TREECAST_TOKEN", TOKEN);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}
