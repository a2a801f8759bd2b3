//! Members whose clocks differ from those of their hosts.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use treecast_wire::View;

use crate::attacks::attacker::Recorder;
use crate::attacks::hosts::{Hosts, skip};
use crate::attacks::insider::now;
use crate::attacks::with_both_engines;
use crate::{check, file, text};

/// A time namespace in which all clocks are days ahead, in front of a command.
const UNSHARE: [&str; 7] =
    ["unshare", "--time", "--monotonic=1000000", "--boottime=1000000", "--fork", "--kill-child", "--"];

#[test]
fn a_relay_in_a_time_namespace_forwards_like_any_other() {
    let tried = Command::new(UNSHARE[0]).args(&UNSHARE[1..]).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        return skip("this machine does not allow time namespaces");
    }
    with_both_engines(|engine| {
        let Some(hosts) = Hosts::start(3) else { return };
        let recorder = hosts.run_on(2, Recorder::start);
        let since = now();
        let directory = tempfile::tempdir().unwrap();
        let addresses: Vec<String> = (0..3).map(|host| hosts.node_address(host).to_string()).collect();
        let members = file(&directory, "members", addresses.join("\n").as_bytes());
        let start = |host: usize, before: &[&str], arguments: &[&str]| {
            let engine = engine.to_string();
            let node = [env!("CARGO_BIN_EXE_treecast"), "node", "--engine", &engine, "--wait", "20"];
            let members = ["--members", text(&members), "--bind", &addresses[host], "--set", "scheme=serial"];
            let line = [before, &node, &members, arguments].concat();
            let mut command = hosts.lab.command(host as u32, line[0]).unwrap();
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
        // The relay's packets have the time of its host, whether its process or the kernel's packet
        // path has sent them.
        for datagram in recorder.take().iter().filter(|datagram| datagram.from.ip() == hosts.address(1)) {
            let packet = View::new(&datagram.bytes).unwrap().read().unwrap();
            let sent_at = packet.header.timestamp;
            assert!(since <= sent_at && sent_at <= now(), "a packet was sent at {sent_at:?}: {packet:?}");
        }
    });
}
