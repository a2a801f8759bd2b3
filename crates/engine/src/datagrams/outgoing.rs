//! A batch of datagrams that are sent with one system call.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr;

use treecast_wire::{GroupId, HEADER_BYTES, View};

use super::multicast::MulticastRoute;
use super::{ControlMessages, GROUP, SEND_BATCH, addresses, zeroed};

/// A batch of datagrams that are sent with one system call.
pub struct Outgoing {
    is_v6: bool,
    /// The most bytes of a GSO batch; none: no GSO.
    gso_bytes_max: Option<usize>,
    /// Whether all datagrams go to the peer of the connected socket: then the kernel looks up no
    /// route for each.
    is_connected: bool,
    /// The groups of the last batch whose datagrams were too long for the network.
    too_long: Vec<GroupId>,
    /// The interface for each multicast address; none where the kernel chooses it.
    multicast_routes: BTreeMap<SocketAddr, Option<MulticastRoute>>,
    batch: Box<Batch>,
}

/// The memory that the kernel reads. Each datagram is a header and a payload, which is not copied;
/// the vectors of a GSO batch are contiguous.
struct Batch {
    count: usize,
    header_bytes: [[u8; HEADER_BYTES]; SEND_BATCH],
    payload_bytes: [Vec<u8>; SEND_BATCH],
    vectors: [[libc::iovec; 2]; SEND_BATCH],
    gso_count: usize,
    gso_batches: [GsoBatch; SEND_BATCH],
    addresses: [libc::sockaddr_storage; SEND_BATCH],
    control_messages: [ControlMessages; SEND_BATCH],
    headers: [libc::mmsghdr; SEND_BATCH],
}

/// The most segments of a GSO batch: the least `UDP_MAX_SEGMENTS` of all Linux versions, and the
/// bound of the kernel's packet path.
pub const GSO_SEGMENTS_MAX: usize = 64;

/// Datagrams that the kernel takes as one (`UDP_SEGMENT`): all have the length of the first, but
/// the last may be shorter. All are of one group: between sockets of one host a batch arrives as it
/// is, in the lane of its first datagram.
#[derive(Debug, Clone, Copy)]
struct GsoBatch {
    to: SocketAddr,
    /// The group's number, as it is in the header.
    group: [u8; GROUP.end - GROUP.start],
    first: usize,
    count: usize,
    segment_bytes: usize,
    bytes: usize,
}

impl ControlMessages {
    /// Attaches to a message the length of its segments and the interface by which it is sent, as
    /// far as there are any.
    fn write(
        &mut self,
        message: &mut libc::msghdr,
        segment_bytes: Option<u16>,
        route: Option<MulticastRoute>,
    ) {
        message.msg_control = self.0.as_mut_ptr().cast();
        message.msg_controllen = 0;
        if let Some(segment_bytes) = segment_bytes {
            self.append(message, libc::SOL_UDP, libc::UDP_SEGMENT, segment_bytes);
        }
        match route.map(|route| (route.interface, route.source)) {
            Some((interface, IpAddr::V4(source))) => {
                // Of the network's byte order.
                let source = libc::in_addr { s_addr: u32::from_ne_bytes(source.octets()) };
                let nowhere = libc::in_addr { s_addr: 0 };
                let (ipi_ifindex, ipi_spec_dst, ipi_addr) = (interface as libc::c_int, source, nowhere);
                let info = libc::in_pktinfo { ipi_ifindex, ipi_spec_dst, ipi_addr };
                self.append(message, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
            }
            Some((interface, IpAddr::V6(source))) => {
                let ipi6_addr = libc::in6_addr { s6_addr: source.octets() };
                let info = libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: interface };
                self.append(message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
            }
            None => {}
        }
        if message.msg_controllen == 0 {
            message.msg_control = ptr::null_mut();
        }
    }

    /// Appends a control message with this value.
    fn append<T: Copy>(
        &mut self,
        message: &mut libc::msghdr,
        level: libc::c_int,
        kind: libc::c_int,
        value: T,
    ) {
        let length = size_of::<T>() as u32;
        let begin: usize = message.msg_controllen as _;
        // SAFETY: these compute lengths.
        let (header_bytes, whole, space) =
            unsafe { (libc::CMSG_LEN(0), libc::CMSG_LEN(length), libc::CMSG_SPACE(length)) };
        let control = &mut self.0[begin..begin + space as usize];
        // SAFETY: the control message has the space of the header and of the value behind it, which
        // the range above has checked; both are written unaligned.
        unsafe {
            let mut header = super::zeroed::<libc::cmsghdr>();
            (header.cmsg_len, header.cmsg_level, header.cmsg_type) = (whole as _, level, kind);
            control.as_mut_ptr().cast::<libc::cmsghdr>().write_unaligned(header);
            control[header_bytes as usize..].as_mut_ptr().cast::<T>().write_unaligned(value);
        }
        message.msg_controllen = (begin + space as usize) as _;
    }
}

impl GsoBatch {
    /// A batch of one datagram.
    fn new(to: SocketAddr, header: &[u8; HEADER_BYTES], place: usize, bytes: usize) -> Self {
        let mut group = [0; GROUP.end - GROUP.start];
        group.copy_from_slice(&header[GROUP]);
        Self { to, group, first: place, count: 1, segment_bytes: bytes, bytes }
    }

