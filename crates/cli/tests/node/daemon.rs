//! The command as a daemon.

use super::*;

/// The command as a daemon, and clients of it: as another user, if this is root.
#[test]
fn a_daemon_serves_clients_and_shuts_down() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("run/node.sock");
    let with_socket = |arguments: &[&str]| {
        let mut command = node(arguments);
        command.args(["--socket", text(&socket)]);
        command
    };
    let mut daemon = with_socket(&["--engine", "user", "--bind", "127.0.0.1:0"]).spawn().unwrap();
    let mut said_by_daemon = wait_for(&mut daemon, "serves clients at");
    let second = with_socket(&["--engine", "user", "--bind", "127.0.0.1:0"]).spawn().unwrap();
    check(second, 2, "another daemon listens there");
    let input = file(&directory, "input", b"by the daemon");
    let address = address();
    let root = with_socket(&["--listen", &address, "--count", "2", "--send", text(&input)]);
    let root = { root }.spawn().unwrap();
    let member = node(&["--join", &address, "--receive", "-", "--engine", "user", "--bind", "127.0.0.1:0"]);
    let output = check({ member }.spawn().unwrap(), 0, "received 1 messages");
    assert_eq!(utf8(&output.stdout), "by the daemon");
    check(root, 0, "sent 1 messages");
    // A stopped process has both signals when it continues.
    for name in ["STOP", "TERM", "INT", "CONT"] {
        signal(&daemon, name);
    }
    assert!(daemon.wait().unwrap().success());
    let mut rest = String::new();
    said_by_daemon.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("root=true") && rest.contains(", rejected: 0, "), "{rest}");
    assert!(!socket.exists());
}

#[test]
fn a_daemon_ends_with_its_terminal_unless_nohup_started_it() {
    for has_nohup in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("node.sock");
        let arguments = ["--engine", "user", "--bind", "127.0.0.1:0", "--socket", text(&socket)];
        let mut command = node(&arguments);
        if has_nohup {
            let started = command;
            command = Command::new("nohup");
            command.arg(started.get_program()).args(started.get_args());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        }
        let mut daemon = command.spawn().unwrap();
        let _said = wait_for(&mut daemon, "serves clients at");
        signal(&daemon, "HUP");
        if has_nohup {
            std::thread::sleep(Duration::from_millis(300));
            assert_eq!(daemon.try_wait().unwrap(), None);
            signal(&daemon, "TERM");
        }
        assert!(daemon.wait().unwrap().success());
    }
}

#[test]
fn a_member_whose_daemon_dies_says_so_and_invents_no_counters() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("node.sock");
    let bind = address();
    let arguments = ["--engine", "user", "--bind", &bind, "--socket", text(&socket)];
    let mut daemon = node(&arguments).spawn().unwrap();
    let _said = wait_for(&mut daemon, "serves clients at");
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(b"not a packet", &bind).unwrap();
    let address = address();
    let root =
        ["--listen", &address, "--count", "2", "--send", "-", "--engine", "user", "--bind", "127.0.0.1:0"];
    let mut root = node(&root).stdin(Stdio::piped()).spawn().unwrap();
    let member = ["--join", &address, "--receive", "-", "--socket", text(&socket)];
    let mut member = node(&member).spawn().unwrap();
    writeln!(root.stdin.as_mut().unwrap(), "hello").unwrap();
    let mut hello = [0; 6];
    member.stdout.as_mut().unwrap().read_exact(&mut hello).unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let output = check(member, 5, "is unusable: it has ended");
    assert!(!utf8(&output.stderr).contains("belonged to no group"), "{}", utf8(&output.stderr));
    drop(root.stdin.take());
    check(root, 5, "member 1");
}

#[test]
fn a_daemon_logs_refusals_and_strangers_with_their_sources_at_a_limited_rate() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("node.sock");
    let policy = file(&directory, "policy", b"[[rule]]\nname = \"all\"\nall_users = true\ngroups_max = 0\n");
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let bind = address();
    let with_socket = |arguments: &[&str]| {
        let mut command = node(arguments);
        command.args(["--socket", text(&socket)]);
        command
    };
    let mut daemon =
        with_socket(&["--engine", "user", "--bind", &bind, "--policy", text(&policy)]).spawn().unwrap();
    let mut said = wait_for(&mut daemon, "serves clients at");
    // A root whose group is refused.
    let address = address();
    let root = with_socket(&["--listen", &address, "--count", "2", "--send", "/dev/null"]);
    let root = { root }.spawn().unwrap();
    let member = node(&["--join", &address, "--engine", "user", "--bind", "127.0.0.1:0"]);
    let mut member = { member }.spawn().unwrap();
    check(root, 2, "rule \"all\" allows 0 groups at once");
    let _ = member.kill();
    member.wait().unwrap();
    for _ in 0..50 {
        stranger.send_to(b"not a packet", &bind).unwrap();
    }
    let line = format!("audit: a datagram is malformed source={}", stranger.local_addr().unwrap());
    let mut log = String::new();
    let mut read_until_lines = |count| {
        while log.matches(&line).count() < count {
            assert!(said.read_line(&mut log).unwrap() > 0, "{log}");
        }
    };
    read_until_lines(10);
    thread::sleep(Duration::from_millis(1_200));
    stranger.send_to(b"not a packet", &bind).unwrap();
    read_until_lines(11);
    signal(&daemon, "TERM");
    assert!(daemon.wait().unwrap().success());
    said.read_to_string(&mut log).unwrap();
    assert!(log.contains("audit: a group is refused client="), "{log}");
    assert!(log.contains("groups refused: 1, ") && log.contains("malformed 51, "), "{log}");
    assert_eq!(log.matches(&line).count(), 11, "{log}");
    assert!(log.contains("audit: 40 more lines about malformed datagrams were suppressed"), "{log}");
}
