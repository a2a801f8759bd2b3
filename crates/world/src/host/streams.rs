//! The streams between a host's node, its parents and its children: what comes on them, and which
//! are to be open.

use treecast_proto::{Challenge, Event, GroupId, Input, MemberId, Nanoseconds, Output, Step, StreamChange};

use super::{Host, address, host_at};
use crate::oracle::Oracle;
use crate::scenario::Scenario;

/// Streams.
impl Host {
    /// A packet comes on the stream to the parent.
    pub fn record(
        &mut self,
        now: Nanoseconds,
        parent: usize,
        bytes: &[u8],
        scenario: &Scenario,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        let now = self.time(now);
        let (header, payload) = bytes.split_first_chunk().ok_or("a record without a header")?;
        let (header, payload) = (Box::new(*header), payload.to_vec());
        self.take(now, Step::Record { from: address(parent), header, payload })?;
        while let Some(output) = self.protocol.poll_local() {
            match output {
                Output::Store(store) => self.store(&store, bytes)?,
                Output::Stray(_) => {}
                Output::Event(event) => self.handle_event(&event, scenario, oracle)?,
                Output::Transmit(_) | Output::Reclaim(_) | Output::Timeout(_) => {
                    return Err("an output is not of a record".into());
                }
            }
        }
        Ok(())
    }

    /// The first packet of a stream comes from a child; returns whether the stream is taken.
    pub fn attach(
        &mut self,
        now: Nanoseconds,
        child: usize,
        challenge: Challenge,
        bytes: &[u8],
    ) -> Result<bool, String> {
        let (now, bytes) = (self.time(now), bytes.to_vec());
        self.take(now, Step::Attach { stream: 0, from: address(child).ip(), challenge, bytes })?;
        loop {
            match self.protocol.poll_local() {
                Some(Output::Event(Event::Attached { child, .. })) => return Ok(child.is_some()),
                Some(Output::Stray(_)) => {}
                other => return Err(format!("no answer to a stream, but {other:?}")),
            }
        }
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
        let Some((_, addresses)) = self.protocol.neighbours(group) else { return Ok(()) };
        let children: Vec<MemberId> = self.protocol.children(group).collect();
        let place = addresses.iter().position(|&known| known == address(child));
        let Some(&child) = place.and_then(|place| children.get(place)) else { return Ok(()) };
        let now = self.time(now);
        self.ask(now, Input::Stream { group, child, change }, &[])
    }

    /// The hosts of the parents to which this node has to open streams, by group.
    pub fn stream_parents(&self) -> Vec<(u32, Option<usize>)> {
        let parent = |&group: &u32| (group, self.protocol.stream_parent(GroupId(group)).and_then(host_at));
        self.groups.keys().map(parent).collect()
    }

    /// The packet that opens a stream.
    pub fn attach_packet(&self, group: u32, challenge: Challenge) -> Option<Vec<u8>> {
        self.protocol.attach_packet(GroupId(group), challenge).map(|bytes| bytes.to_vec())
    }

    /// Whether a child of this node on that host has a stream.
    pub fn has_stream_of(&self, group: u32, host: usize) -> bool {
        let group = GroupId(group);
        let Some((_, addresses)) = self.protocol.neighbours(group) else { return false };
        let mut children = self.protocol.children(group).zip(addresses);
        children.any(|(child, known)| known == address(host) && self.protocol.has_stream(group, child))
    }

    /// The host of a child of this node.
    pub fn child_host(&self, group: u32, child: MemberId) -> Option<usize> {
        let (_, addresses) = self.protocol.neighbours(GroupId(group))?;
        let place = self.protocol.children(GroupId(group)).position(|known| known == child)?;
        host_at(*addresses.get(place)?)
    }
}
