//! The state of a multicast over ringlets, and its event loop.

use treecast_fabric::{Grid, LinkId, RouteFinder};
use treecast_plan::{Analysis, MemberId, Plan, Sends};
use treecast_sim::Status;
use treecast_terms::{Bytes, Picoseconds};

use super::links::{Links, PacketId};
use super::parameters::Parameters;
use super::path::{Leg, Ringlets};
use super::process::Process;
use crate::kernel::{EventQueue, LAST, Server};
use crate::task::{Outcome, Task};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Request,
    Response,
    /// The answer to the request of a long message, and its response.
    Clear,
    ClearResponse,
    Echo,
}

/// A packet on one ringlet.
#[derive(Debug, Clone, Copy)]
struct Packet {
    kind: Kind,
    message: u32,
    part: u32,
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
pub(super) enum Event {
    /// A member's CPU has done its work.
    Worked(MemberId),
    /// A packet requests its link, from the bypass or for the first time.
    Request {
        packet: PacketId,
        passing: bool,
    },
    /// A packet's head is at the end of its link.
    Head(PacketId),
    /// The last byte of a packet is where it leaves its ringlet.
    Tail(PacketId),
    /// A link with waiting packets is free.
    Free(LinkId),
    /// A piece for a message's receiver has passed its adapter.
    Taken(Arrival),
    /// The piece is in memory.
    Stored(Arrival),
    /// A receiver has seen the end of a part.
    Noticed(Arrival),
    /// A receiver has written the clear of a message, and it is at its adapter.
    ClearWritten(u32),
    /// The clear is in memory; its sender has seen it.
    ClearStored(u32),
    ClearSeen(u32),
    /// A member has the whole message.
    Seen(MemberId),
}

/// A message in flight: a worm of the plan, or the notice.
#[derive(Debug)]
struct Message {
    path: Vec<Leg>,
    back: Vec<Leg>,
}

/// A piece for a receiver of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub message: u32,
    pub part: u32,
    pub piece: u32,
    pub receiver: u32,
}

/// From the end of a path to the root: it is not in the plan.
#[derive(Debug)]
pub(super) struct Notice {
    pub from: MemberId,
    pub to: [MemberId; 1],
    pub message: [u32; 1],
}

/// The state of a run.
pub(super) struct Simulation<'a> {
    pub plan: &'a Plan,
    pub parameters: &'a Parameters,
    /// The length of the message.
    pub length: Bytes,
    pub notice: Option<Notice>,
    ringlets: Ringlets<'a>,
    finder: RouteFinder<'a>,
    pub events: EventQueue<'a, Event>,
    links: Links,
    pub sends: Sends,
    pub processes: Vec<Process>,
    pub buses: Vec<Server>,
    messages: Vec<Option<Message>>,
    packets: Vec<Packet>,
    unused: Vec<PacketId>,
    /// The number of pieces that each member has in memory.
    stored: Vec<u32>,
    /// When each member has copied the blocks that it has seen.
    pub copied: Vec<Picoseconds>,
    destinations_left: usize,
    finished: Option<Picoseconds>,
    /// When the root knows that its call is complete.
    pub known: Option<Picoseconds>,
    /// The bytes carried by all links, echoes and responses included.
    carried: Bytes,
    visits: u64,
    visited: Vec<bool>,
    in_transit: u32,
    in_transit_max: u32,
}

