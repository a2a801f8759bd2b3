//! Which host the copy waits for, and whether the tree is changed because of it.
//!
//! Packets stop where a member has many that a child lacks, and has room for. The path between the
//! two is slow, by the link of one of them; if that is so with all of several children, the member
//! forwards slowly. If packets wait for the member itself, its disk or its processor is slow: its
//! children can be ahead of it only by its slots, and without it by those of this host. In each
//! case this host takes over the children, if it has time for them.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use treecast_node::Group;

use super::Copy;
use crate::waits::{LOOK_INTERVAL, RecentWaits, Waits};
use crate::{Cause, Relieved, Slow};

/// The least number of looks on which a decision rests: two seconds.
const LOOKS_MIN: u32 = 20;

/// The share of looks from which a member is slow.
const SHARE_MIN: f64 = 0.6;

/// How many times as fast the copy has to become, as far as this host can tell, for it to take over
/// children.
const GAIN_MIN: f64 = 1.5;

/// The lower bound of this host's busy share, which is a divisor.
const BUSY_MIN: f64 = 0.05;

/// The busy share from which this host itself limits the copy.
const BUSY_MAX: f64 = 0.5;

/// A copy that will end within this time keeps its tree.
const REST_MIN: Duration = Duration::from_secs(3);

/// The state of what is decided about slow hosts.
#[derive(Debug, Default)]
pub(super) struct Relief {
    /// What this host has seen since it was asked last; a thread looks.
    looks: Arc<Mutex<Waits>>,
    own: RecentWaits,
    /// What all wait for.
    slow: Option<SlowMember>,
    /// The members that have become leaves, and why.
    relieved: Vec<SlowMember>,
}

/// What all wait for, by the numbers of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlowMember {
    Writing(u32),
    Disk(u32),
    Forwarding(u32),
    Path(u32, u32),
}

impl Relief {
    /// Looks in a thread, as long as the group is there.
    pub fn watch(&self, group: &Arc<Group>) {
        let (group, looks) = (Arc::downgrade(group), Arc::clone(&self.looks));
        thread::spawn(move || {
            while let Some(group) = group.upgrade() {
                looks.lock().unwrap_or_else(PoisonError::into_inner).look(&group);
                drop(group);
                thread::sleep(LOOK_INTERVAL);
            }
        });
    }

    fn take_looks(&mut self, now: Instant) {
        let looks = std::mem::take(&mut *self.looks.lock().unwrap_or_else(PoisonError::into_inner));
        self.own.add(now, looks);
    }
}

impl Copy {
    /// Finds out which host is slow, and makes it a leaf.
    pub(super) fn relieve(&mut self, group: &Group, sent: u64, total: u64) {
        let now = Instant::now();
        self.relief.take_looks(now);
        let own = self.relief.own.sum();
        let members: Vec<(u32, Waits)> = self
            .hosts
            .iter()
            .filter(|host| host.takes_part())
            .map(|host| (host.member as u32, host.waits.sum()))
            .collect();
        self.relief.slow = slow_member(&own, &members);
        let Some(slow) = self.relief.slow else { return };
        let (SlowMember::Writing(from)
        | SlowMember::Disk(from)
        | SlowMember::Forwarding(from)
        | SlowMember::Path(from, _)) = slow;
        let is_relay = |&&(member, ref waits): &&(u32, Waits)| member == from && waits.children > 0;
        let Some((_, waits)) = members.iter().find(is_relay) else { return };
        let ends_soon = total > 0
            && (total.saturating_sub(sent)) as f64 * self.since.elapsed().as_secs_f64()
                < sent as f64 * REST_MIN.as_secs_f64();
        // The only error is that of a member that there is not.
        if !ends_soon && gain(&own, waits) >= GAIN_MIN && group.relieve(from).is_ok() {
            self.relief.relieved.push(slow);
            self.relief.own.clear();
            self.hosts.iter_mut().for_each(|host| host.waits.clear());
        }
    }

    /// What all wait for.
    pub(super) fn slow(&self) -> Option<Slow<'_>> {
        self.named(self.relief.slow?)
    }

    /// What was slow when its sender became a leaf.
    pub(super) fn relieved(&self) -> Vec<Slow<'_>> {
        self.relief.relieved.iter().filter_map(|&slow| self.named(slow)).collect()
    }

    /// The same for the report.
    pub(super) fn relieved_hosts(&self) -> Vec<Relieved> {
        let relieved = self.relieved().into_iter().map(|slow| {
            let (host, to, cause) = match slow {
                Slow::Writing(host) => (host, None, Cause::Writing),
                Slow::Disk(host) => (host, None, Cause::Disk),
                Slow::Forwarding(host) => (host, None, Cause::Forwarding),
                Slow::Path(host, to) => (host, Some(to.into()), Cause::Forwarding),
            };
            Relieved { host: host.into(), to, cause }
        });
        relieved.collect()
    }

    fn named(&self, slow: SlowMember) -> Option<Slow<'_>> {
        let name = |member: u32| {
            let host = self.hosts.iter().find(|host| host.member == member as usize)?;
            Some(host.name.as_str())
        };
        Some(match slow {
            SlowMember::Writing(member) => Slow::Writing(name(member)?),
            SlowMember::Disk(member) => Slow::Disk(name(member)?),
            SlowMember::Forwarding(member) => Slow::Forwarding(name(member)?),
            SlowMember::Path(from, to) => Slow::Path(name(from)?, name(to)?),
        })
    }
}

