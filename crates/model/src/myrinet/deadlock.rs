//! The wait-for graph of a run that has no events left.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::simulation::Simulation;
use super::stream::Content;

/// Edges from a waiting resource to the one that it waits for, each with a label.
type Waits<K, L> = BTreeMap<K, Vec<(K, L)>>;

impl Simulation<'_> {
    /// The cycle in which nodes wait for one another, one line per edge; empty if there is none.
    pub fn deadlock(&self) -> Vec<String> {
        if self.credits.is_some() { self.buffer_cycle() } else { self.token_cycle() }
    }

    /// LFC: the buffers of a NIC for a peer are taken by packets that wait for buffers of the next.
    fn buffer_cycle(&self) -> Vec<String> {
        let mut waits: Waits<(usize, usize), u32> = BTreeMap::new();
        let blocked = self.credits.iter().flat_map(|credits| &credits.blocked);
        for (&(node, to), jobs) in blocked {
            for job in jobs {
                // A packet that its own host sends takes no receive buffer.
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

    /// Without credits: a child has no receive token for a message, which blocks the senders of
    /// that message.
    fn token_cycle(&self) -> Vec<String> {
        let mut waits: Waits<usize, (Kept, u32)> = BTreeMap::new();
        for stream in self.streams.iter().filter(|stream| stream.outstanding() > 0) {
            let full = |node: usize| self.nodes[node].receive_tokens_used == self.parameters.receive_tokens;
            for child in
                stream.children.iter().filter(|child| child.acked < stream.next() && full(child.node))
            {
                let queued_message = stream.queued_message(child.acked);
                let Content::Data { group, .. } = queued_message.content else { continue };
                let mut wait = |node, kept| waits.entry(node).or_default().push((child.node, (kept, group)));
                // A root's own message is in no receive buffer.
                if self.trees[group as usize].root != stream.from {
                    wait(stream.from, Kept::ReceiveBuffers);
                } else if !self.nodes[stream.from].unposted.is_empty() {
                    wait(stream.from, Kept::SendTokens);
                }
                // Other children that have all packets sent so far, but not the whole message.
                let part = queued_message.first + 1..queued_message.end;
                for other in &stream.children {
                    if part.contains(&other.expected) && other.expected == stream.next() {
                        wait(other.node, Kept::Part);
                    }
                }
            }
        }
        let line = |&(node, (kept, group), to): &(usize, (Kept, u32), usize)| {
            let [node, to] = [node, to].map(|node| self.host_name(node));
            let keeps = match kept {
                Kept::ReceiveBuffers => {
                    format!("keeps a message of group {group} in a receive buffer, and waits")
                }
                Kept::SendTokens => {
                    format!("has its send tokens with messages such as one of group {group}, and waits")
                }
                Kept::Part => format!("has part of a message of group {group}, whose rest waits"),
            };
            format!("{node} {keeps} for {to}, which has no receive buffer left")
        };
        cycle(&waits).iter().map(line).collect()
    }
}

/// The resource that a node holds while it waits.
#[derive(Debug, Clone, Copy)]
enum Kept {
    /// A message that it forwards.
    ReceiveBuffers,
    /// The tokens that it needs to forward what it has received.
    SendTokens,
    /// A message of which it has all packets that the window has allowed.
    Part,
}

/// A cycle of the wait-for graph with its labels, found by depth-first search.
fn cycle<K: Copy + Ord, L: Copy>(waits: &Waits<K, L>) -> Vec<(K, L, K)> {
    let mut done: BTreeMap<K, bool> = BTreeMap::new();
    for &start in waits.keys() {
        // The current path: each vertex with its next edge.
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
                        let first = path.iter().position(|(at, _)| at == to).expect("it is on the path");
                        let step = |&(at, edge): &(K, usize)| {
                            let (to, label) = waits[&at][edge - 1];
                            (at, label, to)
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
    fn a_cycle_is_found_without_the_path_that_leads_to_it() {
        let mut waits: Waits<u32, u32> = BTreeMap::new();
        for (from, to) in [(0, 1), (1, 2), (1, 4), (2, 3), (4, 5), (5, 1)] {
            waits.entry(from).or_default().push((to, from));
        }
        assert_eq!(cycle(&waits), [(1, 1, 4), (4, 4, 5), (5, 5, 1)]);
        waits.remove(&4);
        assert_eq!(cycle(&waits), []);
    }
}
