//! Broadcasts in a row: the barriers between them, the entries and returns of the processes, and
//! the times that are averaged.

use treecast_terms::Picoseconds;

use super::host::CONTROL;
use super::node::{GmEvent, Phase, Post};
use super::policies::{Barrier, Layer, Operation};
use super::row::mean;
use super::simulation::{Event, Simulation};
use super::stream::Content;

/// The number of steps of a dissemination barrier: the logarithm of the number of processes to base
/// 2, rounded up.
fn steps(processes: usize) -> u32 {
    processes.next_power_of_two().trailing_zeros()
}

impl Simulation<'_> {
    /// A process starts its next round: the barrier if there is one, and then the broadcast.
    pub fn start_round(&mut self, node: usize) {
        match self.parameters.barrier {
            Barrier::None => self.compute(node),
            Barrier::Dissemination => {
                #[cfg(test)]
                self.barriers.push((node, self.nodes[node].round, false));
                self.call(node);
                self.nodes[node].phase = Phase::Barrier { step: 0, posting: false };
                self.send_step(node);
                self.heed_deferred(node);
            }
        }
    }

    /// CPU time of a call of the software layer.
    fn call(&mut self, node: usize) {
        if self.parameters.layer == Layer::Mpi {
            self.nodes[node].cpu.serve(self.events.now(), self.parameters.mpi_call);
        }
    }

    /// Posts the message of the current step of a barrier. In step k a process sends to the one 2^k
    /// places behind it.
    fn send_step(&mut self, node: usize) {
        let Phase::Barrier { step, posting } = &mut self.nodes[node].phase else { return };
        *posting = true;
        let distance = 1 << *step;
        let stream = self.connection(node, (node + distance) % self.nodes.len());
        let content = Content::Barrier { round: self.nodes[node].round };
        self.post(node, Post { stream, content, length: CONTROL });
    }

    /// The message of a barrier step has been posted.
    pub fn barrier_posted(&mut self, node: usize) {
        if let Phase::Barrier { posting, .. } = &mut self.nodes[node].phase {
            *posting = false;
        }
        self.continue_barrier(node);
    }

    /// A message of a barrier has been received, perhaps earlier than the process needs it.
    pub fn barrier_received(&mut self, node: usize, from: usize, round: u32) {
        self.nodes[node].barrier_messages.insert((round, from));
        self.continue_barrier(node);
    }

    /// Ends the current step of a barrier if its message has been posted and the one from the
    /// process 2^k places before has been received: the next step begins, or after the last one the
    /// computation before the broadcast.
    fn continue_barrier(&mut self, node: usize) {
        let Phase::Barrier { step, posting: false } = self.nodes[node].phase else { return };
        let count = self.nodes.len();
        let from = (node + count - (1 << step)) % count;
        let round = self.nodes[node].round;
        if !self.nodes[node].barrier_messages.remove(&(round, from)) {
            return;
        }
        if step + 1 < steps(count) {
            self.nodes[node].phase = Phase::Barrier { step: step + 1, posting: false };
            self.send_step(node);
            return;
        }
        #[cfg(test)]
        self.barriers.push((node, round, true));
        self.compute(node);
    }

    /// A process computes before it enters the operation, if it is to be late.
    fn compute(&mut self, node: usize) {
        let is_late = node > 0
            && self.parameters.operation == Operation::Skew
            && self.parameters.skew > Picoseconds::ZERO;
        let duration = if is_late { self.computation(node) } else { Picoseconds::ZERO };
        self.nodes[node].phase = Phase::Computing;
        self.events.schedule_after(duration, Event::Entered(node));
    }

    /// A process enters the operation.
    pub fn entered(&mut self, node: usize) {
        let now = self.events.now();
        let Self { parameters, nodes, .. } = self;
        let state = &mut nodes[node];
        state.phase = Phase::Called;
        (state.called, state.busy_before) = (now, state.cpu_busy(now));
        // A process sends for the group of which it is the root, and receives for the others.
        state.tasks = parameters.groups * parameters.messages;
        let round = state.round;
        if node == 0 && (round == 0 || !self.calls_overlap()) {
            if round > 0 {
                self.row.close();
            }
            self.row.started = now;
        }
        self.call(node);
        self.send_own_messages(node);
        self.heed_deferred(node);
    }

    /// Whether a root calls the next broadcast before all others have returned from the last one.
    fn calls_overlap(&self) -> bool {
        let is_call = matches!(self.parameters.operation, Operation::Broadcast | Operation::Skew);
        is_call && self.parameters.barrier == Barrier::None
    }

    /// A process returns.
    pub fn returned(&mut self, node: usize) {
        let now = self.events.now();
        let state = &mut self.nodes[node];
        let busy = state.cpu_busy(now);
        state.phase = Phase::Returned;
        state.in_calls += now - state.called;
        state.busy_in_calls += busy - state.busy_before;
        if matches!(self.parameters.operation, Operation::Broadcast | Operation::Skew) {
            self.count_down();
        } else if node == 0 {
            // It starts the next round when it has the acknowledgments or the answer.
            return;
        }
        self.next_round(node);
    }

    /// A process starts its next round, if there is one.
    fn next_round(&mut self, node: usize) {
        if self.nodes[node].round + 1 < self.parameters.broadcasts {
            self.nodes[node].round += 1;
            self.start_round(node);
        }
    }

    /// Counts a completion that the operation waits for.
    pub fn count_down(&mut self) {
        self.awaited -= 1;
        self.row.ended = self.events.now();
        if self.awaited > 0 {
            return;
        }
        let broadcasts = self.parameters.broadcasts;
        if self.nodes[0].round + 1 == broadcasts {
            self.row.close();
            self.completed = Some(mean(self.row.latencies, broadcasts));
        } else {
            self.awaited = self.completions();
            self.next_round(0);
        }
    }

    /// Whether a process heeds an event now. One that computes heeds none; a message of a broadcast
    /// is heeded in its call.
    pub fn heeds(&self, node: usize, notice: GmEvent) -> bool {
        let state = &self.nodes[node];
        let round = match notice {
            GmEvent::Received {
                content: Content::Data { message, .. } | Content::Ready { message, .. },
                ..
            } => Some(message / self.parameters.messages),
            _ => None,
        };
        match state.phase {
            Phase::Computing => false,
            Phase::Barrier { .. } => round.is_none_or(|round| round < state.round),
            Phase::Called | Phase::Returned => round.is_none_or(|round| round <= state.round),
        }
    }

    /// Looks at the events again that a process has not heeded.
    fn heed_deferred(&mut self, node: usize) {
        for notice in std::mem::take(&mut self.nodes[node].deferred) {
            self.noticed(node, notice);
        }
    }
}
