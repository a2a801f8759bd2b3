//! What a page shows of one run: the work of every resource, and where packets wait.

use std::collections::BTreeMap;

use serde::Serialize;
use treecast_fabric::{Topology, Vertex};
use treecast_plan::WormKind;
use treecast_sim::{Outcome, Run, Slice, Track, Work};
use treecast_terms::Cycles;

/// A link carries a packet: link, worm, packet, from, to.
type Transfer = (u32, u32, u32, u64, u64);
/// A host works: host, whether it is a CPU, worm, from, to.
type HostWork = (u32, bool, u32, u64, u64);
/// A packet waits in a switch: switch, worm, packet, from, to.
type Wait = (u32, u32, u32, u64, u64);

/// One run of a page.
#[derive(Debug, Default, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Recording {
    /// Scheme and offload.
    pub name: String,
    #[serde(skip)]
    pub scheme: String,
    /// `complete`, `deadlocked` or `incomplete`.
    status: &'static str,
    /// Of the last delivery; none unless complete.
    pub latency: Option<u64>,
    /// When the root knew of all deliveries, where that is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_knew: Option<u64>,
    /// The host of the root.
    root: u32,
    /// Host and cycle of each delivery, in the order of time.
    pub deliveries: Vec<(u32, u64)>,
    /// The number of processes that receive.
    pub destinations: usize,
    /// Sender and receivers of each worm, as hosts.
    pub worms: Vec<(u32, Vec<u32>)>,
    pub transfers: Vec<Transfer>,
    pub work: Vec<HostWork>,
    waits: Vec<Wait>,
    /// CPU cycles of all processes.
    cpu_busy: u64,
    /// A sentence on a deadlock, or empty.
    trouble: String,
}

impl Recording {
    /// One without any work, of host 0.
    pub fn named(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    pub fn new(run: &Run, outcome: &Outcome, slices: &[Slice]) -> Self {
        let placement = run.plan.placement();
        let host = |member| placement.host_of(member).0;
        let mut deliveries: Vec<(u32, u64)> =
            outcome.deliveries.iter().map(|delivery| (delivery.host.0, delivery.cycle.0)).collect();
        deliveries.sort_unstable_by_key(|&(host, cycle)| (cycle, host));
        let worms = run.plan.worms().iter();
        let worms =
            worms.map(|worm| (host(worm.from), worm.to.iter().map(|&to| host(to)).collect())).collect();
        let mut transfers = Vec::new();
        let mut work = Vec::new();
        for slice in slices.iter().filter(|slice| slice.from < slice.to) {
            let (from, to) = (slice.from.0, slice.to.0);
            let (host, is_cpu) = match slice.track {
                Track::Link(channel) => {
                    transfers.push((channel.link.0, slice.worm, slice.packet, from, to));
                    continue;
                }
                Track::Cpu(member) => (host(member), true),
                Track::Bus(host) | Track::Nic(host) | Track::NicReceive(host) => (host.0, false),
            };
            work.push((host, is_cpu, slice.worm, from, to));
        }
        transfers.sort_unstable_by_key(|&(link, _, _, from, _)| (from, link));
        work.sort_unstable_by_key(|&(host, _, _, from, _)| (from, host));
        Self {
            name: format!("{}, offload {}", run.plan.scheme(), run.offload),
            scheme: run.plan.scheme().to_string(),
            status: outcome.status.name(),
            latency: outcome.latency.map(|latency| latency.0),
            root_knew: None,
            root: host(run.plan.root()),
            deliveries,
            destinations: run.plan.destination_count(),
            worms,
            transfers,
            work,
            waits: waits(run, slices),
            cpu_busy: outcome.cpu_busy.iter().map(|cycles| cycles.0).sum(),
            trouble: outcome.deadlock.as_ref().map(|it| it.describe(run.fabric)).unwrap_or_default(),
        }
    }
}

/// Where packets wait for an output: the time from when a packet starts to enter a switch until a
/// copy starts to leave it, less the least such time of any packet in this run, which is that of an
/// idle switch unless all had to wait. Packets that enter from a host, and worms that have other
/// headers, have a least time of their own.
fn waits(run: &Run, slices: &[Slice]) -> Vec<Wait> {
    let topology: &Topology = run.fabric.topology();
    let transfers = || {
        let links = slices.iter().filter(|slice| slice.work == Work::Transfer);
        links.filter_map(|slice| match slice.track {
            Track::Link(channel) => Some((topology.link(channel.link), slice)),
            _ => None,
        })
    };
    let mut entries: BTreeMap<(u32, u32, u32), (Cycles, bool)> = BTreeMap::new();
    for (link, slice) in transfers() {
        if let Vertex::Switch(switch) = link.to {
            let from_host = link.from.host().is_some();
            entries.entry((slice.worm, slice.packet, switch.0)).or_insert((slice.from, from_host));
        }
    }
    let mut stays = Vec::new();
    let mut least: BTreeMap<(WormKind, bool), u64> = BTreeMap::new();
    for (link, slice) in transfers() {
        let Vertex::Switch(switch) = link.from else { continue };
        let Some(&(entered, from_host)) = entries.get(&(slice.worm, slice.packet, switch.0)) else {
            continue;
        };
        let Some(stay) = slice.from.0.checked_sub(entered.0) else { continue };
        let class = (run.plan.worms()[slice.worm as usize].kind, from_host);
        least.entry(class).and_modify(|least| *least = stay.min(*least)).or_insert(stay);
        stays.push((class, switch.0, slice, stay));
    }
    let waits = stays.into_iter().filter_map(|(class, switch, slice, stay)| {
        let wait = stay - least[&class];
        let (from, to) = (slice.from.0 - wait, slice.from.0);
        (wait > 0).then_some((switch, slice.worm, slice.packet, from, to))
    });
    let mut waits: Vec<Wait> = waits.collect();
    waits.sort_unstable_by_key(|&(switch, worm, _, from, _)| (from, switch, worm));
    waits
}

#[cfg(test)]
mod tests {
    use treecast_fabric::{Fabric, FabricSpec};
    use treecast_plan::{Group, MemberId, Placement, PlanOptions, plan};
    use treecast_sim::{Offload, Operation, Parameters, Recorder, Simulator};
    use treecast_terms::Flits;

