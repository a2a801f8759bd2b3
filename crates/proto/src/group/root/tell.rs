//! What the root tells members of the tree, and what it asks them.

use treecast_wire::{Body, Control, MemberId, Neighbour, Role, Sequence, Table};

use super::{Roster, Stage};
use crate::group::Name;
use crate::protocol::Transmit;
use crate::{Nanoseconds, Settings};

/// A table that is not answered is told again after so long at most.
const TELL_WAIT_MAX: Nanoseconds = Nanoseconds::from_ms(25);

/// Whether a member lives that others doubt is asked as often.
pub(super) const ASK_INTERVAL: Nanoseconds = Nanoseconds::from_ms(10);

impl Roster {
    /// The next thing to say.
    pub fn poll(&mut self, now: Nanoseconds, settings: &Settings, name: &Name) -> Option<Transmit> {
        if !self.is_due(now) {
            return None;
        }
        let transmit = self.next_due(now, name);
        if transmit.is_none() {
            (self.is_dirty, self.look_at) = (false, self.next_look(settings));
        }
        transmit
    }

    fn next_look(&self, settings: &Settings) -> Option<Nanoseconds> {
        let of_seat = |member: MemberId| {
            let seat = self.seat(member);
            let is_untold = seat.taken < self.epoch;
            let patience =
                if seat.taken == 0 { self.patience_with_absent(settings) } else { settings.peer_timeout };
            let lost = is_untold.then(|| seat.heard_at.max(seat.told_since) + patience + Nanoseconds(1));
            let doubt =
                seat.doubt.as_ref().filter(|doubt| doubt.answered_at.is_none()).map(|doubt| doubt.ask_at);
            [is_untold.then_some(seat.tell_at), lost, doubt].into_iter().flatten().min()
        };
        self.others().filter_map(of_seat).min()
    }

    fn next_due(&mut self, now: Nanoseconds, name: &Name) -> Option<Transmit> {
        if let Some((to, why)) = self.evictions.pop() {
            return Some(name.control(now, to, &Control::Evicted(why)));
        }
        if matches!(self.stage, Stage::Over { .. }) {
            return None;
        }
        let due = self.others().find(|&member| {
            let seat = self.seat(member);
            seat.tell_at <= now && (seat.taken < self.epoch || seat.is_owed || seat.part > 0)
        });
        if let Some(member) = due {
            let table = self.next_part(now, member);
            return Some(name.control(now, self.seat(member).address, &Control::Table(table)));
        }
        let doubted = self.others().find(|&member| {
            let doubt = self.seat(member).doubt.as_ref();
            doubt.is_some_and(|doubt| doubt.answered_at.is_none() && doubt.ask_at <= now)
        })?;
        let seat = self.seat_mut(doubted);
        if let Some(doubt) = &mut seat.doubt {
            doubt.ask_at = now + ASK_INTERVAL;
        }
        Some(name.packet(now, seat.address, Sequence(0), Body::Probe))
    }

    /// The part of a member's table that is to be told next.
    fn next_part(&mut self, now: Nanoseconds, member: MemberId) -> Table {
        let this = &*self;
        let seat = this.seat(member);
        let neighbour =
            |role, member: MemberId| Neighbour { member, role, address: this.seat(member).address };
        let parent = seat.parent.into_iter().map(|parent| neighbour(Role::Parent, parent));
        let children = seat.children.iter().map(|&child| neighbour(Role::Child, child));
        let parts = (1 + seat.children.len()).div_ceil(Table::PART_NEIGHBOURS_MAX) as u16;
        let part = seat.part.min(parts - 1);
        let first = usize::from(part) * Table::PART_NEIGHBOURS_MAX;
        let neighbours = parent.chain(children).skip(first).take(Table::PART_NEIGHBOURS_MAX).collect();
        let table = Table { member, taken: seat.taken, part, parts, neighbours, ..self.agreed.clone() };
        let seat = self.seat_mut(member);
        seat.part = part + 1;
        if seat.part == parts {
            (seat.part, seat.is_owed) = (0, false);
            seat.tell_at = now + seat.tell_wait;
            seat.tell_wait = TELL_WAIT_MAX.min(Nanoseconds(seat.tell_wait.0 * 2));
        }
        table
    }
}
