//! `treecast node`: broadcasts between shells, and their errors.

mod attacks;
#[path = "../common/mod.rs"]
mod common;
mod daemon;
mod listed;
mod paths;
mod sessions;
mod time_namespaces;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::has_kernel_engine;
use tempfile::TempDir;

fn node(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
    command.arg("node").args(arguments).env_remove("TREECAST_TOKEN").stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A loopback address with a port that is free, for TCP and for UDP, and that no other test of this
/// program gets. It is below those that the kernel gives to sockets and connections, so that none
/// of these takes it before the node does.
fn address() -> String {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 101 + TRIED.fetch_add(1, Ordering::Relaxed);
        let address = format!("127.0.0.1:{}", 10_000 + number % 20_000);
        if TcpListener::bind(&address).is_ok() && UdpSocket::bind(&address).is_ok() {
            return address;
        }
    }
}

fn utf8(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn check(child: Child, status: i32, part: &str) -> Output {
    let output = child.wait_with_output().unwrap();
    let stderr = utf8(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    assert!(stderr.contains(part), "'{part}' is not in\n{stderr}");
    assert!(stderr.lines().all(|line| line.starts_with("treecast: ")), "{stderr}");
    output
}

/// Reads the output of a node until a line contains `part`.
fn wait_for(child: &mut Child, part: &str) -> BufReader<ChildStderr> {
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(part) {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "'{part}' was not printed");
    }
    stderr
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status();
    assert!(status.unwrap().success());
}

fn file(directory: &TempDir, name: &str, contents: &[u8]) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, contents).unwrap();
    path
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn every_member_receives_the_whole_file() {
    let directory = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|index| ((index * 31) >> 3) as u8).collect();
    let input = file(&directory, "input", &bytes);
    let token = file(&directory, "token", b"secret\n");
    let copy = directory.path().join("copy");
    let address = address();
    let root =
        node(&["--listen", &address, "--count", "4", "--send", text(&input), "--token-file", text(&token)])
            .spawn()
            .unwrap();
    let others: Vec<Child> = [
        &["--receive", text(&copy), "--token-file", text(&token)][..],
        &["--receive", "-", "--token-file", text(&token)],
        &[],
    ]
    .map(|arguments| {
        let mut command = node(&[&["--join", &address], arguments].concat());
        if arguments.is_empty() {
            command.env("TREECAST_TOKEN", "secret");
        }
        command.spawn().unwrap()
    })
    .into();
    // Read their output while they run, so that the pipes do not fill.
    let others: Vec<_> = others
        .into_iter()
        .map(|other| thread::spawn(move || check(other, 0, "received 4 messages, 1000000 bytes")))
        .collect();
    check(root, 0, "sent 4 messages, 1000000 bytes");
    let outputs: Vec<Output> = others.into_iter().map(|other| other.join().unwrap()).collect();
    assert!(fs::read(&copy).unwrap() == bytes);
    assert!(outputs[0].stdout.is_empty() && outputs[1].stdout == bytes && outputs[2].stdout.is_empty());
}

