//! Members whose clocks differ from those of their hosts.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use treecast_lab::{Lab, LabSettings};

use crate::attacks::with_both_engines;
use crate::{check, file, text};

/// A time namespace in which all clocks are days ahead, in front of a command.
const UNSHARE: [&str; 7] =
    ["unshare", "--time", "--monotonic=1000000", "--boottime=1000000", "--fork", "--kill-child", "--"];

#[test]
fn a_relay_in_a_time_namespace_forwards_like_any_other() {
    let tried = Command::new(UNSHARE[0]).args(&UNSHARE[1..]).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        let _ = std::io::stderr().write_all(b"skipped: this machine does not allow time namespaces\n");
        return;
    }
    with_both_engines(|engine| {
        let lab = match Lab::start(&LabSettings::new(3)) {
            Ok(lab) => lab,
            Err(error) if error.is_about_the_machine() => {
                let _ = std::io::stderr().write_all(format!("skipped: {error}\n").as_bytes());
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let directory = tempfile::tempdir().unwrap();
        let addresses: Vec<String> = lab.hosts().iter().map(|host| format!("{}:7000", host.ipv4)).collect();
        let members = file(&directory, "members", addresses.join("\n").as_bytes());
        let start = |host: usize, before: &[&str], arguments: &[&str]| {
            let engine = engine.to_string();
            let node = [env!("CARGO_BIN_EXE_treecast"), "node", "--engine", &engine, "--wait", "20"];
            let members = ["--members", text(&members), "--bind", &addresses[host], "--set", "scheme=serial"];
            let line = [before, &node, &members, arguments].concat();
            let mut command = lab.command(host as u32, line[0]).unwrap();
            command.args(&line[1..]).env("TREECAST_TOKEN", "secret").stdin(Stdio::piped());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut root = start(0, &[], &["--send", "-"]);
        let relay = start(1, &UNSHARE, &[]);
        let mut leaf = start(2, &[], &["--receive", "-"]);
        let mut printed = BufReader::new(leaf.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut typed = root.stdin.take().unwrap();
        // Longer than a member is waited for that seems to be silent.
        let end = Instant::now() + Duration::from_millis(2_500);
        while Instant::now() < end {
            writeln!(typed, "a line").unwrap();
            assert_eq!(printed.next().unwrap(), "a line");
            thread::sleep(Duration::from_millis(100));
        }
        drop(typed);
        check(root, 0, "treecast: sent");
        check(relay, 0, "the group is closed");
        check(leaf, 0, "the group is closed");
    });
}
