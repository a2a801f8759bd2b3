//! Minimal, Valiant and UGAL routing on dragonflies and HyperX networks.

use super::Channel;
use crate::error::FabricError;
use crate::ids::{HostId, LinkId, PortNumber, SwitchId};
use crate::structure::{Dragonfly, HyperX, Structure};
use crate::topology::Topology;

/// Minimal routing on a dragonfly or HyperX: one route between any two hosts.
///
/// On a dragonfly a local hop to the router with a link to the other group, that link, and a local
/// hop (Kim, Dally, Scott, Abts: Technology-driven, highly-scalable dragonfly topology, 2008).
/// Where two groups have several links, one of those with the fewest hops; the numbers of the hosts
/// choose among equals. Local links of the first group and global ones are taken on virtual channel
/// 0, local links of the last group on 1, so waits follow the order local 0, global 0, local 1.
///
/// On a HyperX dimension order (Ahn and others: HyperX, 2009): one hop in each dimension in which
/// the switches differ, on one virtual channel. The numbers of the hosts choose among parallel
/// links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Minimal {
    structure: Structure,
}

/// Routing by random intermediates (Valiant: A scheme for fast parallel communication, 1982), for
/// each packet: always, or where that is estimated to be faster.
///
/// On a dragonfly a packet for another group visits a random third group, if there is one, by at
/// most five hops; within a group routes are minimal (Kim and others, 2008). A packet takes virtual
/// channels 0 up to the third group, then 1, and 2 in the last group: waits follow the order local
/// 0, global 0, local 1, global 1, local 2. On a HyperX a packet visits a random switch, in
/// dimension order before it on virtual channel 0 and after it on 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Valiant {
    structure: Structure,
    is_adaptive: bool,
}

impl Minimal {
    /// Minimal routing.
    ///
    /// # Errors
    /// [`FabricError::RoutingMismatch`] on other topologies than dragonflies and HyperX networks.
    pub fn new(topology: &Topology) -> Result<Self, FabricError> {
        structure("minimal", topology).map(|structure| Self { structure })
    }

    /// The number of virtual channels per link: 2 on a dragonfly, 1 on a HyperX.
    pub fn virtual_channel_count(&self) -> u8 {
        match self.structure {
            Structure::Dragonfly(_) => 2,
            Structure::HyperX(_) => 1,
        }
    }

    /// The channels from one host to another, from injection to ejection.
    pub fn route(&self, topology: &Topology, from: HostId, to: HostId) -> Vec<Channel> {
        Way::new(topology, self.structure, from, to).minimal()
    }
}

impl Valiant {
    /// Routing by random intermediates for every packet.
    ///
    /// # Errors
    /// As [`Minimal::new`].
    pub fn new(topology: &Topology) -> Result<Self, FabricError> {
        structure("valiant", topology).map(|structure| Self { structure, is_adaptive: false })
    }

    /// UGAL-L routing (Singh: Load-balanced routing in interconnection networks, 2005): the switch
    /// of the sender compares the minimal route with one random other route, by the queues of their
    /// first channels times their hops, and chooses the lower product, the minimal one if both are
    /// equal.
    ///
    /// # Errors
    /// As [`Minimal::new`].
    pub fn ugal(topology: &Topology) -> Result<Self, FabricError> {
        structure("ugal", topology).map(|structure| Self { structure, is_adaptive: true })
    }

    /// Whether packets may take minimal routes: UGAL.
    pub fn is_adaptive(&self) -> bool {
        self.is_adaptive
    }

    /// The number of virtual channels per link: 3 on a dragonfly, 2 on a HyperX.
    pub fn virtual_channel_count(&self) -> u8 {
        match self.structure {
            Structure::Dragonfly(_) => 3,
            Structure::HyperX(_) => 2,
        }
    }

    /// The number of intermediates for packets from one host to another; 0 where routes are
    /// minimal.
    pub fn intermediate_count(&self, topology: &Topology, from: HostId, to: HostId) -> u32 {
        match self.structure {
            _ if topology.switch_of(from) == topology.switch_of(to) => 0,
            Structure::Dragonfly(Dragonfly { a, g, .. }) => {
                let group = |host| topology.switch_of(host).0 / a;
                if group(from) == group(to) { 0 } else { g.saturating_sub(2) }
            }
            Structure::HyperX(_) => topology.switch_count(),
        }
    }

    /// The channels from one host to another by one of the intermediates, from 0 to their number;
    /// without one the minimal route.
    pub fn route(
        &self,
        topology: &Topology,
        from: HostId,
        to: HostId,
        intermediate: Option<u32>,
    ) -> Vec<Channel> {
        let way = Way::new(topology, self.structure, from, to);
        match intermediate {
            None => way.minimal(),
            Some(intermediate) => way.by(intermediate),
        }
    }
}

