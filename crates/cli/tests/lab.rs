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

/// Whether this machine allows labs. If not, prints a message directly, because the test harness
/// captures output.
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
fn output_that_cannot_be_written_is_an_error() {
    if !allowed() {
        return;
    }
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = lab(&["2", "--", "echo", "lost"]).stdout(full).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("standard output could not be written: No space left"), "{stderr}");
}

#[test]
fn a_command_runs_several_times_on_each_host() {
    if !allowed() {
        return;
    }
    let line = "echo $TREECAST_LAB_MEMBER; echo $TREECAST_LAB_PROCESS of $TREECAST_LAB_PROCESSES >&2";
    let output = run(&["3", "--processes", "2", "--on", "0,2", "--", "sh", "-c", line]);
    assert!(output.status.success());
    assert_eq!(lines(&output.stdout), ["n0.0: 0", "n0.1: 1", "n2.0: 4", "n2.1: 5"]);
    assert_eq!(lines(&output.stderr), ["n0.0: 0 of 2", "n0.1: 1 of 2", "n2.0: 0 of 2", "n2.1: 1 of 2"]);
    // On one host too their standard input is empty.
    let output = run(&["1", "--processes", "2", "--no-prefix", "--", "cat"]);
    assert!(output.status.success() && output.stdout.is_empty());
    let exit = ["3", "--processes", "2", "--no-prefix", "--", "sh", "-c", "exit $TREECAST_LAB_MEMBER"];
    let output = run(&exit);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("treecast: process 1 on n0 ended with status 1\n"), "{stderr}");
    assert!(stderr.ends_with("treecast: process 1 on n2 ended with status 5\n"), "{stderr}");
}

#[test]
fn more_processes_run_than_the_limit_of_open_files_allows_at_first() {
    if !allowed() {
        return;
    }
    let line =
        format!("ulimit -Sn 128; exec {} lab 2 --processes 80 -- true", env!("CARGO_BIN_EXE_treecast"));
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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

/// What `--report-uplinks` prints: the bytes up and down of each rack.
fn reported(output: &Output) -> Vec<[u64; 2]> {
    let text = std::str::from_utf8(&output.stderr).unwrap();
    let rack = |(number, line): (usize, &str)| {
        let counts = line.strip_prefix(&format!("rack {number}: ")).unwrap();
        let counts = counts.strip_suffix(" bytes down").unwrap().split_once(" bytes up, ").unwrap();
        [counts.0, counts.1].map(|count| count.replace(',', "").parse().unwrap())
    };
    text.lines().enumerate().map(rack).collect()
}

/// The length of the file that hosts send themselves.
const FILE_BYTES: u64 = 2_000_000;

/// The bytes that each host received, when the hosts 0 to 2 of a lab of 4 have sent themselves 2 MB
/// by multicast.
fn received_bytes(multicast: &[&str], root: &str) -> Vec<u64> {
    let line = r#"
        case $TREECAST_LAB_HOST in
        0) head -c 2000000 /dev/zero > "$2/file"
           sleep 0.5 # Until a querier knows who has joined.
           "$0" node --listen "$1" --count 3 --wait 30 --send "$2/file" --set offload=switch 2> "$2/root" || cat "$2/root"
           touch "$2/done" ;;
        1 | 2) "$0" node --join "$1" --wait 30 > /dev/null 2>&1 || echo "it has not received the file" ;;
        esac
        until [ -e "$2/done" ]; do sleep 0.05; done
        grep eth0: /proc/net/dev"#;
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let start = ["4", "--no-prefix"];
    let start = if multicast.contains(&"--racks") { &start[1..] } else { &start };
    let command = ["--", "sh", "-c", line, env!("CARGO_BIN_EXE_treecast"), root, place];
    let words: Vec<&str> = start.iter().chain(multicast).chain(&command).copied().collect();
    let output = run(&words);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{text}{:?}", output.stderr);
    let mut received: Vec<u64> = text
        .lines()
        .map(|line| {
            line.split_whitespace()
                .nth(1)
                .and_then(|bytes| bytes.parse().ok())
                .unwrap_or_else(|| panic!("{text}"))
        })
        .collect();
    received.sort_unstable();
    received
}

#[test]
fn switches_flood_multicast_or_send_it_to_those_that_have_joined_or_drop_it() {
    if !allowed() {
        return;
    }
    for root in ["10.42.0.1:7000", "[fd42::1]:7000"] {
        // The root receives acknowledgments; whether host 3, which is not a member, receives the
        // file is up to the switch.
        for (multicast, receivers) in [
            (&[][..], 3),
            (&["--multicast", "snooping"], 2),
            (&["--multicast", "snooping", "--racks", "2x2"], 2),
            (&["--multicast", "drop"], 2),
        ] {
            // A snooping switch of a busy machine may learn during the broadcast who has joined.
            let attempts = if multicast.contains(&"snooping") { 10 } else { 1 };
            let mut received = Vec::new();
            let is_right = (0..attempts).any(|_| {
                received = received_bytes(multicast, root);
                let with_file = received.iter().filter(|&&bytes| bytes > FILE_BYTES).count();
                let has_part = received.iter().any(|bytes| (FILE_BYTES / 4..=FILE_BYTES).contains(bytes));
                with_file == receivers && !has_part
            });
            assert!(is_right, "{multicast:?} {root} {received:?}");
        }
    }
}

