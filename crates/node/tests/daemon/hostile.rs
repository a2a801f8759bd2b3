//! Clients that write invalid values into shared memory; the groups of other clients are not
//! affected.

#![expect(unsafe_code, reason = "they write shared memory at any address")]

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{SendFlags, SocketAddrUnix};
use treecast_node::{EngineChoice, GroupId, GroupSettings, Node, NodeError, Policy};

use crate::raw::{ask, hear, hello, raw, say};
use crate::{Served, TIMEOUT, client, engines, exchange, other, with_unread_messages};

/// A row of numbers from a seed (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Often small, often near some other number, often anything.
    fn word(&mut self, near: u32) -> u32 {
        match self.next() % 4 {
            0 => (self.next() % 40) as u32,
            1 => near.wrapping_add((self.next() % 40) as u32).wrapping_sub(8),
            _ => self.next() as u32,
        }
    }
}

/// Mapped shared memory.
struct Mapped {
    first: *mut u32,
    bytes: usize,
}

impl Mapped {
    fn new(descriptor: &OwnedFd, bytes: usize, protection: ProtFlags) -> rustix::io::Result<Self> {
        // SAFETY: a new mapping touches nothing that is there.
        let first = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, descriptor, 0) }?;
        Ok(Self { first: first.cast(), bytes })
    }

    fn write(&self, place: usize, word: u32) {
        assert!(place < self.bytes / 4);
        // SAFETY: the word is mapped, and there is no reference into the memory.
        unsafe { self.first.add(place).write_volatile(word) };
    }

    fn read(&self, place: usize) -> u32 {
        assert!(place < self.bytes / 4);
        // SAFETY: as above.
        unsafe { self.first.add(place).read_volatile() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the memory is not used any more.
        let _ = unsafe { munmap(self.first.cast(), self.bytes) };
    }
}

const WRITABLE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The indices of the page's words.
const WRITTEN: usize = 0;
const READ: usize = 16;
const TAKEN: usize = 48;
const SLOTS: usize = 16;
const SLOT_BYTES: usize = 64 + 1_408;

