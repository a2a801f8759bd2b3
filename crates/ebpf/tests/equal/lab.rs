//! The program with an interface of its own: a TAP device in a network namespace of the test's
//! thread. The test sends and receives at its far end.

#![expect(unsafe_code, reason = "system calls that no library here wraps")]

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::mem;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use aya::programs::tc::qdisc_add_clsact;
use aya::programs::{SchedClassifier, TcAttachType, TestRun, TestRunOptions};
use treecast_ebpf::{
    GSO_KERNEL_MIN, KernelGroup, Program, ProgramSettings, TCX_KERNEL_MIN, WakeNonce, WakeSocket,
    kernel_version,
};
use treecast_proto::{GroupId, HandOff, MemberId, Sequence};
use treecast_wire::{Body, Header, MacKey, Timestamp};

use super::frame::{self, Style};

/// The loaded program, and the interface that it is attached to.
pub struct Lab {
    pub program: Program,
    ingress: Ingress,
    far_end: FarEnd,
    /// The sockets of the slow path and of a root's application, for whole frames.
    node: Socket,
    application: Socket,
    /// The sockets for frames that the program passes to the kernel, by version of IP.
    stack: [Socket; 2],
    /// Replaces `application` by a UDP socket, for which the kernel makes the frames.
    datagrams: Option<UdpSocket>,
    /// Removed groups, whose maps are reused for groups with the same number of slots.
    idle: Vec<KernelGroup>,
}

/// The ingress program, by which frames are received.
pub struct Ingress(SchedClassifier);

/// The far end of the TAP device, where frames leave the host.
pub struct FarEnd(File);

/// A socket of this host; its frames leave by the interface, through the egress program.
struct Socket {
    descriptor: OwnedFd,
    cookie: u64,
}

/// The socket that sends a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    Node,
    Application,
}

/// What the program does with a received frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes the frame unchanged to user space.
    Passed,
    /// It handles the frame, which goes no further.
    Handled,
    /// It sends the frame back in this form: an acknowledgment.
    Sent(Vec<u8>),
    /// It passes the frame up in this form, to wake a sleeping reader.
    WakeDatagram(Vec<u8>),
}

const FRAME_BYTES_MAX: usize = 30_000;

/// The longest frame for `BPF_PROG_TEST_RUN`, which is limited to a page.
const TEST_RUN_BYTES_MAX: usize = 4_000;

/// The length of the header before a frame that says what is offloaded to the interface: `struct
/// virtio_net_hdr` (`linux/virtio_net.h`).
const OFFLOAD_HEADER_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const GSO_UDP_L4: u8 = 5;

/// The length of the interface's queue in frames: each copy of each segment of a batch is one.
const QUEUE_FRAMES: i32 = 8_192;

/// Return values of the program (`linux/pkt_cls.h`).
const TC_ACT_UNSPEC: i32 = -1;
const TC_ACT_OK: i32 = 0;
const TC_ACT_SHOT: i32 = 2;
const TC_ACT_REDIRECT: i32 = 7;

