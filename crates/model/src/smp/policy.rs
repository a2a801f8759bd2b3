//! The dynamic attach policy: when a process that waits for its leader too long attaches itself.
//!
//! *Published* (Mamidala, Chai, Jin, Panda, 2006): a process that is not the leader keeps its
//! average wait, counted only for broadcasts in which the packet and the process were there and the
//! leader was not (the study's case b): the leader sets a flag in shared memory when it comes and
//! finds the packet waiting. When the average exceeds the one that the leader publishes by more
//! than a threshold, the process attaches; when it falls below, the process detaches, lazily, after
//! further broadcasts. Decisions begin after a minimum number of broadcasts.

use treecast_terms::Picoseconds;

/// Which broadcasts count for the averages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Counted {
    /// Those in which the packet and the process waited for the leader. *Published.*
    #[default]
    Waiting,
    /// All. *Ours.*
    All,
}

/// The parameters of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// The amount by which a process's average must exceed the leader's.
    pub threshold: Picoseconds,
    /// The number of broadcasts before the first decision.
    pub minimum_broadcasts: u32,
    /// The number of further broadcasts before an attached process detaches.
    pub lazy_broadcasts: u32,
    /// Which broadcasts count.
    pub counted: Counted,
}

impl Policy {
    /// Whether a broadcast counts, in which packet and process waited for the leader or not.
    pub fn counts(&self, waiting: bool) -> bool {
        match self.counted {
            Counted::Waiting => waiting,
            Counted::All => true,
        }
    }
}

/// An average of waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Average {
    sum: Picoseconds,
    count: u64,
}

impl Average {
    /// The average of no waits.
    pub const NONE: Self = Self { sum: Picoseconds::ZERO, count: 0 };

    /// Counts a wait.
    pub fn add(&mut self, wait: Picoseconds) {
        self.sum += wait;
        self.count += 1;
    }

    /// The average so far; zero where nothing was counted.
    pub fn value(&self) -> Picoseconds {
        Picoseconds(self.sum.0.checked_div(self.count).unwrap_or(0))
    }
}

/// The decision for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Stay,
    /// Attach to the multicast group.
    Attach,
    /// Detach from it.
    Detach,
}

/// The state of one process that is not the leader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attachment {
    own: Average,
    broadcasts: u32,
    attached: bool,
    /// For how many broadcasts in a row an attached process has been below the threshold.
    below: u32,
}

impl Attachment {
    /// Whether it is attached.
    pub fn is_attached(&self) -> bool {
        self.attached
    }

    /// A broadcast is over for it: how long it waited, whether it and the packet waited for the
    /// leader, and the average that the leader has published.
    pub fn after(
        &mut self,
        policy: &Policy,
        wait: Picoseconds,
        waiting: bool,
        leader: Picoseconds,
    ) -> Decision {
        self.broadcasts += 1;
        if policy.counts(waiting) {
            self.own.add(wait);
        }
        if self.broadcasts < policy.minimum_broadcasts {
            return Decision::Stay;
        }
        let above = self.own.value() > leader + policy.threshold;
        match (self.attached, above) {
            (false, true) => {
                (self.attached, self.below) = (true, 0);
                Decision::Attach
            }
            (true, true) => {
                self.below = 0;
                Decision::Stay
            }
            (true, false) if self.below < policy.lazy_broadcasts => {
                self.below += 1;
                Decision::Stay
            }
            (true, false) => {
                self.attached = false;
                Decision::Detach
            }
            (false, false) => Decision::Stay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Picoseconds = |us| Picoseconds(us * 1_000_000);

    const POLICY: Policy = Policy {
        threshold: Picoseconds(500_000_000),
        minimum_broadcasts: 1,
        lazy_broadcasts: 2,
        counted: Counted::Waiting,
    };

    fn decisions(policy: Policy, waits: &[(u64, bool, u64)]) -> Vec<Decision> {
        let mut attachment = Attachment::default();
        let after = |&(wait, waiting, leader)| attachment.after(&policy, US(wait), waiting, US(leader));
        waits.iter().map(after).collect()
    }

    use Decision::{Attach, Detach, Stay};

    #[test]
    fn it_attaches_above_the_threshold_and_not_at_it() {
        assert_eq!(
            decisions(POLICY, &[(500, true, 0), (500, true, 0), (503, true, 0)]),
            [Stay, Stay, Attach]
        );
    }

    #[test]
    fn the_wait_of_the_leader_is_subtracted() {
        assert_eq!(decisions(POLICY, &[(900, true, 400), (900, true, 399)]), [Stay, Attach]);
    }

    #[test]
    fn a_broadcast_in_which_nobody_waited_for_the_leader_does_not_count() {
        assert_eq!(
            decisions(POLICY, &[(9_000, false, 0), (9_000, false, 0), (501, true, 0)]),
            [Stay, Stay, Attach]
        );
        let all = Policy { counted: Counted::All, ..POLICY };
        assert_eq!(decisions(all, &[(9_000, false, 0)]), [Attach]);
    }

    #[test]
    fn nothing_is_decided_before_the_minimum_of_broadcasts() {
        let patient = Policy { minimum_broadcasts: 3, ..POLICY };
        assert_eq!(decisions(patient, &[(900, true, 0); 3]), [Stay, Stay, Attach]);
    }

    #[test]
    fn it_detaches_lazily() {
        // 600, then averages of 300, 200, 150: below, for the third broadcast in a row.
        let waits = [(600, true, 0), (0, true, 0), (0, true, 0), (0, true, 0), (0, true, 0)];
        assert_eq!(decisions(POLICY, &waits), [Attach, Stay, Stay, Detach, Stay]);
        let eager = Policy { lazy_broadcasts: 0, ..POLICY };
        assert_eq!(decisions(eager, &waits[..2]), [Attach, Detach]);
    }

    #[test]
    fn being_above_once_more_keeps_it_attached() {
        // Averages 600, 300, 267 less the leader's; then 1,200, and below again.
        let waits = [(600, true, 0), (0, true, 0), (200, true, 0), (4_000, true, 0), (0, true, 900)];
        assert_eq!(decisions(POLICY, &waits), [Attach, Stay, Stay, Stay, Stay]);
        let next = [waits.as_slice(), &[(0, true, 900), (0, true, 900)]].concat();
        assert_eq!(decisions(POLICY, &next)[5..], [Stay, Detach]);
    }

    #[test]
    fn a_process_that_has_detached_may_attach_again() {
        let eager = Policy { lazy_broadcasts: 0, ..POLICY };
        assert_eq!(
            decisions(eager, &[(600, true, 0), (0, true, 0), (9_000, true, 0)]),
            [Attach, Detach, Attach]
        );
    }
}
