//! Packets that a group receives.

use std::net::SocketAddr;

use treecast_wire::{
    Acknowledgment, Authentication, Body, Contribution, Control, ControlHeader, Crcs, Data, Distribution,
    Eviction, Handshake, Header, MemberId, Packet, PayloadChecksum, RootLoss, Sequence, Timestamp,
};

use super::handshake::HandshakeStep;
use super::member_table::{ControlSender, MemberTable};
use super::membership::{NewPlace, TableStep};
use super::reduction::FromChild;
use super::{Group, Role};
use crate::flow::{Ack, Carrier, DataSource, Flow, FlowConfig, ParentSeries, Received, Timeouts};
use crate::{Ending, Event, GroupCounters, Nanoseconds, Settings, Start};

impl Group {
    /// Handles a packet of this group's session; returns the slot for its payload if that is to be
    /// stored.
    pub fn handle_packet(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        from: SocketAddr,
        packet: &Packet<'_>,
        carrier: Carrier,
    ) -> Option<u32> {
        let Header { sender, sequence, timestamp, epoch, body, .. } = packet.header;
        // Payloads may have no checksum where all go on streams: nobody is to bring another one in
        // a datagram.
        let is_on_its_way = match body {
            // One without a CRC goes on streams.
            Body::Data(Data { checksum: PayloadChecksum(0), length: 1.., .. })
                if carrier == Carrier::Datagram && self.has_crcs_in_datagrams_only() =>
            {
                false
            }
            Body::Data(_) => {
                self.flow.as_ref().map_or(carrier == Carrier::Datagram, |flow| flow.has_carrier(carrier))
            }
            _ => carrier == Carrier::Datagram,
        };
        if !is_on_its_way {
            self.counters_mut().invalid += 1;
            return None;
        }
        match body {
            Body::Data(data) => {
                return self.handle_data(now, (sender, from), sequence, &data, timestamp, carrier);
            }
            Body::Acknowledgment(acknowledgment) | Body::Nak(acknowledgment, _) => {
                let missing = if let Body::Nak(_, missing) = body { Some(missing) } else { None };
                let Acknowledgment { stable, receive_window, echo, is_reached, is_congested } =
                    acknowledgment;
                let ack = Ack {
                    epoch,
                    next: sequence,
                    stable,
                    receive_window,
                    missing,
                    timestamp,
                    echo,
                    is_reached,
                    is_congested,
                };
                self.handle_ack(now, sender, from, &ack);
            }
            Body::Probe | Body::PathProbe { .. } => self.handle_probe(now, sender, from, sequence, timestamp),
            Body::Control(ControlHeader { operation, nonce, .. }) => {
                let sender = ControlSender { member: sender, from, nonce, sent_at: timestamp };
                match Control::read(operation, packet.payload) {
                    Ok(control) => self.handle_control(now, settings, &sender, epoch, control),
                    Err(_) => self.counters_mut().invalid += 1,
                }
            }
            Body::Heartbeat => self.handle_heartbeat(now, sender, from, timestamp),
            // These are handled apart.
            Body::Handshake(_) | Body::Attach(_) => {}
        }
        None
    }

    fn handle_data(
        &mut self,
        now: Nanoseconds,
        (sender, from): (MemberId, SocketAddr),
        packet: Sequence,
        data: &Data,
        sent_at: Timestamp,
        carrier: Carrier,
    ) -> Option<u32> {
        let (Role::Member(membership), Some(flow)) = (&mut self.role, &mut self.flow) else {
            self.count_unknown_sender();
            return None;
        };
        let is_multicast = data.distribution == Distribution::Multicast;
        let source = match (membership.is_parent(sender, from), is_multicast) {
            (true, false) => DataSource::Parent(carrier),
            (true, true) if membership.is_multicast(sender, from) => DataSource::ParentByMulticast,
            (false, true) if membership.is_multicast(sender, from) => DataSource::RootByMulticast,
            _ => {
                self.count_unknown_sender();
                return None;
            }
        };
        let Received { slot, is_fresh } = flow.handle_data(now, packet, data, sent_at, source);
        if is_fresh && is_multicast {
            membership.handle_heard_by_multicast(now);
        } else if is_fresh {
            membership.handle_heard(now, sender, from);
        }
        if let Some(packet) = flow.inconsistent() {
            self.end(now, Ending::Inconsistent(packet));
        }
        slot
    }

    fn handle_heartbeat(&mut self, now: Nanoseconds, sender: MemberId, from: SocketAddr, sent_at: Timestamp) {
        match (&mut self.flow, &mut self.role) {
            (Some(flow), Role::Member(membership)) if membership.is_multicast(sender, from) => {
                if flow.handle_heartbeat(now, sent_at) {
                    membership.handle_heard_by_multicast(now);
                }
            }
            _ => self.count_unknown_sender(),
        }
    }

