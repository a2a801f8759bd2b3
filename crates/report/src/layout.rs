//! Where hosts and switches stand in a picture of a fabric.
//!
//! Tori and meshes are grids. Fabrics with levels, such as fat trees, have a row for each level,
//! and the hosts below their switches. All others are circles of switches with their hosts around
//! them, as no link between two switches then passes over a third one.

use std::collections::VecDeque;
use std::f64::consts::TAU;

use treecast_fabric::{SwitchId, Topology};

/// A position, in units of the distance between two hosts; y grows downwards.
pub(crate) type Point = (f64, f64);

/// The positions of everything in a fabric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Layout {
    /// By the number of the host.
    pub hosts: Vec<Point>,
    /// By the number of the switch.
    pub switches: Vec<Point>,
    /// The distance between neighbours, if the switches form a grid.
    pub pitch: Option<f64>,
}

/// The distance between two switches of a grid.
const PITCH: f64 = 2.6;

impl Layout {
    pub fn new(topology: &Topology) -> Self {
        let (hosts, switches) = (topology.host_count() as usize, topology.switch_count() as usize);
        let mut layout =
            Self { hosts: vec![(0.0, 0.0); hosts], switches: vec![(0.0, 0.0); switches], pitch: None };
        if topology.grid().is_some() {
            layout.grid(topology);
        } else if topology.switches().any(|switch| topology.hosts_of(switch).is_empty()) {
            layout.levels(topology);
        } else {
            layout.circle(topology);
        }
        layout
    }

    /// A plane of two dimensions; planes of further dimensions side by side, and below one another.
    fn grid(&mut self, topology: &Topology) {
        let grid = topology.grid().expect("the caller has seen it");
        self.pitch = Some(PITCH);
        let plane = f64::from(grid.radix()) + 0.7;
        for switch in topology.switches() {
            let mut point = [0.0, 0.0];
            let mut scale = [PITCH; 2];
            for (dimension, coordinate) in grid.coordinates(switch.0).enumerate() {
                point[dimension % 2] += f64::from(coordinate) * scale[dimension % 2];
                scale[dimension % 2] *= plane;
            }
            self.switches[switch.index()] = (point[0], point[1]);
            for &host in topology.hosts_of(switch) {
                self.hosts[host.index()] = (point[0] + 0.8, point[1] + 0.8);
            }
        }
    }

    /// Rows of switches, the top level first, over blocks of hosts.
    fn levels(&mut self, topology: &Topology) {
        let heights = heights(topology);
        let top = heights.iter().copied().max().unwrap_or(0);
        let leaves: Vec<SwitchId> =
            topology.switches().filter(|&switch| !topology.hosts_of(switch).is_empty()).collect();
        let largest = leaves.iter().map(|&leaf| topology.hosts_of(leaf).len()).max().unwrap_or(1);
        // The blocks are as wide as makes the whole picture about twice as wide as high.
        let size = |columns: usize| {
            let width = (leaves.len() * (columns + 1)) as f64;
            (width, largest.div_ceil(columns) as f64 + row_height(width) * f64::from(top + 1))
        };
        let shape = |columns: usize| {
            let (width, height) = size(columns);
            (width / height / 2.0).ln().abs()
        };
        let columns = (1..=largest).min_by(|&a, &b| shape(a).total_cmp(&shape(b))).unwrap_or(1);
        let (width, _) = size(columns);
        let row = row_height(width);
        for (leaf, position) in leaves.iter().zip(0..) {
            let left = f64::from(position) * (columns + 1) as f64;
            let x = left + (columns - 1) as f64 / 2.0;
            self.switches[leaf.index()] = (x, row * f64::from(top));
            for (&host, index) in topology.hosts_of(*leaf).iter().zip(0..) {
                let (line, column): (usize, usize) = (index / columns, index % columns);
                let y = row * f64::from(top) + 1.5 + line as f64;
                self.hosts[host.index()] = (left + column as f64, y);
            }
        }
        for height in 1..=top {
            // Above what they are linked to, which shortens links; in equal distances.
            let below = |switch: SwitchId| {
                let lower = topology.neighbours(switch).filter(|&(_, other)| heights[other.index()] < height);
                let xs: Vec<f64> = lower.map(|(_, other)| self.switches[other.index()].0).collect();
                xs.iter().sum::<f64>() / xs.len().max(1) as f64
            };
            let level = topology.switches().filter(|switch| heights[switch.index()] == height);
            let mut places: Vec<(f64, SwitchId)> = level.map(|switch| (below(switch), switch)).collect();
            places.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let pitch = width / places.len() as f64;
            for ((_, switch), position) in places.iter().zip(0..) {
                let x = (f64::from(position) + 0.5) * pitch - 1.0;
                self.switches[switch.index()] = (x, row * f64::from(top - height));
            }
        }
    }

