//! Members that join at the root, and foreign connections to its port.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use treecast_fabric::{Fabric, RoutingPolicy, read};
use treecast_node::{
    Group, GroupSettings, JoinOptions, JoinStatus, Listener, Node, NodeError, NodeSettings, Plan,
};
use treecast_plan::{Label, MemberId, Placement, Worm, WormKind};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
/// For groups that cannot become complete.
const SHORT: Option<Duration> = Some(Duration::from_millis(300));

fn open(bind: &str) -> Node {
    Node::open(&NodeSettings { bind: bind.parse().unwrap(), ..NodeSettings::default() }).unwrap()
}

fn settings() -> GroupSettings {
    GroupSettings { token: "secret".into(), ..GroupSettings::new(Vec::new()) }
}

fn bind(members: u32) -> Listener {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap(), members).unwrap();
    (listener.name, listener.timeout) = ("n0".into(), TIMEOUT);
    listener
}

fn options(root: SocketAddr, name: &str) -> JoinOptions {
    JoinOptions { name: name.into(), timeout: TIMEOUT, ..JoinOptions::new(root, "secret") }
}

type Joining = JoinHandle<Result<(Node, Group), NodeError>>;

fn join_at(bind: &'static str, options: JoinOptions) -> Joining {
    thread::spawn(move || {
        let node = open(bind);
        node.join(&options).map(|group| (node, group))
    })
}

fn join(options: JoinOptions) -> Joining {
    join_at("127.0.0.1:0", options)
}

/// A root that listens in a thread of its own, and its status messages.
fn listen(listener: Listener, settings: GroupSettings) -> (Joining, mpsc::Receiver<String>) {
    let (reports, reported) = mpsc::channel();
    let listen = move || {
        let node = open("127.0.0.1:0");
        let mut tell = |status: Option<&JoinStatus>| {
            if let Some(status) = status {
                let _ = reports.send(status.to_string());
            }
            true
        };
        node.listen_while(listener, &settings, &mut tell).map(|group| (node, group))
    };
    (thread::spawn(listen), reported)
}

#[test]
fn the_data_of_hosts_that_join_goes_on_streams() {
    let listener = bind(2);
    let place = listener.address();
    let (root, _) = listen(listener, settings());
    let joined = join(options(place, "n1"));
    let ((_one, root), (_other, joined)) = (root.join().unwrap().unwrap(), joined.join().unwrap().unwrap());
    root.send(b"hello").unwrap();
    assert_eq!(joined.receive(TIMEOUT).unwrap().unwrap(), b"hello");
    // The packets of short messages are as long on streams, whatever the MTU is.
    assert_eq!((root.packet_bytes(), joined.packet_bytes()), (Some(2_048), Some(2_048)));
}

/// Waits until the root prints a line with this part.
fn wait_for(reported: &mpsc::Receiver<String>, part: &str) -> String {
    let until = Instant::now() + Duration::from_secs(20);
    while let Ok(text) = reported.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if text.contains(part) {
            return text;
        }
    }
    panic!("nothing was said of '{part}'");
}

fn error(joining: Joining) -> String {
    joining.join().unwrap().map(|_| ()).unwrap_err().to_string()
}

