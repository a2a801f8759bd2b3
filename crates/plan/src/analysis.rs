//! Static analysis of a plan, without simulation.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treecast_fabric::{Channel, Fabric, Link, Vertex};

use crate::error::PlanError;
use crate::limits::PACKETS_MAX;
use crate::plan::{Plan, WormKind};
use crate::routes::Routes;

/// The static metrics of a plan.
///
/// Steps are those of the one-port model: a holder starts one worm per step, and a receiver may
/// send from the next step on. With m packets a sender serves them first-packet-first-served:
/// packet 1 to every child, then packet 2. Links inside a node (torus, mesh) and inside a host do
/// not count as links.
///
/// Where the fabric routes adaptively, links are those of representative routes: the
/// lowest-numbered choice at each step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Analysis {
    /// Steps until the last destination has all packets.
    pub steps: u64,
    /// The number of worms on the longest path of the tree, from the root to a destination.
    pub depth: u32,
    /// Steps until the last destination has the first packet: rounds in which each holder sends at
    /// most one worm.
    pub phases: u32,
    /// The number of worms.
    pub worms: u32,
    /// The most worms of one sender.
    pub max_fan_out: u32,
    /// The number of link crossings, over all worms.
    pub link_visits: u64,
    /// The number of distinct directed links crossed.
    pub links_used: u32,
    /// Link visits divided by links used; 0 if no link is used.
    pub link_concentration: f64,
    /// The most worms in transit on links in one step.
    pub link_concurrency: u32,
    /// Pairs of worms that may be in flight together and share a directed link, or a virtual
    /// channel of it where links have several; counted once per contiguous stretch of links that a
    /// pair shares.
    pub contending_pairs: u64,
    /// Whether every child's id is greater than its parent's unless the parent is the root: then
    /// waits of NICs with bounded buffers cannot form a cycle.
    pub id_rule: bool,
}

impl Plan {
    /// The step in which each worm carries the first packet, from 1, in the one-port model; one
    /// entry per worm, in the order of [`Plan::worms`].
    pub fn steps(&self) -> Vec<u32> {
        Steps::of(self).sent
    }

    /// Steps until the last destination has the first packet: rounds in which each holder sends at
    /// most one worm.
    pub fn phases(&self) -> u32 {
        Steps::of(self).phases()
    }

    /// Analyses the plan for a message of `packets` packets.
    ///
    /// Two worms may be in flight together unless the plan orders them: the same sender sends one
    /// before the other, or, for a message of one packet, one sender receives through what the
    /// other worm started. (With several packets a network interface forwards the first while later
    /// ones still arrive.) Cost: n log n, and the length of all routes; where routing is adaptive
    /// also a search over the switches above senders for each destination switch.
    ///
    /// # Errors
    /// [`PlanError::PlacementMismatch`] where the plan belongs to another fabric;
    /// [`PlanError::Packets`].
    pub fn analyse(&self, fabric: &Fabric, packets: u32) -> Result<Analysis, PlanError> {
        self.placement().check_fabric(fabric)?;
        if !(1..=PACKETS_MAX).contains(&packets) {
            return Err(PlanError::Packets(packets.into()));
        }
        let steps = Steps::of(self);
        let order = Precedence::of(self, packets > 1);
        let mut visits: Vec<Visit> = Vec::new();
        let topology = fabric.topology();
        let mut used = vec![false; topology.link_count() as usize];
        let mut link_visits = 0;
        let mut routes = Routes::new(self, fabric);
        // In the order of destination switches: worms to one switch share the search for their
        // routes.
        let mut by_switch: Vec<usize> = (0..self.worms.len()).collect();
        by_switch
            .sort_by_key(|&position| topology.switch_of(self.placement.host_of(self.worms[position].to[0])));
        for position in by_switch {
            let worm = &self.worms[position];
            // The channel on which the worm entered each vertex. Only a tree worm enters a switch
            // twice: first going up, then coming down, and it continues from there with the copy
            // that came down.
            let mut came_by: BTreeMap<Vertex, Channel> = BTreeMap::new();
            for channel in routes.of(worm) {
                if topology.is_internal(channel.link) {
                    continue;
                }
                link_visits += 1;
                used[channel.link.index()] = true;
                let Link { from, to, .. } = topology.link(channel.link);
                let before = came_by.get(&from).copied();
                visits.push(Visit { channel, before, worm: order.place[position] });
                came_by.insert(to, channel);
            }
        }
        let links_used = used.iter().filter(|&&used| used).count() as u32;
        Ok(Analysis {
            steps: steps.with_packets(u64::from(packets)),
            depth: steps.depth.iter().copied().max().unwrap_or(0),
            phases: steps.phases(),
            worms: self.worms.len() as u32,
            max_fan_out: self.worms.iter().map(|worm| worm.index + 1).max().unwrap_or(0),
            link_visits,
            links_used,
            link_concentration: if links_used == 0 {
                0.0
            } else {
                link_visits as f64 / f64::from(links_used)
            },
            link_concurrency: steps.most_at_once(self),
            contending_pairs: Precedence::contending_pairs(visits),
            id_rule: self
                .worms
                .iter()
                .all(|worm| worm.from == self.root || worm.to.iter().all(|&to| to > worm.from)),
        })
    }
}

