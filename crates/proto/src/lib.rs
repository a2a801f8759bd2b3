//! Reliable multicast: the protocol of one node, a state machine without I/O.
//!
//! A [`Protocol`] is given the time and what happens ([`Protocol::handle`]), and is then asked what to do
//! ([`Protocol::poll`]) until it answers with a time to wait for. It knows no clock and no socket, and payloads only as places:
//! [`Store`] says into which slot one goes, [`Source`] out of which slot one is sent. docs/protocol.md tells the rules.

mod counters;
#[cfg(test)]
mod diagrams;
mod event;
mod flow;
mod group;
mod lent;
mod marks;
mod protocol;
mod round_trip;
mod settings;
mod trace;
mod window;

pub use counters::{GroupCounters, StrayCounters};
pub use event::{Ending, Event, MemberLoss, Refused};
pub use lent::{Expected, Lent, LentChild, LentCounts, LentPacket, LentTrip, LentWindow};
pub use protocol::{Input, Output, Piece, Protocol, Source, Store, Transmit};
pub use settings::{CreateGroup, Settings};
pub use trace::{Step, Trace};

pub use treecast_terms::Nanoseconds;
pub use treecast_wire::{Cookie, Eviction, GroupId, MemberId, Offload, PayloadChecksum, Sequence};
