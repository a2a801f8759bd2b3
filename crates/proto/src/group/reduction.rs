//! All-reduces: contributions of all members go up the tree, and are combined on the way.
//!
//! The result goes down as a message of the root's application, so that it has its place among the
//! messages and is as reliable as they are. Its first packet identifies the all-reduce, and is the
//! acknowledgment of all contributions to it: until a member has that packet, it sends its
//! contribution again and again.
//!
//! A contribution counts in the tree of its epoch only. When the tree changes, every member
//! contributes again in the new tree, so that each value is in the result once, also if its
//! parent has changed. A root that hands over a result has combined contributions of one epoch:
//! those of exactly the members of that tree.

mod arithmetic;

use treecast_wire::{Contribution, MemberId, ReaderSet, Sequence, Timestamp, Values};

use crate::flow::TIMEOUT_MIN;
use crate::{Nanoseconds, Refused, Settings};

/// The all-reduce at one node.
#[derive(Debug, Clone, Default)]
pub(super) struct Reduction {
    own: Option<Own>,
    /// The last contribution of each child: at most one of each.
    children: Vec<FromChild>,
    /// The epoch in which the contribution was sent to the parent last.
    sent_epoch: Option<u32>,
    /// When it is sent again, or processes that have not come are given up; and the interval
    /// between two times at which it is sent.
    again_at: Option<Nanoseconds>,
    interval: Nanoseconds,
    /// Whether a fast path has the contribution of this node.
    is_with_fast_path: bool,
    /// At the root: the last all-reduce whose result was handed over.
    completed: Option<Sequence>,
}

/// The contribution of a child.
#[derive(Debug, Clone)]
pub(super) struct FromChild {
    pub child: MemberId,
    /// The epoch of the tree that it belongs to.
    pub epoch: u32,
    pub sent_at: Timestamp,
    pub contribution: Contribution,
}

/// The contributions of the processes of this node.
#[derive(Debug, Clone)]
struct Own {
    packet: Sequence,
    processes: ReaderSet,
    /// By their places.
    values: Vec<(u32, Option<Values>)>,
}

/// A contribution is sent again after this time, and then at intervals that double, up to the
/// keepalive interval. An all-reduce among many hosts takes a millisecond, and its result is the
/// only answer, so the RTO would be too short.
const FIRST_INTERVAL: Nanoseconds = Nanoseconds::from_ms(10);

/// A process of a node, among those that have the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its place, from 0.
    pub place: u32,
    /// The number of processes, at most [`ReaderSet::READERS_MAX`].
    pub count: u32,
}

impl Process {
    /// The only process of its node.
    pub const ONLY: Self = Self { place: 0, count: 1 };
}

impl Reduction {
    /// A process of this node contributes. `next` is the first packet that this node has not
    /// accepted or queued; a process at the root's node may have read others that the root has not
    /// queued yet. A process that contributes again replaces its contribution; the same one again
    /// changes nothing, so that it is not sent at once.
    ///
    /// # Errors
    /// [`Refused::Contribution`], [`Refused::Process`].
    pub fn contribute(
        &mut self,
        process: Process,
        contribution: Contribution,
        next: Sequence,
    ) -> Result<(), Refused> {
        let Process { place, count } = process;
        if place >= count || count > ReaderSet::READERS_MAX {
            return Err(Refused::Process { place, count });
        }
        let Contribution { packet, values, .. } = contribution;
        let is_valid = values.as_ref().is_none_or(Values::are_valid);
        if packet.is_before(next) || !is_valid {
            return Err(Refused::Contribution { packet, next });
        }
        let own = match &mut self.own {
            Some(own) if own.packet == packet => own,
            own => own.insert(Own { packet, processes: ReaderSet::first(count), values: Vec::new() }),
        };
        match own.values.binary_search_by_key(&place, |&(place, _)| place) {
            Ok(found) if own.values[found].1 == values => return Ok(()),
            Ok(found) => own.values[found].1 = values,
            Err(at) => own.values.insert(at, (place, values)),
        }
        self.sent_epoch = None;
        Ok(())
    }

