//! The neighbour: everything that a user of a daemon can do without pause, one load per function.

#![expect(unsafe_code, reason = "sched_setscheduler")]

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::ValueEnum;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket,
};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};
use treecast_node::{Daemon, EngineChoice, Group, GroupId, GroupSettings, Node, NodeError};
use treecast_proto::{MemberId, Sequence};
use treecast_wire::{
    Acknowledgment, Body, ControlHeader, Data, Distribution, Header, MacKey, Nonce, PayloadChecksum, Table,
    Timestamp,
};

use crate::{client, outside, process};

/// The threads of a load, each with its own connection to the daemon.
const THREADS: usize = 4;

const MESSAGE_BYTES: usize = 64 << 10;

/// The most members of a group, as in the policy.
const MEMBERS_MAX: usize = 1_024;

const ADDRESS_SPACE_BYTES_MAX: u64 = 4 << 30;

/// How often a root that waits for room looks whether the measurement is over.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The load that the neighbour makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// Sends messages of 64 KB to a member outside
    Messages,
    /// Receives messages of 64 KB from a root outside
    Received,
    /// Creates and drops groups of as many members as the policy allows, which do not answer
    Members,
    /// Creates and drops groups of as many slots as a group can have
    Slots,
    /// Asks for the counters of its groups
    Requests,
    /// Says that it has written or read, which is not answered
    Wakes,
    /// Sends garbage and forged packets to the daemon's node, which belong to no user
    Strangers,
}

impl Load {
    /// The unit of the load's count.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Messages | Self::Received => "messages",
            Self::Members | Self::Slots => "groups",
            Self::Requests => "requests",
            Self::Wakes => "wakes",
            Self::Strangers => "datagrams",
        }
    }

    /// By how much a load may raise the 99th percentile, in us, beyond doubling it: with the user
    /// engine messages wait while the engine works for a group of 1,024 members, for up to a
    /// millisecond at a time (`longest_calls` of treecast-proto), there and back.
    pub fn allowance_us(self, engine: EngineChoice) -> f64 {
        match (self, engine) {
            (Self::Members, EngineChoice::User | EngineChoice::Auto) => 2_000.0,
            _ => 0.0,
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no load is skipped");
        formatter.write_str(value.get_name())
    }
}

/// The neighbour's count, per second.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Achieved {
    pub done_per_s: f64,
    /// Refused groups, and those that have ended early.
    pub refused_per_s: f64,
}

/// The neighbour, in a process of its own.
pub struct Neighbour {
    socket: PathBuf,
    /// The address of the daemon's node.
    address: SocketAddr,
    next_group: AtomicU32,
    done: AtomicU64,
    refused: AtomicU64,
    is_over: AtomicBool,
}

