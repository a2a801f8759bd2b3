//! Members that find one another at the root, and whatever else comes to its port.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use treecast_node::{Attendance, Gathering, Group, GroupSettings, Node, NodeError, NodeSettings};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
/// For gatherings that cannot succeed.
const SHORT: Option<Duration> = Some(Duration::from_millis(300));

fn open(bind: &str) -> Node {
    Node::open(&NodeSettings { bind: bind.parse().unwrap(), ..NodeSettings::default() }).unwrap()
}

fn settings() -> GroupSettings {
    GroupSettings { token: "secret".into(), ..GroupSettings::new(Vec::new()) }
}

fn listen(members: u32) -> Gathering {
    let mut gathering = Gathering::listen("127.0.0.1:0".parse().unwrap(), members).unwrap();
    (gathering.name, gathering.timeout) = ("n0".into(), PATIENCE);
    gathering
}

fn attendance(root: SocketAddr, name: &str) -> Attendance {
    Attendance { name: name.into(), timeout: PATIENCE, ..Attendance::new(root, "secret") }
}

type Attended = JoinHandle<Result<(Node, Group), NodeError>>;

fn attend_at(bind: &'static str, attendance: Attendance) -> Attended {
    thread::spawn(move || {
        let node = open(bind);
        node.attend(&attendance).map(|group| (node, group))
    })
}

fn attend(attendance: Attendance) -> Attended {
    attend_at("127.0.0.1:0", attendance)
}

/// A root that gathers in a thread of its own, and what it says of who has come.
fn gather(gathering: Gathering, settings: GroupSettings) -> (Attended, mpsc::Receiver<String>) {
    let (teller, told) = mpsc::channel();
    let gather = move || {
        let node = open("127.0.0.1:0");
        let mut tell = |roll: Option<&treecast_node::Roll>| {
            if let Some(roll) = roll {
                let _ = teller.send(roll.to_string());
            }
            true
        };
        node.gather_while(gathering, &settings, &mut tell).map(|group| (node, group))
    };
    (thread::spawn(gather), told)
}

/// Waits until the root says something with this part.
fn wait_for(told: &mpsc::Receiver<String>, part: &str) -> String {
    let until = Instant::now() + Duration::from_secs(20);
    while let Ok(text) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
        if text.contains(part) {
            return text;
        }
    }
    panic!("nothing was said of '{part}'");
}

fn error(attended: Attended) -> String {
    attended.join().unwrap().map(|_| ()).unwrap_err().to_string()
}

/// All of them are one group: a message reaches everybody.
fn check(root: Attended, others: Vec<Attended>) {
    let (root_node, group) = root.join().unwrap().unwrap();
    let others: Vec<(Node, Group)> = others.into_iter().map(|other| other.join().unwrap().unwrap()).collect();
    let mut numbers: Vec<u32> = others.iter().map(|(_, group)| group.member().unwrap()).collect();
    numbers.extend(group.member());
    numbers.sort_unstable();
    assert_eq!(numbers, (0..=others.len() as u32).collect::<Vec<_>>());
    group.send(b"hello").unwrap();
    for (node, group) in &others {
        assert_eq!(group.receive(PATIENCE).unwrap().as_deref(), Some(&b"hello"[..]));
        let own = group.settings().members[group.member().unwrap() as usize];
        assert_eq!(own.port(), node.address().port());
    }
    assert_eq!(group.close(PATIENCE).unwrap(), []);
    drop((root_node, others));
}

#[test]
fn members_that_gather_are_a_group() {
    let gathering = listen(4);
    let others = (1..4).map(|n| attend(attendance(gathering.address(), &format!("n{n}")))).collect();
    check(gather(gathering, GroupSettings { root: 2, slots: 64, ..settings() }).0, others);
}

#[test]
fn members_have_the_numbers_they_want_and_the_settings_of_the_root() {
    let gathering = listen(4);
    let root = gathering.address();
    let wanted = |member| attend(Attendance { member, ..attendance(root, "n") });
    let others = [wanted(None), wanted(Some(3)), wanted(Some(0))];
    let settings =
        GroupSettings { root: 1, slots: 16, scheme: Some("separate".parse().unwrap()), ..settings() };
    let root = gather(gathering, settings).0;
    let (node, group) = root.join().unwrap().unwrap();
    let others = others.map(|other| other.join().unwrap().unwrap());
    assert_eq!(others.each_ref().map(|(_, group)| group.member().unwrap()), [2, 3, 0]);
    for (_, other) in &others {
        let settings = other.settings();
        assert_eq!((settings.root, settings.slots, settings.token.as_str()), (1, 16, "secret"));
        assert_eq!(settings.members, group.settings().members);
        assert_eq!(settings.members[1], node.address());
    }
}

