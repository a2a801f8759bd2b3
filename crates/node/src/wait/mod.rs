//! How threads wait for events of a group, and are woken.
//!
//! A thread that waits for a group either leads, and then polls the node's descriptors itself, or follows, and then waits on the
//! group's event count ([`leader_followers`], [`event_count`]). One thread that sleeps on descriptors is woken by a [`waker`].

pub(crate) mod event_count;
pub(crate) mod leader_followers;
pub(crate) mod slice;
pub(crate) mod spin;
pub(crate) mod waker;

use std::time::Duration;

use rustix::event::{PollFd, Timespec};

/// Polls until a descriptor is ready, the timeout is over, or a signal arrives.
pub(crate) fn poll(descriptors: &mut [PollFd<'_>], timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    // A signal is a spurious wake-up: callers check their condition again.
    let _ = rustix::event::poll(descriptors, timeout.as_ref());
}
