//! Which part of a host forwards, where the settings leave that open, and whom the root's multicast
//! reaches.

use std::fmt;
use std::net::SocketAddr;

use treecast_proto::{Authentication, Offload, Transport};

use super::GroupSettings;
use super::hosts::Hosts;

/// How the data of a group is forwarded, at its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffloadStatus {
    /// Where packets are forwarded.
    pub offload: Offload,
    /// Why the node has chosen that; none: the settings say it.
    pub reason: Option<String>,
    /// The number of the root's children in the tree.
    pub children: usize,
    /// How many of them multicast reaches. Each other child gets packets by unicast, and so do
    /// members below it that are not reached.
    pub reached: usize,
}

/// The offload of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenOffload {
    /// What the kernel's packet path does.
    pub offload: Offload,
    /// Why the node has chosen it; none: the settings say it.
    pub reason: Option<String>,
}

/// The fewest hosts, beside the root's, for which multicast is tried: to reach two by unicasts
/// takes the root one packet more at most, and no repair.
const HOSTS_MIN: usize = 3;

/// The offload that the settings say, or else what fits the group. Whether multicast reaches its
/// members is found out when they have come: a root that reaches none of its children by multicast
/// sends none, and then the tree carries everything, as with `nic`.
pub fn choose(settings: &GroupSettings, hosts: &Hosts, root: SocketAddr) -> ChosenOffload {
    if let Some(offload) = settings.offload {
        return ChosenOffload { offload, reason: None };
    }
    let others = hosts.count().saturating_sub(1);
    let (offload, reason) = if settings.plan.is_some() {
        (Offload::Nic, "a plan is given, and nodes carry it out".into())
    } else if settings.transport.is_some_and(Transport::has_streams) {
        (Offload::Nic, "streams go along the tree".into())
    } else if root.ip().is_loopback() {
        (Offload::Nic, "no switch is on the way over loopback".into())
    } else if others < HOSTS_MIN {
        let noun = if others == 1 { "host" } else { "hosts" };
        (Offload::Nic, format!("to {others} other {noun} a switch saves at most one packet"))
    } else if settings.authentication == Some(Authentication::Header) {
        (Offload::Nic, "multicast needs auth=payload, and auth is header".into())
    } else {
        (Offload::Switch, format!("there are {others} other hosts"))
    };
    ChosenOffload { offload, reason: Some(reason) }
}

impl fmt::Display for OffloadStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offload, reason, children, reached } = self;
        write!(formatter, "offload {offload}")?;
        if let Some(reason) = reason {
            write!(formatter, ", chosen because {reason}")?;
        }
        if *offload != Offload::Switch {
            return Ok(());
        }
        if *reached == 0 {
            return formatter
                .write_str("; multicast reaches no child of the root, so the tree carries all data");
        }
        write!(formatter, "; multicast reaches {reached} of the root's {children} children")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::config::settings_of;

    fn chosen(hosts: usize, root: &str) -> ChosenOffload {
        chosen_with(None, hosts, root)
    }

    fn chosen_with(authentication: Option<Authentication>, hosts: usize, root: &str) -> ChosenOffload {
        let settings = GroupSettings { offload: None, authentication, ..settings_of(hosts as u16) };
        choose(&settings, &Hosts::one_each(hosts), root.parse().unwrap())
    }

    #[test]
    fn multicast_is_for_several_hosts_on_a_network() {
        assert_eq!(chosen(4, "10.0.0.1:7000").offload, Offload::Switch);
        let reason = |hosts, root| chosen(hosts, root).reason.unwrap();
        assert_eq!(reason(3, "10.0.0.1:7000"), "to 2 other hosts a switch saves at most one packet");
        assert_eq!(reason(16, "127.0.0.1:7000"), "no switch is on the way over loopback");
        assert_eq!(chosen(1, "[::1]:7000").offload, Offload::Nic);
    }

    #[test]
    fn multicast_is_not_chosen_where_payloads_are_not_authentic() {
        let ChosenOffload { offload, reason } = chosen_with(Some(Authentication::Header), 4, "10.0.0.1:7000");
        assert_eq!(offload, Offload::Nic);
        assert_eq!(reason.unwrap(), "multicast needs auth=payload, and auth is header");
    }

    #[test]
    fn the_status_says_what_was_chosen_why_and_whom_multicast_reaches() {
        let status = |reached| OffloadStatus {
            offload: Offload::Switch,
            reason: Some("there are 15 other hosts".into()),
            children: 4,
            reached,
        };
        assert_eq!(
            status(3).to_string(),
            "offload switch, chosen because there are 15 other hosts; multicast reaches 3 of the root's 4 children"
        );
        assert!(
            status(0).to_string().ends_with("reaches no child of the root, so the tree carries all data")
        );
        let nic = OffloadStatus { offload: Offload::Nic, reason: None, ..status(0) };
        assert_eq!(nic.to_string(), "offload nic");
    }
}
