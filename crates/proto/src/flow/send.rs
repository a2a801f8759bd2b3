//! To the children: a few packets to each in turn, and again to those that miss them.

use treecast_wire::{Data, MemberId, Offload, Sequence};

use super::child::Child;
use super::{ChildPlace, Expected, Flow, Slot, Told, Trouble};
use crate::{Nanoseconds, Refused};

/// A copy of a packet that is to be sent now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy {
    pub to: std::net::SocketAddr,
    pub packet: Sequence,
    pub data: Data,
    pub checksum: treecast_wire::PayloadChecksum,
    pub slot: u32,
}

/// What a sent packet costs beside header and payload: Ethernet, IP and UDP.
const FRAME_BYTES: u64 = 66;

/// What an acknowledgment says may be old, but not by so many packets that it could as well be about those to come.
const LATE_MAX: u32 = 1 << 29;

/// A child in turn is sent so many packets at most before the next child is: one wake-up of its host then does for all of them,
/// and the next child does not wait long.
const TURN_PACKETS: u32 = 32;

/// As much may be sent at once where a rate is given, in time.
const BURST: Nanoseconds = Nanoseconds::from_us(500);

impl Flow {
    /// Takes new children, in their order. What is known of those that stay is kept.
    pub fn set_children(&mut self, now: Nanoseconds, epoch: u32, places: &[ChildPlace]) {
        let mut kept: Vec<Option<Child>> = std::mem::take(&mut self.children).into_iter().map(Some).collect();
        for place in places {
            let found = self.place(place.member).and_then(|known| kept[known].take());
            let child = match found {
                Some(child) if child.address == place.address => child,
                _ => {
                    let mut child = Child::new(now, place, &self.terms, self.stable);
                    (child.since, child.gate) = (epoch, self.forwarded.max(self.consumed));
                    child
                }
            };
            self.children.push(child);
        }
        self.places = self.children.iter().enumerate().map(|(index, child)| (child.member, index)).collect();
        self.places.sort_unstable();
        self.repeating = self.children.iter().filter(|child| !child.missing.is_empty()).count();
        self.probing = self.children.iter().filter(|child| child.is_to_be_probed).count();
        self.find_least();
        self.turn = self.children.len();
        self.look_at = Nanoseconds::ZERO;
        self.settle();
    }

    /// The children, in their order.
    pub fn children(&self) -> impl Iterator<Item = MemberId> {
        self.children.iter().map(|child| child.member)
    }

    /// Whether that member is a child.
    pub fn has_child(&self, member: MemberId) -> bool {
        self.place(member).is_some()
    }

    fn place(&self, member: MemberId) -> Option<usize> {
        let found = self.places.binary_search_by_key(&member, |&(member, _)| member).ok()?;
        Some(self.places[found].1)
    }

    /// With offload `host` or `assisted`: packets before this one may go to that child, or to all.
    /// A child that has gone meanwhile is none of them any more.
    pub fn forward(&mut self, upto: Sequence, child: Option<MemberId>) -> Result<(), Refused> {
        if upto.is_before(self.freed) || self.next.is_before(upto) {
            return Err(Refused::Packet { given: upto, from: self.freed, end: self.next });
        }
        self.forwarded = self.forwarded.max(upto);
        let children = match child {
            None => &mut self.children[..],
            Some(member) => self.place(member).map_or(&mut [][..], |place| &mut self.children[place..=place]),
        };
        for child in children {
            child.gate = child.gate.max(upto);
        }
        Ok(())
    }

    /// A child says how far it has come.
    pub fn told(&mut self, now: Nanoseconds, member: MemberId, told: &Told) {
        let Some(place) = self.place(member) else { return };
        let (next, end, slots) = (self.next, self.end(), self.terms.slots);
        let child = &mut self.children[place];
        let is_ahead = next.is_before(told.next) && !end.is_before(told.next);
        if !child.is_open && (told.epoch < child.since || is_ahead) {
            // It does not know yet that this node is its parent, and may still accept packets from another; or it begins with
            // a packet that has not come here yet.
            child.alive(now);
            return;
        }
        let has_repeats = !child.missing.is_empty();
        // It may have more than this node has sent it: what it holds from an earlier parent counts when a gap is filled.
        let least = if child.is_open { child.sent - LATE_MAX } else { child.stable };
        let is_possible = !told.next.is_before(least)
            && !next.is_before(told.next)
            && (0..=LATE_MAX as i32).contains(&told.next.distance_from(told.stable))
            && told.window <= slots;
        if !is_possible {
            self.counters.invalid += 1;
            return;
        }
        self.counters.acks_received += 1;
        child.heard(now, told);
        if !child.is_open {
            child.is_open = true;
            (child.sent, child.acked, child.acked_at) = (told.next, told.next, now);
        }
        child.sent = child.sent.max(told.next);
        let was_least = self.least.is_some_and(|(least, _)| child.stable == least);
        child.progress(now, told);
        let has_left = was_least && self.least.is_some_and(|(least, _)| child.stable != least);
        if let Some(missing) = told.missing {
            for packet in missing.numbers() {
                let is_under_way = !packet.is_before(child.acked) && packet.is_before(child.sent);
                let slot = (packet.0 & (slots - 1)) as usize;
                if is_under_way
                    && child.may_know_of(now, child.sent_at[slot], told)
                    && child.missing.set(packet)
                {
                    child.window.lost(packet, child.sent);
                }
            }
        }
        self.repeating = self.repeating - usize::from(has_repeats) + usize::from(!child.missing.is_empty());
        if has_left {
            match &mut self.least {
                Some((_, children)) if *children > 1 => *children -= 1,
                _ => self.find_least(),
            }
        }
        self.settle();
    }

