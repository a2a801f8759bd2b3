//! The states of docs/protocol.md in which packets and children are.

use super::{Flow, Timeouts};
use super::child::Child;
use crate::diagrams::Diagram;

impl Flow {
    /// Reports the state of each packet and of each child in its diagram.
    pub fn states(&self, report: &mut dyn FnMut(Diagram, u32, &'static str)) {
        let state = &self.state;
        let first = state.freed - self.config.slots;
        for packet in first.until(self.window_end()).filter(|_| !self.config.is_root) {
            let is_stable = packet.is_before(state.stable);
            let name = match packet.is_before(state.consumed) {
                _ if packet.is_before(state.freed) => "freed",
                _ if !packet.is_before(state.next) && self.held.contains(packet) => "held",
                _ if !packet.is_before(state.next) => "expected",
                true => "read",
                false if is_stable => "stable",
                false => "accepted",
            };
            report(Diagram::Packet, packet.0, name);
        }
        for child in &self.children {
            report(Diagram::Child, child.member().0, child.state_name(self.config.timeouts));
        }
    }
}

impl Child {
    /// A state of docs/protocol.md.
    fn state_name(&self, timeouts: Timeouts) -> &'static str {
        let state = &self.state;
        let is_silent = state.unanswered > 0
            && state.timer_started_at.since(state.unanswered_since) > timeouts.peer_timeout;
        if self.has_lost_state {
            "state lost"
        } else if is_silent {
            "silent"
        } else if !self.is_established {
            "new"
        } else if state.backoff > 0 {
            "timed out"
        } else if self.in_flight() > 0 {
            "sent to"
        } else if state.stable.is_before(state.sent) {
            "relaying"
        } else if !state.sent.is_before(state.window_end) {
            "full"
        } else {
            "idle"
        }
    }
}
