//! The network: flits in the input buffers of switches and on links.

use std::collections::VecDeque;

use rand_pcg::Pcg64;
use treecast_fabric::{Channel, HostId, LinkId, SwitchId, Topology, Vertex};
use treecast_terms::{Cycles, Flits};

use super::{Multicasts, PacketId};
use crate::observer::{Observer, Slice, Track, Work};
use crate::parameters::Switching;
use crate::path::{Branch, Progress, Router, random_stream};
use crate::setting::Setting;

/// A packet on one link. Beyond the next switch it may be shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet {
    pub id: PacketId,
    pub progress: Progress,
    /// In flits, with its header.
    pub length: u64,
}

/// A flit of a packet. `place` counts from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flit {
    pub packet: Packet,
    pub place: u64,
}

impl Flit {
    pub fn is_last(&self) -> bool {
        self.place + 1 == self.packet.length
    }
}

/// A copy that a switch makes of the packet at the head of a buffer.
#[derive(Debug, Clone)]
pub(super) struct Copy {
    pub branch: Branch,
    /// The output that it holds, and the cycle of the grant.
    pub output: Option<(Channel, Cycles)>,
    /// The number of flits sent.
    pub sent: u64,
}

/// The packet at the head of a buffer.
#[derive(Debug)]
pub(super) struct Head {
    pub packet: Packet,
    /// When route computation ends; `None` before its header has arrived.
    pub decided: Option<Cycles>,
    /// When it was routed, and its copies requested outputs.
    pub routed: Option<Cycles>,
    /// Header flits that the switch strips off.
    pub stripped: u64,
    /// Its copies, once it is routed.
    pub copies: Vec<Copy>,
    /// The number of its flits that have left the buffer.
    pub left: u64,
}

impl Head {
    /// The length of its copies.
    pub fn length_onward(&self) -> u64 {
        self.packet.length - self.stripped
    }

    /// Whether every copy has an output.
    pub fn is_granted(&self) -> bool {
        !self.copies.is_empty() && self.copies.iter().all(|copy| copy.output.is_some())
    }

    /// The number of flits that every copy has sent.
    pub fn sent_by_all(&self) -> u64 {
        self.copies.iter().map(|copy| copy.sent).min().unwrap_or(0)
    }
}

/// The input buffer of a virtual channel.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// First in, first out.
    pub flits: VecDeque<Flit>,
    pub head: Option<Head>,
    /// Room that is taken: flits that are buffered or in transit, flits that have left in this
    /// cycle, and with virtual cut-through the further flits of a packet that was granted this
    /// channel.
    pub taken: u64,
    /// The number of flits that have left in this cycle.
    pub leaving: u64,
}

/// The sender on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// The network interface.
    Interface,
    /// A copy of the packet at the head of a buffer.
    Copy { buffer: usize, copy: usize },
}

/// The flits in transit on a link.
#[derive(Debug)]
pub(super) struct LinkPipeline {
    /// From the departure of a flit to its arrival at the end of the link.
    delay: Cycles,
    /// Flits in transit, each with the cycle of its arrival and its virtual channel.
    in_transit: VecDeque<(Cycles, u8, Flit)>,
}

/// A packet that a network interface is injecting.
#[derive(Debug)]
struct Injection {
    packet: Packet,
    channel: Channel,
    since: Cycles,
    sent: u64,
    has_sent_now: bool,
}

/// All links and all switches.
pub(super) struct Network<'a> {
    pub setting: &'a Setting<'a>,
    pub topology: &'a Topology,
    pub router: Router<'a>,
    channels: usize,
    pub pipelines: Vec<LinkPipeline>,
    /// By channel. Those of ejection channels stay empty.
    pub buffers: Vec<Buffer>,
    /// The holder of each channel.
    pub senders: Vec<Option<Sender>>,
    /// When each channel sent its last flit.
    pub last_sent: Vec<Option<Cycles>>,
    injections: Vec<Option<Injection>>,
    /// The input buffers of each switch, by link and virtual channel.
    pub inputs: Vec<Vec<usize>>,
    /// The random choices of each switch.
    pub random: Vec<Pcg64>,
    /// The input buffer that each output served last, for `arbitration=round-robin`.
    pub last_served: Vec<Option<usize>>,
}

