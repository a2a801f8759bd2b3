//! Clusters on bad networks: a few hundred worlds here, `make worlds` for many more.

use rayon::prelude::*;
use treecast_world::{Violation, World};

#[test]
fn every_world_keeps_what_is_promised_to_readers() {
    let violations: Vec<String> = (0..300_u64)
        .into_par_iter()
        .filter_map(|seed| World::check(seed).err())
        .map(|violation: Violation| violation.to_string())
        .collect();
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

#[test]
fn a_world_is_the_same_whenever_it_runs() {
    for seed in [1, 17, 42] {
        assert_eq!(World::random(seed).run(), World::random(seed).run());
    }
}
