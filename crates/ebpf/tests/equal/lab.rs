//! The program with an interface of its own: a TAP device in a network namespace of the test's thread. Who sends and receives at
//! its far end is the test.

#![expect(unsafe_code, reason = "system calls that no library here has")]

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::mem;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use aya::programs::{SchedClassifier, TcAttachType, TestRun, TestRunOptions};
use treecast_ebpf::{EbpfError, KernelGroup, Program, ProgramSettings};
use treecast_proto::{GroupId, HandOff};
use treecast_wire::HEADER_BYTES;

use super::frame::{self, Style};

/// The program, loaded, and what it is attached to.
pub struct Lab {
    pub program: Program,
    ingress: Ingress,
    far_end: FarEnd,
    /// The sockets of the user-space half and of a root's application: whole frames go through them.
    node: Socket,
    application: Socket,
    /// Where frames go that the program does not keep from the system, by IP's version.
    stack: [Socket; 2],
    /// In place of the application's, one by which the system makes the frames.
    datagrams: Option<UdpSocket>,
    /// Groups that are no more, for others of as many slots.
    idle: Vec<KernelGroup>,
}

/// What frames come to.
pub struct Ingress(SchedClassifier);

/// Where frames leave the host.
pub struct FarEnd(File);

/// What a socket of this host sends leaves by the interface, past the program.
struct Socket {
    descriptor: OwnedFd,
    cookie: u64,
}

/// Who sends a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    Node,
    Application,
}

/// What the program makes of a frame that comes.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is for user space, and has not changed.
    Passed,
    /// It goes no further.
    Taken,
    /// It leaves again, as this frame.
    Sent(Vec<u8>),
    /// It comes once more, as this frame, for who sleeps.
    Waking(Vec<u8>),
}

const FRAME_BYTES_MAX: usize = 30_000;

/// As much as `BPF_PROG_TEST_RUN` can be given.
const PAGE_BYTES: usize = 4_000;

/// What comes before a frame: what is left for the interface to do (`linux/virtio_net.h`).
const OFFLOAD_BYTES: usize = 10;
const NEEDS_CHECKSUM: u8 = 1;
const IS_TRAIN: u8 = 5;

/// As many frames wait at the far end: of a long batch to many children each is one.
const QUEUE_FRAMES: i32 = 8_192;

/// Answers of the program (`linux/pkt_cls.h`).
const UNSPEC: i32 = -1;
const GO_UP: i32 = 0;
const SHOT: i32 = 2;
const REDIRECT: i32 = 7;

