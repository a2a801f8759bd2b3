//! The nodes of random worlds, replayed with the program: each world is a cluster on a lossy network, generated from a seed.

use treecast_proto::{Input, Offload, Step, Trace};
use treecast_world::World;

use super::frame::Style;
use super::lab::Lab;
use super::pair::{Behaviour, Counts, replay};

/// The offload of each group whose root's trace is there.
pub fn offloads(traces: &[Trace]) -> impl Iterator<Item = Offload> {
    traces.iter().flat_map(|trace| &trace.steps).filter_map(|(_, step)| match step {
        Step::Request { input: Input::CreateGroup(create), .. } => Some(create.offload),
        _ => None,
    })
}

/// Whether the program forwards for a group. Groups with offload `switch` are never handed off to it.
fn forwards(traces: &[Trace]) -> bool {
    offloads(traces).any(|offload| offload == Offload::Nic)
        && offloads(traces).all(|offload| offload != Offload::Switch)
}

/// Replays as many worlds with offload `nic` as `TREECAST_WORLDS` says.
#[test]
fn nodes_of_worlds_behave_the_same_with_the_program() {
    let Some(mut lab) = Lab::new() else { return };
    let worlds =
        std::env::var("TREECAST_WORLDS").map_or(30, |count| count.parse().expect("a number of worlds"));
    let mut counts = Counts::default();
    let recorded = (0_u64..)
        .map(|seed| (seed, World::random(seed).record().unwrap_or_else(|violation| panic!("{violation}"))));
    for (seed, traces) in recorded.filter(|(_, traces)| forwards(traces)).take(worlds) {
        for trace in traces {
            let behaviour = Behaviour {
                style: Style { hop_limit: 7, has_checksum: seed % 3 > 0 },
                reads_silently: seed % 2 > 0,
                sleeps: seed % 5 > 0,
            };
            let replayed = replay(&mut lab, &trace, behaviour);
            counts += replayed.unwrap_or_else(|what| panic!("world {seed}, node {}: {what}", trace.address));
        }
    }
    println!("worlds: {counts:?}");
    // Most worlds lose packets, and the slow path handles a group with a gap until it is filled.
    assert!(counts.handled * 50 > counts.received, "the program handles some packets: {counts:?}");
}
