//! Output formats of plans: a tree for a terminal, a table, Graphviz DOT, an SVG picture, JSON.
//!
//! The step shown with a worm is the one in which it carries the first packet: [`Plan::steps`].

mod dot;
mod json;
mod reduction;
mod svg;
mod table;
mod tree;

pub use dot::dot;
pub use json::{
    ContributionDocument, FORMAT, PlacementDocument, PlanContext, PlanDocument, ReductionDocument,
    WormDocument,
};
pub use reduction::{reduction_figures, reduction_table, reduction_tree};
pub use svg::{MEMBERS_DRAWN_MAX, svg};
pub use table::table;
pub use tree::tree;

use treecast_fabric::Fabric;

use crate::analysis::Analysis;
use crate::plan::Plan;
use treecast_terms::MemberId;

/// The number of worms that a tree or a table shows by default.
pub const WORMS_SHOWN: usize = 200;

/// The metrics of a plan, in three lines.
pub fn figures(analysis: &Analysis) -> String {
    let Analysis { steps, depth, phases, worms, max_fan_out, .. } = analysis;
    let Analysis { link_visits, links_used, link_concentration, link_concurrency, .. } = analysis;
    let contention = match analysis.contending_pairs {
        0 => "no contention".into(),
        pairs => format!("{} of worms contend for a link", counted(pairs as usize, "pair")),
    };
    let id_rule = if analysis.id_rule { "holds" } else { "does not hold" };
    format!(
        "steps {steps}, phases {phases}, depth {depth}, worms {worms}, largest fan-out {max_fan_out}\n\
         link visits {link_visits} on {links_used} links (concentration {link_concentration:.2}), at once \
         {link_concurrency}\n\
         {contention}; the id rule {id_rule}\n"
    )
}

/// The name of a member: its host if each host runs one process, else `m13 on h6`.
fn member_name(plan: &Plan, fabric: &Fabric, member: MemberId) -> String {
    let host = fabric.topology().host_name(plan.placement().host_of(member));
    if plan.placement().processes() == 1 { host } else { format!("m{member} on {host}") }
}

/// The first few of a list of names, and the number of further ones.
pub(crate) fn short_list(names: impl ExactSizeIterator<Item = String>, shown_max: usize) -> String {
    let count = names.len();
    let shown = if count > shown_max { shown_max - 1 } else { count };
    let text = names.take(shown).collect::<Vec<_>>().join(", ");
    if count > shown { format!("{text} and {} more", count - shown) } else { text }
}

/// A number with its noun: `1 worm`, `2 worms`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The last line of a truncated output.
fn cut_note(hidden: usize, noun: &str) -> String {
    format!("... {} not shown", counted(hidden, &format!("more {noun}")))
}
