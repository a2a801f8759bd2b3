//! Bounds of groups and messages.

/// The most packets of a message.
pub const PACKETS_MAX: u32 = 1 << 20;

/// The most members of a placement.
pub(crate) const MEMBERS_MAX: u32 = 1 << 24;
