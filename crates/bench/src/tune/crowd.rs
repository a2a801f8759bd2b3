//! What more hosts on shared processors cost, from last deliveries and CPU times.
//!
//! The caches of a processor hold less of what a woken thread needs, the more hosts share it. That
//! is not in the CPU times of four hosts. The costs are therefore those by which the model itself
//! predicts the measurements of few and of many hosts best, starting from the costs of four.

use std::collections::BTreeMap;

use treecast_fabric::{Fabric, FabricSpec};
use treecast_model::ethernet::Parameters;
use treecast_model::{Network, Way};
use treecast_node::{Offload, Scheme, TreeScheme};
use treecast_plan::{Group, MemberId, Placement};
use treecast_terms::{Bytes, Picoseconds};

/// What was measured of broadcasts of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    pub hosts: u32,
    pub scheme: TreeScheme,
    pub bytes: u64,
    pub last_delivery_us: f64,
    /// CPU time of all hosts; `None` where processes poll, which takes all of it.
    pub cpu_us: Option<f64>,
}

/// One of the costs.
type Cost = fn(&mut Parameters) -> &mut Picoseconds;

/// A first step of 8 us, and one of 80 ns for each KB.
const STEP: Picoseconds = Picoseconds(8_000_000);
const STEP_PER_KB: Picoseconds = Picoseconds(80_000);

/// The costs that are fitted for every way, each with its first step.
const FITTED: [(Cost, Picoseconds); 8] = [
    (|costs| &mut costs.wake, STEP),
    (|costs| &mut costs.wake_cpu, STEP),
    (|costs| &mut costs.cold, STEP),
    (|costs| &mut costs.cold_per_kb, STEP_PER_KB),
    (|costs| &mut costs.send, STEP),
    (|costs| &mut costs.send_per_kb, STEP_PER_KB),
    (|costs| &mut costs.receive, STEP),
    (|costs| &mut costs.receive_per_kb, STEP_PER_KB),
];

/// The cost that is fitted where applications ask their nodes to forward.
const ASK: (Cost, Picoseconds) = (|costs| &mut costs.ask, STEP);

/// The costs that are fitted where switches copy.
const SWITCHES: [(Cost, Picoseconds); 2] =
    [(|costs| &mut costs.switch_copy, STEP), (|costs| &mut costs.switch_copy_per_kb, STEP_PER_KB)];

/// How often the steps are halved: the last ones are 0.5 us, and 5 ns for each KB.
const HALVINGS: u32 = 4;

/// How much the error of a CPU time counts, beside that of a last delivery.
const CPU_WEIGHT: f64 = 0.25;

/// The search ends after a pass that leaves at least this part of the error.
const PROGRESS: f64 = 0.99;

/// The costs that predict the observations best: the search goes from the given costs along one
/// cost after the other, while the sum of the squared logarithms of the errors falls.
pub fn fitted(mut costs: Parameters, way: &Way, observations: &[Observation]) -> Parameters {
    let Some(mut least) = error(&costs, way, observations) else { return costs };
    let mut searched = FITTED.to_vec();
    match way.offload {
        // Open MPI's ranks ask no node.
        Offload::Host | Offload::Assisted if way.is_openmpi() => {}
        Offload::Host | Offload::Assisted => searched.push(ASK),
        Offload::Switch => searched.extend(SWITCHES),
        Offload::Nic => {}
    }
    loop {
        let before = least;
        for halving in 0..=HALVINGS {
            for &(cost, step) in &searched {
                let step = Picoseconds(step.0 >> halving);
                let better = |costs: &Parameters, least: f64| {
                    let changed = neighbours(costs, cost, step).map(|changed| {
                        let error = error(&changed, way, observations)?;
                        (error < least).then_some((changed, error))
                    });
                    changed.into_iter().flatten().next()
                };
                while let Some(found) = better(&costs, least) {
                    (costs, least) = found;
                }
            }
        }
        // Where two costs have to change together, a pass makes little headway.
        if least >= PROGRESS * before {
            return costs;
        }
    }
}

