//! What more hosts on shared processors cost, from last deliveries.
//!
//! The caches of a processor hold less of what a woken thread needs, the more hosts share it. That
//! is not in the CPU times of four hosts. The costs of being woken are therefore those by which the
//! model itself predicts the last deliveries of few and of many hosts best.

use treecast_fabric::{Fabric, FabricSpec};
use treecast_model::Task;
use treecast_model::ethernet::{self, Parameters};
use treecast_node::{Offload, Scheme, TreeScheme};
use treecast_plan::{Group, MemberId, Placement};
use treecast_terms::{Bytes, Picoseconds};

/// A last delivery that was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation {
    pub hosts: u32,
    pub scheme: TreeScheme,
    pub bytes: u64,
    pub last_delivery_us: f64,
}

/// One of the costs.
type Cost = fn(&mut Parameters) -> &mut Picoseconds;

/// The costs that are fitted, each with its first step: 8 us, or 80 ns for each KB. They describe
/// how a thread is woken.
const FITTED: [(Cost, Picoseconds); 3] = [
    (|costs| &mut costs.wake, Picoseconds(8_000_000)),
    (|costs| &mut costs.cold, Picoseconds(8_000_000)),
    (|costs| &mut costs.cold_per_kb, Picoseconds(80_000)),
];

/// How often the steps are halved: the last ones are 0.5 us, and 5 ns for each KB.
const HALVINGS: u32 = 4;

/// The costs with those of a wake-up that predict the observations best: the search goes along one
/// cost after the other, while the sum of the squared logarithms of the errors falls.
pub fn with_cold(mut costs: Parameters, offload: Offload, observations: &[Observation]) -> Parameters {
    let Some(mut least) = error(&costs, offload, observations) else { return costs };
    for halving in 0..=HALVINGS {
        for (cost, step) in FITTED {
            let step = step.0 >> halving;
            for up in [true, false] {
                loop {
                    let mut changed = costs.clone();
                    let span = cost(&mut changed);
                    let moved = if up { span.0.saturating_add(step) } else { span.0.saturating_sub(step) };
                    *span = Picoseconds(moved);
                    let Some(error) = error(&changed, offload, observations).filter(|&it| it < least) else {
                        break;
                    };
                    (costs, least) = (changed, error);
                }
            }
        }
    }
    costs
}

/// The sum of the squared logarithms of the errors; none if the model does not carry them out.
fn error(costs: &Parameters, offload: Offload, observations: &[Observation]) -> Option<f64> {
    let of = |it: &Observation| {
        let predicted_us = predicted_us(costs, offload, it)?;
        Some((predicted_us / it.last_delivery_us).ln().powi(2))
    };
    observations.iter().filter(|it| it.last_delivery_us > 0.0).map(of).sum()
}

fn predicted_us(costs: &Parameters, offload: Offload, of: &Observation) -> Option<f64> {
    let fabric = Fabric::from_spec(&FabricSpec::Star(of.hosts)).ok()?;
    let others = (1..of.hosts).map(MemberId).collect();
    let group = Group::new(Placement::one_per_host(of.hosts), MemberId(0), others).ok()?;
    let scheme = Scheme::tree(of.scheme);
    let task = Task {
        fabric: &fabric,
        group: &group,
        scheme: &scheme,
        order: None,
        offload,
        message: Bytes(of.bytes),
        seed: 0,
        stop: None,
    };
    Some(ethernet::run(costs, &task).ok()?.latency?.us())
}

#[cfg(test)]
mod tests {
    use treecast_terms::Keyed;

    use super::*;

    fn costs(settings: &str) -> Parameters {
        let mut costs = Parameters::default();
        costs.set_all("processors=2 shared_processors=2 link_mb_per_s=0 hop_us=0 piece_bytes=65536").unwrap();
        costs.set_all(settings).unwrap();
        costs
    }

    fn observations(costs: &Parameters) -> Vec<Observation> {
        let shapes = [TreeScheme::Separate, TreeScheme::Serial];
        let cases = [4, 16].into_iter().flat_map(|hosts| shapes.map(|scheme| (hosts, scheme)));
        let cases = cases.flat_map(|case| [64, 16_000, 200_000].map(|bytes| (case, bytes)));
        cases
            .map(|((hosts, scheme), bytes)| {
                let case = Observation { hosts, scheme, bytes, last_delivery_us: 0.0 };
                let last_delivery_us = predicted_us(costs, Offload::Nic, &case).unwrap();
                Observation { last_delivery_us, ..case }
            })
            .collect()
    }

    #[test]
    fn cold_wake_ups_of_the_model_are_found_again() {
        for (cold, cold_per_kb) in [(0, 0), (6, 0), (4, 90), (20, 40)] {
            let truth = costs(&format!("cold_us={cold} cold_ns_per_kb={cold_per_kb}"));
            let observed = observations(&truth);
            let found = with_cold(costs(""), Offload::Nic, &observed);
            let rest = error(&found, Offload::Nic, &observed).unwrap() / observed.len() as f64;
            assert!(rest.sqrt() < 0.05, "{rest} {found:?}");
            assert!((found.cold.us() - f64::from(cold)).abs() < 2.0, "{found:?}");
        }
    }

    #[test]
    fn without_observations_nothing_changes() {
        assert_eq!(with_cold(costs("cold_us=3"), Offload::Nic, &[]), costs("cold_us=3"));
    }
}
