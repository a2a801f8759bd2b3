//! What hosts without the token send, and packets that are sent again, is counted and changes
//! nothing.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use treecast_node::{Authentication, GroupId, Offload};
use treecast_wire::{Body, View};

use super::attacker::{Datagram, Forger, Recorder};
use super::chain::{Chain, LEAF, Outcome, RELAY, ROOT, STRANGER, Setting, World};
use super::insider::Insider;
use super::with_both_engines_in;

const GROUP: u32 = 1;

/// What the groups that are attacked have in common.
const SETTINGS: &[(Setting, &str)] = &[
    (Setting::DEFAULT, "along the tree"),
    (
        Setting { is_v6: true, authentication: Authentication::Payload, ..Setting::DEFAULT },
        "IPv6, auth=payload",
    ),
    (
        Setting { offload: Offload::Switch, authentication: Authentication::Payload, ..Setting::DEFAULT },
        "offload=switch",
    ),
    (
        Setting { is_v6: true, offload: Offload::Switch, authentication: Authentication::Payload },
        "IPv6, offload=switch",
    ),
];

/// A group that is attacked, and the attacker's tools.
struct Siege {
    chain: Chain,
    insider: Insider,
    forger: Forger,
    addresses: Vec<SocketAddr>,
}

impl Siege {
    /// Sends packets, and waits until their receivers have dropped as many of them as are expected
    /// to be counted.
    fn send_and_count(&self, packets: &[Datagram], what: &str) {
        // So few that no socket's buffer overflows.
        for batch in packets.chunks(100) {
            let before: Vec<u64> = (ROOT..=LEAF).map(|host| self.chain.dropped(host)).collect();
            self.forger.send_all(batch);
            for (host, before) in before.into_iter().enumerate() {
                // The root does not receive at its own multicast address.
                let by_multicast = self.insider.multicast.filter(|_| host != ROOT);
                let is_received =
                    |packet: &&Datagram| packet.to == self.addresses[host] || Some(packet.to) == by_multicast;
                let count = batch.iter().filter(is_received).count() as u64;
                self.chain.wait_until_dropped(host, before + count, what);
            }
        }
    }

    /// Both members receive the next line and no other.
    fn exchange(&mut self, after: &str) {
        self.chain.exchange(after);
        self.insider.on_line(self.chain.sent.last().unwrap());
    }
}

#[test]
fn strangers_and_replays_change_nothing() {
    with_both_engines_in(SETTINGS, |engine, setting| {
        let Some(world) = World::with(engine, setting) else { return };
        let recorders = [ROOT, RELAY].map(|host| world.hosts.run_on(host, Recorder::start));
        let forger = world.hosts.run_on(STRANGER, Forger::start);
        let record = || recorders.iter().flat_map(Recorder::take).collect::<Vec<Datagram>>();

        run_earlier_session(&world);
        let earlier = record();
        let mut chain = Chain::start(&world, GROUP);
        // While the members look for their root, too.
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            forger.send_all(&earlier);
            thread::sleep(Duration::from_millis(10));
        }
        (0..10).for_each(|_| chain.exchange("an earlier session"));
        let mut current = record();
        current.retain(|packet| !earlier.contains(packet));
        let authentication = setting.authentication;
        let insider =
            Insider::learn_with(&current, GroupId(GROUP), &world.hosts, &chain.sent, authentication);
        assert_eq!(insider.multicast.is_some(), setting.offload == Offload::Switch);
        let addresses = (ROOT..=LEAF).map(|host| world.hosts.node_address(host)).collect();
        let mut siege = Siege { chain, insider, forger, addresses };

        siege.send_and_count(&without_handshakes(&earlier), "an earlier session");
        siege.exchange("an earlier session");
        // A member drops packets that arrive before its slots are allocated, and accepts them from
        // the recording. So the first replay may deliver packets, and the second one must change
        // nothing.
        siege.forger.send_all(&current);
        siege.exchange("this session");
        siege.send_and_count(&without_handshakes(&current), "this session");
        siege.exchange("this session");
        guess(&mut siege);
        flip(&mut siege, &current);
        send_from_other_address(&mut siege, world.hosts.node_address(STRANGER));

        let closed = (Outcome::Closed(Vec::new()), Vec::new());
        assert_eq!(siege.chain.finish(), vec![closed; 3]);
    });
}

