//! Bounds of groups and messages.

/// The maximum number of packets of a message.
pub const PACKETS_MAX: u32 = 1 << 20;

/// The maximum number of members of a placement.
pub(crate) const MEMBERS_MAX: u32 = 1 << 24;