    /// Works out which of the children's subtrees have least.
    fn find_least(&mut self) {
        let least = self.children.iter().map(|child| child.stable).reduce(Sequence::min);
        self.least =
            least.map(|least| (least, self.children.iter().filter(|child| child.stable == least).count()));
    }

    /// Looks after children whose time has come; says what is wrong with whom.
    pub fn elapse(&mut self, now: Nanoseconds) -> Vec<(MemberId, Trouble)> {
        if now < self.look_at {
            return Vec::new();
        }
        let timeouts = self.terms.timeouts;
        for child in &mut self.children {
            if child.deadline(timeouts) <= now {
                let had_repeats = !child.missing.is_empty();
                self.counters.timeouts += u64::from(child.owes_answer());
                self.probing += usize::from(!child.is_to_be_probed);
                child.missed(now);
                self.repeating += usize::from(!had_repeats && !child.missing.is_empty());
            }
        }
        let deadlines = self.children.iter().map(|child| child.deadline(timeouts));
        self.look_at = deadlines.min().unwrap_or(Nanoseconds(u64::MAX));
        let troubles =
            self.children.iter().filter_map(|child| Some((child.member, child.trouble(now, timeouts)?)));
        troubles.collect()
    }

    /// This node has been asleep.
    pub fn overslept(&mut self) {
        for child in &mut self.children {
            child.overslept();
        }
        self.look_at = Nanoseconds::ZERO;
    }

    /// When to look after children next, and when the rate allows another packet.
    pub fn deadline(&self) -> Option<Nanoseconds> {
        let paced = (self.terms.bytes_per_s_max.is_some() && self.has_copy()).then_some(self.paced_until);
        let look = (!self.children.is_empty()).then_some(self.look_at);
        [paced, look].into_iter().flatten().min()
    }

    /// A child that is to be asked how far it has come, and the packet that it will be sent next.
    pub fn take_probe(&mut self, now: Nanoseconds) -> Option<(std::net::SocketAddr, Sequence)> {
        // What misses its time is rare, so that a look at all of them is.
        if self.probing == 0 {
            return None;
        }
        let child =
            self.children.iter_mut().find(|child| child.is_to_be_probed && child.missing.is_empty())?;
        child.is_to_be_probed = false;
        self.probing -= 1;
        child.asked(now, child.sent);
        self.look_at = self.look_at.min(child.deadline(self.terms.timeouts));
        self.counters.probes_sent += 1;
        Some((child.address, child.sent))
    }

    /// The next copy to be sent, if windows, slots and rate let one go: first what is missing, then a few packets to each child
    /// in turn.
    pub fn take_copy(&mut self, now: Nanoseconds) -> Option<Copy> {
        if self.terms.bytes_per_s_max.is_some() && now < self.paced_until {
            return None;
        }
        let (place, packet, retransmitted) = self.next_repeat().or_else(|| self.next_in_turn())?;
        let Slot { piece, ack_requested, close } = *self.slot(packet);
        let is_end = packet + 1 == self.next;
        let index = self.index(packet);
        let child = &mut self.children[place];
        if child.in_flight() == 0 {
            child.quiet_since = now;
        }
        if !retransmitted {
            child.sent = packet + 1;
        }
        child.sent_at[index] = now;
        let interval = (self.terms.slots / 8).max(1);
        let fills_window = child.in_flight() >= child.window.packets() || child.sent == child.end;
        let ends_burst = self.terms.is_root && is_end && piece.is_last();
        let ack_requested = ack_requested
            || retransmitted
            || fills_window
            || ends_burst
            || packet.0 % interval == interval - 1;
        if ack_requested {
            child.asked(now, packet + 1);
        }
        if ack_requested || child.in_flight() == 1 {
            self.look_at = self.look_at.min(child.deadline(self.terms.timeouts));
        }
        if retransmitted {
            self.counters.retransmitted += 1;
        } else {
            self.counters.sent += 1;
        }
        if let Some(rate) = self.terms.bytes_per_s_max {
            let bytes = FRAME_BYTES + treecast_wire::HEADER_BYTES as u64 + u64::from(piece.length);
            let from = self.paced_until.max(now - BURST);
            self.paced_until = from + Nanoseconds(bytes * 1_000_000_000 / rate.max(1));
        }
        let data = Data {
            message: piece.message,
            offset: piece.offset,
            length: piece.length,
            message_length: piece.message_length,
            ack_requested,
            retransmitted,
            close,
        };
        Some(Copy {
            to: self.children[place].address,
            packet,
            data,
            checksum: piece.checksum,
            slot: index as u32,
        })
    }

