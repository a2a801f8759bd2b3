//! The description of a deadlock: packets that wait for one another in a cycle.

use std::fmt::Write as _;

use treecast_fabric::{Channel, Fabric};
use treecast_terms::Cycles;

/// The interval of deadlock detection, in cycles. A run also checks for deadlock when it ends.
pub const DEADLOCK_INTERVAL: Cycles = Cycles(10_000);

/// One packet of a deadlock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The number of its multicast.
    pub multicast: u64,
    /// The index of its worm in the plan.
    pub worm: u32,
    /// Its number in the message, from 0.
    pub packet: u32,
    /// The channel at whose end its head flit is buffered.
    pub at: Channel,
    /// The channel that it waits for. The next packet of the cycle holds that channel, or blocks
    /// the buffer at its end.
    pub wants: Channel,
}

/// Packets that wait for one another in a cycle: each for the next, the last for the first. None of
/// them can ever proceed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// The cycle of detection: a multiple of [`DEADLOCK_INTERVAL`], or the end of the run.
    pub cycle: Cycles,
    /// The number of packets at the heads of input buffers that can never proceed.
    pub stuck: usize,
    /// The wait-for cycle.
    pub waits: Vec<Wait>,
}

impl Deadlock {
    /// The deadlock as text: one line per packet.
    pub fn describe(&self, fabric: &Fabric) -> String {
        let name = |channel| channel_name(fabric, channel);
        let mut text = format!(
            "{} packets are stuck at cycle {}; {} of them wait for one another in a cycle:\n",
            self.stuck,
            self.cycle.0,
            self.waits.len()
        );
        for wait in &self.waits {
            let Wait { multicast, worm, packet, at, wants } = *wait;
            let _ = writeln!(
                text,
                "  multicast {multicast} worm {worm} packet {packet} arrived over {} and waits for {}",
                name(at),
                name(wants)
            );
        }
        text
    }

    /// The deadlock among stuck packets, if there are any. It describes the cycle that contains the
    /// packet in the lowest channel, or that this packet waits for.
    pub(crate) fn among(cycle: Cycles, mut stuck: Vec<Stuck>) -> Option<Self> {
        if stuck.is_empty() {
            return None;
        }
        stuck.sort_unstable_by_key(|packet| packet.at);
        let place = |channel: Channel| stuck.binary_search_by_key(&channel, |packet| packet.at);
        let next: Vec<usize> = stuck
            .iter()
            .map(|packet| place(packet.behind).expect("a stuck packet waits for a stuck packet"))
            .collect();
        let waits = cycle_among(&next).into_iter().filter_map(|packet| stuck[packet].shown.clone());
        Some(Self { cycle, stuck: stuck.len(), waits: waits.collect() })
    }
}

/// A packet at the head of its buffer that can never proceed.
#[derive(Debug)]
pub(crate) struct Stuck {
    /// Its buffer.
    pub at: Channel,
    /// The buffer of the stuck packet that it waits for.
    pub behind: Channel,
    /// Its description; `None` where it waits for itself, in another buffer that its first flits
    /// have reached.
    pub shown: Option<Wait>,
}

/// The cycle that contains the first packet, or that it waits for: packet i waits for packet
/// `next[i]`.
fn cycle_among(next: &[usize]) -> Vec<usize> {
    // After as many steps as there are packets, the walk has reached a cycle.
    let first = (0..next.len()).fold(0, |at, _| next[at]);
    let mut cycle = vec![first];
    while let Some(&at) = cycle.last().filter(|&&at| next[at] != first) {
        cycle.push(next[at]);
    }
    cycle
}

/// A channel's name: that of the link, and the number of the virtual channel where links have
/// several.
pub(crate) fn channel_name(fabric: &Fabric, channel: Channel) -> String {
    let link = fabric.topology().link_name(channel.link);
    match fabric.routing().virtual_channel_count() {
        1 => link,
        _ => format!("{link} (virtual channel {})", channel.virtual_channel),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_is_found_without_the_packets_that_only_wait_for_it() {
        let cycle = cycle_among(&[1, 2, 3, 1]);
        assert_eq!(cycle.len(), 3);
        assert!([1, 2, 3].iter().all(|packet| cycle.contains(packet)));
        assert_eq!(cycle_among(&[0]), [0]);
    }
}