    fn handle_ack(&mut self, now: Nanoseconds, sender: MemberId, from: SocketAddr, ack: &Ack) {
        match (&mut self.flow, &mut self.role) {
            (Some(flow), role) if flow.is_child(sender, from) => {
                if flow.handle_ack(now, sender, ack) {
                    match role {
                        Role::Root(table) => table.handle_heard(now, sender, from),
                        Role::Member(membership) => membership.handle_heard(now, sender, from),
                    }
                }
            }
            (_, Role::Root(table)) => match table.handle_probe_answer(now, sender, from, ack.timestamp) {
                Some(true) => {}
                Some(false) => self.counters_mut().stale += 1,
                None => self.count_unknown_sender(),
            },
            _ => self.count_unknown_sender(),
        }
    }

    fn handle_probe(
        &mut self,
        now: Nanoseconds,
        sender: MemberId,
        from: SocketAddr,
        sequence: Sequence,
        timestamp: Timestamp,
    ) {
        match (&mut self.flow, &mut self.role) {
            (Some(flow), Role::Member(membership)) if membership.is_parent(sender, from) => {
                if flow.is_from_parent_now(ParentSeries::Probes, timestamp) {
                    membership.handle_heard(now, sender, from);
                    flow.handle_probe(now, sequence, timestamp);
                }
            }
            (Some(_), Role::Member(membership)) if membership.is_root_member(sender, from) => {
                if membership.is_from_root_now(now, timestamp) {
                    membership.handle_root_probe(timestamp);
                } else {
                    self.counters_mut().stale += 1;
                }
            }
            (None, Role::Member(membership)) if membership.is_root_member(sender, from) => {
                // It waits for its place.
                if !membership.is_from_root_now(now, timestamp) {
                    self.counters_mut().stale += 1;
                }
            }
            _ => self.count_unknown_sender(),
        }
    }

    fn has_crcs_in_datagrams_only(&self) -> bool {
        self.header.keys().is_some_and(|keys| keys.crcs == Crcs::Datagrams)
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
        sender: &ControlSender,
        epoch: u32,
        control: Control,
    ) {
        let is_known = match (&mut self.role, control) {
            (_, Control::Contribution(contribution)) => self.handle_contribution(sender, epoch, contribution),
            (Role::Member(membership), Control::RootLost(loss))
                if membership.is_parent(sender.member, sender.from) =>
            {
                self.handle_root_lost(now, settings, loss, sender.sent_at);
                true
            }
            (Role::Root(table), control) if is_for_root(&control) => {
                if table.is_now(sender) {
                    handle_control_at_root(table, now, sender, epoch, &control)
                } else {
                    self.counters_mut().stale += 1;
                    true
                }
            }
            (Role::Member(membership), control)
                if membership.is_root(sender.from) && is_of_root(&control) =>
            {
                if membership.nonce() != sender.nonce {
                    // It is for a member that had this address before.
                    false
                } else if membership.is_from_root_now(now, sender.sent_at) {
                    membership.set_root_member(sender.member);
                    self.handle_control_of_root(now, settings, epoch, control)
                } else {
                    self.counters_mut().stale += 1;
                    true
                }
            }
            _ => false,
        };
        if !is_known {
            self.count_unknown_sender();
        }
    }

    /// Handles the contribution of a child; false if the sender is none.
    fn handle_contribution(
        &mut self,
        sender: &ControlSender,
        epoch: u32,
        contribution: Contribution,
    ) -> bool {
        let &ControlSender { member: child, from, sent_at, .. } = sender;
        let Some(flow) = self.flow.as_ref().filter(|flow| flow.is_child(child, from)) else { return false };
        // One whose result is there already is sent again because that has not arrived yet.
        let is_needed = !contribution.packet.is_before(flow.next());
        let latest = flow.latest_timestamp(child);
        let new = FromChild { child, epoch, sent_at, contribution };
        if is_needed && !self.reduction.handle_child(new, latest) {
            self.counters_mut().stale += 1;
        }
        true
    }

    /// Handles the parent's report that the root is gone.
    fn handle_root_lost(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        loss: RootLoss,
        sent_at: Timestamp,
    ) {
        let (Role::Member(membership), Some(flow)) = (&mut self.role, &mut self.flow) else { return };
        if !flow.is_from_parent_now(ParentSeries::Control, sent_at) {
            return;
        }
        match loss {
            RootLoss::Restarted => membership.on_root_restarted(),
            RootLoss::Silent => {
                if membership.on_root_reported_silent(now, settings, flow.readable().1) {
                    // The children ask at the same time, so that all know in one bound, whatever
                    // the depth of the tree.
                    self.tell_children(now, loss);
                }
            }
        }
    }

    /// Handles a control message of the root at another member; false if it is none that a root
    /// sends.
    fn handle_control_of_root(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        epoch: u32,
        control: Control,
    ) -> bool {
        let Role::Member(membership) = &mut self.role else { return false };
        match control {
            Control::Table(table) => {
                match membership.handle_table(epoch, table) {
                    TableStep::Complete => {
                        membership.on_answered(now, settings);
                        self.take_place(now, settings);
                    }
                    TableStep::Contradiction => self.end(now, Ending::ContradictoryTables),
                    TableStep::Known | TableStep::Partial => membership.on_answered(now, settings),
                }
                true
            }
            Control::Evicted(why) => {
                // The root can be wrong: this member may have the place of one that was restarted,
                // whose acknowledgments it had.
                let has_all = self.flow.as_ref().is_some_and(Flow::is_closed);
                if why == Eviction::Closed && has_all {
                    membership.release();
                } else {
                    let ending = membership.on_evicted(now, settings, why);
                    self.end(now, ending);
                }
                true
            }
            _ => false,
        }
    }

