//! Reads packets from a parent's stream, with payloads directly into their slots, or into the
//! buffer of the application that waits for them.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::{iter, ptr, slice};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use smallvec::SmallVec;
use treecast_proto::GroupId;
use treecast_wire::{HEADER_BYTES, View};

/// The packets of a group's parent.
///
/// A packet's length is in its header. Long messages are full packets and a last one, so that a
/// read is made for full packets: each header goes into its place here, and each payload into that
/// of the next packet. Bytes after a shorter packet are in the wrong places, and are moved.
#[derive(Debug)]
pub struct Incoming {
    pub group: GroupId,
    headers: Vec<[u8; HEADER_BYTES]>,
    /// The most packets of the next read: twice as many as the last one had, since a wake-up is
    /// mostly for one short message, and each part of a read costs time.
    packets_max: usize,
    /// How much there is of the first packet: of its header, and of its payload in its place.
    header_bytes: usize,
    payload_bytes: usize,
    /// The place of that payload, if it was lent.
    lent: Option<LentPlace>,
    /// The bytes that are in the wrong places.
    moved: Vec<u8>,
    /// Packets were read, and a panic came before they were taken: the stream cannot go on.
    is_broken: bool,
}

/// Where payloads are to be stored.
///
/// # Safety
/// Each place is memory for one packet that may be written. No other thread uses a place until the
/// next packet is taken. A place that is lent exists until [`Incoming::settle`].
pub unsafe trait Places {
    /// The place of the packet that is expected next, or of the `number`th one behind it; none if
    /// its slot is not free. All places have the same length.
    fn of(&mut self, number: usize) -> Option<Place>;

    /// The slot of the packet that is expected next, if it is free.
    fn slot(&mut self) -> Option<Place>;
}

/// Where a payload is to be stored.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub first: *mut u8,
    pub bytes: usize,
    /// Whether it is in a buffer that was lent for this call, and not in a slot.
    pub is_lent: bool,
}

#[derive(Debug, Clone, Copy)]
struct LentPlace(*mut u8);

// SAFETY: the place is used under the node's lock only, and not after its buffer is gone.
unsafe impl Send for LentPlace {}

/// A packet as it was read; nothing is verified but its length.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    pub header: &'a [u8; HEADER_BYTES],
    pub payload: &'a [u8],
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// There may be more.
    More,
    /// The socket has no more bytes for the moment.
    All,
    /// There was nothing.
    Nothing,
    /// The stream has ended, or carries what no parent sends.
    Ended,
}

/// The most bytes of payloads in a read, which is as much as parents write at once. Then the
/// packets that were read are forwarded.
const READ_BYTES_MAX: usize = 128 << 10;

/// The most packets of a read.
const PACKETS_MAX: usize = 16;

/// The fewest packets for which a read has room, where there are slots.
const PACKETS_MIN: usize = 2;

impl Incoming {
    pub fn new(group: GroupId) -> Self {
        Self {
            group,
            headers: vec![[0; HEADER_BYTES]],
            packets_max: PACKETS_MIN,
            header_bytes: 0,
            payload_bytes: 0,
            lent: None,
            moved: Vec::new(),
            is_broken: false,
        }
    }

