//! A thread for what takes the system long, so that groups do not wait for the memory of others.

use std::any::Any;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use treecast_ebpf::KernelGroup;
use treecast_proto::MemberId;
use treecast_shm::settings::RingSettings;
use treecast_shm::shared_group::SharedGroup;
use treecast_shm::waker::Waker;

use super::rings::{NewRing, RingMaker};

/// A thread that makes and frees memory of groups. It is started by its first job.
#[derive(Debug)]
pub(super) struct Background {
    rings: RingMaker,
    /// Wakes the engine's own thread, when a ring is made.
    waker: Arc<Waker>,
    worker: Option<Worker>,
    made: Receiver<(Placing, Made)>,
    made_by_worker: Sender<(Placing, Made)>,
    /// The number of rings that are being made.
    placing: usize,
}

#[derive(Debug)]
struct Worker {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

/// A member that has its place in the tree, and waits for its ring.
#[derive(Debug)]
pub(super) struct Placing {
    pub shared_group: Arc<SharedGroup>,
    pub member: MemberId,
    pub settings: RingSettings,
    /// Memory of the group's state, in bytes.
    pub state_bytes: u64,
}

/// A ring, or the reason why there is none.
pub(super) type Made = Result<NewRing, String>;

#[derive(Debug)]
enum Job {
    Place(Placing),
    Unmake(Box<KernelGroup>),
    Free(Box<dyn Any + Send>),
}

impl Background {
    pub fn new(rings: RingMaker, waker: Arc<Waker>) -> Self {
        let (made_by_worker, made) = channel();
        Self { rings, waker, worker: None, made, made_by_worker, placing: 0 }
    }

    /// Makes rings in the calling thread.
    pub const fn rings(&self) -> &RingMaker {
        &self.rings
    }

    /// Makes the ring of a member: [`Background::next_made`] returns it.
    pub fn place(&mut self, placing: Placing) {
        self.placing += 1;
        self.send(Job::Place(placing));
    }

    /// Frees what the kernel's packet path has of a group.
    pub fn unmake(&mut self, group: KernelGroup) {
        self.send(Job::Unmake(Box::new(group)));
    }

    /// Drops a value, which may be the last that holds the memory of a group.
    pub fn free(&mut self, value: impl Any + Send) {
        self.send(Job::Free(Box::new(value)));
    }

    /// A ring that has been made.
    pub fn next_made(&mut self) -> Option<(Placing, Made)> {
        if !self.is_placing() {
            return None;
        }
        let made = self.made.try_recv().ok()?;
        self.placing -= 1;
        Some(made)
    }

    /// Whether rings are being made.
    pub const fn is_placing(&self) -> bool {
        self.placing > 0
    }

    fn send(&mut self, job: Job) {
        if self.worker.is_none() {
            self.worker = self.start();
        }
        let unsent = match &self.worker {
            Some(worker) => worker.jobs.send(job).map_err(|unsent| unsent.0).err(),
            None => Some(job),
        };
        // Without a thread the caller waits.
        if let Some(job) = unsent {
            run(job, &self.rings, &self.made_by_worker);
        }
    }

    fn start(&self) -> Option<Worker> {
        let (jobs, received) = channel();
        let (rings, made, waker) = (self.rings.clone(), self.made_by_worker.clone(), Arc::clone(&self.waker));
        let work = move || {
            for job in received {
                run(job, &rings, &made);
                waker.wake();
            }
        };
        let thread = std::thread::Builder::new().name("treecast-memory".into()).spawn(work);
        thread
            .inspect_err(|error| tracing::warn!(%error, "no thread for the memory of groups"))
            .ok()
            .map(|thread| Worker { jobs, thread })
    }
}

fn run(job: Job, rings: &RingMaker, made: &Sender<(Placing, Made)>) {
    match job {
        Job::Place(placing) => {
            let ring = rings.make(&placing.shared_group, placing.settings, placing.state_bytes);
            // The engine may be closed already.
            let _ = made.send((placing, ring));
        }
        Job::Unmake(group) => rings.unmake(*group),
        Job::Free(value) => drop(value),
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(Worker { jobs, thread }) = self.worker.take() {
            drop(jobs);
            // A panic was reported by that thread.
            let _ = thread.join();
        }
    }
}
