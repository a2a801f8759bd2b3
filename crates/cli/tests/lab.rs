//! `treecast lab`: output, exit status, and cleanup.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn lab(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
    command.arg("lab").args(words);
    command
}

/// Whether this machine allows labs. If not, prints a message directly, because the test harness captures output.
fn allowed() -> bool {
    let output = lab(&["1", "--", "true"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let reasons = ["does not allow a lab", "a lab needs the tool"];
    if reasons.iter().any(|reason| stderr.contains(reason)) {
        let _ = std::io::stderr().write_all(format!("skipped: {stderr}").as_bytes());
        return false;
    }
    assert!(output.status.success(), "{stderr}");
    true
}

fn run(words: &[&str]) -> Output {
    lab(words).output().unwrap()
}

fn lines(bytes: &[u8]) -> Vec<&str> {
    let mut lines: Vec<&str> = std::str::from_utf8(bytes).unwrap().lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn lines_are_prefixed_with_their_host() {
    if !allowed() {
        return;
    }
    let line = "cat /proc/sys/kernel/hostname; echo oh >&2; printf end";
    let output = run(&["3", "--on", "0,2", "--", "sh", "-c", line]);
    assert!(output.status.success());
    assert_eq!(lines(&output.stdout), ["n0: end", "n0: n0", "n2: end", "n2: n2"]);
    assert_eq!(lines(&output.stderr), ["n0: oh", "n2: oh"]);
    let output = run(&["3", "--no-prefix", "--", "cat", "/proc/sys/kernel/hostname"]);
    assert_eq!(lines(&output.stdout), ["n0", "n1", "n2"]);
    let output = run(&["3", "--on", "1", "--", "cat", "/proc/sys/kernel/hostname"]);
    assert_eq!(lines(&output.stdout), ["n1"]);
}

#[test]
fn a_command_on_one_host_reads_standard_input() {
    if !allowed() {
        return;
    }
    let mut command = lab(&["2", "--on", "1", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through");
}

#[test]
fn the_exit_status_is_that_of_the_first_failed_host() {
    if !allowed() {
        return;
    }
    let status = |line: &str| run(&["4", "--", "sh", "-c", line]).status.code();
    assert_eq!(status("true"), Some(0));
    // The first host by number is the last to end.
    assert_eq!(status("[ $TREECAST_LAB_HOST != 1 ] || sleep 0.2; exit $TREECAST_LAB_HOST"), Some(1));
    assert_eq!(status("[ $TREECAST_LAB_HOST != 2 ] || kill -TERM $$"), Some(128 + 15));
    let output = run(&["2", "--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = "treecast: no-such-program could not be started: No such file or directory (os error 2)\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), stderr);
}

#[test]
fn background_processes_do_not_keep_the_lab_alive() {
    if allowed() {
        let output = run(&["2", "--", "sh", "-c", "sleep 1000 & echo done"]);
        assert_eq!(lines(&output.stdout), ["n0: done", "n1: done"]);
    }
}

/// A lab with long-running commands, and the inode numbers of their namespaces. It is started as shells start background jobs, which
/// ignore interrupts.
fn running() -> (Child, Vec<u64>) {
    let line = "trap '' INT; stat -L -c %i /proc/self/ns/pid /proc/self/ns/net; sleep 1000; true";
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"trap '' INT; exec "$@""#, "sh", env!("CARGO_BIN_EXE_treecast"), "lab"]);
    shell.args(["2", "--no-prefix", "--", "sh", "-c", line]).stdin(Stdio::null());
    let mut child = shell.stdout(Stdio::piped()).spawn().unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines().take(4);
    (child, said.map(|number| number.unwrap().parse().unwrap()).collect())
}

fn is_left(numbers: &[u64]) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let mut namespaces = processes.flat_map(|process| ["ns/pid", "ns/net"].map(|name| process.join(name)));
    namespaces.any(|file| file.metadata().is_ok_and(|found| numbers.contains(&found.ino())))
}

#[test]
fn a_killed_or_interrupted_lab_leaves_no_processes() {
    if !allowed() {
        return;
    }
    for (name, number) in [("KILL", 9), ("INT", 2)] {
        let (mut child, numbers) = running();
        assert!(is_left(&numbers));
        let kill = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status();
        assert!(kill.unwrap().success());
        assert_eq!(child.wait().unwrap().signal(), Some(number));
        let started = Instant::now();
        while is_left(&numbers) && started.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!is_left(&numbers), "processes are left after {name}");
    }
}
