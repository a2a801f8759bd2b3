//! What the machine itself takes to wake as many processes as a broadcast does, and to move as many
//! bytes: measured by the same benchmark in the same run, so that every other figure stands beside
//! it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rustix::thread::{futex, sched_yield};
use serde::{Deserialize, Serialize};

use crate::board::Board;
use crate::clock::now_ns;
use crate::control::{LimitRequest, LimitResponse, Notice, Request, Response};
use crate::error::BenchError;
use crate::hosts::WorkerCommand;
use crate::workers::Worker;

/// The limits of a machine for a broadcast to a number of its processes: medians.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// The number of processes, the sender not included.
    pub processes: u32,
    /// One futex wakes all of them, which sleep on it: until the last has run, in microseconds.
    pub futex_wake_us: f64,
    /// They check shared memory for a change, and yield the processor after each check: until the
    /// last has seen it, in microseconds.
    pub yield_notice_us: f64,
    /// Each sleeps on a UDP socket, and is sent a datagram over loopback: until the last has it, in
    /// microseconds.
    pub udp_each_us: f64,
    /// A copy in memory, of more than the caches hold, in bytes per second.
    pub copy_bytes_per_s: f64,
    /// A chain of TCP connections over loopback through all of them, each of which receives and
    /// sends on: in bytes per second.
    pub tcp_chain_bytes_per_s: f64,
}

/// The number of changes, and of TCP chains, in each half of the measurement: before the
/// broadcasts, and after them.
const ROUNDS: u32 = 150;
const CHAINS: u32 = 3;

/// All processes wait again before the next change.
const PAUSE: Duration = Duration::from_millis(2);

/// A process that has not noticed a change by then has died, or its datagram was lost: the
/// measurement fails.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(10);

/// The bytes that go through the chain, and the bytes that each process reads at once.
const CHAIN_BYTES: usize = 32 << 20;
const RELAY_BYTES: usize = 64 << 10;

/// The length of what is copied.
const COPY_BYTES: usize = 32 << 20;
const COPIES: usize = 8;

/// Does what the request says, as a process of the measurement.
///
/// # Errors
/// Those of the system, and of the connection to the coordinator.
pub(crate) fn execute(
    request: LimitRequest,
    respond: impl Fn(LimitResponse) -> io::Result<()>,
    next_request: impl Fn() -> io::Result<Option<Request>>,
) -> io::Result<LimitResponse> {
    match request {
        LimitRequest::Notice { board, notice, number, processes, rounds } => {
            let board = Board::open(&board, processes)?;
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            respond(LimitResponse::Ready { address: Some(socket.local_addr()?) })?;
            for round in 1..=rounds {
                wait_for(round, notice, &board, &socket)?;
                board.set(number as usize, now_ns());
            }
        }
        LimitRequest::Relay => {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            respond(LimitResponse::Ready { address: Some(listener.local_addr()?) })?;
            let Some(Request::Limit(LimitRequest::Connect { next })) = next_request()? else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            relay(&listener, next)?;
        }
        LimitRequest::Connect { .. } => return Err(io::ErrorKind::InvalidData.into()),
    }
    Ok(LimitResponse::Done { at_ns: now_ns() })
}

fn wait_for(round: u32, notice: Notice, board: &Board, socket: &UdpSocket) -> io::Result<()> {
    loop {
        let seen = board.word().load(Ordering::SeqCst);
        match notice {
            Notice::Udp => return socket.recv(&mut [0; 64]).map(|_| ()),
            _ if seen >= round => return Ok(()),
            Notice::Yield => sched_yield(),
            Notice::Futex => {
                // Interrupted, or the change has come meanwhile: it looks again.
                let _ = futex::wait(board.word(), futex::Flags::empty(), seen, None);
            }
        }
    }
}

fn relay(listener: &TcpListener, next: Option<SocketAddr>) -> io::Result<()> {
    let (mut from, _) = listener.accept()?;
    let mut to = next.map(TcpStream::connect).transpose()?;
    let mut buffer = vec![0; RELAY_BYTES];
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        if let Some(to) = &mut to {
            to.write_all(&buffer[..length])?;
        }
    }
}

/// The measurements of the limits, until their medians are taken.
#[derive(Debug)]
pub(crate) struct LimitSamples {
    processes: u32,
    /// In nanoseconds, by [`Notice`].
    notices_ns: [Vec<u64>; 3],
    copies_ns: Vec<u64>,
    chains_ns: Vec<u64>,
}

impl LimitSamples {
    /// Of a broadcast to this number of processes, at least one.
    pub fn new(processes: u32) -> Self {
        Self { processes, notices_ns: Default::default(), copies_ns: Vec::new(), chains_ns: Vec::new() }
    }

    /// Measures, which takes about two seconds.
    ///
    /// # Errors
    /// [`BenchError::Limits`].
    pub fn measure(&mut self, command: &WorkerCommand) -> Result<(), BenchError> {
        self.measure_with_helpers(command).map_err(|error| match error {
            BenchError::Worker { why, .. } => BenchError::Limits(why),
            BenchError::Failed { why, .. } => BenchError::Limits(io::Error::other(why)),
            other => other,
        })
    }