impl<'a> Network<'a> {
    pub fn new(setting: &'a Setting) -> Self {
        let topology = setting.fabric.topology();
        let channels = usize::from(setting.fabric.routing().virtual_channel_count());
        let count = topology.link_count() as usize * channels;
        let pipeline =
            |link| LinkPipeline { delay: delay(setting, topology, link), in_transit: VecDeque::new() };
        let inputs = |switch| {
            let mut links: Vec<LinkId> = topology.links_into(switch).to_vec();
            links.sort_unstable();
            let buffers = links.iter().map(|link| link.index() * channels);
            buffers.flat_map(|first| first..first + channels).collect()
        };
        Self {
            setting,
            topology,
            router: Router::new(setting.fabric, setting.parameters),
            channels,
            pipelines: topology.links().map(pipeline).collect(),
            buffers: (0..count).map(|_| Buffer::default()).collect(),
            senders: vec![None; count],
            last_sent: vec![None; count],
            injections: topology.hosts().map(|_| None).collect(),
            inputs: topology.switches().map(inputs).collect(),
            random: topology.switches().map(|switch| random_stream(setting.seed, switch)).collect(),
            last_served: vec![None; count],
        }
    }

    pub fn index(&self, channel: Channel) -> usize {
        channel.link.index() * self.channels + usize::from(channel.virtual_channel)
    }

    pub fn channel(&self, buffer: usize) -> Channel {
        let link = LinkId((buffer / self.channels) as u32);
        Channel { link, virtual_channel: (buffer % self.channels) as u8 }
    }

