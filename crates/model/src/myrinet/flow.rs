//! Flow control by credits, applied to the run: FM/MC's central manager, and LFC's credits between
//! NICs.

use treecast_terms::Picoseconds;

use super::credits::Parked;
use super::node::{Job, Transmission};
use super::simulation::{Event, Simulation};
use super::stream::Content;

impl Simulation<'_> {
    /// CPU time that the manager needs for a message, besides the event. It is counted as the
    /// manager's.
    pub fn manager_work(&mut self, node: usize, content: Content) -> Picoseconds {
        let is_for_manager = matches!(content, Content::CreditRequest { .. } | Content::CreditReturn { .. });
        match &mut self.manager {
            Some(manager) if is_for_manager && manager.node == node => {
                manager.busy += self.parameters.host_event + self.parameters.manager;
                self.parameters.manager
            }
            _ => Picoseconds::ZERO,
        }
    }

    /// The manager receives a request for a credit.
    pub fn credit_requested(&mut self, group: u32, message: u32) {
        let manager = self.manager.as_mut().expect("credits are requested from a manager");
        manager.request(group, message);
        self.grant();
    }

    /// The manager learns that a receiver has taken a message.
    pub fn credit_returned(&mut self, group: u32, message: u32) {
        let receivers = self.nodes.len() as u32 - 1;
        let manager = self.manager.as_mut().expect("credits are returned to a manager");
        if manager.return_credit(group, message, receivers) {
            self.grant();
        }
    }

    fn grant(&mut self) {
        let manager = self.manager.as_mut().expect("a manager grants credits");
        if let Some((group, message)) = manager.grant() {
            let (node, root) = (manager.node, self.trees[group as usize].root);
            self.send_control(node, root, Content::CreditGrant { group, message });
        }
    }

    /// Takes a receive buffer of a job's next child, if the flow control needs one. A job that
    /// finds none waits.
    pub fn take_credit(&mut self, job: Box<Job>) -> Option<Box<Job>> {
        let Some(credits) = &mut self.credits else { return Some(job) };
        let stream = &self.streams[job.stream];
        let child = stream.children[job.children[job.served] as usize].node;
        credits.take(stream.from, child, job)
    }

    /// Handles the return of a credit: sends the job that has waited longest for it.
    pub fn credited(&mut self, from: usize, to: usize) {
        let credits = self.credits.as_mut().expect("credits return only where they are used");
        if let Some(job) = credits.credited(from, to) {
            self.transmit(from, Transmission::Data(job));
        }
    }

    /// Lets a packet wait in its receive buffer: with credits it is never retransmitted.
    pub fn park(&mut self, node: usize, packet: Parked) {
        let credits = self.credits.as_mut().expect("packets wait only under credits");
        credits.park(node, packet);
    }

    /// A receive token is free, or a packet has been accepted: looks at the waiting packets again,
    /// in their order.
    pub fn unpark(&mut self, node: usize) {
        let parked = self.credits.as_mut().map(|credits| credits.unpark(node)).unwrap_or_default();
        for (stream, child, number, slot) in parked {
            self.nic(node, Picoseconds::ZERO, Event::Received { stream, child, number, slot });
        }
    }
}
