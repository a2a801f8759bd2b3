//! The messages of a run, and what their receivers do when a part has arrived.

use treecast_plan::{MemberId, Worm};
use treecast_terms::Picoseconds;

use super::library::{Part, Protocol};
use super::parameters::Library;
use super::simulation::{Arrival, Event, Notice, Simulation};

impl<'a> Simulation<'a> {
    pub fn worm(&self, message: u32) -> Option<&'a Worm> {
        self.plan.worms().get(message as usize)
    }

    pub fn sender(&self, message: u32) -> MemberId {
        self.worm(message).map_or_else(|| self.expected_notice().from, |worm| worm.from)
    }

    pub fn receivers(&self, message: u32) -> &[MemberId] {
        self.worm(message).map_or_else(|| &self.expected_notice().to[..], |worm| &worm.to)
    }

    fn expected_notice(&self) -> &Notice {
        self.notice.as_ref().expect("a message is in the plan, or it is the notice")
    }

    /// The messages of a member, in the order in which it sends them.
    pub fn sends_of(&self, member: MemberId) -> &[u32] {
        match &self.notice {
            Some(notice) if notice.from == member => &notice.message,
            _ => self.sends.of(member),
        }
    }

    pub fn protocol(&self, message: u32) -> Protocol {
        let Some(worm) = self.worm(message) else {
            return Protocol::Notice { in_slot: self.parameters.library != Library::None };
        };
        // Worms with several receivers are hypothetical: adapters copy them straight into memory.
        let &[to] = &worm.to[..] else { return Protocol::Direct };
        let is_forwarded = worm.from != self.plan.root() || !self.sends.of(to).is_empty();
        match self.parameters.library {
            Library::None => Protocol::Direct,
            Library::Relays if !is_forwarded => Protocol::Direct,
            Library::Relays | Library::All => Protocol::of_library(self.length, self.parameters),
        }
    }

    pub fn next_part(&self, message: u32, part: u32) -> Option<Part> {
        Part::of(self.protocol(message), part, self.length, self.parameters)
    }

    pub fn part(&self, message: u32, part: u32) -> Part {
        self.next_part(message, part).expect("the part exists")
    }

    /// The part that a process works on.
    pub fn current(&self, member: MemberId) -> Part {
        let (send, part) = self.processes[member.index()].current();
        self.part(self.sends_of(member)[send as usize], part)
    }

    /// A receiver has seen the end of a part.
    pub fn noticed(&mut self, Arrival { message, part, receiver, .. }: Arrival) {
        let (now, parameters) = (self.events.now(), self.parameters);
        let to = self.receivers(message)[receiver as usize];
        let body = self.part(message, part).body();
        match self.protocol(message) {
            Protocol::Direct => self.seen(to),
            Protocol::Notice { in_slot } => {
                let work = if in_slot { parameters.library_receive } else { Picoseconds::ZERO };
                self.known = Some(now + work);
            }
            Protocol::Short | Protocol::Eager => {
                let copy = self.length.time_at(parameters.copy_mb_per_s);
                self.events.schedule_after(parameters.library_receive + copy, Event::Seen(to));
            }
            Protocol::Long if part == 0 => {
                let slot = parameters.envelope + parameters.flag;
                let written = now + parameters.library_receive + slot.time_at(parameters.write_mb_per_s);
                let passed = self.buses[to.index()].serve(written, slot.time_at(parameters.bus_mb_per_s));
                self.events.schedule(passed + parameters.adapter_send, Event::ClearWritten(message));
            }
            Protocol::Long => {
                let copied = &mut self.copied[to.index()];
                *copied = now.max(*copied) + body.time_at(parameters.copy_mb_per_s);
                let copied = *copied;
                if self.next_part(message, part + 1).is_none() {
                    self.events.schedule(copied, Event::Seen(to));
                }
            }
        }
    }
}
