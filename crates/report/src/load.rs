//! The page of a run under load.

use std::collections::BTreeSet;

use serde_json::json;
use treecast_fabric::Fabric;
use treecast_page::{Page, escaped};
use treecast_sim::LoadDocument;

use crate::{PICTURE, STYLE, TABLE, facts, picture};

const PICTURES: &str = include_str!("../assets/load.html");
const LINKS: &str = include_str!("../assets/load_links.html");
const SCRIPT: &str = include_str!("../assets/load.js");

/// Why a run under load has no page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadPageError {
    /// The run was on another fabric.
    #[error("the fabric has no link {0}, which the run names: give the fabric of the run")]
    UnknownLink(String),
}

/// A run under load as a page: its figures, and its fabric with each link in the colour and width
/// of its utilization. `simulated_with` is the command of the run, `command` what makes the page.
///
/// # Errors
/// [`LoadPageError::UnknownLink`] if the run was on another fabric.
pub fn load_page(
    document: &LoadDocument,
    fabric: &Fabric,
    simulated_with: &str,
    command: &str,
) -> Result<String, LoadPageError> {
    let topology = fabric.topology();
    let known: Vec<(u32, String, f64)> = topology
        .links()
        .filter_map(|link| {
            let name = topology.link_name(link);
            document.links.get(&name).map(|&share| (link.0, name, share))
        })
        .collect();
    let names: BTreeSet<&String> = known.iter().map(|(_, name, _)| name).collect();
    if let Some(name) = document.links.keys().find(|name| !names.contains(name)) {
        return Err(LoadPageError::UnknownLink(name.clone()));
    }
    let setup = &document.setup;
    let (pictures, links) = if known.is_empty() { ("", "") } else { (PICTURES, LINKS) };
    let body = format!(
        "<section aria-labelledby=\"figures-title\">\n<h2 id=\"figures-title\">The run</h2>\n{}</section>\n{pictures}{links}\
         <section aria-labelledby=\"inputs-title\">\n<h2 id=\"inputs-title\">Inputs</h2>\n{}</section>\n\
         <p class=\"command\">Simulated with <code>{}</code></p>\n<p class=\"command\">Made with <code>{}</code></p>\n",
        figures(document),
        inputs(document),
        escaped(simulated_with),
        escaped(command)
    );
    let name = format!("{}, offload {}", setup.scheme, setup.offload);
    let data = json!({ "fabric": picture(fabric), "name": name, "links": known });
    let scripts = [PICTURE, TABLE, SCRIPT];
    let page = Page {
        title: &format!("{} under load on {}", setup.scheme, setup.fabric),
        styles: &[STYLE],
        body: &body,
        data: &[("load", &data)],
        scripts: if known.is_empty() { &[] } else { &scripts },
    };
    Ok(page.html())
}

/// What was measured.
fn figures(document: &LoadDocument) -> String {
    let load = |load: f64| format!("{load:.4}");
    let mut rows = vec![
        ("result", document.status.name().to_string()),
        ("offered load, flits/host/cycle", load(document.offered_load)),
        ("ejection load, flits/host/cycle", load(document.ejection_load)),
        ("multicasts measured", document.figures.multicasts_measured.to_string()),
    ];
    rows.extend(document.figures.rows());
    rows.push(("end of the run, cycle", document.end_cycle.to_string()));
    rows.extend(document.warning().map(|warning| ("note", warning.to_string())));
    facts(rows)
}

/// What was simulated.
fn inputs(document: &LoadDocument) -> String {
    let setup = &document.setup;
    let parameters: Vec<String> =
        setup.parameters.iter().map(|(key, value)| format!("{key}={}", plain(value))).collect();
    facts([
        ("fabric", setup.fabric.clone()),
        ("routing", setup.routing.clone()),
        ("scheme", setup.scheme.clone()),
        ("order of members", setup.order.clone().unwrap_or_else(|| "that of the scheme".into())),
        ("offload", setup.offload.clone()),
        ("message, flits", setup.message_flits.to_string()),
        ("destinations of each multicast", setup.degree.to_string()),
        ("arrivals", setup.arrivals.clone()),
        ("destination sets", setup.destination_sets.clone()),
        ("cycles", setup.cycles.to_string()),
        ("warm-up, cycles", setup.warmup_cycles.to_string()),
        ("bound of multicasts in flight", setup.backlog_max.to_string()),
        ("simulator", setup.simulator.clone()),
        ("seed", setup.seed.to_string()),
        ("parameters", parameters.join(", ")),
    ])
}

/// A value without the quotes of JSON.
fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}
