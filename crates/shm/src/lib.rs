//! What threads and processes share of a group: the ring of slots, who has read them, the state of
//! the group, and how those who wait for it are woken.
//!
//! An application and its node share it, in one process or in two; where several processes of a
//! host have the group, they all do. Models of it are checked under all schedules that loom finds,
//! with the feature `loom` (`make schedules`).

#![cfg_attr(
    feature = "loom",
    allow(clippy::unused_self, clippy::needless_pass_by_value, reason = "models use private memory")
)]

pub mod clients;
pub mod clock;
pub mod delegation;
pub mod event_count;
pub mod message_buffer;
pub mod places;
pub mod progress;
pub mod readers;
pub mod ring;
pub mod settings;
pub mod shared_group;
pub mod spin;
pub mod sync;
pub mod waker;

/// What threads share, under all schedules that loom finds: tests/schedules.rs runs them.
#[cfg(feature = "loom")]
#[doc(hidden)]
pub mod models {
    pub use crate::delegation::models::*;
    pub use crate::places::models::*;
    pub use crate::ring::models::*;
}
