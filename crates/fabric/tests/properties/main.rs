//! Properties of every fabric, file and route.

mod dimension_order;
mod direct;
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

/// The number of cases; a failure prints the smallest failing input.
fn cases(count: u32) -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(count) }
}