    /// Whether another datagram can be appended.
    fn accepts(&self, next: &Self, bytes_max: usize) -> bool {
        self.to == next.to
            && self.group == next.group
            && self.count < GSO_SEGMENTS_MAX
            && self.bytes == self.count * self.segment_bytes
            && next.bytes <= self.segment_bytes
            && self.bytes + next.bytes <= bytes_max
    }
}

// SAFETY: its pointers point into its own box, or are used within one call of `send`, whose batch
// one thread makes that borrows it mutably all the time.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// The memory of a batch in bytes, without the payloads that it keeps.
    pub const BYTES: usize = size_of::<Batch>();

    /// An empty batch for a socket of that family; `gso_bytes_max` as the field.
    pub fn new(is_v6: bool, gso_bytes_max: Option<usize>) -> Self {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let batch = Box::new(Batch {
            count: 0,
            header_bytes: [[0; HEADER_BYTES]; SEND_BATCH],
            payload_bytes: [const { Vec::new() }; SEND_BATCH],
            vectors: [[zeroed(); 2]; SEND_BATCH],
            gso_count: 0,
            gso_batches: [GsoBatch::new(nowhere, &[0; HEADER_BYTES], 0, 0); SEND_BATCH],
            addresses: [zeroed(); SEND_BATCH],
            control_messages: [ControlMessages([0; 64]); SEND_BATCH],
            headers: [zeroed(); SEND_BATCH],
        });
        let multicast_routes = BTreeMap::new();
        Self { is_v6, gso_bytes_max, is_connected: false, too_long: Vec::new(), multicast_routes, batch }
    }

    /// For a connected socket.
    pub fn connected(self) -> Self {
        Self { is_connected: true, ..self }
    }

    /// Sends each datagram by itself from now on.
    pub const fn disable_gso(&mut self) {
        self.gso_bytes_max = None;
    }

    /// Sends to a multicast address by this interface, or by one that the kernel chooses.
    pub fn set_multicast_route(&mut self, address: SocketAddr, route: Option<MulticastRoute>) {
        self.multicast_routes.insert(address, route);
    }

    pub fn has_multicast_route(&self, address: SocketAddr) -> bool {
        self.multicast_routes.contains_key(&address)
    }

    pub fn keep_multicast_routes(&mut self, is_kept: impl Fn(SocketAddr) -> bool) {
        self.multicast_routes.retain(|address, _| is_kept(*address));
    }

    /// The interface of a GSO batch, if it goes to a multicast address and the kernel is not to
    /// choose it.
    fn route(&self, gso: usize) -> Option<MulticastRoute> {
        *self.multicast_routes.get(&self.batch.gso_batches[gso].to)?
    }

    /// Whether a batch is ready to be sent.
    pub fn is_full(&self) -> bool {
        self.batch.count == SEND_BATCH
    }

