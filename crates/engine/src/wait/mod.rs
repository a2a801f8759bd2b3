//! How threads wait for events of a group, and are woken.
//!
//! A thread that waits for a group either polls the node's descriptors itself, or sleeps on the
//! group's event count ([`poller`],
//! [`event_count`](treecast_shm::event_count)). One thread that sleeps on descriptors is woken by a
//! [`waker`](treecast_shm::waker).
//!
//! # Who wakes whom
//!
//! A thread never waits without a deadline unless another one will wake it: every condition below
//! becomes true by a neighbour's packet, a timer of the protocol, or another thread's call, and the
//! thread that handles that event wakes the waiting one. User space runs a group unless it is
//! handed off to the kernel's packet path (the program). Only groups with a neighbour are handed
//! off: without one no packet arrives and no timer runs, so that nobody would wake an application.
//! `tests/waits.rs` has a test of each wait of an application, for engines of its own process, of
//! another process that shares its node, and of a daemon.
//!
//! | who waits | for | woken, while user space runs the group | woken, while the program runs it |
//! |---|---|---|---|
//! | root: `send`, `flush` | free slots | `Core::give_progress`, in the step that handles the acknowledgment or the loss | the program, at each acknowledgment that leaves at most half of the slots in use (`receive_ack`); if a child is silent its timer wakes the engine, which reclaims the group (`Core::reclaim`) |
//! | root: `all_reduce` | the result | `SharedGroup::set_reduced`, in the step that handles the last contribution | the program leaves a child's last contribution to user space (`Core::take_contributions`); a root that contributes last hands the result over itself |
//! | root of processes that share its node: `send` | slots that they have read | the process that reads (`Readers::notify_free_slots`); the node, when a process leaves or ends | the same |
//! | member: `receive` | packets, the close | `Core::give_progress` | the program, at the end of a message or when a quarter of the slots is full (`receive_data`); the close goes to user space |
//! | member: the first `receive`, `wait_until_ready` | its place | `SharedGroup::set_placement` | not handed off yet |
//! | root: `wait_until_ready` | all members | `SharedGroup::set_ready`, at the last answer or when `join_timeout` has expired | the same |
//! | all: any call on a group, `close` | the end of the group | `SharedGroup::end`, `fail`: the silence of neighbours is a timer of the protocol | the protocol's timers of the group go on in user space |
//! | the polling thread | the node's descriptors | a datagram; `EventCount::notify` by its `Waker` | a wake datagram of the program to the same descriptors |
//! | a program that polls `Group::watch` | the same as the call that it attempts | `EventCount::notify`; at processes that share a node `ClientLink::wake_watchers`, and the client's own thread | the word stays set (`EventCount::watch`), so that the program always sends a wake datagram |
//! | a process that shares a node | the same, on one futex of all processes | `Readers::notify`, by the node or the root's process; `Readers::notify_always` by its own client thread, when the state changes | a wake datagram to the node, which calls `Readers::notify` |
//! | another thread | the group's event count | `EventCount::notify`, by the thread that drives the engine | the polling thread, or without one the node's own thread, which receives the wake datagram |
//! | the engine's own thread | datagrams, the timer, its waker, the program | a request or `wake` of an application; a polling thread that stops makes pending events visible again (`Turn::drop`) | the program's ring buffer: a NAK, an expired timer, windows for packets that the application has delegated |
//! | a client's own thread, or its polling thread | the daemon's wake-ups, its end | `ClientLink` | a wake datagram to the client's socket |
//!
//! The program and a sleeping thread agree by `is_waiting` in the group's page: the thread sets it
//! and then checks its condition, the program changes what the condition reads and then resets it.
//! `reclaim` wakes in any case, since the program may have reset the word for a wake datagram that
//! it could not send.

pub mod poller;
pub(crate) mod slice;

use std::time::Duration;

use rustix::event::{PollFd, Timespec};

/// Polls until a descriptor is ready, the timeout is over, or a signal arrives.
pub fn poll(descriptors: &mut [PollFd<'_>], timeout: Option<Duration>) {
    let timeout = timeout.map(|timeout| Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    });
    // A signal is a spurious wake-up: callers check their condition again.
    let _ = rustix::event::poll(descriptors, timeout.as_ref());
}