/// A session of the same group in which most kinds of packets are sent: a member leaves, and the
/// root aborts the group.
fn run_earlier_session(world: &std::sync::Arc<World>) {
    let mut chain = Chain::start(world, GROUP);
    (0..10).for_each(|_| chain.exchange("nothing"));
    chain.abort(LEAF);
    chain.send();
    thread::sleep(Duration::from_millis(50));
    chain.abort(ROOT);
    let outcomes = chain.finish();
    let aborted = |outcome: &Outcome| matches!(outcome, Outcome::Ended(why) if why.contains("abort"));
    assert!(aborted(&outcomes[ROOT].0) && aborted(&outcomes[RELAY].0), "{outcomes:?}");
}

/// A root answers an old hello, since it may be a new one, and members ask what an invitation is
/// about; neither is counted.
fn without_handshakes(packets: &[Datagram]) -> Vec<Datagram> {
    let is_handshake = |packet: &&Datagram| View::new(&packet.bytes).unwrap().is_handshake();
    packets.iter().filter(|packet| !is_handshake(packet)).cloned().collect()
}

/// Packets of each kind by a host that knows everything except the keys.
fn guess(siege: &mut Siege) {
    for number in 0..siege.insider.every_kind().len() {
        let (name, forgery) = siege.insider.every_kind().swap_remove(number);
        siege.send_and_count(&[forgery.with_guessed_keys().write()], name);
        siege.exchange(name);
    }
}

/// Each bit of the header and some of the payload of recorded packets, one of each kind; and
/// packets that are cut off or too long.
fn flip(siege: &mut Siege, recorded: &[Datagram]) {
    for original in one_of_each_kind(recorded) {
        let length = original.bytes.len();
        let with = |bytes: Vec<u8>| Datagram { bytes, ..original.clone() };
        let flipped = (0..8 * length.min(80)).map(|bit| {
            let mut bytes = original.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            with(bytes)
        });
        let cut = (0..length).map(|length| with(original.bytes[..length].to_vec()));
        let longer = with([&original.bytes[..], &[0]].concat());
        let packets: Vec<Datagram> = flipped.chain(cut).chain([longer]).collect();
        let kind = original.bytes[1];
        siege.send_and_count(&packets, &format!("flipped bits of kind {kind}"));
        siege.exchange(&format!("flipped bits of kind {kind}"));
    }
}

/// The last packet of each kind, and of each operation.
fn one_of_each_kind(recorded: &[Datagram]) -> Vec<Datagram> {
    let mut found: Vec<(u8, u32, Datagram)> = Vec::new();
    for packet in recorded.iter().rev() {
        let operation = match View::new(&packet.bytes).unwrap().read().unwrap().header.body {
            Body::Control(header) | Body::Handshake(header) => header.operation,
            _ => 0,
        };
        if found.iter().all(|&(kind, known, _)| (kind, known) != (packet.bytes[1], operation)) {
            found.push((packet.bytes[1], operation, packet.clone()));
        }
    }
    // Data, acknowledgment, probe; table and its acknowledgment, join; hello and welcome.
    assert!(found.len() >= 8, "{found:?}");
    found.into_iter().map(|(_, _, packet)| packet).collect()
}

/// Packets of each kind with the right keys, from an address that is not that of the member in
/// whose name they are.
fn send_from_other_address(siege: &mut Siege, address: SocketAddr) {
    for number in 0..siege.insider.every_kind().len() {
        let (name, forgery) = siege.insider.every_kind().swap_remove(number);
        // A hello with the token is answered, from any address.
        if name != "hello" {
            siege.send_and_count(&[forgery.sent_from(address).write()], name);
            siege.exchange(name);
        }
    }
}