    /// Adds a datagram, and keeps its payload.
    pub fn add(&mut self, to: SocketAddr, header: &[u8; HEADER_BYTES], payload: Vec<u8>) {
        let place = self.batch.count;
        self.batch.payload_bytes[place] = payload;
        let payload = &self.batch.payload_bytes[place];
        let (address, length) = (payload.as_ptr(), payload.len());
        // SAFETY: the payload is kept in the batch, which is not touched before it has been sent.
        unsafe { self.add_from(to, header, address, length) };
    }

    /// Adds a datagram whose payload is elsewhere.
    ///
    /// # Safety
    /// The payload stays valid and unchanged until [`Outgoing::send`] has sent the batch.
    pub unsafe fn add_from(
        &mut self,
        to: SocketAddr,
        header: &[u8; HEADER_BYTES],
        payload: *const u8,
        length: usize,
    ) {
        let gso_bytes_max = self.gso_bytes_max.unwrap_or_default();
        let send = &mut *self.batch;
        let place = send.count;
        send.count += 1;
        send.header_bytes[place] = *header;
        send.vectors[place] = [
            libc::iovec { iov_base: send.header_bytes[place].as_mut_ptr().cast(), iov_len: HEADER_BYTES },
            libc::iovec { iov_base: payload.cast_mut().cast(), iov_len: length },
        ];
        let next = GsoBatch::new(to, header, place, HEADER_BYTES + length);
        match send.gso_batches[..send.gso_count].last_mut() {
            Some(gso) if gso.accepts(&next, gso_bytes_max) => {
                gso.count += 1;
                gso.bytes += next.bytes;
            }
            _ => {
                send.gso_batches[send.gso_count] = next;
                send.gso_count += 1;
            }
        }
    }

    /// Prepares the message header of each GSO batch.
    fn make_headers(&mut self) {
        let (is_v6, is_connected) = (self.is_v6, self.is_connected);
        for place in 0..self.batch.gso_count {
            let route = self.route(place);
            let send = &mut *self.batch;
            let GsoBatch { to, first, count, segment_bytes, .. } = send.gso_batches[place];
            let name_length = addresses::write(&mut send.addresses[place], to, is_v6);
            let message = &mut send.headers[place].msg_hdr;
            message.msg_name = (&raw mut send.addresses[place]).cast();
            message.msg_namelen = name_length;
            if is_connected {
                message.msg_name = ptr::null_mut();
                message.msg_namelen = 0;
            }
            message.msg_iov = send.vectors[first..first + count].as_mut_ptr().cast();
            message.msg_iovlen = (2 * count) as _;
            let segment_bytes = (count > 1).then_some(segment_bytes as u16);
            send.control_messages[place].write(message, segment_bytes, route);
        }
    }

    /// Sends the batch. Datagrams that the kernel does not accept are lost, and the protocol
    /// retransmits them.
    ///
    /// # Errors
    /// The first error other than a full buffer: a datagram is too long for the network, or an
    /// address is unreachable.
    pub fn send(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.too_long.clear();
        self.make_headers();
        let count = std::mem::take(&mut self.batch.gso_count);
        self.batch.count = 0;
        let mut sent = 0;
        let mut outcome = Ok(());
        while sent < count {
            let headers = &raw mut self.batch.headers[sent];
            let left = (count - sent) as libc::c_uint;
            // SAFETY: the headers from `sent` to before `count` are prepared; what they point to is
            // in the same box, or valid as the caller of `add_from` has promised.
            let done = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers, left, libc::MSG_DONTWAIT as _) };
            if done > 0 {
                sent += done as usize;
                continue;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN | libc::ENOBUFS) => break,
                // An ICMP message said that a neighbour's port is closed: the protocol treats it as
                // silent; the next send may succeed.
                Some(libc::ECONNREFUSED) => sent += 1,
                // Not every kernel, device and tunnel supports GSO.
                _ if self.batch.gso_batches[sent].count > 1 => {
                    let segments = self.send_segments(socket, sent);
                    if segments.is_ok() {
                        self.gso_bytes_max = None;
                    }
                    outcome = outcome.and(segments);
                    sent += 1;
                }
                _ => {
                    self.note_too_long(sent, &error);
                    sent += 1;
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }

