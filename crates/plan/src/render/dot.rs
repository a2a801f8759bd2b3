//! A plan for Graphviz.

use treecast_fabric::Fabric;

use super::member_name;
use crate::{Plan, PlanError, WormKind};

/// A plan in the DOT language: a box a member, an arrow a worm with its step. A path or tree worm, and any other with
/// several receivers, goes through a small point from which an arrow leads to each receiver. Colours and line styles
/// tell the kinds apart as in [`super::svg`].
///
/// # Errors
/// [`PlanError::PlacementMismatch`] where the plan belongs to another fabric.
pub fn dot(plan: &Plan, fabric: &Fabric) -> Result<String, PlanError> {
    plan.check_fabric(fabric)?;
    let title = format!("{} ({})", plan.scheme(), plan.label());
    let mut text = format!(
        "digraph plan {{\n  label={};\n  labelloc=t;\n  node [shape=box, style=rounded];\n",
        quoted(&title)
    );
    let mut member = |id, extra: &str| {
        text += &format!("  m{id} [label={}{extra}];\n", quoted(&member_name(plan, fabric, id)));
    };
    member(plan.root(), ", penwidth=2");
    for &to in plan.worms().iter().flat_map(|worm| &worm.to) {
        member(to, "");
    }
    for ((position, worm), step) in plan.worms().iter().enumerate().zip(plan.steps()) {
        let style = style(worm.kind);
        if let ([to], WormKind::Unicast | WormKind::Local) = (&worm.to[..], worm.kind) {
            text += &format!("  m{} -> m{to} [label=\"{step}\", {style}];\n", worm.from);
            continue;
        }
        text += &format!("  w{position} [shape=point, label=\"\"];\n");
        text += &format!("  m{} -> w{position} [label=\"{step}\", arrowhead=none, {style}];\n", worm.from);
        for to in &worm.to {
            text += &format!("  w{position} -> m{to} [{style}];\n");
        }
    }
    text += "}\n";
    Ok(text)
}

fn style(kind: WormKind) -> &'static str {
    match kind {
        WormKind::Unicast => "color=\"#0072B2\"",
        WormKind::Path => "color=\"#D55E00\", style=dashed",
        WormKind::Tree => "color=\"#009E73\", style=bold",
        WormKind::Local => "color=\"#AA4499\", style=dotted",
    }
}

/// A quoted string of DOT: quotes and backslashes escaped, line ends kept as such.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