    /// The senders on the channels of a link.
    pub fn senders_on(&self, link: LinkId) -> impl Iterator<Item = Sender> + '_ {
        let first = link.index() * self.channels;
        self.senders[first..first + self.channels].iter().flatten().copied()
    }

    pub fn is_wormhole(&self) -> bool {
        self.setting.parameters.switching == Switching::Wormhole
    }

    /// The room in the input buffer at the end of a channel. A network interface accepts every
    /// packet.
    pub fn room(&self, channel: Channel) -> u64 {
        match self.topology.link(channel.link).to {
            Vertex::Host(_) => u64::MAX,
            Vertex::Switch(_) => {
                self.setting.parameters.buffer_flits.0 - self.buffers[self.index(channel)].taken
            }
        }
    }

    /// The number of flits in transit to a buffer.
    pub fn in_transit_on(&self, buffer: usize) -> u64 {
        let Channel { link, virtual_channel } = self.channel(buffer);
        let in_transit = self.pipelines[link.index()].in_transit.iter();
        in_transit.filter(|&&(_, on, _)| on == virtual_channel).count() as u64
    }

    /// A sender acquires a channel for a packet.
    pub fn hold(&mut self, channel: Channel, sender: Sender, length: u64) {
        let index = self.index(channel);
        self.senders[index] = Some(sender);
        if !self.is_wormhole() && self.topology.link(channel.link).to.switch().is_some() {
            self.buffers[index].taken += length;
        }
    }

    /// Sends a flit. The tail flit releases the channel.
    pub fn send(&mut self, now: Cycles, channel: Channel, flit: Flit) {
        let index = self.index(channel);
        if self.is_wormhole() && self.topology.link(channel.link).to.switch().is_some() {
            self.buffers[index].taken += 1;
        }
        self.last_sent[index] = Some(now);
        let pipeline = &mut self.pipelines[channel.link.index()];
        pipeline.in_transit.push_back((now + pipeline.delay, channel.virtual_channel, flit));
        if flit.is_last() {
            self.senders[index] = None;
        }
    }

    /// The next cycle in which a flit arrives or a packet is routed.
    pub fn next_end(&self, now: Cycles) -> Option<Cycles> {
        let arrivals = self
            .pipelines
            .iter()
            .filter_map(|pipeline| pipeline.in_transit.front().map(|&(cycle, ..)| cycle));
        let heads = self.buffers.iter().filter_map(|buffer| buffer.head.as_ref()?.decided);
        arrivals.chain(heads.filter(|&cycle| cycle > now)).min()
    }

    /// Receives the flits that arrive in this cycle; returns whether there were any. Packets whose
    /// tail flit has arrived at a host are added to `arrived`.
    pub fn arrive(&mut self, now: Cycles, arrived: &mut Vec<(HostId, PacketId)>) -> bool {
        let mut any = false;
        for link in self.topology.links() {
            let in_transit = &mut self.pipelines[link.index()].in_transit;
            while let Some((_, virtual_channel, flit)) =
                in_transit.pop_front_if(|&mut (cycle, ..)| cycle <= now)
            {
                any = true;
                match self.topology.link(link).to {
                    Vertex::Host(host) if flit.is_last() => arrived.push((host, flit.packet.id)),
                    Vertex::Host(_) => {}
                    Vertex::Switch(_) => {
                        let buffer = link.index() * self.channels + usize::from(virtual_channel);
                        self.buffers[buffer].flits.push_back(flit);
                    }
                }
            }
        }
        any
    }

    /// Switches route the packets at the heads of their buffers; returns whether any was routed.
    pub fn route(&mut self, now: Cycles, multicasts: &mut Multicasts) -> bool {
        let mut any = false;
        for switch in self.topology.switches() {
            for place in 0..self.inputs[switch.index()].len() {
                any |= self.route_head(now, multicasts, switch, self.inputs[switch.index()][place]);
            }
        }
        any
    }

    /// The flits in the buffers at the end of a link, and those of the copies that have requested
    /// it in earlier cycles.
    fn waiting_for(&self, now: Cycles, switch: SwitchId, link: LinkId) -> u64 {
        let first = link.index() * self.channels;
        let buffered: u64 =
            self.buffers[first..first + self.channels].iter().map(|buffer| buffer.taken).sum();
        let heads = self.inputs[switch.index()].iter().filter_map(|&input| self.buffers[input].head.as_ref());
        let earlier = heads.filter(|head| head.routed.is_some_and(|routed| routed < now));
        let requested = earlier.flat_map(|head| {
            let waiting = head.copies.iter().filter(|copy| copy.output.is_none());
            let asked = waiting.filter(|copy| copy.branch.outputs.iter().any(|output| output.link == link));
            asked.map(|_| head.length_onward())
        });
        buffered + requested.sum::<u64>()
    }

    fn route_head(
        &mut self,
        now: Cycles,
        multicasts: &mut Multicasts,
        switch: SwitchId,
        buffer: usize,
    ) -> bool {
        let Buffer { flits, head, .. } = &mut self.buffers[buffer];
        let Some(first) = flits.front() else { return false };
        let packet = first.packet;
        let path = multicasts.path(packet.id);
        let head = head.get_or_insert_with(|| Head {
            packet,
            decided: None,
            routed: None,
            stripped: self.router.stripped(path, packet.progress).0,
            copies: Vec::new(),
            left: 0,
        });
        let come = flits.len() as u64;
        if head.decided.is_none() && come >= self.router.flits_to_route(path, packet.progress).0 {
            head.decided = Some(now + self.setting.parameters.routing_delay);
        }
        let is_decided = head.decided.is_some_and(|decided| decided <= now);
        // With virtual cut-through a packet leaves without a pause, so a flit must be there to be
        // forwarded.
        let can_go = come > head.stripped || self.setting.parameters.switching == Switching::Wormhole;
        if head.routed.is_some() || !is_decided || !can_go {
            return false;
        }
        head.routed = Some(now);
        let waiting = |link| self.waiting_for(now, switch, link);
        let progress = self.router.chosen(path, packet.progress, waiting);
        let mut branches = Vec::new();
        self.router.branches(path, switch, progress, &mut branches);
        let copies = branches.into_iter().map(|branch| Copy { branch, output: None, sent: 0 });
        let head = self.buffers[buffer].head.as_mut().expect("the head has just been routed");
        head.copies = copies.collect();
        true
    }

    /// Every injection link sends one flit per cycle: of its packet, or of the next packet if it
    /// has none. Returns whether any was sent.
    pub fn inject(
        &mut self,
        now: Cycles,
        multicasts: &mut Multicasts,
        ready: &mut [VecDeque<PacketId>],
        observer: &mut impl Observer,
    ) -> bool {
        let mut any = false;
        for host in self.topology.hosts() {
            let queue = &mut ready[host.index()];
            if let (None, Some(&id)) = (&self.injections[host.index()], queue.front())
                && let Some(begun) = self.begin(now, multicasts, host, id, observer)
            {
                queue.pop_front();
                self.injections[host.index()] = Some(begun);
            }
            any |= self.inject_flit(now, host, observer);
        }
        any
    }

    /// Assigns a packet to the lowest injection channel that has room.
    fn begin(
        &mut self,
        now: Cycles,
        multicasts: &mut Multicasts,
        host: HostId,
        id: PacketId,
        observer: &mut impl Observer,
    ) -> Option<Injection> {
        let payload = multicasts[&id.multicast].multicast.payload(id.packet);
        let path = multicasts.path(id);
        let packet = Packet {
            id,
            progress: path.initial_progress(self.setting.seed, id.packet),
            length: (payload + path.header).0,
        };
        let needed = if self.is_wormhole() { 1 } else { packet.length };
        let entries = self.router.injection_channels(path, host);
        let channel = entries.into_iter().find(|&channel| self.room(channel) >= needed)?;
        self.hold(channel, Sender::Interface, packet.length);
        if !self.is_wormhole() {
            report_transfer(channel, (now, now + Cycles(packet.length)), packet, observer);
        }
        Some(Injection { packet, channel, since: now, sent: 0, has_sent_now: false })
    }

    fn inject_flit(&mut self, now: Cycles, host: HostId, observer: &mut impl Observer) -> bool {
        let Some(injection) = &self.injections[host.index()] else { return false };
        let &Injection { packet, channel, since, sent, has_sent_now } = injection;
        if has_sent_now || (self.is_wormhole() && self.room(channel) == 0) {
            return false;
        }
        let flit = Flit { packet, place: sent };
        self.send(now, channel, flit);
        if self.is_wormhole() && flit.is_last() {
            report_transfer(channel, (since, now + Cycles(1)), packet, observer);
        }
        self.injections[host.index()] =
            Some(Injection { packet, channel, since, sent: sent + 1, has_sent_now: true });
        true
    }

    /// Reports the transfers that are incomplete when a run ends. With wormhole switching,
    /// transfers are reported when they are complete; with virtual cut-through, their end is known
    /// when they start.
    pub fn report_unfinished(&self, end: Cycles, observer: &mut impl Observer) {
        if !self.is_wormhole() {
            return;
        }
        for &Injection { packet, channel, since, sent, .. } in self.injections.iter().flatten() {
            report_transfer(channel, (since, end), Packet { length: sent, ..packet }, observer);
        }
        for head in self.buffers.iter().filter_map(|buffer| buffer.head.as_ref()) {
            for copy in head.copies.iter().filter(|copy| copy.sent < head.length_onward()) {
                if let Some((channel, since)) = copy.output {
                    report_transfer(
                        channel,
                        (since, end),
                        Packet { length: copy.sent, ..head.packet },
                        observer,
                    );
                }
            }
        }
    }

    /// Ends a cycle: the room of flits that have left becomes visible, and injection links whose
    /// packet has left become free.
    pub fn end_cycle(&mut self) {
        for buffer in &mut self.buffers {
            buffer.taken -= std::mem::take(&mut buffer.leaving);
            assert!(
                buffer.taken <= self.setting.parameters.buffer_flits.0,
                "an input buffer holds at most buffer_flits"
            );
        }
        for injection in &mut self.injections {
            if let Some(sending) = injection {
                sending.has_sent_now = false;
                injection.take_if(|sending| sending.sent == sending.packet.length);
            }
        }
    }
}

/// Reports the transfer of a packet over a channel.
pub(super) fn report_transfer(
    channel: Channel,
    (from, to): (Cycles, Cycles),
    packet: Packet,
    observer: &mut impl Observer,
) {
    let PacketId { multicast, worm, packet: place } = packet.id;
    let track = Track::Link(channel);
    let slice = Slice { track, from, to, work: Work::Transfer, multicast, worm, packet: place };
    observer.carried(&slice, Flits(packet.length));
}

/// The delay of a flit from its buffer to the end of a link: crossbar traversal in a switch, then
/// link traversal. A link inside a node takes no time.
fn delay(setting: &Setting, topology: &Topology, link: LinkId) -> Cycles {
    let crossbar = match topology.link(link).from {
        Vertex::Switch(_) => setting.parameters.crossbar_delay,
        Vertex::Host(_) => Cycles::ZERO,
    };
    if topology.is_internal(link) { crossbar } else { crossbar + setting.parameters.link_delay }
}
