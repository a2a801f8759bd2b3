//! The barrier before each message, as benchmarks of MPI have it.

use std::io;
use std::time::{Duration, Instant};

use crate::board::Board;
use crate::clock::thread_cpu_ns;
use crate::control::{Meeting, Pace, Request, Response, RunRequest, read_request, write_response};

/// The barrier of a run, at one of its workers.
pub struct Barrier {
    place: Place,
    /// The CPU time of this process in the barrier, which is not the broadcasts'.
    pub cpu_ns: u64,
}

/// Where workers meet.
enum Place {
    /// The pace has no barrier.
    Nowhere,
    Board(Board),
    Coordinator,
}

/// How often the root checks the board. It sleeps meanwhile: the others have the processors until
/// all of them wait.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);

/// How long the root waits for the others.
const TIMEOUT: Duration = Duration::from_mins(1);

impl Barrier {
    /// # Errors
    /// Those of [`Board::open`].
    pub fn new(run: &RunRequest) -> io::Result<Self> {
        let place = match (&run.pace, &run.meeting) {
            (Pace::Barrier, Meeting::Board { path, members }) => Place::Board(Board::open(path, *members)?),
            (Pace::Barrier, Meeting::Coordinator) => Place::Coordinator,
            _ => Place::Nowhere,
        };
        Ok(Self { place, cpu_ns: 0 })
    }

    /// A member enters its call for this message.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn enter(&mut self, member: u32, number: u32) -> io::Result<()> {
        match &self.place {
            Place::Nowhere => {}
            Place::Board(board) => board.set(member as usize, 1 + u64::from(number)),
            Place::Coordinator => {
                let cpu = thread_cpu_ns();
                write_response(&Response::Waits { number })?;
                self.cpu_ns += thread_cpu_ns() - cpu;
            }
        }
        Ok(())
    }

    /// The root waits until all members have entered their calls for this message, and some time
    /// more, in which they fall asleep.
    ///
    /// # Errors
    /// `TimedOut`; those of standard input, and `InvalidData` for another request.
    pub fn wait(&mut self, number: u32) -> io::Result<()> {
        let cpu = thread_cpu_ns();
        match &self.place {
            Place::Nowhere => return Ok(()),
            Place::Board(board) => wait_at(board, number)?,
            Place::Coordinator => {
                if !matches!(read_request()?, Some(Request::Next)) {
                    return Err(io::ErrorKind::InvalidData.into());
                }
            }
        }
        self.cpu_ns += thread_cpu_ns() - cpu;
        Ok(())
    }
}

fn wait_at(board: &Board, number: u32) -> io::Result<()> {
    let until = Instant::now() + TIMEOUT;
    loop {
        // The first one is the root's own.
        let have_entered = board.values().skip(1).all(|entered| entered > u64::from(number));
        std::thread::sleep(CHECK_INTERVAL);
        if have_entered {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}
