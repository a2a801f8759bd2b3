//! The page of a plan.

use serde_json::json;
use treecast_fabric::Fabric;
use treecast_page::{Page, escaped};
use treecast_plan::render::{PlanContext, WORMS_SHOWN, tree};
use treecast_plan::{Analysis, Plan};

use crate::steps::Steps;
use crate::{Report, ReportError, SCRIPTS, STYLE, facts, picture, with_controls};

const BODY: &str = include_str!("../assets/plan.html");
const TABLES: &str = include_str!("../assets/plan_tables.html");

/// A plan as a page that plays its steps: who has the message, which links each step uses; its
/// tree, its analysis and its sends. `command` is what makes the page.
///
/// # Errors
/// [`ReportError::Plan`] where the plan belongs to another fabric or has too many packets,
/// [`ReportError::TooManyLinks`] if its routes have more than [`Report::SLICES_MAX`] links.
pub fn plan_page(
    plan: &Plan,
    fabric: &Fabric,
    context: &PlanContext,
    command: &str,
) -> Result<String, ReportError> {
    let steps = Steps::new(plan, fabric)?;
    let links = steps.link_count();
    if links > Report::SLICES_MAX {
        return Err(ReportError::TooManyLinks { links, max: Report::SLICES_MAX });
    }
    let analysis = plan.analyse(fabric, context.packets)?;
    let body = format!(
        "{}<section aria-labelledby=\"plan-title\">\n<h2 id=\"plan-title\">Plan and analysis</h2>\n{}\
         <details>\n<summary>Tree</summary>\n<pre tabindex=\"0\" aria-label=\"Tree\">{}</pre>\n</details>\n</section>\n\
         {TABLES}<p class=\"command\">Made with <code>{}</code></p>\n",
        with_controls(BODY, ["step", "Step", "Step"]),
        plan_facts(plan, fabric, context, &analysis),
        escaped(&tree(plan, fabric, WORMS_SHOWN)?),
        escaped(command)
    );
    let data = json!({ "fabric": picture(fabric), "clock": { "unit": "step" }, "runs": [steps] });
    let page = Page {
        title: &format!("{} on {}", plan.scheme(), context.fabric),
        styles: &[STYLE],
        body: &body,
        data: &[("report", &data)],
        scripts: &SCRIPTS,
    };
    Ok(page.html())
}

/// The inputs of the plan and the figures of its analysis, as a table.
fn plan_facts(plan: &Plan, fabric: &Fabric, context: &PlanContext, analysis: &Analysis) -> String {
    let placement = plan.placement();
    let root = fabric.topology().host_name(placement.host_of(plan.root()));
    let order = context.order.map_or("that of the scheme".into(), |order| order.to_string());
    let rows = [
        ("scheme", format!("{} ({})", plan.scheme(), plan.label())),
        ("fabric", context.fabric.to_string()),
        ("routing", context.routing.to_string()),
        ("order of members", order),
        ("root", root),
        ("destinations", plan.destination_count().to_string()),
        ("packets of the message", context.packets.to_string()),
        ("steps until the last destination has all packets", analysis.steps.to_string()),
        ("steps until it has the first packet", analysis.phases.to_string()),
        ("depth of the tree", analysis.depth.to_string()),
        ("worms", analysis.worms.to_string()),
        ("largest fan-out", analysis.max_fan_out.to_string()),
        ("link visits", analysis.link_visits.to_string()),
        ("links used", analysis.links_used.to_string()),
        ("link concentration (visits per link used)", format!("{:.2}", analysis.link_concentration)),
        ("most worms on links in one step", analysis.link_concurrency.to_string()),
        ("pairs of worms that contend for a link", analysis.contending_pairs.to_string()),
        ("id rule", if analysis.id_rule { "holds" } else { "does not hold" }.into()),
    ];
    facts(rows)
}
