//! The streams of a world between parents and children: they open, carry packets, break and close.

use treecast_proto::StreamChange;

use super::{EventKind, World};
use crate::streams::{REDIAL, StreamStep};

/// Streams.
impl World {
    /// Closes the streams of children that have gone, and opens those that a host needs.
    pub(super) fn tend_streams(&mut self, host: usize) {
        for (group, child) in std::mem::take(&mut self.hosts[host].detached) {
            // The child's host is known as long as it is a child; otherwise all of the group are
            // looked at.
            let known = self.hosts[host].child_host(group, child);
            for id in self.streams.of_host(host) {
                let Some(stream) = self.streams.get(id) else { continue };
                let is_of_group = stream.group == group && stream.parent.0 == host && stream.is_attached;
                let is_of_child = known.map_or_else(
                    || !self.hosts[host].has_stream_of(group, stream.child.0),
                    |known| known == stream.child.0,
                );
                if is_of_group && is_of_child {
                    self.close_stream(id, false, true);
                }
            }
        }
        let life = self.hosts[host].life;
        let stalled = std::mem::take(&mut self.hosts[host].stalled);
        for (group, parent) in self.hosts[host].stream_parents() {
            let current =
                self.streams.of_child(group, host).map(|(id, stream)| (id, stream.parent.0, stream.child.1));
            match (parent, current) {
                (Some(parent), Some((_, to, of_life)))
                    if parent == to && of_life == life && !stalled.contains(&group) => {}
                (None, None) => {}
                (parent, current) => {
                    if let Some((id, ..)) = current {
                        self.close_stream(id, true, false);
                        self.streams.forget(id);
                    }
                    if parent.is_some() {
                        self.schedule(self.now, EventKind::Dial { host, life, group });
                    }
                }
            }
        }
    }

    /// A child opens its stream, unless it has one.
    pub(super) fn dial(&mut self, host: usize, life: u32, group: u32) {
        if !self.hosts[host].is_up() || self.hosts[host].life != life {
            return;
        }
        let parents = self.hosts[host].stream_parents();
        let parent = parents.iter().find(|(of, _)| *of == group).and_then(|(_, parent)| *parent);
        let (Some(parent), None) = (parent, self.streams.of_child(group, host)) else { return };
        if parent >= self.hosts.len() || parent == host {
            return;
        }
        let parent_life = self.hosts[parent].life;
        let (id, at) = self.streams.open(self.now, group, (host, life), (parent, parent_life));
        self.schedule(at, EventKind::Stream(id, StreamStep::Challenge));
    }

    pub(super) fn step_stream(&mut self, id: u64, step: StreamStep) -> Result<(), String> {
        let Some(stream) = self.streams.get(id) else { return Ok(()) };
        let (group, child, parent, challenge) = (stream.group, stream.child, stream.parent, stream.challenge);
        let to = match step {
            StreamStep::Challenge | StreamStep::Record | StreamStep::ClosedAtChild => child,
            StreamStep::Attach(_) | StreamStep::ClosedAtParent => parent,
        };
        if !self.hosts[to.0].is_up() || self.hosts[to.0].life != to.1 {
            if matches!(step, StreamStep::Attach(_)) {
                self.close_stream(id, false, true);
            }
            return Ok(());
        }
        if let Some(until) = self.hosts[to.0].paused_until(self.now) {
            self.schedule(until, EventKind::Stream(id, step));
            return Ok(());
        }
        let is_closing = matches!(step, StreamStep::ClosedAtChild | StreamStep::ClosedAtParent);
        if !is_closing && self.network.is_apart(self.now, child.0, parent.0) {
            let later = self.now + REDIAL + self.streams.delay();
            self.schedule(later, EventKind::Stream(id, step));
            return Ok(());
        }
        match step {
            StreamStep::Challenge => {
                if let Some(bytes) = self.hosts[child.0].attach_packet(group, challenge) {
                    let at = self.now + self.streams.delay();
                    self.schedule(at, EventKind::Stream(id, StreamStep::Attach(bytes)));
                }
                Ok(())
            }
            StreamStep::Attach(bytes) => {
                if self.hosts[parent.0].attach(self.now, child.0, challenge, &bytes)? {
                    if let Some(earlier) = self.streams.attach(id) {
                        self.close_stream(earlier, false, true);
                    }
                } else {
                    self.close_stream(id, false, true);
                }
                self.drain(parent.0)
            }
            StreamStep::Record => {
                let Some((bytes, is_writable)) = self.streams.receive(id) else { return Ok(()) };
                if is_writable {
                    self.tell_parent(id, StreamChange::Writable)?;
                }
                self.hosts[child.0].record(self.now, parent.0, &bytes)?;
                self.drain(child.0)
            }
            StreamStep::ClosedAtParent => {
                self.tell_parent(id, StreamChange::Closed)?;
                self.streams.remove(id);
                Ok(())
            }
            StreamStep::ClosedAtChild => {
                self.streams.forget(id);
                let life = self.hosts[child.0].life;
                self.schedule(self.now + REDIAL, EventKind::Dial { host: child.0, life, group });
                Ok(())
            }
        }
    }

    /// Tells the parent's node that a stream has changed, if it still has it.
    fn tell_parent(&mut self, id: u64, change: StreamChange) -> Result<(), String> {
        let Some(stream) = self.streams.get(id) else { return Ok(()) };
        let (group, child, (parent, life)) = (stream.group, stream.child.0, stream.parent);
        let is_current = self.streams.attached(group, parent, child) == Some(id);
        if !is_current || !self.hosts[parent].is_up() || self.hosts[parent].life != life {
            return Ok(());
        }
        self.hosts[parent].change_stream(self.now, group, child, change)?;
        if change == StreamChange::Full { Ok(()) } else { self.drain(parent) }
    }

    pub(super) fn send_record(
        &mut self,
        host: usize,
        group: u32,
        to: usize,
        bytes: Vec<u8>,
    ) -> Result<(), String> {
        let Some(id) = self.streams.attached(group, host, to) else {
            return Err(format!("host {host} sends on a stream that it does not have"));
        };
        let sent = self.streams.send(self.now, id, bytes);
        self.schedule(sent.arrives_at, EventKind::Stream(id, StreamStep::Record));
        if sent.fills {
            self.tell_parent(id, StreamChange::Full)?;
        }
        if sent.breaks {
            self.end_stream(id, true, true);
        }
        Ok(())
    }

    /// A side has closed a stream: what is on its way is lost.
    fn close_stream(&mut self, id: u64, at_parent: bool, at_child: bool) {
        self.streams.close(id);
        self.end_stream(id, at_parent, at_child);
    }

    /// A stream ends: those sides hear of it, perhaps.
    fn end_stream(&mut self, id: u64, at_parent: bool, at_child: bool) {
        for (is_told, step) in
            [(at_parent, StreamStep::ClosedAtParent), (at_child, StreamStep::ClosedAtChild)]
        {
            if is_told && let Some(at) = self.streams.end_at(self.now) {
                self.schedule(at, EventKind::Stream(id, step));
            }
        }
    }

    /// A host has crashed.
    pub(super) fn break_streams(&mut self, host: usize) {
        for id in self.streams.of_host(host) {
            let Some(stream) = self.streams.get(id) else { continue };
            let is_child = stream.child.0 == host;
            self.close_stream(id, is_child, !is_child);
        }
    }
}
