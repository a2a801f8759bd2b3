//! The log, the options of all commands for it, and what an interrupt leaves behind.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn treecast(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
    command.args(arguments.split_ascii_whitespace()).env_remove("RUST_LOG");
    command
}

/// A root whose member does not exist: it opens a node, and has an error.
fn fails(options: &str) -> Command {
    treecast(&format!("node --join 127.0.0.1:9 --wait 1 --engine user {options}"))
}

fn log_of(output: &Output) -> String {
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn verbose_logs_times_and_levels_to_standard_error() {
    let log = log_of(&fails("-v").output().unwrap());
    let line = log.lines().find(|line| line.contains("a node listens")).expect(&log);
    assert!(line.starts_with("20") && line.contains("Z  INFO ") && line.contains("engine=user"), "{line}");
    let log = log_of(&fails("").output().unwrap());
    assert!(!log.contains("INFO"), "{log}");
}

#[test]
fn the_variable_has_precedence_and_is_ignored_if_it_is_invalid() {
    let log = log_of(&fails("-q").env("RUST_LOG", "treecast_node=info").output().unwrap());
    assert!(log.contains("a node listens"), "{log}");
    let log = log_of(&fails("-v").env("RUST_LOG", "treecast_node=loud").output().unwrap());
    assert!(log.contains("RUST_LOG is ignored") && log.contains("a node listens"), "{log}");
}

#[test]
fn a_benchmark_reports_an_invalid_variable_once() {
    let mut bench = treecast("bench --loopback 2 --sizes 64 --messages 1 --rounds 1");
    let output = bench.env("RUST_LOG", "treecast_node=loud").output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    assert_eq!(log.matches("RUST_LOG is ignored").count(), 1, "{log}");
}

#[test]
fn json_is_an_object_in_each_line() {
    let log = log_of(&fails("-v --log-format json").output().unwrap());
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let has = |level: &str| lines.iter().any(|line| line["level"] == level && line["timestamp"].is_string());
    assert!(has("INFO") && has("ERROR"), "{log}");
}

/// Sends the signal to the command alone, not to its workers as a terminal does.
#[test]
fn an_interrupt_leaves_no_files_and_no_workers() {
    let directory = tempfile::tempdir().unwrap();
    let started = treecast("tune --loopback 4 --messages 1000000 --out network.toml")
        .current_dir(&directory)
        .env("TMPDIR", directory.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let process = Pid::from_raw(started.id() as i32);
    let has_started = || std::fs::read_dir(&directory).unwrap().count() >= 2;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !has_started() && Instant::now() < deadline {
        sleep(Duration::from_millis(10));
    }
    // Workers are measuring by then.
    sleep(Duration::from_millis(500));
    kill(process, Signal::SIGINT).unwrap();
    // Workers have inherited standard error: its end is that of the last of them.
    let interrupted = Instant::now();
    let output = started.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(Signal::SIGINT as i32), "{output:?}");
    assert!(interrupted.elapsed() < Duration::from_secs(20), "{:?}", interrupted.elapsed());
    let left: Vec<_> = std::fs::read_dir(&directory).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// What `status --watch` prints in half a second on a terminal of this type; none without the tool
/// that opens one.
fn watched(terminal: &str) -> Option<String> {
    let line = format!("timeout 0.5 {} status --watch=0.1", env!("CARGO_BIN_EXE_treecast"));
    let mut script = Command::new("script");
    script.args(["-q", "-c", &line, "/dev/null"]).env("TERM", terminal).stdin(Stdio::null());
    script.output().ok().map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn only_a_terminal_with_a_screen_is_cleared() {
    let (Some(dumb), Some(capable)) = (watched("dumb"), watched("xterm")) else { return };
    assert!(capable.contains("\x1b[2J"), "{capable:?}");
    assert!(!dumb.contains('\x1b') && dumb.contains("\r\n\r\n"), "{dumb:?}");
    let mut command = Command::new("timeout");
    let line = ["0.5", env!("CARGO_BIN_EXE_treecast"), "status", "--watch=0.1"];
    let piped = String::from_utf8(command.args(line).output().unwrap().stdout).unwrap();
    assert!(!piped.contains('\x1b') && piped.contains("\n\n"), "{piped:?}");
}
