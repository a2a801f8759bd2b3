//! A resource that does one job at a time.

use treecast_terms::Picoseconds;

/// A processor, a DMA engine, a bus or a link: it does one job at a time, first come, first served.
///
/// ```
/// use treecast_model::kernel::Server;
/// use treecast_terms::Picoseconds;
///
/// let mut bus = Server::default();
/// assert_eq!(bus.serve(Picoseconds(100), Picoseconds(30)), Picoseconds(130));
/// // The second waits for the first.
/// assert_eq!(bus.serve(Picoseconds(110), Picoseconds(30)), Picoseconds(160));
/// assert_eq!(bus.busy(), Picoseconds(60));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Server {
    free_at: Picoseconds,
    busy: Picoseconds,
}

impl Server {
    /// Accepts a job that arrives now; returns when it will be done. Jobs must be given in the
    /// order of their arrivals.
    pub fn serve(&mut self, now: Picoseconds, work: Picoseconds) -> Picoseconds {
        self.free_at = self.free_at.max(now) + work;
        self.busy += work;
        self.free_at
    }

    /// The time from which it is idle.
    pub fn free_at(&self) -> Picoseconds {
        self.free_at
    }

    /// Its total busy time, including the jobs that it has accepted.
    pub fn busy(&self) -> Picoseconds {
        self.busy
    }

    /// Keeps it busy for a span that starts not before its last job.
    pub(super) fn hold(&mut self, from: Picoseconds, until: Picoseconds) {
        self.busy += until - from;
        self.free_at = self.free_at.max(until);
    }
}
