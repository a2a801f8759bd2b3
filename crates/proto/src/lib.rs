//! Reliable multicast: the protocol of one node, a state machine without I/O.
//!
//! A [`Protocol`] takes the time and an input ([`Protocol::handle`]), and is then polled for
//! outputs ([`Protocol::poll`]) until it returns a timeout. It has no clock and no socket, and does
//! not hold payloads: [`Output::Store`] names the slot that one goes into,
//! [`TransmitPayload::Slot`] the slot that one is sent from. docs/protocol.md describes the rules.

mod application;
mod bitmap;
mod c_layout;
mod congestion_window;
mod counters;
#[cfg(test)]
mod diagrams;
mod error;
mod event;
mod flow;
mod group;
mod hand_off;
mod io;
mod pause;
mod protocol;
mod rtt;
mod session;
mod settings;
mod state;
mod state_size;
mod status;
mod timeouts;
mod trace;
mod turns;

pub use application::{is_forward_due, is_wake_due};
pub use congestion_window::CongestionWindow;
pub use counters::{GroupCounters, StrayCounters};
pub use error::Refused;
pub use event::{Ending, Event, MemberLoss};
pub use flow::{Carrier, StreamChange};
pub use group::Process;
pub use hand_off::{
    FAST_VALUES_BYTES_MAX, HandOff, HandOffChild, HandOffMulticast, HandOffPacket, MulticastSource,
    fast_path_combines,
};
pub use io::{Input, Output, Piece, Store, Transmit, TransmitPayload};
pub use protocol::{Checked, Protocol, Stray, StrayKind};
pub use rtt::Rtt;
pub use session::GroupKey;
pub use settings::{CreateGroup, Settings};
pub use state::{ChildState, Expected, FlowState, MulticastState, Start};
pub use state_size::StateSize;
pub use status::{GroupStatus, MemberStatus, PlaceStatus};
pub use trace::{Step, Trace};
pub use turns::{OwnerId, TURN_MAX};

pub use treecast_terms::Nanoseconds;
pub use treecast_wire::{
    AbortReason, Authentication, Challenge, Contribution, Element, Eviction, GroupId, Integrity, MemberId,
    Offload, Operation, PayloadChecksum, ReaderSet, Readers, RootLoss, Sequence, SessionId, Transport,
    Values,
};
