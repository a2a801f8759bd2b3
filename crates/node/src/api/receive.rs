//! How the members other than the root receive.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use treecast_engine::settings::error::NodeError;
use treecast_engine::wait::poller::Polling;
use treecast_proto::{Input, Piece, Sequence, is_forward_due};
use treecast_shm::message_buffer::MessageBuffer;
use treecast_shm::ring::RingReader;
use treecast_shm::shared_group::RingSide;
use treecast_shm::sync::lock;

use super::group::{Group, Role};
use super::loan::Loan;
use super::receiver::{Damage, Receiver};
use super::sink::{Parts, Sink, Whole};

/// A part of a message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The length of the whole message, in bytes.
    pub message_bytes: u64,
    /// Whether this part completes the message.
    pub is_last: bool,
}

/// What happens to the parts of a message as they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taking {
    /// They are copied, which takes microseconds: the thread stays the polling thread meanwhile,
    /// although it does not run the engine.
    Copies,
    /// The application has them, and may wait for anything.
    MayWait,
}

/// How much a call of [`Group::receive_part`] takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// The longest message.
    pub message_bytes: u64,
    /// The longest part. It is of whole packets ([`Group::packet_bytes`]).
    pub part_bytes: u64,
}

impl Capacity {
    /// For messages of at most `message_bytes`, in parts of any length.
    #[must_use]
    pub const fn of(message_bytes: u64) -> Self {
        Self { message_bytes, part_bytes: u64::MAX }
    }
}

/// How long a packet with a corrupt payload is waited for: as long as the protocol asks for it.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(2);

impl Group {
    /// Receives the next message; none, if the root has closed the group and all messages have been
    /// received.
    ///
    /// # Errors
    /// [`NodeError::WrongSide`] at the root; [`NodeError::TimedOut`], after which the message can
    /// still be received; [`NodeError::Corrupt`]; [`NodeError::Ended`].
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Option<Vec<u8>>, NodeError> {
        let mut whole = Whole::default();
        let capacity = Capacity::of(u64::MAX);
        let length = self.receive_message(timeout, capacity, Taking::Copies, &mut whole)?;
        Ok(length.map(|_| whole.into_vec()))
    }

