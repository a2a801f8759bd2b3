//! Who gets an output, and when it is looked at again.
//!
//! A link is looked at when it comes free, when a buffer behind it gets room, and when somebody new asks for it. At any
//! other time nobody who waits for it could go, so a copy costs a look at its outputs when it comes, and one when it goes.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use rand::RngExt;
use smallvec::SmallVec;
use treecast_fabric::{Channel, HostId, LinkId};
use treecast_terms::Cycles;

use super::{Copy, EventQueue, HELD, InFlight, Network, Output, Packet, Place};
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

    pub(super) fn plan_output(&mut self, events: &mut EventQueue, link: LinkId, time: Cycles) {
        let wake = &mut self.outputs[link.index()].wake;
        if wake.is_none_or(|planned| planned > time) {
            *wake = Some(time);
            events.schedule(time, Event::OutputWake(link));
        }
    }

    pub(super) fn plan_injection(&mut self, events: &mut EventQueue, host: HostId, time: Cycles) {
        let wake = &mut self.injections[host.index()].wake;
        if wake.is_none_or(|planned| planned > time) {
            *wake = Some(time);
            events.schedule(time, Event::InjectionWake(host));
        }
    }

    /// Grants injection links to whoever waits for them and can go now.
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
        let times = outputs.iter().map(|&output| (self.available(events.now, output, packet.length), output));
        // Of the channels that come free first the lowest.
        let first = times.filter_map(|(time, output)| Some((time?, output))).min_by_key(|&(time, _)| time);
        match first {
            Some((time, output)) if time == events.now => {
                self.injections[host.index()].queue.pop_front();
                // A host has no crossbar: the first flit goes onto the link at once.
                self.send(events, in_flight, observer, output, packet, Cycles::ZERO);
                if !self.injections[host.index()].queue.is_empty() {
                    self.plan_injection(events, host, self.outputs[output.link.index()].free_at);
                }
            }
            Some((time, _)) => self.plan_injection(events, host, time),
            // Woken when a buffer behind the link begins to empty.
            None => {}
        }
    }

    /// Grants outputs of switches to whoever waits for them and can go now. Outputs of different switches have nothing to do
    /// with one another, so all are served in one go.
    pub fn grant_outputs(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
    ) {
        if self.arrived.is_empty() && self.woken.is_empty() {
            return;
        }
        if self.parameters.arbitration == Arbitration::RoundRobin {
            self.serve_by_turns(events, in_flight, observer);
        } else {
            self.serve_in_order(events, in_flight, observer);
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        for place in arrived.drain(..) {
            self.list(place);
        }
        self.arrived = arrived;
        while let Some(link) = self.woken.pop() {
            if let Some(time) = self.time_to_look(events.now, link) {
                self.plan_output(events, link, time);
            }
        }
    }

    /// Serves copies in the order of their places.
    fn serve_in_order(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
    ) {
        let mut contenders = std::mem::take(&mut self.contenders);
        contenders.extend(self.arrived.iter().map(|&place| Reverse((place, None))));
        let first = |link: LinkId| self.first_waiting(events.now, link, None);
        contenders.extend(self.woken.iter().filter_map(|&link| Some(Reverse((first(link)?, Some(link))))));
        while let Some(Reverse((place, link))) = contenders.pop() {
            if let Some(output) = self.choose(events.now, place) {
                self.grant(events, in_flight, observer, place, output);
            }
            if let Some(link) = link {
                let next = self.first_waiting(events.now, link, Some(place));
                contenders.extend(next.map(|next| Reverse((next, Some(link)))));
            }
        }
        self.contenders = contenders;
    }

    /// Who waits first for a link that is free, or first behind another.
    fn first_waiting(&self, now: Cycles, link: LinkId, behind: Option<Place>) -> Option<Place> {
        let output = &self.outputs[link.index()];
        let index = output.waiting.partition_point(|&place| Some(place) <= behind);
        output.waiting.get(index).filter(|_| output.free_at <= now).copied()
    }

    /// Serves copies in rounds: each asks for one output, and each output takes the input next after the one that it has
    /// served last; until nobody can go.
    fn serve_by_turns(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
    ) {
        let mut waiting: BTreeSet<Place> = self.arrived.iter().copied().collect();
        waiting.extend(self.woken.iter().flat_map(|link| &self.outputs[link.index()].waiting));
        loop {
            let mut asks = Vec::new();
            for &place in &waiting {
                if let Some(output) = self.choose(events.now, place) {
                    let served = self.outputs[output.link.index()].served;
                    let is_behind = served.is_some_and(|served| place.input <= served);
                    asks.push((output.link, is_behind, place, output));
                }
            }
            if asks.is_empty() {
                break;
            }
            asks.sort_unstable();
            asks.dedup_by_key(|ask| ask.0);
            for (link, _, place, output) in asks {
                self.outputs[link.index()].served = Some(place.input);
                self.grant(events, in_flight, observer, place, output);
            }
        }
    }

    /// The output that a copy takes now, if it has none and can go.
    fn choose(&mut self, now: Cycles, place: Place) -> Option<Channel> {
        let copy = self.copy(place).filter(|copy| copy.output.is_none())?;
        let length = self.inputs[place.input.index()].length_onward;
        let is_free = |&&output: &&Channel| self.available(now, output, length) == Some(now);
        let outputs = &copy.branch.outputs;
        if self.parameters.adaptive != Adaptive::Random {
            return outputs.iter().find(is_free).copied();
        }
        let free: Outputs = outputs.iter().filter(is_free).copied().collect();
        match free.len() {
            0 => None,
            1 => Some(free[0]),
            count => {
                let switch = self.switch_of(place.input);
                Some(free[self.random[switch.index()].random_range(0..count)])
            }
        }
    }

    /// The copy that has a place, unless its packet has gone.
    fn copy(&self, place: Place) -> Option<&Copy> {
        self.inputs[place.input.index()].copies.get(place.copy as usize)
    }

    /// Grants an output to a copy. It goes at once; with synchronous replication, when all copies of its packet have
    /// outputs.
    fn grant(
        &mut self,
        events: &mut EventQueue,
        in_flight: &InFlight,
        observer: &mut impl Observer,
        place: Place,
        output: Channel,
    ) {
        self.unlist(place);
        let is_synchronous = self.parameters.replication == Replication::Synchronous;
        let input = &mut self.inputs[place.input.index()];
        input.copies[place.copy as usize].output = Some(output);
        input.waiting -= 1;
        let (packet, length, is_last) = (input.queue[0], input.length_onward, input.waiting == 0);
        if is_synchronous && !is_last {
            self.outputs[output.link.index()].free_at = HELD;
            return;
        }
        if !is_last {
            let progress = self.inputs[place.input.index()].copies[place.copy as usize].branch.progress;
            self.send_onward(events, in_flight, observer, Packet { length, progress, ..packet }, output);
            return;
        }
        self.leave(events, in_flight, place.input, packet.length - length);
        let mut copies = std::mem::take(&mut self.inputs[place.input.index()].copies);
        let going =
            if is_synchronous { 0..copies.len() } else { place.copy as usize..place.copy as usize + 1 };
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
        self.inputs[place.input.index()].copies = copies;
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
        // It was woken long ago, if it was held.
        self.woken.push(output.link);
    }

    /// Lets a copy without an output wait at all that would do.
    fn list(&mut self, place: Place) {
        let Some(copy) = self.inputs[place.input.index()].copies.get_mut(place.copy as usize) else { return };
        if copy.output.is_some() {
            return;
        }
        copy.is_listed = true;
        for link in links(&copy.branch.outputs) {
            let waiting = &mut self.outputs[link.index()].waiting;
            let index = waiting.partition_point(|&other| other < place);
            waiting.insert(index, place);
            self.woken.push(link);
        }
    }

    fn unlist(&mut self, place: Place) {
        let copy = &mut self.inputs[place.input.index()].copies[place.copy as usize];
        if !std::mem::take(&mut copy.is_listed) {
            return;
        }
        for link in links(&copy.branch.outputs) {
            let waiting = &mut self.outputs[link.index()].waiting;
            let index = waiting.binary_search(&place).expect("it waits at all its outputs");
            waiting.remove(index);
        }
    }

    /// When it is worth while to look at a link: when it comes free, or when there is room behind it for one who waits.
    /// `None` where that depends on packets that wait themselves.
    fn time_to_look(&self, now: Cycles, link: LinkId) -> Option<Cycles> {
        let Output { free_at, waiting, .. } = &self.outputs[link.index()];
        let times = waiting.iter().flat_map(|place| {
            let input = &self.inputs[place.input.index()];
            let outputs = input.copies[place.copy as usize].branch.outputs.iter();
            let channels = outputs.filter(|output| output.link == link);
            channels.filter_map(|&channel| self.available(now, channel, input.length_onward))
        });
        // While a link is busy it does not matter who waits.
        if *free_at > now { times.take(1).min() } else { times.min() }
    }
}

/// The links of channels: those of one link stand together.
fn links(outputs: &[Channel]) -> SmallVec<[LinkId; 4]> {
    let mut links: SmallVec<[LinkId; 4]> = outputs.iter().map(|output| output.link).collect();
    links.dedup();
    links
}
