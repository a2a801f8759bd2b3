//! Who waits for whom.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::stream::Content;
use super::world::World;

/// Edges from what waits to what it waits for, each with its group.
type Waits<K> = BTreeMap<K, Vec<(K, u32)>>;

impl World<'_> {
    /// The cycle in which nodes wait for one another, a line each; empty where there is none.
    pub fn deadlock(&self) -> Vec<String> {
        if self.credits.is_some() { self.buffer_cycle() } else { self.token_cycle() }
    }

    /// LFC: the buffers of a NIC for a peer are taken by packets that wait for buffers of the next.
    fn buffer_cycle(&self) -> Vec<String> {
        let mut waits: Waits<(usize, usize)> = BTreeMap::new();
        let blocked = self.credits.iter().flat_map(|credits| &credits.blocked);
        for (&(node, to), jobs) in blocked {
            for job in jobs {
                // What its own host sends takes no receive buffer.
                if let Some(slot) = job.slot {
                    let from = self.nodes[node].slots[slot].from;
                    let group = self.streams[job.stream].group.expect("what is forwarded has a group");
                    waits.entry((from, node)).or_default().push(((node, to), group));
                }
            }
        }
        let line = |&((from, node), group, (_, to)): &((usize, usize), u32, (usize, usize))| {
            let [from, node, to] = [from, node, to].map(|node| self.host_name(node));
            format!(
                "the NIC of {node} keeps a packet of group {group} in a buffer for {from}, and waits for a buffer of the NIC \
                 of {to} for {node}"
            )
        };
        cycle(&waits).iter().map(line).collect()
    }

    /// Without credits: a node keeps messages in its receive buffers, since a child has no receive token for them, or since
    /// its send tokens are with messages that a child has no receive token for.
    fn token_cycle(&self) -> Vec<String> {
        let mut waits: Waits<usize> = BTreeMap::new();
        for stream in self.streams.iter().filter(|stream| stream.outstanding() > 0) {
            let holds_up = !self.nodes[stream.from].unposted.is_empty();
            for child in stream.children.iter().filter(|child| child.acked < stream.next()) {
                let Content::Data { group, .. } = stream.parcel(child.acked).content else { continue };
                // A root's own message is in no receive buffer.
                let keeps = !self.is_root(stream.from, group) || holds_up;
                if keeps && self.nodes[child.node].receive_tokens_used == self.parameters.receive_tokens {
                    waits.entry(stream.from).or_default().push((child.node, group));
                }
            }
        }
        let line = |&(node, group, to): &(usize, u32, usize)| {
            let kept = if self.is_root(node, group) { "send tokens" } else { "receive buffers" };
            let [node, to] = [node, to].map(|node| self.host_name(node));
            format!(
                "{node} has its {kept} with messages such as one of group {group}, and waits for {to}, which has no receive \
                 buffer left"
            )
        };
        cycle(&waits).iter().map(line).collect()
    }

    fn is_root(&self, node: usize, group: u32) -> bool {
        self.trees[group as usize].root == node
    }
}

/// A cycle: each waits, with a group, for the next, the last for the first. Found by going as deep as possible.
fn cycle<K: Copy + Ord>(waits: &Waits<K>) -> Vec<(K, u32, K)> {
    let mut done: BTreeMap<K, bool> = BTreeMap::new();
    for &start in waits.keys() {
        // The way down: who waits, for which of its edges.
        let mut path: Vec<(K, usize)> = Vec::new();
        if let Entry::Vacant(new) = done.entry(start) {
            new.insert(false);
            path.push((start, 0));
        }
        while let Some((at, edge)) = path.last_mut() {
            let (from, next) = (*at, waits.get(at).and_then(|edges| edges.get(*edge)));
            *edge += 1;
            match next {
                None => {
                    done.insert(from, true);
                    path.pop();
                }
                Some((to, _)) => match done.get(to) {
                    None => {
                        done.insert(*to, false);
                        path.push((*to, 0));
                    }
                    Some(true) => {}
                    Some(false) => {
                        let first = path.iter().position(|(at, _)| at == to).expect("it is on the way");
                        let step = |&(at, edge): &(K, usize)| {
                            let (to, group) = waits[&at][edge - 1];
                            (at, group, to)
                        };
                        return path[first..].iter().map(step).collect();
                    }
                },
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_is_found_without_what_leads_to_it() {
        let mut waits: Waits<u32> = BTreeMap::new();
        for (from, to) in [(0, 1), (1, 2), (1, 4), (2, 3), (4, 5), (5, 1)] {
            waits.entry(from).or_default().push((to, from));
        }
        assert_eq!(cycle(&waits), [(1, 1, 4), (4, 4, 5), (5, 5, 1)]);
        waits.remove(&4);
        assert_eq!(cycle(&waits), []);
    }
}