    /// Receives the next message into a buffer; returns its length. What follows the message in the
    /// buffer may have changed.
    ///
    /// # Errors
    /// Those of [`Group::receive`], and [`NodeError::TooLong`], after which the message can still
    /// be received.
    pub fn receive_into(
        &self,
        buffer: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<Option<usize>, NodeError> {
        self.receive_filling(timeout, buffer.len(), &mut MessageBuffer::new(buffer))
    }

    /// Receives the next message into a buffer that need not be initialized; the number of bytes
    /// that the call returns is initialized then.
    ///
    /// # Errors
    /// Those of [`Group::receive_into`].
    pub fn receive_uninit(
        &self,
        buffer: &mut [MaybeUninit<u8>],
        timeout: Option<Duration>,
    ) -> Result<Option<usize>, NodeError> {
        self.receive_filling(timeout, buffer.len(), &mut MessageBuffer::uninit(buffer))
    }

    fn receive_filling(
        &self,
        timeout: Option<Duration>,
        buffer_bytes: usize,
        buffer: &mut MessageBuffer<'_>,
    ) -> Result<Option<usize>, NodeError> {
        let capacity = Capacity::of(buffer_bytes as u64);
        let length = self.receive_message(timeout, capacity, Taking::Copies, buffer)?;
        // Less than the message, if a part of it was received before.
        Ok(length.map(|_| buffer.filled()))
    }

    /// Receives the next message in place: `take` is called with the message's length and each
    /// contiguous part of its bytes. Returns the length.
    ///
    /// # Errors
    /// Those of [`Group::receive_into`], for a message of more than `buffer_bytes`.
    pub fn receive_with(
        &self,
        timeout: Option<Duration>,
        buffer_bytes: u64,
        take: impl FnMut(u64, &[u8]),
    ) -> Result<Option<u64>, NodeError> {
        self.receive_message(timeout, Capacity::of(buffer_bytes), Taking::MayWait, &mut Parts(take))
    }

    pub(super) fn receive_message(
        &self,
        timeout: Option<Duration>,
        capacity: Capacity,
        taking: Taking,
        sink: &mut impl Sink,
    ) -> Result<Option<u64>, NodeError> {
        let mut role = self.role();
        let Role::Member(receiver) = &mut *role else { return Err(self.wrong_side(true)) };
        self.receive_by(receiver, timeout, capacity, taking, sink)
    }

    /// The same, with the member's side of the ring.
    pub(super) fn receive_by(
        &self,
        receiver: &mut Option<Receiver>,
        timeout: Option<Duration>,
        capacity: Capacity,
        taking: Taking,
        sink: &mut impl Sink,
    ) -> Result<Option<u64>, NodeError> {
        let mut timeout = timeout;
        let mut polling = Polling::default();
        let mut loan = Loan::new(self);
        while let Some(part) =
            self.receive_available(receiver, timeout, capacity, sink, &mut loan, &mut polling)?
        {
            if taking == Taking::MayWait {
                polling.end();
            }
            if part.is_last {
                return Ok(Some(part.message_bytes));
            }
            // The timeout is for the beginning of a message. The rest is waited for as long as the
            // root is alive.
            timeout = None;
        }
        Ok(None)
    }

    /// Receives a further part of a message: waits until packets are available, and takes them. For
    /// programs that cannot wait as long as [`Group::receive`] may, whose timeout is for the
    /// beginning of a message, or that do not keep the whole message in memory.
    ///
    /// # Errors
    /// Those of [`Group::receive_into`]: for a message of more bytes than `capacity` has for
    /// messages, or a packet of more than it has for parts.
    pub fn receive_part(
        &self,
        timeout: Option<Duration>,
        capacity: Capacity,
        take: impl FnMut(u64, &[u8]),
    ) -> Result<Option<Part>, NodeError> {
        let mut role = self.role();
        let Role::Member(receiver) = &mut *role else { return Err(self.wrong_side(true)) };
        let (sink, mut loan, mut polling) = (&mut Parts(take), Loan::new(self), Polling::default());
        self.receive_available(receiver, timeout, capacity, sink, &mut loan, &mut polling)
    }

    /// The same into a buffer that need not be initialized; returns also the number of bytes, which
    /// are initialized then. What follows them in the buffer may have changed.
    ///
    /// # Errors
    /// Those of [`Group::receive_part`], for a packet that does not fit the buffer.
    pub fn receive_part_uninit(
        &self,
        buffer: &mut [MaybeUninit<u8>],
        timeout: Option<Duration>,
    ) -> Result<Option<(Part, usize)>, NodeError> {
        let buffer_bytes = buffer.len();
        let capacity = Capacity { message_bytes: u64::MAX, part_bytes: buffer_bytes as u64 };
        let mut role = self.role();
        let Role::Member(receiver) = &mut *role else { return Err(self.wrong_side(true)) };
        let mut sink = MessageBuffer::uninit(buffer).for_parts();
        let (mut loan, mut polling) = (Loan::new(self), Polling::default());
        let mut part =
            self.receive_available(receiver, timeout, capacity, &mut sink, &mut loan, &mut polling)?;
        // What came into the buffer behind packets of the slots.
        while !loan.is_taken() && part.is_some_and(|part| !part.is_last) {
            let part_bytes = (buffer_bytes - sink.filled()) as u64;
            let capacity = Capacity { part_bytes, ..capacity };
            match self.receive_available(receiver, timeout, capacity, &mut sink, &mut loan, &mut polling) {
                Ok(Some(next)) => part = Some(next),
                // The next call reports that the group is closed, or has ended.
                Ok(None) | Err(_) => break,
            }
        }
        Ok(part.map(|part| (part, sink.filled())))
    }

    /// Waits until packets are available, and takes those of one message.
    fn receive_available<'a>(
        &'a self,
        receiver: &mut Option<Receiver>,
        timeout: Option<Duration>,
        capacity: Capacity,
        sink: &mut impl Sink,
        loan: &mut Loan<'_>,
        polling: &mut Polling<'a>,
    ) -> Result<Option<Part>, NodeError> {
        let Some((receiver, end)) = self.available(receiver, timeout, sink, loan, polling)? else {
            return Ok(None);
        };
        let first = receiver.reader.read();
        let (message_bytes, length) = self.lengths_at(receiver, first)?;
        if message_bytes > capacity.message_bytes {
            return Err(NodeError::TooLong { message_bytes, buffer_bytes: capacity.message_bytes });
        }
        if u64::from(length) > capacity.part_bytes {
            return Err(NodeError::TooLong {
                message_bytes: length.into(),
                buffer_bytes: capacity.part_bytes,
            });
        }
        let (next, is_last) = loop {
            let end = loan.end_of_copies(first, end);
            let taken = if end == first {
                Ok(loan.take_stored(receiver, sink))
            } else {
                receiver.take_message(end, capacity.part_bytes, |bytes| sink.take(message_bytes, bytes))
            };
            self.check_memory(&receiver.reader)?;
            match taken {
                Ok(taken) => break taken,
                Err(damage) => self.mend(&receiver.reader, damage, polling)?,
            }
        };
        self.release(receiver, next, is_last);
        Ok(Some(Part { message_bytes, is_last }))
    }

