//! What a host's protocol takes in, and the recording of it.

use treecast_proto::{Input, Nanoseconds, Step, Trace};

use super::{Host, address, settings};

/// Inputs.
impl Host {
    /// Records its inputs from now on, after those of earlier lives.
    pub fn record_inputs(&mut self, mut traces: Vec<Trace>) {
        traces.push(Trace::new(address(self.number), settings()));
        self.traces = Some(traces);
    }

    /// Gives the node an input, at the time of its own clock; `payload` is that of a packet to
    /// queue.
    pub(super) fn ask(
        &mut self,
        now: Nanoseconds,
        input: Input<'static>,
        payload: &[u8],
    ) -> Result<(), String> {
        if let Some(group) = input.group() {
            self.reclaim(now, group)?;
        }
        self.take(now, Step::Request { input, payload: payload.to_vec() })
    }

    /// Gives the protocol an input of a group that is not handed off, and records it.
    pub(super) fn take(&mut self, now: Nanoseconds, step: Step) -> Result<(), String> {
        let handled = step.input().map_or(Ok(()), |input| self.protocol.handle(now, input));
        let handled = handled.map_err(|refused| format!("{refused}: {step:?}"));
        if let Some(trace) = self.trace() {
            trace.record(now, step);
        }
        handled
    }

    /// An output is to be polled.
    pub(super) fn record_poll(&mut self, now: Nanoseconds) {
        if let Some(trace) = self.trace() {
            trace.record_poll(now);
        }
    }

    fn trace(&mut self) -> Option<&mut Trace> {
        self.traces.as_mut()?.last_mut()
    }

    /// Whether its trace leads another node to the state of its own.
    #[cfg(test)]
    pub fn is_as_recorded(&self) -> bool {
        let recorded = self.traces.as_ref().and_then(|traces| traces.last()).map(Trace::replay);
        format!("{recorded:?}") == format!("{:?}", Some(&self.protocol))
    }
}
