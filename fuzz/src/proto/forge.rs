//! Packets that a script forges, under keys of the group.

use super::script::{AnyBody, Number, Step, Time};
use super::*;

impl Trial {
    pub(super) fn forge(&mut self, step: &Step) {
        let Step::Forge { from, to, session: number, of, life, sender, epoch, sequence, time, body } = step
        else {
            return;
        };
        let mut keys = self.session_keys(number % self.sessions);
        let nonce = nonce(of % NODES as u8, *life % 4);
        let number = |number: Number| self.number(number);
        let (body, payload) = match *body {
            AnyBody::Data { message, offset, length, rest, ack_requested, close } => {
                let known = self.read[1].map_or(self.queued.0, |read| read.message);
                let length = if close { 0 } else { u32::from(length % 600) };
                let (offset, rest) = if length == 0 { (0, 0) } else { (offset, rest) };
                let message_length = u64::from(offset) + u64::from(length) + u64::from(rest);
                let data = Data {
                    message: known.wrapping_add_signed(message.into()),
                    offset: offset.into(),
                    length,
                    message_length,
                    checksum: PayloadChecksum(0),
                    ack_requested,
                    retransmitted: false,
                    close,
                    distribution: [
                        Distribution::Tree,
                        Distribution::Multicast,
                        Distribution::MulticastAndTree,
                    ][usize::from(rest) % 3],
                };
                let payload = payload_of(data.message, length);
                (
                    Body::Data(Data { checksum: keys.data_checksum(number(*sequence), &payload), ..data }),
                    payload,
                )
            }
            AnyBody::Acknowledgment { stable, window } => {
                let acknowledgment = self.acknowledgment(stable, window, time);
                (Body::Acknowledgment(acknowledgment), vec![])
            }
            AnyBody::Nak { stable, window, first, bits } => {
                let acknowledgment = self.acknowledgment(stable, window, time);
                let missing = Missing { first: number(first), bits: bits | 1 };
                (Body::Nak(acknowledgment, missing), vec![])
            }
            AnyBody::Probe if life & 4 != 0 => (Body::Heartbeat, vec![]),
            AnyBody::Probe if life & 8 != 0 => {
                (Body::PathProbe { length: (*life).into() }, vec![0; usize::from(*life)])
            }
            AnyBody::Probe => (Body::Probe, vec![]),
            ref step @ (AnyBody::Invite(_) | AnyBody::Hello | AnyBody::Welcome(_)) => {
                keys = key().handshake_keys();
                let step = match *step {
                    AnyBody::Invite(number) => Handshake::Invite(session(number)),
                    AnyBody::Welcome(number) => Handshake::Welcome {
                        session: session(number),
                        address: address(usize::from(*of) % 4),
                    },
                    _ => Handshake::Hello,
                };
                let payload = step.write();
                (Body::Handshake(control_header(&keys, step.operation(), nonce, &payload)), payload)
            }
            ref control => {
                let control = self.control(control);
                let payload = control.write();
                (Body::Control(control_header(&keys, control.operation(), nonce, &payload)), payload)
            }
        };
        let header = Header {
            group: GROUP,
            epoch: u32::from(*epoch),
            sender: MemberId(u32::from(*sender % 5)),
            sequence: number(*sequence),
            timestamp: self.time(time),
            body,
        };
        let bytes = [&header.write(&keys.header)[..], &payload].concat();
        let parent = usize::from(*from) % 4;
        // A parent that has the keys sends what it likes on its stream.
        if let Some(stream) = &mut self.streams[usize::from(*to) % NODES]
            && life & 16 != 0
            && stream.parent == parent
        {
            stream.packets.push_back(bytes);
            return;
        }
        self.arrive(usize::from(*from) % 4, usize::from(*to) % NODES, &bytes);
    }

    fn acknowledgment(&self, stable: Number, window: u8, time: &Time) -> Acknowledgment {
        Acknowledgment {
            stable: self.number(stable),
            receive_window: window.into(),
            echo: self.time(time),
            is_reached: window & 1 != 0,
            is_congested: window & 2 != 0,
        }
    }

    const fn time(&self, time: &Time) -> Timestamp {
        Timestamp(match time {
            Time::Now => self.now.0,
            Time::None => 0,
            Time::Ago(us) => self.now.0.saturating_sub(*us as u64 * 1_000),
            Time::Any(time) => *time,
        })
    }

    fn control(&self, body: &AnyBody) -> Control {
        let member = |member: u8| MemberId(u32::from(member % 6));
        match *body {
            AnyBody::Table { member: own, message, bytes, start, slots, part, parts, neighbours } => {
                let is_multicast = parts & 4 != 0;
                let parts = u16::from(parts % 4) + 1;
                let mut neighbours = neighbours.map(|(number, is_child)| Neighbour {
                    member: member(number),
                    role: if is_child { Role::Child } else { Role::Parent },
                    address: address(usize::from(number % 6)),
                });
                if is_multicast {
                    (neighbours[1].role, neighbours[1].address) = (Role::Multicast, multicast_address());
                }
                Control::Table(Table {
                    member: member(own),
                    message: message.into(),
                    bytes: bytes.into(),
                    start: self.number(start),
                    slots: 1 << (slots % 8),
                    payload_bytes_max: PAYLOAD_BYTES,
                    offload: if is_multicast { Offload::Switch } else { Offload::Nic },
                    authentication: authentication(is_multicast),
                    integrity: Integrity::default(),
                    transport: transport(if is_multicast { 3 } else { slots }),
                    is_encrypted: slots % 5 == 1,
                    part: u16::from(part) % parts,
                    parts,
                    neighbours: neighbours.to_vec(),
                })
            }
            AnyBody::Suspect(number) => Control::Suspect(member(number)),
            AnyBody::StateLost(number) => Control::StateLost(member(number)),
            AnyBody::Join(node) => Control::Join(address(usize::from(node % 4))),
            AnyBody::Leave => Control::Leave,
            AnyBody::Evicted(why) => Control::Evicted(Eviction::ALL[usize::from(why) % Eviction::ALL.len()]),
            AnyBody::RootLost(restarted) => {
                Control::RootLost(if restarted { RootLoss::Restarted } else { RootLoss::Silent })
            }
            AnyBody::Contribution { packet, bytes } => {
                Control::Contribution(contribution(self.number(packet), bytes))
            }
            _ => Control::TableAck(None),
        }
    }
}