/// Says why a test does nothing, past the test harness, which keeps what tests that pass print, and in one piece.
fn skip(why: &dyn Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

impl Lab {
    /// A lab for this thread; none, and a word on why, where there can be none.
    pub fn new() -> Option<Self> {
        let settings = ProgramSettings { has_test_clock: true, groups_max: 64, ..ProgramSettings::default() };
        let program = match Program::load(settings) {
            Ok(program) => program,
            Err(error @ EbpfError::NotBuilt(_)) => {
                skip(&error);
                return None;
            }
            Err(error) if !rustix::process::geteuid().is_root() => {
                skip(&error);
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        match Self::around(program) {
            Ok(lab) => Some(lab),
            Err(error) => {
                skip(&format_args!("there is no TAP device in a network namespace: {error}"));
                None
            }
        }
    }

    /// A lab where batches may pass the program: before Linux 6.16 the kernel may crash where one takes them apart.
    pub fn for_batches() -> Option<Self> {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut numbers =
            release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version < (6, 16) {
            skip(&format_args!("batches are not for Linux {}", release.trim()));
            return None;
        }
        Self::new()
    }

    fn around(mut program: Program) -> io::Result<Self> {
        // SAFETY: this thread alone goes into the namespace.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        // Nobody else is to send: while another processor sends, what is sent here is not at the far end at once.
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
        for (name, place) in
            [("treecast_egress", TcAttachType::Egress), ("treecast_ingress", TcAttachType::Ingress)]
        {
            program.classifier(name).attach("equal", place).map_err(io::Error::other)?;
        }
        let (node, application) = (Socket::new(interface, 0)?, Socket::new(interface, 0)?);
        application.leave_to_interface()?;
        let stack = [Socket::new(interface, libc::ETH_P_IP)?, Socket::new(interface, libc::ETH_P_IPV6)?];
        let (ingress, far_end) = (Ingress::of(&mut program)?, FarEnd(far_end));
        Ok(Self { program, ingress, far_end, node, application, stack, datagrams: None, idle: Vec::new() })
    }

    /// The port of the node.
    pub fn listen(&mut self, port: u16) {
        self.program.set_socket(self.node.cookie, port);
    }

    /// Posts a group, in memory that is there already if it can be.
    pub fn add_group(&mut self, id: GroupId, slots: u32) -> KernelGroup {
        let found = self.idle.iter().position(|idle| idle.memory().count() == slots);
        let group = match found {
            Some(found) => {
                let idle = self.idle.swap_remove(found);
                self.program.rename_group(idle, id)
            }
            None => self.program.add_group(id, slots, 1_408),
        };
        group.expect("there is room for a group")
    }

    /// Takes a group out.
    pub fn remove_group(&mut self, mut group: KernelGroup) {
        // Packets that still come for it are for user space.
        group.reclaim(&mut HandOff::new());
        self.idle.push(group);
    }

    /// What the program knows the application's socket by.
    pub fn application(&self) -> u64 {
        let Some(socket) = &self.datagrams else { return self.application.cookie };
        rustix::net::sockopt::socket_cookie(socket).expect("every socket has a cookie")
    }

    /// Lets applications send as they do, from this address, and not whole frames.
    pub fn use_datagrams(&mut self, own: Ipv4Addr) -> io::Result<()> {
        let mut request = request();
        let mut address = [0; 14];
        for (place, byte) in address[2..].iter_mut().zip(own.octets()) {
            *place = byte as libc::c_char;
        }
        request.ifr_ifru.ifru_addr = libc::sockaddr { sa_family: libc::AF_INET as u16, sa_data: address };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // SAFETY: the request is what the call reads, and a number needs no memory.
        unsafe {
            check(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFADDR, &raw const request))?;
            // Checksums are left to the interface, as with most NICs.
            check(libc::ioctl(self.far_end.0.as_raw_fd(), libc::TUNSETOFFLOAD, libc::TUN_F_CSUM))?;
        }
        rustix::net::sockopt::set_ip_multicast_if(&socket, &own)?;
        self.datagrams = Some(socket);
        Ok(())
    }

    /// A frame comes.
    pub fn receive(&self, frame: &[u8]) -> Verdict {
        self.ingress.receive(frame)
    }

    /// Packets come by the interface as one, each but the last of so many bytes.
    pub fn receive_batch(&mut self, frame: &[u8], each_bytes: usize) -> io::Result<Verdict> {
        let mut frame = frame.to_vec();
        frame::leave_open(&mut frame);
        self.far_end.0.write_all(&[&offload(&frame, Some(each_bytes))[..], &frame].concat())?;
        let mut up: Vec<Vec<u8>> = self.stack.iter().flat_map(Socket::frames).collect();
        match up.pop() {
            None => Ok(Verdict::Taken),
            Some(found) if up.is_empty() && found == frame => Ok(Verdict::Passed),
            Some(mut found)
                if up.is_empty() && frame::read(&found).is_some_and(|(.., bytes)| bytes[0] == 0) =>
            {
                let udp = frame::udp_at(&found);
                frame::complete(&mut found, udp, 6);
                Ok(Verdict::Waking(found))
            }
            Some(found) => {
                Err(io::Error::other(format!("this goes up: {found:02x?}, and before it {up:02x?}")))
            }
        }
    }

    /// Packets of an application leave as one, each but the last of so many bytes.
    pub fn send_batch(&self, frame: &[u8], each_bytes: usize) -> io::Result<()> {
        let Some(socket) = &self.datagrams else {
            let mut frame = frame.to_vec();
            frame::leave_open(&mut frame);
            return self.application.send(&offload(&frame, Some(each_bytes)), &frame).or_else(unless_dropped);
        };
        let set = |each_bytes: usize| {
            let value = each_bytes as libc::c_int;
            // SAFETY: the value is as long as it is said to be.
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
        set(each_bytes)?;
        let (_, to, bytes) = frame::read(frame).expect("applications send datagrams");
        let sent = socket.send_to(bytes, to).map(|_| ()).or_else(unless_dropped);
        set(0)?;
        sent
    }

    /// What frames come to, for another thread.
    pub fn ingress(&mut self) -> io::Result<Ingress> {
        Ingress::of(&mut self.program)
    }

    /// Lets user space say something to others that nobody understands: it shows the program the ways.
    pub fn teach(
        &mut self,
        from: SocketAddr,
        group: GroupId,
        to: impl Iterator<Item = SocketAddr>,
    ) -> io::Result<()> {
        const CONTROL: u8 = 5;
        for to in to {
            let mut word = [0; HEADER_BYTES];
            (word[0], word[1]) = (1, CONTROL);
            word[16..20].copy_from_slice(&group.0.to_be_bytes());
            self.send(Sender::Node, &frame::build(from, to, &word, Style::OWN))?;
            self.frames();
        }
        Ok(())
    }

    /// The far end, for another thread.
    pub fn far_end(&self) -> io::Result<FarEnd> {
        self.far_end.0.try_clone().map(FarEnd)
    }

    /// A frame leaves.
    pub fn send(&self, sender: Sender, frame: &[u8]) -> io::Result<()> {
        if let (Sender::Application, Some(socket)) = (sender, &self.datagrams) {
            let (_, to, bytes) = frame::read(frame).expect("applications send datagrams");
            return socket.send_to(bytes, to).map(|_| ());
        }
        match sender {
            Sender::Node => self.node.send(&[], frame),
            Sender::Application => {
                self.application.send(&offload(frame, None), frame).or_else(unless_dropped)
            }
        }
    }

    /// The frames that have left since this was asked last.
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
        let offload: Vec<u8> = frame.drain(..OFFLOAD_BYTES).collect();
        if offload[0] & NEEDS_CHECKSUM != 0 {
            let number = |place: usize| usize::from(u16::from_ne_bytes([offload[place], offload[place + 1]]));
            frame::complete(&mut frame, number(6), number(8));
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

    /// A frame comes.
    pub fn receive(&self, frame: &[u8]) -> Verdict {
        let mut sent = vec![0; PAGE_BYTES];
        let options =
            TestRunOptions { data_in: Some(frame), data_out: Some(&mut sent), ..TestRunOptions::new() };
        let run = self.0.test_run(options).expect("the program can be run");
        sent.truncate(run.data_size_out as usize);
        match run.return_value as i32 {
            UNSPEC => {
                assert_eq!(sent, frame, "what is passed up has not changed");
                Verdict::Passed
            }
            SHOT => Verdict::Taken,
            // It goes up as it is over loopback, by which frames come here.
            GO_UP if frame::read(&sent).is_some_and(|(.., bytes)| bytes[0] == 0) => Verdict::Waking(sent),
            REDIRECT => Verdict::Sent(sent),
            other => panic!("the program answers {other}"),
        }
    }
}

impl Socket {
    /// A socket for whole frames, of which those come to it whose protocol has this number in Ethernet.
    fn new(interface: i32, protocol: i32) -> io::Result<Self> {
        let protocol = (protocol as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK;
        // SAFETY: an address is zeroes and numbers, and the call is told how long it is.
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

    /// From now on it says before each frame what is left for the interface to do.
    fn leave_to_interface(&self) -> io::Result<()> {
        let value: libc::c_int = 1;
        // SAFETY: the value is as long as it is said to be.
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

    /// What has come.
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

/// What is left for the interface to do with a frame: nothing, or to cut it apart and complete checksums.
fn offload(frame: &[u8], each_bytes: Option<usize>) -> [u8; OFFLOAD_BYTES] {
    let Some(each_bytes) = each_bytes else { return [0; OFFLOAD_BYTES] };
    let udp = frame::udp_at(frame) as u16;
    let [headers, each, from] = [udp + 8, each_bytes as u16, udp].map(u16::to_ne_bytes);
    [NEEDS_CHECKSUM, IS_TRAIN, headers[0], headers[1], each[0], each[1], from[0], from[1], 6, 0]
}

/// The program drops what it does not send on as it is, and what it has sent on in another way.
fn unless_dropped(error: io::Error) -> io::Result<()> {
    if error.raw_os_error() == Some(libc::ENOBUFS) { Ok(()) } else { Err(error) }
}

/// A request about the interface.
fn request() -> libc::ifreq {
    // SAFETY: it is a name and numbers.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (place, &byte) in request.ifr_name.iter_mut().zip(b"equal") {
        *place = byte as libc::c_char;
    }
    request
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
