//! What a host's node is asked to do, and the recording of it.

use treecast_proto::{GroupId, Input, Nanoseconds, Piece, Trace};

use super::Host;

/// Inputs.
impl Host {
    /// Records its inputs from now on.
    pub fn record_inputs(&mut self) {
        self.node.record();
    }

    /// The recorded inputs of each of its lives.
    pub fn into_traces(self) -> impl Iterator<Item = Trace> {
        self.traces.into_iter().chain(self.node.into_trace())
    }

    /// Gives the node an input, at the time of its own clock.
    pub(super) fn ask(&mut self, now: Nanoseconds, input: Input<'static>) -> Result<(), String> {
        if let Some(group) = input.group() {
            self.reclaim(now, group)?;
        }
        self.node.request(now, input).map_err(|fault| fault.to_string())
    }

    /// Queues a packet.
    pub(super) fn queue(
        &mut self,
        now: Nanoseconds,
        group: GroupId,
        piece: Piece,
        payload: &[u8],
    ) -> Result<(), String> {
        self.reclaim(now, group)?;
        self.node.queue(now, group, piece, payload).map_err(|fault| fault.to_string())
    }

    /// Whether its trace leads another node to the state of its own.
    #[cfg(test)]
    pub fn is_as_recorded(&self) -> bool {
        let recorded = self.node.trace().map(Trace::replay);
        format!("{recorded:#?}") == format!("{:#?}", Some(self.node.protocol()))
    }
}
