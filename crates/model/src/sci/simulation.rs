//! The state of a multicast over ringlets, and its event loop.

use treecast_fabric::{Fabric, Grid, LinkId, RouteFinder};
use treecast_plan::{Analysis, MemberId, Plan, Sends};
use treecast_sim::Status;
use treecast_terms::{Bytes, Picoseconds};

use super::links::{Links, PacketId};
use super::parameters::Parameters;
use super::path::{Leg, Ringlets};
use super::process::{Pieces, Process};
use crate::kernel::{EventQueue, LAST, Server};
use crate::task::Outcome;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Request,
    Response,
    Echo,
}

/// A packet on one ringlet.
#[derive(Debug, Clone, Copy)]
struct Packet {
    kind: Kind,
    message: u32,
    piece: u32,
    /// The leg of its message's path, or of the path back.
    leg: u32,
    /// The link that it is on or requests.
    link: LinkId,
    /// The number of links left on this ringlet, including that one.
    left: u32,
    /// The number of receivers left.
    receivers: u32,
    /// Its length, and the time that it takes a link: set by [`Simulation::measured`].
    length: Bytes,
    wire: Picoseconds,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A member's CPU has done its work.
    Worked(MemberId),
    /// A packet requests its link, from the bypass or for the first time.
    Request { packet: PacketId, passing: bool },
    /// A packet's head is at the end of its link.
    Head(PacketId),
    /// The last byte of a packet is where it leaves its ringlet.
    Tail(PacketId),
    /// A link with waiting packets is free.
    Free(LinkId),
    /// A piece for a message's receiver has passed its adapter.
    Taken { message: u32, piece: u32, receiver: u32 },
    /// The piece is in memory.
    Stored { message: u32, piece: u32, receiver: u32 },
    /// A member has seen the whole message.
    Seen(MemberId),
}

/// A message in flight: a worm of the plan.
#[derive(Debug)]
struct Message {
    path: Vec<Leg>,
    back: Vec<Leg>,
}

/// The state of a run.
pub(super) struct Simulation<'a> {
    plan: &'a Plan,
    parameters: &'a Parameters,
    pieces: Pieces,
    ringlets: Ringlets<'a>,
    finder: RouteFinder<'a>,
    events: EventQueue<Event>,
    links: Links,
    sends: Sends,
    processes: Vec<Process>,
    buses: Vec<Server>,
    messages: Vec<Option<Message>>,
    packets: Vec<Packet>,
    unused: Vec<PacketId>,
    /// The number of pieces that each member has in memory.
    stored: Vec<u32>,
    destinations_left: usize,
    finished: Option<Picoseconds>,
    /// The bytes carried by all links, echoes and responses included.
    carried: Bytes,
    visits: u64,
    visited: Vec<bool>,
    in_transit: u32,
    in_transit_max: u32,
}

impl<'a> Simulation<'a> {
    pub fn new(
        fabric: &'a Fabric,
        grid: &Grid,
        plan: &'a Plan,
        parameters: &'a Parameters,
        pieces: Pieces,
    ) -> Self {
        let topology = fabric.topology();
        let hosts = topology.host_count() as usize;
        let sends = plan.sends();
        let processes = (0..hosts as u32).map(|host| Process::new(sends.of(MemberId(host)).len() as u32));
        Self {
            plan,
            parameters,
            pieces,
            ringlets: Ringlets::new(fabric, grid),
            finder: RouteFinder::new(topology, fabric.routing()),
            events: EventQueue::default(),
            links: Links::new(topology.link_count()),
            processes: processes.collect(),
            sends,
            buses: vec![Server::default(); hosts],
            messages: plan.worms().iter().map(|_| None).collect(),
            packets: Vec::new(),
            unused: Vec::new(),
            stored: vec![0; hosts],
            destinations_left: plan.destination_count(),
            finished: None,
            carried: Bytes::ZERO,
            visits: 0,
            visited: vec![false; topology.link_count() as usize],
            in_transit: 0,
            in_transit_max: 0,
        }
    }

    /// Runs until no event is left, and every transaction has its response.
    pub fn run(&mut self) {
        self.begin(self.plan.root());
        while self.events.now() < LAST {
            let Some(event) = self.events.advance() else { break };
            match event {
                Event::Worked(member) => self.worked(member),
                Event::Request { packet, passing } => self.request(packet, passing),
                Event::Head(packet) => self.head(packet),
                Event::Tail(packet) => self.tail(packet),
                Event::Free(link) => {
                    self.links.unwatch(link);
                    self.start(link);
                }
                Event::Taken { message, piece, receiver } => {
                    let node = self.receiver(message, receiver).index();
                    let time = self.pieces.length(piece).time_at(self.parameters.bus_mb_per_s);
                    let stored = self.buses[node].serve(self.events.now(), time);
                    self.events.schedule(stored, Event::Stored { message, piece, receiver });
                }
                Event::Stored { message, piece, receiver } => self.stored(message, piece, receiver),
                Event::Seen(member) => self.seen(member),
            }
        }
    }

