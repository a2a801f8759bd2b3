//! What the root sends to members about the tree: tables, evictions and probes.

use treecast_wire::{Control, Handshake, MemberId, Neighbour, Nonce, Role, Sequence, Table};

use super::record::MemberRecord;
use super::{MemberTable, SUSPECT_PROBE_INTERVAL};
use crate::group::header::HeaderTemplate;
use crate::{Nanoseconds, Settings, Transmit};

impl MemberTable {
    /// The next packet to be sent.
    pub fn poll_transmit(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        header: &mut HeaderTemplate,
    ) -> Option<Transmit> {
        if let Some((to, nonce)) = self.hellos.pop() {
            let welcome = Handshake::Welcome { session: header.session()?, address: to };
            return Some(header.handshake(now, to, nonce, &welcome));
        }
        if !self.is_due(now) {
            return None;
        }
        let transmit = self.next_due(now, header);
        if transmit.is_none() {
            self.is_dirty = false;
            self.timer_at = self.next_timer(settings);
        }
        transmit
    }

    fn next_timer(&self, settings: &Settings) -> Option<Nanoseconds> {
        let timer = |member: MemberId| {
            let record = self.record(member);
            let is_unacked = record.acked_epoch < self.epoch;
            let timeout = if record.acked_epoch == 0 {
                self.first_ack_timeout(settings)
            } else {
                settings.peer_timeout
            };
            let lost = record.heard_at.max(record.table_since) + timeout + Nanoseconds(1);
            let probe = record.open_suspicion().map(|suspicion| suspicion.probe_at);
            [is_unacked.then_some(record.table_at), is_unacked.then_some(lost), probe]
                .into_iter()
                .flatten()
                .min()
        };
        self.others().filter_map(timer).min()
    }

    fn next_due(&mut self, now: Nanoseconds, header: &mut HeaderTemplate) -> Option<Transmit> {
        if let Some((to, nonce, why)) = self.evictions.pop() {
            return Some(header.control(now, to, nonce, &Control::Evicted(why)));
        }
        if self.is_over() {
            let to = self.invitations.pop()?;
            return Some(header.handshake(now, to, Nonce(0), &Handshake::Invite(header.session()?)));
        }
        let due = self.others().find(|&member| {
            let record = self.record(member);
            let is_wanted =
                record.acked_epoch < self.epoch || record.is_table_requested || record.table_part > 0;
            record.table_at <= now && is_wanted
        });
        if let Some(member) = due {
            let &MemberRecord { address, nonce, .. } = self.record(member);
            let Some(nonce) = nonce else {
                self.record_mut(member).on_announced(now);
                return Some(header.handshake(now, address, Nonce(0), &Handshake::Invite(header.session()?)));
            };
            let table = self.next_table_part(now, member);
            return Some(header.control(now, address, nonce, &Control::Table(table)));
        }
        let is_probe_due = |member: &MemberId| {
            self.record(*member).open_suspicion().is_some_and(|suspicion| suspicion.probe_at <= now)
        };
        let suspect = self.others().find(is_probe_due)?;
        let record = self.record_mut(suspect);
        if let Some(suspicion) = &mut record.suspicion {
            suspicion.probe_at = now + SUSPECT_PROBE_INTERVAL;
        }
        Some(header.probe(now, record.address, Sequence(0)))
    }

    /// The part of a member's table that is to be sent next.
    fn next_table_part(&mut self, now: Nanoseconds, member: MemberId) -> Table {
        let this = &*self;
        let record = this.record(member);
        let neighbour =
            |role, member: MemberId| Neighbour { member, role, address: this.record(member).address };
        let parent = record.parent.into_iter().map(|parent| neighbour(Role::Parent, parent));
        let children = record.children.iter().map(|&child| neighbour(Role::Child, child));
        let parts = (1 + record.children.len()).div_ceil(Table::PART_NEIGHBOURS_MAX) as u16;
        let part = record.table_part.min(parts - 1);
        let first = usize::from(part) * Table::PART_NEIGHBOURS_MAX;
        let neighbours = parent.chain(children).skip(first).take(Table::PART_NEIGHBOURS_MAX).collect();
        let table = Table { member, part, parts, neighbours, ..self.common.clone() };
        let record = self.record_mut(member);
        record.table_part = part + 1;
        if record.table_part == parts {
            record.on_announced(now);
        }
        table
    }
}
