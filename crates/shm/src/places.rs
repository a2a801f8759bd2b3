//! The places of the processes that read the same slots: how far each has read.
//!
//! The processes of a host that are in the same group read received packets in place. Each has a
//! **place**, a cache line of its own, with the first packet that it has not read. The writer may
//! reuse a slot when all of them have read it: up to the least of the places.

use serde::{Deserialize, Serialize};
use treecast_proto::Sequence;

use crate::sync::{AtomicU32, Ordering, fence};

/// The place of a process among those of its host that are members of a group: they share one place
/// in the tree, and its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessPlace {
    /// From 0.
    pub number: u32,
    /// The number of these processes, at least 2.
    pub count: u32,
}

/// The place of one reader.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Place {
    /// The first packet that the reader has not read.
    read: AtomicU32,
    /// Not 0 after the reader has gone: the writer waits for it no more.
    has_left: AtomicU32,
}

impl Place {
    /// The place of a reader that has read everything before `start`.
    #[cfg(any(test, feature = "loom"))]
    pub fn new(start: Sequence) -> Self {
        Self { read: AtomicU32::new(start.0), has_left: AtomicU32::new(0) }
    }

    /// Begins with packet `start`. Only before anybody reads.
    pub fn set_start(&self, start: Sequence) {
        self.read.store(start.0, Ordering::SeqCst);
    }

    /// The reader has read the packets before `upto`.
    pub fn set_read(&self, upto: Sequence) {
        self.read.store(upto.0, Ordering::SeqCst);
    }

    /// The first packet that the reader has not read.
    pub fn read(&self) -> Sequence {
        Sequence(self.read.load(Ordering::SeqCst))
    }

    /// The writer does not wait for this reader any more.
    pub fn leave(&self) {
        self.has_left.store(1, Ordering::SeqCst);
    }

    /// Whether the reader has gone.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Ordering::SeqCst) != 0
    }
}

/// The first packet that one of the readers has not read; none if all have left. All have read what
/// comes before `base`.
pub fn least_read(places: &[Place], base: Sequence) -> Option<Sequence> {
    let present = places.iter().filter(|place| !place.has_left());
    let distances = present.map(|place| place.read().distance_from(base).max(0) as u32);
    distances.min().map(|least| base + least)
}

/// Advances the number of packets that all have read, which the writer sees, to the least of the
/// places. Returns the number before and after; they are equal if another reader is behind.
///
/// Each reader stores its place first, and then calls this. All accesses are sequentially
/// consistent, and places only advance or leave. So of two readers at least one sees the place of
/// the other, and what is stored is never more than one of them has read. A number that another
/// reader has advanced meanwhile is compared anew.
pub fn advance_read(places: &[Place], read: &AtomicU32) -> (Sequence, Sequence) {
    fence(Ordering::SeqCst);
    let mut before = Sequence(read.load(Ordering::SeqCst));
    loop {
        let Some(least) = least_read(places, before) else { return (before, before) };
        if least == before {
            return (before, before);
        }
        match read.compare_exchange(before.0, least.0, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return (before, least),
            Err(now) => before = Sequence(now),
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn the_least_place_counts_across_the_wrap_around() {
        let start = Sequence(u32::MAX - 1);
        let places = [0, 3, 1].map(|read| Place::new(start + read));
        let read = AtomicU32::new(start.0);
        assert_eq!(advance_read(&places, &read), (start, start));
        places[0].set_read(start + 2);
        assert_eq!(advance_read(&places, &read), (start, start + 1));
        places[2].leave();
        assert_eq!(advance_read(&places, &read), (start + 1, start + 2));
        places[0].leave();
        places[1].leave();
        assert_eq!(advance_read(&places, &read), (start + 2, start + 2));
    }

    #[test]
    fn a_place_behind_what_all_have_read_is_not_believed() {
        let places = [Place::new(Sequence(3)), Place::new(Sequence(9))];
        assert_eq!(least_read(&places, Sequence(5)), Some(Sequence(5)));
    }
}

/// Models for loom.
#[cfg(feature = "loom")]
pub mod models {
    use super::{AtomicU32, Ordering, Place, Sequence, advance_read};
    use loom::sync::Arc;

    /// Of two readers the last one frees the slots.
    pub fn the_last_reader_frees_the_slots() {
        loom::model(|| {
            let shared = Arc::new(([(); 2].map(|()| Place::new(Sequence(0))), AtomicU32::new(0)));
            let other = Arc::clone(&shared);
            let reader = loom::thread::spawn(move || {
                let (places, read) = &*other;
                places[1].set_read(Sequence(2));
                let (_, after) = advance_read(places, read);
                assert!(!places[0].read().is_before(after));
            });
            let (places, read) = &*shared;
            places[0].set_read(Sequence(1));
            advance_read(places, read);
            places[0].set_read(Sequence(2));
            advance_read(places, read);
            reader.join().unwrap();
            assert_eq!(read.load(Ordering::SeqCst), 2);
        });
    }
}
