//! A host whose kernel runs groups: they are handed off and reclaimed as `crates/engine/src/step`
//! does it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use treecast_proto::{GroupId, Input, Nanoseconds, Piece, Sequence};
use treecast_wire::View;

use super::fast_path::{FastPath, Handled, Returned, Verdict};
use super::{Action, Host, action_of, address};
use crate::attacker::Packet;
use crate::scenario::{Kernels, Scenario};

/// The kernel's packet path of a host.
#[derive(Debug)]
pub struct Kernel {
    is_there: bool,
    runs_through_pauses: bool,
    kernels: Kernels,
    /// The groups that are handed off.
    groups: BTreeMap<GroupId, FastPath>,
    /// Packets that the fast paths have sent.
    sent: VecDeque<Action>,
    /// Alarms to be set, with their times.
    alarms: Vec<(Nanoseconds, Alarm)>,
    /// When the timer of a group is to expire.
    timers: BTreeMap<GroupId, Nanoseconds>,
    /// The applications that the kernel wakes, or their node because it has reclaimed their groups.
    pub woken: BTreeSet<u32>,
    random: Pcg64,
    pub counts: Counts,
}

/// Statistics of the kernel's packet path of a host, over all lives of the host.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    hand_offs: u64,
    handled: u64,
}

/// A later event at a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// The timer of a group in the kernel expires.
    Timer(u32),
    /// The kernel wakes the node, which reclaims a group.
    Wakeup(u32),
}

/// The verdict of the kernel's packet path on a datagram.
#[derive(Debug)]
pub enum Offer {
    Handled,
    /// User space gets it at this time.
    PassedUp(Nanoseconds),
    /// User space gets it: the kernel does not run its group.
    NotHandedOff,
}

impl Kernel {
    pub fn new(number: usize, life: u32, scenario: &Scenario) -> Self {
        let kernels = scenario.kernels;
        let seed = scenario.seed ^ (number as u64 + 1) << 40 ^ u64::from(life) << 48;
        Self {
            is_there: kernels.hosts >> number & 1 != 0,
            runs_through_pauses: kernels.running_through_pauses >> number & 1 != 0,
            kernels,
            groups: BTreeMap::new(),
            sent: VecDeque::new(),
            alarms: Vec::new(),
            timers: BTreeMap::new(),
            woken: BTreeSet::new(),
            // A stream of its own, so that applications draw the same numbers on a host without
            // this path.
            random: Pcg64::seed_from_u64(seed ^ 0x6b65_726e),
            counts: Counts::default(),
        }
    }

    /// All groups are gone.
    pub fn clear(&mut self) {
        self.groups.clear();
        self.sent.clear();
        self.alarms.clear();
        self.timers.clear();
        self.woken.clear();
    }

    /// Whether a group is handed off.
    pub fn runs(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    fn latency(&mut self) -> Nanoseconds {
        Nanoseconds(self.random.random_range(0..=self.kernels.latency_max.0))
    }
}

/// Groups in the kernel's packet path.
impl Host {
    /// How often groups were handed off.
    pub const fn hand_offs(&self) -> u64 {
        self.kernel.counts.hand_offs
    }

    /// How many packets the kernel's packet path has handled.
    pub const fn handled_by_kernel(&self) -> u64 {
        self.kernel.counts.handled
    }

    /// The next datagram that the kernel's packet path sends.
    pub fn take_sent(&mut self) -> Option<Action> {
        self.kernel.sent.pop_front()
    }

    /// The alarms to be set.
    pub fn take_alarms(&mut self) -> Vec<(Nanoseconds, Alarm)> {
        std::mem::take(&mut self.kernel.alarms)
    }

    /// Hands off the groups that need no slow path, or some of them. Everything that was due has
    /// been sent.
    pub(super) fn hand_off(&mut self, now: Nanoseconds) -> Result<(), String> {
        if !self.kernel.is_there {
            return Ok(());
        }
        let groups: Vec<GroupId> =
            self.node.protocol().groups().filter(|group| !self.kernel.runs(*group)).collect();
        for group in groups {
            if !self.kernel.random.random_bool(self.kernel.kernels.handed_off) {
                continue;
            }
            if let Some(state) = self.node.hand_off(now, group).map_err(|fault| fault.to_string())? {
                self.kernel.counts.hand_offs += 1;
                self.kernel.groups.insert(group, FastPath::new(now, self.node.protocol(), group, state)?);
                self.set_kernel_timer(group);
            }
        }
        Ok(())
    }

    /// Reclaims a group from the kernel's packet path, if that runs it; `now` is the time of the
    /// host's clock.
    pub(super) fn reclaim(&mut self, now: Nanoseconds, group: GroupId) -> Result<(), String> {
        let Some(fast_path) = self.kernel.groups.remove(&group) else { return Ok(()) };
        self.kernel.timers.remove(&group);
        let upto = fast_path.readable().0;
        let Returned { state, packets, naks } = fast_path.reclaim(self.node.protocol());
        self.node.reclaim(now, &state, &packets).map_err(|fault| fault.to_string())?;
        for (from, bytes) in naks {
            self.node.datagram(now, from, &bytes).map_err(|fault| fault.to_string())?;
        }
        let Some(application) = self.groups.get(&group.0) else { return Ok(()) };
        // The kernel may not have been able to wake it.
        self.kernel.woken.insert(group.0);
        if application.is_root {
            return Ok(());
        }
        self.ask(now, Input::Consumed { group, upto })
    }

