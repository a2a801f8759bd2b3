//! What holds for every fabric, every file and every route.

mod dimension_order;
mod docs;
mod fabrics;
mod malformed;
mod next_links;
mod round_trip;
mod scale;
mod shortest_path;
mod tree_worm;
mod up_down;

use proptest::prelude::ProptestConfig;

/// Runs that many cases; a failure prints the smallest input that fails.
fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(count) }
}