    /// Handles a step of a handshake, which the keys of handshakes have verified.
    pub fn handle_handshake(&mut self, now: Nanoseconds, from: SocketAddr, packet: &Packet<'_>) {
        let Body::Handshake(ControlHeader { operation, nonce, .. }) = packet.header.body else { return };
        let Ok(step) = Handshake::read(operation, packet.payload) else {
            self.counters_mut().invalid += 1;
            return;
        };
        match (&mut self.role, step) {
            (Role::Root(table), Handshake::Hello) => table.handle_hello(from, nonce),
            (Role::Member(membership), step) if membership.is_root(from) => {
                match membership.handle_handshake(now, self.header.session(), step, nonce) {
                    Some(HandshakeStep::Begins(session)) => {
                        membership.set_root_member(packet.header.sender);
                        self.header.set_session(session, Authentication::Header);
                    }
                    Some(HandshakeStep::RootRestarted) if self.flow.is_none() => {
                        // Nothing has been received in the old session.
                        self.header.forget_session();
                        membership.restart_handshake(now);
                    }
                    Some(HandshakeStep::RootRestarted) => membership.on_root_restarted(),
                    Some(HandshakeStep::Stale) => self.counters_mut().stale += 1,
                    None => {}
                }
            }
            _ => self.count_unknown_sender(),
        }
    }

    /// Takes the place that a complete table gives.
    fn take_place(&mut self, now: Nanoseconds, settings: &Settings) {
        let Role::Member(membership) = &mut self.role else { return };
        let Some(NewPlace { epoch, is_new_parent, table, children, multicast }) = membership.take_place(now)
        else {
            self.counters_mut().invalid += 1;
            return;
        };
        let group = self.header.group;
        let slot_bytes = u64::from(table.slots) * u64::from(table.payload_bytes_max);
        let asked_bytes = slot_bytes + Flow::heap_bytes(table.slots, children.len()) as u64;
        if asked_bytes > settings.slot_bytes_max {
            self.end(now, Ending::TooMuchMemory { asked_bytes, bytes_max: settings.slot_bytes_max });
            return;
        }
        if table.member != self.header.member {
            // Nothing is kept of a place that this host had under another number.
            self.flow = None;
        }
        self.header.epoch = epoch;
        self.header.member = table.member;
        self.header.set_payload_checks(table.authentication, table.transport.crcs(table.integrity));
        let flow = self.flow.get_or_insert_with(|| {
            self.events.push(Event::Placed {
                group,
                member: table.member,
                start: table.start,
                slots: table.slots,
                payload_bytes_max: table.payload_bytes_max,
                offload: table.offload,
                transport: table.transport,
                encrypted_session: self.header.session().filter(|_| table.is_encrypted),
                multicast,
            });
            Flow::new(FlowConfig {
                slots: table.slots,
                payload_bytes_max: table.payload_bytes_max,
                offload: table.offload,
                integrity: table.integrity,
                transport: table.transport,
                multicast,
                start: Start { packet: table.start, message: table.message, bytes: table.bytes },
                bytes_per_s_max: None,
                is_root: false,
                timeouts: Timeouts::from(settings),
            })
        });
        if is_new_parent {
            flow.on_new_parent();
        }
        flow.set_children(now, epoch, &children);
        self.reduction.set_children(flow.children());
    }
}

/// Whether only the root sends such a message. It and the member use the same nonce, and each could
/// get back its own packet.
const fn is_of_root(control: &Control) -> bool {
    matches!(control, Control::Table(_) | Control::Evicted(_))
}

/// Whether members send such a message to the root.
const fn is_for_root(control: &Control) -> bool {
    !is_of_root(control) && !matches!(control, Control::RootLost(_) | Control::Contribution(_))
}

/// Handles a control message at the root; false if the sender is not a member, or members never
/// send such a message.
fn handle_control_at_root(
    table: &mut MemberTable,
    now: Nanoseconds,
    sender: &ControlSender,
    epoch: u32,
    control: &Control,
) -> bool {
    match control {
        Control::TableAck(readers) => table.handle_table_ack(now, sender, epoch, readers.as_ref()),
        Control::Suspect(member) => table.handle_suspect(now, sender, *member),
        Control::StateLost(member) => table.handle_state_lost(sender, *member),
        // Otherwise it is a copy of the join of another host.
        Control::Join(address) if *address == sender.from => {
            table.handle_join(now, sender);
            true
        }
        Control::Leave => table.handle_leave(sender),
        Control::Join(_)
        | Control::Table(_)
        | Control::Evicted(_)
        | Control::RootLost(_)
        | Control::Contribution(_) => false,
    }
}