fn settings_message(group: u32, members: &[SocketAddr]) -> String {
    let members: Vec<String> = members.iter().map(|member| format!("\"{member}\"")).collect();
    format!(r#"{{"members":[{}],"settings":[["group","{group}"],["slots","{SLOTS}"]]}}"#, members.join(","))
}

/// A datagram like a root's, valid or with one changed byte.
fn packet(numbers: &mut Numbers, group: u32, sequence: u32, message: u32) -> Vec<u8> {
    let mut packet = vec![0_u8; 64 + 100];
    for byte in &mut packet[64..] {
        *byte = numbers.next() as u8;
    }
    packet[0] = 2;
    packet[1] = 1;
    packet[4..8].copy_from_slice(&group.to_be_bytes());
    packet[24..28].copy_from_slice(&sequence.to_be_bytes());
    packet[28..32].copy_from_slice(&message.to_be_bytes());
    packet[40..44].copy_from_slice(&100_u32.to_be_bytes());
    packet[48..56].copy_from_slice(&100_u64.to_be_bytes());
    if numbers.next().is_multiple_of(2) {
        let place = (numbers.next() % 64) as usize;
        packet[place] = numbers.next() as u8;
    }
    packet
}

/// Creates groups, one after the other, and fills their memory with invalid values.
fn create_invalid_groups(
    path: &Path,
    node: SocketAddr,
    member: &Node,
    (seed, victim): (u64, u32),
    is_over: &AtomicBool,
) {
    let numbers = &mut Numbers(seed);
    let socket = raw(path);
    assert!(ask(&socket, &hello()).0.contains("welcome"));
    for group in (seed as u32 * 1_000).. {
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        let (answer, descriptors) = ask(
            &socket,
            &format!(
                r#"{{"create_group":{{"settings":{},"children":[[1],[]],"session":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}}}}"#,
                settings_message(group, &[node, member.address()])
            ),
        );
        assert!(answer.contains("entered"), "{answer}");
        let slots = Mapped::new(&descriptors[0], SLOTS * SLOT_BYTES, WRITABLE).unwrap();
        let page = Mapped::new(&descriptors[1], 4_096, WRITABLE).unwrap();
        let source = descriptors.into_iter().nth(2).map(UdpSocket::from);
        let members = vec![node, member.address()];
        let settings =
            GroupSettings { group: GroupId(group), slots: Some(SLOTS as u32), ..GroupSettings::new(members) };
        let follower = member.group(&settings).unwrap();
        follower.wait_until_ready(TIMEOUT).unwrap();
        let until = Instant::now() + Duration::from_millis(20 + numbers.next() % 60);
        while Instant::now() < until && !is_over.load(Ordering::SeqCst) {
            for _ in 0..numbers.next() % 50 {
                let near = page.read(READ);
                let words = slots.bytes / 4;
                let place = match numbers.next() % 3 {
                    0 => {
                        (numbers.next() % SLOTS as u64) as usize * (SLOT_BYTES / 4)
                            + (numbers.next() % 16) as usize
                    }
                    _ => (numbers.next() % words as u64) as usize,
                };
                slots.write(place, numbers.word(near));
            }
            match numbers.next() % 4 {
                0 => page.write(WRITTEN, page.read(WRITTEN).wrapping_add(1)),
                1 => {
                    let place = [WRITTEN, READ, 32, TAKEN, TAKEN + 1][(numbers.next() % 5) as usize];
                    page.write(place, numbers.word(page.read(READ)));
                }
                _ => {}
            }
            if let Some(source) = &source {
                let taken = page.read(TAKEN);
                let to = SocketAddr::new([239, 255, 84, 67].into(), node.port());
                let _ = source.send_to(&packet(numbers, group, taken, taken), to);
                // Another client's group.
                let _ = source.send_to(&packet(numbers, victim, taken, taken), to);
            }
            say(&socket, br#""wake""#);
            std::thread::yield_now();
        }
        say(&socket, format!(r#"{{"abort":{{"group":{group}}}}}"#).as_bytes());
        let _ = ask(&socket, r#""poll_update""#);
    }
}

/// Joins groups, and writes invalid read numbers.
fn join_with_invalid_numbers(path: &Path, root: &Node, seed: u64, is_over: &AtomicBool) {
    let numbers = &mut Numbers(seed);
    let socket = raw(path);
    let (answer, _bell) = ask(&socket, &hello());
    let address: serde_json::Value = serde_json::from_str(&answer).unwrap();
    let address: SocketAddr = address["welcome"]["address"].as_str().unwrap().parse().unwrap();
    for group in (seed as u32 * 1_000).. {
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        let settings = GroupSettings {
            group: GroupId(group),
            slots: Some(SLOTS as u32),
            ..GroupSettings::new(vec![root.address(), address])
        };
        let leader = root.group(&settings).unwrap();
        let (answer, _) = ask(
            &socket,
            &format!(r#"{{"join_group":{{"settings":{}}}}}"#, settings_message(group, &[root.address()])),
        );
        assert!(answer.contains("entered"), "{answer}");
        let until = Instant::now() + Duration::from_secs(20);
        let descriptors = loop {
            let (answer, descriptors) = ask(&socket, r#""poll_update""#);
            if !descriptors.is_empty() {
                break descriptors;
            }
            assert!(Instant::now() < until, "{answer}");
            std::thread::sleep(Duration::from_millis(1));
        };
        let page = Mapped::new(&descriptors[1], 4_096, WRITABLE).unwrap();
        let until = Instant::now() + Duration::from_millis(20 + numbers.next() % 60);
        while Instant::now() < until {
            let _ = leader.send_part(b"some packets", 12, Some(Duration::from_millis(1)));
            let place = [WRITTEN, READ, 32, TAKEN, TAKEN + 1][(numbers.next() % 5) as usize];
            page.write(place, numbers.word(page.read(WRITTEN)));
            say(&socket, br#""wake""#);
        }
        drop(leader);
        say(&socket, format!(r#"{{"leave":{{"group":{group}}}}}"#).as_bytes());
        let _ = ask(&socket, r#""poll_update""#);
    }
}

#[test]
fn invalid_values_in_shared_memory_end_only_their_own_group() {
    const VICTIM: u32 = 7;
    for engine in engines() {
        let served = Served::new(engine, Policy::default());
        let (here, there, elsewhere) = (client(&served.socket()), other(), other());
        let settings = |root| GroupSettings {
            group: GroupId(VICTIM + root as u32),
            root,
            ..GroupSettings::new(vec![here.address(), there.address()])
        };
        let [sends, receives] =
            [0, 1].map(|root| (here.group(&settings(root)).unwrap(), there.group(&settings(root)).unwrap()));
        let (node, path, is_over) = (here.address(), served.socket(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for seed in [1, 2] {
                let (path, is_over, member) = (&path, &is_over, &elsewhere);
                scope.spawn(move || create_invalid_groups(path, node, member, (seed, VICTIM), is_over));
            }
            scope.spawn(|| join_with_invalid_numbers(&path, &elsewhere, 3, &is_over));
            let until = Instant::now() + Duration::from_secs(4);
            while Instant::now() < until {
                exchange(&sends.0, &sends.1, 20);
                exchange(&receives.1, &receives.0, 20);
            }
            is_over.store(true, Ordering::SeqCst);
        });
        // A group that is closed in order has lost no member.
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(sends.1.receive(TIMEOUT).unwrap(), None));
            assert!(sends.0.close(TIMEOUT).unwrap().is_empty());
        });
        drop((receives, here));
        let counters = served.end();
        assert!(counters.invalid > 3, "{counters:?}");
    }
}

#[test]
fn an_impossible_place_on_a_host_is_refused() {
    let served = Served::new(EngineChoice::User, Policy::default());
    let (here, there) = (client(&served.socket()), other());
    let socket = raw(&served.socket());
    ask(&socket, &hello());
    let join = |number: u32, count: u32| {
        let settings = settings_message(1, &[there.address()]);
        let place = format!(r#"{{"number":{number},"count":{count}}}"#);
        ask(&socket, &format!(r#"{{"join_group":{{"settings":{settings},"place":{place}}}}}"#)).0
    };
    for (number, count) in [(2, 2), (0, 0), (0, 1), (0, 257), (u32::MAX, u32::MAX)] {
        let answer = join(number, count);
        assert!(answer.contains("there are from 2 to 256, numbered from 0"), "{answer}");
    }
    assert!(join(1, 2).contains("entered"));
    for (number, count, expected) in [
        (1, 2, "there is a group 1 at this node"),
        (0, 3, "with 2 members on this host, and this one with 3"),
    ] {
        let answer = join(number, count);
        assert!(answer.contains(expected), "{answer}");
    }
    drop((socket, here));
    served.end();
}

#[test]
fn only_the_root_of_a_host_closes_or_aborts_its_group() {
    let served = Served::new(EngineChoice::User, Policy::default());
    let (here, there) = (client(&served.socket()), other());
    let settings = GroupSettings::new(vec![here.address(), here.address(), there.address()]);
    let root = here.group(&GroupSettings { member: Some(0), ..settings.clone() }).unwrap();
    let member = there.group(&settings).unwrap();
    let socket = raw(&served.socket());
    ask(&socket, &hello());
    let message = settings_message(1, &[here.address(), here.address(), there.address()]);
    let place = r#"{"number":1,"count":2}"#;
    let answer = ask(&socket, &format!(r#"{{"join_group":{{"settings":{message},"place":{place}}}}}"#)).0;
    assert!(answer.contains("entered"), "{answer}");
    for request in ["close", "abort"] {
        say(&socket, format!(r#"{{"{request}":{{"group":1}}}}"#).as_bytes());
    }
    say(&socket, br#"{"forward":{"group":1,"upto":7,"child":null}}"#);
    // The answer comes after the requests were handled.
    ask(&socket, r#""poll_update""#);
    root.wait_until_ready(TIMEOUT).unwrap();
    root.send(b"still open").unwrap();
    assert_eq!(member.receive(TIMEOUT).unwrap().as_deref(), Some(&b"still open"[..]));
    // A process that leaves, or ends, does not end it either.
    say(&socket, br#"{"leave":{"group":1}}"#);
    say(&socket, br#"{"end":{"group":1}}"#);
    ask(&socket, r#""poll_update""#);
    root.send(b"and now").unwrap();
    assert_eq!(member.receive(TIMEOUT).unwrap().as_deref(), Some(&b"and now"[..]));
    let lost = root.close(TIMEOUT).unwrap();
    assert!(lost.len() == 1 && lost[0].member == 1, "{lost:?}");
    drop((socket, member));
    served.end();
}

#[test]
fn groups_that_wait_for_the_root_of_their_host_are_charged() {
    let text = "[[rule]]\nname = \"all\"\nall_users = true\nmemory_max = \"256K\"";
    let served = Served::new(EngineChoice::User, Policy::parse(text, "policy").unwrap());
    let here = client(&served.socket());
    let socket = raw(&served.socket());
    ask(&socket, &hello());
    let place = r#"{"number":1,"count":2}"#;
    let join = |group: u32| {
        let settings = settings_message(group, &[here.address(), here.address()]);
        ask(&socket, &format!(r#"{{"join_group":{{"settings":{settings},"place":{place}}}}}"#)).0
    };
    let refusal = (0..100).map(join).find(|answer| !answer.contains("entered")).unwrap();
    assert!(refusal.contains("allows groups 256K of memory"), "{refusal}");
    drop((socket, here));
    served.end();
}

#[test]
fn a_member_cannot_write_the_slots_that_are_retransmitted() {
    let served = Served::new(EngineChoice::User, Policy::default());
    let (here, there) = (client(&served.socket()), other());
    let root = there.group(&GroupSettings::new(vec![there.address(), here.address()])).unwrap();
    let socket = raw(&served.socket());
    ask(&socket, &hello());
    ask(&socket, &format!(r#"{{"join_group":{{"settings":{}}}}}"#, settings_message(1, &[there.address()])));
    root.wait_until_ready(TIMEOUT).unwrap();
    root.send(b"read only").unwrap();
    root.flush(TIMEOUT).unwrap();
    let (_, descriptors) = ask(&socket, r#""poll_update""#);
    let bytes = 512 * SLOT_BYTES;
    assert!(Mapped::new(&descriptors[0], bytes, WRITABLE).is_err());
    assert!(rustix::io::write(&descriptors[0], b"x").is_err());
    assert!(rustix::fs::ftruncate(&descriptors[0], 0).is_err());
    assert!(rustix::fs::ftruncate(&descriptors[1], 0).is_err());
    let slots = Mapped::new(&descriptors[0], bytes, ProtFlags::READ).unwrap();
    assert_eq!(slots.read(16).to_ne_bytes(), *b"read");
    // SAFETY: it is mapped; the rights to it are asked for.
    let changed =
        unsafe { rustix::mm::mprotect(slots.first.cast(), bytes, rustix::mm::MprotectFlags::WRITE) };
    assert!(changed.is_err());
    drop(socket);
}

/// Groups of a root alone, which end at once, and whose memory the client keeps mapped.
struct KeptGroups {
    socket: OwnedFd,
    node: SocketAddr,
    next: u32,
}

/// The memory of a group that has ended, with the number by which the client can release it.
type Kept = (Mapped, Option<u64>);

impl KeptGroups {
    /// Creates a group, writes all of its slots, and waits until it has ended.
    ///
    /// # Errors
    /// Why the daemon refuses it.
    fn keep(&mut self) -> Result<Kept, String> {
        self.next += 1;
        let (group, settings) = (self.next, settings_message(self.next, &[self.node]));
        let session = ["1"; 16].join(",");
        let create =
            format!(r#"{{"create_group":{{"settings":{settings},"children":[[]],"session":[{session}]}}}}"#);
        let (answer, descriptors) = ask(&self.socket, &create);
        let message: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let memory = &message["entered"]["memory"];
        let Some(slot_bytes) = memory["slot_bytes"].as_u64() else { return Err(answer) };
        let slots = Mapped::new(&descriptors[0], SLOTS * slot_bytes as usize, WRITABLE).unwrap();
        (0..slots.bytes / 4).for_each(|place| slots.write(place, 7));
        say(&self.socket, format!(r#"{{"abort":{{"group":{group}}}}}"#).as_bytes());
        let start = Instant::now();
        let has_ended =
            |update: &str| update.contains(r#""ending":"#) && !update.contains(r#""ending":null"#);
        while !has_ended(&ask(&self.socket, r#""poll_update""#).0) {
            assert!(Some(start.elapsed()) < TIMEOUT, "group {group} does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok((slots, memory["lease"].as_u64()))
    }

    /// The same when the memory of groups before it may not be freed yet.
    fn keep_when_freed(&mut self) -> Kept {
        let start = Instant::now();
        loop {
            match self.keep() {
                Ok(kept) => return kept,
                Err(refusal) => assert!(Some(start.elapsed()) < TIMEOUT, "{refusal}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn memory_that_a_client_keeps_mapped_stays_charged_after_its_group() {
    for engine in engines() {
        let is_kernel = engine == EngineChoice::Ebpf;
        let bytes_max = if is_kernel { 8 << 20 } else { 512 << 10 };
        let text = format!("[[rule]]\nname = \"all\"\nall_users = true\nmemory_max = {bytes_max}");
        let served = Served::new(engine, Policy::parse(&text, "policy").unwrap());
        let here = client(&served.socket());
        let socket = raw(&served.socket());
        ask(&socket, &hello());
        let mut groups = KeptGroups { socket, node: here.address(), next: 0 };
        // Groups that have ended are freed meanwhile.
        let (mut kept, mut refusal) = (Vec::new(), String::new());
        for _ in 0..200 {
            match groups.keep() {
                Ok(group) => kept.push(group),
                Err(answer) => {
                    refusal = answer;
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        }
        let (count, bytes) = (kept.len(), kept.iter().map(|(slots, _)| slots.bytes).sum::<usize>());
        assert!(bytes <= bytes_max, "{engine}: {bytes} bytes are mapped of {count} groups that have ended");
        assert!(count > 3 && refusal.contains(" of memory: "), "{engine}: {count} groups, then {refusal}");
        let release = |groups: &KeptGroups, lease: Option<u64>| {
            if let Some(lease) = lease {
                say(&groups.socket, format!(r#"{{"unmapped":{{"lease":{lease}}}}}"#).as_bytes());
            }
        };
        // The memory that it has unmapped is free again, as often as it likes.
        for (slots, lease) in kept.split_off(1) {
            drop(slots);
            release(&groups, lease);
        }
        for _ in 0..3 * count {
            let (slots, lease) = groups.keep_when_freed();
            drop(slots);
            release(&groups, lease);
        }
        // A client that lies has nothing of the daemon's memory: what it has mapped is empty, or
        // charged still.
        let (slots, lease) = kept.pop().unwrap();
        assert_eq!(slots.read(0), 7);
        release(&groups, lease);
        ask(&groups.socket, r#""poll_update""#);
        assert_eq!(slots.read(0), if is_kernel { 7 } else { 0 });
        assert_eq!(lease.is_none(), is_kernel);
        drop((slots, groups, here));
        served.end();
    }
}

/// Sends these bytes on all sockets of this process that are connected to a daemon's socket.
fn say_as_clients(path: &Path, bytes: &[u8]) {
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let number = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: a descriptor that another thread closes meanwhile is at most another one, which
        // is no socket of this daemon.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        let peer = rustix::net::getpeername(descriptor);
        let peer = peer.ok().flatten().and_then(|peer| SocketAddrUnix::try_from(peer).ok());
        if peer.and_then(|peer| peer.path_bytes().map(<[u8]>::to_vec)).as_deref()
            == Some(path.as_os_str().as_encoded_bytes())
        {
            // The second of two descriptors of one socket may find it closed.
            let _ = rustix::net::send(descriptor, bytes, SendFlags::NOSIGNAL);
        }
    }
}

#[test]
fn a_client_that_is_disconnected_receives_no_other_bytes_than_were_sent() {
    let served = Served::new(EngineChoice::User, Policy::default());
    let nodes = [other(), client(&served.socket())];
    let [_root, member] = with_unread_messages(&nodes);
    // Now it knows of all three.
    assert_eq!(member.receive(TIMEOUT).unwrap(), Some(vec![1; 2_000]));
    say_as_clients(&served.socket(), b"nonsense");
    // The daemon has taken the memory back before it has stopped.
    assert_eq!(served.end().disconnected, 1);
    for number in 2.. {
        match member.receive(TIMEOUT) {
            Ok(message) => assert_eq!(message, Some(vec![number; 2_000])),
            Err(error) => {
                assert!(matches!(error, NodeError::GroupFailed(_)), "{error}");
                break;
            }
        }
    }
}

#[test]
fn a_client_that_reads_no_answers_is_disconnected() {
    let served = Served::new(EngineChoice::User, Policy::default());
    let socket = raw(&served.socket());
    ask(&socket, &hello());
    let sent = (0..100_000).take_while(|_| {
        let flags = rustix::net::SendFlags::NOSIGNAL;
        rustix::net::send(&socket, br#""poll_update""#, flags).is_ok()
    });
    assert!(sent.count() < 100_000);
    while !hear(&socket).is_empty() {}
    let here = client(&served.socket());
    let there = other();
    let settings = GroupSettings::new(vec![here.address(), there.address()]);
    exchange(&here.group(&settings).unwrap(), &there.group(&settings).unwrap(), 5);
}