    use super::*;

    struct Slices(Vec<Slice>);

    impl Recorder for Slices {
        fn record(&mut self, slice: &Slice) {
            self.0.push(*slice);
        }
    }

    /// A broadcast down a binomial tree over members in that order.
    fn recording(spec: &str, order: &str) -> (Fabric, Recording) {
        let fabric = Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap();
        let hosts = fabric.topology().host_count();
        let all = (1..hosts).map(MemberId).collect();
        let group = Group::new(Placement::one_per_host(hosts), MemberId(0), all).unwrap();
        let options = PlanOptions { order: Some(order.parse().unwrap()), ..PlanOptions::default() };
        let plan = plan(&fabric, &group, &"binomial".parse().unwrap(), &options).unwrap();
        let parameters = Parameters::default();
        let run = Run {
            fabric: &fabric,
            plan: &plan,
            operation: Operation::Broadcast,
            offload: Offload::Nic,
            message: Flits(128),
            parameters: &parameters,
            seed: 1,
            simulator: Simulator::Event,
        };
        let mut slices = Slices(Vec::new());
        let outcome = run.simulate_recorded(Some(&mut slices)).unwrap();
        let recording = Recording::new(&run, &outcome, &slices.0);
        (fabric, recording)
    }

    #[test]
    fn nothing_waits_where_no_two_packets_meet() {
        let (_, recording) = recording("star:16", "id");
        assert_eq!(recording.waits, []);
    }

    /// With one spine, packets between leaves meet.
    #[test]
    fn a_packet_waits_until_a_link_has_carried_another_one() {
        let (fabric, recording) = recording("leaf-spine:leaves=8,spines=1,hosts=64", "random:seed=1");
        assert!(!recording.waits.is_empty());
        let topology = fabric.topology();
        for &(switch, worm, packet, from, to) in &recording.waits {
            let leaves = |&(link, ..): &Transfer| {
                topology.link(treecast_fabric::LinkId(link)).from.switch()
                    == Some(treecast_fabric::SwitchId(switch))
            };
            let out: Vec<&Transfer> =
                recording.transfers.iter().filter(|transfer| leaves(transfer)).collect();
            assert!(out.iter().any(|&&(_, w, p, start, _)| (w, p, start) == (worm, packet, to)));
            // The cycle in which room becomes free is the last of a wait.
            let others = out.iter().filter(|transfer| transfer.1 != worm);
            assert!(
                to - from == 1 || others.clone().any(|&&(_, _, _, start, end)| start <= from && from < end)
            );
        }
    }
}
