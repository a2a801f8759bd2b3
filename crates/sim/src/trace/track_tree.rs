//! The position of a track in the tree of tracks that a trace shows.

use treecast_fabric::{Channel, HostId, PortNumber, SwitchId, Topology, Vertex};
use treecast_plan::Placement;

use crate::observer::Track;

/// A node of that tree. Only [`TrackNode::Track`] and [`TrackNode::Notice`] hold events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TrackNode {
    /// The notice about the trace itself.
    Notice,
    Hosts,
    Switches,
    Host(HostId),
    Switch(SwitchId),
    Track(Track),
}

impl TrackNode {
    pub fn parent(self, topology: &Topology, placement: &Placement) -> Option<Self> {
        match self {
            Self::Notice | Self::Hosts | Self::Switches => None,
            Self::Host(_) => Some(Self::Hosts),
            Self::Switch(_) => Some(Self::Switches),
            Self::Track(Track::Cpu(member)) => Some(Self::Host(placement.host_of(member))),
            Self::Track(Track::Bus(host) | Track::Nic(host) | Track::NicReceive(host)) => {
                Some(Self::Host(host))
            }
            Self::Track(Track::Link(channel)) => Some(match topology.link(channel.link).from {
                Vertex::Host(host) => Self::Host(host),
                Vertex::Switch(switch) => Self::Switch(switch),
            }),
        }
    }

    /// Siblings have different names: Perfetto shows those of one name as one track.
    pub fn name(self, topology: &Topology, placement: &Placement) -> String {
        match self {
            Self::Notice => "trace".into(),
            Self::Hosts => "hosts".into(),
            Self::Switches => "switches".into(),
            Self::Host(host) => with_id(topology.host_name(host), &host.to_string()),
            Self::Switch(switch) => with_id(topology.switch_name(switch), &switch.to_string()),
            Self::Track(Track::Cpu(_)) if placement.processes() == 1 => "CPU".into(),
            Self::Track(Track::Cpu(member)) => format!("CPU of member {member}"),
            Self::Track(Track::Bus(_)) => "bus".into(),
            Self::Track(Track::Nic(_)) => "NIC".into(),
            Self::Track(Track::NicReceive(_)) => "NIC, receiving".into(),
            Self::Track(Track::Link(Channel { link, virtual_channel })) => match virtual_channel {
                0 => topology.link_name(link),
                _ => format!("{} channel {virtual_channel}", topology.link_name(link)),
            },
        }
    }

    /// Its position among its siblings: hosts and switches by number; in a host CPUs, bus, NIC,
    /// injection link; in a switch links by port, and the channels of a link together.
    pub fn rank(self, topology: &Topology) -> i32 {
        const {
            assert!(Placement::MEMBERS_MAX < i32::MAX as u32 - 3 - u8::MAX as u32);
            assert!(Topology::PORTS_MAX <= i32::MAX as u32 >> u8::BITS);
        }
        let rank = match self {
            Self::Notice | Self::Hosts | Self::Switches => 0,
            Self::Host(host) => host.0,
            Self::Switch(switch) => switch.0,
            Self::Track(Track::Cpu(member)) => member.0,
            Self::Track(Track::Bus(_)) => Placement::MEMBERS_MAX,
            Self::Track(Track::Nic(_)) => Placement::MEMBERS_MAX + 1,
            Self::Track(Track::NicReceive(_)) => Placement::MEMBERS_MAX + 2,
            Self::Track(Track::Link(channel)) => {
                let link = topology.link(channel.link);
                let PortNumber(port) = link.from_port;
                let before = if link.from.host().is_some() { Placement::MEMBERS_MAX + 3 } else { 0 };
                before + (port << u8::BITS) + u32::from(channel.virtual_channel)
            }
        };
        i32::try_from(rank).expect("ids, ports and channels are bounded as asserted above")
    }

    pub const fn has_children(self) -> bool {
        !matches!(self, Self::Notice | Self::Track(_))
    }
}

fn with_id(name: String, id: &str) -> String {
    if name == id { name } else { format!("{name} ({id})") }
}
