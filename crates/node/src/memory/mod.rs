//! What an application and its node share of a group: slots, and the state of the group.

pub(crate) mod ring;
pub(crate) mod shared_group;