/// All of them are one group: a message reaches all of them.
fn check(root: Joining, others: Vec<Joining>) {
    let (root_node, group) = root.join().unwrap().unwrap();
    let others: Vec<(Node, Group)> = others.into_iter().map(|other| other.join().unwrap().unwrap()).collect();
    let mut numbers: Vec<u32> = others.iter().map(|(_, group)| group.member().unwrap()).collect();
    numbers.extend(group.member());
    numbers.sort_unstable();
    assert_eq!(numbers, (0..=others.len() as u32).collect::<Vec<_>>());
    group.send(b"hello").unwrap();
    for (node, group) in &others {
        assert_eq!(group.receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
        let own = group.settings().members[group.member().unwrap() as usize];
        assert_eq!(own.port(), node.address().port());
    }
    assert_eq!(group.close(TIMEOUT).unwrap(), []);
    drop((root_node, others));
}

#[test]
fn members_that_join_are_a_group() {
    let listener = bind(4);
    let others = (1..4).map(|n| join(options(listener.address(), &format!("n{n}")))).collect();
    check(listen(listener, GroupSettings { root: 2, slots: Some(64), ..settings() }).0, others);
}

#[test]
fn members_have_the_numbers_they_request_and_the_settings_of_the_root() {
    let listener = bind(4);
    let root = listener.address();
    let wanted = |member| join(JoinOptions { member, ..options(root, "n") });
    let others = [wanted(None), wanted(Some(3)), wanted(Some(0))];
    let settings =
        GroupSettings { root: 1, slots: Some(16), scheme: Some("separate".parse().unwrap()), ..settings() };
    let root = listen(listener, settings).0;
    let (node, group) = root.join().unwrap().unwrap();
    let others = others.map(|other| other.join().unwrap().unwrap());
    assert_eq!(others.each_ref().map(|(_, group)| group.member().unwrap()), [2, 3, 0]);
    for (_, other) in &others {
        let settings = other.settings();
        assert_eq!((settings.root, settings.slots, settings.token.as_str()), (1, Some(16), "secret"));
        assert_eq!(settings.members, group.settings().members);
        assert_eq!(settings.members[1], node.address());
    }
}

/// Two racks of two hosts.
fn on_racks(settings: GroupSettings) -> GroupSettings {
    let topology = read::inventory("lab.inventory", "n[0-1] r0\nn[2-3] r1").unwrap().topology;
    settings.with_fabric(Fabric::new(topology, RoutingPolicy::Auto).unwrap())
}

#[test]
fn the_tree_follows_the_racks_of_members_that_join() {
    let listener = bind(4);
    let join = |name| join(options(listener.address(), name));
    // A host may have a domain, and several members.
    let others = vec![join("n2"), join("n3.cluster.example"), join("n3")];
    let root = listen(listener, on_racks(settings())).0;
    let (node, group) = root.join().unwrap().unwrap();
    let plan = group.plan().unwrap().clone();
    assert_eq!((group.scheme().unwrap().name(), plan.sends().of(MemberId(0)).len()), ("hierarchical", 1));
    check(thread::spawn(move || Ok((node, group))), others);
}

#[test]
fn a_member_of_an_unknown_host_is_rejected() {
    let listener = bind(3);
    let root = listener.address();
    let (listening, reported) = listen(listener, on_racks(settings()));
    let reason = "the fabric has no host 'm9': known are n0, n1, n2, n3 (a node joins with its host name, or another one that it is given)";
    assert!(error(join(options(root, "m9"))).ends_with(&format!("rejected: {reason}")));
    wait_for(&reported, reason);
    check(listening, vec![join(options(root, "n1")), join(options(root, "n2"))]);
}

/// Waits until a host has connected to a root that does not accept yet.
fn wait_until_connected(root: SocketAddr) {
    let end = Instant::now() + TIMEOUT.unwrap();
    let port = format!(":{:04X}", root.port());
    let is_connection = |line: &str| {
        // A number, the local address, the remote one, and the state, here TCP_ESTABLISHED.
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        columns[1].ends_with(&port) && columns[3] == "01"
    };
    while !fs::read_to_string("/proc/net/tcp").unwrap().lines().any(is_connection) {
        assert!(Instant::now() < end, "no host has connected");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_root_of_an_unknown_host_does_not_wait() {
    let mut listener = bind(2);
    listener.name = "m9".into();
    let place = listener.address();
    let other = join(options(place, "n1"));
    // A root that refuses tells those that have come, and hears no others.
    wait_until_connected(place);
    let said = error(listen(listener, on_racks(settings())).0);
    assert!(
        said.starts_with("the root: the fabric has no host 'm9': known are n0, n1, n2, n3 (give"),
        "{said}"
    );
    assert!(error(other).contains(&said));
    let torus = on_racks(GroupSettings { scheme: Some("u-torus".parse().unwrap()), ..settings() });
    let said = torus.check("127.0.0.1:0".parse().unwrap(), 2).unwrap_err().to_string();
    assert!(said.starts_with("scheme u-torus needs a torus"), "{said}");
}

#[test]
fn nodes_may_listen_at_all_addresses() {
    for (bind, listen) in [("0.0.0.0:0", "0.0.0.0:0"), ("[::]:0", "[::]:0"), ("[::]:0", "127.0.0.1:0")] {
        let listener = Listener::bind(listen.parse().unwrap(), 3).unwrap();
        let port = listener.address().port();
        let ip = if listen.starts_with("[::]") { "::1".parse().unwrap() } else { [127, 0, 0, 1].into() };
        let root = SocketAddr::new(ip, port);
        let others = (0..2).map(|_| join_at(bind, options(root, "n"))).collect();
        let root = thread::spawn(move || {
            let node = open(bind);
            node.listen(listener, &settings()).map(|group| (node, group))
        });
        check(root, others);
    }
}

#[test]
fn a_root_alone_is_a_group() {
    let (node, group) = listen(bind(1), settings()).0.join().unwrap().unwrap();
    assert_eq!(group.settings().members, [node.address()]);
    assert_eq!(group.close(TIMEOUT).unwrap(), []);
}

#[test]
fn members_wait_for_a_root_that_comes_later() {
    let place = bind(2).address();
    let other = join(options(place, "n1"));
    let listener = Listener::bind(place, 2).unwrap();
    check(listen(listener, settings()).0, vec![other]);
}

#[test]
fn joined_and_missing_members_are_named_on_all_sides() {
    let mut listener = bind(4);
    listener.timeout = SHORT;
    let root = listener.address();
    let come = join(JoinOptions { member: Some(2), ..options(root, "n2") });
    let root = error(listen(listener, settings()).0);
    assert!(
        root.starts_with(
            "not all members joined in time: 2 of 4 members have joined: n0 (the root) at 127.0.0.1:"
        ),
        "{root}"
    );
    assert!(root.contains(" as member 0, n2 at 127.0.0.1:"), "{root}");
    assert!(root.ends_with(" as member 2; members 1, 3 are missing"), "{root}");
    let come = error(come);
    assert!(come.contains("not all members joined in time: 2 of 4 members have joined"), "{come}");
    assert!(come.ends_with("members 1, 3 are missing"), "{come}");
}

#[test]
fn a_member_with_a_shorter_timeout_names_the_missing_members_too() {
    let listener = bind(3);
    let place = listener.address();
    let (_, reported) = listen(listener, settings());
    wait_for(&reported, "1 of 3");
    let error = error(join(JoinOptions { timeout: SHORT, ..options(place, "n1") }));
    assert!(error.starts_with(&format!("cannot join the group at {place}: not all")), "{error}");
    assert!(error.contains("2 of 3 members have joined: n0 (the root)"), "{error}");
    assert!(error.ends_with("one is missing"), "{error}");
    // The root goes on, and has room for another.
    wait_for(&reported, "1 of 3");
    let others = (0..2).map(|_| join(options(place, "n"))).collect::<Vec<_>>();
    for other in others {
        other.join().unwrap().unwrap();
    }
}

#[test]
fn a_root_that_is_not_there_is_named_in_time() {
    let nowhere = bind(2).address();
    let error = error(join(JoinOptions { timeout: SHORT, ..options(nowhere, "n1") }));
    assert!(error.starts_with(&format!("cannot join the group at {nowhere}: ")), "{error}");
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn a_root_that_dies_while_members_join_is_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = silent.local_addr().unwrap();
    let other = join(JoinOptions { timeout: Some(Duration::from_millis(500)), ..options(place, "n1") });
    // It greets, and is gone when it has heard who comes. The member tries again until its time is
    // over.
    let (mut stream, _) = silent.accept().unwrap();
    drop(silent);
    let challenge = "0".repeat(64);
    writeln!(stream, r#"{{"treecast":5,"challenge":"{challenge}"}}"#).unwrap();
    let mut claim = String::new();
    BufReader::new(&stream).read_line(&mut claim).unwrap();
    assert!(claim.contains(r#""name":"n1""#) && !claim.contains("secret"), "{claim}");
    drop(stream);
    let error = error(other);
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn a_token_mismatch_is_reported_on_both_sides() {
    let listener = bind(2);
    let place = listener.address();
    let (root, reported) = listen(listener, settings());
    let wrong = JoinOptions { token: "guess".into(), ..options(place, "n1") };
    assert!(error(join(wrong)).ends_with("rejected: token mismatch"));
    wait_for(&reported, "1 connection rejected: 127.0.0.1:");
    check(root, vec![join(options(place, "n1"))]);
}

#[test]
fn a_root_without_the_token_is_detected() {
    let false_root = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = false_root.local_addr().unwrap();
    let other = join(options(place, "n1"));
    let (mut stream, _) = false_root.accept().unwrap();
    let zeros = "0".repeat(64);
    writeln!(stream, r#"{{"treecast":5,"challenge":"{zeros}"}}"#).unwrap();
    writeln!(stream, r#"{{"accepted":{{"proof":"{zeros}"}}}}"#).unwrap();
    assert!(error(other).ends_with("the root does not know the token"));
}

/// The proof of one who knows the token.
fn prove(text: &str) -> String {
    let key = blake3::derive_key("Treecast: rendezvous, version 5", b"secret");
    blake3::keyed_hash(&key, text.as_bytes()).to_hex().to_string()
}

#[test]
fn a_member_does_not_become_the_root() {
    let false_root = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = join(options(false_root.local_addr().unwrap(), "n1"));
    let (mut stream, _) = false_root.accept().unwrap();
    let zeros = "0".repeat(64);
    writeln!(stream, r#"{{"treecast":5,"challenge":"{zeros}"}}"#).unwrap();
    let mut claim = String::new();
    BufReader::new(&stream).read_line(&mut claim).unwrap();
    let claim: serde_json::Value = serde_json::from_str(&claim).unwrap();
    let (challenge, port) = (claim["challenge"].as_str().unwrap(), &claim["port"]);
    let accepted = prove(&format!("root {zeros} {challenge}"));
    let started = prove(&format!("start {zeros} {challenge} 0 127.0.0.1:{port} "));
    writeln!(stream, r#"{{"accepted":{{"proof":"{accepted}"}}}}"#).unwrap();
    let members = format!(r#"["127.0.0.1:{port}"]"#);
    writeln!(stream, r#"{{"start":{{"proof":"{started}","member":0,"members":{members},"settings":""}}}}"#)
        .unwrap();
    assert!(error(other).ends_with("invalid list of members"));
}

/// A host between the root and a member that changes the group that starts.
#[test]
fn a_start_that_was_changed_on_the_way_is_detected() {
    let listener = bind(2);
    let place = listener.address();
    let (root, _reported) = listen(listener, settings());
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = join(options(between.local_addr().unwrap(), "n1"));
    let (member, _) = between.accept().unwrap();
    let server = TcpStream::connect(place).unwrap();
    std::thread::scope(|scope| {
        let (mut to_root, from_member) = (server.try_clone().unwrap(), member.try_clone().unwrap());
        scope.spawn(move || _ = std::io::copy(&mut { from_member }, &mut to_root));
        let mut to_member = member;
        for line in BufReader::new(server).lines().map_while(Result::ok) {
            let line = line.replace("slots=auto", "slots=256");
            if writeln!(to_member, "{line}").is_err() {
                break;
            }
        }
        let _ = to_member.shutdown(std::net::Shutdown::Both);
    });
    assert!(error(other).ends_with("the start of the group was changed on the way"));
    drop(root);
}

#[test]
fn members_on_several_hosts_need_a_token() {
    let nowhere = "192.0.2.1:7000".parse().unwrap();
    let without = JoinOptions { timeout: Some(Duration::ZERO), ..JoinOptions::new(nowhere, "") };
    let joined = open("127.0.0.1:0").join(&without);
    assert!(matches!(joined, Err(NodeError::NoToken)), "{joined:?}");
    let insecure = JoinOptions { insecure: true, ..without };
    assert!(matches!(open("127.0.0.1:0").join(&insecure), Err(NodeError::JoinFailed { .. })));
    let listener = Listener::bind("0.0.0.0:0".parse().unwrap(), 2).unwrap();
    let listened = open("127.0.0.1:0").listen(listener, &GroupSettings::new(Vec::new()));
    assert!(matches!(listened, Err(NodeError::NoToken)), "{listened:?}");
}

#[test]
fn a_peer_that_is_not_a_root_is_named() {
    for (said, expected) in [
        ("SSH-2.0-OpenSSH_9.2\r\n".to_string(), "it sent 'SSH-2.0-OpenSSH_9.2'"),
        (
            r#"{"treecast":1,"greetings":"none"}"#.to_string() + "\n",
            "the root uses version 1 of the join protocol, this node version 5",
        ),
        (r#"{"treecast":5,"challenge":"short"}"#.to_string() + "\n", "invalid greeting: no challenge"),
        (
            r#"{"rejected":{"reason":"all 2 members have joined"}}"#.to_string() + "\n",
            "all 2 members have joined",
        ),
        // A terminal shows what anybody at this address says.
        (r#"{"rejected":{"reason":"\u001b[31mred\n"}}"#.to_string() + "\n", "\u{fffd}[31mred\u{fffd}"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = join(options(listener.local_addr().unwrap(), "n1"));
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        let error = error(other);
        assert!(error.contains("rejected: ") && error.ends_with(expected), "{error}");
    }
}

#[test]
fn a_rejected_node_gets_the_reason() {
    let listener = bind(4);
    let place = listener.address();
    let (root, reported) = listen(listener, settings());
    let first = join(JoinOptions { member: Some(1), ..options(place, "n1") });
    wait_for(&reported, "2 of 4");
    let refused = |member, expected: &str| {
        let error = error(join(JoinOptions { member: Some(member), ..options(place, "late") }));
        assert!(error.contains(expected), "{error}");
    };
    refused(1, "member 1 has already joined: n1 at 127.0.0.1:");
    refused(0, "member 0 is the root");
    refused(4, "there is no member 4: the group has members 0 to 3");
    check(root, vec![first, join(options(place, "n2")), join(options(place, "n3"))]);
}

#[test]
fn surplus_members_are_rejected() {
    let listener = bind(3);
    let place = listener.address();
    // All connect before the root accepts.
    let others: Vec<Joining> = (0..6).map(|_| join(options(place, "n"))).collect();
    let (_node, group) = listen(listener, settings()).0.join().unwrap().unwrap();
    let (come, away): (Vec<_>, Vec<_>) =
        others.into_iter().map(|other| other.join().unwrap()).partition(Result::is_ok);
    assert_eq!((come.len(), away.len()), (2, 4));
    group.send(b"hello").unwrap();
    for (_, group) in come.iter().flatten() {
        assert_eq!(group.receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    }
}

/// Sends bytes to a root; returns whether the root ends the connection.
fn disturb(place: SocketAddr, said: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(place).unwrap();
    // A root that has heard enough closes its side.
    let _ = stream.write_all(said);
    stream
}

#[test]
fn foreign_and_silent_connections_are_counted_and_members_join() {
    let listener = bind(2);
    let place = listener.address();
    let (root, reported) = listen(listener, settings());
    let claim = |treecast: u32, proof: &str| {
        format!(
            r#"{{"treecast":{treecast},"challenge":"{proof}","proof":"{proof}","ip":null,"port":1,"is_shared":false,"member":null,"mtu_bytes":null,"name":"n"}}"#
        ) + "\n"
    };
    let hash = "0".repeat(64);
    let endless = vec![b'x'; 1 << 20];
    let cases: [(Vec<u8>, &str); 6] = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "not a Treecast node"),
        (b"\xff\xfe\0\n".to_vec(), "not a Treecast node"),
        (b"{\"treecast\":5}\n".to_vec(), "invalid claim"),
        (claim(5, "short").into_bytes(), "invalid claim"),
        (claim(7, &hash).into_bytes(), "it uses version 7 of the join protocol, the root version 5"),
        (claim(5, &hash).into_bytes(), "token mismatch"),
    ];
    let mut open: Vec<TcpStream> = Vec::new();
    for (said, expected) in &cases {
        open.push(disturb(place, said));
        wait_for(&reported, expected);
    }
    // Endless lines end where the root's patience does, and not with its memory.
    let streams: Vec<TcpStream> = (0..3).map(|_| disturb(place, &endless)).collect();
    wait_for(&reported, "9 connections rejected");
    drop(streams);
    // More than may be about to make their claims, and all of them silent.
    open.extend((0..100).map(|_| TcpStream::connect(place).unwrap()));
    wait_for(&reported, "no claim, and too many connections");
    check(root, vec![join(options(place, "n1"))]);
}

#[test]
fn a_member_whose_connection_is_dropped_after_its_claim_tries_again() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = busy.local_addr().unwrap();
    let member = join(options(place, "n1"));
    let mut stream = BufReader::new(busy.accept().unwrap().0);
    writeln!(stream.get_mut(), r#"{{"treecast":5,"challenge":"{}"}}"#, "0".repeat(64)).unwrap();
    stream.read_line(&mut String::new()).unwrap();
    drop((stream, busy));
    let mut listener = Listener::bind(place, 2).unwrap();
    (listener.name, listener.timeout) = ("n0".into(), TIMEOUT);
    let (root, _) = listen(listener, settings());
    check(root, vec![member]);
}

#[test]
fn a_node_whose_mtu_carries_no_packet_of_a_group_is_rejected() {
    let listener = bind(2);
    let place = listener.address();
    let (root, reported) = listen(listener, settings());
    let mut stream = BufReader::new(TcpStream::connect(place).unwrap());
    let mut greeting = String::new();
    stream.read_line(&mut greeting).unwrap();
    let greeting: serde_json::Value = serde_json::from_str(&greeting).unwrap();
    let (challenge, own) = (greeting["challenge"].as_str().unwrap(), "0".repeat(64));
    let key = blake3::derive_key("Treecast: rendezvous, version 5", b"secret");
    let text = format!("member {challenge} {own} all 1 own any 100 n");
    let proof = blake3::keyed_hash(&key, text.as_bytes()).to_hex();
    let claim = serde_json::json!({
        "treecast": 5, "challenge": own, "proof": proof.as_str(), "ip": null, "port": 1, "is_shared": false, "member": null, "mtu_bytes": 100, "name": "n",
    });
    writeln!(stream.get_mut(), "{claim}").unwrap();
    assert!(
        wait_for(&reported, "rejected").ends_with("the MTU of its network is 100 bytes, and groups need 604")
    );
    check(root, vec![join(options(place, "n1"))]);
}

#[test]
fn a_silent_connection_is_dropped_after_the_claim_timeout() {
    let listener = bind(2);
    let place = listener.address();
    let (root, reported) = listen(listener, settings());
    let mut silent = TcpStream::connect(place).unwrap();
    silent.set_read_timeout(TIMEOUT).unwrap();
    let mut greeting = String::new();
    silent.read_to_string(&mut greeting).unwrap();
    assert!(greeting.starts_with(r#"{"treecast":5,"challenge":""#), "{greeting}");
    assert!(wait_for(&reported, "rejected").ends_with("no claim within 3 s"));
    check(root, vec![join(options(place, "n1"))]);
}

#[test]
fn a_member_that_came_early_gets_the_reason_for_which_the_root_refuses_its_settings() {
    let listener = bind(2);
    let mut member = TcpStream::connect(listener.address()).unwrap();
    let invalid = GroupSettings { root: 2, ..settings() };
    let reason = open("127.0.0.1:0").listen(listener, &invalid).unwrap_err().to_string();
    let mut heard = String::new();
    member.read_to_string(&mut heard).unwrap();
    assert!(heard.contains(&reason), "{reason} is not in {heard}");
}

#[test]
fn a_group_carries_out_the_plan_that_is_given() {
    // A chain in which a member has a child with a smaller number.
    let placement = Placement::one_per_host(3);
    let unicast = |from, to| Worm {
        from: MemberId(from),
        index: 0,
        kind: WormKind::Unicast,
        to: vec![MemberId(to)],
        route: Vec::new(),
    };
    let worms = vec![unicast(0, 2), unicast(2, 1)];
    let chain =
        Plan::new("serial".parse().unwrap(), Label::Published, MemberId(0), placement, worms).unwrap();
    let listener = bind(3);
    let place = listener.address();
    let (root, _) = listen(listener, settings().with_plan(chain.clone()));
    let members = [1, 2].map(|member| join(JoinOptions { member: Some(member), ..options(place, "n") }));
    let (_root_node, root) = root.join().unwrap().unwrap();
    let members = members.map(|member| member.join().unwrap().unwrap());
    assert_eq!(root.plan(), Some(&chain));
    root.send(b"hello").unwrap();
    for (_, member) in &members {
        assert_eq!(member.receive(TIMEOUT).unwrap().as_deref(), Some(&b"hello"[..]));
    }
    assert_eq!([&root, &members[0].1, &members[1].1].map(|group| group.counters().unwrap().sent), [1, 0, 1]);
    assert!(root.close(TIMEOUT).unwrap().is_empty());
}

#[test]
fn invalid_arguments_are_refused() {
    let place: SocketAddr = "127.0.0.1:0".parse().unwrap();
    for members in [0, 4_097] {
        let error = Listener::bind(place, members).unwrap_err().to_string();
        assert_eq!(error, format!("a group has from 1 to 4096 members, and not {members}"));
    }
    let taken = bind(2);
    let error = Listener::bind(taken.address(), 2).unwrap_err().to_string();
    assert!(error.ends_with("choose another port, or 0 for a free one"), "{error}");
    let node = open("127.0.0.1:0");
    let error = |listener, settings: GroupSettings| node.listen(listener, &settings).unwrap_err().to_string();
    assert_eq!(
        error(bind(2), GroupSettings { root: 2, ..settings() }),
        "the root is member 2 of 2: members are numbered from 0"
    );
    assert!(
        error(bind(2), GroupSettings { slots: Some(5), ..settings() }).contains("slots (a power of two)")
    );
    let mut nameless = bind(2);
    nameless.name = "a\nb".into();
    assert!(error(nameless, settings()).contains("no control characters"));
    let v6 = JoinOptions::new("[::1]:1".parse().unwrap(), "");
    let error = node.join(&v6).unwrap_err().to_string();
    assert!(error.contains("has IPv4 only, and the root is at [::1]:1"), "{error}");
}

#[test]
fn cancelling_the_root_ends_both_sides() {
    let listener = bind(3);
    let place = listener.address();
    let other = join(options(place, "n1"));
    let node = open("127.0.0.1:0");
    let mut goes_on = |status: Option<&JoinStatus>| status.is_none_or(|status| status.joined.len() < 2);
    let root = node.listen_while(listener, &settings(), &mut goes_on).unwrap_err();
    assert!(matches!(root, NodeError::Cancelled));
    assert!(error(other).ends_with("the root cancelled the group"));
}

#[test]
fn a_cancelled_join_makes_room_for_another_member() {
    let listener = bind(2);
    let place = listener.address();
    let never = JoinOptions { timeout: None, ..options(place, "n1") };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let places = [silent.local_addr().unwrap(), bind(2).address(), place];
    let node = open("127.0.0.1:0");
    // It waits for a greeting, for a root that is not there, and for others.
    for root in places {
        let mut asked = 0;
        let mut goes_on = |_: Option<&str>| {
            asked += 1;
            asked < 3
        };
        let error = node.join_while(&JoinOptions { root, ..never.clone() }, &mut goes_on).unwrap_err();
        assert!(matches!(error, NodeError::Cancelled), "{error}");
    }
    check(listen(listener, settings()).0, vec![join(options(place, "n1"))]);
}

#[test]
fn the_scheme_that_the_root_uses_is_known() {
    let listener = bind(3);
    let others: Vec<Joining> = (0..2).map(|_| join(options(listener.address(), "n"))).collect();
    let settings = GroupSettings { scheme: Some("postal".parse().unwrap()), ..settings() };
    let (_node, group) = listen(listener, settings).0.join().unwrap().unwrap();
    let measured = group.scheme().unwrap().to_string();
    assert!(measured.starts_with("postal:lambda="), "{measured}");
    for other in others {
        let (_node, other) = other.join().unwrap().unwrap();
        assert_eq!(other.scheme(), None);
    }
    let alone = open("127.0.0.1:0");
    let settings = GroupSettings { scheme: None, ..GroupSettings::new(vec![alone.address()]) };
    let chosen = alone.group(&settings).unwrap().scheme().unwrap().to_string();
    assert!(chosen.starts_with("postal:lambda="), "{chosen}");
}