#[test]
fn typed_lines_arrive_immediately() {
    let address = address();
    let mut root =
        node(&["--listen", &address, "--count", "2", "--send", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut other = node(&["--join", &address, "--receive", "-"]).spawn().unwrap();
    let mut received = BufReader::new(other.stdout.take().unwrap()).lines();
    let mut typed = root.stdin.take().unwrap();
    for line in ["one", "two"] {
        writeln!(typed, "{line}").unwrap();
        assert_eq!(received.next().unwrap().unwrap(), line);
    }
    drop(typed);
    check(root, 0, "ready: member 0 of 2; the root");
    check(other, 0, "ready: member 1 of 2; the root is member 0 at 127.0.0.1:");
}

#[test]
fn the_tree_follows_the_racks_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let fabric = file(&directory, "racks.inventory", b"n[0-1] r0\nn[2-3] r1\n");
    let address = address();
    let listen = ["--listen", &address, "--count", "4", "--send", "-", "--fabric", text(&fabric)];
    let mut root = node(&[&listen[..], &["--name", "n0"]].concat());
    let mut root = root.stdin(Stdio::piped()).spawn().unwrap();
    root.stdin.take().unwrap().write_all(b"hello").unwrap();
    let members = ["n1", "n2", "n3"]
        .map(|name| node(&["--join", &address, "--receive", "-", "--name", name]).spawn().unwrap());
    let root =
        check(root, 0, "ready: member 0 of 4; the root; scheme hierarchical:across=postal,across-lambda=");
    // A message and the closing packet, to a member in each rack.
    assert!(utf8(&root.stderr).contains("packets: 0 received, 4 sent"));
    for member in members {
        assert_eq!(check(member, 0, "the group is closed").stdout, b"hello");
    }
}

#[test]
fn members_can_be_listed_in_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let addresses = [address(), address()];
    let members =
        file(&directory, "members", format!("{} # root\n{}\n", addresses[0], addresses[1]).as_bytes());
    let spawn = |number: usize, arguments: &[&str]| {
        let common = ["--members", text(&members), "--bind", &addresses[number]];
        node(&[&common, arguments].concat()).spawn().unwrap()
    };
    let other = spawn(1, &["--receive", "-"]);
    check(spawn(0, &["--send", text(&members)]), 0, "sent 1 messages");
    assert_eq!(check(other, 0, "").stdout, fs::read(&members).unwrap());
    // Both are addresses of this machine, so --bind has to say which one this node is.
    let lost = node(&["--members", text(&members)]).spawn().unwrap();
    check(lost, 2, "several members have addresses of this machine");
}

/// A chain of all hosts of a fabric.
fn plan(fabric: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
    command.args(["plan", "--fabric", fabric, "--scheme", "serial", "--root", "1", "--format", "json"]);
    utf8(&command.output().unwrap().stdout)
}

#[test]
fn a_plan_can_be_carried_out() {
    let directory = tempfile::tempdir().unwrap();
    let file = file(&directory, "plan.json", plan("star:3").as_bytes());
    let address = address();
    let mut root = node(&["--listen", &address, "--count", "3", "--send", "-", "--plan", text(&file)]);
    let mut root = root.stdin(Stdio::piped()).spawn().unwrap();
    root.stdin.take().unwrap().write_all(b"hello").unwrap();
    let members = ["0", "2"]
        .map(|member| node(&["--join", &address, "--receive", "-", "--member", member]).spawn().unwrap());
    let root = check(root, 0, "ready: member 1 of 3; the root; scheme serial");
    // A message and the closing packet, to one child.
    assert!(utf8(&root.stderr).contains("packets: 0 received, 2 sent"));
    for member in members {
        assert_eq!(check(member, 0, "the group is closed").stdout, b"hello");
    }
}

#[test]
fn the_costs_of_the_network_choose_the_tree() {
    let directory = tempfile::tempdir().unwrap();
    let way =
        "format = 'treecast-network-1'\n[[way]]\nengine = 'user'\noffload = 'nic'\ntransport = 'stream'\n";
    // Without the file the tree is postal.
    let costs = format!("{way}[way.set]\nsend_us = 1\nwake_us = 500\n");
    let network = file(&directory, "network.toml", costs.as_bytes());
    let address = address();
    let root = node(&["--listen", &address, "--count", "3", "--send", "-", "--network", text(&network)]);
    let root = { root }.stdin(Stdio::null()).spawn().unwrap();
    let members = [(); 2].map(|()| node(&["--join", &address]).spawn().unwrap());
    check(root, 0, "the root; scheme separate");
    for member in members {
        check(member, 0, "the group is closed");
    }
    let malformed = file(&directory, "malformed.toml", way.replace("nic", "router").as_bytes());
    let root = node(&["--listen", &address, "--count", "3", "--send", "-", "--network", text(&malformed)]);
    check({ root }.stdin(Stdio::null()).spawn().unwrap(), 2, "malformed.toml: line 4: ");
}

