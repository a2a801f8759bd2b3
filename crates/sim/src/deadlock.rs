//! A deadlock, shown: packets that wait for one another in a cycle.

use std::fmt::Write as _;

use treecast_fabric::{Channel, Fabric};
use treecast_terms::Cycles;

/// How often a run looks for worms that wait for one another, in cycles; and once more when it ends.
pub const DEADLOCK_INTERVAL: Cycles = Cycles(10_000);

/// One packet of a deadlock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The number of its multicast.
    pub multicast: u64,
    /// Its worm's place in the plan.
    pub worm: u32,
    /// Its place in the message.
    pub packet: u32,
    /// Where its first flit lies: the input buffer at the end of this channel.
    pub at: Channel,
    /// What it waits for: the next packet of the cycle lies behind that channel, or holds it.
    pub wants: Channel,
}

/// Packets that wait for one another: each for the next, the last for the first. None of them will ever go on, whatever
/// else happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// When it was found: a multiple of [`DEADLOCK_INTERVAL`], or the end of the run.
    pub cycle: Cycles,
    /// How many packets at the heads of their buffers will never go on.
    pub stuck: usize,
    /// The cycle.
    pub waits: Vec<Wait>,
}

impl Deadlock {
    /// The deadlock by name, a line a packet.
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
                "  multicast {multicast} worm {worm} packet {packet} came over {} and waits for {}",
                name(at),
                name(wants)
            );
        }
        text
    }

    /// The deadlock that stuck packets are in, if there are any. What is shown is the cycle that the packet in the lowest
    /// channel is on, or waits for.
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

/// A packet at the head of its buffer that will never go on.
#[derive(Debug)]
pub(crate) struct Stuck {
    /// Its buffer.
    pub at: Channel,
    /// The buffer of a stuck packet that it waits for.
    pub behind: Channel,
    /// How it is shown; not at all where it waits for itself, in another buffer that its first flits have come to.
    pub shown: Option<Wait>,
}

/// The cycle that the first packet is on or waits for: `next[i]` is the packet that packet i waits for.
fn cycle_among(next: &[usize]) -> Vec<usize> {
    // After as many steps as there are packets the walk is on a cycle.
    let first = (0..next.len()).fold(0, |at, _| next[at]);
    let mut cycle = vec![first];
    while let Some(&at) = cycle.last().filter(|&&at| next[at] != first) {
        cycle.push(next[at]);
    }
    cycle
}

/// A channel's name: the link's, and where links have several virtual channels its number.
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
    fn a_cycle_is_found_behind_those_that_only_wait_for_it() {
        let cycle = cycle_among(&[1, 2, 3, 1]);
        assert_eq!(cycle.len(), 3);
        assert!([1, 2, 3].iter().all(|packet| cycle.contains(packet)));
        assert_eq!(cycle_among(&[0]), [0]);
    }
}