#[test]
fn a_root_that_may_choose_sends_by_multicast_where_switches_carry_it() {
    if !allowed() {
        return;
    }
    let line = r#"
        case $TREECAST_LAB_HOST in
        0) seq 1000 | "$0" node --listen n0:7000 --count $TREECAST_LAB_HOSTS --send - --set offload=auto 2>&1 | grep offload ;;
        *) "$0" node --join n0:7000 --receive - 2> /dev/null | cksum >&2 ;;
        esac"#;
    for (hosts, multicast, expected) in [
        (
            "5",
            &[][..],
            "treecast: offload switch, chosen because there are 4 other hosts; multicast reaches 4 of the root's 4 children\n",
        ),
        (
            "5",
            &["--multicast", "drop"],
            "treecast: offload switch, chosen because there are 4 other hosts; multicast reaches no child of the root, so the tree carries all data\n",
        ),
        (
            "3",
            &[],
            "treecast: offload nic, chosen because to 2 other hosts a switch saves at most one packet\n",
        ),
    ] {
        let command = ["--no-prefix", "--", "sh", "-c", line, env!("CARGO_BIN_EXE_treecast")];
        let words: Vec<&str> = [hosts].iter().chain(multicast).chain(&command).copied().collect();
        let output = run(&words);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        let sums = String::from_utf8(output.stderr).unwrap();
        let count = sums.lines().filter(|&sum| sum == "1830648734 3893").count();
        assert_eq!(count + 1, hosts.parse::<usize>().unwrap(), "{sums}");
    }
}

#[test]
fn processes_that_join_with_the_same_text_share_a_node() {
    if !allowed() {
        return;
    }
    let line = r#"
        case $TREECAST_LAB_HOST.$TREECAST_LAB_PROCESS in
        0.0) seq 1000 | "$0" node --share "a job" --listen n0:7000 --count 6 --send - 2>&1 | grep joined | grep -o "10[.]42[.0-9]*:[0-9]*" | sort -u | wc -l ;;
        *) "$0" node --share "a job" --join n0:7000 --receive - 2> /dev/null | cksum ;;
        esac"#;
    let output = run(&[
        "2",
        "--processes",
        "3",
        "--no-prefix",
        "--",
        "sh",
        "-c",
        line,
        env!("CARGO_BIN_EXE_treecast"),
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    // The root names the members with the addresses of their nodes: 6 members have 2.
    assert_eq!(lines, ["1830648734 3893"; 5].into_iter().chain(["2"]).collect::<Vec<_>>(), "{text}");
}

#[test]
fn racks_replace_the_number_of_hosts_and_their_uplinks_are_reported() {
    if !allowed() {
        return;
    }
    let line = "echo $TREECAST_LAB_RACK of $TREECAST_LAB_HOSTS; cat $TREECAST_LAB_INVENTORY";
    let output = run(&["4", "--racks", "2x2", "--on", "3", "--", "sh", "-c", line]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "1 of 4\nn0 r0\nn1 r0\nn2 r1\nn3 r1\n");
    assert!(output.status.success() && output.stderr.is_empty());

    // A message of 1,000,000 bytes from the first host to one other.
    let received = |host: u32| {
        let line = format!(
            "case $TREECAST_LAB_HOST in \
             0) head -c 1000000 /dev/zero | \"$0\" node --listen 0.0.0.0:7000 --count 2 --send - 2> /dev/null;; \
             {host}) \"$0\" node --join n0:7000 --receive - 2> /dev/null | wc -c;; esac"
        );
        let list = format!("0,{host}");
        let options =
            ["--racks", "3x2", "--uplink", "1gbit", "--report-uplinks", "--no-prefix", "--on", &list];
        let command = ["--", "sh", "-c", &line, env!("CARGO_BIN_EXE_treecast")];
        let output = run(&[&options[..], &command[..]].concat());
        assert_eq!(lines(&output.stdout), ["1000000"], "{}", String::from_utf8_lossy(&output.stderr));
        reported(&output)
    };
    let inside = received(1);
    assert!(inside.len() == 3 && inside.iter().flatten().all(|bytes| *bytes < 250_000), "{inside:?}");
    let across = received(4);
    assert!(across[0][0] >= 1_000_000 && across[2][1] >= 1_000_000, "{across:?}");
    assert!([across[0][1], across[2][0], across[1][0], across[1][1]].iter().all(|bytes| *bytes < 250_000));
    // Also after a command that failed.
    let output = run(&["--racks", "2x1", "--report-uplinks", "--", "sh", "-c", "exit $TREECAST_LAB_HOST"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let beginnings = ["treecast: the command on n1 ended with status 1", "rack 0: ", "rack 1: "];
    assert_eq!(stderr.lines().count(), 3, "{stderr}");
    assert!(stderr.lines().zip(beginnings).all(|(line, beginning)| line.starts_with(beginning)), "{stderr}");
}

#[test]
fn background_processes_do_not_keep_the_lab_alive() {
    if allowed() {
        let output = run(&["2", "--", "sh", "-c", "sleep 1000 & echo done"]);
        assert_eq!(lines(&output.stdout), ["n0: done", "n1: done"]);
    }
}

/// A lab with long-running commands, and the inode numbers of their namespaces. It is started as
/// shells start background jobs, which ignore interrupts.
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