#[test]
fn an_interrupted_member_leaves_and_the_others_continue() {
    for name in ["TERM", "INT"] {
        let address = address();
        let mut root = node(&["--listen", &address, "--count", "3", "--send", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stays = node(&["--join", &address, "--member", "1", "--receive", "-"]).spawn().unwrap();
        let mut leaves = node(&["--join", &address, "--member", "2"]).spawn().unwrap();
        let rest = wait_for(&mut leaves, "ready");
        let mut typed = root.stdin.take().unwrap();
        writeln!(typed, "one").unwrap();
        let mut received = BufReader::new(stays.stdout.take().unwrap()).lines();
        assert_eq!(received.next().unwrap().unwrap(), "one");
        signal(&leaves, name);
        assert!(rest.lines().any(|line| line.unwrap() == "treecast: this member has left"));
        assert_eq!(leaves.wait().unwrap().code(), Some(0));
        writeln!(typed, "two").unwrap();
        assert_eq!(received.next().unwrap().unwrap(), "two");
        drop(typed);
        check(stays, 0, "received 2 messages, 8 bytes; the group is closed");
        check(root, 5, "is lost: left the group");
    }
}

#[test]
fn a_root_whose_last_member_is_lost_sends_no_more() {
    let address = address();
    let mut root = node(&["--listen", &address, "--count", "3", "--send", "/dev/zero"]).spawn().unwrap();
    let mut members =
        ["1", "2"].map(|member| node(&["--join", &address, "--member", member]).spawn().unwrap());
    let mut rest = wait_for(&mut root, "ready");
    for member in &mut members {
        member.kill().unwrap();
        member.wait().unwrap();
    }
    let mut stderr = String::new();
    rest.read_to_string(&mut stderr).unwrap();
    assert_eq!(root.wait().unwrap().code(), Some(5), "{stderr}");
    assert_eq!(stderr.matches(" is lost: ").count(), 2, "{stderr}");
    assert!(stderr.contains("treecast: no member is left: the rest is not sent\n"), "{stderr}");
}

#[test]
fn an_interrupted_root_aborts_the_group_and_no_member_keeps_a_partial_file() {
    let directory = tempfile::tempdir().unwrap();
    let copy = directory.path().join("copy");
    let address = address();
    let mut root =
        node(&["--listen", &address, "--count", "2", "--send", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let other = node(&["--join", &address, "--receive", text(&copy)]).spawn().unwrap();
    writeln!(root.stdin.as_mut().unwrap(), "a part").unwrap();
    let rest = wait_for(&mut root, "ready");
    signal(&root, "TERM");
    assert!(rest.lines().any(|line| line.unwrap() == "treecast: the group was aborted at this node"));
    assert_eq!(root.wait().unwrap().code(), Some(5));
    check(other, 5, "the root aborted the group: it was interrupted");
    assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "no part is kept");
}

#[test]
fn root_and_members_name_missing_members() {
    let address = address();
    let root = node(&["--listen", &address, "--count", "3", "--send", "-", "--wait", "1"]).spawn().unwrap();
    let other = node(&["--join", &address, "--member", "2", "--name", "anna"]).spawn().unwrap();
    check(root, 5, "; member 1 is missing\n");
    let stderr =
        utf8(&check(other, 5, "not all members joined in time: 2 of 3 members have joined: ").stderr);
    assert!(stderr.contains("anna at 127.0.0.1:") && stderr.contains(" as member 2; member 1 is missing"));
    let alone = node(&["--join", &address, "--wait", "1"]).spawn().unwrap();
    let stderr = utf8(&check(alone, 5, &format!("cannot join the group at {address}: ")).stderr);
    assert!(stderr.starts_with(&format!("treecast: waiting for the root at {address}\n")), "{stderr}");
}

#[test]
fn a_token_mismatch_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let wrong = file(&directory, "wrong", b"guess");
    let address = address();
    let mut command = node(&["--listen", &address, "--count", "2", "--send", "-"]);
    let mut root = command.env("TREECAST_TOKEN", "secret").spawn().unwrap();
    let outsider = node(&["--join", &address, "--token-file", text(&wrong)]).spawn().unwrap();
    check(outsider, 2, "rejected: token mismatch");
    wait_for(&mut root, "; 1 connection rejected: 127.0.0.1:");
    let mut command = node(&["--join", &address]);
    check(command.env("TREECAST_TOKEN", "secret").spawn().unwrap(), 0, "the group is closed");
    assert_eq!(root.wait().unwrap().code(), Some(0));
}

#[test]
fn invalid_arguments_are_reported_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let empty = file(&directory, "empty", b"\n");
    let single = file(&directory, "single", address().as_bytes());
    let racks = file(&directory, "racks.inventory", b"n0 r0\n");
    let double = file(&directory, "double", b"127.0.0.1:7000\nlocalhost:7000\n");
    let unknown = file(&directory, "unknown", b"# all\nnobody.invalid:7000\n");
    let planned = file(&directory, "plan.json", plan("star:3").as_bytes());
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&[], "is missing"),
        (&["--listen", "127.0.0.1:0"], "--count"),
        (&["--listen", "127.0.0.1:0", "--count", "0"], "invalid value 0 for --count: "),
        (&["--listen", "127.0.0.1:0", "--count", "2"], "--send is missing"),
        (&["--listen", "192.0.2.1:0", "--count", "2", "--send", "-"], "not an address of this machine"),
        (&["--listen", "127.0.0.1:0", "--count", "2", "--send", "-", "--set", "slots=5"], "slots"),
        (
            &["--listen", "127.0.0.1:0", "--count", "2", "--send", "-", "--set", "token=x"],
            "other users can read command lines",
        ),
        (
            &["--listen", "127.0.0.1:0", "--count", "2", "--send", "-", "--set", "root=2"],
            "the root is member 2 of 2",
        ),
        (&["--listen", "127.0.0.1:0", "--count", "2", "--send", "/no/such"], "/no/such could not be read"),
        (&["--listen", "127.0.0.1:0", "--count", "2", "--send", "/"], "/ could not be read: is a directory"),
        (
            &["--listen", "127.0.0.1:0", "--count", "2", "--send", "-", "--plan", text(&planned)],
            "it is for 3 members, and the group has 2",
        ),
        (
            &["--listen", "127.0.0.1:0", "--count", "3", "--send", "-", "--plan", text(&empty)],
            "this JSON is not a plan",
        ),
        (
            &["--listen", "127.0.0.1:0", "--count", "3", "--send", "-", "--fabric", "star:3"],
            "the root: the fabric has no host '",
        ),
        (
            &["--members", text(&single), "--send", "-", "--fabric", text(&racks)],
            "member 0: the fabric has no host '127.0.0.1': known are n0",
        ),
        (&["--members", text(&single), "--fabric", "/no/such.conf"], "/no/such.conf: could not be read"),
        (&["--join", "127.0.0.1:1", "--fabric", text(&racks)], "--fabric"),
        (&["--join", "127.0.0.1:port"], "is no address such as"),
        (&["--join", "nobody.invalid"], "cannot resolve host nobody.invalid"),
        (&["--join", "127.0.0.1:1", "--send", "-"], "--send"),
        (&["--join", "127.0.0.1:1", "--bind", &taken], "choose another port, or 0 for a free one"),
        (&["--join", "127.0.0.1:1", "--name", "a\nb"], "no control characters"),
        (&["--join", "[::1]:1", "--bind", "127.0.0.1:0"], "has IPv4 only"),
        (&["--join", "127.0.0.1:1", "--token-file", text(&empty)], "holds no token"),
        (&["--join", "127.0.0.1:1", "--token-file", "/no/such"], "/no/such could not be read"),
        (&["--members", text(&empty)], "no members"),
        (&["--members", text(&double)], "line 2: 127.0.0.1:7000 is given twice, before in line 1"),
        (&["--members", text(&unknown)], "line 2: cannot resolve host nobody.invalid"),
    ];
    for (arguments, part) in cases {
        let output = check(node(arguments).spawn().unwrap(), 2, part);
        let stderr = utf8(&output.stderr);
        let count = stderr.lines().filter(|line| !line.contains("waiting for ")).count();
        assert_eq!(count, 1, "{arguments:?}: {stderr}");
    }
    let output = check(
        node(&["--join", "127.0.0.1:1", "--receive", "/no/such/file"]).spawn().unwrap(),
        1,
        "could not be written",
    );
    assert!(output.stdout.is_empty());
}

