//! Packets that a group receives.

use std::net::SocketAddr;

use treecast_wire::{Body, Control, Eviction, Header, MemberId, Packet, Sequence, Timestamp};

use super::membership::NewPlace;
use super::{Group, Role};
use crate::flow::{Ack, Flow, FlowConfig, Timeouts};
use crate::{Ending, Event, GroupCounters, Nanoseconds, Settings};

impl Group {
    /// Handles a packet of this group; returns the slot for its payload if that is to be stored.
    pub fn handle_packet(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        from: SocketAddr,
        packet: &Packet<'_>,
    ) -> Option<u32> {
        let Header { sender, sequence, timestamp, epoch, body, .. } = packet.header;
        match &mut self.role {
            Role::Root(table) => table.handle_heard(now, sender, from),
            Role::Member(membership) => membership.handle_heard(now, sender, from),
        }
        match body {
            Body::Data(data) => {
                if self.is_parent(sender) {
                    let checksum = packet.payload.checksum();
                    return self.flow.as_mut()?.handle_data(sequence, &data, checksum, timestamp);
                }
                self.count_unknown_sender();
            }
            Body::Acknowledgment(acknowledgment) | Body::Nak(acknowledgment, _) => {
                let missing = if let Body::Nak(_, missing) = body { Some(missing) } else { None };
                let ack = Ack {
                    epoch,
                    next: sequence,
                    stable: acknowledgment.stable,
                    receive_window: acknowledgment.receive_window,
                    missing,
                    timestamp,
                };
                match &mut self.flow {
                    Some(flow) if flow.has_child(sender) => flow.handle_ack(now, sender, &ack),
                    // The root has probed a suspect that is not its child.
                    _ if matches!(&self.role, Role::Root(table) if table.has(sender)) => {}
                    _ => self.count_unknown_sender(),
                }
            }
            Body::Probe => self.handle_probe(sender, from, sequence, timestamp),
            Body::Control { operation, .. } => match Control::read(operation, packet.payload.bytes()) {
                Ok(control) => self.handle_control(now, settings, from, &packet.header, control),
                Err(_) => self.counters_mut().invalid += 1,
            },
        }
        None
    }

    fn handle_probe(&mut self, sender: MemberId, from: SocketAddr, sequence: Sequence, timestamp: Timestamp) {
        match (&mut self.flow, &mut self.role) {
            (Some(flow), Role::Member(membership)) if membership.is_parent(sender) => {
                flow.handle_probe(sequence, timestamp);
            }
            (Some(_), Role::Member(membership)) if membership.is_root(from) => {
                membership.handle_root_probe(timestamp);
            }
            _ => self.count_unknown_sender(),
        }
    }

    fn is_parent(&self, member: MemberId) -> bool {
        matches!(&self.role, Role::Member(membership) if membership.is_parent(member))
    }

    fn count_unknown_sender(&mut self) {
        self.counters_mut().unknown_sender += 1;
    }

    fn counters_mut(&mut self) -> &mut GroupCounters {
        self.flow.as_mut().map_or(&mut self.early_counters, Flow::counters_mut)
    }

    fn handle_control(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        from: SocketAddr,
        header: &Header,
        control: Control,
    ) {
        let Header { sender, epoch, timestamp, .. } = *header;
        let is_known = match (&mut self.role, control) {
            (Role::Root(table), Control::TableAck) => {
                table.handle_table_ack(now, sender, from, epoch, timestamp)
            }
            (Role::Root(table), Control::Suspect(member)) => {
                table.handle_suspect(now, sender, member, from);
                true
            }
            (Role::Root(table), Control::StateLost(member)) => {
                table.handle_state_lost(now, sender, member, from)
            }
            (Role::Root(table), Control::Join) => {
                table.handle_join(now, from, timestamp);
                true
            }
            (Role::Root(table), Control::Leave) => {
                table.handle_leave(now, sender, from);
                true
            }
            (Role::Member(membership), Control::Table(table)) if membership.is_root(from) => {
                if membership.handle_table(now, epoch, table) {
                    self.take_place(now, settings);
                }
                true
            }
            (Role::Member(membership), Control::Evicted(why)) if membership.is_root(from) => {
                // A member without a place has nothing left to read.
                if why == Eviction::Closed && self.flow.is_some() {
                    membership.release();
                } else {
                    self.end(Ending::Evicted(why));
                }
                true
            }
            _ => false,
        };
        if !is_known {
            self.count_unknown_sender();
        }
    }

    /// Takes the place that a complete table gives.
    fn take_place(&mut self, now: Nanoseconds, settings: &Settings) {
        let Role::Member(membership) = &mut self.role else { return };
        let Some(NewPlace { epoch, table, children }) = membership.take_place(now) else {
            self.counters_mut().invalid += 1;
            return;
        };
        let group = self.header.group;
        let asked_bytes = u64::from(table.slots) * u64::from(table.payload_bytes_max);
        if asked_bytes > settings.slot_bytes_max {
            self.end(Ending::TooMuchMemory { asked_bytes, bytes_max: settings.slot_bytes_max });
            return;
        }
        if table.member != self.header.member {
            // Nothing is kept of a place that this host had under another number.
            self.flow = None;
        }
        self.header.epoch = epoch;
        self.header.member = table.member;
        let flow = self.flow.get_or_insert_with(|| {
            self.events.push(Event::Placed {
                group,
                member: table.member,
                start: table.start,
                slots: table.slots,
                payload_bytes_max: table.payload_bytes_max,
                offload: table.offload,
            });
            Flow::new(FlowConfig {
                slots: table.slots,
                payload_bytes_max: table.payload_bytes_max,
                offload: table.offload,
                start: table.start,
                bytes_per_s_max: None,
                is_root: false,
                timeouts: Timeouts::from(settings),
            })
        });
        flow.set_children(now, epoch, &children);
    }
}