#[test]
fn nodes_may_listen_at_all_addresses() {
    for (bind, listen) in [("0.0.0.0:0", "0.0.0.0:0"), ("[::]:0", "[::]:0"), ("[::]:0", "127.0.0.1:0")] {
        let gathering = Gathering::listen(listen.parse().unwrap(), 3).unwrap();
        let port = gathering.address().port();
        let ip = if listen.starts_with("[::]") { "::1".parse().unwrap() } else { [127, 0, 0, 1].into() };
        let root = SocketAddr::new(ip, port);
        let others = (0..2).map(|_| attend_at(bind, attendance(root, "n"))).collect();
        let gathered = thread::spawn(move || {
            let node = open(bind);
            node.gather(gathering, &settings()).map(|group| (node, group))
        });
        check(gathered, others);
    }
}

#[test]
fn a_root_alone_is_a_group() {
    let (node, group) = gather(listen(1), settings()).0.join().unwrap().unwrap();
    assert_eq!(group.settings().members, [node.address()]);
    assert_eq!(group.close(PATIENCE).unwrap(), []);
}

#[test]
fn members_wait_for_a_root_that_comes_later() {
    let place = listen(2).address();
    let other = attend(attendance(place, "n1"));
    let gathering = Gathering::listen(place, 2).unwrap();
    check(gather(gathering, settings()).0, vec![other]);
}

#[test]
fn who_has_come_and_who_has_not_is_said_on_all_sides() {
    let mut gathering = listen(4);
    gathering.timeout = SHORT;
    let root = gathering.address();
    let come = attend(Attendance { member: Some(2), ..attendance(root, "n2") });
    let root = error(gather(gathering, settings()).0);
    assert!(
        root.starts_with(
            "not all members came in time: 2 of 4 members have come: n0 (the root) at 127.0.0.1:"
        ),
        "{root}"
    );
    assert!(root.contains(" as member 0, n2 at 127.0.0.1:"), "{root}");
    assert!(root.ends_with(" as member 2; members 1, 3 are missing"), "{root}");
    let come = error(come);
    assert!(come.contains("not all members came in time: 2 of 4 members have come"), "{come}");
    assert!(come.ends_with("members 1, 3 are missing"), "{come}");
}

#[test]
fn who_waits_a_shorter_time_than_the_root_names_who_is_missing_too() {
    let gathering = listen(3);
    let place = gathering.address();
    let (_, told) = gather(gathering, settings());
    wait_for(&told, "1 of 3");
    let error = error(attend(Attendance { timeout: SHORT, ..attendance(place, "n1") }));
    assert!(error.starts_with(&format!("no group has come of the gathering at {place}: not all")), "{error}");
    assert!(error.contains("2 of 3 members have come: n0 (the root)"), "{error}");
    assert!(error.ends_with("one is missing"), "{error}");
    // The root goes on, and has room for another.
    wait_for(&told, "1 of 3");
    let others = (0..2).map(|_| attend(attendance(place, "n"))).collect::<Vec<_>>();
    for other in others {
        other.join().unwrap().unwrap();
    }
}

#[test]
fn a_root_that_is_not_there_is_named_in_time() {
    let nowhere = listen(2).address();
    let error = error(attend(Attendance { timeout: SHORT, ..attendance(nowhere, "n1") }));
    assert!(error.starts_with(&format!("no group has come of the gathering at {nowhere}: ")), "{error}");
    assert!(error.contains("refused"), "{error}");
}

