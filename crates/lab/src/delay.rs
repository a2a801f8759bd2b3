//! Delays and reordering: each switch redirects packets to TAP devices of its own; a thread holds
//! each for the time of its device and writes it back to the same device. netem could do this, but
//! not every kernel has it.
//!
//! A batch of packets (GSO) stays one: devices pass frames with the header of virtio-net, which
//! describes the batch, and the checksum that is still to be computed.
//!
//! A TAP device is opened from within its network namespace. A child process that is forked for
//! that opens it, and passes the descriptor.
#![expect(unsafe_code, reason = "code between fork and exec, and an ioctl")]

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, PipeReader, PipeWriter, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sched::{CloneFlags, setns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType, recvmsg, sendmsg,
};

/// The names of the TAP devices, which switch.sh creates; the number of the switch follows. One
/// holds packets for the delay of the links, the other those to reorder for longer.
pub(crate) const DELAY: &str = "delay";
pub(crate) const REORDER: &str = "reorder";

/// The maximum size of all held packets; further ones wait in the queues of the devices.
const HELD_BYTES_MAX: usize = 256 << 20;

/// What a held packet takes in memory besides its bytes, roughly.
const HELD_BYTES_EACH: usize = 64;

/// The packets that are read from a device before others are written.
const READS_MAX: usize = 64;

/// The timeout for the device to become running after it was opened, in milliseconds.
const RUNNING_WITHIN_MS: u32 = 10_000;

/// The longest frame: the largest MTU of a lab or the largest batch, an Ethernet header with a VLAN
/// tag, and the header of virtio-net.
const FRAME_BYTES_MAX: usize = 65_536 + 18 + 10;

/// The batches and checksums that a device leaves as they are: `TUN_F_CSUM`, `TUN_F_TSO4`,
/// `TUN_F_TSO6` and `TUN_F_TSO_ECN`.
const OFFLOADS: libc::c_ulong = 0xf;

/// Batches of UDP (`TUN_F_USO4` and `TUN_F_USO6`), since Linux 6.2.
const UDP_OFFLOADS: libc::c_ulong = 0x60;

/// A thread that delays packets until this is dropped.
#[derive(Debug)]
pub(crate) struct Delayer {
    end: PipeWriter,
    thread: Option<JoinHandle<()>>,
}

impl Delayer {
    /// Opens the TAP devices of a lab. `devices` are those of each switch, with the time for which
    /// they hold packets; `parent` is the parent of the lab's first process.
    pub(crate) fn start(
        parent: u32,
        own_user: bool,
        switches: u32,
        devices: &[(&str, Duration)],
    ) -> io::Result<Self> {
        let mut lines = Vec::new();
        for switch in 0..switches {
            for (device, held_for) in devices {
                let tap = open_tap(parent, own_user, &format!("{device}{switch}"))?;
                lines.push(Line { tap, held_for: *held_for, held: VecDeque::new() });
            }
        }
        let (ended, end) = io::pipe()?;
        let thread = std::thread::Builder::new().name("lab-delay".into());
        let thread = thread.spawn(move || {
            be_punctual();
            hold(&mut lines, &ended);
        })?;
        Ok(Self { end, thread: Some(thread) })
    }
}

