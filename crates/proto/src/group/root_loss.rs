//! The notices of a member to its children that the root is gone.

use std::net::SocketAddr;

use treecast_wire::{Control, Nonce, RootLoss};

use super::header::HeaderTemplate;
use super::{END_INTERVAL, END_NOTICES};
use crate::{Nanoseconds, Transmit};

/// Notices to the children of a member that its root is gone or is said to be, so that each need
/// not find out by its own timeout.
#[derive(Debug, Clone)]
pub(super) struct RootLossNotices {
    pub loss: RootLoss,
    pub children: Vec<SocketAddr>,
    /// The number of notices sent to the children together.
    pub sent: usize,
    pub at: Nanoseconds,
}

impl RootLossNotices {
    /// The next notice. They are over when each child has been sent all of them.
    pub fn poll_transmit(
        notices: &mut Option<Self>,
        now: Nanoseconds,
        header: &mut HeaderTemplate,
    ) -> Option<Transmit> {
        let Self { loss, children, sent, at } = notices.as_mut()?;
        if now < *at {
            return None;
        }
        let child = children[*sent % children.len()];
        let transmit = header.control(now, child, Nonce(0), &Control::RootLost(*loss));
        *sent += 1;
        if *sent == END_NOTICES * children.len() {
            *notices = None;
        } else if *sent % children.len() == 0 {
            *at = now + END_INTERVAL;
        }
        Some(transmit)
    }
}
