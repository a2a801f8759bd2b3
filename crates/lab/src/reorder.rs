//! Reordering: each switch redirects a fraction of the packets to a TAP device of its own; a thread
//! holds each for a while and writes it back to the same device.
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

/// The name of the TAP devices, which switch.sh creates; the number of the switch follows.
pub(crate) const DEVICE: &str = "reorder";

/// How long a packet is held: a few dozen packets of 1,500 bytes overtake it at 1 Gb/s.
const HELD_FOR: Duration = Duration::from_millis(1);

/// The maximum number of held packets; further ones wait in the queues of the devices.
const HELD_MAX: usize = 16_384;

/// The timeout for the device to become running after it was opened, in milliseconds.
const RUNNING_WITHIN_MS: u32 = 10_000;

/// The longest frame: the largest MTU of a lab, and an Ethernet header with a VLAN tag.
const FRAME_BYTES_MAX: usize = 65_535 + 18;

/// A thread that delays packets until this is dropped.
#[derive(Debug)]
pub(crate) struct Reorderer {
    end: PipeWriter,
    thread: Option<JoinHandle<()>>,
}

impl Reorderer {
    /// Opens the TAP devices of a lab, one for each of its switches; `parent` is the parent of the
    /// lab's first process.
    pub(crate) fn start(parent: u32, own_user: bool, switches: u32) -> io::Result<Self> {
        let taps = (0..switches).map(|switch| open_tap(parent, own_user, &format!("{DEVICE}{switch}")));
        let taps = taps.collect::<io::Result<Vec<_>>>()?;
        let (ended, end) = io::pipe()?;
        let thread = std::thread::Builder::new().name("lab-reorder".into());
        let thread = thread.spawn(move || hold(&taps, &ended))?;
        Ok(Self { end, thread: Some(thread) })
    }
}

impl Drop for Reorderer {
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
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the kernel reads one `ifreq`.
        if unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &raw const request) } != 0 {
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

/// Writes each frame back to its device after its delay, until `ended` is readable or a device is
/// gone.
fn hold(taps: &[OwnedFd], ended: &PipeReader) {
    let mut frame = vec![0; FRAME_BYTES_MAX];
    let mut held: VecDeque<(Instant, &OwnedFd, Box<[u8]>)> = VecDeque::new();
    loop {
        let now = Instant::now();
        while let Some((_, tap, frame)) = held.pop_front_if(|(until, ..)| *until <= now) {
            // A frame that the switch does not accept is lost, as at any full queue.
            let _ = rustix::io::write(tap, &frame);
        }
        let wait = held.front().map(|(until, ..)| Timespec {
            tv_sec: 0,
            tv_nsec: until.duration_since(now).subsec_nanos().into(),
        });
        let wanted = if held.len() < HELD_MAX { PollFlags::IN } else { PollFlags::empty() };
        let mut events = vec![PollFd::new(ended, PollFlags::IN)];
        events.extend(taps.iter().map(|tap| PollFd::new(tap, wanted)));
        match poll(&mut events, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        let (ended_event, device_events) = events.split_first().expect("the first is of the pipe");
        if !ended_event.revents().is_empty() {
            return;
        }
        for (tap, event) in taps.iter().zip(device_events) {
            if event.revents().intersects(PollFlags::ERR | PollFlags::HUP) {
                return;
            }
            if event.revents().contains(PollFlags::IN)
                && let Ok(length) = rustix::io::read(tap, &mut frame)
            {
                held.push_back((Instant::now() + HELD_FOR, tap, frame[..length].into()));
            }
        }
    }
}