/// Says why a test is skipped: in one write to stderr, since the test harness captures what passing
/// tests print.
fn skip(why: &dyn Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

impl Lab {
    /// A lab for this thread; `None`, with the reason on stderr, where the program cannot run.
    pub fn new() -> Option<Self> {
        let settings = ProgramSettings { has_test_clock: true, groups_max: 64, ..ProgramSettings::default() };
        let program = match Program::load(settings) {
            Ok(program) => program,
            Err(error) if !rustix::process::geteuid().is_root() => {
                skip(&error);
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        match Self::with_program(program) {
            Ok(lab) => Some(lab),
            Err(error) => {
                skip(&format_args!("cannot create a TAP device in a network namespace: {error}"));
                None
            }
        }
    }

    /// A lab for batches. Before Linux 6.16 the kernel may crash when a batch that a program has
    /// changed is segmented.
    pub fn for_batches() -> Option<Self> {
        if kernel_version() < GSO_KERNEL_MIN {
            skip(&"GSO batches need a later kernel");
            return None;
        }
        Self::new()
    }

    fn with_program(mut program: Program) -> io::Result<Self> {
        // SAFETY: this thread alone goes into the namespace.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        // The kernel must not send on its own: while another processor sends, a frame does not
        // reach the far end at once.
        for interfaces in ["all", "default"] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{interfaces}/disable_ipv6"), "1");
        }
        let far_end =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        let mut request = request();
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as i16;
        // SAFETY: the request is what these calls read and write.
        let interface = unsafe {
            check(libc::ioctl(far_end.as_raw_fd(), libc::TUNSETIFF, &raw const request))?;
            let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0))?);
            request.ifr_ifru.ifru_metric = QUEUE_FRAMES;
            check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFTXQLEN, &raw const request))?;
            request.ifr_ifru.ifru_flags = libc::IFF_UP as i16;
            check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request))?;
            check(libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFINDEX, &raw const request))?;
            request.ifr_ifru.ifru_ifindex
        };
        if kernel_version() < TCX_KERNEL_MIN {
            qdisc_add_clsact("equal").map_err(io::Error::other)?;
        }
        for (name, place) in
            [("treecast_egress", TcAttachType::Egress), ("treecast_ingress", TcAttachType::Ingress)]
        {
            program.classifier(name).attach("equal", place).map_err(io::Error::other)?;
        }
        let (node, application) = (Socket::new(interface, 0)?, Socket::new(interface, 0)?);
        application.enable_offload_header()?;
        let stack = [Socket::new(interface, libc::ETH_P_IP)?, Socket::new(interface, libc::ETH_P_IPV6)?];
        let (ingress, far_end) = (Ingress::of(&mut program)?, FarEnd(far_end));
        Ok(Self { program, ingress, far_end, node, application, stack, datagrams: None, idle: Vec::new() })
    }

    /// Sets the port of the node.
    pub fn listen(&mut self, port: u16) {
        self.program.set_socket(self.node.cookie, WakeSocket { port, nonce: WakeNonce(0) });
    }

    /// Posts a group, with the maps of a removed one if possible.
    pub fn add_group(&mut self, id: GroupId, slots: u32) -> KernelGroup {
        let found = self.idle.iter().position(|idle| idle.memory().count() == slots);
        let group = match found {
            Some(found) => {
                let idle = self.idle.swap_remove(found);
                self.program.rename_group(idle, id)
            }
            None => self.program.maker().make(id, slots, 1_408).and_then(|mut group| {
                self.program.add_group(&mut group)?;
                Ok(group)
            }),
        };
        group.expect("there is room for a group")
    }

    /// Removes a group.
    pub fn remove_group(&mut self, mut group: KernelGroup) {
        // Packets that still arrive for it are passed to user space.
        group.reclaim(&mut HandOff::new());
        self.idle.push(group);
    }

    /// The cookie of the application's socket.
    pub fn application(&self) -> u64 {
        let Some(socket) = &self.datagrams else { return self.application.cookie };
        rustix::net::sockopt::socket_cookie(socket).expect("every socket has a cookie")
    }

    /// Makes the application send datagrams from this address by a UDP socket, rather than whole
    /// frames. The interface computes their checksums, as most NICs do, or the kernel does.
    pub fn use_datagrams(&mut self, own: Ipv4Addr, checksums_by_interface: bool) -> io::Result<()> {
        let mut request = request();
        let mut address = [0; 14];
        for (place, byte) in address[2..].iter_mut().zip(own.octets()) {
            *place = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_addr = libc::sockaddr { sa_family: libc::AF_INET as u16, sa_data: address };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let offload = if checksums_by_interface { libc::TUN_F_CSUM } else { 0 };
        // SAFETY: the request is what the call reads, and a number needs no memory.
        unsafe {
            check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR, &raw const request))?;
            check(libc::ioctl(self.far_end.0.as_raw_fd(), libc::TUNSETOFFLOAD, offload))?;
        }
        rustix::net::sockopt::set_ip_multicast_if(&socket, &own)?;
        self.datagrams = Some(socket);
        Ok(())
    }

    /// Receives a frame.
    pub fn receive(&self, frame: &[u8]) -> Verdict {
        self.ingress.receive(frame)
    }

    /// Receives a batch by the interface; all segments but the last are `segment_bytes` long. If
    /// the kernel vouches for its checksum, that is the partial one; otherwise it is the frame's,
    /// as if nobody had verified it. (The kernel takes a batch from a TAP device only with a
    /// partial checksum, but does not look at its value.)
    pub fn receive_batch(
        &mut self,
        frame: &[u8],
        segment_bytes: usize,
        is_vouched_for: bool,
    ) -> io::Result<Verdict> {
        let mut frame = frame.to_vec();
        if is_vouched_for {
            frame::set_partial_checksum(&mut frame);
        }
        self.far_end.0.write_all(&[&offload_header(&frame, Some(segment_bytes))[..], &frame].concat())?;
        let mut up: Vec<Vec<u8>> = self.stack.iter().flat_map(Socket::frames).collect();
        match up.pop() {
            None => Ok(Verdict::Handled),
            Some(found) if up.is_empty() && found == frame => Ok(Verdict::Passed),
            Some(mut found)
                if up.is_empty() && frame::read(&found).is_some_and(|(.., bytes)| bytes[0] == 0) =>
            {
                let udp = frame::udp_at(&found);
                frame::complete_checksum(&mut found, udp, 6);
                Ok(Verdict::WakeDatagram(found))
            }
            Some(found) => {
                Err(io::Error::other(format!("unexpected frame passed up: {found:02x?}, after {up:02x?}")))
            }
        }
    }

    /// An application sends a batch; all segments but the last are `segment_bytes` long.
    pub fn send_batch(&self, frame: &[u8], segment_bytes: usize) -> io::Result<()> {
        let Some(socket) = &self.datagrams else {
            let mut frame = frame.to_vec();
            frame::set_partial_checksum(&mut frame);
            return self
                .application
                .send(&offload_header(&frame, Some(segment_bytes)), &frame)
                .or_else(ignore_drop);
        };
        let set = |segment_bytes: usize| {
            let value = segment_bytes as libc::c_int;
            // SAFETY: the length is that of the value.
            check(unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_UDP,
                    libc::UDP_SEGMENT,
                    (&raw const value).cast(),
                    size_of_val(&value) as libc::socklen_t,
                )
            })
        };
        set(segment_bytes)?;
        let (_, to, bytes) = frame::read(frame).expect("applications send datagrams");
        let sent = socket.send_to(bytes, to).map(|_| ()).or_else(ignore_drop);
        set(0)?;
        sent
    }

    /// Another handle of the ingress program, for another thread.
    pub fn ingress(&mut self) -> io::Result<Ingress> {
        Ingress::of(&mut self.program)
    }

    /// Sends a probe to each address, by which the program learns the path.
    pub fn learn_paths(
        &mut self,
        from: SocketAddr,
        group: GroupId,
        to: impl Iterator<Item = SocketAddr>,
    ) -> io::Result<()> {
        let (sender, sequence, timestamp) = (MemberId(0), Sequence(0), Timestamp(0));
        let probe = Header { group, epoch: 0, sender, sequence, timestamp, body: Body::Probe };
        let probe = probe.write(&MacKey([0; 2]));
        for to in to {
            self.send(Sender::Node, &frame::build(from, to, &probe, Style::OWN))?;
            self.frames();
        }
        Ok(())
    }

    /// Another handle of the far end, for another thread.
    pub fn far_end(&self) -> io::Result<FarEnd> {
        self.far_end.0.try_clone().map(FarEnd)
    }

    /// Sends a frame.
    pub fn send(&self, sender: Sender, frame: &[u8]) -> io::Result<()> {
        if let (Sender::Application, Some(socket)) = (sender, &self.datagrams) {
            let (_, to, bytes) = frame::read(frame).expect("applications send datagrams");
            return socket.send_to(bytes, to).map(|_| ());
        }
        match sender {
            Sender::Node => self.node.send(&[], frame).or_else(ignore_drop),
            Sender::Application => {
                self.application.send(&offload_header(frame, None), frame).or_else(ignore_drop)
            }
        }
    }

    /// The frames that have left since the last call.
    pub fn frames(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.far_end.frame()).collect()
    }
}