impl Neighbour {
    /// Its groups have the number `first_group` and the next ones.
    pub fn new(socket: PathBuf, address: SocketAddr, first_group: u32) -> Self {
        let next_group = AtomicU32::new(first_group);
        let (done, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { socket, address, next_group, done, refused, is_over: AtomicBool::new(false) }
    }

    /// Does one thing until the input ends.
    pub fn run(&self, load: Load) -> anyhow::Result<()> {
        leave_processor_to_others()?;
        limit_memory()?;
        process::say(&())?;
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                process::wait_for_end();
                self.is_over.store(true, Ordering::Relaxed);
            });
            match load {
                Load::Messages => self.transfer(&client(&self.socket)?, &outside()?),
                Load::Received => self.transfer(&outside()?, &client(&self.socket)?),
                Load::Members => self.make_groups_of_many_members()?,
                Load::Slots => self.make_groups_of_many_slots()?,
                Load::Requests => self.request()?,
                Load::Wakes => self.wake()?,
                Load::Strangers => self.flood()?,
            }
            anyhow::Ok(())
        })?;
        let seconds = start.elapsed().as_secs_f64();
        let per_s = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / seconds;
        process::say(&Achieved { done_per_s: per_s(&self.done), refused_per_s: per_s(&self.refused) })
    }

    fn transfer(&self, from: &Node, to: &Node) {
        while !self.is_over() {
            let settings = self.settings(vec![from.address(), to.address()]);
            let (Ok(root), Ok(member)) = (from.group(&settings), to.group(&settings)) else {
                self.count_refused();
                continue;
            };
            thread::scope(|scope| {
                scope.spawn(|| self.receive(&member, &root));
                self.send(&root);
            });
            if !self.is_over() {
                self.count_refused();
            }
        }
    }

    /// Sends until it is over, or the group has ended.
    fn send(&self, root: &Group) {
        let message = vec![0; MESSAGE_BYTES];
        let mut sent = 0;
        while !self.is_over() {
            match root.send_part(&message[sent..], MESSAGE_BYTES as u64, Some(CHECK_INTERVAL)) {
                Ok(part) => sent = if part.is_last { 0 } else { sent + part.bytes },
                Err(NodeError::TimedOut) => {}
                Err(_) => break,
            }
        }
        // The member waits for the rest of a message.
        root.abort();
    }

    /// Receives until the group has ended.
    fn receive(&self, member: &Group, root: &Group) {
        while let Ok(Some(_)) = member.receive_with(None, u64::MAX, |_, _| {}) {
            self.count_done();
        }
        // A root without members sends no datagrams.
        root.abort();
    }

    fn make_groups_of_many_members(&self) -> anyhow::Result<()> {
        // One socket, which is never read, is at all of these addresses.
        let silent = UdpSocket::bind("0.0.0.0:0")?;
        let port = silent.local_addr()?.port();
        let silent = (1..MEMBERS_MAX).map(|number| ([127, 1, (number >> 8) as u8, number as u8], port));
        let members: Vec<_> = [self.address].into_iter().chain(silent.map(SocketAddr::from)).collect();
        self.in_threads(|node| {
            self.make_group(node, &GroupSettings { slots: Some(4), ..self.settings(members.clone()) });
        })
    }

    fn make_groups_of_many_slots(&self) -> anyhow::Result<()> {
        self.in_threads(|node| {
            // A group without other members ends at once.
            let settings = self.settings(vec![self.address]);
            self.make_group(node, &GroupSettings { slots: Some(Table::SLOTS_MAX), ..settings });
        })
    }

    fn make_group(&self, node: &Node, settings: &GroupSettings) {
        match node.group(settings) {
            Ok(_) => self.count_done(),
            Err(_) => self.count_refused(),
        }
    }

    fn request(&self) -> anyhow::Result<()> {
        let outside = outside()?;
        self.in_threads(|node| {
            let settings = self.settings(vec![self.address, outside.address()]);
            let (Ok(group), Ok(_member)) = (node.group(&settings), outside.group(&settings)) else {
                return self.count_refused();
            };
            while !self.is_over() {
                group.counters();
                self.count_done();
                group.kernel_counters();
                self.count_done();
            }
        })
    }

    /// Sends messages to the daemon as a client does, but waits for nothing. It does not wait for
    /// room either: the kernel's wake-ups of threads that wait on the quiet user's processor delay
    /// that user by 0.3 ms, whoever reads the socket (docs/node.md).
    fn wake(&self) -> anyhow::Result<()> {
        let mut connections = Vec::new();
        for _ in 0..THREADS {
            let connection = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
            connect(&connection, &SocketAddrUnix::new(&self.socket)?)?;
            let hello = format!(r#"{{"hello":{{"version":{}}}}}"#, Daemon::PROTOCOL_VERSION);
            send(&connection, hello.as_bytes(), SendFlags::NOSIGNAL)?;
            let mut answer = [0; 1 << 10];
            let (length, _) = recv(&connection, &mut answer[..], RecvFlags::empty())?;
            let answer = String::from_utf8_lossy(&answer[..length]);
            ensure!(answer.contains("welcome"), "the daemon does not serve this process: {answer}");
            connections.push(connection);
        }
        thread::scope(|scope| {
            for connection in &connections {
                scope.spawn(move || {
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                    while !self.is_over() {
                        match send(connection, br#""wake""#, flags) {
                            Ok(_) => self.count_done(),
                            Err(Errno::AGAIN) => {}
                            Err(_) => return,
                        }
                    }
                });
            }
        });
        Ok(())
    }

    fn flood(&self) -> anyhow::Result<()> {
        let stranger = UdpSocket::bind("127.0.0.1:0")?;
        let datagrams = strange_datagrams();
        while !self.is_over() {
            for datagram in &datagrams {
                if stranger.send_to(datagram, self.address).is_ok() {
                    self.count_done();
                }
            }
        }
        Ok(())
    }

    /// Repeats the work in several threads, each with a node of its own, until it is over.
    fn in_threads(&self, work: impl Fn(&Node) + Sync) -> anyhow::Result<()> {
        let nodes = (0..THREADS).map(|_| client(&self.socket)).collect::<anyhow::Result<Vec<_>>>()?;
        thread::scope(|scope| {
            for node in &nodes {
                scope.spawn(|| {
                    while !self.is_over() {
                        work(node);
                    }
                });
            }
        });
        Ok(())
    }

    fn settings(&self, members: Vec<SocketAddr>) -> GroupSettings {
        let group = GroupId(self.next_group.fetch_add(1, Ordering::Relaxed));
        GroupSettings { group, ..GroupSettings::new(members) }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn count_done(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }
}

/// This thread, and those that it starts, run only while no others want to.
fn leave_processor_to_others() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the system reads the parameters, which are there.
    let answer = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The example's policy does not bound memory: without this the loads that create groups could take
/// all of the machine's.
fn limit_memory() -> io::Result<()> {
    let bytes_max = Some(ADDRESS_SPACE_BYTES_MAX);
    Ok(setrlimit(Resource::As, Rlimit { current: bytes_max, maximum: bytes_max })?)
}

/// Garbage, and packets like those of the quiet user's first groups, with a wrong authentication
/// code.
fn strange_datagrams() -> Vec<Vec<u8>> {
    let data = Body::Data(Data {
        message: 0,
        offset: 0,
        length: 64,
        message_length: 64,
        checksum: PayloadChecksum(0),
        ack_requested: true,
        retransmitted: false,
        close: false,
        distribution: Distribution::Tree,
    });
    let acknowledgment = Body::Acknowledgment(Acknowledgment {
        stable: Sequence(0),
        receive_window: 512,
        echo: Timestamp(0),
        is_reached: false,
        is_congested: false,
    });
    let handshake = Body::Handshake(ControlHeader {
        operation: 1,
        nonce: Nonce(0),
        length: 64,
        checksum: PayloadChecksum(0),
    });
    let forge = |(group, body)| {
        let header = Header {
            group: GroupId(group),
            epoch: 1,
            sender: MemberId(1),
            sequence: Sequence(0),
            timestamp: Timestamp(0),
            body,
        };
        [&header.write(&MacKey([0; 2]))[..], &[0; 64]].concat()
    };
    let forged = [(1, acknowledgment), (2, data), (1, handshake)].map(forge);
    [vec![0xa5; 64], vec![0xa5; 1_400]].into_iter().chain(forged).collect()
}
