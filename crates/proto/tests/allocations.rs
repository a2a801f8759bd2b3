//! Nothing in the data path allocates: neither for a packet that is received, forwarded,
//! acknowledged or read, nor for one that is lost or retransmitted.

use std::net::SocketAddr;

use treecast_proto::{
    Authentication, CreateGroup, GroupId, GroupKey, Input, Integrity, MemberId, Nanoseconds, Offload, Output,
    Piece, Protocol, Sequence, SessionId, Settings, TransmitPayload, Transport,
};

const GROUP: GroupId = GroupId(1);
const NODES: usize = 4;

const SESSION: SessionId = SessionId([1; 16]);

/// A root, a relay and its two children, and the datagrams in flight.
struct Chain {
    nodes: [Protocol; NODES],
    in_flight: Vec<(usize, usize, [u8; 64 + 512], usize)>,
    now: Nanoseconds,
    sent: u32,
}

fn address(node: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, node as u8], 7_000))
}

impl Chain {
    fn new(multicast: Option<SocketAddr>) -> Self {
        let mut nodes = std::array::from_fn(|_| Protocol::new(Settings::default()));
        let now = Nanoseconds::from_ms(1);
        let create = CreateGroup {
            group: GROUP,
            key: GroupKey::new("a token", GROUP),
            session: SESSION,
            authentication: Authentication::Payload,
            integrity: Integrity::default(),
            transport: Transport::Packets,
            root: MemberId(0),
            members: (0..NODES).map(address).collect(),
            children: vec![vec![MemberId(1)], vec![MemberId(2), MemberId(3)], vec![], vec![]],
            slots: 64,
            payload_bytes_max: 512,
            offload: if multicast.is_some() { Offload::Switch } else { Offload::Nic },
            multicast,
            start: Sequence(0),
            admits: false,
            readers: Vec::new(),
            members_max: CreateGroup::MEMBERS_MAX,
            bytes_per_s_max: None,
            is_encrypted: false,
        };
        for (number, node) in nodes.iter_mut().enumerate().skip(1) {
            let (key, seed) = (GroupKey::new("a token", GROUP), [number as u64, 0]);
            let join = Input::JoinGroup { group: GROUP, key, root: address(0), seed };
            node.handle(now, join).expect("there is no such group yet");
        }
        nodes[0].handle(now, Input::CreateGroup(Box::new(create))).expect("the group is well formed");
        let mut chain = Self { nodes, in_flight: Vec::with_capacity(1_000), now, sent: 0 };
        (0..NODES).for_each(|node| chain.drain(node));
        chain
    }

    fn drain(&mut self, node: usize) {
        loop {
            let transmit = match self.nodes[node].poll(self.now) {
                Output::Transmit(transmit) => transmit,
                Output::Timeout(_) => return,
                _ => continue,
            };
            let to = (0..NODES).find(|&to| address(to) == transmit.to);
            let mut bytes = [0; 64 + 512];
            bytes[..64].copy_from_slice(&transmit.header);
            let length = match transmit.payload {
                TransmitPayload::Slot { length, .. } => length as usize,
                TransmitPayload::Bytes(payload) => {
                    bytes[64..64 + payload.len()].copy_from_slice(&payload);
                    payload.len()
                }
            };
            for to in to.map_or(0..NODES, |to| to..to + 1).filter(|to| *to != node) {
                self.in_flight.push((node, to, bytes, 64 + length));
            }
        }
    }

    /// Datagrams in flight arrive, except every `lost`th one, and readers read.
    fn step(&mut self, lost: usize) {
        for _ in 0..self.in_flight.len() {
            self.now += Nanoseconds::from_us(3);
            let (from, to, bytes, length) = self.in_flight.remove(0);
            self.sent += 1;
            if (self.sent as usize).is_multiple_of(lost) {
                continue;
            }
            let input = Input::Datagram { from: address(from), bytes: &bytes[..length] };
            self.nodes[to].handle(self.now, input).expect("no datagram is refused");
            if let Some((from, end)) = self.nodes[to].readable(GROUP)
                && to > 0
                && from != end
            {
                let consumed = Input::Consumed { group: GROUP, upto: end };
                self.nodes[to].handle(self.now, consumed).expect("it is there to be read");
            }
            self.drain(to);
        }
        self.now += Nanoseconds::from_us(400);
        for node in 0..NODES {
            self.nodes[node].handle(self.now, Input::Timeout).expect("time passes");
            self.drain(node);
        }
    }

    fn queue(&mut self, message: u32) {
        let keys = GroupKey::new("a token", GROUP).session_keys(SESSION, Authentication::Payload);
        let checksum = keys.data_checksum(Sequence(message), &[0; 512]);
        let piece = Piece { message, offset: 0, length: 512, message_length: 512, checksum };
        if self.nodes[0].free_slots(GROUP) > 0 {
            self.nodes[0].handle(self.now, Input::Queue { group: GROUP, piece }).expect("there is room");
            self.drain(0);
        }
    }
}

#[test]
fn packets_cost_no_allocation() {
    check(None);
}

#[test]
fn packets_by_multicast_cost_no_allocation() {
    check(Some(SocketAddr::from(([239, 0, 0, 1], 7_000))));
}

fn check(multicast: Option<SocketAddr>) {
    let mut chain = Chain::new(multicast);
    (0..20).for_each(|_| chain.step(usize::MAX));
    let mut message = 0;
    let mut send = |chain: &mut Chain, rounds: u32| {
        for _ in 0..rounds {
            for _ in 0..16 {
                let room = chain.nodes[0].free_slots(GROUP);
                chain.queue(message);
                message += u32::from(room > 0);
            }
            chain.step(17);
        }
    };
    send(&mut chain, 20);
    let info = allocation_counter::measure(|| send(&mut chain, 200));
    assert_eq!(info.count_total, 0, "{info:?}");
    let counters = chain.nodes[1].counters(GROUP).expect("the group is here");
    assert!(counters.accepted > 500 && counters.retransmitted > 50 && counters.held > 100, "{counters:?}");
}
