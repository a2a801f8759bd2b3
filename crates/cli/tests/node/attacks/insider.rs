//! Packets of an attacker who has the token and has recorded the handshake of a session, so that
//! they are authentic whatever they say.

use std::net::SocketAddr;

use rustix::time::{ClockId, clock_gettime};
use treecast_node::{AbortReason, Authentication, Eviction, GroupId};
use treecast_proto::GroupKey;
use treecast_wire::{
    Acknowledgment, Body, Control, ControlHeader, Data, Distribution, Handshake, Header, Keys, MacKey,
    MemberId, Missing, Neighbour, Nonce, Role, RootLoss, Sequence, SessionId, Table, Timestamp, View,
};

use super::attacker::Datagram;
use super::chain::{LEAF, RELAY, ROOT, STRANGER, TOKEN};
use super::hosts::Hosts;

/// What the insider knows of a session.
pub struct Insider {
    group: GroupId,
    keys: Keys,
    handshake_keys: Keys,
    /// The address to which the root sends data.
    pub multicast: Option<SocketAddr>,
    /// The addresses of the nodes, by host; also one for the stranger.
    addresses: Vec<SocketAddr>,
    /// The nonce of each member but the root.
    nonces: [Nonce; 3],
    /// The leaf's table.
    table: Table,
    /// The next packet, the number of its message, and the bytes before it.
    pub next: Sequence,
    message: u32,
    bytes: u64,
}

/// A forged packet, before its codes are computed.
#[derive(Clone)]
pub struct Forgery {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub header: Header,
    pub payload: Vec<u8>,
    pub keys: Keys,
}

impl Forgery {
    pub fn write(&self) -> Datagram {
        let mut header = self.header;
        match &mut header.body {
            Body::Data(data) => data.checksum = self.keys.data_checksum(header.sequence, &self.payload),
            Body::Control(header) | Body::Handshake(header) => {
                header.checksum = self.keys.control_checksum(&self.payload);
            }
            Body::Acknowledgment(_)
            | Body::Nak(..)
            | Body::Probe
            | Body::PathProbe { .. }
            | Body::Heartbeat
            | Body::Attach(_) => {}
        }
        let bytes = [&header.write(&self.keys.header)[..], &self.payload].concat();
        Datagram { from: self.from, to: self.to, bytes }
    }

    /// The same by an attacker who has guessed the keys.
    pub fn with_guessed_keys(mut self) -> Self {
        self.keys.header = MacKey([1, 2]);
        self.keys.control = MacKey([3, 4]);
        self.keys.data.code = MacKey([5, 6]);
        self
    }

    /// The same, from another address than that of the member in whose name it is.
    pub fn sent_from(self, from: SocketAddr) -> Self {
        Self { from, ..self }
    }

    /// The same for a member with this nonce, or from it.
    pub fn with_nonce(mut self, given: Nonce) -> Self {
        if let Body::Control(ControlHeader { nonce, .. }) = &mut self.header.body {
            *nonce = given;
        }
        self
    }

    /// The same with a timestamp that no later packet has.
    pub fn in_the_far_future(mut self) -> Self {
        self.header.timestamp = Timestamp(u64::MAX);
        self
    }
}

impl Insider {
    /// Learns a session from what was recorded of it at the root's host, after this number of lines
    /// of a length.
    pub fn learn(recorded: &[Datagram], group: GroupId, hosts: &Hosts, lines: &[String]) -> Self {
        Self::learn_with(recorded, group, hosts, lines, Authentication::Header)
    }

    /// The same of a group with this authentication.
    pub fn learn_with(
        recorded: &[Datagram],
        group: GroupId,
        hosts: &Hosts,
        lines: &[String],
        authentication: Authentication,
    ) -> Self {
        let key = GroupKey::new(TOKEN, group);
        let handshake_keys = key.handshake_keys();
        let addresses: Vec<SocketAddr> = (ROOT..=STRANGER).map(|host| hosts.node_address(host)).collect();
        let of_group = || recorded.iter().filter(|datagram| is_of(datagram, group));
        let session = of_group().rev().find_map(|datagram| session(datagram, &handshake_keys)).unwrap();
        let keys = key.session_keys(session, authentication);
        let multicast = of_group().map(|datagram| datagram.to).rfind(|to| to.ip().is_multicast());
        let mut nonces = [Nonce(0); 3];
        let mut table = None;
        for datagram in of_group() {
            let Ok(packet) = View::new(&datagram.bytes).unwrap().check(&keys) else { continue };
            let Body::Control(header) = packet.header.body else { continue };
            if let Ok(Control::Table(of_member)) = Control::read(header.operation, packet.payload) {
                nonces[of_member.member.0 as usize] = header.nonce;
                table = Some(of_member).filter(|table| table.member.0 as usize == LEAF).or(table);
            }
        }
        let table = table.unwrap();
        let message = lines.len() as u32;
        Self {
            group,
            keys,
            handshake_keys,
            multicast,
            addresses,
            nonces,
            next: table.start + message,
            table,
            message,
            bytes: lines.iter().map(|line| line.len() as u64).sum(),
        }
    }

