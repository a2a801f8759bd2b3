//! Copies that are interrupted.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::hosts::{Hosts, noise, text};
use crate::{signal, wait_for, wait_for_part, wait_while_running};

/// A copy ends within 2 s; the rest is for a busy machine. The hosts hang for longer.
const END_MAX: Duration = Duration::from_secs(20);

/// Interrupts a copy, and returns what it has said.
fn interrupted(running: Child, signal: &str) -> String {
    let since = Instant::now();
    let kill = ["-s", signal, &running.id().to_string()];
    assert!(Command::new("kill").args(kill).status().unwrap().success());
    let output = running.wait_with_output().unwrap();
    let (said, time) = (text(&output), since.elapsed());
    assert!(time < END_MAX, "{time:?}: {said}");
    assert!(output.status.code() == Some(5) && said.contains("interrupted"), "{said}");
    said
}

#[test]
fn signals_end_a_copy_whose_hosts_hang() {
    for signal in ["INT", "TERM"] {
        let hosts = Hosts::with_prologue(&["a", "b"], "touch begun; sleep 60; touch late; exit");
        fs::write(hosts.path("file"), "contents").unwrap();
        let mut running = hosts.command(&["file", "a,b:"]).stderr(Stdio::piped()).spawn().unwrap();
        wait_while_running(&mut running, || hosts.path("b/begun").exists());
        interrupted(running, signal);
        assert!(!hosts.path("b/late").exists(), "the shells are not waited for");
    }
}

#[test]
fn nothing_incomplete_is_left_after_an_interrupt() {
    let hosts = Hosts::new(&["a", "b"]);
    fs::write(hosts.path("long"), noise(8_000_000, 3)).unwrap();
    let mut command = hosts.command(&["--rate", "16mbit", "long", "a,b:"]);
    let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
    wait_for_part(&mut running, &hosts.path("a"));
    assert!(Command::new("kill").arg(running.id().to_string()).status().unwrap().success());
    let mut said = String::new();
    running.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(5), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    // The copy does not wait for ever for its receivers, which may end after it.
    wait_for(|| hosts.list("a").is_empty() && hosts.list("b").is_empty());
}

/// The thread that sends is writing when another one aborts the group.
#[test]
fn an_interrupt_of_endless_input_is_all_that_is_reported() {
    for _ in 0..3 {
        let hosts = Hosts::new(&["a"]);
        let mut command = hosts.command(&["-", "a:copy"]);
        command.stdin(fs::File::open("/dev/zero").unwrap());
        let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
        wait_for_part(&mut running, &hosts.path("a"));
        let said = interrupted(running, "INT");
        // A busy machine takes seconds to start the host and to copy: both are reported.
        let is_late = |line: &str| line.contains("waiting for a to start") || line.contains("B sent");
        let said: Vec<_> = said.lines().filter(|line| !is_late(line)).collect();
        assert_eq!(said, ["treecast: interrupted: what was not complete is removed"]);
    }
}

/// A host asks for the command and then takes no byte of it.
#[test]
fn an_interrupt_ends_an_upload() {
    let hosts = Hosts::with_prologue(
        &["a"],
        "echo '{\"Missing\":{\"has_gzip\":false}}'; touch begun; sleep 60; exit",
    );
    fs::write(hosts.path("file"), "contents").unwrap();
    let mut running = hosts.command(&["file", "a:"]).stderr(Stdio::piped()).spawn().unwrap();
    wait_while_running(&mut running, || hosts.path("a/begun").exists());
    std::thread::sleep(Duration::from_millis(200));
    interrupted(running, "INT");
}

#[test]
fn an_interrupt_ends_a_copy_whose_receiver_is_stopped() {
    let hosts = Hosts::new(&["a", "b"]);
    fs::write(hosts.path("long"), noise(8_000_000, 3)).unwrap();
    let mut command = hosts.command(&["--rate", "16mbit", "long", "a,b:"]);
    let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
    wait_for_part(&mut running, &hosts.path("b"));
    signal("STOP", &hosts.receiver_of("b"));
    interrupted(running, "INT");
    wait_for(|| hosts.list("a").is_empty());
}

#[test]
fn an_interrupt_ends_the_wait_before_another_attempt() {
    let hosts = Hosts::with_prologue(&["a"], "touch tried; exit 9");
    fs::write(hosts.path("file"), "contents").unwrap();
    let mut command = hosts.command(&["--retry", "100", "file", "a:"]);
    let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = Vec::new();
    let errors = running.stderr.as_mut().unwrap();
    while !String::from_utf8_lossy(&said).contains("trying a again (1 of 100)") {
        let mut byte = [0];
        errors.read_exact(&mut byte).unwrap();
        said.extend(byte);
    }
    interrupted(running, "INT");
}