    /// A child contributes; false if it has sent this before another contribution that is here. A
    /// contribution later than `latest` cannot be from the child. Without this bound, one forged by
    /// somebody with the token would make all the child's own contributions stale.
    pub fn handle_child(&mut self, new: FromChild, latest: Timestamp) -> bool {
        match self.children.iter_mut().find(|known| known.child == new.child) {
            Some(known) if new.sent_at <= known.sent_at && known.sent_at <= latest => return false,
            Some(known) => *known = new,
            None => self.children.push(new),
        }
        true
    }

    /// The tree has changed: these are the children now.
    pub fn set_children(&mut self, children: impl Iterator<Item = MemberId>) {
        let children: Vec<MemberId> = children.collect();
        self.children.retain(|known| children.contains(&known.child));
        self.sent_epoch = None;
    }

    /// At another member: the contribution that is to be sent to the parent now. `next` is the
    /// first packet that this node has not accepted.
    pub fn poll(
        &mut self,
        now: Nanoseconds,
        settings: &Settings,
        next: Sequence,
        subtree: impl FnOnce() -> Subtree,
    ) -> Option<Contribution> {
        self.forget_before(next);
        self.own.as_ref()?;
        let is_new = self.sent_epoch.is_none();
        if !is_new && self.again_at.is_some_and(|again_at| now < again_at) {
            return None;
        }
        let subtree = subtree();
        let Some(combined) = self.combined(&subtree) else {
            (self.sent_epoch, self.again_at) = (None, subtree.gives_up_at.filter(|&at| now < at));
            return None;
        };
        let doubled = Nanoseconds(self.interval.0.saturating_mul(2));
        self.set_sent(now, settings, subtree.epoch, if is_new { FIRST_INTERVAL } else { doubled });
        Some(combined)
    }

    /// At another member: the contribution is sent again after this interval.
    fn set_sent(&mut self, now: Nanoseconds, settings: &Settings, epoch: u32, interval: Nanoseconds) {
        self.interval = interval.min(settings.keepalive).max(TIMEOUT_MIN);
        self.again_at = Some(now + self.interval);
        self.sent_epoch = Some(epoch);
    }

    /// The first packet, from `next` on, that begins a result without a contribution at this node.
    pub fn untouched_from(&self, next: Sequence) -> Sequence {
        let own = self.own.as_ref().map(|own| own.packet).into_iter().chain(self.completed);
        let contributed = own.chain(self.children.iter().map(|known| known.contribution.packet));
        contributed.fold(next, |from, packet| from.max(packet + 1))
    }

    /// At another member: the contribution goes to the parent, or to a fast path, which sends it as
    /// soon as those of the children are there. It is sent again as others are.
    pub fn note_sent(&mut self, now: Nanoseconds, settings: &Settings, epoch: u32, is_with_fast_path: bool) {
        self.set_sent(now, settings, epoch, FIRST_INTERVAL);
        self.is_with_fast_path = is_with_fast_path;
    }

    /// The fast path gives the group back. If it has the contribution of this node, it says when it
    /// has sent that, or that it has not.
    pub fn reclaim(&mut self, settings: &Settings, epoch: u32, sent_at: Option<Nanoseconds>) {
        if !std::mem::take(&mut self.is_with_fast_path) {
            return;
        }
        if let Some(sent_at) = sent_at {
            self.set_sent(sent_at, settings, epoch, FIRST_INTERVAL);
        } else {
            (self.sent_epoch, self.again_at) = (None, None);
        }
    }

    /// Whether a process of this node has contributed to the result that is to be this packet.
    pub fn has_own(&self, packet: Sequence) -> bool {
        self.own.as_ref().is_some_and(|own| own.packet == packet)
    }

    /// At another member: when it is to be polled again.
    pub fn timeout(&self) -> Option<Nanoseconds> {
        self.own.as_ref().and(self.again_at)
    }

    /// At the root: the result, once all members have contributed. Each is returned once.
    pub fn poll_result(&mut self, subtree: impl FnOnce() -> Subtree) -> Option<Contribution> {
        let packet = self.own.as_ref()?.packet;
        if self.completed == Some(packet) {
            return None;
        }
        let combined = self.combined(&subtree())?;
        self.completed = Some(packet);
        self.forget();
        Some(combined)
    }

