//! The way of a packet from node to node: bus, network interface, network, network interface, bus.

use rand::RngExt;
use treecast_fabric::HostId;
use treecast_plan::MemberId;
use treecast_terms::Picoseconds;

use super::packet::{Content, Flight};
use super::simulation::{Event, Simulation};

impl Simulation<'_> {
    /// A process has handed a packet to its network interface, which fetches it.
    pub(super) fn hand_over(&mut self, flight: Flight) {
        let time = flight.length.time_at(self.parameters.bus_mb_per_s);
        let fetched = self.interfaces[flight.from.index()].bus.serve(self.events.now(), time);
        self.events.schedule(fetched, Event::Fetched(flight));
    }

    /// The sending interface has the packet.
    pub(super) fn fetched(&mut self, flight: Flight) {
        let sender = &mut self.interfaces[flight.from.index()].send;
        let sent = sender.serve(self.events.now(), self.parameters.nic_gap) + self.parameters.nic_send;
        self.events.schedule(sent, Event::Sent(flight));
    }

    /// It goes into the network; a packet to the group also comes back to the processes of its own node.
    pub(super) fn sent(&mut self, flight: Flight) {
        let now = self.events.now();
        let length = flight.length + self.parameters.header;
        let to = match flight.content {
            Content::Acknowledgment { .. } => self.root_host,
            Content::Message { to, .. } | Content::Datagram { only: Some(to), .. } => {
                self.placement.host_of(to)
            }
            Content::Datagram { only: None, .. } => {
                let transits = self.network.send_tree(now, &self.routes.multicast, length);
                for (host, transit) in transits {
                    self.events.schedule(transit.tail, Event::Arrived(host, flight));
                }
                return self.deliver(flight.from, flight);
            }
        };
        if to == flight.from {
            return self.events.schedule(now, Event::Arrived(to, flight));
        }
        let finder = &mut self.finder;
        let route =
            self.routes.unicast.entry((flight.from, to)).or_insert_with(|| finder.route(flight.from, to));
        let transit = self.network.send_along(now, route, length);
        self.events.schedule(transit.tail, Event::Arrived(to, flight));
    }

    /// It is at a node: datagrams may be lost there, or come late.
    pub(super) fn arrived(&mut self, host: HostId, flight: Flight) {
        let mut late = Picoseconds::ZERO;
        if matches!(flight.content, Content::Datagram { .. }) {
            if self.parameters.loss > 0.0 && self.random.random_bool(self.parameters.loss) {
                self.figures.lost += 1;
                return;
            }
            if self.parameters.reorder > 0.0 && self.random.random_bool(self.parameters.reorder) {
                late = self.parameters.reorder_delay;
            }
        }
        self.events.schedule_after(late, Event::Accepted(host, flight));
    }

    /// The receiving interface takes it.
    pub(super) fn accepted(&mut self, host: HostId, flight: Flight) {
        let receiver = &mut self.interfaces[host.index()].receive;
        let received =
            receiver.serve(self.events.now(), self.parameters.nic_gap) + self.parameters.nic_receive;
        self.events.schedule(received, Event::Received(host, flight));
    }

    /// It looks up who is to have the packet, and moves it to each in turn.
    pub(super) fn deliver(&mut self, host: HostId, flight: Flight) {
        let targets = match flight.content {
            Content::Datagram { only: None, .. } => self.attached(host),
            Content::Message { to, .. } | Content::Datagram { only: Some(to), .. } => vec![to],
            Content::Acknowledgment { .. } => vec![self.root],
        };
        self.look_up(host, flight, targets);
    }

    fn look_up(&mut self, host: HostId, flight: Flight, targets: Vec<MemberId>) {
        if targets.is_empty() {
            return;
        }
        let now = self.events.now();
        let is_datagram = matches!(flight.content, Content::Datagram { .. });
        let found = if is_datagram {
            self.interfaces[host.index()].deliver.serve(now, self.parameters.nic_deliver)
        } else {
            now
        };
        self.events.schedule(found, Event::Found(host, flight, targets));
    }

    /// The first of those that are to have it is known: the data go over the bus.
    pub(super) fn found(&mut self, host: HostId, flight: Flight, targets: Vec<MemberId>) {
        let time = flight.length.time_at(self.parameters.bus_mb_per_s);
        let moved = self.interfaces[host.index()].bus.serve(self.events.now(), time);
        self.events.schedule(moved, Event::Moved(host, flight, targets));
    }

    /// The first of them has it; the next is looked up.
    pub(super) fn moved(&mut self, host: HostId, flight: Flight, mut targets: Vec<MemberId>) {
        let target = targets.remove(0);
        match flight.content {
            Content::Message { from, to, piece, is_last } => {
                if is_last {
                    self.came(from, to, piece);
                }
            }
            Content::Datagram { part, .. } => self.land(target, part),
            Content::Acknowledgment { broadcast, from } => self.acknowledged(broadcast, from),
        }
        self.look_up(host, flight, targets);
    }
}