    /// Waits until packets are available; returns their end. None, if the group is closed and
    /// everything is read.
    pub(super) fn available<'a, 'r>(
        &'a self,
        receiver: &'r mut Option<Receiver>,
        timeout: Option<Duration>,
        sink: &impl Sink,
        loan: &mut Loan<'_>,
        polling: &mut Polling<'a>,
    ) -> Result<Option<(&'r mut Receiver, Sequence)>, NodeError> {
        // Evaluated only where a wait is needed: to read the clock takes as long as to receive a
        // short message.
        let until = || timeout.map(|timeout| Instant::now() + timeout);
        let receiver = match receiver {
            Some(receiver) => receiver,
            None => receiver.insert(self.take_receiver(until())?),
        };
        let available = Some(receiver.reader.written()).filter(|&end| end != receiver.reader.read());
        let end = match available {
            Some(end) => {
                // The kernel's packet path may deliver packets faster than they are copied. A
                // thread that never waits does not poll the socket, so the node's own thread has
                // to.
                polling.end();
                Some(end)
            }
            None => self.wait_for_packets(receiver, until(), sink, loan, polling)?,
        };
        let Some(end) = end else {
            self.report_read(receiver, true);
            return Ok(None);
        };
        Ok(Some((receiver, end)))
    }

    /// The lengths of the message and of the payload of an available packet, in bytes.
    pub(super) fn lengths_at(&self, receiver: &Receiver, packet: Sequence) -> Result<(u64, u32), NodeError> {
        let Piece { message_length, length, .. } = receiver.reader.piece(packet);
        self.check_memory(&receiver.reader)?;
        let lengths = receiver.lengths();
        let message_bytes = lengths.received(message_length).ok_or_else(|| self.altered(packet))?;
        Ok((message_bytes, length - lengths.tag_bytes().min(length)))
    }

    /// The application has the packets before `next`.
    pub(super) fn release(&self, receiver: &mut Receiver, next: Sequence, is_last: bool) {
        receiver.stored_at = receiver.reader.shared_memory().map(|memory| memory.arrived_at(next - 1));
        receiver.on_taken(&receiver.reader.piece(next - 1));
        receiver.reader.release(next);
        receiver.seen = None;
        if !receiver.offload.is_by_node() {
            self.report_read(receiver, true);
            let slots = receiver.reader.slots();
            if is_forward_due(receiver.offload, receiver.forwarded, next, is_last, slots) {
                receiver.forwarded = next;
                self.forward(receiver.offload, next);
            }
        }
        self.report_read(receiver, false);
    }

