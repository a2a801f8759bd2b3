//! What a root can check before its members have joined.

use std::net::SocketAddr;

use super::{on_fabric, plan_of};
use crate::settings::GroupSettings;
use crate::settings::config::{check_bounds, check_congestion, check_count, check_token, no_such_root};
use crate::settings::error::NodeError;
use crate::settings::hosts::Hosts;

impl GroupSettings {
    /// Checks all that a root can know before its members join: call it before `Listener::bind`, so
    /// that no member waits for a group that cannot be. `Node::listen` checks it too, and gives the
    /// reason to members that have already connected.
    ///
    /// # Errors
    /// [`NodeError::Refused`] for a number out of bounds; [`NodeError::NoToken`];
    /// [`NodeError::Members`] for too many members, and for a root that is not a member;
    /// [`NodeError::CongestionControl`]; [`NodeError::Plan`] and [`NodeError::PlanNotExecutable`].
    /// The hosts of members on a fabric are checked when they join.
    ///
    /// ```
    /// use treecast_node::GroupSettings;
    ///
    /// let settings = GroupSettings { root: 4, token: "secret".into(), ..GroupSettings::new(Vec::new()) };
    /// let error = settings.check("0.0.0.0:7000".parse()?, 4).unwrap_err();
    /// assert!(error.to_string().starts_with("the root is member 4 of 4"));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn check(&self, listen: SocketAddr, members: u32) -> Result<(), NodeError> {
        check_count(members)?;
        let members = members as usize;
        check_bounds(self)?;
        check_token(&self.token, self.insecure, listen.ip())?;
        check_congestion(self)?;
        if self.root >= members {
            return Err(no_such_root(self.root, members));
        }
        match &self.fabric {
            // Which hosts the members are on is known when they join.
            Some(fabric) => on_fabric::check_scheme(fabric, members, self),
            None => plan_of(&Hosts::one_each(members), self, false).map(drop),
        }
    }
}
