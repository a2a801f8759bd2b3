//! How long one call of the protocol takes at the root of the largest group: the bound on what a
//! group of one user delays all others of a node. Prints, for each kind of call, how often it was
//! made, its median and its longest CPU time.
//!
//!     cargo run --release --package treecast-proto --example longest_calls

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use treecast_proto::{
    AbortReason, Authentication, CreateGroup, GroupId, GroupKey, Input, Integrity, MemberId, Nanoseconds,
    Offload, Output, Protocol, Sequence, SessionId, Settings, Transport,
};
use treecast_wire::{Body, Control, ControlHeader, Handshake, Header, Keys, Nonce, Timestamp};

const GROUP: GroupId = GroupId(1);
const SESSION: SessionId = SessionId([1; 16]);

/// The durations of calls of each kind.
#[derive(Default)]
struct Durations(BTreeMap<&'static str, Vec<Duration>>);

impl Durations {
    fn measure<T>(&mut self, kind: &'static str, call: impl FnOnce() -> T) -> T {
        let start = cpu_time();
        let result = call();
        self.0.entry(kind).or_default().push(cpu_time().saturating_sub(start));
        result
    }

    fn print(&mut self) {
        for (kind, durations) in &mut self.0 {
            durations.sort_unstable();
            let (median, longest) = (durations[durations.len() / 2], durations[durations.len() - 1]);
            println!(
                "{kind:24} {:>8} calls, median {median:>10.1?}, longest {longest:>10.1?}",
                durations.len()
            );
        }
    }
}

/// The CPU time of this thread, which other processes do not lengthen.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn address(member: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (member >> 8) as u8, member as u8], 7_000))
}

/// Polls until nothing is left to do.
fn poll_all(durations: &mut Durations, protocol: &mut Protocol, now: Nanoseconds) {
    loop {
        if let Output::Timeout(_) = durations.measure("poll", || protocol.poll(now)) {
            return;
        }
    }
}

/// The life of a group whose members, but one of eight, join; the others are lost. Then it is
/// aborted.
fn run(name: &str, parent_of: impl Fn(usize) -> usize) {
    println!("{name}, {} members:", CreateGroup::MEMBERS_MAX);
    let mut durations = Durations::default();
    let members = CreateGroup::MEMBERS_MAX;
    let mut children = vec![Vec::new(); members];
    for member in 1..members {
        children[parent_of(member)].push(MemberId(member as u32));
    }
    let key = GroupKey::new("a token", GROUP);
    let create = CreateGroup {
        group: GROUP,
        key,
        session: SESSION,
        authentication: Authentication::Header,
        integrity: Integrity::default(),
        transport: Transport::Packets,
        root: MemberId(0),
        members: (0..members).map(address).collect(),
        children,
        slots: 64,
        payload_bytes_max: 1_408,
        offload: Offload::Nic,
        multicast: None,
        start: Sequence(0),
        admits: false,
        readers: Vec::new(),
        members_max: CreateGroup::MEMBERS_MAX,
        bytes_per_s_max: None,
        is_encrypted: false,
    };
    let settings = Settings::default();
    let mut protocol = Protocol::new(settings.clone());
    let mut now = Nanoseconds::from_ms(1);
    let create = Input::CreateGroup(Box::new(create));
    durations.measure("create", || protocol.handle(now, create)).expect("the settings are valid");
    poll_all(&mut durations, &mut protocol, now);
    let (handshake_keys, session_keys) =
        (key.handshake_keys(), key.session_keys(SESSION, Authentication::Header));
    let datagram = |keys: &Keys, at: u64, member: usize, control: Option<Control>| {
        let (operation, payload) = match &control {
            Some(control) => (control.operation(), control.write()),
            None => (Handshake::Hello.operation(), Handshake::Hello.write()),
        };
        let header = ControlHeader {
            operation,
            nonce: Nonce(member as u64),
            length: payload.len() as u32,
            checksum: keys.control_checksum(&payload),
        };
        let body = if control.is_some() { Body::Control(header) } else { Body::Handshake(header) };
        let sender = MemberId(member as u32);
        let header =
            Header { group: GROUP, epoch: 1, sender, sequence: Sequence(0), timestamp: Timestamp(at), body };
        [&header.write(&keys.header)[..], &payload].concat()
    };
    let join = Control::Join(address(0));
    let (leave, table_ack) = (Control::Leave, Control::TableAck(None));
    for (kind, keys, control) in [
        ("datagram: hello", &handshake_keys, None),
        ("datagram: join", &session_keys, Some(join)),
        ("datagram: table ack", &session_keys, Some(table_ack)),
        ("datagram: leave", &session_keys, Some(leave)),
    ] {
        now += Nanoseconds::from_ms(1);
        let count = if kind.ends_with("leave") { members / 8 } else { members };
        for member in (1..count).filter(|member| member % 8 != 0) {
            let bytes = datagram(keys, now.0, member, control.clone());
            let input = Input::Datagram { from: address(member), bytes: &bytes };
            durations.measure(kind, || protocol.handle(now, input)).expect("a datagram is never refused");
            poll_all(&mut durations, &mut protocol, now);
        }
    }
    now += settings.join_timeout + Nanoseconds::from_ms(1);
    poll_all(&mut durations, &mut protocol, now);
    durations
        .measure("abort", || {
            protocol.handle(now, Input::Abort { group: GROUP, why: AbortReason::Application })
        })
        .expect("it is open");
    poll_all(&mut durations, &mut protocol, now);
    durations.print();
}

fn main() {
    run("a star", |_| 0);
    run("a chain", |member| member - 1);
    run("a binary tree", |member| (member - 1) / 2);
}
