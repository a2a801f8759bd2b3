//! Threads of hosts, and the processors that run them.

use std::collections::VecDeque;

use treecast_terms::Picoseconds;

use super::arrival::Part;
use super::parameters::{Parameters, Wake};

/// The number of a thread: each member has two.
pub(super) type ThreadId = u32;

/// A piece of work. Children are numbered among those of their sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    /// The wake-up of a thread.
    Wake,
    /// The root's call.
    Call,
    /// An application asks its node to forward; with offload `host` to this child.
    Ask { child: u32 },
    /// A copy of a unit. The next copies follow it: those of this unit, or of the whole message.
    Copy { unit: u32, child: u32, is_whole: bool },
    /// A unit sent by multicast. The next units follow it.
    Multicast { unit: u32 },
    /// The copies of a unit that switches make in the context of the sender.
    SwitchCopies { unit: u32 },
    /// The next unit is taken in and stored.
    Receive { unit: u32 },
    /// What has arrived of the next unit is taken in, and stored.
    ReceivePart(Part),
    /// A copy of what has arrived of a unit.
    CopyPart { part: Part, child: u32 },
    /// The rest of a unit is taken in, and copied to the children.
    Rest { part: Part, children: u32 },
    /// The application takes the message.
    Deliver,
    /// The acknowledgment of a child.
    Acknowledgment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Asleep,
    Waking,
    /// It waits for a processor.
    Waiting,
    Running,
}

/// A thread does one job at a time.
#[derive(Debug, Clone)]
struct Thread {
    state: State,
    data: VecDeque<Job>,
    /// The number of units that have arrived, and of those that were taken in. They are handled
    /// when no other data is ready.
    arrived: u32,
    taken: u32,
    /// The number of acknowledgments, which are handled when no data is ready.
    acknowledgments: u32,
    busy: Picoseconds,
}

impl Thread {
    fn next(&mut self) -> Option<Job> {
        if let Some(job) = self.data.pop_front() {
            return Some(job);
        }
        if self.taken < self.arrived {
            self.taken += 1;
            return Some(Job::Receive { unit: self.taken - 1 });
        }
        self.acknowledgments = self.acknowledgments.checked_sub(1)?;
        Some(Job::Acknowledgment)
    }
}

/// The processors of one host, or those that all hosts share.
#[derive(Debug, Clone)]
struct Pool {
    free: u32,
    waiting: VecDeque<ThreadId>,
}

/// All threads and processors. Threads get processors in the order in which they have become ready,
/// and keep them while they have work.
#[derive(Debug)]
pub(super) struct Processors {
    threads: Vec<Thread>,
    pools: Vec<Pool>,
    is_shared: bool,
    wake_for: Wake,
}

impl Processors {
    /// The processors of a number of members, whose threads sleep.
    pub fn new(members: u32, parameters: &Parameters) -> Self {
        let thread = Thread {
            state: State::Asleep,
            data: VecDeque::new(),
            arrived: 0,
            taken: 0,
            acknowledgments: 0,
            busy: Picoseconds::ZERO,
        };
        let (pools, free) = match parameters.shared_processors {
            0 => (members as usize, parameters.processors),
            shared => (1, shared),
        };
        Self {
            threads: vec![thread; 2 * members as usize],
            pools: vec![Pool { free, waiting: VecDeque::new() }; pools],
            is_shared: parameters.shared_processors > 0,
            wake_for: parameters.wake_for,
        }
    }

    /// The thread of a member's node; the kernel's packet path counts as one.
    pub fn node_of(member: u32) -> ThreadId {
        2 * member
    }

    /// The thread of a member's application.
    pub fn application_of(&self, member: u32) -> ThreadId {
        2 * member + u32::from(self.wake_for == Wake::Message)
    }

    /// The member of a thread.
    pub fn member_of(thread: ThreadId) -> u32 {
        thread / 2
    }

    /// The CPU time of a member.
    pub fn busy(&self, member: u32) -> Picoseconds {
        let first = Self::node_of(member) as usize;
        self.threads[first..=first + 1].iter().map(|thread| thread.busy).sum()
    }

    /// Adds a job. Returns whether its thread sleeps and has to be woken: after the delay of a
    /// wake-up [`Processors::run`] lets it begin.
    pub fn add(&mut self, thread: ThreadId, job: Job) -> bool {
        let state = &mut self.threads[thread as usize];
        match job {
            Job::Acknowledgment => state.acknowledgments += 1,
            // Units arrive in order.
            Job::Receive { .. } => state.arrived += 1,
            _ => state.data.push_back(job),
        }
        if state.state != State::Asleep {
            return false;
        }
        // The kernel's packet path runs without being woken.
        let sleeps = self.wake_for == Wake::Arrival || thread % 2 == 1;
        if sleeps {
            state.state = State::Waking;
        } else {
            self.wait(thread);
        }
        sleeps
    }

    /// Lets a thread that does not sleep begin with a job.
    pub fn run(&mut self, thread: ThreadId, job: Job) {
        self.precede(thread, job);
        self.wait(thread);
    }

    /// Adds a job in front of all others of a thread.
    pub fn precede(&mut self, thread: ThreadId, job: Job) {
        self.threads[thread as usize].data.push_front(job);
    }

    /// The next job of a thread that has completed one. Without a job it sleeps, and its processor
    /// is free.
    pub fn next_job(&mut self, thread: ThreadId) -> Option<Job> {
        let state = &mut self.threads[thread as usize];
        let next = state.next();
        if next.is_none() {
            state.state = State::Asleep;
            self.pool(thread).free += 1;
        }
        next
    }

    /// The next thread that gets a processor in the pool of `thread`, with its job.
    pub fn grant(&mut self, thread: ThreadId) -> Option<(ThreadId, Job)> {
        let pool = self.pool(thread);
        if pool.free == 0 {
            return None;
        }
        let granted = pool.waiting.pop_front()?;
        pool.free -= 1;
        let state = &mut self.threads[granted as usize];
        state.state = State::Running;
        state.next().map(|job| (granted, job))
    }

    /// Counts CPU time of a thread.
    pub fn count(&mut self, thread: ThreadId, work: Picoseconds) {
        self.threads[thread as usize].busy += work;
    }

    fn wait(&mut self, thread: ThreadId) {
        self.threads[thread as usize].state = State::Waiting;
        self.pool(thread).waiting.push_back(thread);
    }

    fn pool(&mut self, thread: ThreadId) -> &mut Pool {
        let index = if self.is_shared { 0 } else { Self::member_of(thread) };
        &mut self.pools[index as usize]
    }
}
