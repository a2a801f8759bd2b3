//! The table of a measurement.

use std::fmt;

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use treecast_node::EngineChoice;

use crate::neighbour::{Achieved, Load};
use crate::quiet::Latencies;

/// One load in one round.
pub struct Round {
    pub load: Load,
    pub without: Latencies,
    pub with: Latencies,
    pub achieved: Achieved,
}

impl Round {
    /// Whether the load has raised the 99th percentile by more than its bound: twice, and what is
    /// allowed beyond that.
    fn exceeds_bound(&self, engine: EngineChoice) -> bool {
        self.with.p99_us > 2.0 * self.without.p99_us + self.load.allowance_us(engine)
    }
}

impl fmt::Display for Round {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { load, without, with, achieved } = self;
        write!(
            formatter,
            "{load}: p99 {:.0} us without, {:.0} us with {:.0} {} per second",
            without.p99_us,
            with.p99_us,
            achieved.done_per_s,
            load.unit()
        )
    }
}

/// The loads that have exceeded their bounds in most rounds, each with the number of these rounds
/// and of all.
pub fn excesses(engine: EngineChoice, loads: &[Load], rounds: &[Round]) -> Vec<String> {
    let excess = |&load: &Load| {
        let rounds = rounds.iter().filter(|round| round.load == load);
        let all = rounds.clone().count();
        let count = rounds.filter(|round| round.exceeds_bound(engine)).count();
        (2 * count > all).then(|| format!("{load} in {count} of {all} rounds"))
    };
    loads.iter().filter_map(excess).collect()
}

/// A row for each load.
pub fn table(loads: &[Load], rounds: &[Round]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header([
        "load",
        "p50 us without, with",
        "p99 us without, with",
        "max us without, with",
        "p99 with over without",
        "groups lost",
        "the neighbour, per second",
        "refused",
    ]);
    for &load in loads {
        let rounds: Vec<&Round> = rounds.iter().filter(|round| round.load == load).collect();
        table.add_row(row(load, &rounds));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn row(load: Load, rounds: &[&Round]) -> [String; 8] {
    let sorted = |value: &dyn Fn(&Round) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(|round| value(round)).collect();
        values.sort_unstable_by(f64::total_cmp);
        values
    };
    let medians = |value: fn(&Latencies) -> f64| {
        let [without, with] = [sorted(&|round| value(&round.without)), sorted(&|round| value(&round.with))];
        format!("{:.0}, {:.0}", quartile(&without, 2), quartile(&with, 2))
    };
    let max = |value: &dyn Fn(&Round) -> f64| quartile(&sorted(value), 4);
    let ratio = sorted(&|round| round.with.p99_us / round.without.p99_us);
    let [q1, median, q3] = [1, 2, 3].map(|number| quartile(&ratio, number));
    let lost: u32 = rounds.iter().map(|round| round.without.groups_lost + round.with.groups_lost).sum();
    let done = quartile(&sorted(&|round| round.achieved.done_per_s), 2);
    let refused = quartile(&sorted(&|round| round.achieved.refused_per_s), 2);
    [
        load.to_string(),
        medians(|latencies| latencies.p50_us),
        medians(|latencies| latencies.p99_us),
        format!("{:.0}, {:.0}", max(&|round| round.without.max_us), max(&|round| round.with.max_us)),
        format!("{median:.2} ({q1:.2} to {q3:.2})"),
        lost.to_string(),
        format!("{done:.0} {}", load.unit()),
        format!("{refused:.0}"),
    ]
}

/// A quartile of sorted values, from 0, the minimum, to 4, the maximum: the value at the nearest
/// rank.
fn quartile(values: &[f64], number: usize) -> f64 {
    values[((values.len() - 1) * number + 2) / 4]
}