/// What the copy waits for most of the time. `own` is what this host has seen: where packets wait
/// for its own sending, it is the limit itself.
fn slow_member(own: &Waits, members: &[(u32, Waits)]) -> Option<SlowMember> {
    if own.looks < LOOKS_MIN || busy(own) >= BUSY_MAX {
        return None;
    }
    for (member, waits) in members.iter().filter(|(_, waits)| waits.looks >= LOOKS_MIN) {
        if waits.share(*member) >= SHARE_MIN {
            let slow = if waits.is_disk(*member) { SlowMember::Disk } else { SlowMember::Writing };
            return Some(slow(*member));
        }
        let others = waits.for_members.keys().copied().filter(|other| other != member);
        let slow: Vec<u32> = others.filter(|&other| waits.share(other) >= SHARE_MIN).collect();
        match slow[..] {
            [] => {}
            [child, ..] if slow.len() < waits.children.max(2) as usize => {
                return Some(SlowMember::Path(*member, child));
            }
            [..] => return Some(SlowMember::Forwarding(*member)),
        }
    }
    None
}

/// The share of looks at which packets waited for this host's own sending.
fn busy(own: &Waits) -> f64 {
    own.for_members.keys().map(|&child| own.share(child)).fold(0.0, f64::max)
}

/// How many times as fast the copy becomes at most if this host takes over the children of a
/// member, as far as its own part limits that. It is busy for the share of time in which packets
/// wait for its own sending, and will send as many copies more as the member has children.
fn gain(own: &Waits, member: &Waits) -> f64 {
    let children = f64::from(own.children.max(1));
    children / ((children + f64::from(member.children)) * busy(own).max(BUSY_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a member with this number of children has seen in 100 looks.
    fn waits(children: u32, for_members: &[(u32, u32)]) -> Waits {
        let for_members = for_members.iter().copied().collect();
        Waits { looks: 100, children, for_members, for_disk: 0 }
    }

    #[test]
    fn the_member_where_packets_stop_is_slow() {
        let chain = |of_two: Waits| [(1, waits(1, &[])), (2, of_two), (3, waits(0, &[]))];
        let idle = waits(1, &[]);
        assert_eq!(slow_member(&idle, &chain(waits(1, &[]))), None);
        assert_eq!(slow_member(&idle, &chain(waits(1, &[(3, 50)]))), None, "half of the time");
        assert_eq!(slow_member(&idle, &chain(waits(1, &[(3, 90)]))), Some(SlowMember::Path(2, 3)));
        assert_eq!(slow_member(&idle, &chain(waits(1, &[(2, 90)]))), Some(SlowMember::Writing(2)));
        let of_disk = |for_disk| Waits { for_disk, ..waits(1, &[(2, 90)]) };
        assert_eq!(slow_member(&idle, &chain(of_disk(80))), Some(SlowMember::Disk(2)));
        assert_eq!(slow_member(&idle, &chain(of_disk(20))), Some(SlowMember::Writing(2)), "its processor");
        let few = [(2, Waits { looks: 10, ..waits(1, &[(3, 10)]) })];
        assert_eq!(slow_member(&idle, &few), None, "too few looks");
        let tree = |of_one: &[(u32, u32)]| [(1, waits(2, of_one)), (2, waits(0, &[])), (3, waits(0, &[]))];
        assert_eq!(slow_member(&idle, &tree(&[(3, 95)])), Some(SlowMember::Path(1, 3)));
        assert_eq!(slow_member(&idle, &tree(&[(2, 70), (3, 95)])), Some(SlowMember::Forwarding(1)));
        let busy = waits(2, &[(1, 60)]);
        assert_eq!(slow_member(&busy, &tree(&[(3, 95)])), None, "this host is the limit");
    }

    #[test]
    fn children_are_taken_over_by_a_host_that_has_time() {
        let member = waits(1, &[(2, 90)]);
        assert!(gain(&waits(1, &[(1, 10)]), &member) >= GAIN_MIN);
        assert!(gain(&waits(1, &[]), &member) >= GAIN_MIN);
        assert!(gain(&waits(1, &[(1, 100)]), &member) < GAIN_MIN, "it is busy itself");
        assert!(gain(&waits(1, &[(1, 20)]), &waits(4, &[])) < GAIN_MIN, "too many children");
    }
}
