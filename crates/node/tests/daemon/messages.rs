//! Clients whose messages are invalid, ask for too much, or are too many: other clients are served
//! as before.

use std::time::{Duration, Instant};

use treecast_node::{EngineChoice, GroupSettings, Node, NodeSettings, Policy, RunningEngine};

use crate::raw::{ask, hear, hello, raw, say};
use crate::{Served, client, exchange, other, skip};

#[test]
fn an_invalid_message_is_answered_and_ends_the_connection() {
    let served = Served::new(EngineChoice::User, Policy::default());
    let hello = hello();
    let hello = hello.as_bytes();
    let spaces = vec![b' '; 190_000];
    for (first, second) in [
        (&b"no JSON"[..], None),
        (b"{}", None),
        (br#"{"\u001b[31m":{}}"#, None),
        (br#"{"hello":{"version":2}}"#, None),
        (br#""poll_update""#, None),
        (hello, Some(hello)),
        (hello, Some(br#"{"create_group":{"settings":{"members":"all","settings":[]},"children":[],"session":[]}}"#)),
        (hello, Some(br#"{"forward":{"group":-1,"upto":0,"child":null}}"#)),
        (hello, Some(&spaces)),
    ] {
        let socket = raw(&served.socket());
        say(&socket, first);
        let mut answer = hear(&socket);
        if let Some(second) = second {
            assert!(answer.contains("welcome"), "{answer}");
            say(&socket, second);
            answer = hear(&socket);
        }
        assert!(answer.contains("refused"), "{answer}");
        // The daemon logs the reason, which quotes the message.
        assert!(!answer.contains("\\u00"), "{answer}");
        assert_eq!(hear(&socket), "");
    }
    // Messages about groups of other clients, or about unknown groups, change nothing.
    let (here, there) = (client(&served.socket()), other());
    let settings = GroupSettings::new(vec![here.address(), there.address()]);
    let (root, member) = (here.group(&settings).unwrap(), there.group(&settings).unwrap());
    let socket = raw(&served.socket());
    say(&socket, hello);
    assert!(hear(&socket).contains("welcome"));
    for ask in ["close", "leave", "abort", "end"] {
        say(&socket, format!("{{\"{ask}\":{{\"group\":1}}}}").as_bytes());
    }
    say(&socket, br#"{"forward":{"group":1,"upto":7,"child":3}}"#);
    say(&socket, br#""wake""#);
    say(&socket, br#"{"query":{"counters":{"group":1}}}"#);
    assert_eq!(hear(&socket), r#"{"answer":{"numbers":null}}"#);
    say(&socket, br#"{"query":{"children":{"group":1}}}"#);
    assert_eq!(hear(&socket), r#"{"answer":{"members":[]}}"#);
    say(&socket, br#""poll_update""#);
    assert_eq!(hear(&socket), r#"{"update":{"update":null,"is_last":true}}"#);
    exchange(&root, &member, 10);
}

/// Connects as another user, which the kernel takes from the thread; then asks.
fn as_other_user(user: u32, act: impl FnOnce() + Send) {
    let act = move || {
        let user = rustix::thread::Uid::from_raw(user);
        let root = rustix::thread::Uid::ROOT;
        rustix::thread::set_thread_res_uid(root, user, root).unwrap();
        act();
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap());
}

#[test]
fn a_client_without_rights_gets_no_congestion_control_that_the_system_does_not_allow() {
    let read = |name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/tcp_{name}_congestion_control"));
    let (available, allowed) = (read("available").unwrap(), read("allowed").unwrap());
    let is_allowed = |name: &&str| allowed.split_whitespace().any(|other| other == *name);
    let Some(forbidden) = available.split_whitespace().find(|name| !is_allowed(name)) else {
        return skip(&"the system allows each congestion control that it has");
    };
    if !rustix::process::getuid().is_root() {
        return skip(&"clients of two users are for root");
    }
    let policy = Policy::parse("[[rule]]\nname = \"all\"\nall_users = true", "policy").unwrap();
    let served = Served::new(EngineChoice::User, policy);
    let join = |group: u32, name: &str| {
        let socket = raw(&served.socket());
        ask(&socket, &hello());
        let settings = format!(
            r#"{{"members":["127.0.0.1:9"],"settings":[["group","{group}"],["tcp_congestion","{name}"]]}}"#
        );
        ask(&socket, &format!(r#"{{"join_group":{{"settings":{settings}}}}}"#)).0
    };
    as_other_user(3_000_000, || {
        let answer = join(1, forbidden);
        assert!(answer.contains(&format!("tcp_congestion={forbidden} is not allowed")), "{answer}");
        let answer = join(2, "reno");
        assert!(answer.contains("entered"), "{answer}");
    });
    let answer = join(3, forbidden);
    assert!(answer.contains("entered"), "{answer}");
    served.end();
}

#[test]
fn a_user_that_keeps_the_daemon_busy_does_not_delay_others() {
    if !rustix::process::getuid().is_root() {
        return skip(&"clients of two users are for root");
    }
    let text = "[[rule]]\nname = \"all\"\nall_users = true\nmembers_max = 10";
    let served = Served::new(EngineChoice::User, Policy::parse(text, "policy").unwrap());
    // The longest message: it takes some milliseconds to parse and to check.
    let members: Vec<String> =
        (0..4_000_u16).map(|other| format!("\"127.1.{}.{}:9\"", other >> 8, other & 255)).collect();
    let session = ["1"; 16].join(",");
    let create = format!(
        r#"{{"create_group":{{"settings":{{"members":[{}],"settings":[]}},"children":[],"session":[{session}]}}}}"#,
        members.join(",")
    );
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let median = |mut times: Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let ordering = std::sync::atomic::Ordering::SeqCst;
    std::thread::scope(|scope| {
        let floods: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let socket = raw(&served.socket());
                    ask(&socket, &hello());
                    let mut times = Vec::new();
                    while !is_over.load(ordering) {
                        let start = Instant::now();
                        let (answer, _) = ask(&socket, &create);
                        assert!(answer.contains("allows groups of 10 members"), "{answer}");
                        times.push(start.elapsed());
                    }
                    times
                })
            })
            .collect();
        let mut times = Vec::new();
        as_other_user(65_534, || {
            let socket = raw(&served.socket());
            ask(&socket, &hello());
            for _ in 0..200 {
                let start = Instant::now();
                ask(&socket, r#""poll_update""#);
                times.push(start.elapsed());
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        is_over.store(true, ordering);
        let flood = median(floods.into_iter().flat_map(|flood| flood.join().unwrap()).collect());
        let other = median(times);
        assert!(other * 4 < flood, "{other:?} for the other user, and {flood:?} in the flood");
    });
}

#[test]
fn ten_thousand_connections_do_not_block_others_for_long() {
    let served = Served::new(EngineChoice::User, Policy::default());
    let mut refused = 0;
    let mut open = Vec::new();
    for _ in 0..10_000 {
        let socket = raw(&served.socket());
        if open.len() < 300 {
            open.push(socket);
        } else {
            refused += usize::from(hear(&socket).contains("may have no more"));
        }
    }
    assert_eq!(refused, 9_700);
    drop(open);
    let there = other();
    let here = (0..100).find_map(|_| {
        let settings = NodeSettings { socket: Some(served.socket()), ..NodeSettings::default() };
        let node = Node::open(&settings).unwrap();
        let is_client = matches!(node.engine(), RunningEngine::Daemon { .. });
        if !is_client {
            std::thread::sleep(Duration::from_millis(20));
        }
        is_client.then_some(node)
    });
    let here = here.unwrap();
    let settings = GroupSettings::new(vec![here.address(), there.address()]);
    let (root, member) = (here.group(&settings).unwrap(), there.group(&settings).unwrap());
    exchange(&root, &member, 10);
}