    /// The result has come: its first packet is accepted.
    fn forget_before(&mut self, next: Sequence) {
        if self.own.as_ref().is_some_and(|own| own.packet.is_before(next)) {
            self.forget();
        }
    }

    /// The all-reduce is over. Who has sent what when stays known, and the values do not; children
    /// may have contributed to the next one.
    fn forget(&mut self) {
        let Some(Own { packet, .. }) = self.own.take() else { return };
        for known in &mut self.children {
            if !packet.is_before(known.contribution.packet) {
                known.contribution.values = None;
            }
        }
    }

    /// The values of this node's processes in the order of their places, and then those of the
    /// children in the order of the table; none before all are there.
    fn combined(&self, subtree: &Subtree) -> Option<Contribution> {
        let Own { packet, processes, values } = self.own.as_ref()?;
        let awaited = processes.without(&subtree.absent);
        let is_there = |place| values.iter().any(|&(there, _)| there == place);
        if !awaited.iter().all(is_there) {
            return None;
        }
        let of_child = |child: &MemberId| {
            let FromChild { epoch, contribution, .. } =
                self.children.iter().find(|known| known.child == *child)?;
            (*epoch == subtree.epoch && contribution.packet == *packet).then_some(contribution)
        };
        let of_children: Vec<_> = subtree.children.iter().map(of_child).collect::<Option<_>>()?;
        let own = values.iter().map(|(_, values)| (1, values));
        let of_children =
            of_children.into_iter().map(|Contribution { processes, values, .. }| (*processes, values));
        let (processes, values) = own
            .chain(of_children)
            .map(|(processes, values)| (processes, values.clone()))
            .reduce(|(some, one), (others, other)| {
                let both = one.zip(other).and_then(|(one, other)| arithmetic::combine(one, &other));
                (some.saturating_add(others), both)
            })
            .unwrap_or_default();
        Some(Contribution { packet: *packet, processes, values })
    }
}

/// What the combined contribution of a subtree depends on, besides the contributions.
#[derive(Debug)]
pub(super) struct Subtree {
    pub epoch: u32,
    pub children: Vec<MemberId>,
    /// The processes of this node that are not waited for.
    pub absent: ReaderSet,
    /// When processes are given up that have not come.
    pub gives_up_at: Option<Nanoseconds>,
}

#[cfg(test)]
mod tests {
    use treecast_wire::{Element, Operation};

    use super::*;

    const LATEST: Timestamp = Timestamp(u64::MAX);

    fn values(operation: Operation, values: &[u64]) -> Values {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Values { operation, element: Element::U64, bytes }
    }

    fn sum_of(value: u64, packet: u32) -> Contribution {
        Contribution::of_process(Sequence(packet), Some(values(Operation::Sum, &[value])))
    }

    fn sum_of_all(processes: u16, value: u64, packet: u32) -> Contribution {
        Contribution { processes, ..sum_of(value, packet) }
    }

    fn from_child(child: u32, epoch: u32, sent_at: u64, contribution: Contribution) -> FromChild {
        FromChild { child: MemberId(child), epoch, sent_at: Timestamp(sent_at), contribution }
    }

    fn subtree(epoch: u32, children: &[u32]) -> Subtree {
        let children = children.iter().copied().map(MemberId).collect();
        Subtree { epoch, children, absent: ReaderSet::default(), gives_up_at: None }
    }

    fn poll(reduction: &mut Reduction, now_us: u64, next: u32, subtree: Subtree) -> Option<Contribution> {
        reduction.poll(Nanoseconds::from_us(now_us), &Settings::default(), Sequence(next), || subtree)
    }

