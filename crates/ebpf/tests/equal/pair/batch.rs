//! GSO batches: segments of equal length, except the final one, that pass the kernel as one packet.
//! The program handles all segments of a batch, or none.
//!
//! The reference gets the same packets back to back, at one time, and its outputs are polled after
//! the final one. The program's result for a batch that it handles is the same by design: there is
//! one acknowledgment to the parent, with the timestamp of the last packet that requests one; of a
//! root's packets only the final one requests an acknowledgment, since it ends the data to be sent.
//! The kernel segments the copies on egress.
//!
//! The program handles a batch if every packet is the next one in order and the windows of every
//! child admit all of them. The test predicts and compares which batches are handled. Any other
//! batch changes nothing, and the slow path handles its packets one by one.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use treecast_proto::{ChildState, GroupId, HandOff, Input, Nanoseconds, Piece, Protocol, Refused, Sequence};
use treecast_wire::{Body, Distribution, Packet, View};

use super::super::frame::{self, Style};
use super::super::lab::Verdict;
use super::super::session::has_wrong_crc;
use super::application::source_datagram;
use super::compare::equal;
use super::{Pair, refused, text, udp_frames, write};

/// The RTO before the first measurement, as in proto's `Rtt`.
const INITIAL_RTO: Nanoseconds = Nanoseconds::from_ms(10);