    /// Lets no packet go that is not of a message which has begun, for the sake of a newcomer: what it is to begin with, once
    /// that is known.
    pub fn hold(&mut self) -> Option<Sequence> {
        if self.hold.is_none() {
            let sent =
                self.children.iter().map(|child| child.sent).reduce(Sequence::max).unwrap_or(self.next);
            let is_boundary = if sent == self.next {
                !matches!(self.expected, Expected::Rest { .. })
            } else {
                self.slot(sent).piece.offset == 0
            };
            if is_boundary {
                self.hold = Some(sent);
            }
        }
        self.hold
    }

    /// Lets packets go again.
    pub fn release(&mut self) {
        self.hold = None;
    }

    fn next_repeat(&mut self) -> Option<(usize, Sequence, bool)> {
        if self.repeating == 0 {
            return None;
        }
        for (place, child) in self.children.iter_mut().enumerate() {
            if let Some(packet) = child.missing.first(child.acked, child.sent) {
                child.missing.clear(packet);
                self.repeating -= usize::from(child.missing.is_empty());
                return Some((place, packet, true));
            }
        }
        unreachable!("a child that has something to be repeated misses a packet under way to it")
    }

    /// A few packets go to each child that may have them before the next few do.
    fn next_in_turn(&mut self) -> Option<(usize, Sequence, bool)> {
        loop {
            while let Some(child) = self.children.get(self.turn) {
                if self.may_send(child) && child.sent.is_before(self.round + TURN_PACKETS) {
                    return Some((self.turn, child.sent, false));
                }
                self.turn += 1;
            }
            let sendable = self.children.iter().filter(|child| self.may_send(child)).map(|child| child.sent);
            self.round = sendable.reduce(Sequence::min)?;
            self.turn = 0;
        }
    }

    fn has_copy(&self) -> bool {
        self.repeating > 0 || self.children.iter().any(|child| self.may_send(child))
    }

    /// Whether the child may be sent its next packet.
    fn may_send(&self, child: &Child) -> bool {
        // The closing packet follows by itself what the application has sent on.
        let is_open = self.terms.offload == Offload::Nic || self.closed == Some(child.gate);
        let gate = if is_open { self.next } else { child.gate.min(self.next) };
        let gate = self.hold.map_or(gate, |hold| gate.min(hold));
        child.is_open
            && child.sent.is_before(gate)
            && child.sent.is_before(child.end)
            && child.in_flight() < child.window.packets()
    }
}

impl Child {
    /// Whether what is told may be about a packet that was sent at that time: an answer is about what was sent before the
    /// question, and no word comes quicker than the quickest answer.
    fn may_know_of(&self, now: Nanoseconds, sent_at: Nanoseconds, told: &Told) -> bool {
        match told.timestamp.0 {
            0 => self.trip.may_have_passed(now.since(sent_at)),
            asked_at => sent_at.0 <= asked_at,
        }
    }

    fn alive(&mut self, now: Nanoseconds) {
        self.heard_at = now;
        self.unanswered = None;
        self.misses = 0;
    }

    fn heard(&mut self, now: Nanoseconds, told: &Told) {
        self.alive(now);
        let sent_at = Nanoseconds(told.timestamp.0);
        if told.timestamp.0 != 0 && sent_at <= now {
            self.trip.measured(now - sent_at);
        }
    }

    fn progress(&mut self, now: Nanoseconds, told: &Told) {
        let arrived = told.next.distance_from(self.acked);
        if arrived > 0 {
            let wants_more = self.in_flight() >= self.window.packets() && !self.trip.is_queueing();
            self.window.arrived(arrived as u32, wants_more);
            for packet in self.acked.until(told.next) {
                self.missing.clear(packet);
            }
            (self.acked, self.acked_at) = (told.next, now);
            self.quiet_since = now;
        }
        // An answer to what was asked after the child had said that it has more: that is no old packet.
        self.has_lost_state |= arrived < 0 && Nanoseconds(told.timestamp.0) > self.acked_at;
        let (stable, end) = (self.stable, self.end);
        self.stable = stable.max(told.stable);
        self.end = end.max(told.next + told.window);
        if (stable, end) != (self.stable, self.end) {
            self.looks = 0;
        }
    }
}
