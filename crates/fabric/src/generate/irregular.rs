//! Random irregular networks of switches, as in the studies of the 1990s.

use std::fmt;

use rand::RngExt;
use rand_pcg::Pcg64;

use super::{PORTS_MAX, check_range};
use crate::error::FabricError;
use crate::ids::{PortNumber, SwitchId};
use crate::topology::{Topology, TopologyBuilder};

/// The parameters of a random irregular network.
///
/// *Reconstructed*: the generator of the ICPP'98 study is not public.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Irregular {
    /// Switches, at least 1.
    pub switches: u32,
    /// Ports of each switch.
    pub ports: u32,
    /// Hosts, spread evenly: host h is attached to switch `h * switches / hosts`.
    pub hosts: u32,
    /// The links between switches. A spanning tree is always present, however few they are.
    pub links: LinkDensity,
    /// The seed of the links.
    pub seed: u64,
}

/// How many links a random network has between its switches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LinkDensity {
    /// The share, 0 to 1, of the ports without hosts that carry them (`connectivity`).
    Connectivity(f64),
    /// This number for each switch (`links_per_switch`). Their sum is rounded down.
    PerSwitch(f64),
}

impl LinkDensity {
    /// The number of links of a network with enough ports.
    fn count(self, switches: u32, ports: u32, hosts: u32) -> u64 {
        let free = u64::from(switches) * u64::from(ports) - u64::from(hosts);
        match self {
            Self::Connectivity(share) => (free as f64 * share / 2.0) as u64,
            Self::PerSwitch(links) => (f64::from(switches) * links) as u64,
        }
    }

    /// # Errors
    /// [`FabricError::OutOfRange`].
    fn check(self) -> Result<(), FabricError> {
        let (key, value, max) = match self {
            Self::Connectivity(share) => ("connectivity", share, 1.0),
            Self::PerSwitch(links) => ("links_per_switch", links, f64::from(PORTS_PER_SWITCH_MAX) / 2.0),
        };
        if (0.0..=max).contains(&value) {
            return Ok(());
        }
        Err(FabricError::OutOfRange { key, value: value.to_string(), expected: format!("0 to {max}") })
    }
}

impl fmt::Display for LinkDensity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connectivity(share) => write!(formatter, "connectivity={share}"),
            Self::PerSwitch(links) => write!(formatter, "links_per_switch={links}"),
        }
    }
}

impl Default for Irregular {
    /// The default system of the ICPP'98 study: 8 switches with 8 ports, 32 hosts. With 1.25 links
    /// per switch the networks of the study carry as much unicast traffic as it reports; with
    /// [`LinkDensity::Connectivity`] only one of them does.
    fn default() -> Self {
        Self { switches: 8, ports: 8, hosts: 32, links: LinkDensity::PerSwitch(1.25), seed: 1 }
    }
}

/// A random irregular network: a random spanning tree of switches, then random extra links.
///
/// The tree takes the switches in random order and links each to a random one before it that has a
/// free port (switches with only one free port come last, so that the tree can always be
/// completed). Extra links join two random free ports of different switches, so parallel links
/// occur, until the network has its number of links or no such pair is left. Hosts take the lower
/// ports.
///
/// # Errors
/// [`FabricError::OutOfRange`], or [`FabricError::MoreHostsThanPorts`] if the hosts leave too few
/// ports for a tree.
pub fn irregular(parameters: Irregular) -> Result<Topology, FabricError> {
    let Irregular { switches, ports, hosts, links: density, seed } = parameters;
    check_range("switches", switches, 1, Topology::SWITCHES_MAX)?;
    check_range("ports", ports, 1, PORTS_PER_SWITCH_MAX)?;
    check_range("hosts", hosts, 1, Topology::HOSTS_MAX)?;
    density.check()?;
    if u64::from(switches) * u64::from(ports) > PORTS_MAX {
        let expected = format!("switches times ports is at most {PORTS_MAX}");
        return Err(FabricError::OutOfRange { key: "ports", value: ports.to_string(), expected });
    }
    let ends_min = 2 * (u64::from(switches) - 1);
    let free = (u64::from(switches) * u64::from(ports)).checked_sub(u64::from(hosts) + ends_min);
    let each_can_link = switches == 1 || hosts.div_ceil(switches) < ports;
    if free.is_none() || !each_can_link {
        let by_total = (u64::from(switches) * u64::from(ports)).saturating_sub(ends_min);
        let by_switch = u64::from(switches) * u64::from(if switches == 1 { ports } else { ports - 1 });
        return Err(FabricError::MoreHostsThanPorts {
            hosts,
            switches,
            ports,
            hosts_max: by_total.min(by_switch),
        });
    }

    let mut builder = TopologyBuilder::new();
    for _ in 0..switches {
        builder.switch(ports)?;
    }
    let mut next_port = vec![0; switches as usize];
    for host in 0..u64::from(hosts) {
        let switch = SwitchId((host * u64::from(switches) / u64::from(hosts)) as u32);
        builder.host(switch, take_port(&mut next_port, switch))?;
    }
    let mut links = Links { builder, next_port, ports, random: Pcg64::new(u128::from(seed), LINK_STREAM) };
    links.spanning_tree()?;
    links.extra(density.count(switches, ports, hosts).saturating_sub(u64::from(switches) - 1))?;
    links.builder.build()
}