    /// The kernel has woken the node because of a group.
    pub fn wake_node(&mut self, now: Nanoseconds, group: u32) -> Result<(), String> {
        let now = self.time(now);
        self.reclaim(now, GroupId(group))
    }

    /// The kernel's packet path receives a datagram.
    pub fn offer(&mut self, now: Nanoseconds, packet: &Packet) -> Result<Offer, String> {
        if self.has_paused(now) && !self.kernel.runs_through_pauses {
            return Ok(Offer::NotHandedOff);
        }
        let Some(group) = View::new(&packet.bytes).ok().map(|view| view.group()) else {
            return Ok(Offer::NotHandedOff);
        };
        let is_authentic = self.node.group_to_reclaim(&packet.bytes).is_some();
        let (time, latency) = (self.time(now), self.kernel.latency());
        let Some(fast_path) = self.kernel.groups.get_mut(&group) else { return Ok(Offer::NotHandedOff) };
        let verdict = if self.kernel.random.random_bool(self.kernel.kernels.passed_up) {
            Verdict::Passed
        } else {
            fast_path.receive(time, address(packet.from), &packet.bytes, is_authentic)
        };
        match verdict {
            Verdict::Handled(handled) => {
                if let Some(store) = &handled.store {
                    self.node.store(store, &packet.bytes).map_err(|fault| fault.to_string())?;
                }
                self.finish(group, handled)?;
                Ok(Offer::Handled)
            }
            Verdict::Kept => {
                self.kernel.alarms.push((now + latency, Alarm::Wakeup(group.0)));
                Ok(Offer::Handled)
            }
            Verdict::Passed => Ok(Offer::PassedUp(now + latency)),
        }
    }

    /// The kernel's packet path sends a packet of the root's application; returns whether it does.
    pub(super) fn send_by_kernel(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        piece: Piece,
    ) -> Result<bool, String> {
        let Some(handled) = self.kernel.groups.get_mut(&group).and_then(|path| path.queue(now, piece)) else {
            return Ok(false);
        };
        self.finish(group, handled)?;
        Ok(true)
    }

    fn finish(&mut self, group: GroupId, handled: Handled) -> Result<(), String> {
        self.kernel.counts.handled += 1;
        for transmit in handled.transmits {
            let packet = self.node.packet(transmit).map_err(|fault| fault.to_string())?;
            self.kernel.sent.push_back(action_of(packet));
        }
        let is_asleep = self.groups.get(&group.0).is_some_and(|application| application.asleep_at.is_some());
        if handled.wakes && is_asleep {
            self.kernel.woken.insert(group.0);
        }
        self.set_kernel_timer(group);
        Ok(())
    }

    /// Sets the timer of a group, unless it is set for an earlier time.
    fn set_kernel_timer(&mut self, group: GroupId) {
        let Some(at) = self.kernel.groups.get(&group).and_then(FastPath::timer_at) else { return };
        if self.kernel.timers.get(&group).is_none_or(|set| at < *set) {
            self.kernel.timers.insert(group, at);
            self.kernel.alarms.push((at.since(self.clock), Alarm::Timer(group.0)));
        }
    }

    /// The timer of a group in the kernel expires. Unless acknowledgments have postponed it, the
    /// kernel wakes the node.
    pub fn expire_kernel_timer(&mut self, now: Nanoseconds, group: u32) {
        let (id, time, latency) = (GroupId(group), self.time(now), self.kernel.latency());
        // The alarm of a group that was reclaimed, or of a timer that was set for an earlier time
        // since.
        if self.kernel.timers.get(&id).is_none_or(|at| time < *at) {
            return;
        }
        self.kernel.timers.remove(&id);
        let Some(fast_path) = self.kernel.groups.get_mut(&id) else { return };
        if fast_path.expire(time) {
            self.set_kernel_timer(id);
        } else {
            self.kernel.alarms.push((now + latency, Alarm::Wakeup(group)));
        }
    }
}

/// The applications' view of the memory that they share with the node and the kernel.
impl Host {
    pub(super) fn readable(&self, group: GroupId) -> Option<(Sequence, Sequence)> {
        let handed_off = self.kernel.groups.get(&group).map(FastPath::readable);
        handed_off.or_else(|| self.node.protocol().readable(group))
    }

    pub(super) fn piece(&self, group: GroupId, packet: Sequence) -> Option<&Piece> {
        match self.kernel.groups.get(&group) {
            Some(fast_path) => fast_path.piece(packet),
            None => self.node.protocol().piece(group, packet),
        }
    }

    pub(super) fn free_slots(&self, group: GroupId) -> u32 {
        let handed_off = self.kernel.groups.get(&group).map(FastPath::free_slots);
        handed_off.unwrap_or_else(|| self.node.protocol().free_slots(group))
    }

    pub(super) fn freed(&self, group: GroupId) -> Option<Sequence> {
        let handed_off = self.kernel.groups.get(&group).map(FastPath::freed);
        handed_off.or_else(|| self.node.protocol().freed(group))
    }

    /// The application has read the packets before `upto`.
    pub(super) fn consume(&mut self, now: Nanoseconds, group: GroupId, upto: Sequence) -> Result<(), String> {
        if let Some(fast_path) = self.kernel.groups.get_mut(&group)
            && !fast_path.consume(upto)
        {
            return Ok(());
        }
        self.ask(now, Input::Consumed { group, upto })
    }
}
