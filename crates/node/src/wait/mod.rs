//! How threads wait for events of a group, and are woken.

pub(crate) mod leader;
pub(crate) mod waker;
