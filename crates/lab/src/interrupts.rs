//! Interrupts of a process that runs a lab.

#![expect(unsafe_code, reason = "the action of a signal is set")]

use nix::sys::signal::{SigHandler, Signal, signal};

/// Lets SIGINT end this process, and those that it starts, also where they would ignore it: shells
/// start background jobs so.
pub fn accept_interrupts() {
    // SAFETY: the default action runs no code of this process.
    let set = unsafe { signal(Signal::SIGINT, SigHandler::SigDfl) };
    debug_assert!(set.is_ok(), "the action of SIGINT can be set");
}
