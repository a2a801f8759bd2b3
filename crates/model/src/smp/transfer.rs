//! The path of a packet from node to node: bus, network interface, network, network interface, bus.

use rand::RngExt;
use treecast_fabric::HostId;
use treecast_plan::MemberId;
use treecast_terms::Picoseconds;

use super::packet::{Content, Packet};
use super::simulation::{Event, Simulation};

impl Simulation<'_> {
    /// A process has handed a packet to its network interface, which fetches it.
    pub(super) fn post_packet(&mut self, packet: Packet) {
        let time = packet.length.time_at(self.parameters.bus_mb_per_s);
        let fetched = self.interfaces[packet.from.index()].bus.serve(self.events.now(), time);
        self.events.schedule(fetched, Event::Fetched(packet));
    }

    /// The sending interface has the packet.
    pub(super) fn fetched(&mut self, packet: Packet) {
        let sender = &mut self.interfaces[packet.from.index()].send;
        let sent = sender.serve(self.events.now(), self.parameters.nic_gap) + self.parameters.nic_send;
        self.events.schedule(sent, Event::Sent(packet));
    }

    /// The packet enters the network; a multicast packet is also delivered to the processes of the
    /// sender's node.
    pub(super) fn sent(&mut self, packet: Packet) {
        let now = self.events.now();
        let length = packet.length + self.parameters.header;
        let to = match packet.content {
            Content::Acknowledgment { .. } => self.root_host,
            Content::Message { to, .. } | Content::Datagram { only: Some(to), .. } => {
                self.placement.host_of(to)
            }
            Content::Datagram { only: None, .. } => {
                let transits = self.network.send_tree(now, &self.routes.multicast, length);
                for (host, transit) in transits {
                    self.events.schedule(transit.tail, Event::Arrived(host, packet));
                }
                return self.deliver(packet.from, packet);
            }
        };
        if to == packet.from {
            return self.events.schedule(now, Event::Arrived(to, packet));
        }
        let finder = &mut self.finder;
        let route =
            self.routes.unicast.entry((packet.from, to)).or_insert_with(|| finder.route(packet.from, to));
        let transit = self.network.send_along(now, route, length);
        self.events.schedule(transit.tail, Event::Arrived(to, packet));
    }

    /// The packet is at a node: datagrams may be lost there, or delayed.
    pub(super) fn arrived(&mut self, host: HostId, packet: Packet) {
        let mut late = Picoseconds::ZERO;
        if matches!(packet.content, Content::Datagram { .. }) {
            if self.parameters.loss > 0.0 && self.random.random_bool(self.parameters.loss) {
                self.figures.lost += 1;
                return;
            }
            if self.parameters.reorder > 0.0 && self.random.random_bool(self.parameters.reorder) {
                late = self.parameters.reorder_delay;
            }
        }
        self.events.schedule_after(late, Event::Accepted(host, packet));
    }

    /// The receiving interface accepts the packet.
    pub(super) fn accepted(&mut self, host: HostId, packet: Packet) {
        let receiver = &mut self.interfaces[host.index()].receive;
        let received =
            receiver.serve(self.events.now(), self.parameters.nic_gap) + self.parameters.nic_receive;
        self.events.schedule(received, Event::Received(host, packet));
    }

    /// The interface looks up the receivers of the packet, and transfers it to each in turn.
    pub(super) fn deliver(&mut self, host: HostId, packet: Packet) {
        let targets = match packet.content {
            Content::Datagram { only: None, .. } => self.attached(host),
            Content::Message { to, .. } | Content::Datagram { only: Some(to), .. } => vec![to],
            Content::Acknowledgment { .. } => vec![self.root],
        };
        self.look_up(host, packet, targets);
    }

    fn look_up(&mut self, host: HostId, packet: Packet, targets: Vec<MemberId>) {
        if targets.is_empty() {
            return;
        }
        let now = self.events.now();
        let is_datagram = matches!(packet.content, Content::Datagram { .. });
        let found = if is_datagram {
            self.interfaces[host.index()].deliver.serve(now, self.parameters.nic_deliver)
        } else {
            now
        };
        self.events.schedule(found, Event::Found(host, packet, targets));
    }

    /// The first receiver is known: the data go over the bus.
    pub(super) fn found(&mut self, host: HostId, packet: Packet, targets: Vec<MemberId>) {
        let time = packet.length.time_at(self.parameters.bus_mb_per_s);
        let moved = self.interfaces[host.index()].bus.serve(self.events.now(), time);
        self.events.schedule(moved, Event::Moved(host, packet, targets));
    }

    /// The first receiver has the packet; the next is looked up.
    pub(super) fn moved(&mut self, host: HostId, packet: Packet, mut targets: Vec<MemberId>) {
        let target = targets.remove(0);
        match packet.content {
            Content::Message { from, to, piece, is_last } => {
                if is_last {
                    self.piece_arrived(from, to, piece);
                }
            }
            Content::Datagram { packet_id, .. } => self.receive_datagram(target, packet_id),
            Content::Acknowledgment { broadcast, from } => self.acknowledged(broadcast, from),
        }
        self.look_up(host, packet, targets);
    }
}
