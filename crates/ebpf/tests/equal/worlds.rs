//! The nodes of random worlds, replayed with the program: each world is a cluster on a lossy
//! network, generated from a seed.

use treecast_proto::{Input, Offload, Step, Trace};
use treecast_world::World;

use super::frame::Style;
use super::lab::Lab;
use super::pair::{Behaviour, Counts, replay};

/// Whether a group has this offload; the trace of its root is there.
fn has_group_with(traces: &[Trace], offload: Offload) -> bool {
    traces.iter().flat_map(|trace| &trace.steps).any(|(_, step)| match step {
        Step::Request { input: Input::CreateGroup(create), .. } => create.offload == offload,
        _ => false,
    })
}

/// Replays as many worlds in which a group has this offload as `TREECAST_WORLDS` says.
fn replay_worlds(offload: Offload) -> Option<Counts> {
    let mut lab = Lab::new()?;
    let worlds =
        std::env::var("TREECAST_WORLDS").map_or(30, |count| count.parse().expect("a number of worlds"));
    let mut counts = Counts::default();
    let recorded = (0_u64..).map(|seed| {
        (seed, World::random(seed).by_datagrams().record().unwrap_or_else(|violation| panic!("{violation}")))
    });
    for (seed, traces) in recorded.filter(|(_, traces)| has_group_with(traces, offload)).take(worlds) {
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
    println!("worlds with offload {offload}: {counts:?}");
    Some(counts)
}

#[test]
fn nodes_of_worlds_behave_the_same_with_the_program() {
    let Some(counts) = replay_worlds(Offload::Nic) else { return };
    // Most worlds lose packets, and the slow path handles a group with a gap until it is filled.
    assert!(counts.handled * 50 > counts.received, "the program handles some packets: {counts:?}");
    // An emulator replays a few worlds, which may have no all-reduce.
    let is_short = counts.received < 20_000;
    assert!(is_short || counts.contributed > 0, "the program combines some contributions: {counts:?}");
}

#[test]
fn nodes_of_worlds_with_data_by_multicast_behave_the_same_with_the_program() {
    let Some(counts) = replay_worlds(Offload::Switch) else { return };
    // The slow path also handles the root, and members that multicast does not reach.
    assert!(counts.handled * 100 > counts.received, "the program handles some packets: {counts:?}");
}