/// Ports below 1024 need root, unless `net.ipv4.ip_unprivileged_port_start` says otherwise.
#[test]
fn a_privileged_port_is_refused_with_the_reason() {
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0);
    if first.trim().parse() != Ok(1_024) || is_root && !Path::new("/usr/bin/setpriv").exists() {
        return;
    }
    let arguments = ["--join", "127.0.0.1:1", "--bind", "127.0.0.1:1023"];
    let mut command = node(&arguments);
    let directory = tempfile::tempdir().unwrap();
    if is_root {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let copy = directory.path().join("treecast");
        fs::copy(env!("CARGO_BIN_EXE_treecast"), &copy).unwrap();
        command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(copy)
            .arg("node")
            .args(arguments);
        command.current_dir("/").stderr(Stdio::piped());
    }
    check(
        command.spawn().unwrap(),
        2,
        "cannot listen at 127.0.0.1:1023: Permission denied (os error 13): ports below 1024 are privileged",
    );
}

/// In labs: datagrams are as long as the MTU allows, and a member whose network does not carry
/// those that are asked for is told so.
#[test]
fn the_mtu_of_the_network_is_found_out() {
    let treecast = env!("CARGO_BIN_EXE_treecast");
    let directory = tempfile::tempdir().unwrap();
    let input = file(&directory, "input", &vec![0; 100_000]);
    let run = |mtu: &str, options: &str| {
        let line = format!(
            "case $TREECAST_LAB_HOST in \
             0) {treecast} node --listen 0.0.0.0:7000 --count 2 --send {} {options};; \
             1) {treecast} node --join n0:7000 --receive - | wc -c;; esac",
            text(&input)
        );
        let mut command = Command::new(treecast);
        let output = command.args(["lab", "2", "--mtu", mtu, "--", "sh", "-c", &line]).output().unwrap();
        (output.status.code(), utf8(&output.stdout), utf8(&output.stderr))
    };
    // 1,188 bytes of payload in a packet, and 8,908; and the closing packet.
    for (mtu, packets) in [("1280", 86), ("9000", 13)] {
        let (status, stdout, stderr) = run(mtu, "--set transport=packets");
        if stderr.contains("does not allow a lab") || stderr.contains("a lab needs the tool") {
            let _ = std::io::stderr().write_all(format!("skipped: {stderr}").as_bytes());
            return;
        }
        assert_eq!(status, Some(0), "{stderr}");
        assert!(stdout.contains("n1: 100000"), "{stdout}");
        let sent = format!("n0: treecast: packets: 0 received, {packets} sent");
        assert!(stderr.contains(&sent), "{stderr}");
        assert!(stderr.contains(&format!("; MTU {mtu} bytes; transport packets")), "{stderr}");
    }
    // Streams, the default, do not depend on it.
    let (status, stdout, stderr) = run("1280", "");
    assert_eq!(status, Some(0), "{stderr}");
    assert!(stdout.contains("n1: 100000") && stderr.contains("; transport both"), "{stderr}");
    // The root does not wait for another member, and both name the one whose path does not carry
    // such datagrams.
    let (status, _, stderr) = run("1280", "--set mtu_bytes=1500 --wait 1000000");
    assert_ne!(status, Some(0));
    for host in ["n0: treecast: n1 at ", "n1: treecast: cannot join the group at "] {
        let line = stderr.lines().find(|line| line.starts_with(host)).unwrap_or_else(|| panic!("{stderr}"));
        assert!(line.contains(": the MTU of the path to it is 1280 bytes, and mtu_bytes=1500"), "{stderr}");
    }
}

