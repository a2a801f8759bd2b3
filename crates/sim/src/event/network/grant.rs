//! Switch and virtual channel allocation, and when outputs are checked.
//!
//! A link is checked when it becomes free, when the buffer at its end gets room, and when a new
//! request arrives. At any other time no waiting request could be granted, so a copy costs one
//! check of its outputs when it requests them, and one when it is granted.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rand::RngExt;
use treecast_fabric::{Channel, HostId, LinkId};
use treecast_terms::Cycles;

use super::{Copy, EventQueue, HELD, InFlight, Network, Output, Packet, Request};
use crate::event::Event;
use crate::observer::Observer;
use crate::parameters::{Adaptive, Arbitration, Replication};
use crate::path::Outputs;

impl Network<'_> {
    pub fn wake_output(&mut self, link: LinkId) {
        self.outputs[link.index()].wake = None;
        self.woken.push(link);
    }

    pub fn wake_injection(&mut self, host: HostId) {
        self.injections[host.index()].wake = None;
        self.woken_injections.push(host);
    }

    pub(super) fn schedule_output(&mut self, events: &mut EventQueue, link: LinkId, time: Cycles) {
        let wake = &mut self.outputs[link.index()].wake;
        if wake.is_none_or(|planned| planned > time) {
            *wake = Some(time);
            events.schedule(time, Event::OutputWake(link));
        }
    }

    pub(super) fn schedule_injection(&mut self, events: &mut EventQueue, host: HostId, time: Cycles) {
        let wake = &mut self.injections[host.index()].wake;
        if wake.is_none_or(|planned| planned > time) {
            *wake = Some(time);
            events.schedule(time, Event::InjectionWake(host));
        }
    }

    /// Grants injection links to packets that can be sent now.
    pub fn grant_injections(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
    ) {
        while let Some(host) = self.woken_injections.pop() {
            self.grant_injection(events, in_flight, observer, host);
        }
    }

    fn grant_injection(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
        host: HostId,
    ) {
        let Some(&packet) = self.injections[host.index()].queue.front() else { return };
        let path = &in_flight[packet.slot].worms[packet.worm as usize].path;
        let outputs = self.router.injection_channels(path, host);
        let times =
            outputs.iter().map(|&output| (self.available_at(events.now, output, packet.length), output));
        // The lowest of the channels that become free first.
        let first = times.filter_map(|(time, output)| Some((time?, output))).min_by_key(|&(time, _)| time);
        match first {
            Some((time, output)) if time == events.now => {
                self.injections[host.index()].queue.pop_front();
                // A host has no crossbar: the head flit is on the link at once.
                self.send(events, in_flight, observer, output, packet, Cycles::ZERO);
                if !self.injections[host.index()].queue.is_empty() {
                    self.schedule_injection(events, host, self.outputs[output.link.index()].free_at);
                }
            }
            Some((time, _)) => self.schedule_injection(events, host, time),
            // The link is woken when the buffer at its end starts to empty.
            None => {}
        }
    }

    /// Grants outputs of switches to requests that can be served now. Outputs of different switches
    /// are independent, so all are served together.
    pub fn grant_outputs(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
    ) {
        if self.new_requests.is_empty() && self.woken.is_empty() {
            return;
        }
        if self.parameters.arbitration == Arbitration::RoundRobin {
            self.arbitrate_round_robin(events, in_flight, observer);
        } else {
            self.arbitrate_in_order(events, in_flight, observer);
        }
        let mut new_requests = std::mem::take(&mut self.new_requests);
        for request in new_requests.drain(..) {
            self.enqueue(request);
        }
        self.new_requests = new_requests;
        while let Some(link) = self.woken.pop() {
            if let Some(time) = self.next_check(events.now, link) {
                self.schedule_output(events, link, time);
            }
        }
    }

    /// Serves requests in their order.
    fn arbitrate_in_order(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
    ) {
        let mut contenders = std::mem::take(&mut self.contenders);
        contenders.extend(self.new_requests.iter().map(|&request| Reverse((request, None))));
        let first = |link: LinkId| self.first_waiting(events.now, link, None);
        contenders.extend(self.woken.iter().filter_map(|&link| Some(Reverse((first(link)?, Some(link))))));
        while let Some(Reverse((request, link))) = contenders.pop() {
            if let Some(output) = self.select_output(events.now, request) {
                self.grant(events, in_flight, observer, request, output);
            }
            if let Some(link) = link {
                let next = self.first_waiting(events.now, link, Some(request));
                contenders.extend(next.map(|next| Reverse((next, Some(link)))));
            }
        }
        self.contenders = contenders;
    }

    /// The first request for a link that is free, or the first after another request.
    fn first_waiting(&self, now: Cycles, link: LinkId, behind: Option<Request>) -> Option<Request> {
        let output = &self.outputs[link.index()];
        let index = output.waiting.partition_point(|&request| Some(request) <= behind);
        output.waiting.get(index).filter(|_| output.free_at <= now).copied()
    }

    /// Serves requests in rounds: each copy requests one output, and each output grants the input
    /// after the one that it served last. Ends when no request can be granted.
    fn arbitrate_round_robin(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
    ) {
        let mut waiting: BTreeSet<Request> = self.new_requests.iter().copied().collect();
        waiting.extend(self.woken.iter().flat_map(|link| &self.outputs[link.index()].waiting));
        loop {
            let mut requests = Vec::new();
            for &request in &waiting {
                if let Some(output) = self.select_output(events.now, request) {
                    let last_served = self.outputs[output.link.index()].last_served;
                    let is_behind = last_served.is_some_and(|last_served| request.input <= last_served);
                    requests.push((output.link, is_behind, request, output));
                }
            }
            if requests.is_empty() {
                break;
            }
            requests.sort_unstable();
            requests.dedup_by_key(|request| request.0);
            for (link, _, request, output) in requests {
                self.outputs[link.index()].last_served = Some(request.input);
                self.grant(events, in_flight, observer, request, output);
            }
        }
    }

    /// The output that a copy would be granted now, if it has none.
    fn select_output(&mut self, now: Cycles, request: Request) -> Option<Channel> {
        let copy = self.copy(request).filter(|copy| copy.output.is_none())?;
        let length = self.inputs[request.input.index()].length_onward;
        let is_free = |&&output: &&Channel| self.available_at(now, output, length) == Some(now);
        let outputs = &copy.branch.outputs;
        if self.parameters.adaptive != Adaptive::Random {
            return outputs.iter().find(is_free).copied();
        }
        let free: Outputs = outputs.iter().filter(is_free).copied().collect();
        match free.len() {
            0 => None,
            1 => Some(free[0]),
            count => {
                let switch = self.switch_of(request.input);
                Some(free[self.random[switch.index()].random_range(0..count)])
            }
        }
    }

    /// The copy of a request, unless its packet has left.
    fn copy(&self, request: Request) -> Option<&Copy> {
        self.inputs[request.input.index()].copies.get(request.copy as usize)
    }

    /// Grants an output to a copy. The copy is sent at once; with synchronous replication, when all
    /// copies of its packet have outputs.
    fn grant(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
        request: Request,
        output: Channel,
    ) {
        self.dequeue(request);
        let is_synchronous = self.parameters.replication == Replication::Synchronous;
        let input = &mut self.inputs[request.input.index()];
        input.copies[request.copy as usize].output = Some(output);
        input.waiting -= 1;
        let (packet, length, is_last) = (input.queue[0], input.length_onward, input.waiting == 0);
        if is_synchronous && !is_last {
            self.outputs[output.link.index()].free_at = HELD;
            return;
        }
        if !is_last {
            let progress = self.inputs[request.input.index()].copies[request.copy as usize].branch.progress;
            self.send_onward(events, in_flight, observer, Packet { length, progress, ..packet }, output);
            return;
        }
        self.leave(events, in_flight, request.input, packet.length - length);
        let mut copies = std::mem::take(&mut self.inputs[request.input.index()].copies);
        let going =
            if is_synchronous { 0..copies.len() } else { request.copy as usize..request.copy as usize + 1 };
        for copy in &copies[going] {
            let packet = Packet { length, progress: copy.branch.progress, ..packet };
            self.send_onward(
                events,
                in_flight,
                observer,
                packet,
                copy.output.expect("all copies have outputs"),
            );
        }
        copies.clear();
        self.inputs[request.input.index()].copies = copies;
    }

    /// Sends a copy through a switch.
    fn send_onward(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
        packet: Packet,
        output: Channel,
    ) {
        let progress = self.router.onward(packet.progress, output.link);
        let packet = Packet { progress, ..packet };
        self.send(events, in_flight, observer, output, packet, self.parameters.crossbar_delay);
        // A link that was held may have missed its wake-up.
        self.woken.push(output.link);
    }

    /// Queues a copy without an output at all its candidates.
    fn enqueue(&mut self, request: Request) {
        let Some(copy) = self.inputs[request.input.index()].copies.get_mut(request.copy as usize) else {
            return;
        };
        if copy.output.is_some() {
            return;
        }
        copy.is_queued = true;
        for link in links(&copy.branch.outputs) {
            let waiting = &mut self.outputs[link.index()].waiting;
            let index = waiting.partition_point(|&other| other < request);
            waiting.insert(index, request);
            self.woken.push(link);
        }
    }

    fn dequeue(&mut self, request: Request) {
        let copy = &mut self.inputs[request.input.index()].copies[request.copy as usize];
        if !std::mem::take(&mut copy.is_queued) {
            return;
        }
        for link in links(&copy.branch.outputs) {
            let waiting = &mut self.outputs[link.index()].waiting;
            let index = waiting.binary_search(&request).expect("a queued copy waits at all its candidates");
            waiting.remove(index);
        }
    }

    /// When to check a link next: when it becomes free, or when there is room at its end for a
    /// waiting request. `None` where that depends on packets that wait themselves.
    fn next_check(&self, now: Cycles, link: LinkId) -> Option<Cycles> {
        let Output { free_at, waiting, .. } = &self.outputs[link.index()];
        match *free_at {
            HELD => None,
            // While a link is busy, all requests wait for the same cycle.
            free_at if free_at > now => (!waiting.is_empty()).then_some(free_at),
            _ => {
                let times = waiting.iter().flat_map(|request| {
                    let input = &self.inputs[request.input.index()];
                    let outputs = input.copies[request.copy as usize].branch.outputs.iter();
                    let channels = outputs.filter(|output| output.link == link);
                    channels.filter_map(|&channel| self.available_at(now, channel, input.length_onward))
                });
                times.min()
            }
        }
    }
}

/// The links of channels. Channels of one link are adjacent.
fn links(outputs: &[Channel]) -> impl Iterator<Item = LinkId> {
    outputs.chunk_by(|one, next| one.link == next.link).map(|channels| channels[0].link)
}