impl Drop for Delayer {
    fn drop(&mut self) {
        // Closing the pipe is not sufficient: a child that was forked meanwhile may have it open as
        // well.
        if self.end.write_all(b".").is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn open_tap(parent: u32, own_user: bool, device: &str) -> io::Result<OwnedFd> {
    // The user namespace comes first: it grants the right to enter the network namespace.
    let user = own_user.then_some("user");
    let namespaces =
        user.into_iter().chain(["net"]).map(|name| File::open(format!("/proc/{parent}/ns/{name}")));
    let namespaces = namespaces.collect::<io::Result<Vec<_>>>()?;
    let (here, there) = UnixStream::pair()?;
    let device = device.to_owned();
    let instead_of_a_program = move || {
        for namespace in &namespaces {
            setns(namespace, CloneFlags::empty())?;
        }
        let tap = rustix::fs::open(
            c"/dev/net/tun",
            OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        // SAFETY: `ifreq` consists of integers, for which all zeros is a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: the kernel reads one `ifreq`.
        if unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &raw const request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the calls read no memory of this process.
        let offloads = [OFFLOADS | UDP_OFFLOADS, OFFLOADS];
        if offloads
            .iter()
            .all(|set| unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD as _, *set) } != 0)
        {
            return Err(io::Error::last_os_error());
        }
        // The kernel drops packets until it has noticed that the device is open.
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        let mut is_running = false;
        for _ in 0..RUNNING_WITHIN_MS {
            // SAFETY: the call reads and writes one `ifreq`, and sets the flags of its union.
            unsafe {
                if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS as _, &raw mut request) != 0 {
                    return Err(io::Error::last_os_error());
                }
                is_running = i32::from(request.ifr_ifru.ifru_flags) & libc::IFF_RUNNING != 0;
            }
            if is_running {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if !is_running {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Setting the flags, even to their current value, waits for the kernel's rtnl lock, and so
        // until the change is complete. SAFETY: as above.
        if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [tap.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(&there, &[IoSlice::new(b".")], &mut ancillary, SendFlags::NOSIGNAL)?;
        // SAFETY: `_exit` runs no exit handlers of the parent.
        unsafe { libc::_exit(0) }
    };
    let mut command = Command::new("no program");
    // SAFETY: between fork and exit there are only system calls: no allocation, no lock.
    unsafe { command.pre_exec(instead_of_a_program) };
    command.spawn()?.wait()?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    recvmsg(&here, &mut [IoSliceMut::new(&mut [0])], &mut ancillary, flags)?;
    let received = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sent) => sent.next(),
        _ => None,
    });
    received.ok_or_else(|| io::Error::other("the TAP device was not passed"))
}

/// A TAP device, and its packets.
#[derive(Debug)]
struct Line {
    tap: OwnedFd,
    held_for: Duration,
    /// When each is to be written, in order.
    held: VecDeque<(Instant, Box<[u8]>)>,
}

impl Line {
    /// When the next frame is to be written.
    fn next(&self) -> Option<Instant> {
        self.held.front().map(|(until, _)| *until)
    }

    /// Writes the frames that are due, and returns their size in memory.
    fn write_until(&mut self, now: Instant) -> usize {
        let mut bytes = 0;
        while let Some((_, frame)) = self.held.pop_front_if(|(until, _)| *until <= now) {
            // A frame that the switch does not accept is lost, as at any full queue.
            let _ = rustix::io::write(&self.tap, &frame);
            bytes += frame.len() + HELD_BYTES_EACH;
        }
        bytes
    }

    /// Reads the frames that have arrived, and returns their size in memory.
    fn read(&mut self, buffer: &mut [u8]) -> usize {
        let mut bytes = 0;
        for _ in 0..READS_MAX {
            let Ok(length) = rustix::io::read(&self.tap, &mut *buffer) else { break };
            self.held.push_back((Instant::now() + self.held_for, buffer[..length].into()));
            bytes += length + HELD_BYTES_EACH;
        }
        bytes
    }
}

/// Lets this thread run when a packet or its time comes, also while hosts use all processors, as
/// far as its rights go.
fn be_punctual() {
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: the calls concern this thread only, and the kernel reads one `sched_param`.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &raw const priority);
    }
}

/// Writes each frame back to its device after its delay, until `ended` is readable or a device is
/// gone.
fn hold(lines: &mut [Line], ended: &PipeReader) {
    let mut buffer = vec![0; FRAME_BYTES_MAX];
    let mut held_bytes = 0;
    loop {
        let now = Instant::now();
        held_bytes -= lines.iter_mut().map(|line| line.write_until(now)).sum::<usize>();
        let next = lines.iter().filter_map(Line::next).min();
        // Writing has taken time.
        let wait = next.map(|next| next.saturating_duration_since(Instant::now()));
        let wait = wait.map(|wait| Timespec {
            tv_sec: wait.as_secs().cast_signed(),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let wanted = if held_bytes < HELD_BYTES_MAX { PollFlags::IN } else { PollFlags::empty() };
        let mut events = vec![PollFd::new(ended, PollFlags::IN)];
        events.extend(lines.iter().map(|line| PollFd::new(&line.tap, wanted)));
        match poll(&mut events, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        let mut events = events.iter().map(PollFd::revents).collect::<Vec<_>>().into_iter();
        if events.next().is_none_or(|ended| !ended.is_empty()) {
            return;
        }
        for (line, event) in lines.iter_mut().zip(events) {
            if event.intersects(PollFlags::ERR | PollFlags::HUP) {
                return;
            }
            if event.contains(PollFlags::IN) {
                held_bytes += line.read(&mut buffer);
            }
        }
    }
}
