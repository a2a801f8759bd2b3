//! Batches: packets of one length, but for the last, that pass the system as one. The program takes all of them, or none.
//!
//! The reference is given the same packets one after the other, at one time, and is asked what it has to say when it has all of
//! them. What the program does with a batch that it takes is the same, by design: there is one answer to the parent, with the time
//! of the last packet that asks; and of a root's packets the last one alone asks since it ends what there is to send. On their way
//! out copies are cut apart by the system.
//!
//! A batch is taken if every packet is in the ordinary and every child may be sent all of them; which batches are, is foretold here
//! and compared. Of any other nothing has changed, and user space handles its packets one by one.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use treecast_proto::{ChildState, GroupId, HandOff, Input, Nanoseconds, Piece, Protocol, Refused, Sequence};
use treecast_wire::{Body, View};

use super::super::frame::{self, Style};
use super::super::lab::Verdict;
use super::compare::equal;
use super::{Pair, ours, source, text, write};

/// How long to wait for an answer before one has come, as in proto's `RoundTrip`.
const INITIAL_RTO: Nanoseconds = Nanoseconds::from_ms(10);

impl Pair<'_> {
    /// Packets come as one.
    pub fn batch(&mut self, now: Nanoseconds, from: SocketAddr, datagrams: &[Vec<u8>]) -> Result<(), String> {
        self.begin(now, false)?;
        let group = |bytes: &[u8]| View::new(bytes).ok().map(|view| view.group());
        let of_whom: Vec<Option<GroupId>> = datagrams
            .iter()
            .map(|bytes| group(bytes).filter(|group| self.groups.contains_key(group)))
            .collect();
        let first = of_whom[0];
        let state = first.and_then(|group| self.state(group));
        for &group in of_whom.iter().flatten() {
            self.read(now, group);
        }
        let is_ordinary = state.is_some_and(|state| self.is_ordinary(now, &state, from, datagrams));
        for bytes in datagrams {
            self.handle(now, from, bytes)?;
        }

        if let Some(posted) = first.and_then(|group| self.groups.get(&group)) {
            posted.kernel.memory().is_waiting().store(self.manner.sleeps.into(), Ordering::Release);
        }
        let style = Style { has_checksum: true, ..self.manner.style };
        let frame = frame::build(from, self.address, &datagrams.concat(), style);
        let verdict = self.lab.receive_batch(&frame, datagrams[0].len()).map_err(text)?;
        let sent = self.lab.frames();
        equal("whether a batch is taken", &is_ordinary, &(verdict != Verdict::Passed))?;
        let segments = datagrams.len() as u64;
        self.count(segments, is_ordinary);
        self.tally.came += segments;
        if is_ordinary {
            self.tally.taken += segments;
            equal(
                "whether somebody is woken",
                &self.wakes(first, datagrams),
                &matches!(verdict, Verdict::Waking(_)),
            )?;
        } else {
            if !ours(&sent).is_empty() {
                return Err("what is passed up was sent on all the same".into());
            }
            // What the application has read is looked at once, as by the program.
            for group in of_whom.into_iter().flatten() {
                self.take(now, group);
            }
            for bytes in datagrams {
                self.user_handle(now, from, bytes)?;
            }
        }
        if let Verdict::Waking(waking) = verdict {
            self.tally.woken += 1;
            self.check_waking(style, from, &datagrams[0], &waking)?;
        }
        while self.lab.program.take_wakeup().is_some() {}
        self.settle(now, sent)
    }

    /// The root's application has packets, and gives as many as there is room for to the program as one.
    pub fn queue_batch(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        packets: &[(Piece, Vec<u8>)],
    ) -> Result<(), String> {
        self.begin(now, false)?;
        let Some((_, first)) = self.reference.readable(group) else { return Ok(()) };
        let room = self.reference.room(group) as usize;
        let packets = &packets[..packets.len().min(room)];
        if packets.is_empty() {
            return Ok(());
        }
        let state = self.state(group);
        let is_queued = queue_all(&mut self.reference.clone(), now, group, packets).is_ok();
        let is_ordinary = is_queued && state.is_some_and(|state| may_be_sent_all(&state, now, packets.len()));
        let expected = queue_all(&mut self.reference, now, group, packets);
        let memory = self.groups[&group].kernel.memory().clone();
        let mut datagrams = Vec::new();
        for (place, (piece, payload)) in packets.iter().enumerate() {
            let packet = first + place as u32;
            let slots = self.slots.get_mut(&group).ok_or("a root without slots")?;
            let index = packet.0 as usize & (slots.len() - 1);
            slots[index].clone_from(payload);
            write(&memory, packet, payload);
            memory.describe(packet, piece, now);
            datagrams.push(source(group, packet, piece, payload));
        }
        let is_handed_off = self.groups[&group].kernel.is_handed_off();
        if is_handed_off {
            let frame = self.source_frame(&datagrams.concat());
            self.lab.send_batch(&frame, datagrams[0].len()).map_err(text)?;
        }
        let sent = self.lab.frames();
        let taken = Sequence(memory.forwarded().load(Ordering::Acquire));
        let end = first + packets.len() as u32;
        if is_handed_off && taken != first && taken != end {
            return Err(format!("of packets {first} to {end} those before {taken} were taken"));
        }
        equal("whether a batch is taken", &is_ordinary, &(is_handed_off && taken == end))?;
        let segments = packets.len() as u64;
        self.count(segments, is_ordinary);
        self.tally.queued += segments;
        let found = if is_ordinary {
            self.tally.sent_on += segments;
            Ok(())
        } else {
            if !ours(&sent).is_empty() {
                return Err("what is not taken was sent all the same".into());
            }
            self.take(now, group);
            queue_all(&mut self.subject, now, group, packets)
        };
        equal("the answer to a batch", &expected, &found)?;
        self.settle(now, sent)
    }

    const fn count(&mut self, segments: u64, is_taken: bool) {
        if segments > 1 {
            self.tally.batches += 1;
            self.tally.segments += segments;
            if is_taken {
                self.tally.batches_taken += 1;
                self.tally.segments_taken += segments;
            }
        }
    }

    /// What the program has of a group, if it has it.
    fn state(&self, group: GroupId) -> Option<HandOff> {
        let posted = self.groups.get(&group).filter(|posted| posted.kernel.is_handed_off())?;
        let mut state = posted.state.clone();
        self.reference.clone().hand_off(group, &mut state, |_| true).then_some(state)
    }

    /// Whether every packet is the next one of the parent, and every child may be sent all of them.
    fn is_ordinary(
        &self,
        now: Nanoseconds,
        state: &HandOff,
        from: SocketAddr,
        datagrams: &[Vec<u8>],
    ) -> bool {
        let mut alone = self.reference.clone();
        let is_next = |bytes: &Vec<u8>| {
            let Ok(packet) = View::new(bytes).and_then(View::check) else { return false };
            let Body::Data(data) = packet.header.body else { return false };
            let next = alone.readable(state.group).map(|(_, next)| next + 1);
            (packet.header.cookie, packet.header.epoch) == (state.cookie, state.epoch)
                && state.parent == Some((packet.header.sender, from))
                && !data.retransmitted
                && !data.close
                && alone.handle(now, Input::Datagram { from, bytes }).is_ok()
                && alone.readable(state.group).map(|(_, next)| next) == next
        };
        datagrams.iter().all(is_next) && may_be_sent_all(state, now, datagrams.len())
    }

    /// Whether a sleeping application is woken by a batch that is taken: by what ends a message, or since it has to make room.
    fn wakes(&self, group: Option<GroupId>, datagrams: &[Vec<u8>]) -> bool {
        let ends = |bytes: &Vec<u8>| {
            let body = View::new(bytes).and_then(View::check).map(|packet| packet.header.body);
            matches!(body, Ok(Body::Data(data)) if data.offset + u64::from(data.length) == data.message_length)
        };
        let is_full = group.is_some_and(|group| {
            let (from, next) = self.reference.readable(group).unwrap_or((Sequence(0), Sequence(0)));
            next.distance_from(from) as usize >= self.slots[&group].len() / 4
        });
        self.manner.sleeps && (is_full || datagrams.iter().any(ends))
    }
}

