//! The application of a group at a host, which writes or reads when it finds something to do.

use rand::RngExt;
use treecast_proto::{
    Carrier, Ending, GroupId, Input, Integrity, MemberId, Nanoseconds, Offload, Piece, Process, ReaderSet,
    Sequence, Transport, is_forward_due, is_wake_due,
};
use treecast_wire::Keys;

use super::Host;
use crate::oracle::Oracle;
use crate::scenario::{GroupScenario, Scenario, Waiting, contribution, group_key, session};

/// The application of a group at a host.
#[derive(Debug)]
pub(super) struct Application {
    pub slots: u32,
    pub offload: Offload,
    pub is_root: bool,
    pub has_left: bool,
    pub ended: Option<Ending>,
    /// Whether it has joined a group that was running, for the first time or after a restart.
    pub joined_late: bool,
    /// How often this host has joined in this life, from 0.
    pub join: u32,
    /// Its session, once it has its place.
    pub session: Option<u32>,
    /// The packet that it begins with.
    pub start: Sequence,
    /// At the root, the next piece to queue.
    pub message: u32,
    pub offset: u64,
    /// The next packet to queue, or to read.
    pub queued: Sequence,
    /// While it sleeps: the end of the packets, or at the root of those that have left their slots,
    /// that its node has looked at.
    pub asleep_at: Option<Sequence>,
    /// Its last pause between checks.
    pub idle: Nanoseconds,
    pub rest_until: Nanoseconds,
    /// With offload `host` or `assisted`, all packets before this one have been forwarded.
    pub forwarded: Sequence,
    /// At the root of a group with both carriers, that of the next packet.
    pub carrier: Carrier,
    pub reduction: Reduction,
}

/// The part of an application in all-reduces.
#[derive(Debug, Default)]
pub(super) struct Reduction {
    /// At the root: all members are there.
    pub is_ready: bool,
    /// The packet of the result of the last one, and the processes that have contributed.
    contributed: Option<(Sequence, ReaderSet)>,
    /// At the root: the packet of the last result, and whether that is to wake the application.
    pub result: Option<Sequence>,
    pub is_result_new: bool,
}

/// How often a host joins the sessions of a group, at most.
const JOINS_MAX: u32 = 3;

impl Application {
    pub fn new(setting: &GroupScenario, is_root: bool, joined_late: bool) -> Self {
        Self {
            slots: setting.slots,
            offload: setting.offload,
            is_root,
            has_left: false,
            ended: None,
            joined_late,
            join: 0,
            session: None,
            start: setting.start,
            message: 0,
            offset: 0,
            queued: setting.start,
            asleep_at: None,
            idle: Nanoseconds::ZERO,
            rest_until: Nanoseconds::ZERO,
            forwarded: setting.start,
            carrier: if setting.transport == Transport::Streams {
                Carrier::Stream
            } else {
                Carrier::Datagram
            },
            reduction: Reduction::default(),
        }
    }

    /// Whether it joins again: its session has ended without its root.
    pub fn joins_again(&self, setting: &GroupScenario) -> bool {
        let is_without_root = matches!(self.ended, Some(Ending::RootSilent(_) | Ending::RootRestarted));
        let may_join = setting.is_repeated && !self.is_root && !self.has_left;
        is_without_root && may_join && self.join + 1 < JOINS_MAX
    }
}

/// All-reduces.
impl Application {
    /// The all-reduce in which it is to take part now: the next message is its result.
    fn reduction_due(&self, scenario: &Scenario, group: u32) -> Option<(u32, Sequence)> {
        let session = self.session.filter(|_| self.ended.is_none() && !self.has_left)?;
        let is_here = !self.is_root
            || (self.reduction.is_ready && self.offset == 0 && self.reduction.result != Some(self.queued));
        let message = scenario.reduced_at(group, session, self.queued).filter(|_| is_here)?;
        Some((message, self.queued))
    }