impl Pair<'_> {
    /// Receives a batch.
    pub fn batch(&mut self, now: Nanoseconds, from: SocketAddr, datagrams: &[Vec<u8>]) -> Result<(), String> {
        self.advance(now, false)?;
        let group = |bytes: &[u8]| View::new(bytes).ok().map(|view| view.group());
        let groups: Vec<Option<GroupId>> = datagrams
            .iter()
            .map(|bytes| group(bytes).filter(|group| self.groups.contains_key(group)))
            .collect();
        let first = groups[0];
        let state = first.and_then(|group| self.state(group));
        for &group in groups.iter().flatten() {
            self.sync_consumed(now, group);
        }
        let is_fast_path = state.is_some_and(|state| self.is_fast_path(now, &state, from, datagrams));
        for bytes in datagrams {
            self.handle(now, from, bytes)?;
        }

        if let Some(posted) = first.and_then(|group| self.groups.get(&group)) {
            posted.kernel.memory().is_waiting().store(self.behaviour.sleeps.into(), Ordering::Release);
        }
        // What changes on the way contradicts the checksum of the batch, too.
        let has_changed = self.trusts_network(first) && datagrams.iter().any(|bytes| has_wrong_crc(bytes));
        let verdict = self.offer_batch(from, datagrams, !has_changed)?;
        let sent = self.lab.frames();
        equal("whether a batch is handled", &is_fast_path, &(verdict != Verdict::Passed))?;
        let segments = datagrams.len() as u64;
        self.count_batch(segments, is_fast_path);
        self.counts.received += segments;
        if is_fast_path {
            self.counts.handled += segments;
            equal(
                "whether a reader is woken",
                &self.wakes(first, datagrams),
                &matches!(verdict, Verdict::WakeDatagram(_)),
            )?;
        } else {
            if !udp_frames(&sent).is_empty() {
                return Err("a batch that was passed up was forwarded as well".into());
            }
            // The application's page is read once per batch, as the program does.
            for group in groups.into_iter().flatten() {
                self.reclaim(now, group);
            }
            for bytes in datagrams {
                self.user_handle(now, from, bytes)?;
            }
        }
        if let Verdict::WakeDatagram(waking) = verdict {
            self.counts.wakeups += 1;
            self.check_wake_datagram(self.batch_style(), from, &datagrams[0], &waking)?;
        }
        while self.lab.program.take_wakeup().is_some() {}
        self.settle(now, sent)
    }

    /// The program alone receives a batch. If the kernel does not vouch for its checksum, that is
    /// wrong.
    pub fn offer_batch(
        &mut self,
        from: SocketAddr,
        datagrams: &[Vec<u8>],
        is_vouched_for: bool,
    ) -> Result<Verdict, String> {
        let group = View::new(&datagrams[0]).ok().map(|view| view.group());
        let to = self.destination(group.filter(|group| self.groups.contains_key(group)), &datagrams[0]);
        let mut frame = frame::build(from, to, &datagrams.concat(), self.batch_style());
        if !is_vouched_for {
            frame::change_checksum(&mut frame);
        }
        self.lab.receive_batch(&frame, datagrams[0].len(), is_vouched_for).map_err(text)
    }

    /// Batches always have a checksum.
    const fn batch_style(&self) -> Style {
        Style { has_checksum: true, ..self.behaviour.style }
    }

    /// The root's application sends as many packets as there is room for in one batch.
    pub fn queue_batch(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        packets: &[(Piece, Vec<u8>)],
    ) -> Result<(), String> {
        self.advance(now, false)?;
        let Some((_, first)) = self.reference().readable(group) else { return Ok(()) };
        let room = self.reference().free_slots(group) as usize;
        let packets = &packets[..packets.len().min(room)];
        if packets.is_empty() {
            return Ok(());
        }
        let state = self.state(group);
        let is_queued = queue_all(&mut self.reference().clone(), now, group, packets).is_ok();
        let is_fast_path = is_queued
            && state.is_some_and(|state| {
                state.multicast.is_none() && may_be_sent_all(&state, now, packets.len())
            });
        let mut in_turn = packets.iter();
        let expected = refused(
            in_turn.try_for_each(|(piece, payload)| self.reference.queue(now, group, *piece, payload)),
        )?;
        let memory = self.groups[&group].kernel.memory().clone();
        let mut datagrams = Vec::new();
        for (place, (piece, payload)) in packets.iter().enumerate() {
            let packet = first + place as u32;
            write(&memory, packet, payload);
            memory.describe(packet, piece, now);
            datagrams.push(source_datagram(group, packet, piece, payload));
        }
        let is_handed_off = self.groups[&group].kernel.is_handed_off();
        if is_handed_off {
            let frame = self.source_frame(&datagrams.concat());
            self.lab.send_batch(&frame, datagrams[0].len()).map_err(text)?;
        }
        let sent = self.lab.frames();
        let forwarded = Sequence(memory.forwarded().load(Ordering::Acquire));
        let end = first + packets.len() as u32;
        if is_handed_off && forwarded != first && forwarded != end {
            return Err(format!("of packets {first} to {end} only those before {forwarded} were forwarded"));
        }
        equal("whether a batch is handled", &is_fast_path, &(is_handed_off && forwarded == end))?;
        let segments = packets.len() as u64;
        self.count_batch(segments, is_fast_path);
        self.counts.queued += segments;
        let found = if is_fast_path {
            self.counts.forwarded += segments;
            Ok(())
        } else {
            if !udp_frames(&sent).is_empty() {
                return Err("a batch that was not handled was sent nevertheless".into());
            }
            self.reclaim(now, group);
            queue_all(&mut self.subject, now, group, packets)
        };
        equal("the answer to a batch", &expected, &found)?;
        self.settle(now, sent)
    }

    const fn count_batch(&mut self, segments: u64, is_handled: bool) {
        if segments > 1 {
            self.counts.batches += 1;
            self.counts.segments += segments;
            if is_handled {
                self.counts.batches_handled += 1;
                self.counts.segments_handled += segments;
            }
        }
    }

    /// The state of a group that is handed off to the program.
    fn state(&self, group: GroupId) -> Option<HandOff> {
        let posted = self.groups.get(&group).filter(|posted| posted.kernel.is_handed_off())?;
        let mut state = posted.state.clone();
        self.reference().hand_off_state(group, &mut state).then_some(state)
    }

    /// Whether every packet is the next one from the parent, or by multicast from the root, and all
    /// of them may be sent to every child.
    fn is_fast_path(
        &self,
        now: Nanoseconds,
        state: &HandOff,
        from: SocketAddr,
        datagrams: &[Vec<u8>],
    ) -> bool {
        let mut alone = self.reference().clone();
        let way = match state.multicast {
            None => state.parent.map(|parent| (parent, Distribution::Tree)),
            Some(multicast) => {
                multicast.source.map(|source| ((source.root, source.from), Distribution::Multicast))
            }
        };
        let is_next = |bytes: &Vec<u8>| {
            let packet = View::new(bytes).and_then(|view| view.check(&state.keys));
            let Ok(Packet { header, .. }) = packet else { return false };
            let Body::Data(data) = header.body else { return false };
            let next = alone.readable(state.group).map(|(_, next)| next + 1);
            (header.group, header.epoch) == (state.group, state.epoch)
                && way == Some(((header.sender, from), data.distribution))
                && !data.retransmitted
                && !data.close
                && alone.handle(now, Input::Datagram { from, bytes }).is_ok()
                && alone.readable(state.group).map(|(_, next)| next) == next
        };
        datagrams.iter().all(is_next) && may_be_sent_all(state, now, datagrams.len())
    }

    /// Whether a batch that is handled wakes a sleeping application: it ends a message, or a
    /// quarter of the slots is to be read.
    fn wakes(&self, group: Option<GroupId>, datagrams: &[Vec<u8>]) -> bool {
        let ends = |bytes: &Vec<u8>| {
            let body = View::new(bytes).and_then(View::read).map(|packet| packet.header.body);
            matches!(body, Ok(Body::Data(data)) if data.offset + u64::from(data.length) == data.message_length)
        };
        let is_full = group.is_some_and(|group| {
            let (from, next) = self.reference().readable(group).unwrap_or((Sequence(0), Sequence(0)));
            next.distance_from(from) as u32 >= self.memory(group).count() / 4
        });
        self.behaviour.sleeps && (is_full || datagrams.iter().any(ends))
    }
}

