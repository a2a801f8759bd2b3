//! The links of a fabric, as packets see them that go through it without being stored.

use std::collections::BTreeMap;

use treecast_fabric::{Channel, Fabric, HostId, Link, LinkId, RouteFinder, Vertex};
use treecast_terms::{Bytes, Picoseconds};

use super::Server;

/// A packet on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transit {
    /// When its first byte leaves.
    pub begins: Picoseconds,
    /// When its last byte has left its sender.
    pub leaves: Picoseconds,
    /// When its first byte arrives.
    pub head: Picoseconds,
    /// When its last byte arrives.
    pub tail: Picoseconds,
}

/// The links of a fabric with cut-through switches that store nothing.
///
/// The head of a packet takes `hop` a link and waits where a link is taken; behind it the packet keeps its links until its
/// tail has passed them, so what waits in the middle holds up what is behind. Packets must be sent in the order of their
/// times: one that is sent earlier has its links first. On a star that is exact. With several switches it is so but for
/// packets whose heads would overtake one another on the way.
#[derive(Debug)]
pub struct Network<'a> {
    fabric: &'a Fabric,
    links: Vec<Server>,
    mb_per_s: u64,
    hop: Picoseconds,
}

impl<'a> Network<'a> {
    /// A network whose links carry so much, and whose switches with their links delay a head by `hop`.
    pub fn new(fabric: &'a Fabric, mb_per_s: u64, hop: Picoseconds) -> Self {
        let links = vec![Server::default(); fabric.topology().link_count() as usize];
        Self { fabric, links, mb_per_s, hop }
    }

    /// Sends a packet by the route that the fabric gives, where it chooses the one over the lowest links.
    pub fn send(&mut self, now: Picoseconds, from: HostId, to: HostId, length: Bytes) -> Transit {
        let route = RouteFinder::new(self.fabric.topology(), self.fabric.routing()).route(from, to);
        self.send_along(now, &route, length)
    }

    /// Sends a packet along a route, injection and ejection included.
    pub fn send_along(&mut self, now: Picoseconds, route: &[Channel], length: Bytes) -> Transit {
        let wire = length.time_at(self.mb_per_s);
        let mut starts = Vec::with_capacity(route.len());
        let mut head = now;
        for channel in route {
            let start = head.max(self.links[channel.link.index()].free_at());
            starts.push(start);
            head = start + self.hop;
        }
        let tail = head + wire;
        // From the far end backwards: a link is free when the tail has passed it.
        let mut passed = tail;
        for (channel, &start) in route.iter().zip(&starts).rev() {
            passed = passed - self.hop;
            self.links[channel.link.index()].hold(start, passed);
        }
        Transit { begins: starts.first().copied().unwrap_or(now), leaves: passed, head, tail }
    }

    /// Sends a packet down a tree of links, in the order of a walk ([`UpDown::tree_route`](treecast_fabric::UpDown)):
    /// switches copy it, and store a copy whose link is taken, so no branch holds up another. When each host gets it.
    pub fn send_tree(
        &mut self,
        now: Picoseconds,
        route: &[Channel],
        length: Bytes,
    ) -> Vec<(HostId, Transit)> {
        let topology = self.fabric.topology();
        let wire = length.time_at(self.mb_per_s);
        // When the head is at each end. A switch passed on the way up is come to again from above by the copy that goes on.
        let mut heads: BTreeMap<Vertex, Picoseconds> = BTreeMap::new();
        let mut transits = Vec::new();
        for channel in route {
            let Link { from, to, .. } = topology.link(channel.link);
            let server = &mut self.links[channel.link.index()];
            let start = heads.get(&from).copied().unwrap_or(now).max(server.free_at());
            server.hold(start, start + wire);
            let head = start + self.hop;
            heads.insert(to, head);
            if let Some(host) = to.host() {
                transits.push((host, Transit { begins: now, leaves: now + wire, head, tail: head + wire }));
            }
        }
        transits
    }

    /// How long a link has been taken.
    pub fn busy(&self, link: LinkId) -> Picoseconds {
        self.links[link.index()].busy()
    }

    /// Its fabric.
    pub fn fabric(&self) -> &'a Fabric {
        self.fabric
    }
}

#[cfg(test)]
mod tests {
    use treecast_fabric::Overlap;

    use super::*;

    const HOP: Picoseconds = Picoseconds(500);

    /// 1,000 bytes at 1,000 MB/s take 1,000,000 ps.
    const WIRE: Picoseconds = Picoseconds(1_000_000);

    fn sent(fabric: &str, packets: &[(u64, u32, u32)]) -> Vec<Transit> {
        let fabric = Fabric::from_spec(&fabric.parse().unwrap()).unwrap();
        let mut network = Network::new(&fabric, 1_000, HOP);
        let send = |&(now, from, to): &(u64, u32, u32)| {
            network.send(Picoseconds(now), HostId(from), HostId(to), Bytes(1_000))
        };
        packets.iter().map(send).collect()
    }

    #[test]
    fn a_packet_that_meets_nobody_takes_its_wire_time_and_a_hop_a_link() {
        let [transit] = sent("star:3", &[(100, 0, 1)])[..] else { unreachable!() };
        assert_eq!(transit.begins, Picoseconds(100));
        assert_eq!(transit.leaves, Picoseconds(100) + WIRE);
        assert_eq!(transit.head, Picoseconds(100) + HOP + HOP);
        assert_eq!(transit.tail, transit.head + WIRE);
    }

    #[test]
    fn a_copy_down_a_tree_reaches_each_host_as_a_packet_by_itself_would() {
        let fabric = Fabric::from_spec(&"fat-tree:k=4".parse().unwrap()).unwrap();
        let hosts = [1, 3, 9].map(HostId);
        let routing = fabric.routing().up_down().unwrap();
        let route = routing.tree_route(fabric.topology(), HostId(0), &hosts, Overlap::default()).unwrap();
        let mut network = Network::new(&fabric, 1_000, HOP);
        let mut tails: Vec<_> = network
            .send_tree(Picoseconds(5), &route, Bytes(1_000))
            .into_iter()
            .map(|(host, transit)| (host, transit.tail))
            .collect();
        tails.sort_unstable();
        // All copies come down from the core: 6, 6 and 6 links; the second packet follows the first.
        let over = |links: u64| Picoseconds(5) + Picoseconds(links * HOP.0) + WIRE;
        assert_eq!(tails, hosts.map(|host| (host, over(6))));
        let again = network.send_tree(Picoseconds(5), &route, Bytes(1_000));
        assert!(again.iter().all(|(_, transit)| transit.tail == over(6) + WIRE));
    }

    #[test]
    fn what_waits_for_a_link_holds_the_links_behind_it() {
        // Host 1 waits for the link to host 2, and keeps its own link, which its packet to host 3 needs.
        let transits = sent("star:4", &[(0, 0, 2), (0, 1, 2), (0, 1, 3)]);
        assert_eq!(transits[1].tail, transits[0].tail + WIRE);
        assert_eq!(transits[1].leaves, transits[0].leaves + WIRE);
        assert_eq!(transits[2].begins, transits[1].leaves);
    }
}
