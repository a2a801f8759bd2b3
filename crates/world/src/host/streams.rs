//! The streams between a host's node, its parents and its children: what comes on them, and which
//! are to be open.

use rand::RngExt;
use treecast_proto::{Challenge, GroupId, Input, MemberId, Nanoseconds, StreamChange};

use super::{Host, address, host_at};
use crate::scenario::Scenario;

/// Streams.
impl Host {
    /// A packet comes on the stream to the parent.
    pub fn record(&mut self, now: Nanoseconds, parent: usize, bytes: &[u8]) -> Result<(), String> {
        let now = self.time(now);
        // The kernel's packet path does not look at streams.
        if let Some(group) = self.node.protocol().group_to_reclaim_for_stream(bytes) {
            self.reclaim(now, group)?;
        }
        self.node.packet_on_stream(now, address(parent), bytes).map_err(|fault| fault.to_string())
    }

    /// The first packet of a stream comes from a child; returns whether the stream is taken.
    pub fn attach(
        &mut self,
        now: Nanoseconds,
        child: usize,
        challenge: Challenge,
        bytes: &[u8],
    ) -> Result<bool, String> {
        let (now, from) = (self.time(now), address(child).ip());
        if let Some(group) = self.node.protocol().group_to_reclaim_for_stream(bytes) {
            self.reclaim(now, group)?;
        }
        self.node.attach(now, from, challenge, bytes).map_err(|fault| fault.to_string())
    }

    /// The stream of a child has changed.
    pub fn change_stream(
        &mut self,
        now: Nanoseconds,
        group: u32,
        child: usize,
        change: StreamChange,
    ) -> Result<(), String> {
        let group = GroupId(group);
        let Some((_, addresses)) = self.node.protocol().neighbours(group) else { return Ok(()) };
        let children: Vec<MemberId> = self.node.protocol().children(group).collect();
        let place = addresses.iter().position(|&known| known == address(child));
        let Some(&child) = place.and_then(|place| children.get(place)) else { return Ok(()) };
        let now = self.time(now);
        self.ask(now, Input::Stream { group, child, change })
    }

    /// The hosts of the parents to which this node has to open streams, by group.
    pub fn stream_parents(&self) -> Vec<(u32, Option<usize>)> {
        let parent =
            |&group: &u32| (group, self.node.protocol().stream_parent(GroupId(group)).and_then(host_at));
        self.groups.keys().map(parent).collect()
    }

    /// Perhaps forgets payloads that all children have been sent and its applications have read, as
    /// nodes do that receive into the buffers of applications.
    pub(super) fn forget(&mut self, now: Nanoseconds, scenario: &Scenario) -> Result<(), String> {
        if scenario.streams.forgets == 0.0 || !self.forgetting.random_bool(scenario.streams.forgets) {
            return Ok(());
        }
        for (&group, application) in &self.groups {
            let has_streams = scenario.groups[group as usize].transport.has_streams();
            let group = GroupId(group);
            if !has_streams || application.is_root || application.ended.is_some() || self.kernel.runs(group) {
                continue;
            }
            let Some(unsent) = self.node.protocol().unsent(group) else { continue };
            let before = unsent.min(application.queued);
            self.node.forget(now, group, before).map_err(|fault| fault.to_string())?;
        }
        Ok(())
    }

    /// The packet that opens a stream.
    pub fn attach_packet(&self, group: u32, challenge: Challenge) -> Option<Vec<u8>> {
        self.node.protocol().attach_packet(GroupId(group), challenge).map(|bytes| bytes.to_vec())
    }

    /// Whether a child of this node on that host has a stream.
    pub fn has_stream_of(&self, group: u32, host: usize) -> bool {
        let group = GroupId(group);
        let Some((_, addresses)) = self.node.protocol().neighbours(group) else { return false };
        let mut children = self.node.protocol().children(group).zip(addresses);
        children.any(|(child, known)| known == address(host) && self.node.protocol().has_stream(group, child))
    }

    /// The host of a child of this node.
    pub fn child_host(&self, group: u32, child: MemberId) -> Option<usize> {
        let (_, addresses) = self.node.protocol().neighbours(GroupId(group))?;
        let place = self.node.protocol().children(GroupId(group)).position(|known| known == child)?;
        host_at(*addresses.get(place)?)
    }
}
