//! Unicasts of two processes beside the multicasts of a run.

use super::node::Post;
use super::simulation::{Event, Simulation};
use super::stream::Content;

impl Simulation<'_> {
    /// Starts as many unicasts as may be in flight.
    pub fn start_unicasts(&mut self) {
        for _ in 0..self.parameters.unicasts_in_flight {
            self.pause_before_unicast();
        }
    }

    /// The sender has none to send before a pause is over.
    pub fn pause_before_unicast(&mut self) {
        let mean = self.parameters.unicast_pause;
        if let Some(unicasts) = &mut self.unicasts {
            let pause = unicasts.pause(mean);
            self.events.schedule_after(pause, Event::UnicastDue);
        }
    }

    /// The sender calls for a unicast.
    pub fn unicast_due(&mut self) {
        let (now, length) = (self.events.now(), self.parameters.unicast);
        let Some(unicasts) = &mut self.unicasts else { return };
        unicasts.called.push_back(now);
        let (from, to) = (unicasts.from, unicasts.to);
        let stream = self.connection(from, to);
        self.post(from, Post { stream, content: Content::Unicast, length });
    }

    /// The receiver has a unicast, and gives its buffer back.
    pub fn unicast_delivered(&mut self, node: usize) {
        self.nodes[node].receive_tokens_used -= 1;
        let now = self.events.now();
        let Some(unicasts) = &mut self.unicasts else { return };
        let called = unicasts.called.pop_front().expect("a unicast is delivered once, after its call");
        unicasts.delivered += 1;
        unicasts.latencies += now - called;
        unicasts.latency_max = unicasts.latency_max.max(now - called);
        unicasts.ended = now;
    }

    /// The measures of the unicasts, if any was delivered.
    pub fn unicast_measures(&self) -> Vec<(&'static str, f64)> {
        let Some(unicasts) = self.unicasts.as_ref().filter(|unicasts| unicasts.delivered > 0) else {
            return Vec::new();
        };
        let count = unicasts.delivered as f64;
        vec![
            ("unicast_us", unicasts.latencies.us() / count),
            ("unicast_max_us", unicasts.latency_max.us()),
            ("unicast_mb_per_s", count * self.parameters.unicast.0 as f64 / unicasts.ended.us()),
        ]
    }
}
