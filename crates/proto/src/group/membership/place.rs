//! A member's place in the tree: the tables by which the root gives it, and which of them are
//! taken.

use std::net::SocketAddr;

use treecast_wire::{Authentication, Neighbour, Offload, Role, Table};

use super::{Inquiry, Membership};
use crate::Nanoseconds;
use crate::flow::ChildAddress;

/// A table of which some parts have arrived.
#[derive(Debug, Clone)]
pub(super) struct IncomingTable {
    epoch: u32,
    parts: Vec<Option<Table>>,
}

/// The meaning of a part of a table for a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::group) enum TableStep {
    /// Of the table that the member has.
    Known,
    /// Other parts of a new table are missing.
    Partial,
    /// All parts of a new table are there.
    Complete,
    /// The root cannot have sent both it and the table that the member has.
    Contradiction,
}

/// The contents of a complete table.
#[derive(Debug)]
pub(in crate::group) struct NewPlace {
    pub epoch: u32,
    pub is_new_parent: bool,
    /// The first part of the table with the settings of the group.
    pub table: Table,
    pub children: Vec<ChildAddress>,
    pub multicast: Option<SocketAddr>,
}

impl Membership {
    /// Takes a part of a table that is later than those before.
    pub fn handle_table(&mut self, epoch: u32, table: Table) -> TableStep {
        if self.contradicts(epoch, &table) {
            return TableStep::Contradiction;
        }
        if epoch == self.epoch {
            // The root has not received the acknowledgment of this table.
            self.is_table_ack_due = true;
            return TableStep::Known;
        }
        let parts = usize::from(table.parts);
        let incoming = match &mut self.incoming {
            Some(incoming) if incoming.epoch > epoch => return TableStep::Known,
            Some(incoming) if incoming.epoch == epoch && incoming.parts.len() == parts => incoming,
            _ => self.incoming.insert(IncomingTable { epoch, parts: vec![None; parts] }),
        };
        let part = usize::from(table.part);
        incoming.parts[part] = Some(table);
        if incoming.parts.iter().all(Option::is_some) { TableStep::Complete } else { TableStep::Partial }
    }

    /// Whether a table contradicts the one that this member has: a root's epochs never decrease,
    /// the tables of an epoch are equal, and the settings of a group never change. With a forged
    /// table the member would wait without end for packets that no node sends.
    fn contradicts(&self, epoch: u32, table: &Table) -> bool {
        let Some(known) = &self.table else { return false };
        let settings = |table: &Table| {
            let &Table { slots, payload_bytes_max, offload, authentication, integrity, .. } = table;
            let &Table { transport, is_encrypted, .. } = table;
            (slots, payload_bytes_max, offload, authentication, integrity, transport, is_encrypted)
        };
        let part = known.neighbours.chunks(Table::PART_NEIGHBOURS_MAX).nth(table.part.into());
        let is_equal = known.member == table.member && part == Some(&table.neighbours);
        epoch < self.epoch || settings(known) != settings(table) || epoch == self.epoch && !is_equal
    }

    /// Takes the place that the complete table gives; `None` if that names no parent, or no
    /// multicast address with offload `switch`, or one with another offload, or payloads without
    /// codes with `switch`.
    pub fn take_place(&mut self, now: Nanoseconds) -> Option<NewPlace> {
        let IncomingTable { epoch, parts } = self.incoming.take()?;
        let mut parts = parts.into_iter().flatten();
        let mut table = parts.next()?;
        table.neighbours.extend(parts.flat_map(|part| part.neighbours));
        let parent = *table.neighbours.iter().find(|neighbour| neighbour.role == Role::Parent)?;
        let mut roots = table.neighbours.iter().filter(|neighbour| neighbour.role == Role::Multicast);
        let (multicast, is_unique) = (roots.next().copied(), roots.next().is_none());
        let is_authentic = multicast.is_none() || table.authentication == Authentication::Payload;
        if multicast.is_some() != (table.offload == Offload::Switch) || !is_unique || !is_authentic {
            return None;
        }
        self.multicast = multicast;
        let is_new_parent = self.parent != Some(parent);
        if is_new_parent {
            self.inquiry = Inquiry::default();
            self.parent = Some(parent);
            self.parent_heard_at = now;
        }
        let children = table.neighbours.iter().filter(|neighbour| neighbour.role == Role::Child);
        let children: Vec<ChildAddress> =
            children.map(|&Neighbour { member, address, .. }| ChildAddress { member, address }).collect();
        self.suspected.retain(|suspected| {
            parent.member == suspected.member || children.iter().any(|child| child.member == suspected.member)
        });
        self.epoch = epoch;
        self.table = Some(table.clone());
        self.has_place = true;
        self.placed_at.get_or_insert(now);
        self.is_table_ack_due = true;
        self.join_at = None;
        let multicast = self.multicast.map(|root| root.address);
        Some(NewPlace { epoch, is_new_parent, table, children, multicast })
    }
}

#[cfg(test)]
mod tests {
    use treecast_wire::{Integrity, MemberId, Sequence, Transport};

    use super::*;

    /// A table with a parent and this number of children.
    fn table(children: u32) -> Vec<Table> {
        let address = "192.0.2.1:7000".parse().unwrap();
        let neighbour = |member| {
            let role = if member == 0 { Role::Parent } else { Role::Child };
            Neighbour { member: MemberId(member), role, address }
        };
        let neighbours: Vec<Neighbour> = (0..=children).map(neighbour).collect();
        let parts = neighbours.chunks(Table::PART_NEIGHBOURS_MAX);
        let count = parts.len() as u16;
        let part = |(number, neighbours): (usize, &[Neighbour])| Table {
            member: MemberId(9),
            start: Sequence(0),
            slots: 64,
            message: 0,
            bytes: 0,
            payload_bytes_max: 512,
            offload: Offload::Nic,
            authentication: Authentication::Header,
            integrity: Integrity::Crc32c,
            transport: Transport::Packets,
            is_encrypted: false,
            part: number as u16,
            parts: count,
            neighbours: neighbours.to_vec(),
        };
        parts.enumerate().map(part).collect()
    }

    #[test]
    fn tables_that_no_root_sends_are_recognized() {
        let mut membership = Membership::new(Nanoseconds::ZERO, "192.0.2.1:7000".parse().unwrap(), [1, 2]);
        let [first, second] = table(30).try_into().unwrap();
        assert_eq!(membership.handle_table(3, first.clone()), TableStep::Partial);
        assert_eq!(membership.handle_table(3, second.clone()), TableStep::Complete);
        membership.take_place(Nanoseconds::ZERO).unwrap();

        assert_eq!(membership.handle_table(3, second.clone()), TableStep::Known);
        assert_eq!(membership.handle_table(4, first.clone()), TableStep::Partial);
        let other_part = Table { neighbours: first.neighbours.clone(), ..second.clone() };
        let other_member = Table { member: MemberId(8), ..first.clone() };
        let other_settings = Table { authentication: Authentication::Payload, ..first.clone() };
        let contradictions =
            [(2, &first), (3, &table(5)[0]), (3, &other_part), (3, &other_member), (4, &other_settings)]
                .map(|(epoch, table)| membership.handle_table(epoch, table.clone()));
        assert_eq!(contradictions, [TableStep::Contradiction; 5]);
    }
}
