//! A part of the hardware that does one thing at a time.

use treecast_terms::Picoseconds;

/// A processor, a DMA engine, a bus or a link: it does one piece of work at a time, first come, first served.
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
    /// Takes a piece of work that comes now; when it will be done. Work must be brought in the order of its times.
    pub fn serve(&mut self, now: Picoseconds, work: Picoseconds) -> Picoseconds {
        self.free_at = self.free_at.max(now) + work;
        self.busy += work;
        self.free_at
    }

    /// From when on it has nothing to do.
    pub fn free_at(&self) -> Picoseconds {
        self.free_at
    }

    /// How long it has worked in all, with what it has taken on.
    pub fn busy(&self) -> Picoseconds {
        self.busy
    }

    /// Keeps it busy until a time, with what it has begun.
    pub(super) fn hold(&mut self, from: Picoseconds, until: Picoseconds) {
        self.busy += until - from;
        self.free_at = self.free_at.max(until);
    }
}