    fn measure_with_helpers(&mut self, command: &WorkerCommand) -> Result<(), BenchError> {
        let failed = BenchError::Limits;
        let directory = tempfile::tempdir().map_err(failed)?;
        let mut workers = (0..self.processes)
            .map(|number| Worker::start_helper(number as usize, command))
            .collect::<Result<Vec<_>, _>>()
            .map_err(failed)?;
        for (samples, notice) in self.notices_ns.iter_mut().zip([Notice::Futex, Notice::Yield, Notice::Udp]) {
            let path = directory.path().join(format!("{notice:?}"));
            let board = Board::open(&path, self.processes).map_err(failed)?;
            let of = |number| LimitRequest::Notice {
                board: path.clone(),
                notice,
                number,
                processes: self.processes,
                rounds: ROUNDS,
            };
            let addresses = begin(&mut workers, of)?;
            for round in 1..=ROUNDS {
                samples.push(notice_once(&board, round, notice, &addresses).map_err(failed)?);
            }
            end(&mut workers)?;
        }
        for _ in 0..CHAINS {
            self.chains_ns.push(send_through(&mut workers)?);
        }
        self.copies_ns.extend(copies_ns());
        Ok(())
    }

    pub fn limits(mut self) -> Limits {
        let [futex, yielding, udp] = &mut self.notices_ns;
        let us = |samples: &mut Vec<u64>| median(samples) as f64 / 1e3;
        let rate = |bytes: usize, samples: &mut Vec<u64>| bytes as f64 * 1e9 / median(samples).max(1) as f64;
        Limits {
            processes: self.processes,
            futex_wake_us: us(futex),
            yield_notice_us: us(yielding),
            udp_each_us: us(udp),
            copy_bytes_per_s: rate(COPY_BYTES, &mut self.copies_ns),
            tcp_chain_bytes_per_s: rate(CHAIN_BYTES, &mut self.chains_ns),
        }
    }
}

fn median(samples: &mut [u64]) -> u64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}

/// Gives each process its request, and returns where their sockets are.
fn begin(workers: &mut [Worker], of: impl Fn(u32) -> LimitRequest) -> Result<Vec<SocketAddr>, BenchError> {
    for (number, worker) in (0..).zip(&mut *workers) {
        worker.send(&Request::Limit(of(number)))?;
    }
    let address = |worker: &mut Worker| match worker.receive()? {
        Response::Limit(LimitResponse::Ready { address: Some(address) }) => Ok(address),
        other => Err(worker.unexpected(&other)),
    };
    workers.iter_mut().map(address).collect()
}

/// Waits until all processes have done what was asked; returns when the last one had.
fn end(workers: &mut [Worker]) -> Result<u64, BenchError> {
    let mut last = 0;
    for worker in workers {
        match worker.receive()? {
            Response::Limit(LimitResponse::Done { at_ns }) => last = last.max(at_ns),
            other => return Err(worker.unexpected(&other)),
        }
    }
    Ok(last)
}

/// When the last process has noticed the change; none before.
fn last_noticed_at_ns(board: &Board) -> Option<u64> {
    board.values().map(|at| (at > 0).then_some(at)).collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// Changes the number once, and returns how long it takes until the last process has noticed, in
/// nanoseconds.
fn notice_once(board: &Board, round: u32, notice: Notice, addresses: &[SocketAddr]) -> io::Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    thread::sleep(PAUSE);
    board.clear();
    let start = now_ns();
    board.word().store(round, Ordering::SeqCst);
    match notice {
        Notice::Futex => {
            futex::wake(board.word(), futex::Flags::empty(), i32::MAX as u32)?;
        }
        Notice::Yield => {}
        Notice::Udp => {
            for address in addresses {
                socket.send_to(&[0; 64], address)?;
            }
        }
    }
    loop {
        if let Some(last) = last_noticed_at_ns(board) {
            return Ok(last.saturating_sub(start));
        }
        if now_ns() - start > NOTICE_TIMEOUT.as_nanos() as u64 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "a process has not noticed a change"));
        }
        // Where the others look and yield, they have the processors in turn with this process, as
        // with a root that goes on.
        if notice == Notice::Yield { sched_yield() } else { thread::sleep(PAUSE) }
    }
}

/// Sends bytes through a chain of all processes, and returns how long that takes, in nanoseconds.
fn send_through(workers: &mut [Worker]) -> Result<u64, BenchError> {
    let addresses = begin(workers, |_| LimitRequest::Relay)?;
    let nexts = addresses.iter().skip(1).copied().map(Some).chain([None]);
    for (worker, next) in workers.iter_mut().zip(nexts) {
        worker.send(&Request::Limit(LimitRequest::Connect { next }))?;
    }
    let start = now_ns();
    let send = || {
        let mut first = TcpStream::connect(addresses[0])?;
        let buffer = vec![0; RELAY_BYTES];
        (0..CHAIN_BYTES / RELAY_BYTES).try_for_each(|_| first.write_all(&buffer))
    };
    send().map_err(BenchError::Limits)?;
    Ok(end(workers)?.saturating_sub(start))
}

fn copies_ns() -> Vec<u64> {
    let from = vec![1_u8; COPY_BYTES];
    let mut to = vec![0_u8; COPY_BYTES];
    let copy = |_| {
        let start = now_ns();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        now_ns() - start
    };
    (0..COPIES).map(copy).collect()
}
