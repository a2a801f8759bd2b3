//! What happens to each node in worlds: clusters on bad networks, under one seed each.

use treecast_proto::{Input, Offload, Step, Trace};
use treecast_world::World;

use super::frame::Style;
use super::lab::Lab;
use super::pair::{Manner, Tally, replay};

/// Whether a group of the node is forwarded by it alone, as far as the trace of a root says.
fn forwards(traces: &[Trace]) -> bool {
    traces.iter().flat_map(|trace| &trace.steps).any(|(_, step)| {
        matches!(step, Step::Request { input: Input::CreateGroup(lead), .. } if lead.offload == Offload::Nic)
    })
}

/// As many worlds in which nodes forward as `TREECAST_WORLDS` says.
#[test]
fn nodes_in_worlds_do_the_same_with_the_program() {
    let Some(mut lab) = Lab::new() else { return };
    let worlds =
        std::env::var("TREECAST_WORLDS").map_or(30, |count| count.parse().expect("a number of worlds"));
    let mut tally = Tally::default();
    let recorded = (0_u64..)
        .map(|seed| (seed, World::random(seed).record().unwrap_or_else(|violation| panic!("{violation}"))));
    for (seed, traces) in recorded.filter(|(_, traces)| forwards(traces)).take(worlds) {
        for trace in traces {
            let manner = Manner {
                style: Style { hops: 7, has_checksum: seed % 3 > 0 },
                reads_in_silence: seed % 2 > 0,
                sleeps: seed % 5 > 0,
            };
            let replayed = replay(&mut lab, &trace, manner);
            tally += replayed.unwrap_or_else(|what| panic!("world {seed}, node {}: {what}", trace.address));
        }
    }
    println!("worlds: {tally:?}");
    // Most worlds lose packets, and a gap is for user space until it is filled.
    assert!(tally.taken * 20 > tally.came, "the program takes some packets: {tally:?}");
}