impl FarEnd {
    /// The next frame that has left.
    pub fn frame(&mut self) -> Option<Vec<u8>> {
        let mut frame = vec![0; FRAME_BYTES_MAX];
        let bytes = self.0.read(&mut frame).ok()?;
        frame.truncate(bytes);
        let offload: Vec<u8> = frame.drain(..OFFLOAD_HEADER_BYTES).collect();
        if offload[0] & NEEDS_CHECKSUM != 0 {
            let number = |place: usize| usize::from(u16::from_ne_bytes([offload[place], offload[place + 1]]));
            frame::complete_checksum(&mut frame, number(6), number(8));
        }
        Some(frame)
    }
}

impl Ingress {
    fn of(program: &mut Program) -> io::Result<Self> {
        let info = program.classifier("treecast_ingress").info().map_err(io::Error::other)?;
        SchedClassifier::from_program_info(info, "treecast_ingress".into())
            .map(Self)
            .map_err(io::Error::other)
    }

    /// Receives a frame.
    pub fn receive(&self, frame: &[u8]) -> Verdict {
        let mut sent = vec![0; TEST_RUN_BYTES_MAX];
        let options =
            TestRunOptions { data_in: Some(frame), data_out: Some(&mut sent), ..TestRunOptions::new() };
        let run = self.0.test_run(options).expect("the program can be run");
        sent.truncate(run.data_size_out as usize);
        match run.return_value as i32 {
            TC_ACT_UNSPEC => {
                assert_eq!(sent, frame, "a frame that is passed up is unchanged");
                Verdict::Passed
            }
            TC_ACT_SHOT => Verdict::Handled,
            // The interface of a test run is loopback, where the program passes the wake datagram
            // up.
            TC_ACT_OK if frame::read(&sent).is_some_and(|(.., bytes)| bytes[0] == 0) => {
                Verdict::WakeDatagram(sent)
            }
            TC_ACT_REDIRECT => Verdict::Sent(sent),
            other => panic!("the program returns {other}"),
        }
    }
}