#[test]
fn a_root_that_dies_while_members_gather_is_named() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = silent.local_addr().unwrap();
    let other = attend(Attendance { timeout: Some(Duration::from_millis(500)), ..attendance(place, "n1") });
    // It greets, and is gone when it has heard who comes.
    let (mut stream, _) = silent.accept().unwrap();
    drop(silent);
    let challenge = "0".repeat(64);
    writeln!(stream, r#"{{"treecast":1,"challenge":"{challenge}"}}"#).unwrap();
    let mut claim = String::new();
    BufReader::new(&stream).read_line(&mut claim).unwrap();
    assert!(claim.contains(r#""name":"n1""#) && !claim.contains("secret"), "{claim}");
    drop(stream);
    let error = error(other);
    assert!(error.ends_with("it has closed the connection"), "{error}");
}

#[test]
fn a_wrong_token_is_told_on_both_sides() {
    let gathering = listen(2);
    let place = gathering.address();
    let (root, told) = gather(gathering, settings());
    let wrong = Attendance { token: "guess".into(), ..attendance(place, "n1") };
    assert!(error(attend(wrong)).ends_with("turns this node away: its token is another than the root's"));
    wait_for(&told, "turned away was 127.0.0.1:");
    check(root, vec![attend(attendance(place, "n1"))]);
}

#[test]
fn a_root_that_does_not_know_the_token_is_found_out() {
    let false_root = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = false_root.local_addr().unwrap();
    let other = attend(attendance(place, "n1"));
    let (mut stream, _) = false_root.accept().unwrap();
    let zeros = "0".repeat(64);
    writeln!(stream, r#"{{"treecast":1,"challenge":"{zeros}"}}"#).unwrap();
    writeln!(stream, r#"{{"welcome":{{"proof":"{zeros}"}}}}"#).unwrap();
    assert!(error(other).ends_with("the root does not know the token"));
}

#[test]
fn what_listens_and_is_no_root_is_named() {
    for (said, expected) in [
        ("SSH-2.0-OpenSSH_9.2\r\n".to_string(), "it said 'SSH-2.0-OpenSSH_9.2'"),
        (
            r#"{"treecast":2,"greetings":"all is new"}"#.to_string() + "\n",
            "the root gathers by version 2, and this node by version 1",
        ),
        (r#"{"treecast":1,"challenge":"short"}"#.to_string() + "\n", "its greeting has no challenge"),
        (
            r#"{"turned_away":{"why":"all 2 members have come"}}"#.to_string() + "\n",
            "all 2 members have come",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = attend(attendance(listener.local_addr().unwrap(), "n1"));
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        let error = error(other);
        assert!(error.contains("turns this node away: ") && error.ends_with(expected), "{error}");
    }
}

#[test]
fn who_cannot_be_a_member_is_told_why() {
    let gathering = listen(4);
    let place = gathering.address();
    let (root, told) = gather(gathering, settings());
    let first = attend(Attendance { member: Some(1), ..attendance(place, "n1") });
    wait_for(&told, "2 of 4");
    let refused = |member, expected: &str| {
        let error = error(attend(Attendance { member: Some(member), ..attendance(place, "late") }));
        assert!(error.contains(expected), "{error}");
    };
    refused(1, "member 1 has come already: n1 at 127.0.0.1:");
    refused(0, "member 0 is the root");
    refused(4, "there is no member 4: the group has members 0 to 3");
    check(root, vec![first, attend(attendance(place, "n2")), attend(attendance(place, "n3"))]);
}

#[test]
fn one_too_many_is_not_taken_in() {
    let gathering = listen(3);
    let place = gathering.address();
    // All connect before the root looks.
    let others: Vec<Attended> = (0..6)
        .map(|_| attend(Attendance { timeout: Some(Duration::from_secs(2)), ..attendance(place, "n") }))
        .collect();
    let (_node, group) = gather(gathering, settings()).0.join().unwrap().unwrap();
    let (come, away): (Vec<_>, Vec<_>) =
        others.into_iter().map(|other| other.join().unwrap()).partition(Result::is_ok);
    assert_eq!((come.len(), away.len()), (2, 4));
    group.send(b"hello").unwrap();
    for (_, group) in come.iter().flatten() {
        assert_eq!(group.receive(PATIENCE).unwrap().as_deref(), Some(&b"hello"[..]));
    }
}

/// Says something to a root, and whether the root ends the connection.
fn disturb(place: SocketAddr, said: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(place).unwrap();
    // A root that has heard enough closes its side.
    let _ = stream.write_all(said);
    stream
}

#[test]
fn foreign_and_silent_connections_are_counted_and_members_come() {
    let gathering = listen(2);
    let place = gathering.address();
    let (root, told) = gather(gathering, settings());
    let claim = |treecast: u32, proof: &str| {
        format!(
            r#"{{"treecast":{treecast},"challenge":"{proof}","proof":"{proof}","ip":null,"port":1,"member":null,"name":"n"}}"#
        ) + "\n"
    };
    let hash = "0".repeat(64);
    let endless = vec![b'x'; 1 << 20];
    let cases: [(Vec<u8>, &str); 6] = [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "it is no node of Treecast"),
        (b"\xff\xfe\0\n".to_vec(), "it is no node of Treecast"),
        (b"{\"treecast\":1}\n".to_vec(), "what it said is no claim"),
        (claim(1, "short").into_bytes(), "what it said is no claim"),
        (claim(7, &hash).into_bytes(), "it gathers by version 7, and the root by version 1"),
        (claim(1, &hash).into_bytes(), "its token is another than the root's"),
    ];
    let mut open: Vec<TcpStream> = Vec::new();
    for (said, expected) in &cases {
        open.push(disturb(place, said));
        wait_for(&told, expected);
    }
    // Endless lines end where the root's patience does, and not with its memory.
    let streams: Vec<TcpStream> = (0..3).map(|_| disturb(place, &endless)).collect();
    wait_for(&told, "9 were turned away");
    drop(streams);
    // More than may be about to make their claims, and all of them silent.
    open.extend((0..100).map(|_| TcpStream::connect(place).unwrap()));
    wait_for(&told, "too many others came while it said nothing");
    check(root, vec![attend(attendance(place, "n1"))]);
}

#[test]
fn who_says_nothing_is_turned_away_after_a_while() {
    let gathering = listen(2);
    let place = gathering.address();
    let (root, told) = gather(gathering, settings());
    let mut silent = TcpStream::connect(place).unwrap();
    silent.set_read_timeout(PATIENCE).unwrap();
    let mut greeting = String::new();
    silent.read_to_string(&mut greeting).unwrap();
    assert!(greeting.starts_with(r#"{"treecast":1,"challenge":""#), "{greeting}");
    assert!(wait_for(&told, "turned away").ends_with("it said nothing for 3 s"));
    check(root, vec![attend(attendance(place, "n1"))]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place: SocketAddr = "127.0.0.1:0".parse().unwrap();
    for members in [0, 4_097] {
        let error = Gathering::listen(place, members).unwrap_err().to_string();
        assert_eq!(error, format!("a group has from 1 to 4096 members, and not {members}"));
    }
    let taken = listen(2);
    let error = Gathering::listen(taken.address(), 2).unwrap_err().to_string();
    assert!(error.ends_with("choose another port, or 0 for a free one"), "{error}");
    let node = open("127.0.0.1:0");
    let error =
        |gathering, settings: GroupSettings| node.gather(gathering, &settings).unwrap_err().to_string();
    assert_eq!(
        error(listen(2), GroupSettings { root: 2, ..settings() }),
        "the root is member 2 of 2: members are numbered from 0"
    );
    assert!(error(listen(2), GroupSettings { slots: 5, ..settings() }).contains("slots (a power of two)"));
    let mut nameless = listen(2);
    nameless.name = "a\nb".into();
    assert!(error(nameless, settings()).contains("no control characters"));
    let v6 = Attendance::new("[::1]:1".parse().unwrap(), "");
    let error = node.attend(&v6).unwrap_err().to_string();
    assert!(error.contains("has IPv4 alone, and the root is at [::1]:1"), "{error}");
}

#[test]
fn a_wait_that_is_broken_off_ends_on_both_sides() {
    let gathering = listen(3);
    let place = gathering.address();
    let other = attend(attendance(place, "n1"));
    let node = open("127.0.0.1:0");
    let mut goes_on = |news: Option<&treecast_node::Roll>| news.is_none_or(|roll| roll.come.len() < 2);
    let root = node.gather_while(gathering, &settings(), &mut goes_on).unwrap_err();
    assert!(matches!(root, NodeError::BrokenOff));
    assert!(error(other).ends_with("the root has broken the gathering off"));
}

#[test]
fn whoever_attends_no_longer_makes_room_for_another() {
    let gathering = listen(2);
    let place = gathering.address();
    let never = Attendance { timeout: None, ..attendance(place, "n1") };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let places = [silent.local_addr().unwrap(), listen(2).address(), place];
    let node = open("127.0.0.1:0");
    // It waits for a greeting, for a root that is not there, and for others.
    for root in places {
        let mut asked = 0;
        let mut goes_on = |_: Option<&str>| {
            asked += 1;
            asked < 3
        };
        let error = node.attend_while(&Attendance { root, ..never.clone() }, &mut goes_on).unwrap_err();
        assert!(matches!(error, NodeError::BrokenOff), "{error}");
    }
    check(gather(gathering, settings()).0, vec![attend(attendance(place, "n1"))]);
}

#[test]
fn the_scheme_that_the_root_uses_is_known() {
    let gathering = listen(3);
    let others: Vec<Attended> = (0..2).map(|_| attend(attendance(gathering.address(), "n"))).collect();
    let settings = GroupSettings { scheme: Some("postal".parse().unwrap()), ..settings() };
    let (_node, group) = gather(gathering, settings).0.join().unwrap().unwrap();
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