    /// Whether it has to take part in an all-reduce, and has not begun to.
    fn owes_contribution(&self, scenario: &Scenario, group: u32) -> bool {
        let due = self.reduction_due(scenario, group);
        due.is_some_and(|(_, packet)| self.reduction.contributed.is_none_or(|(of, _)| of != packet))
    }
}

/// The work of the applications.
impl Host {
    /// At a member: it leaves.
    pub fn leave(&mut self, now: Nanoseconds, group: GroupId) -> Result<(), String> {
        let now = self.time(now);
        let Some(application) = self.groups.get_mut(&group.0) else { return Ok(()) };
        if !self.is_up || application.is_root || application.ended.is_some() {
            return Ok(());
        }
        application.has_left = true;
        self.ask(now, Input::Leave { group })
    }

    /// At a root: a member becomes a leaf.
    pub fn relieve(&mut self, now: Nanoseconds, group: GroupId, member: MemberId) -> Result<(), String> {
        let now = self.time(now);
        let is_root = |application: &Application| application.is_root && application.ended.is_none();
        if !self.groups.get(&group.0).is_some_and(is_root) {
            return Ok(());
        }
        self.ask(now, Input::Relieve { group, member })
    }

    /// Lets the processes of this host that are there contribute to the all-reduce that is due.
    pub fn contribute(
        &mut self,
        now: Nanoseconds,
        group: u32,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let Some(application) = self.groups.get_mut(&group) else { return Ok(()) };
        let Some((message, packet)) = application.reduction_due(scenario, group) else { return Ok(()) };
        let Some(session) = application.session else { return Ok(()) };
        let mut contributed = match application.reduction.contributed {
            Some((of, contributed)) if of == packet => contributed,
            _ => ReaderSet::default(),
        };
        application.reduction.contributed = Some((packet, contributed));
        let readers = scenario.readers(group, self.number, now);
        let count = readers.map_or(1, |_| scenario.processes(group, self.number));
        let absent = readers.map(|readers| readers.awaited.or(&readers.lost)).unwrap_or_default();
        let mut places = ReaderSet::first(count).without(&absent);
        if places.is_empty() {
            // The node of the last process would leave the group. This one goes on, as a process of
            // no consequence.
            places.insert(0);
        }
        for place in places.without(&contributed).iter() {
            // A late member may begin with the result of an all-reduce to which the others have
            // contributed before.
            if self.readable(GroupId(group)).is_none_or(|(_, next)| next != packet) {
                return Ok(());
            }
            contributed.insert(place);
            oracle.contribute(group, session, message, self.number, place);
            let contribution = contribution(packet, self.number);
            let process = Process { place, count };
            let input = Input::Contribute { group: GroupId(group), process, contribution };
            self.ask(self.time(now), input)?;
        }
        if let Some(application) = self.groups.get_mut(&group) {
            application.reduction.contributed = Some((packet, contributed));
        }
        Ok(())
    }