    /// Switches on a circle, neighbours near one another, and their hosts on circles around it.
    fn circle(&mut self, topology: &Topology) {
        const RING_HOSTS: usize = 120;
        const SWITCH_SLOTS: usize = 2;
        let slots = |switch: SwitchId| topology.hosts_of(switch).len().max(SWITCH_SLOTS);
        let all: usize = topology.switches().map(slots).sum();
        let rings = all.div_ceil(RING_HOSTS);
        let radius = (all.div_ceil(rings) as f64 / TAU).max(2.5);
        let inner = if topology.switch_count() == 1 { 0.0 } else { (radius - 2.0).max(radius * 0.6) };
        let at = |angle: f64, radius: f64| (radius * angle.sin(), -radius * angle.cos());
        let mut before = 0;
        for switch in circular_order(topology) {
            let angle = |slot: f64| TAU * slot / all as f64;
            let middle = before as f64 + slots(switch) as f64 / 2.0;
            self.switches[switch.index()] = at(angle(middle), inner);
            let hosts = topology.hosts_of(switch);
            for (&host, index) in hosts.iter().zip(0..) {
                let slot = middle + f64::from(index) - (hosts.len() - 1) as f64 / 2.0;
                self.hosts[host.index()] = at(angle(slot), radius + (index as usize % rings) as f64);
            }
            before += slots(switch);
        }
    }
}

/// The distance between two levels of a picture of that width.
fn row_height(width: f64) -> f64 {
    (width / 7.0).max(3.0)
}

/// How many links each switch is above the switches with hosts.
fn heights(topology: &Topology) -> Vec<u32> {
    let mut heights = vec![u32::MAX; topology.switch_count() as usize];
    let mut queue = VecDeque::new();
    for switch in topology.switches().filter(|&switch| !topology.hosts_of(switch).is_empty()) {
        heights[switch.index()] = 0;
        queue.push_back(switch);
    }
    while let Some(switch) = queue.pop_front() {
        for (_, neighbour) in topology.neighbours(switch) {
            if heights[neighbour.index()] == u32::MAX {
                heights[neighbour.index()] = heights[switch.index()] + 1;
                queue.push_back(neighbour);
            }
        }
    }
    heights
}

/// The switches, each next to one that it is linked to where there is one; those of a dragonfly or
/// HyperX by their numbers, so that groups and rows stay together.
fn circular_order(topology: &Topology) -> Vec<SwitchId> {
    if topology.structure().is_some() {
        return topology.switches().collect();
    }
    let mut left: Vec<SwitchId> = topology.switches().collect();
    let mut order: Vec<SwitchId> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let is_linked = |switch: SwitchId| {
            order.last().is_some_and(|&last| topology.neighbours(last).any(|(_, other)| other == switch))
        };
        let next = left.iter().position(|&switch| is_linked(switch)).unwrap_or(0);
        order.push(left.remove(next));
    }
    order
}

#[cfg(test)]
mod tests {
    use treecast_fabric::FabricSpec;

    use super::*;

    fn layout(spec: &str) -> (Topology, Layout) {
        let topology = spec.parse::<FabricSpec>().unwrap().topology().unwrap();
        let layout = Layout::new(&topology);
        (topology, layout)
    }

    fn distance(a: Point, b: Point) -> f64 {
        (a.0 - b.0).hypot(a.1 - b.1)
    }

    #[test]
    fn nothing_stands_on_anything_else() {
        for spec in [
            "star:2",
            "star:16",
            "star:300",
            "icpp98",
            "irregular:switches=32,ports=8,hosts=32,seed=5",
            "mesh:k=4,n=1",
            "torus:k=4,n=2",
            "torus:k=3,n=4",
            "fat-tree:k=4",
            "fat-tree:k=16",
            "leaf-spine:leaves=4,spines=2,hosts=12",
            "dragonfly:p=2",
            "hyperx:s=4x4,t=4",
            "random-regular:switches=20,degree=4,hosts=40",
        ] {
            let (_, layout) = layout(spec);
            let all = [layout.hosts, layout.switches].concat();
            for (index, &a) in all.iter().enumerate() {
                assert!(a.0.is_finite() && a.1.is_finite());
                for &b in &all[..index] {
                    assert!(distance(a, b) > 0.7, "{spec}: {a:?} and {b:?}");
                }
            }
        }
    }

    #[test]
    fn levels_stand_above_one_another_and_hosts_below_all() {
        let (topology, layout) = layout("fat-tree:k=4");
        let heights = heights(&topology);
        for switch in topology.switches() {
            for (_, other) in topology.neighbours(switch) {
                let (here, there) = (heights[switch.index()], heights[other.index()]);
                let above = layout.switches[switch.index()].1 < layout.switches[other.index()].1;
                assert_eq!(above, here > there);
            }
        }
        let lowest = layout.switches.iter().map(|point| point.1).fold(f64::MIN, f64::max);
        assert!(layout.hosts.iter().all(|host| host.1 > lowest));
        for host in topology.hosts() {
            let nearest = topology.switches().min_by(|a, b| {
                let to =
                    |switch: &SwitchId| distance(layout.switches[switch.index()], layout.hosts[host.index()]);
                to(a).total_cmp(&to(b))
            });
            assert_eq!(nearest, Some(topology.switch_of(host)));
        }
    }

    #[test]
    fn a_star_has_its_switch_in_the_middle() {
        let (_, layout) = layout("star:16");
        let middle = layout.switches[0];
        let radius = distance(middle, layout.hosts[0]);
        assert!(layout.hosts.iter().all(|&host| (distance(middle, host) - radius).abs() < 1e-9));
    }
}