/// Queues what a root's application has written, up to what is refused.
fn queue_all(
    protocol: &mut Protocol,
    now: Nanoseconds,
    group: GroupId,
    packets: &[(Piece, Vec<u8>)],
) -> Result<(), Refused> {
    packets.iter().try_for_each(|(piece, _)| protocol.handle(now, Input::Queue { group, piece: *piece }))
}

/// Whether windows and slots let so many packets go to every child at once, and no child is to be looked after first.
fn may_be_sent_all(state: &HandOff, now: Nanoseconds, packets: usize) -> bool {
    let may_be_sent = |child: &ChildState| {
        let in_flight = child.sent.distance_from(child.acked) as usize;
        child.window_end.distance_from(child.sent) as usize >= packets
            && in_flight + packets <= child.congestion_window.packets as usize
            && deadline(state, child) > now
    };
    state.children.iter().all(|child| may_be_sent(&child.state))
}

/// When a child is to be looked after, as in proto's `Child`.
fn deadline(state: &HandOff, child: &ChildState) -> Nanoseconds {
    let rtt = &child.rtt;
    let measured = state.min_rto.max(Nanoseconds(rtt.smoothed.0 + 4 * rtt.variation.0));
    let wait = if rtt.is_measured == 0 { INITIAL_RTO } else { measured };
    let doublings = if child.unanswered > 0 || child.acked.is_before(child.ack_requested) {
        child.backoff
    } else if child.stable.is_before(child.sent) || child.sent == child.window_end {
        2 + child.persist_probes
    } else {
        return child.timer_started_at.max(child.heard_at) + state.keepalive;
    };
    child.timer_started_at + Nanoseconds(state.keepalive.0 / 4).min(Nanoseconds(wait.0 << doublings.min(16)))
}
