//! The rate of planning small groups, as a simulation under load needs it, in plans per second.
//!
//! Run with `cargo run --release -p treecast-plan --example rate`.

use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use treecast_fabric::{Fabric, FabricSpec};
use treecast_plan::{Group, MemberId, MemberList, Order, Placement, PlanError, PlanOptions, Planner};

const CASES: [(&str, &str, Option<Order>); 6] = [
    ("icpp98", "binomial", None),
    ("icpp98", "k-binomial", Some(Order::Cco)),
    ("icpp98", "tree-worm", None),
    ("icpp98", "path", None),
    ("fat-tree:k=32", "k-binomial", None),
    ("fat-tree:k=32", "tree-worm", None),
];

fn main() -> Result<(), PlanError> {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["fabric", "scheme", "degree", "draw us", "plan us", "plans/s"]);
    for (spec, scheme, order) in CASES {
        let fabric = Fabric::from_spec(&spec.parse::<FabricSpec>()?)?;
        for degree in [3, 15] {
            let count = 10_000;
            let (groups, draw_us) = timed(|| draw(&fabric, degree, count))?;
            let options = PlanOptions { order, packets: 1 };
            let mut planner = Planner::new(&fabric, &scheme.parse()?, &options)?;
            let ((), plan_us) = timed(|| groups.iter().try_for_each(|group| planner.plan(group).map(drop)))?;
            let each = plan_us / f64::from(count);
            table.add_row([
                spec.to_string(),
                scheme.to_string(),
                degree.to_string(),
                format!("{:.2}", draw_us / f64::from(count)),
                format!("{each:.2}"),
                format!("{:.0}", 1e6 / each),
            ]);
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!("{table}");
    Ok(())
}

/// Random groups.
fn draw(fabric: &Fabric, degree: u32, count: u32) -> Result<Vec<Group>, PlanError> {
    let placement = Placement::one_per_host(fabric.topology().host_count());
    let group = |index: u32| {
        let root = MemberId(index % placement.member_count());
        let destinations = MemberList::Random(degree).resolve(&placement, root, index.into())?;
        Group::new(placement.clone(), root, destinations)
    };
    (0..count).map(group).collect()
}

/// The result of a piece of work, and the microseconds it took.
#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn timed<T>(work: impl FnOnce() -> Result<T, PlanError>) -> Result<(T, f64), PlanError> {
    let begin = Instant::now();
    let made = work()?;
    Ok((made, begin.elapsed().as_secs_f64() * 1e6))
}