    /// Sends the segments of a GSO batch one by one.
    fn send_segments(&mut self, socket: &UdpSocket, gso: usize) -> io::Result<()> {
        let GsoBatch { first, count, .. } = self.batch.gso_batches[gso];
        let route = self.route(gso);
        let mut outcome = Ok(());
        for place in first..first + count {
            let mut message = self.batch.headers[gso].msg_hdr;
            message.msg_iov = self.batch.vectors[place].as_mut_ptr();
            message.msg_iovlen = 2;
            self.batch.control_messages[gso].write(&mut message, None, route);
            // SAFETY: as in `send`; this header points to one of the same datagrams.
            let done = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
            if done < 0 {
                let error = io::Error::last_os_error();
                let is_loss =
                    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::ECONNREFUSED));
                self.note_too_long(gso, &error);
                outcome = outcome.and(if is_loss { Ok(()) } else { Err(error) });
            }
        }
        outcome
    }

    /// The groups of the last batch whose datagrams were too long for the network.
    pub fn too_long(&self) -> &[GroupId] {
        &self.too_long
    }

    fn note_too_long(&mut self, gso: usize, error: &io::Error) {
        let GsoBatch { to, first, .. } = self.batch.gso_batches[gso];
        // What multicast does not bring comes along the tree.
        if error.raw_os_error() == Some(libc::EMSGSIZE)
            && !to.ip().is_multicast()
            && let Ok(view) = View::new(&self.batch.header_bytes[first])
        {
            self.too_long.push(view.group());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Datagrams;
    use super::super::tests::{pair, receive_all};
    use super::*;

    /// Full datagrams, a shorter one that ends a batch, a longer one that begins another.
    const LENGTHS: [usize; 12] = [700, 700, 700, 20, 700, 0, 0, 1_300, 1_300, 1_299, 1_300, 5];

    /// A header of group 0 with a number in its first byte.
    fn header(number: u8) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = number;
        header
    }

    fn check_gso(address: &str, uses_gso: bool) {
        let (mut one, mut other) = pair(address);
        let mut third = Datagrams::bind(address.parse().unwrap(), 1 << 20, 1).unwrap();
        if !uses_gso {
            one.send.disable_gso();
        }
        for (number, length) in LENGTHS.into_iter().enumerate() {
            let to = if number == 8 { third.address() } else { other.address() };
            one.add(to, &header(number as u8), vec![number as u8; length]);
        }
        assert_eq!(one.send.batch.gso_count < LENGTHS.len(), uses_gso);
        one.send().unwrap();
        let mut all = receive_all(&mut other, 0, LENGTHS.len() - 1);
        all.insert(8, receive_all(&mut third, 0, 1).remove(0));
        let found: Vec<_> = all.iter().map(|(_, bytes)| (bytes[0], bytes.len() - HEADER_BYTES)).collect();
        let expected: Vec<_> =
            LENGTHS.into_iter().enumerate().map(|(number, length)| (number as u8, length)).collect();
        assert_eq!(found, expected);
        assert!(all.iter().all(|(_, bytes)| bytes[HEADER_BYTES..].iter().all(|byte| *byte == bytes[0])));
    }

    #[test]
    fn segments_of_a_gso_batch_arrive_as_datagrams() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            check_gso(address, true);
            check_gso(address, false);
        }
    }

    #[test]
    fn the_segments_of_a_refused_gso_batch_are_sent_one_by_one() {
        let (mut one, mut other) = pair("127.0.0.1:0");
        for number in 0..3 {
            one.add(other.address(), &header(number), vec![number; 100]);
        }
        // Every kernel refuses that many segments.
        one.send.batch.gso_batches[0].segment_bytes = 1;
        one.send().unwrap();
        assert!(one.send.gso_bytes_max.is_none());
        assert_eq!(receive_all(&mut other, 0, 3).len(), 3);
        // GSO is not tried again.
        (0..3).for_each(|number| one.add(other.address(), &header(number), Vec::new()));
        assert_eq!(one.send.batch.gso_count, 3);
        one.send().unwrap();
        assert_eq!(receive_all(&mut other, 0, 3).len(), 3);
    }
}