fn structure(routing: &'static str, topology: &Topology) -> Result<Structure, FabricError> {
    topology.structure().ok_or_else(|| FabricError::RoutingMismatch {
        routing,
        reason: "it is neither a dragonfly nor a HyperX".into(),
    })
}

/// A route under construction.
struct Way<'a> {
    topology: &'a Topology,
    structure: Structure,
    /// Chooses among equal links.
    selector: u32,
    from: HostId,
    to: HostId,
    at: SwitchId,
    channels: Vec<Channel>,
}

impl<'a> Way<'a> {
    fn new(topology: &'a Topology, structure: Structure, from: HostId, to: HostId) -> Self {
        let channels = vec![Channel { link: topology.injection(from), virtual_channel: 0 }];
        Self {
            topology,
            structure,
            selector: from.0 + to.0,
            from,
            to,
            at: topology.switch_of(from),
            channels,
        }
    }

    fn minimal(mut self) -> Vec<Channel> {
        self.go(self.topology.switch_of(self.to), 0);
        self.end()
    }

    fn by(mut self, intermediate: u32) -> Vec<Channel> {
        match self.structure {
            Structure::Dragonfly(dragonfly) => {
                let group = |host| self.topology.switch_of(host).0 / dragonfly.a;
                let (source, target) = (group(self.from), group(self.to));
                // The groups but these two.
                let mut third = intermediate;
                third += u32::from(third >= source.min(target));
                third += u32::from(third >= source.max(target));
                self.enter(dragonfly, third, None, 0);
            }
            Structure::HyperX(_) => self.go(SwitchId(intermediate), 0),
        }
        self.go(self.topology.switch_of(self.to), 1);
        self.end()
    }

    fn end(mut self) -> Vec<Channel> {
        self.channels.push(Channel { link: self.topology.ejection(self.to), virtual_channel: 0 });
        self.channels
    }

    /// Goes to a switch, on virtual channels from `first` on.
    fn go(&mut self, to: SwitchId, first: u8) {
        match self.structure {
            Structure::Dragonfly(dragonfly) => {
                let mut virtual_channel = first;
                if self.at.0 / dragonfly.a != to.0 / dragonfly.a {
                    self.enter(dragonfly, to.0 / dragonfly.a, Some(to), first);
                    virtual_channel += 1;
                }
                self.go_within(dragonfly, to, virtual_channel);
            }
            Structure::HyperX(hyperx) => self.go_in_order(hyperx, to, first),
        }
    }

    /// Goes to another group by the link with the fewest hops, also those in that group to a switch
    /// of it.
    fn enter(&mut self, dragonfly: Dragonfly, group: u32, towards: Option<SwitchId>, virtual_channel: u8) {
        let at = self.at.0;
        let hops = |from: u32, to: u32| {
            u32::from(from != at) + u32::from(towards.is_some_and(|towards| towards.0 != to))
        };
        let source = at / dragonfly.a;
        let gateways = || dragonfly.gateways(source, group);
        let fewest = gateways().map(|gateway| hops(gateway.from, gateway.to)).min();
        let best = || gateways().filter(|gateway| Some(hops(gateway.from, gateway.to)) == fewest);
        let place = self.selector as usize % best().count();
        let gateway = best().nth(place).expect("any two groups are linked");
        self.go_within(dragonfly, SwitchId(gateway.from), virtual_channel);
        self.take(gateway.from_port, virtual_channel, SwitchId(gateway.to));
    }

    fn go_within(&mut self, dragonfly: Dragonfly, to: SwitchId, virtual_channel: u8) {
        if self.at != to {
            let port = dragonfly.local_port(self.at.0 % dragonfly.a, to.0 % dragonfly.a);
            self.take(port, virtual_channel, to);
        }
    }

    fn go_in_order(&mut self, hyperx: HyperX, to: SwitchId, virtual_channel: u8) {
        for dimension in 0..hyperx.s.as_slice().len() {
            let there = hyperx.coordinate(to, dimension);
            if hyperx.coordinate(self.at, dimension) != there {
                let port = hyperx.port(self.at, dimension, there, self.selector % hyperx.k);
                self.take(port, virtual_channel, hyperx.moved(self.at, dimension, there));
            }
        }
    }

    fn take(&mut self, port: PortNumber, virtual_channel: u8, to: SwitchId) {
        self.channels.push(Channel { link: link_at(self.topology, self.at, port), virtual_channel });
        self.at = to;
    }
}

/// The link that leaves a switch by a port that the structure has.
fn link_at(topology: &Topology, switch: SwitchId, port: PortNumber) -> LinkId {
    let links = topology.links_from(switch);
    let place = links.binary_search_by_key(&port, |&link| topology.link(link).from_port);
    links[place.expect("a structure has its links")]
}