    fn worm(&self, message: u32) -> &'a treecast_plan::Worm {
        &self.plan.worms()[message as usize]
    }

    fn receiver(&self, message: u32, receiver: u32) -> MemberId {
        self.worm(message).to[receiver as usize]
    }

    fn begin(&mut self, member: MemberId) {
        let work = self.processes[member.index()].begin(self.events.now(), self.parameters);
        self.work(member, work);
    }

    fn work(&mut self, member: MemberId, work: Option<Picoseconds>) {
        if let Some(work) = work {
            self.events.schedule_after(work, Event::Worked(member));
        }
    }

    /// A CPU has done its work: what it has written goes over the bus to the adapter.
    fn worked(&mut self, member: MemberId) {
        let now = self.events.now();
        let (written, work) = self.processes[member.index()].done(now, self.pieces, self.parameters);
        if let Some((index, piece)) = written {
            let message = self.sends.of(member)[index as usize];
            let time = self.pieces.length(piece).time_at(self.parameters.bus_mb_per_s);
            let sent = self.buses[member.index()].serve(now, time) + self.parameters.adapter_send;
            let receivers = self.worm(message).to.len() as u32;
            let packet = self.packet(Kind::Request, message, piece, 0, receivers);
            self.events.schedule(sent, Event::Request { packet, passing: false });
        }
        self.work(member, work);
    }

    /// A packet at the beginning of a leg.
    fn packet(&mut self, kind: Kind, message: u32, piece: u32, leg: u32, receivers: u32) -> PacketId {
        let Leg { first, links, .. } = *self.leg(kind, message, leg);
        let (length, wire) = (Bytes::ZERO, Picoseconds::ZERO);
        let packet = Packet { kind, message, piece, leg, link: first, left: links, receivers, length, wire };
        let packet = self.measured(packet);
        self.keep(packet)
    }

    fn keep(&mut self, packet: Packet) -> PacketId {
        if let Some(id) = self.unused.pop() {
            self.packets[id as usize] = packet;
            return id;
        }
        self.packets.push(packet);
        self.packets.len() as PacketId - 1
    }

    fn message(&mut self, message: u32) -> &Message {
        let index = message as usize;
        if self.messages[index].is_none() {
            let worm = self.worm(message);
            let host_of = |member| self.plan.placement().host_of(member);
            let (from, last) = (host_of(worm.from), host_of(worm.to[worm.to.len() - 1]));
            let path = self.ringlets.legs(worm.route.iter().map(|channel| channel.link));
            let back = self.finder.route(last, from);
            let back = self.ringlets.legs(back.into_iter().map(|channel| channel.link));
            self.messages[index] = Some(Message { path, back });
        }
        self.messages[index].as_ref().expect("it was made above")
    }

    fn legs(&mut self, kind: Kind, message: u32) -> &[Leg] {
        let message = self.message(message);
        if kind == Kind::Response { &message.back } else { &message.path }
    }

    fn leg(&mut self, kind: Kind, message: u32, leg: u32) -> &Leg {
        &self.legs(kind, message)[leg as usize]
    }

    fn request(&mut self, packet: PacketId, passing: bool) {
        let link = self.packets[packet as usize].link;
        self.links.request(link, packet, passing);
        self.start(link);
    }

    /// Starts the next packet on a link, if the link is free.
    fn start(&mut self, link: LinkId) {
        let now = self.events.now();
        if let Some(id) = self.links.grant(link, now) {
            let Packet { length, wire, .. } = self.packets[id as usize];
            self.carried += length;
            self.links.hold(link, now + wire);
            self.events.schedule_after(self.parameters.hop, Event::Head(id));
            self.count(id);
        }
        if let Some(time) = self.links.watch(link) {
            self.events.schedule(time, Event::Free(link));
        }
    }

    /// Counts link visits and messages in transit, by the first packet of each message.
    fn count(&mut self, id: PacketId) {
        let packet = self.packets[id as usize];
        if packet.kind != Kind::Request || packet.piece > 0 {
            return;
        }
        self.visits += 1;
        self.visited[packet.link.index()] = true;
        if packet.leg == 0 && packet.left == self.leg(Kind::Request, packet.message, 0).links {
            self.in_transit += 1;
            self.in_transit_max = self.in_transit_max.max(self.in_transit);
        }
    }

    /// The packet with its length, and the time that it takes a link.
    fn measured(&self, packet: Packet) -> Packet {
        let length = match packet.kind {
            Kind::Echo => self.parameters.echo,
            Kind::Response => self.parameters.response,
            Kind::Request => {
                let further = u64::from(packet.receivers.saturating_sub(1));
                let addresses = Bytes(self.parameters.address.0 * further);
                self.parameters.header + addresses + self.pieces.length(packet.piece)
            }
        };
        Packet { length, wire: length.time_at(self.parameters.link_mb_per_s), ..packet }
    }

    /// A head is at the end of a link: a copy may be dropped; it goes on, or its tail is awaited.
    fn head(&mut self, id: PacketId) {
        let packet = &mut self.packets[id as usize];
        packet.left -= 1;
        let Packet { kind, message, piece, leg, left, receivers, wire, .. } = *packet;
        if left == 0 {
            return self.events.schedule_after(wire, Event::Tail(id));
        }
        let next = self.ringlets.next(self.packets[id as usize].link);
        self.packets[id as usize].link = next;
        if kind == Kind::Request && receivers > 1 {
            let leg = self.leg(kind, message, leg);
            if leg.drops.contains(&(leg.links - left)) {
                self.drop_copy(id, wire, message, piece);
                // After the dropped address, the next flits are the head.
                let dropped = self.parameters.address.time_at(self.parameters.link_mb_per_s);
                return self.events.schedule_after(dropped, Event::Request { packet: id, passing: true });
            }
        }
        self.request(id, true);
    }

    /// A copy goes to the next receiver's adapter after its tail has arrived, this much later.
    fn drop_copy(&mut self, id: PacketId, tail: Picoseconds, message: u32, piece: u32) {
        let packet = &mut self.packets[id as usize];
        let receiver = self.plan.worms()[message as usize].to.len() as u32 - packet.receivers;
        packet.receivers -= 1;
        let packet = *packet;
        self.packets[id as usize] = self.measured(packet);
        let taken = tail + self.parameters.adapter_receive;
        self.events.schedule_after(taken, Event::Taken { message, piece, receiver });
    }

    /// A packet leaves its ringlet: an echo takes its place, and it goes on, or has arrived.
    fn tail(&mut self, id: PacketId) {
        let Packet { kind, message, piece, leg, link, receivers, .. } = self.packets[id as usize];
        if kind == Kind::Echo {
            return self.unused.push(id);
        }
        let left = self.ringlets.size - self.leg(kind, message, leg).links;
        let next = self.ringlets.next(link);
        let echo = Packet { kind: Kind::Echo, link: next, left, ..self.packets[id as usize] };
        let echo = self.measured(echo);
        let echo = self.keep(echo);
        self.request(echo, true);
        if leg as usize + 1 < self.legs(kind, message).len() {
            let here = self.leg(kind, message, leg);
            if here.drops.contains(&here.links) {
                self.drop_copy(id, Picoseconds::ZERO, message, piece);
            }
            let receivers = self.packets[id as usize].receivers;
            self.unused.push(id);
            let onward = self.packet(kind, message, piece, leg + 1, receivers);
            return self
                .events
                .schedule_after(self.parameters.corner, Event::Request { packet: onward, passing: false });
        }
        debug_assert!(kind == Kind::Response || receivers == 1, "one receiver is left");
        if kind == Kind::Request {
            self.in_transit -= u32::from(piece + 1 == self.pieces.count());
            self.drop_copy(id, Picoseconds::ZERO, message, piece);
        } else {
            let sender = self.worm(message).from;
            let work = self.processes[sender.index()].response_received(self.pieces, self.parameters);
            self.work(sender, work);
        }
        self.unused.push(id);
    }

    /// A piece is in memory: the last receiver sends the response; after the flag the message is
    /// complete.
    fn stored(&mut self, message: u32, piece: u32, receiver: u32) {
        let to = self.receiver(message, receiver);
        self.stored[to.index()] += 1;
        if receiver as usize + 1 == self.worm(message).to.len() {
            let response = self.packet(Kind::Response, message, piece, 0, 1);
            self.request(response, false);
        }
        if piece + 1 == self.pieces.count() {
            debug_assert_eq!(self.stored[to.index()], self.pieces.count(), "a flag comes last");
            self.events.schedule_after(self.parameters.poll, Event::Seen(to));
        }
    }

    fn seen(&mut self, member: MemberId) {
        self.destinations_left -= 1;
        if self.destinations_left == 0 {
            self.finished = Some(self.events.now());
        }
        self.begin(member);
    }

    /// The outcome.
    pub fn outcome(&self, analysis: &Analysis) -> Outcome {
        let visited = self.visited.iter().filter(|&&visited| visited).count();
        let busy = self.processes[self.plan.root().index()].busy();
        let share = |part: f64, whole: f64| if whole == 0.0 { 0.0 } else { part / whole };
        Outcome {
            status: if self.finished.is_some() { Status::Complete } else { Status::Incomplete },
            latency: self.finished,
            measured: vec![
                ("root_cpu_utilization", share(busy.us(), self.finished.map_or(0.0, Picoseconds::us))),
                ("link_concentration_run", share(self.visits as f64, visited as f64)),
                ("link_concentration_plan", analysis.link_concentration),
                ("link_concurrency_run", f64::from(self.in_transit_max)),
                ("link_concurrency_plan", f64::from(analysis.link_concurrency)),
                ("carried_bytes", self.carried.0 as f64),
            ],
            deadlock: Vec::new(),
        }
    }
}