    #[test]
    fn a_contribution_is_sent_once_all_below_have_contributed_and_again_until_the_result_is_there() {
        let mut reduction = Reduction::default();
        reduction.contribute(Process::ONLY, sum_of(1, 7), Sequence(7)).unwrap();
        assert_eq!(poll(&mut reduction, 0, 7, subtree(1, &[4, 5])), None);
        assert!(reduction.handle_child(from_child(4, 1, 10, sum_of(10, 7)), LATEST));
        assert_eq!(poll(&mut reduction, 1, 7, subtree(1, &[4, 5])), None);
        assert_eq!(reduction.timeout(), None, "there is nothing to send again");
        assert!(reduction.handle_child(from_child(5, 1, 10, sum_of(100, 7)), LATEST));
        assert_eq!(poll(&mut reduction, 2, 7, subtree(1, &[4, 5])), Some(sum_of_all(3, 111, 7)));
        let again_at = reduction.timeout().unwrap().0 / 1_000;
        assert_eq!(poll(&mut reduction, again_at - 1, 7, subtree(1, &[4, 5])), None);
        assert_eq!(poll(&mut reduction, again_at, 7, subtree(1, &[4, 5])), Some(sum_of_all(3, 111, 7)));
        assert_eq!(poll(&mut reduction, again_at + 998, 8, subtree(1, &[4, 5])), None);
        assert_eq!(reduction.timeout(), None);
    }

    #[test]
    fn contributions_of_another_tree_do_not_count() {
        let mut reduction = Reduction::default();
        reduction.contribute(Process::ONLY, sum_of(1, 7), Sequence(7)).unwrap();
        assert!(reduction.handle_child(from_child(4, 1, 10, sum_of(10, 7)), LATEST));
        assert_eq!(poll(&mut reduction, 0, 7, subtree(1, &[4])), Some(sum_of_all(2, 11, 7)));
        // The child has adopted another one, and this node does not know its new contribution.
        reduction.set_children([MemberId(4)].into_iter());
        assert_eq!(poll(&mut reduction, 1, 7, subtree(2, &[4])), None);
        assert!(!reduction.handle_child(from_child(4, 2, 9, sum_of(99, 7)), LATEST), "it is older");
        assert!(reduction.handle_child(from_child(4, 2, 11, sum_of(30, 7)), LATEST));
        assert_eq!(poll(&mut reduction, 2, 7, subtree(2, &[4])), Some(sum_of_all(2, 31, 7)));
    }

    #[test]
    fn the_same_contribution_again_is_not_sent_at_once() {
        let mut reduction = Reduction::default();
        reduction.contribute(Process::ONLY, sum_of(1, 7), Sequence(7)).unwrap();
        assert_eq!(poll(&mut reduction, 0, 7, subtree(1, &[])), Some(sum_of(1, 7)));
        let again_at = reduction.timeout();
        reduction.contribute(Process::ONLY, sum_of(1, 7), Sequence(7)).unwrap();
        assert_eq!((poll(&mut reduction, 1, 7, subtree(1, &[])), reduction.timeout()), (None, again_at));
        reduction.contribute(Process::ONLY, sum_of(2, 7), Sequence(7)).unwrap();
        assert_eq!(poll(&mut reduction, 2, 7, subtree(1, &[])), Some(sum_of(2, 7)));
    }

    #[test]
    fn a_contribution_that_the_child_cannot_have_sent_yet_keeps_nothing_out() {
        let mut reduction = Reduction::default();
        reduction.contribute(Process::ONLY, sum_of(1, 7), Sequence(7)).unwrap();
        assert!(reduction.handle_child(from_child(4, 1, 1_000_000, sum_of(66, 9)), Timestamp(50)));
        assert!(reduction.handle_child(from_child(4, 1, 60, sum_of(10, 7)), Timestamp(70)));
        assert!(!reduction.handle_child(from_child(4, 1, 55, sum_of(20, 7)), Timestamp(70)), "it is older");
        assert_eq!(poll(&mut reduction, 0, 7, subtree(1, &[4])), Some(sum_of_all(2, 11, 7)));
    }

