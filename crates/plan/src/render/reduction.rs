//! The way up a plan's tree, as text.

use std::fmt::Write;

use comfy_table::{Table, presets::NOTHING};
use treecast_fabric::Fabric;
use treecast_terms::MemberId;

use super::tree::{Branch, indent, push};
use super::{cut_note, member_name, table};
use crate::analysis::Analysis;
use crate::plan::{Plan, WormKind};
use crate::reduction::{Contribution, Reduction};

/// The contributions of a plan's members as a tree: one branch per contribution, with its step, its
/// kind unless it is unicast, the member, and how many contributions it combines; beneath it those,
/// in the order of their steps.
///
/// At most `contributions_max` contributions are shown, as [`tree`](super::tree()) shows worms.
pub fn reduction_tree(
    plan: &Plan,
    reduction: &Reduction,
    fabric: &Fabric,
    contributions_max: usize,
) -> String {
    let all = reduction.contributions();
    // The contributions to one member are adjacent: it receives them all before it contributes.
    let mut groups: Vec<&[Contribution]> = all.chunk_by(|a, b| a.to() == b.to()).collect();
    groups.sort_unstable_by_key(|group| group[0].to());
    let children = |member: MemberId| {
        let found = groups.binary_search_by_key(&member, |group| group[0].to());
        found.map_or(&[][..], |position| groups[position]).iter()
    };
    let mut text = format!("{}\n", combining(plan, fabric, plan.root(), reduction.combined_at_root()));
    let mut ended: Vec<bool> = Vec::new();
    let mut open: Vec<Branch<&Contribution>> = Vec::new();
    push(&mut open, 0, children(plan.root()));
    let mut shown = 0;
    while let Some(Branch { depth, last, entry: contribution }) = open.pop() {
        if shown == contributions_max {
            break;
        }
        shown += 1;
        ended.truncate(depth);
        let Contribution { worm, step, combined } = contribution;
        let kind = if worm.kind == WormKind::Local { ", local" } else { "" };
        let member = combining(plan, fabric, worm.from, *combined);
        let _ = writeln!(text, "{}step {step}{kind}: {member}", indent(&ended, last));
        push(&mut open, depth + 1, children(worm.from));
        ended.push(last);
    }
    if shown < all.len() {
        text += &cut_note(all.len() - shown, "contribution");
        text.push('\n');
    }
    text
}

/// The contributions of a plan's members as a table: one row per contribution in the order of the
/// steps, with how many contributions its member combines.
///
/// At most `contributions_max` contributions are shown, and the last line gives the number of
/// others.
pub fn reduction_table(
    plan: &Plan,
    reduction: &Reduction,
    fabric: &Fabric,
    contributions_max: usize,
) -> String {
    let name = |member| member_name(plan, fabric, member);
    let mut rows: Vec<&Contribution> = reduction.contributions().iter().collect();
    rows.sort_by_key(|contribution| contribution.step);
    let mut text = Table::new();
    text.load_style(NOTHING);
    text.set_header(["step", "from", "combines", "kind", "to", "route"]);
    for contribution in rows.iter().take(contributions_max) {
        let Contribution { worm, step, combined } = contribution;
        text.add_row([
            step.to_string(),
            name(worm.from),
            combined.to_string(),
            worm.kind.name().to_string(),
            name(contribution.to()),
            table::route(fabric, worm),
        ]);
    }
    let hidden = rows.len().saturating_sub(contributions_max);
    table::finish(text, &[0, 2], hidden, "contribution")
}

/// The figures of the way up, in a line, and those of both ways, in another.
pub fn reduction_figures(reduction: &Reduction, down: &Analysis) -> String {
    let (steps, contributions) = (reduction.steps(), reduction.contributions().len());
    format!(
        "steps {steps}, depth {}, contributions {contributions}, largest fan-in {}\n\
         up and down: steps {}, messages {}\n",
        down.depth,
        reduction.max_fan_in(),
        u64::from(steps) + down.steps,
        contributions + down.worms as usize,
    )
}

/// A member, and how many contributions it combines with its own values.
fn combining(plan: &Plan, fabric: &Fabric, member: MemberId, combined: u32) -> String {
    let name = member_name(plan, fabric, member);
    if combined == 0 { name } else { format!("{name}, combines {combined}") }
}