    /// Waits until a damaged packet is right.
    ///
    /// # Errors
    /// Those of [`Group::repair`] and [`Group::altered`].
    pub(super) fn mend<'a>(
        &'a self,
        reader: &RingReader,
        damage: Damage,
        polling: &mut Polling<'a>,
    ) -> Result<(), NodeError> {
        match damage {
            Damage::Corrupt(packet) => self.repair(reader, packet, polling),
            Damage::NotSealed(packet) => Err(self.altered(packet)),
        }
    }

    /// Asks for a packet again whose payload is corrupt, and waits until it is there.
    ///
    /// # Errors
    /// The parent does not have it any more: [`NodeError::Corrupt`]. The group ends here then,
    /// since nothing can follow, and others are not to wait for it.
    fn repair<'a>(
        &'a self,
        reader: &RingReader,
        packet: Sequence,
        polling: &mut Polling<'a>,
    ) -> Result<(), NodeError> {
        self.backend.request(Input::Repair { group: self.shared_group.group, packet });
        let find = || reader.is_verified(packet).then_some(());
        self.wait_polling(Some(REPAIR_TIMEOUT), find, None, polling).map_err(|error| match error {
            NodeError::TimedOut => {
                self.abort();
                NodeError::Corrupt { packet: packet.0 }
            }
            error => error,
        })
    }

    /// A packet does not open with the key of the session. The group ends here: to ask for it again
    /// would bring the same.
    fn altered(&self, packet: Sequence) -> NodeError {
        self.abort();
        NodeError::Altered { packet: packet.0 }
    }

    /// Checks that what was read of the ring is valid.
    pub(super) fn check_memory(&self, reader: &RingReader) -> Result<(), NodeError> {
        if self.shared_group.is_memory_valid(reader) {
            return Ok(());
        }
        self.check()?;
        Err(NodeError::GroupFailed("the daemon has disconnected this process".into()))
    }

    /// The reading side, once the member has its place in the tree.
    pub(super) fn take_receiver(&self, until: Option<Instant>) -> Result<Receiver, NodeError> {
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.wait(timeout, || {
            let placement = self.shared_group.placement()?;
            let Some(RingSide::Reader(reader)) = lock(&placement.side).take() else { return None };
            self.drop_probes();
            Some(Receiver::new(reader, Some(placement), &self.settings.key()))
        })
    }

    /// The end of the available packets, once there are any; none, if the group is closed and
    /// everything is read.
    fn wait_for_packets<'a>(
        &'a self,
        receiver: &Receiver,
        until: Option<Instant>,
        sink: &impl Sink,
        loan: &mut Loan<'_>,
        polling: &mut Polling<'a>,
    ) -> Result<Option<Sequence>, NodeError> {
        let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
        let reader = &receiver.reader;
        if reader.settle(true) {
            self.wake_engine();
        }
        let find = || {
            // The close is checked first: all packets of a closed group are visible then.
            let is_closed = self.shared_group.is_closed();
            let end = reader.written();
            if end == reader.read() { is_closed.then_some(None) } else { Some(Some(end)) }
        };
        let lent = loan.lend(receiver, sink);
        let end = self.wait_polling(timeout, find, lent, polling);
        loan.take_back();
        end
    }

    /// Reports to the node what is read: at once, or after a quarter of the slots.
    pub(super) fn report_read(&self, receiver: &mut Receiver, at_once: bool) {
        self.shared_group.mark_progress();
        if receiver.reader.is_shared() {
            if receiver.reader.settle(at_once) || at_once {
                self.wake_engine();
            }
            return;
        }
        let read = receiver.reader.read();
        if at_once || read.distance_from(receiver.reported) as u32 >= receiver.reader.slots() / 4 {
            receiver.reported = read;
            self.wake_engine();
        }
    }
}