impl<'a> Simulation<'a> {
    pub fn new(
        task: &Task<'a>,
        grid: &Grid,
        plan: &'a Plan,
        parameters: &'a Parameters,
        has_notice: bool,
    ) -> Self {
        let Task { fabric, message: length, stop, .. } = *task;
        let topology = fabric.topology();
        let hosts = topology.host_count() as usize;
        let sends = plan.sends();
        let notice = plan.worms().last().filter(|_| has_notice).map(|worm| Notice {
            from: worm.to[worm.to.len() - 1],
            to: [plan.root()],
            message: [plan.worms().len() as u32],
        });
        let count = |host| {
            let member = MemberId(host);
            sends.of(member).len() + usize::from(notice.as_ref().is_some_and(|notice| notice.from == member))
        };
        let processes = (0..hosts as u32).map(|host| Process::new(count(host) as u32)).collect();
        let messages = plan.worms().len() + usize::from(notice.is_some());
        Self {
            plan,
            parameters,
            length,
            notice,
            ringlets: Ringlets::new(fabric, grid),
            finder: RouteFinder::new(topology, fabric.routing()),
            events: EventQueue::stopped_by(stop),
            links: Links::new(topology.link_count()),
            processes,
            sends,
            buses: vec![Server::default(); hosts],
            messages: (0..messages).map(|_| None).collect(),
            packets: Vec::new(),
            unused: Vec::new(),
            stored: vec![0; hosts],
            copied: vec![Picoseconds::ZERO; hosts],
            destinations_left: plan.destination_count(),
            finished: None,
            known: None,
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
                Event::Taken(arrival) => {
                    let node = self.receivers(arrival.message)[arrival.receiver as usize].index();
                    let length = self.part(arrival.message, arrival.part).length(arrival.piece);
                    let time = length.time_at(self.parameters.bus_mb_per_s);
                    let stored = self.buses[node].serve(self.events.now(), time);
                    self.events.schedule(stored, Event::Stored(arrival));
                }
                Event::Stored(arrival) => self.stored(arrival),
                Event::Noticed(arrival) => self.noticed(arrival),
                Event::ClearWritten(message) => {
                    let packet = self.packet(Kind::Clear, [message, 0, 0], 0, 1);
                    self.request(packet, false);
                }
                Event::ClearStored(message) => {
                    let response = self.packet(Kind::ClearResponse, [message, 0, 0], 0, 1);
                    self.request(response, false);
                    self.events.schedule_after(self.parameters.poll, Event::ClearSeen(message));
                }
                Event::ClearSeen(message) => {
                    let (sender, part) = (self.sender(message), self.part(message, 1));
                    let work = self.processes[sender.index()].clear_received(part);
                    self.work(sender, work);
                }
                Event::Seen(member) => self.seen(member),
            }
        }
    }

    fn begin(&mut self, member: MemberId) {
        if self.processes[member.index()].begin(self.events.now()) {
            let work = self.current(member).work;
            self.work(member, Some(work));
        }
    }

    fn work(&mut self, member: MemberId, work: Option<Picoseconds>) {
        if let Some(work) = work {
            self.events.schedule_after(work, Event::Worked(member));
        }
    }

    /// A CPU has done its work: what it has written goes over the bus to the adapter.
    fn worked(&mut self, member: MemberId) {
        let now = self.events.now();
        let part = self.current(member);
        let (written, work) = self.processes[member.index()].done(part, self.parameters);
        let Some(written) = written else { return self.work(member, work) };
        let message = self.sends_of(member)[written.send as usize];
        let time = part.length(written.piece).time_at(self.parameters.bus_mb_per_s);
        let sent = self.buses[member.index()].serve(now, time) + self.parameters.adapter_send;
        let receivers = self.receivers(message).len() as u32;
        let packet = self.packet(Kind::Request, [message, written.part, written.piece], 0, receivers);
        self.events.schedule(sent, Event::Request { packet, passing: false });
        if written.piece + 1 < part.count() {
            return self.work(member, work);
        }
        if let Some(next) = self.next_part(message, written.part + 1) {
            let work = self.processes[member.index()].next_part(next);
            return self.work(member, work);
        }
        self.processes[member.index()].finish(now);
        self.begin(member);
    }

    /// A packet at the beginning of a leg.
    fn packet(&mut self, kind: Kind, [message, part, piece]: [u32; 3], leg: u32, receivers: u32) -> PacketId {
        let Leg { first, links, .. } = *self.leg(kind, message, leg);
        let (length, wire) = (Bytes::ZERO, Picoseconds::ZERO);
        let packet =
            Packet { kind, message, part, piece, leg, link: first, left: links, receivers, length, wire };
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
            let host_of = |member| self.plan.placement().host_of(member);
            let to = self.receivers(message);
            let (from, last) = (host_of(self.sender(message)), host_of(to[to.len() - 1]));
            let finder = &mut self.finder;
            let mut between =
                |from, to| finder.route(from, to).iter().map(|channel| channel.link).collect::<Vec<_>>();
            let path = match self.plan.worms().get(index) {
                Some(worm) => worm.route.iter().map(|channel| channel.link).collect(),
                None => between(from, last),
            };
            let back = between(last, from);
            let [path, back] = [path, back].map(|route| self.ringlets.legs(route));
            self.messages[index] = Some(Message { path, back });
        }
        self.messages[index].as_ref().expect("it was made above")
    }

    fn legs(&mut self, kind: Kind, message: u32) -> &[Leg] {
        let message = self.message(message);
        if matches!(kind, Kind::Response | Kind::Clear) { &message.back } else { &message.path }
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
        let is_first = packet.kind == Kind::Request && packet.part == 0 && packet.piece == 0;
        if !is_first || self.worm(packet.message).is_none() {
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
            Kind::Response | Kind::ClearResponse => self.parameters.response,
            Kind::Clear => self.parameters.header + self.parameters.envelope + self.parameters.flag,
            Kind::Request => {
                let further = u64::from(packet.receivers.saturating_sub(1));
                let addresses = Bytes(self.parameters.address.0 * further);
                let part = self.part(packet.message, packet.part);
                self.parameters.header + addresses + part.length(packet.piece)
            }
        };
        Packet { length, wire: length.time_at(self.parameters.link_mb_per_s), ..packet }
    }

    /// A head is at the end of a link: a copy may be dropped; it goes on, or its tail is awaited.
    fn head(&mut self, id: PacketId) {
        let packet = &mut self.packets[id as usize];
        packet.left -= 1;
        let Packet { kind, message, leg, left, receivers, wire, .. } = *packet;
        if left == 0 {
            return self.events.schedule_after(wire, Event::Tail(id));
        }
        let next = self.ringlets.next(self.packets[id as usize].link);
        self.packets[id as usize].link = next;
        if kind == Kind::Request && receivers > 1 {
            let leg = self.leg(kind, message, leg);
            if leg.drops.contains(&(leg.links - left)) {
                self.drop_copy(id, wire);
                // After the dropped address, the next flits are the head.
                let dropped = self.parameters.address.time_at(self.parameters.link_mb_per_s);
                return self.events.schedule_after(dropped, Event::Request { packet: id, passing: true });
            }
        }
        self.request(id, true);
    }

    /// A copy goes to the next receiver's adapter after its tail has arrived, this much later.
    fn drop_copy(&mut self, id: PacketId, tail: Picoseconds) {
        let Packet { message, part, piece, receivers, .. } = self.packets[id as usize];
        let receiver = self.receivers(message).len() as u32 - receivers;
        self.packets[id as usize].receivers -= 1;
        self.packets[id as usize] = self.measured(self.packets[id as usize]);
        let taken = tail + self.parameters.adapter_receive;
        self.events.schedule_after(taken, Event::Taken(Arrival { message, part, piece, receiver }));
    }

    /// A packet leaves its ringlet: an echo takes its place, and it goes on, or has arrived.
    fn tail(&mut self, id: PacketId) {
        let Packet { kind, message, part, piece, leg, link, receivers, .. } = self.packets[id as usize];
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
                self.drop_copy(id, Picoseconds::ZERO);
            }
            let receivers = self.packets[id as usize].receivers;
            self.unused.push(id);
            let onward = self.packet(kind, [message, part, piece], leg + 1, receivers);
            return self
                .events
                .schedule_after(self.parameters.corner, Event::Request { packet: onward, passing: false });
        }
        match kind {
            Kind::Request => {
                debug_assert!(receivers == 1, "one receiver is left");
                let is_last = piece + 1 == self.part(message, part).count()
                    && self.next_part(message, part + 1).is_none();
                self.in_transit -= u32::from(is_last && self.worm(message).is_some());
                self.drop_copy(id, Picoseconds::ZERO);
            }
            Kind::Response => self.response_received(self.sender(message)),
            Kind::Clear => {
                let node = self.sender(message).index();
                let length = self.parameters.envelope + self.parameters.flag;
                let taken = self.events.now() + self.parameters.adapter_receive;
                let stored = self.buses[node].serve(taken, length.time_at(self.parameters.bus_mb_per_s));
                self.events.schedule(stored, Event::ClearStored(message));
            }
            Kind::ClearResponse | Kind::Echo => {}
        }
        self.unused.push(id);
    }

    fn response_received(&mut self, sender: MemberId) {
        if self.processes[sender.index()].response_received() {
            let part = self.current(sender);
            let work = self.processes[sender.index()].resume(part, self.parameters);
            self.work(sender, work);
        }
        // On a path the root waits for the notice instead.
        let is_done = sender == self.plan.root() && self.processes[sender.index()].is_done();
        if is_done && self.notice.is_none() {
            self.known = Some(self.events.now());
        }
    }

    /// A piece is in memory: the last receiver sends the response, and polling shows the end of a
    /// part.
    fn stored(&mut self, arrival: Arrival) {
        let Arrival { message, part, piece, receiver } = arrival;
        let to = self.receivers(message)[receiver as usize];
        self.stored[to.index()] += 1;
        if receiver as usize + 1 == self.receivers(message).len() {
            let response = self.packet(Kind::Response, [message, part, piece], 0, 1);
            self.request(response, false);
        }
        let count = self.part(message, part).count();
        if piece + 1 == count {
            debug_assert_eq!(self.stored[to.index()], count, "an end comes last");
            self.stored[to.index()] = 0;
            self.events.schedule_after(self.parameters.poll, Event::Noticed(arrival));
        }
    }

    pub fn seen(&mut self, member: MemberId) {
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
        let fraction = |part: f64, whole: f64| if whole == 0.0 { 0.0 } else { part / whole };
        let user = self.known.map_or(0.0, Picoseconds::us);
        let period = user.max(self.finished.map_or(0.0, Picoseconds::us));
        Outcome {
            status: if self.finished.is_some() { Status::Complete } else { Status::Incomplete },
            latency: self.finished,
            measured: vec![
                ("root_cpu_utilization", fraction(busy.us(), self.finished.map_or(0.0, Picoseconds::us))),
                ("root_user_us", user),
                ("root_user_fraction", fraction(user, period)),
                ("link_concentration_run", fraction(self.visits as f64, visited as f64)),
                ("link_concentration_plan", analysis.link_concentration),
                ("link_concurrency_run", f64::from(self.in_transit_max)),
                ("link_concurrency_plan", f64::from(analysis.link_concurrency)),
                ("carried_bytes", self.carried.0 as f64),
            ],
            deadlock: Vec::new(),
        }
    }
}
