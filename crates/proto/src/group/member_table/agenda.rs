//! Members by the time at which something about them is due.

use std::collections::BTreeSet;

use treecast_wire::MemberId;

use crate::Nanoseconds;

/// Members by the time at which something about them is due; each at most once.
#[derive(Debug, Clone, Default)]
pub(super) struct Agenda {
    by_time: BTreeSet<(Nanoseconds, MemberId)>,
    /// The time of each member, by its number.
    times: Vec<Option<Nanoseconds>>,
}

impl Agenda {
    /// What an agenda of this number of members allocates, in bytes, if its B-tree has room for
    /// `entries`.
    pub const fn heap_bytes(members: usize, entries: usize) -> usize {
        entries * size_of::<(Nanoseconds, MemberId)>() + members * size_of::<Option<Nanoseconds>>()
    }

    /// Enters a member at a time, instead of the one it had; `None` removes it.
    pub fn set(&mut self, member: MemberId, time: Option<Nanoseconds>) {
        if self.times.len() <= member.index() {
            self.times.resize(member.index() + 1, None);
        }
        let before = std::mem::replace(&mut self.times[member.index()], time);
        if before == time {
            return;
        }
        if let Some(before) = before {
            self.by_time.remove(&(before, member));
        }
        if let Some(time) = time {
            self.by_time.insert((time, member));
        }
    }

    /// The member that is due first, if one is due.
    pub fn first_due(&self, now: Nanoseconds) -> Option<MemberId> {
        self.by_time.first().filter(|(time, _)| *time <= now).map(|&(_, member)| member)
    }

    /// When the next member is due.
    pub fn next_time(&self) -> Option<Nanoseconds> {
        self.by_time.first().map(|&(time, _)| time)
    }
}

impl FromIterator<(Nanoseconds, MemberId)> for Agenda {
    /// Each member is there once.
    fn from_iter<I: IntoIterator<Item = (Nanoseconds, MemberId)>>(entries: I) -> Self {
        let by_time: BTreeSet<_> = entries.into_iter().collect();
        let count = by_time.iter().map(|(_, member)| member.index() + 1).max().unwrap_or(0);
        let mut times = vec![None; count];
        for &(time, member) in &by_time {
            times[member.index()] = Some(time);
        }
        Self { by_time, times }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_due_in_the_order_of_their_times_and_then_of_their_numbers() {
        let mut agenda = Agenda::default();
        for (member, ms) in [(3, 20), (1, 10), (2, 10), (3, 5), (9, 1)] {
            agenda.set(MemberId(member), Some(Nanoseconds::from_ms(ms)));
        }
        agenda.set(MemberId(9), None);
        let now = Nanoseconds::from_ms(10);
        assert_eq!(agenda.first_due(Nanoseconds::from_ms(4)), None);
        let mut order = Vec::new();
        while let Some(member) = agenda.first_due(now) {
            agenda.set(member, None);
            order.push(member.0);
        }
        assert_eq!(order, [3, 1, 2]);
        assert_eq!(agenda.next_time(), None);
    }
}