/// The costs with one of them a step higher, and a step lower.
fn neighbours(costs: &Parameters, cost: Cost, step: Picoseconds) -> [Parameters; 2] {
    let [mut higher, mut lower] = [costs.clone(), costs.clone()];
    cost(&mut higher).0 = cost(&mut higher).0.saturating_add(step.0);
    cost(&mut lower).0 = cost(&mut lower).0.saturating_sub(step.0);
    [higher, lower]
}

/// The sum of the squared logarithms of the errors; none if the model does not carry them out.
fn error(costs: &Parameters, way: &Way, observations: &[Observation]) -> Option<f64> {
    let of = |it: &Observation| {
        let (last_delivery_us, cpu_us) = predicted_us(costs, way, it)?;
        let squared = |ratio: f64| ratio.ln().powi(2);
        let of_cpu = it.cpu_us.map_or(0.0, |measured_us| CPU_WEIGHT * squared(cpu_us / measured_us));
        Some(squared(last_delivery_us / it.last_delivery_us) + of_cpu)
    };
    let is_measured =
        |it: &&Observation| it.last_delivery_us > 0.0 && it.cpu_us.is_none_or(|cpu_us| cpu_us > 0.0);
    observations.iter().filter(is_measured).map(of).sum()
}

/// The last delivery, and the CPU time of all hosts.
fn predicted_us(costs: &Parameters, way: &Way, of: &Observation) -> Option<(f64, f64)> {
    let fabric = Fabric::from_spec(&FabricSpec::Star(of.hosts)).ok()?;
    let others = (1..of.hosts).map(MemberId).collect();
    let group = Group::new(Placement::one_per_host(of.hosts), MemberId(0), others).ok()?;
    let scheme = Scheme::tree(of.scheme);
    let network = Network { about: String::new(), ways: BTreeMap::from([(way.clone(), costs.clone())]) };
    let prediction = network.predict(way, &fabric, &group, (&scheme, None), Bytes(of.bytes)).ok()?;
    Some((prediction.last_delivery.us(), prediction.cpu_us))
}

#[cfg(test)]
mod tests {
    use treecast_node::Transport;
    use treecast_terms::Keyed;

    use super::*;

    fn costs(settings: &str) -> Parameters {
        let mut costs = Parameters::default();
        costs.set_all("processors=2 shared_processors=2 link_mb_per_s=0 hop_us=0 piece_bytes=65536").unwrap();
        costs.set_all(settings).unwrap();
        costs
    }

    fn way() -> Way {
        Way { engine: "user".into(), offload: Offload::Nic, transport: Transport::Streams }
    }

    fn observations(costs: &Parameters) -> Vec<Observation> {
        let shapes = [TreeScheme::Separate, TreeScheme::Serial];
        let cases = [4, 16].into_iter().flat_map(|hosts| shapes.map(|scheme| (hosts, scheme)));
        let cases = cases.flat_map(|case| [64, 16_000, 200_000].map(|bytes| (case, bytes)));
        cases
            .map(|((hosts, scheme), bytes)| {
                let case = Observation { hosts, scheme, bytes, last_delivery_us: 0.0, cpu_us: None };
                let (last_delivery_us, cpu_us) = predicted_us(costs, &way(), &case).unwrap();
                Observation { last_delivery_us, cpu_us: Some(cpu_us), ..case }
            })
            .collect()
    }

    #[test]
    fn cold_wake_ups_of_the_model_are_found_again() {
        for (cold, cold_per_kb) in [(0, 0), (6, 0), (4, 90), (20, 40)] {
            let truth = costs(&format!("cold_us={cold} cold_ns_per_kb={cold_per_kb}"));
            let observed = observations(&truth);
            let found = fitted(costs(""), &way(), &observed);
            let rest = error(&found, &way(), &observed).unwrap() / observed.len() as f64;
            assert!(rest.sqrt() < 0.05, "{rest} {found:?}");
            assert!((found.cold.us() - f64::from(cold)).abs() < 2.0, "{found:?}");
        }
    }

    #[test]
    fn without_observations_nothing_changes() {
        assert_eq!(fitted(costs("cold_us=3"), &way(), &[]), costs("cold_us=3"));
    }
}
