//! Times plans and their analysis for 100,000 destinations, on a star and on an adaptive fat tree.
//!
//! Run with `cargo run --release -p treecast-plan --example large`.

use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::{Group, MemberId, MemberList, Placement, PlanError, PlanOptions, plan};

const DESTINATIONS: u32 = 100_000;
const SCHEMES: [&str; 7] =
    ["separate", "serial", "binary", "binomial", "k-binomial:k=2", "k-binomial", "postal:lambda=3.5"];

fn main() -> Result<(), PlanError> {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["fabric", "scheme", "steps", "link visits", "contending", "plan ms", "analyse ms"]);
    for spec in ["star:100001", "fat-tree:k=74"] {
        let fabric = Fabric::from_spec(&spec.parse::<FabricSpec>()?)?;
        let placement = Placement::one_per_host(fabric.topology().host_count());
        let destinations = MemberList::Ranges(vec![(1, DESTINATIONS)]).resolve(&placement, MemberId(0), 1)?;
        let group = Group::new(placement, MemberId(0), destinations)?;
        for scheme in SCHEMES {
            let (plan, planned_ms) =
                timed(|| plan(&fabric, &group, &scheme.parse()?, &PlanOptions::default()))?;
            let (analysis, analysed_ms) = timed(|| plan.analyse(&fabric, 1))?;
            table.add_row([
                spec.to_string(),
                scheme.to_string(),
                analysis.steps.to_string(),
                analysis.link_visits.to_string(),
                analysis.contending_pairs.to_string(),
                planned_ms.to_string(),
                analysed_ms.to_string(),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    Ok(())
}

/// The result of a piece of work, and the milliseconds it took.
#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn timed<T>(work: impl FnOnce() -> Result<T, PlanError>) -> Result<(T, u128), PlanError> {
    let begin = Instant::now();
    let made = work()?;
    Ok((made, begin.elapsed().as_millis()))
}
