//! Errors of groups, schemes and plans.

use thiserror::Error;
use treecast_fabric::{FabricError, HostlistError, SwitchId};
use treecast_terms::{MemberId, SpecError};

use crate::limits::{MEMBERS_MAX, PACKETS_MAX};

/// Why there is no plan. Each error names the offending value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlanError {
    /// A text that names a scheme, an order or a list of members is malformed.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The fabric could not be routed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A malformed list of members.
    #[error(
        "'{0}' is not a list of members: expected ranges and numbers such as 1-31 or 3,5,9, or all, or random:15, or the \
         names of hosts such as n[1-16]"
    )]
    MemberList(String),
    /// A malformed list of hosts.
    #[error(transparent)]
    Hostlist(HostlistError),
    /// A member that does not exist.
    #[error("there is no {what} {member}: the group has {what}s 0 to {last}", last = i64::from(*.count) - 1)]
    NoSuchMember {
        /// `host`, or `member` where hosts have several processes.
        what: &'static str,
        /// The number given.
        member: u32,
        /// The number of members.
        count: u32,
    },
    /// A destination given twice.
    #[error("destination {0} is given twice")]
    Twice(MemberId),
    /// The root is among the destinations.
    #[error("the root {0} is among the destinations")]
    RootAmongDestinations(MemberId),
    /// The group has no destinations.
    #[error("the group has no destinations")]
    NoDestinations,
    /// More random destinations than there are members.
    #[error("random:{wanted} asks for more destinations than there are: {available}")]
    TooManyDestinations {
        /// The number requested.
        wanted: u32,
        /// The number of members besides the root.
        available: u32,
    },
    /// A group for another fabric.
    #[error("the group is placed on {placed} hosts, the fabric has {hosts}")]
    PlacementMismatch {
        /// Hosts of the placement.
        placed: u32,
        /// Hosts of the fabric.
        hosts: u32,
    },
    /// A member on a host that does not exist.
    #[error("member {member} is on host {host}: hosts are 0 to {last}", last = i64::from(*.hosts) - 1)]
    NoSuchHost {
        /// The member.
        member: MemberId,
        /// The host given.
        host: u32,
        /// The number of hosts.
        hosts: u32,
    },
    /// No processes on the hosts, or too many.
    #[error("a host runs at least one process, and all hosts together at most {}", MEMBERS_MAX)]
    BadProcesses,
    /// A torus scheme on another fabric.
    #[error("scheme {scheme} needs a torus; this fabric is {fabric}")]
    NeedsTorus {
        /// The scheme.
        scheme: &'static str,
        /// The kind of the fabric.
        fabric: &'static str,
    },
    /// A scheme or order that needs up*/down* routing, on a fabric with another routing.
    #[error(
        "scheme {scheme} needs up*/down* routing; this fabric is routed by {routing} (choose with --routing up-down)"
    )]
    NeedsUpDown {
        /// The scheme.
        scheme: &'static str,
        /// The routing of the fabric.
        routing: &'static str,
    },
    /// Worms along the rings of a torus without dimension-order routing.
    #[error(
        "scheme {scheme} with form=worm needs dimension-order routing; this torus is routed by {routing} (omit \
         --routing)"
    )]
    NeedsDimensionOrder {
        /// The scheme.
        scheme: &'static str,
        /// The routing of the fabric.
        routing: &'static str,
    },
    /// An order for a scheme that orders the destinations itself.
    #[error("scheme {scheme} takes no order: it orders the destinations itself")]
    TakesNoOrder {
        /// The scheme.
        scheme: &'static str,
    },
    /// A postal tree without its lambda.
    #[error(
        "scheme postal needs {key} here, the time until a receiver has the message divided by the time that its sender \
         takes per copy: add {key}=3.5, or another number from 1 to 1000000 (only the model myrinet and running groups \
         measure it)"
    )]
    NeedsLambda {
        /// The key of its lambda in the scheme.
        key: &'static str,
    },
    /// No switch above all destinations, for a tree worm.
    #[error("no switch above {from} reaches every destination by going down")]
    NoCoveringSwitch {
        /// The sender's switch.
        from: SwitchId,
    },
    /// Zero packets, or too many.
    #[error("a message has 1 to {max} packets, not {0}", max = PACKETS_MAX)]
    Packets(u64),
    /// An inconsistent plan.
    #[error("the plan is not sound: {0}")]
    Unsound(String),
    /// A text that is not the JSON of a plan.
    #[error("this JSON is not a plan: {0}")]
    Json(String),
    /// More members than fit into a picture.
    #[error("a picture shows at most {max} members, this plan has {members}: use its table or its tree")]
    TooManyToDraw {
        /// Members with the root.
        members: usize,
        /// The limit.
        max: usize,
    },
}

impl PlanError {
    /// An error about the worm at a position of a plan.
    pub(crate) fn unsound(position: usize, what: &str) -> Self {
        Self::Unsound(format!("worm {position}: {what}"))
    }
}