    /// Runs the application; returns the pause before its next check, or `None` if it is done.
    pub fn work(
        &mut self,
        now: Nanoseconds,
        group: u32,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<Option<Nanoseconds>, String> {
        let setting = &scenario.groups[group as usize];
        let Some(application) = self.groups.get(&group) else { return Ok(None) };
        if application.ended.is_some() {
            let pause = Nanoseconds::from_ms(1);
            return Ok(self.join_again(now, group, scenario, oracle)?.then_some(pause));
        }
        let (is_root, queued) = (application.is_root, application.queued);
        self.contribute(now, group, scenario, oracle)?;
        if is_root {
            self.write(now, group, scenario, oracle)?;
        } else if now >= self.reads_from {
            self.read(now, group, scenario, oracle)?;
            self.contribute(now, group, scenario, oracle)?;
        }
        if setting.waiting == Waiting::Sleeps {
            return self.pause_or_sleep(now, group, setting);
        }
        let pause_max = if is_root { 100_000 } else { setting.read_pause_max.0 };
        let pause = Nanoseconds(self.random.random_range(1_000..=pause_max));
        let application = self.groups.get_mut(&group).ok_or("no such group")?;
        // The pause grows while there is nothing to do.
        application.idle =
            if application.queued == queued { Nanoseconds(application.idle.0 * 2) } else { pause };
        application.idle = application.idle.max(pause).min(Nanoseconds::from_ms(5));
        Ok(Some(application.idle))
    }

    /// The pause of an application that sleeps while it has nothing to do; `None` if it sleeps.
    fn pause_or_sleep(
        &mut self,
        now: Nanoseconds,
        group: u32,
        setting: &GroupScenario,
    ) -> Result<Option<Nanoseconds>, String> {
        let readable = self.readable(GroupId(group));
        let freed = self.freed(GroupId(group));
        let application = self.groups.get_mut(&group).ok_or("no such group")?;
        let until = if application.is_root { application.rest_until } else { self.reads_from };
        if now < until {
            return Ok(Some(until.since(now)));
        }
        let seen = if application.is_root { freed } else { readable.map(|(_, end)| end) };
        let seen = seen.unwrap_or(application.queued);
        if !application.is_root && application.queued != seen {
            return Ok(Some(Nanoseconds(self.random.random_range(1_000..=setting.read_pause_max.0))));
        }
        application.asleep_at = Some(seen);
        Ok(None)
    }

    /// The sleeping applications that the node wakes, as an engine does: for free slots, the end of
    /// a message, much to read or to forward, and the end of the group.
    pub fn wake_applications(&mut self, scenario: &Scenario) -> Vec<u32> {
        let Self { node, groups, kernel, .. } = self;
        let protocol = node.protocol();
        let woken = groups.iter_mut().filter_map(|(&group, application)| {
            let id = GroupId(group);
            let is_woken = kernel.woken.remove(&group);
            let seen = application.asleep_at?;
            let (now, is_due) = if kernel.runs(id) {
                (seen, false)
            } else if application.is_root {
                let freed = protocol.freed(id).unwrap_or(seen);
                (freed, freed != seen)
            } else {
                let Application { offload, queued, slots, .. } = *application;
                // A member that gets its place begins there.
                let seen = seen.max(queued);
                let end = protocol.readable(id).map_or(seen, |(_, end)| end);
                let mut new = seen.until(end);
                let has_end = new.any(|packet| protocol.piece(id, packet).is_some_and(Piece::is_last));
                (end, has_end || is_wake_due(offload, queued, end, slots))
            };
            let has_result = std::mem::take(&mut application.reduction.is_result_new);
            let is_woken = is_woken
                || is_due
                || has_result
                || application.ended.is_some()
                || application.owes_contribution(scenario, group);
            application.asleep_at = (!is_woken).then_some(now);
            is_woken.then_some(group)
        });
        woken.collect()
    }

    /// The root queues as many packets as there is room for.
    fn write(
        &mut self,
        now: Nanoseconds,
        group: u32,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let time = self.time(now);
        let id = GroupId(group);
        if self.free_slots(id) == 0 {
            return Ok(());
        }
        let setting = &scenario.groups[group as usize];
        let life = self.life;
        let keys = group_key(scenario, group).session_keys(session(life), setting.authentication);
        let keys = Keys { crcs: setting.transport.crcs(Integrity::default()), ..keys };
        while self.free_slots(id) > 0 {
            let application = self.groups.get_mut(&group).ok_or("no such group")?;
            if now < application.rest_until {
                break;
            }
            let Some(message_length) = scenario.messages(group, life).nth(application.message as usize)
            else {
                oracle.close(group, life);
                return self.ask(time, Input::Close { group: id });
            };
            let (message, offset) = (application.message, application.offset);
            if setting.is_reduced(message) && application.reduction.result != Some(application.queued) {
                self.contribute(now, group, scenario, oracle)?;
                break;
            }
            let length = (message_length - offset).min(u64::from(setting.payload_bytes_max));
            let bytes: Vec<u8> = oracle.content(group, life, message, offset).take(length as usize).collect();
            if setting.transport == Transport::Both {
                self.choose_carrier(time, group, offset == 0)?;
            }
            let application = self.groups.get(&group).ok_or("no such group")?;
            let checksum = match application.carrier {
                Carrier::Datagram => keys.data_checksum(application.queued, &bytes),
                Carrier::Stream => keys.stream_checksum(application.queued, &bytes),
            };
            let piece = Piece { message, offset, length: length as u32, message_length, checksum };
            let queued = application.queued;
            self.node.write(id, queued, &bytes).map_err(|fault| fault.to_string())?;
            if !self.send_by_kernel(time, id, piece)? {
                self.queue(time, id, piece, &bytes)?;
            }
            let application = self.groups.get_mut(&group).ok_or("no such group")?;
            application.queued += 1;
            application.offset += length;
            if piece.is_last() {
                (application.message, application.offset) = (message + 1, 0);
                application.rest_until = now + Nanoseconds(self.random.random_range(0..=setting.pause_max.0));
            }
            let queued = application.queued;
            self.forward(time, id, queued, piece.is_last())?;
            if setting.transport.has_streams() && piece.is_last() && self.random.random_bool(0.3) {
                self.ask(time, Input::Flush { group: id })?;
            }
        }
        Ok(())
    }

    /// The root of a group with both carriers chooses one, mostly for a message, sometimes for a
    /// packet.
    fn choose_carrier(
        &mut self,
        now: Nanoseconds,
        group: u32,
        is_first_of_message: bool,
    ) -> Result<(), String> {
        if !self.random.random_bool(if is_first_of_message { 0.5 } else { 0.1 }) {
            return Ok(());
        }
        let carrier = if self.random.random_bool(0.5) { Carrier::Stream } else { Carrier::Datagram };
        self.groups.get_mut(&group).ok_or("no such group")?.carrier = carrier;
        self.ask(now, Input::SetCarrier { group: GroupId(group), carrier })
    }

    /// A reader reads some packets.
    fn read(
        &mut self,
        now: Nanoseconds,
        group: u32,
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let time = self.time(now);
        let id = GroupId(group);
        let Some((from, end)) = self.readable(id) else { return Ok(()) };
        let most = self.random.random_range(1..=scenario.groups[group as usize].read_packets_max);
        let upto = end.min(from + most);
        for packet in from.until(upto) {
            let piece = *self.piece(id, packet).ok_or("a packet to be read is not there")?;
            let application = self.groups.get(&group).ok_or("no such group")?;
            let bytes =
                self.node.payload(id, packet).ok_or("a packet is read of a group that is not here")?;
            let begins_late = application.start != scenario.groups[group as usize].start;
            let session = application.session.ok_or("a member reads that has no place")?;
            oracle.read(scenario, self.reader(group), session, begins_late, &piece, bytes)?;
            self.consume(time, id, packet + 1)?;
            let application = self.groups.get_mut(&group).ok_or("no such group")?;
            application.queued = packet + 1;
            self.forward(time, id, packet + 1, piece.is_last())?;
        }
        Ok(())
    }

    /// With offload `host` or `assisted`, forwards complete messages, and parts of long ones.
    fn forward(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        upto: Sequence,
        is_whole: bool,
    ) -> Result<(), String> {
        let application = self.groups.get_mut(&group.0).ok_or("no such group")?;
        let Application { offload, forwarded, slots, .. } = *application;
        if !is_forward_due(offload, forwarded, upto, is_whole, slots) {
            return Ok(());
        }
        application.forwarded = upto;
        let turns: Vec<Option<MemberId>> = if application.offload == Offload::Host {
            self.node.protocol().children(group).map(Some).collect()
        } else {
            vec![None]
        };
        for child in turns {
            self.ask(now, Input::Forward { group, upto, child })?;
        }
        Ok(())
    }
}
