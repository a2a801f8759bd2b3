//! Links between switches, by the switch that they leave.

use crate::ids::{LinkId, SwitchId};
use crate::topology::Topology;

/// A subset of the links between switches: those that leave each switch, in the order of their
/// ports, with the switches at their ends.
#[derive(Debug, Clone)]
pub(super) struct Ports {
    start: Vec<u32>,
    ports: Vec<(LinkId, SwitchId)>,
}

impl Ports {
    pub(super) fn new(topology: &Topology, keep: impl Fn(SwitchId, SwitchId) -> bool) -> Self {
        let mut start = vec![0];
        let mut ports = Vec::new();
        for switch in topology.switches() {
            ports.extend(topology.neighbours(switch).filter(|&(_, next)| keep(switch, next)));
            start.push(ports.len() as u32);
        }
        Self { start, ports }
    }

    pub(super) fn of(&self, switch: SwitchId) -> &[(LinkId, SwitchId)] {
        &self.ports[self.start[switch.index()] as usize..self.start[switch.index() + 1] as usize]
    }
}
