//! The answer of a node.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use treecast_proto::{Carrier, GroupId, GroupStatus, HandOffChild, Nanoseconds, PlaceStatus};

use treecast_ebpf::KernelCounters;

/// The format of [`NodeDocument`].
pub const FORMAT: &str = "treecast-status/1";

/// A node of this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeDocument {
    /// The format of this document: `treecast-status/1`.
    pub format: String,
    /// The process that has the node.
    pub process: u32,
    /// The name of its program.
    pub program: String,
    /// The number of its user.
    pub user: u32,
    /// The address at which the node listens.
    pub address: SocketAddr,
    /// Its engine: `user` or `ebpf`.
    pub engine: String,
    /// The time since it was opened, in seconds.
    pub seconds: f64,
    /// Its groups, by number.
    pub groups: Vec<GroupDocument>,
    /// Datagrams that belonged to no group, by their kinds.
    pub strays: BTreeMap<String, u64>,
}

/// A group at a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupDocument {
    /// Its number.
    pub group: u32,
    /// At a daemon, the number of the user whom it belongs to.
    pub owner: Option<u32>,
    /// The address of the root; null at the root.
    pub root: Option<SocketAddr>,
    /// The number of this member; null before it has its place in the tree. Then all texts below
    /// are null too, and the numbers 0.
    pub member: Option<u32>,
    /// The address of the parent; null at the root.
    pub parent: Option<SocketAddr>,
    /// The epoch of the tree: how often it has changed.
    pub epoch: Option<u32>,
    /// What forwards: `host`, `assisted`, `nic`, `switch`.
    pub offload: Option<String>,
    /// The transport of data: `packets`, `stream`, `both`.
    pub transport: Option<String>,
    /// Whether the last packet went on streams; null before the first byte.
    pub on_streams: Option<bool>,
    /// Whether the kernel's packet path runs the group now.
    pub in_kernel: bool,
    /// Whether the root has closed the group.
    pub closed: bool,
    /// The number of slots for packets.
    pub slots: u32,
    /// The number of the next packet that is to be accepted, or queued at the root; it wraps at
    /// 2^32.
    pub next: u32,
    /// All members below this one have the packets before this number.
    pub stable: u32,
    /// The bytes of all messages before `next`.
    pub bytes: u64,
    /// The children, in the order in which they are sent to.
    pub children: Vec<ChildDocument>,
    /// At the root: all members, by number.
    pub members: Vec<MemberDocument>,
    /// Counters of the group.
    pub counters: BTreeMap<String, u64>,
    /// Counters of the kernel's packet path; null without it.
    pub kernel_counters: Option<BTreeMap<String, u64>>,
}

/// A child of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildDocument {
    /// Its number.
    pub member: u32,
    /// The address of its node.
    pub address: SocketAddr,
    /// The packets that this node has and the child has not acknowledged.
    pub behind: u32,
    /// The packets that this node has and some member below the child, or itself, does not.
    pub subtree_behind: u32,
    /// The packets in flight to it.
    pub in_flight: u32,
    /// The smoothed round-trip time in microseconds; null before it is measured.
    pub rtt_us: Option<f64>,
    /// How long nothing was heard from it, in milliseconds; it need not answer while nothing is
    /// sent.
    pub silent_ms: u64,
}

/// A member, as the root sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberDocument {
    /// Its number.
    pub member: u32,
    /// The address of its node.
    pub address: SocketAddr,
    /// Its parent in the tree; null for the root.
    pub parent: Option<u32>,
    /// Whether it has joined.
    pub joined: bool,
    /// Why it is no longer a member.
    pub lost: Option<String>,
}

impl GroupDocument {
    pub(crate) fn new(
        now: Nanoseconds,
        group: GroupId,
        owner: Option<u32>,
        status: &GroupStatus,
        in_kernel: bool,
        kernel_counters: Option<KernelCounters>,
    ) -> Self {
        let place = status.place.as_ref();
        let members = status.members.iter().map(|member| MemberDocument {
            member: member.member.0,
            address: member.address,
            parent: member.parent.map(|parent| parent.0),
            joined: member.has_joined,
            lost: member.loss.map(|loss| loss.to_string()),
        });
        let children =
            place.map(|place| place.children.iter().map(|child| ChildDocument::new(now, place, child)));
        Self {
            group: group.0,
            owner,
            root: status.root,
            member: place.map(|place| place.member.0),
            parent: place.and_then(|place| place.parent),
            epoch: place.map(|place| place.epoch),
            offload: place.map(|place| place.offload.to_string()),
            transport: place.map(|place| place.transport.to_string()),
            on_streams: place.and_then(|place| Some(place.carrier? == Carrier::Stream)),
            in_kernel,
            closed: place.is_some_and(|place| place.is_closed),
            slots: place.map_or(0, |place| place.slots),
            next: place.map_or(0, |place| place.flow.next.0),
            stable: place.map_or(0, |place| place.flow.stable.0),
            bytes: place.map_or(0, |place| place.flow.bytes),
            children: children.into_iter().flatten().collect(),
            members: members.collect(),
            counters: place.map_or_else(BTreeMap::new, |place| named(place.flow.counters.values())),
            kernel_counters: kernel_counters.map(|counters| named(counters.fast_path.values())),
        }
    }

    /// Whether this node is the root.
    pub const fn is_root(&self) -> bool {
        self.root.is_none()
    }

    /// The child that is furthest behind, or the subtree of one; `None` if none is.
    pub fn slowest_child(&self) -> Option<&ChildDocument> {
        let behind = |child: &&ChildDocument| (child.subtree_behind, child.behind);
        self.children.iter().max_by_key(behind).filter(|child| child.subtree_behind > 0)
    }
}

impl ChildDocument {
    fn new(now: Nanoseconds, place: &PlaceStatus, child: &HandOffChild) -> Self {
        let HandOffChild { address, state } = child;
        let behind = |upto| place.flow.next.distance_from(upto).max(0) as u32;
        Self {
            member: state.member.0,
            address: *address,
            behind: behind(state.acked),
            subtree_behind: behind(state.stable),
            in_flight: state.sent.distance_from(state.acked).max(0) as u32,
            rtt_us: (state.rtt.is_measured != 0).then(|| state.rtt.smoothed.0 as f64 / 1e3),
            silent_ms: now.0.saturating_sub(state.heard_at.0) / 1_000_000,
        }
    }
}

/// Counters by name.
pub(crate) fn named<'a>(values: impl IntoIterator<Item = (&'a str, u64)>) -> BTreeMap<String, u64> {
    values.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}