    /// One more line was sent.
    pub fn on_line(&mut self, line: &str) {
        self.next += 1;
        self.message += 1;
        self.bytes += line.len() as u64;
    }

    fn forgery(&self, from: usize, to: usize, body: Body, payload: Vec<u8>) -> Forgery {
        let header = Header {
            group: self.group,
            epoch: 1,
            sender: MemberId(from as u32),
            sequence: Sequence(0),
            timestamp: now(),
            body,
        };
        let keys = if matches!(body, Body::Handshake(_)) { self.handshake_keys } else { self.keys };
        Forgery { from: self.addresses[from], to: self.addresses[to], header, payload, keys }
    }

    /// The next packet, as the relay would send it to the leaf: a whole message.
    pub fn data(&self, payload: &[u8]) -> Forgery {
        let data = Data {
            message: self.message,
            offset: 0,
            length: payload.len() as u32,
            message_length: payload.len() as u64,
            checksum: self.keys.data_checksum(self.next, payload),
            ack_requested: true,
            retransmitted: false,
            close: false,
            distribution: Distribution::Tree,
        };
        self.piece(data, payload)
    }

    /// The next packet, and a heartbeat, as the root would send them by multicast.
    fn by_multicast(&self) -> Vec<(&'static str, Forgery)> {
        let Some(to) = self.multicast else { return Vec::new() };
        let mut data = self.edited_data(b"a line of a stranger by multicast", |data| {
            data.distribution = Distribution::Multicast;
        });
        data.header.sender = MemberId(ROOT as u32);
        data.from = self.addresses[ROOT];
        let heartbeat = self.forgery(ROOT, LEAF, Body::Heartbeat, Vec::new());
        [("data by multicast", data), ("a heartbeat", heartbeat)]
            .map(|(name, forgery)| (name, Forgery { to, ..forgery }))
            .to_vec()
    }

    /// The same with other fields.
    pub fn edited_data(&self, payload: &[u8], edit: impl FnOnce(&mut Data)) -> Forgery {
        let mut forgery = self.data(payload);
        if let Body::Data(data) = &mut forgery.header.body {
            edit(data);
        }
        forgery
    }

    fn piece(&self, data: Data, payload: &[u8]) -> Forgery {
        let mut forgery = self.forgery(RELAY, LEAF, Body::Data(data), payload.to_vec());
        forgery.header.sequence = self.next;
        forgery
    }

    /// The next packet closes the group, after `more` messages that were never sent.
    pub fn close(&self, messages: u32) -> Forgery {
        let message_length = self.bytes;
        self.edited_data(&[], |data| {
            *data = Data { message: data.message + messages, message_length, close: true, ..*data };
        })
    }

    /// An acknowledgment of the leaf for the relay: of all packets, with the changes of `edit`.
    pub fn ack(&self, edit: impl FnOnce(&mut Sequence, &mut Acknowledgment)) -> Forgery {
        let mut next = self.next;
        let mut acknowledgment = Acknowledgment {
            stable: self.next,
            receive_window: self.table.slots,
            echo: Timestamp(0),
            is_reached: false,
            is_congested: false,
        };
        edit(&mut next, &mut acknowledgment);
        let mut forgery = self.forgery(LEAF, RELAY, Body::Acknowledgment(acknowledgment), Vec::new());
        forgery.header.sequence = next;
        forgery
    }

    /// An acknowledgment that says what is missing.
    pub fn nak(&self, next: Sequence, missing: Missing) -> Forgery {
        let mut forgery = self.ack(|_, _| {});
        let Body::Acknowledgment(acknowledgment) = forgery.header.body else { unreachable!("it is one") };
        forgery.header.sequence = next;
        forgery.header.body = Body::Nak(Acknowledgment { stable: next, ..acknowledgment }, missing);
        forgery
    }

    pub fn probe(&self, from: usize, to: usize, next: Sequence) -> Forgery {
        let mut forgery = self.forgery(from, to, Body::Probe, Vec::new());
        forgery.header.sequence = next;
        forgery
    }

    /// A control message between the root and a member, or from the relay to the leaf.
    pub fn control(&self, from: usize, to: usize, control: &Control) -> Forgery {
        // The nonce is that of the member which it comes from, or is for.
        let nonce = match (from, to) {
            (ROOT, member) | (member, ROOT) => self.nonces[member],
            _ => Nonce(0),
        };
        self.operation(from, to, control.operation(), nonce, control.write())
    }

