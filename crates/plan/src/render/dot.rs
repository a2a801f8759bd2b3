//! A plan for Graphviz.

use treecast_fabric::Fabric;

use super::member_name;
use crate::error::PlanError;
use crate::plan::{Plan, WormKind};
use crate::reduction::Reduction;

/// A plan in the DOT language: one box per member, one arrow per worm with its step. A path or tree
/// worm, and any other with several receivers, goes through a small point from which an arrow leads
/// to each receiver. Colours and line styles distinguish the kinds as in [`super::svg`]. The
/// contributions of a reduction are grey arrows up, with `up` before their step.
///
/// # Errors
/// [`PlanError::PlacementMismatch`] if the plan belongs to another fabric.
pub fn dot(plan: &Plan, fabric: &Fabric, reduction: Option<&Reduction>) -> Result<String, PlanError> {
    plan.placement().check_fabric(fabric)?;
    let title = quoted(&format!("{} ({})", plan.scheme(), plan.label()));
    let name = |member| quoted(&member_name(plan, fabric, member));
    let mut lines = vec![
        "digraph plan {".to_string(),
        format!("  label={title}; labelloc=t;"),
        "  node [shape=box, style=rounded];".to_string(),
        format!("  m{} [label={}, penwidth=2];", plan.root(), name(plan.root())),
    ];
    let receivers = plan.worms().iter().flat_map(|worm| &worm.to);
    lines.extend(receivers.map(|&to| format!("  m{to} [label={}];", name(to))));
    for ((position, worm), step) in plan.worms().iter().enumerate().zip(plan.steps()) {
        let (from, style) = (worm.from, style(worm.kind));
        if let ([to], WormKind::Unicast | WormKind::Local) = (&worm.to[..], worm.kind) {
            lines.push(format!("  m{from} -> m{to} [label=\"{step}\", {style}];"));
        } else {
            lines.push(format!("  w{position} [shape=point, label=\"\"];"));
            lines.push(format!("  m{from} -> w{position} [label=\"{step}\", arrowhead=none, {style}];"));
            lines.extend(worm.to.iter().map(|to| format!("  w{position} -> m{to} [{style}];")));
        }
    }
    for contribution in reduction.into_iter().flat_map(Reduction::contributions) {
        let (from, to, step) = (contribution.from(), contribution.to(), contribution.step);
        // The way down alone places the members.
        let style = "color=\"#999999\", constraint=false";
        lines.push(format!("  m{from} -> m{to} [label=\"up {step}\", {style}];"));
    }
    lines.push("}\n".into());
    Ok(lines.join("\n"))
}

fn style(kind: WormKind) -> &'static str {
    match kind {
        WormKind::Unicast => "color=\"#0072B2\"",
        WormKind::Path => "color=\"#D55E00\", style=dashed",
        WormKind::Tree => "color=\"#009E73\", style=bold",
        WormKind::Local => "color=\"#AA4499\", style=dotted",
    }
}

/// A quoted string of DOT, with quotes, backslashes and line ends escaped.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