    /// Reads once, and calls `take` with each whole packet, until that returns false.
    pub fn read(
        &mut self,
        socket: BorrowedFd<'_>,
        places: &mut impl Places,
        mut take: impl FnMut(Received<'_>) -> bool,
    ) -> Read {
        if self.is_broken {
            return Read::Ended;
        }
        // A payload that has begun in its slot goes on there.
        let is_in_slot = self.payload_bytes > 0 && self.lent.is_none();
        let first = if is_in_slot { places.slot() } else { places.of(0) };
        let Some(first) = first else { return look(socket) };
        // SAFETY: the place is one of `places`. A buffer is not gone that was lent, or has been
        // settled.
        unsafe { self.settle(first) };
        let stride = first.bytes;
        let packet_bytes = HEADER_BYTES + stride;
        let packets = (READ_BYTES_MAX / stride).clamp(1, self.packets_max);
        let payloads: SmallVec<[Place; PACKETS_MAX]> =
            iter::once(first).chain((1..packets).map_while(|number| places.of(number))).collect();
        self.headers.resize(self.headers.len().max(packets), [0; HEADER_BYTES]);
        let (header_bytes, payload_bytes) = (self.header_bytes, self.payload_bytes);
        let mut parts = SmallVec::<[libc::iovec; 2 * PACKETS_MAX]>::new();
        let mut part = |first: *mut u8, bytes| {
            parts.push(libc::iovec { iov_base: first.cast(), iov_len: bytes });
        };
        for (number, (header, &Place { first, bytes, .. })) in
            self.headers.iter_mut().zip(&payloads).enumerate()
        {
            let (header_skip, payload_skip) =
                if number == 0 { (header_bytes, payload_bytes) } else { (0, 0) };
            if header_skip < HEADER_BYTES {
                part(header[header_skip..].as_mut_ptr(), HEADER_BYTES - header_skip);
            }
            part(first.wrapping_add(payload_skip), bytes - payload_skip);
        }
        let capacity: usize = parts.iter().map(|part| part.iov_len).sum();
        // SAFETY: the parts are memory of `headers`, which is not used meanwhile, and free places,
        // which have at least that many bytes. The kernel writes; no reference is made to memory
        // that may be uninitialized.
        let received = unsafe { receive(socket, &mut parts) };
        let received = match received {
            Ok(received @ 1..) => received,
            Err(ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Read::Nothing,
            Ok(_) | Err(_) => return Read::Ended,
        };
        let packets_received = received.div_ceil(packet_bytes);
        self.packets_max = (2 * packets_received).clamp(PACKETS_MIN, PACKETS_MAX);
        self.is_broken = true;
        let taken = self.take_packets(received, &payloads, places, &mut take);
        self.is_broken = false;
        match taken {
            Some(()) if received == capacity => Read::More,
            Some(()) => Read::All,
            None => Read::Ended,
        }
    }

    /// Takes the packets that `bytes` more bytes complete; none if the bytes are not a parent's
    /// packets.
    fn take_packets(
        &mut self,
        received: usize,
        payloads: &[Place],
        places: &mut impl Places,
        take: &mut impl FnMut(Received<'_>) -> bool,
    ) -> Option<()> {
        let mut rest = self.header_bytes + self.payload_bytes + received;
        for (number, &Place { first, bytes: stride, .. }) in payloads.iter().enumerate() {
            let header = self.headers[number];
            if rest < HEADER_BYTES {
                return self.keep(number, rest, 0, first, places);
            }
            let length = payload_length(&header, stride)?;
            let there = (rest - HEADER_BYTES).min(stride);
            if there < length {
                return self.keep(number, HEADER_BYTES, there, first, places);
            }
            if length < stride {
                // All bytes after this packet belong to other packets.
                self.moved.clear();
                // SAFETY: the read has written so many bytes there; no other thread uses the place
                // before `take` is called.
                let behind = unsafe { slice::from_raw_parts(first.add(length), there - length) };
                self.moved.extend_from_slice(behind);
                let mut left = rest - HEADER_BYTES - there;
                for (header, &Place { first, .. }) in
                    self.headers[number + 1..].iter().zip(&payloads[number + 1..])
                {
                    let header = &header[..left.min(HEADER_BYTES)];
                    left -= header.len();
                    self.moved.extend_from_slice(header);
                    // SAFETY: as above.
                    let payload = unsafe { slice::from_raw_parts(first, left.min(stride)) };
                    left -= payload.len();
                    self.moved.extend_from_slice(payload);
                }
            }
            // SAFETY: as above. No thread writes the place while `take` has the payload, which may
            // stay there.
            let payload = unsafe { slice::from_raw_parts(first, length) };
            if !take(Received { header: &header, payload }) {
                return None;
            }
            if length < stride {
                return self.take_moved(stride, places, take);
            }
            rest -= HEADER_BYTES + length;
        }
        debug_assert_eq!(rest, 0, "no more is read than there is room for");
        self.begin(0, 0);
        Some(())
    }

    /// Takes the packets that have come into the wrong places.
    fn take_moved(
        &mut self,
        stride: usize,
        places: &mut impl Places,
        take: &mut impl FnMut(Received<'_>) -> bool,
    ) -> Option<()> {
        let moved = std::mem::take(&mut self.moved);
        let mut rest = &moved[..];
        while let Some((header, behind)) = rest.split_first_chunk::<HEADER_BYTES>() {
            let length = payload_length(header, stride)?;
            let Some((payload, behind)) = behind.split_at_checked(length) else {
                // The first part of a payload goes to where the rest will come.
                self.headers[0] = *header;
                self.begin(HEADER_BYTES, behind.len());
                self.write(behind, places)?;
                self.moved = moved;
                return Some(());
            };
            if !take(Received { header, payload }) {
                return None;
            }
            rest = behind;
        }
        self.headers[0][..rest.len()].copy_from_slice(rest);
        self.begin(rest.len(), 0);
        self.moved = moved;
        Some(())
    }

    /// There is so much of the next packet.
    const fn begin(&mut self, header_bytes: usize, payload_bytes: usize) {
        (self.header_bytes, self.payload_bytes) = (header_bytes, payload_bytes);
        self.lent = None;
    }

    /// Keeps the beginning of a packet: that of its payload in the place of the next packet.
    fn keep(
        &mut self,
        number: usize,
        header_bytes: usize,
        payload_bytes: usize,
        first: *const u8,
        places: &mut impl Places,
    ) -> Option<()> {
        self.headers.swap(0, number);
        self.begin(header_bytes, payload_bytes);
        if payload_bytes > 0 {
            let place = places.of(0)?;
            if place.first.cast_const() != first {
                // A packet before it was there already, and has taken no place, or the last place
                // was behind the end of its message. SAFETY: both places have at least that many
                // bytes, are free, and no other thread uses them.
                unsafe { ptr::copy(first, place.first, payload_bytes) };
            }
            self.note(place);
        }
        Some(())
    }

    /// Writes the beginning of a payload into the place of the next packet.
    fn write(&mut self, bytes: &[u8], places: &mut impl Places) -> Option<()> {
        if !bytes.is_empty() {
            let place = places.of(0)?;
            assert!(bytes.len() <= place.bytes, "a payload fits its place");
            // SAFETY: the place has so many bytes, is free, and no other thread uses it; the bytes
            // are elsewhere.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.first, bytes.len()) };
            self.note(place);
        }
        Some(())
    }

    /// The beginning of a payload is there.
    fn note(&mut self, Place { first, is_lent, .. }: Place) {
        self.lent = is_lent.then_some(LentPlace(first));
    }

    /// Whether the beginning of a payload is in a place that was lent.
    pub const fn has_lent_part(&self) -> bool {
        self.lent.is_some()
    }

    /// Moves the beginning of a payload to its place, unless it is there.
    ///
    /// # Safety
    /// The place is as those of [`Places`]; a buffer with a part of a packet is still there.
    pub unsafe fn settle(&mut self, place: Place) {
        let Some(LentPlace(from)) = self.lent else { return };
        if from != place.first {
            // SAFETY: both places have at least that many bytes, and no other thread uses them, as
            // the caller says. They may overlap in a buffer that was lent again.
            unsafe { ptr::copy(from.cast_const(), place.first, self.payload_bytes) };
        }
        self.note(place);
    }
}

/// Reads into these parts.
///
/// # Safety
/// All parts may be written.
unsafe fn receive(socket: BorrowedFd<'_>, parts: &mut [libc::iovec]) -> Result<usize, ErrorKind> {
    // SAFETY: the parts are valid during the call.
    let received = unsafe { libc::readv(socket.as_raw_fd(), parts.as_ptr(), parts.len() as libc::c_int) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error().kind())
}

/// What a stream is like while no slot is free: a parent sends a packet only if there is a slot for
/// it, so that nothing comes meanwhile.
fn look(socket: BorrowedFd<'_>) -> Read {
    match recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN | Errno::INTR) => Read::Nothing,
        Ok(_) | Err(_) => Read::Ended,
    }
}

/// The length of a packet's payload; none if no parent sends such a packet.
fn payload_length(header: &[u8; HEADER_BYTES], stride: usize) -> Option<usize> {
    View::new(header).ok()?.data_length().filter(|&length| length <= stride)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;
    use treecast_wire::{
        Body, Data, Distribution, Header, MacKey, MemberId, PayloadChecksum, Sequence, Timestamp,
    };

    use super::*;

    const STRIDE: usize = 300;
    const SLOTS: usize = 8;

    /// A member's slots, of which it reads each packet at once, and a buffer for some packets.
    struct Memory {
        slots: Vec<[u8; STRIDE]>,
        next: std::rc::Rc<std::cell::Cell<usize>>,
        /// As much as is lent from the next packet on, in packets.
        buffer: Vec<[u8; STRIDE]>,
        lent: usize,
    }

    impl Memory {
        fn new(next: &std::rc::Rc<std::cell::Cell<usize>>) -> Self {
            let memory = |count| vec![[0; STRIDE]; count];
            Self { slots: memory(SLOTS), next: next.clone(), buffer: memory(100), lent: 0 }
        }
    }

    // SAFETY: slots and buffer are memory of the test.
    unsafe impl Places for Memory {
        fn of(&mut self, number: usize) -> Option<Place> {
            let packet = self.next.get() + number;
            let is_lent = packet < self.lent;
            let first = if is_lent { &mut self.buffer[packet] } else { &mut self.slots[packet % SLOTS] };
            (number < SLOTS).then_some(Place { first: first.as_mut_ptr(), bytes: STRIDE, is_lent })
        }

        fn slot(&mut self) -> Option<Place> {
            let slot = &mut self.slots[self.next.get() % SLOTS];
            Some(Place { first: slot.as_mut_ptr(), bytes: STRIDE, is_lent: false })
        }
    }

    fn packet(number: usize, length: usize) -> (Vec<u8>, Vec<u8>) {
        let data = Data {
            message: number as u32,
            offset: 0,
            length: length as u32,
            message_length: length as u64,
            checksum: PayloadChecksum(0),
            ack_requested: false,
            retransmitted: false,
            close: false,
            distribution: Distribution::Tree,
        };
        let header = Header {
            group: GroupId(1),
            epoch: 1,
            sender: MemberId(0),
            sequence: Sequence(number as u32),
            timestamp: Timestamp(1),
            body: Body::Data(data),
        };
        let payload = (0..length).map(|place| (number * 7 + place) as u8).collect();
        (header.write(&MacKey([0; 2])).to_vec(), payload)
    }

    proptest! {
        /// Whatever the lengths of packets and of reads, every packet comes once, in order and
        /// whole; also where some of them were there already, and take no slot, and where some
        /// reads have a buffer and others not.
        #[test]
        fn packets_come_as_they_were_sent(
            lengths in prop::collection::vec(prop_oneof![0..=STRIDE, Just(STRIDE), 0..20_usize], 1..60),
            known in prop::collection::vec(any::<bool>(), 60),
            chunks in prop::collection::vec(prop_oneof![1..=3_usize, 1..=200_usize, 1..=20_000_usize], 1..40),
            lent in prop::collection::vec(prop_oneof![Just(0), 0..100_usize], 1..20),
        ) {
            let mut lent = lent.iter().cycle();
            let (mut one, other) = UnixStream::pair().unwrap();
            other.set_nonblocking(true).unwrap();
            let sent: Vec<_> = lengths.iter().enumerate().map(|(number, &length)| packet(number, length)).collect();
            let bytes: Vec<u8> = sent.iter().flat_map(|(header, payload)| [&header[..], payload].concat()).collect();
            let next = std::rc::Rc::new(std::cell::Cell::new(0));
            let mut memory = Memory::new(&next);
            let mut incoming = Incoming::new(GroupId(1));
            let mut received = Vec::new();
            let mut rest = &bytes[..];
            for chunk in chunks.iter().cycle() {
                let (now, later) = rest.split_at((*chunk).min(rest.len()));
                one.write_all(now).unwrap();
                rest = later;
                loop {
                    memory.lent = *lent.next().unwrap();
                    let more = incoming.read(other.as_fd(), &mut memory, |Received { header, payload }| {
                        received.push((header.to_vec(), payload.to_vec()));
                        next.set(next.get() + usize::from(!known[received.len() - 1]));
                        true
                    });
                    prop_assert!(matches!(more, Read::More | Read::All | Read::Nothing));
                    if received.len() == sent.len() || more != Read::More {
                        break;
                    }
                }
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(received, sent);
        }

        #[test]
        fn arbitrary_bytes_end_the_stream_or_are_packets(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
            let (mut one, other) = UnixStream::pair().unwrap();
            other.set_nonblocking(true).unwrap();
            one.write_all(&bytes).unwrap();
            drop(one);
            let mut memory = Memory::new(&std::rc::Rc::default());
            let mut incoming = Incoming::new(GroupId(1));
            while incoming.read(other.as_fd(), &mut memory, |_| true) != Read::Ended {}
        }
    }

    #[test]
    fn a_stream_stays_while_no_slot_is_free_unless_the_parent_sends_more() {
        struct Full;
        // SAFETY: there are no places.
        unsafe impl Places for Full {
            fn of(&mut self, _: usize) -> Option<Place> {
                None
            }

            fn slot(&mut self) -> Option<Place> {
                None
            }
        }
        let (mut one, other) = UnixStream::pair().unwrap();
        let mut incoming = Incoming::new(GroupId(1));
        let mut read = || incoming.read(other.as_fd(), &mut Full, |_| panic!("there is no packet"));
        assert_eq!(read(), Read::Nothing);
        one.write_all(&[1]).unwrap();
        assert_eq!(read(), Read::Ended);
        drop(one);
        assert_eq!(read(), Read::Ended);
    }

    #[test]
    fn a_payload_goes_straight_into_its_slot() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let next = std::rc::Rc::new(std::cell::Cell::new(0));
        let mut memory = Memory::new(&next);
        let places: Vec<*const u8> = memory.slots.iter().map(|slot| slot.as_ptr()).collect();
        for number in 0..3 {
            let (header, payload) = packet(number, STRIDE);
            one.write_all(&[header, payload].concat()).unwrap();
        }
        let mut incoming = Incoming::new(GroupId(1));
        // The first read has room for two.
        for expected in [2, 3] {
            incoming.read(other.as_fd(), &mut memory, |Received { payload, .. }| {
                assert_eq!(payload.as_ptr(), places[next.get()]);
                next.set(next.get() + 1);
                true
            });
            assert_eq!(next.get(), expected);
        }
    }

    #[test]
    fn a_stream_whose_packets_were_not_taken_ends() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let mut memory = Memory::new(&std::rc::Rc::default());
        let mut incoming = Incoming::new(GroupId(1));
        let (header, payload) = packet(0, STRIDE);
        one.write_all(&[&header[..], &payload].concat()).unwrap();
        let read = std::panic::AssertUnwindSafe(|| {
            incoming.read(other.as_fd(), &mut memory, |_| std::panic::resume_unwind(Box::new(())))
        });
        assert!(std::panic::catch_unwind(read).is_err());
        one.write_all(&[&header[..], &payload].concat()).unwrap();
        let read = incoming.read(other.as_fd(), &mut memory, |_| panic!("the stream has ended"));
        assert_eq!(read, Read::Ended);
    }

    #[test]
    fn a_part_of_a_packet_leaves_a_buffer_before_that_goes() {
        let (mut one, other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        let next = std::rc::Rc::new(std::cell::Cell::new(0));
        let mut memory = Memory::new(&next);
        let mut incoming = Incoming::new(GroupId(1));
        let (header, payload) = packet(0, STRIDE);
        one.write_all(&[&header[..], &payload[..100]].concat()).unwrap();
        memory.lent = 1;
        incoming.read(other.as_fd(), &mut memory, |_| panic!("the packet is not whole"));
        assert!(incoming.has_lent_part());
        assert_eq!(memory.buffer[0][..100], payload[..100]);
        memory.lent = 0;
        // SAFETY: the buffer is still there.
        unsafe { incoming.settle(memory.of(0).unwrap()) };
        assert!(!incoming.has_lent_part());
        memory.buffer.clear();
        one.write_all(&payload[100..]).unwrap();
        let mut received = Vec::new();
        incoming.read(other.as_fd(), &mut memory, |packet| {
            received.extend_from_slice(packet.payload);
            true
        });
        assert_eq!(received, payload);
    }
}
