//! The links of a fabric with cut-through switches that store nothing.

use std::collections::BTreeMap;

use treecast_fabric::{Channel, Fabric, HostId, Link, LinkId, RouteFinder, Vertex};
use treecast_terms::{Bytes, Picoseconds};

use super::Server;

/// The times of a packet in transit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transit {
    /// When its first byte leaves the sender.
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
/// The head of a packet takes `hop` per link and waits where a link is busy; the packet holds its
/// links until its tail has passed them, so a blocked packet blocks those behind it. Packets must
/// be sent in the order of their times: an earlier packet gets its links first. On a star this is
/// exact. With several switches it is exact except for packets whose heads would overtake one
/// another in the network.
#[derive(Debug)]
pub struct Network<'a> {
    fabric: &'a Fabric,
    links: Vec<Server>,
    mb_per_s: u64,
    hop: Picoseconds,
}

impl<'a> Network<'a> {
    /// A network with links of `mb_per_s`, on which a head takes `hop` per link including its
    /// switch.
    pub fn new(fabric: &'a Fabric, mb_per_s: u64, hop: Picoseconds) -> Self {
        let links = vec![Server::default(); fabric.topology().link_count() as usize];
        Self { fabric, links, mb_per_s, hop }
    }

    /// Sends a packet on the route of the fabric; of several routes on the one over the lowest
    /// links.
    pub fn send(&mut self, now: Picoseconds, from: HostId, to: HostId, length: Bytes) -> Transit {
        let route = RouteFinder::new(self.fabric.topology(), self.fabric.routing()).route(from, to);
        self.send_along(now, &route, length)
    }

    /// Sends a packet along a route, injection and ejection included.
    pub fn send_along(&mut self, now: Picoseconds, route: &[Channel], length: Bytes) -> Transit {
        self.send_until(now, route, length, Picoseconds::ZERO)
    }

    /// Sends a packet along a route, injection and ejection included. Its last byte leaves the
    /// sender at `last` or later, and the packet holds its links until then.
    pub fn send_until(
        &mut self,
        now: Picoseconds,
        route: &[Channel],
        length: Bytes,
        last: Picoseconds,
    ) -> Transit {
        let wire = length.time_at(self.mb_per_s);
        let mut starts = Vec::with_capacity(route.len());
        let mut head = now;
        for channel in route {
            let start = head.max(self.links[channel.link.index()].free_at());
            starts.push(start);
            head = start + self.hop;
        }
        let hops = Picoseconds(self.hop.0 * route.len() as u64);
        let tail = (head + wire).max(last + hops);
        // From the last link backwards: a link is free when the tail has passed it.
        let mut passed = tail;
        for (channel, &start) in route.iter().zip(&starts).rev() {
            passed = passed - self.hop;
            self.links[channel.link.index()].hold(start, passed);
        }
        Transit { begins: starts.first().copied().unwrap_or(now), leaves: passed, head, tail }
    }

    /// Sends a packet down a tree of links, in the order of a walk
    /// ([`UpDown::tree_route`](treecast_fabric::UpDown)): switches copy it, and store a copy whose
    /// link is busy, so no branch blocks another. Returns when each host receives it.
    pub fn send_tree(
        &mut self,
        now: Picoseconds,
        route: &[Channel],
        length: Bytes,
    ) -> Vec<(HostId, Transit)> {
        let topology = self.fabric.topology();
        let wire = length.time_at(self.mb_per_s);
        // When the head is at each vertex. A copy reaches a switch of the upward path a second
        // time, from above.
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

    /// The total busy time of a link.
    pub fn busy(&self, link: LinkId) -> Picoseconds {
        self.links[link.index()].busy()
    }

    /// The fabric.
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
    fn without_contention_a_packet_takes_its_wire_time_and_one_hop_per_link() {
        let [transit] = sent("star:3", &[(100, 0, 1)])[..] else { unreachable!() };
        assert_eq!(transit.begins, Picoseconds(100));
        assert_eq!(transit.leaves, Picoseconds(100) + WIRE);
        assert_eq!(transit.head, Picoseconds(100) + HOP + HOP);
        assert_eq!(transit.tail, transit.head + WIRE);
    }

    #[test]
    fn a_copy_down_a_tree_reaches_each_host_when_a_single_packet_would() {
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
        // All copies come down from the core: 6, 6 and 6 links; the second packet follows the
        // first.
        let over = |links: u64| Picoseconds(5) + Picoseconds(links * HOP.0) + WIRE;
        assert_eq!(tails, hosts.map(|host| (host, over(6))));
        let again = network.send_tree(Picoseconds(5), &route, Bytes(1_000));
        assert!(again.iter().all(|(_, transit)| transit.tail == over(6) + WIRE));
    }

    #[test]
    fn a_packet_that_waits_for_a_link_holds_its_earlier_links() {
        // Host 1 waits for the link to host 2, and keeps its own link, which its packet to host 3
        // needs.
        let transits = sent("star:4", &[(0, 0, 2), (0, 1, 2), (0, 1, 3)]);
        assert_eq!(transits[1].tail, transits[0].tail + WIRE);
        assert_eq!(transits[1].leaves, transits[0].leaves + WIRE);
        assert_eq!(transits[2].begins, transits[1].leaves);
    }
}
