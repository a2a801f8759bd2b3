//! What the root's call costs its CPU as the system's activity reporter counts it.

use treecast_terms::Picoseconds;

use super::policies::Operation;
use super::simulation::Simulation;
use super::stream::Content;

impl Simulation<'_> {
    /// The root's time at user level, after the operation: it works or polls until it knows that
    /// its sends are complete, or on a path that the end of the path has the message. Events up to
    /// then are processed.
    pub fn root_user(&mut self, is_path: bool) -> Picoseconds {
        let completed = self.events.now();
        let answers = !matches!(self.parameters.operation, Operation::Broadcast | Operation::Skew);
        if answers || self.completed.is_none() {
            return completed;
        }
        if is_path && let Some(end) = self.trees[0].children.iter().position(Vec::is_empty) {
            self.send_control(end, 0, Content::Answer { group: 0 });
        }
        while !self.root_knows(is_path) && !self.aborted && self.step() {}
        self.root_event
    }

    fn root_knows(&self, is_path: bool) -> bool {
        let root = &self.nodes[0];
        if is_path { self.answered.is_some() } else { root.send_tokens_used == 0 && root.unposted.is_empty() }
    }

    /// The measures of the root's time at user level, with the time of the operation: means over
    /// broadcasts in a row.
    pub fn user_measures(&self, user: Picoseconds, completed: Picoseconds) -> [(&'static str, f64); 2] {
        let period = user.max(completed);
        let fraction = if period.0 == 0 { 0.0 } else { user.0 as f64 / period.0 as f64 };
        [
            ("root_user_us", user.us() / f64::from(self.parameters.broadcasts)),
            ("root_user_fraction", fraction),
        ]
    }
}