/// The steps in which members receive the first packet, in the one-port model.
struct Steps {
    /// The step in which each member receives; 0 at the root, and for a member outside the plan.
    received: Vec<u32>,
    depth: Vec<u32>,
    /// The step in which each worm travels.
    sent: Vec<u32>,
    /// The largest fan-out between the root and each member, the member's own included.
    fan_out: Vec<u32>,
}

impl Steps {
    fn of(plan: &Plan) -> Self {
        let members = plan.placement.member_count() as usize;
        let mut own_fan_out = vec![0; members];
        for worm in &plan.worms {
            own_fan_out[worm.from.index()] = worm.index + 1;
        }
        let mut steps = Self {
            received: vec![0; members],
            depth: vec![0; members],
            sent: Vec::with_capacity(plan.worms.len()),
            fan_out: own_fan_out,
        };
        for worm in &plan.worms {
            let from = worm.from.index();
            let step = steps.received[from] + worm.index + 1;
            steps.sent.push(step);
            for to in &worm.to {
                steps.received[to.index()] = step;
                steps.depth[to.index()] = steps.depth[from] + 1;
                steps.fan_out[to.index()] = steps.fan_out[to.index()].max(steps.fan_out[from]);
            }
        }
        steps
    }

    fn phases(&self) -> u32 {
        self.received.iter().copied().max().unwrap_or(0)
    }

    /// The spacing of packets at a member is the largest fan-out above it: there each packet takes
    /// one step per child, and no member further down is slower. (A member's own fan-out may be
    /// counted: its children are later by as much.)
    fn with_packets(&self, packets: u64) -> u64 {
        let last =
            |(&received, &fan_out): (&u32, &u32)| u64::from(received) + (packets - 1) * u64::from(fan_out);
        self.received
            .iter()
            .zip(&self.fan_out)
            .filter(|(received, _)| **received > 0)
            .map(last)
            .max()
            .unwrap_or(0)
    }

    fn most_at_once(&self, plan: &Plan) -> u32 {
        let mut at_once = vec![0; self.sent.iter().copied().max().unwrap_or(0) as usize + 1];
        for (worm, &step) in plan.worms.iter().zip(&self.sent) {
            at_once[step as usize] += u32::from(worm.kind != WormKind::Local);
        }
        at_once.into_iter().max().unwrap_or(0)
    }
}

/// A worm crosses a channel, after another channel or from its sender.
struct Visit {
    channel: Channel,
    before: Option<Channel>,
    worm: Place,
}

/// The precedence of worms: a tree in which a worm's parent is the worm that its sender sent before
/// it, or the worm that brought its sender the message.
struct Precedence {
    place: Vec<Place>,
}

/// A worm's position in a preorder walk of that tree: its descendants follow it, up to `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    start: u32,
    end: u32,
}

impl Precedence {
    /// With several packets (`pipelined`) a member may send while it still receives.
    fn of(plan: &Plan, pipelined: bool) -> Self {
        const NONE: u32 = u32::MAX;
        // The last worm that a member received or sent: the parent of the next one it sends.
        let mut last = vec![NONE; plan.placement.member_count() as usize];
        let mut above = Vec::with_capacity(plan.worms.len());
        for (position, worm) in (0..).zip(&plan.worms) {
            above.push(last[worm.from.index()]);
            last[worm.from.index()] = position;
            if !pipelined {
                for to in &worm.to {
                    last[to.index()] = position;
                }
            }
        }
        let mut sizes = vec![1_u32; above.len()];
        for position in (0..above.len()).rev() {
            if above[position] != NONE {
                sizes[above[position] as usize] += sizes[position];
            }
        }
        let mut free = 0;
        let mut next_below = vec![0; above.len()];
        let mut place = Vec::with_capacity(above.len());
        for position in 0..above.len() {
            let start = match above[position] {
                NONE => &mut free,
                parent => &mut next_below[parent as usize],
            };
            let mine = Place { start: *start, end: *start + sizes[position] };
            *start = mine.end;
            next_below[position] = mine.start + 1;
            place.push(mine);
        }
        Self { place }
    }

    /// Pairs that share a channel and are not ordered, less those that also shared the channel
    /// before it.
    fn contending_pairs(mut visits: Vec<Visit>) -> u64 {
        visits.sort_unstable_by_key(|visit| (visit.channel, visit.before, visit.worm));
        let mut total = 0;
        for here in visits.chunk_by(|a, b| a.channel == b.channel) {
            if here.len() == 1 {
                continue;
            }
            let mut all: Vec<Place> = here.iter().map(|visit| visit.worm).collect();
            all.sort_unstable();
            total += unordered_pairs(&all);
            for together in here.chunk_by(|a, b| a.before == b.before) {
                if together[0].before.is_some() {
                    let together: Vec<Place> = together.iter().map(|visit| visit.worm).collect();
                    total -= unordered_pairs(&together);
                }
            }
        }
        total
    }
}

/// The number of pairs of which neither precedes the other. `places` is sorted.
fn unordered_pairs(places: &[Place]) -> u64 {
    let mut above: Vec<Place> = Vec::new();
    let mut ordered = 0;
    for &place in places {
        while above.last().is_some_and(|top| top.end <= place.start) {
            above.pop();
        }
        ordered += above.len() as u64;
        above.push(place);
    }
    let count = places.len() as u64;
    count * (count - 1) / 2 - ordered
}