    #[test]
    fn a_child_may_have_the_result_and_contribute_to_the_next_one_before_its_parent_does() {
        let mut reduction = Reduction::default();
        reduction.contribute(Process::ONLY, sum_of(1, 7), Sequence(7)).unwrap();
        assert!(reduction.handle_child(from_child(4, 1, 10, sum_of(10, 7)), LATEST));
        assert_eq!(poll(&mut reduction, 0, 7, subtree(1, &[4])), Some(sum_of_all(2, 11, 7)));
        assert!(reduction.handle_child(from_child(4, 1, 11, sum_of(20, 8)), LATEST));
        let again_at = reduction.timeout().unwrap().0 / 1_000;
        assert_eq!(poll(&mut reduction, again_at, 8, subtree(1, &[4])), None);
        reduction.contribute(Process::ONLY, sum_of(2, 8), Sequence(8)).unwrap();
        assert_eq!(poll(&mut reduction, again_at, 8, subtree(1, &[4])), Some(sum_of_all(2, 22, 8)));
    }

    #[test]
    fn the_root_hands_over_each_result_once() {
        let mut root = Reduction::default();
        root.contribute(Process::ONLY, sum_of(1, 7), Sequence(7)).unwrap();
        assert!(root.handle_child(from_child(4, 1, 10, sum_of(10, 7)), LATEST));
        assert_eq!(root.poll_result(|| subtree(1, &[4])), Some(sum_of_all(2, 11, 7)));
        assert!(root.handle_child(from_child(4, 1, 11, sum_of(10, 7)), LATEST));
        root.contribute(Process::ONLY, sum_of(1, 7), Sequence(7)).unwrap();
        assert_eq!(root.poll_result(|| subtree(1, &[4])), None);
        root.contribute(Process::ONLY, sum_of(2, 8), Sequence(8)).unwrap();
        assert_eq!(root.poll_result(|| subtree(1, &[4])), None, "the child has not contributed to this one");
        assert!(root.handle_child(from_child(4, 1, 12, sum_of(20, 8)), LATEST));
        assert_eq!(root.poll_result(|| subtree(1, &[4])), Some(sum_of_all(2, 22, 8)));
    }

    #[test]
    fn processes_that_have_not_come_are_waited_for_until_they_are_given_up() {
        let mut reduction = Reduction::default();
        let process = |place| Process { place, count: 3 };
        for place in [2, 0] {
            reduction.contribute(process(place), sum_of(1 << place, 7), Sequence(7)).unwrap();
        }
        let mut absent = ReaderSet::default();
        let waiting = Subtree { gives_up_at: Some(Nanoseconds::from_us(50)), ..subtree(1, &[]) };
        assert_eq!(poll(&mut reduction, 0, 7, waiting), None);
        assert_eq!(reduction.timeout(), Some(Nanoseconds::from_us(50)));
        absent.insert(1);
        assert_eq!(
            poll(&mut reduction, 50, 7, Subtree { absent, ..subtree(1, &[]) }),
            Some(sum_of_all(2, 5, 7))
        );
        assert!(matches!(
            reduction.contribute(process(3), sum_of(1, 7), Sequence(7)),
            Err(Refused::Process { place: 3, count: 3 })
        ));
        assert!(matches!(
            reduction.contribute(process(0), sum_of(1, 6), Sequence(7)),
            Err(Refused::Contribution { .. })
        ));
    }

    #[test]
    fn contributions_that_differ_in_kind_have_a_result_without_values() {
        let different = [
            Some(values(Operation::Min, &[1])),
            Some(values(Operation::Sum, &[1, 2])),
            Some(Values { element: Element::I64, ..values(Operation::Sum, &[1]) }),
            None,
        ];
        for values in different {
            let mut root = Reduction::default();
            root.contribute(Process::ONLY, sum_of(1, 7), Sequence(7)).unwrap();
            let packet = Sequence(7);
            let other = Contribution { processes: 4, ..Contribution::of_process(packet, values) };
            assert!(root.handle_child(from_child(4, 1, 1, other), LATEST));
            assert!(root.handle_child(from_child(5, 1, 1, sum_of(1, 7)), LATEST));
            let result = root.poll_result(|| subtree(1, &[4, 5]));
            assert_eq!(result, Some(Contribution { packet, processes: 6, values: None }));
        }
    }
}