/// In a lab, with the kernel engine: the reader in the middle of a chain does not read at first.
#[test]
fn a_slow_reader_causes_back_pressure_and_no_loss() {
    if !has_kernel_engine() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|index| ((index * 31) >> 3) as u8).collect();
    file(&directory, "input", &bytes);
    let treecast = env!("CARGO_BIN_EXE_treecast");
    let line = format!(
        "case $TREECAST_LAB_HOST in \
         0) set -- --listen 0.0.0.0:7000 --count 4 --send input --set scheme=serial --set slots=64;; \
         *) set -- --join n0:7000 --member $TREECAST_LAB_HOST --receive -;; esac; \
         {treecast} node --engine ebpf \"$@\" | {{ \
         [ $TREECAST_LAB_HOST != 2 ] || until [ -e go ]; do sleep 0.01; done; \
         cat > copy$TREECAST_LAB_HOST; }}"
    );
    let mut command = Command::new(treecast);
    command.args(["lab", "4", "--", "sh", "-c", &line]).current_dir(directory.path());
    let lab = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lab = thread::spawn(move || lab.wait_with_output().unwrap());
    let length =
        |host| fs::metadata(directory.path().join(format!("copy{host}"))).map_or(0, |found| found.len());
    // Until the other readers have received nothing for a while.
    let mut before = (0, 0);
    let end = Instant::now() + Duration::from_mins(1);
    while Instant::now() < end && (before.0 == 0 || before.1 == 0 || before != (length(1), length(3))) {
        before = (length(1), length(3));
        thread::sleep(Duration::from_millis(300));
    }
    let is_held_back = !lab.is_finished() && before.0 < 1_000_000 && before.1 < 1_000_000;
    file(&directory, "go", b"");
    let output = lab.join().unwrap();
    let stderr = utf8(&output.stderr);
    assert!(is_held_back, "{before:?} of 3000000 bytes went past a reader that does not read");
    for host in 1..4 {
        let copy = fs::read(directory.path().join(format!("copy{host}"))).unwrap();
        assert!(copy == bytes, "host {host} has {} bytes\n{stderr}", copy.len());
    }
    assert!(stderr.contains("n0: treecast: sent 12 messages, 3000000 bytes"), "{stderr}");
}

#[test]
fn a_closed_pipe_is_not_reported() {
    let address = address();
    let root = node(&["--listen", &address, "--count", "2", "--send", "/dev/zero"]).spawn().unwrap();
    let mut other = node(&["--join", &address, "--receive", "-"]).spawn().unwrap();
    let mut some = [0; 10_000];
    other.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = other.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", utf8(&output.stderr));
    check(root, 5, "no member is left: the rest is not sent");
}

#[test]
fn invalid_daemon_arguments_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("node.sock");
    let policy = file(&directory, "policy.toml", b"[[rule]]\nname = \"a\"\ncolour = 1\n");
    for (arguments, stderr) in [
        (&["--policy", text(&policy)][..], "policy.toml, line 3: unknown field `colour`"),
        (&["--policy", "none.toml"], "none.toml could not be read"),
        (
            &["--send", "-"],
            "--send, --receive, --plan, --fabric, --network, --set, --token-file, --insecure and --name are for groups",
        ),
        (&["--engine", "steam"], "invalid engine steam"),
        (&["--join", "127.0.0.1:1", "--policy", text(&policy)], "--policy"),
    ] {
        let mut command = node(arguments);
        check(command.args(["--socket", text(&socket)]).spawn().unwrap(), 2, stderr);
    }
}