impl Socket {
    /// A socket for whole frames, which receives those with this `EtherType`.
    fn new(interface: i32, protocol: i32) -> io::Result<Self> {
        let protocol = (protocol as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
        // SAFETY: zeroes are a valid address, and the length is that of the address.
        let descriptor = unsafe {
            let descriptor = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, kind, 0))?);
            let mut address: libc::sockaddr_ll = mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = protocol;
            address.sll_ifindex = interface;
            check(libc::bind(
                descriptor.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            ))?;
            descriptor
        };
        let cookie = rustix::net::sockopt::socket_cookie(&descriptor)?;
        Ok(Self { descriptor, cookie })
    }

    /// Sets `PACKET_VNET_HDR`: each frame that is sent begins with an offload header.
    fn enable_offload_header(&self) -> io::Result<()> {
        let value: libc::c_int = 1;
        // SAFETY: the length is that of the value.
        let set = unsafe {
            libc::setsockopt(
                self.descriptor.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_VNET_HDR,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        check(set).map(|_| ())
    }

    fn send(&self, offload: &[u8], frame: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.descriptor, &[offload, frame].concat(), rustix::net::SendFlags::empty())?;
        Ok(())
    }

    /// The frames that were received since the last call.
    fn frames(&self) -> impl Iterator<Item = Vec<u8>> {
        std::iter::from_fn(|| {
            let mut frame = vec![0; FRAME_BYTES_MAX];
            let (bytes, _) =
                rustix::net::recv(&self.descriptor, &mut frame[..], rustix::net::RecvFlags::empty()).ok()?;
            frame.truncate(bytes);
            Some(frame)
        })
    }
}

/// The offload header of a frame: nothing, or segmentation and checksums of a batch.
fn offload_header(frame: &[u8], segment_bytes: Option<usize>) -> [u8; OFFLOAD_HEADER_BYTES] {
    let Some(segment_bytes) = segment_bytes else { return [0; OFFLOAD_HEADER_BYTES] };
    let udp = frame::udp_at(frame) as u16;
    let [headers, each, from] = [udp + 8, segment_bytes as u16, udp].map(u16::to_ne_bytes);
    [NEEDS_CHECKSUM, GSO_UDP_L4, headers[0], headers[1], each[0], each[1], from[0], from[1], 6, 0]
}

/// Ignores the error of a frame that the egress program has dropped: it drops every datagram of an
/// application that it has handled.
fn ignore_drop(error: io::Error) -> io::Result<()> {
    if error.raw_os_error() == Some(libc::ENOBUFS) { Ok(()) } else { Err(error) }
}

/// A request about the interface.
fn request() -> libc::ifreq {
    // SAFETY: zeroes are a valid request.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (place, &byte) in request.ifr_name.iter_mut().zip(b"equal") {
        *place = byte as libc::c_char;
    }
    request
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