    /// A control message with any operation and nonce.
    pub fn operation(
        &self,
        from: usize,
        to: usize,
        operation: u32,
        nonce: Nonce,
        payload: Vec<u8>,
    ) -> Forgery {
        self.forgery(from, to, Body::Control(control_header(operation, nonce, &payload)), payload)
    }

    /// A table for the leaf, with the changes of `edit`.
    pub fn table(&self, epoch: u32, edit: impl FnOnce(&mut Table)) -> Forgery {
        let mut table = self.table.clone();
        edit(&mut table);
        let mut forgery = self.control(ROOT, LEAF, &Control::Table(table));
        forgery.header.epoch = epoch;
        forgery
    }

    /// A member joins from its address, with another nonce, and says that it has this address.
    pub fn join(&self, member: usize, address: SocketAddr) -> Forgery {
        let join = Control::Join(address);
        self.operation(member, ROOT, join.operation(), Nonce(77), join.write())
    }

    pub fn handshake(&self, from: usize, to: usize, step: &Handshake) -> Forgery {
        // The answer to no hello, or the answer to the first.
        let nonce = if matches!(step, Handshake::Invite(_)) { Nonce(0) } else { self.nonces[LEAF] };
        let payload = step.write();
        let body = Body::Handshake(control_header(step.operation(), nonce, &payload));
        let mut forgery = self.forgery(from, to, body, payload);
        if from != ROOT {
            forgery.header.sender = MemberId(u32::MAX);
        }
        forgery
    }

    /// A table that makes the stranger the leaf's parent.
    pub fn adoption(&self, epoch: u32) -> Forgery {
        let address = self.addresses[STRANGER];
        self.table(epoch, |table| {
            table.neighbours =
                vec![Neighbour { member: MemberId(RELAY as u32), role: Role::Parent, address }];
        })
    }

    /// A packet of each kind, and of each operation of control messages and handshakes, in the name
    /// of the member from which the receiver expects it. Each would do harm if it were believed.
    pub fn every_kind(&self) -> Vec<(&'static str, Forgery)> {
        let other = SessionId([9; 16]);
        let address = self.addresses[LEAF];
        let first = Missing { first: self.table.start, bits: 1 };
        let root_lost = Control::RootLost(RootLoss::Restarted);
        let suspect = Control::Suspect(MemberId(LEAF as u32));
        let state_lost = Control::StateLost(MemberId(LEAF as u32));
        let along_tree = vec![
            ("data", self.data(b"a line of a stranger")),
            ("the closing packet", self.close(0)),
            ("an acknowledgment", self.ack(|next, ack| (*next, ack.stable) = (*next - 1, *next - 1))),
            ("a NAK", self.nak(self.table.start, first)),
            ("a probe", self.probe(RELAY, LEAF, self.next).in_the_far_future()),
            ("a table", self.adoption(u32::MAX)),
            ("the acknowledgment of a table", self.control(LEAF, ROOT, &Control::TableAck(None))),
            ("suspect", self.control(RELAY, ROOT, &suspect)),
            ("join", self.join(LEAF, self.addresses[LEAF])),
            ("leave", self.control(LEAF, ROOT, &Control::Leave)),
            (
                "evicted",
                self.control(ROOT, LEAF, &Control::Evicted(Eviction::Aborted(AbortReason::Application))),
            ),
            ("state lost", self.control(RELAY, ROOT, &state_lost)),
            ("root lost", self.control(RELAY, LEAF, &root_lost)),
            ("an invitation", self.handshake(ROOT, LEAF, &Handshake::Invite(other))),
            ("hello", self.handshake(LEAF, ROOT, &Handshake::Hello)),
            ("welcome", self.handshake(ROOT, LEAF, &Handshake::Welcome { session: other, address })),
        ];
        [along_tree, self.by_multicast()].concat()
    }

    pub fn address(&self, host: usize) -> SocketAddr {
        self.addresses[host]
    }
}

fn control_header(operation: u32, nonce: Nonce, payload: &[u8]) -> ControlHeader {
    let checksum = treecast_wire::PayloadChecksum(0);
    ControlHeader { operation, nonce, length: payload.len() as u32, checksum }
}

/// The time of all hosts of a lab.
pub fn now() -> Timestamp {
    let time = clock_gettime(ClockId::Monotonic);
    Timestamp(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn is_of(datagram: &Datagram, group: GroupId) -> bool {
    View::new(&datagram.bytes).is_ok_and(|view| view.group() == group)
}

/// The session that a welcome tells.
fn session(datagram: &Datagram, keys: &Keys) -> Option<SessionId> {
    let packet = View::new(&datagram.bytes).ok()?.check(keys).ok()?;
    let Body::Handshake(header) = packet.header.body else { return None };
    match Handshake::read(header.operation, packet.payload).ok()? {
        Handshake::Welcome { session, .. } => Some(session),
        Handshake::Invite(_) | Handshake::Hello => None,
    }
}