const PORTS_PER_SWITCH_MAX: u32 = 1 << 16;

/// The generator's random stream of a seed; other components draw from other streams.
const LINK_STREAM: u128 = 0x6c69_6e6b;

struct Links {
    builder: TopologyBuilder,
    next_port: Vec<u32>,
    ports: u32,
    random: Pcg64,
}

fn take_port(next_port: &mut [u32], switch: SwitchId) -> PortNumber {
    next_port[switch.index()] += 1;
    PortNumber(next_port[switch.index()] - 1)
}

impl Links {
    fn free(&self, switch: SwitchId) -> u32 {
        self.ports - self.next_port[switch.index()]
    }

    fn link(&mut self, a: SwitchId, b: SwitchId) -> Result<(), FabricError> {
        let ends = (take_port(&mut self.next_port, a), take_port(&mut self.next_port, b));
        self.builder.link((a, ends.0), (b, ends.1))?;
        Ok(())
    }

    fn spanning_tree(&mut self) -> Result<(), FabricError> {
        let mut order: Vec<SwitchId> = (0..self.next_port.len() as u32).map(SwitchId).collect();
        for index in (1..order.len()).rev() {
            order.swap(index, self.random.random_range(0..=index));
        }
        order.sort_by_key(|&switch| self.free(switch) == 1);
        let mut open = vec![order[0]];
        for &switch in &order[1..] {
            let index = self.random.random_range(0..open.len());
            let parent = open[index];
            self.link(parent, switch)?;
            if self.free(parent) == 0 {
                open.swap_remove(index);
            }
            if self.free(switch) > 0 {
                open.push(switch);
            }
        }
        Ok(())
    }

    /// Draws free ports, not switches: a switch with more of them gets more links.
    fn extra(&mut self, count: u64) -> Result<(), FabricError> {
        let mut ends: Vec<SwitchId> = Vec::new();
        for switch in (0..self.next_port.len() as u32).map(SwitchId) {
            ends.extend((0..self.free(switch)).map(|_| switch));
        }
        for _ in 0..count {
            let Some(&first) = ends.first() else { break };
            if ends.iter().all(|&end| end == first) {
                break;
            }
            let (a, b) = loop {
                let a = self.random.random_range(0..ends.len());
                let b = self.random.random_range(0..ends.len());
                if ends[a] != ends[b] {
                    break (a, b);
                }
            };
            self.link(ends[a], ends[b])?;
            ends.swap_remove(a.max(b));
            ends.swap_remove(a.min(b));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_system_is_the_studys() {
        let topology = irregular(Irregular::default()).unwrap();
        assert_eq!(topology.host_count(), 32);
        assert_eq!(topology.switch_count(), 8);
        assert!(topology.switches().all(|switch| topology.hosts_of(switch).len() == 4));
        assert_eq!(topology.switch_link_count(), 20);
    }

    #[test]
    fn one_seed_makes_one_network() {
        let with = |seed| irregular(Irregular { seed, ..Irregular::default() }).unwrap();
        assert_eq!(with(3), with(3));
        assert_ne!(with(3), with(4));
    }

    #[test]
    fn connectivity_runs_from_a_tree_to_all_ports() {
        let links = |connectivity| {
            let links = LinkDensity::Connectivity(connectivity);
            irregular(Irregular { links, ..Irregular::default() }).unwrap().switch_link_count() / 2
        };
        assert_eq!(links(0.0), 7);
        assert_eq!(links(0.5), 8);
        assert_eq!(links(1.0), 16);
    }

    #[test]
    fn links_are_counted_for_each_switch() {
        let links = |switches, links| {
            let links = LinkDensity::PerSwitch(links);
            irregular(Irregular { switches, links, ..Irregular::default() })
                .map(|network| network.switch_link_count() / 2)
        };
        assert_eq!(links(8, 0.0).unwrap(), 7);
        assert_eq!(links(8, 1.25).unwrap(), 10);
        assert_eq!(links(16, 1.25).unwrap(), 20);
        // There are 32 ports without hosts.
        assert_eq!(links(8, 4.0).unwrap(), 16);
        assert_eq!(links(8, 100.0).unwrap(), 16);
        let error = links(8, -1.0).unwrap_err().to_string();
        assert_eq!(error, "links_per_switch=-1 is out of range: 0 to 32768");
    }

    #[test]
    fn the_tightest_fit_still_makes_a_tree() {
        for seed in 0..50 {
            let tight =
                Irregular { switches: 5, ports: 3, hosts: 7, links: LinkDensity::Connectivity(1.0), seed };
            assert_eq!(irregular(tight).unwrap().switch_link_count(), 8);
        }
    }

    #[test]
    fn more_hosts_than_ports_says_how_many_fit() {
        let error = irregular(Irregular { hosts: 60, ..Irregular::default() }).unwrap_err();
        assert_eq!(
            error.to_string(),
            "60 hosts are more than the ports allow: 8 switches with 8 ports each take at most 50 hosts and can \
             still be linked"
        );
    }
}
