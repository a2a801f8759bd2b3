//! Clusters on bad networks: a few hundred worlds here, `make worlds` for many more.

use rayon::prelude::*;
use treecast_world::{Report, Violation, World};

#[test]
fn every_world_keeps_what_is_promised_to_readers() {
    let outcomes: Vec<Result<Report, Violation>> = (0..300_u64).into_par_iter().map(World::check).collect();
    let violations: Vec<String> =
        outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).map(Violation::to_string).collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
    let mut total = Report::default();
    outcomes.into_iter().flatten().for_each(|report| total += report);
    assert!(total.handled_by_kernel > 10_000, "the kernel's packet path has nothing to do: {total:?}");
}

/// Seeds among the hundreds of thousands of `make worlds` that have found something.
#[test]
fn worlds_that_found_a_fault_are_kept() {
    // A late member that is lost before it has a place; a root that lost its last member, and ended
    // before it asked the nodes of the others which processes were killed; a member whose question
    // to the root was answered by a new table, and that took the root for silent afterwards; a
    // member that believed its parent, whose own path to the root was broken, that the root was
    // silent; a forged contribution of the future, which kept out those of the child itself.
    for seed in [194_496, 229_188, 17_491, 140_426, 1_144_931] {
        World::check(seed).unwrap_or_else(|violation| panic!("{violation}"));
    }
}

#[test]
fn a_world_is_the_same_whenever_it_runs() {
    for seed in [1, 17, 42] {
        assert_eq!(World::random(seed).run(), World::random(seed).run());
    }
}