/// Queues the packets of a root's application, up to the first that is refused.
fn queue_all(
    protocol: &mut Protocol,
    now: Nanoseconds,
    group: GroupId,
    packets: &[(Piece, Vec<u8>)],
) -> Result<(), Refused> {
    packets.iter().try_for_each(|(piece, _)| protocol.handle(now, Input::Queue { group, piece: *piece }))
}

/// Whether the windows of every child admit this number of packets at once, and no timer of a child
/// has expired.
fn may_be_sent_all(state: &HandOff, now: Nanoseconds, packets: usize) -> bool {
    if state.multicast.is_some() {
        return state.children.iter().all(|child| deadline(state, &child.state) > now);
    }
    let may_be_sent = |child: &ChildState| {
        let in_flight = child.sent.distance_from(child.acked) as usize;
        child.window_end.distance_from(child.sent) as usize >= packets
            && in_flight + packets <= child.congestion_window.packets as usize
            && deadline(state, child) > now
    };
    state.children.iter().all(|child| may_be_sent(&child.state))
}

/// When the timer of a child expires, as in proto's `Child`.
fn deadline(state: &HandOff, child: &ChildState) -> Nanoseconds {
    let ack_deadline = ack_deadline(state, child);
    if state.multicast.is_some() {
        ack_deadline.min(child.addressed_at + state.keepalive)
    } else {
        ack_deadline
    }
}

fn ack_deadline(state: &HandOff, child: &ChildState) -> Nanoseconds {
    let rtt = &child.rtt;
    let measured = state.min_rto.max(Nanoseconds(rtt.smoothed.0 + 4 * rtt.variation.0));
    let wait = if rtt.is_measured == 0 { INITIAL_RTO } else { measured };
    let doublings = if child.unanswered > 0 || child.acked.is_before(child.ack_requested) {
        child.backoff
    } else if child.stable.is_before(child.sent) || !child.sent.is_before(child.window_end) {
        2 + child.persist_probes
    } else {
        return child.timer_started_at.max(child.heard_at) + state.keepalive;
    };
    child.timer_started_at + Nanoseconds(state.keepalive.0 / 4).min(Nanoseconds(wait.0 << doublings.min(16)))
}
