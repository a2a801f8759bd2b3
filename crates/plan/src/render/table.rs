//! A plan as a table.

use comfy_table::{CellAlignment, Table, presets::NOTHING};
use treecast_fabric::Fabric;

use super::{cut_note, member_name, short_list};
use crate::error::PlanError;
use crate::plan::{Plan, Worm};

/// Receivers named in a row.
const RECEIVERS_SHOWN: usize = 8;
/// Channels named in a row.
const CHANNELS_SHOWN: usize = 5;

/// A plan as a table: one row per worm in the order of the steps, with step, sender, index, kind,
/// receivers and route. Long lists and routes are shortened; an adaptive route is a dash.
///
/// At most `worms_max` worms are shown, and the last line gives the number of others.
///
/// # Errors
/// [`PlanError::PlacementMismatch`] if the plan belongs to another fabric.
pub fn table(plan: &Plan, fabric: &Fabric, worms_max: usize) -> Result<String, PlanError> {
    plan.placement().check_fabric(fabric)?;
    let name = |member| member_name(plan, fabric, member);
    let mut rows: Vec<(u32, &Worm)> = plan.steps().into_iter().zip(plan.worms()).collect();
    rows.sort_by_key(|&(step, _)| step);
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(["step", "from", "index", "kind", "to", "route"]);
    for &(step, worm) in rows.iter().take(worms_max) {
        table.add_row([
            step.to_string(),
            name(worm.from),
            worm.index.to_string(),
            worm.kind.name().to_string(),
            short_list(worm.to.iter().map(|&to| name(to)), RECEIVERS_SHOWN),
            route(fabric, worm),
        ]);
    }
    Ok(finish(table, &[0, 2], rows.len().saturating_sub(worms_max), "worm"))
}

/// The text of a table with some columns aligned to the right, and the number of rows that it
/// does not show.
pub(super) fn finish(mut table: Table, right: &[usize], hidden: usize, noun: &str) -> String {
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut lines: Vec<String> = table.lines().map(|line| line.trim_end().to_string()).collect();
    if hidden > 0 {
        lines.push(cut_note(hidden, noun));
    }
    lines.join("\n") + "\n"
}

/// The names of a route's channels; of a long route the first ones, the number of those omitted,
/// and the last one.
pub(super) fn route(fabric: &Fabric, worm: &Worm) -> String {
    let name = |channel| super::json::channel_name(fabric.topology(), channel);
    match worm.route[..] {
        [] => "-".into(),
        [ref first @ .., last] if first.len() >= CHANNELS_SHOWN => {
            let shown = CHANNELS_SHOWN - 2;
            let names: Vec<String> = first[..shown].iter().map(|&channel| name(channel)).collect();
            format!("{} ..{}.. {}", names.join(" "), first.len() - shown, name(last))
        }
        ref all => all.iter().map(|&channel| name(channel)).collect::<Vec<_>>().join(" "),
    }
}
