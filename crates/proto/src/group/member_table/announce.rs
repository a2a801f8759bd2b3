//! The root's messages about the tree: tables, evictions and probes.

use treecast_wire::{Control, Handshake, MemberId, Neighbour, Nonce, Role, Sequence, Table};

use super::failure::REFUTATION_HOLDS;
use super::record::{MemberRecord, Suspicion};
use super::{MemberTable, SUSPECT_PROBE_INTERVAL};
use crate::group::header::HeaderTemplate;
use crate::{Nanoseconds, Transmit};

/// The average time between two announcements to members that do not answer: a root of many sends
/// to each less often.
const ANNOUNCEMENT_SPACING: Nanoseconds = Nanoseconds::from_us(50);

impl MemberTable {
    /// The next packet to be sent.
    pub fn poll_transmit(&mut self, now: Nanoseconds, header: &mut HeaderTemplate) -> Option<Transmit> {
        if let Some((to, nonce)) = self.hellos.pop() {
            let welcome = Handshake::Welcome { session: header.session()?, address: to };
            return Some(header.handshake(now, to, nonce, &welcome));
        }
        if let Some((to, nonce, why)) = self.evictions.pop() {
            return Some(header.control(now, to, nonce, &Control::Evicted(why)));
        }
        if self.is_over() {
            let to = self.invitations.pop()?;
            return Some(header.handshake(now, to, Nonce(0), &Handshake::Invite(header.session()?)));
        }
        if let Some(to) = self.waiting.pop() {
            return Some(header.probe(now, to, Sequence(0)));
        }
        while let Some(member) = self.tasks.first_due(now) {
            let transmit = self.poll_member(now, member, header);
            self.schedule(member);
            if transmit.is_some() {
                return transmit;
            }
        }
        None
    }

    /// When a member is to be sent something, or its refuted suspicion is over.
    pub(super) fn task_time(&self, member: MemberId) -> Option<Nanoseconds> {
        let record = self.record(member);
        if !record.is_present() || member == self.root {
            return None;
        }
        let suspicion = record.suspicion.as_ref().map(|suspicion| match suspicion.refuted_at {
            None => suspicion.probe_at,
            Some(at) => at + REFUTATION_HOLDS,
        });
        [self.wants_table(record).then_some(record.table_at), suspicion].into_iter().flatten().min()
    }

    const fn wants_table(&self, record: &MemberRecord) -> bool {
        record.acked_epoch < self.epoch || record.is_table_requested || record.table_part > 0
    }

    /// A member is to be sent its table once more.
    pub(super) fn announce_again(&mut self, now: Nanoseconds, member: MemberId) {
        self.record_mut(member).announce_again(now);
        self.schedule(member);
    }

    /// The message that is due for a member now.
    fn poll_member(
        &mut self,
        now: Nanoseconds,
        member: MemberId,
        header: &mut HeaderTemplate,
    ) -> Option<Transmit> {
        let record = self.record(member);
        let &MemberRecord { address, nonce, .. } = record;
        if self.wants_table(record) && record.table_at <= now {
            let Some(nonce) = nonce else {
                self.on_announced(now, member);
                return Some(header.handshake(now, address, Nonce(0), &Handshake::Invite(header.session()?)));
            };
            let table = self.next_table_part(now, member);
            return Some(header.control(now, address, nonce, &Control::Table(table)));
        }
        let suspicion = &mut self.record_mut(member).suspicion;
        match suspicion {
            Some(Suspicion { refuted_at: None, probe_at, .. }) if *probe_at <= now => {
                *probe_at = now + SUSPECT_PROBE_INTERVAL;
                Some(header.probe(now, address, Sequence(0)))
            }
            Some(Suspicion { refuted_at: Some(at), .. }) if *at + REFUTATION_HOLDS <= now => {
                *suspicion = None;
                None
            }
            _ => None,
        }
    }

    /// A member was sent its table, or an invitation.
    fn on_announced(&mut self, now: Nanoseconds, member: MemberId) {
        let interval_min = Nanoseconds(ANNOUNCEMENT_SPACING.0 * self.records.len() as u64);
        self.record_mut(member).on_announced(now, interval_min);
    }

    /// The part of a member's table that is to be sent next.
    fn next_table_part(&mut self, now: Nanoseconds, member: MemberId) -> Table {
        let this = &*self;
        let record = this.record(member);
        let neighbour =
            |role, member: MemberId| Neighbour { member, role, address: this.record(member).address };
        let parent = record.parent.into_iter().map(|parent| neighbour(Role::Parent, parent));
        let children = record.children.iter().map(|&child| neighbour(Role::Child, child));
        let multicast =
            this.multicast.map(|address| Neighbour { member: this.root, role: Role::Multicast, address });
        let count = 1 + usize::from(multicast.is_some()) + record.children.len();
        let parts = count.div_ceil(Table::PART_NEIGHBOURS_MAX) as u16;
        let part = record.table_part.min(parts - 1);
        let first = usize::from(part) * Table::PART_NEIGHBOURS_MAX;
        let neighbours =
            parent.chain(multicast).chain(children).skip(first).take(Table::PART_NEIGHBOURS_MAX).collect();
        let table = Table { member, part, parts, neighbours, ..self.common.clone() };
        self.record_mut(member).table_part = part + 1;
        if part + 1 == parts {
            self.on_announced(now, member);
        }
        table
    }
}
