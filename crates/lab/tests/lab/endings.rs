//! A lab that ends leaves nothing behind.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use treecast_lab::LabSettings;

use super::players::play;
use super::{printed, start};

/// Whether a process remains in the PID namespace or network namespace with these inode numbers.
fn is_left(numbers: &str) -> bool {
    let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let mut namespaces = processes.flat_map(|process| ["ns/pid", "ns/net"].map(|name| process.join(name)));
    namespaces.any(|file| file.metadata().is_ok_and(|found| numbers.contains(&found.ino())))
}

fn gone(numbers: &str) -> bool {
    let started = Instant::now();
    while is_left(numbers) && started.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(5));
    }
    !is_left(numbers)
}

/// What a lab could leave behind: interfaces, mounts, names of network namespaces.
fn traces() -> [Option<String>; 3] {
    let names = |directory: &str| {
        let names = std::fs::read_dir(directory).ok()?.map(|entry| entry.unwrap().file_name());
        Some(format!("{:?}", names.collect::<BTreeSet<_>>()))
    };
    [names("/sys/class/net"), names("/run/netns"), std::fs::read_to_string("/proc/self/mounts").ok()]
}

#[test]
fn a_killed_owner_leaves_no_processes() {
    let before = traces();
    let mut owner = play(&mut Command::new(std::env::current_exe().unwrap()), "own 5");
    let numbers = owner.next_line();
    if numbers == "skipped" {
        return;
    }
    assert!(is_left(&numbers));
    assert_eq!(traces(), before, "a lab that runs touches nothing of the machine");
    owner.child.kill().unwrap();
    assert!(gone(&numbers), "processes are left");
    assert_eq!(traces(), before);
}

#[test]
fn dropping_a_lab_ends_its_processes() {
    let Some(lab) = start(&LabSettings::new(3)) else { return };
    // One in the foreground, and one daemonized.
    let line = "(setsid sleep 1000 &); stat -L -c %i /proc/self/ns/pid; exec sleep 1000";
    let mut command = lab.command(2, "sh").unwrap();
    let mut child = command.args(["-c", line]).stdout(Stdio::piped()).spawn().unwrap();
    let mut number = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut number).unwrap();
    drop(lab);
    assert!(!is_left(number.trim()));
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn killing_a_child_kills_its_process() {
    let Some(lab) = start(&LabSettings::new(2)) else { return };
    // By one process alone, which counts itself.
    let processes = || printed(&lab, 0, "set -- /proc/[0-9]*; echo $#");
    let before = processes();
    let line = "echo begun; exec sleep 1000";
    let mut command = lab.command(1, "sh").unwrap();
    let mut child = command.args(["-c", line]).stdout(Stdio::piped()).spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    assert_ne!(processes(), before);
    child.kill().unwrap();
    child.wait().unwrap();
    // Killed and reaped: the init process of the machine may never reap it.
    let started = Instant::now();
    while processes() != before && started.elapsed() < Duration::from_secs(30) {}
    assert_eq!(processes(), before);
}
