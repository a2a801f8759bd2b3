//! The page of runs under load.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};
use treecast_fabric::Fabric;
use treecast_page::{Page, escaped};
use treecast_sim::{LoadDocument, LoadSetup};

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

/// A run under load, for a page.
#[derive(Debug, Clone, Copy)]
pub struct LoadPart<'a> {
    /// What tells it apart from other runs of the page, such as the name of its file.
    pub label: &'a str,
    /// The run.
    pub document: &'a LoadDocument,
    /// Its fabric.
    pub fabric: &'a Fabric,
    /// The command that simulates it.
    pub simulated_with: &'a str,
}

impl LoadPart<'_> {
    fn name(&self) -> String {
        let LoadSetup { scheme, offload, .. } = &self.document.setup;
        format!("{scheme}, offload {offload}")
    }

    /// The links with traffic: the number, the name and the utilization of each.
    fn links(&self) -> Result<Vec<(u32, String, f64)>, LoadPageError> {
        let (topology, links) = (self.fabric.topology(), &self.document.links);
        let known: Vec<(u32, String, f64)> = topology
            .links()
            .filter_map(|link| {
                let name = topology.link_name(link);
                links.get(&name).map(|&share| (link.0, name, share))
            })
            .collect();
        let names: BTreeSet<&String> = known.iter().map(|(_, name, _)| name).collect();
        match links.keys().find(|name| !names.contains(name)) {
            Some(name) => Err(LoadPageError::UnknownLink(name.clone())),
            None => Ok(known),
        }
    }
}

/// One or several runs under load as a page, side by side: their figures, and their fabrics with
/// each link in the colour and width of its utilization, which is that of the busiest link of all
/// runs at most. `command` is what makes the page.
///
/// # Errors
/// [`LoadPageError::UnknownLink`] if a run was on another fabric.
pub fn load_page(parts: &[LoadPart<'_>], command: &str) -> Result<String, LoadPageError> {
    let mut fabrics: Vec<Value> = Vec::new();
    let mut runs = Vec::new();
    let mut has_traffic = false;
    let is_one = parts.len() == 1;
    for part in parts {
        let links = part.links()?;
        has_traffic |= !links.is_empty();
        // Runs on one fabric share its picture.
        let fabric = picture(part.fabric);
        let known = fabrics.iter().position(|known| *known == fabric);
        let number = known.unwrap_or(fabrics.len());
        if known.is_none() {
            fabrics.push(fabric);
        }
        let name = if is_one { part.name() } else { format!("{}: {}", part.label, part.name()) };
        runs.push(json!({ "fabric": number, "label": part.label, "name": name, "links": links }));
    }
    let (pictures, links) = if has_traffic { (PICTURES, LINKS) } else { ("", "") };
    let mut commands = String::new();
    for part in parts {
        let command = escaped(part.simulated_with);
        let _ = writeln!(commands, "<p class=\"command\">Simulated with <code>{command}</code></p>");
    }
    let body = format!(
        "<section aria-labelledby=\"figures-title\">\n<h2 id=\"figures-title\">{}</h2>\n{}</section>\n{pictures}{links}\
         <section aria-labelledby=\"inputs-title\">\n<h2 id=\"inputs-title\">Inputs</h2>\n{}</section>\n\
         {commands}<p class=\"command\">Made with <code>{}</code></p>\n",
        if is_one { "The run" } else { "The runs" },
        side_by_side(parts, figures),
        side_by_side(parts, inputs),
        escaped(command)
    );
    let data = json!({ "fabrics": fabrics, "runs": runs });
    let scripts = [PICTURE, TABLE, SCRIPT];
    let page = Page {
        title: &title(parts),
        styles: &[STYLE],
        body: &body,
        data: &[("load", &data)],
        scripts: if has_traffic { &scripts } else { &[] },
    };
    Ok(page.html())
}

fn title(parts: &[LoadPart<'_>]) -> String {
    match parts {
        [LoadPart { document: LoadDocument { setup, .. }, .. }] => {
            format!("{} under load on {}", setup.scheme, setup.fabric)
        }
        runs => format!("{} runs under load", runs.len()),
    }
}

/// A table with a column for each run. A figure that a run lacks is a dash.
fn side_by_side(parts: &[LoadPart<'_>], of: fn(&LoadDocument) -> Rows) -> String {
    let columns: Vec<Rows> = parts.iter().map(|part| of(part.document)).collect();
    if let [rows] = &columns[..] {
        return facts(rows.iter().cloned());
    }
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in columns.iter().flatten() {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let mut text = String::from("<div class=\"scroll\"><table class=\"facts\">\n<tr><td></td>");
    // Writing to a string does not fail.
    for part in parts {
        let _ = write!(text, "<th scope=\"col\">{}</th>", escaped(part.label));
    }
    text += "</tr>\n";
    for name in names {
        let _ = write!(text, "<tr><th scope=\"row\">{}</th>", escaped(name));
        for rows in &columns {
            let value = rows.iter().find(|(known, _)| *known == name).map_or("-", |(_, value)| value);
            let _ = write!(text, "<td>{}</td>", escaped(value));
        }
        text += "</tr>\n";
    }
    text + "</table></div>\n"
}

/// Names and values.
type Rows = Vec<(&'static str, String)>;

/// What was measured.
fn figures(document: &LoadDocument) -> Rows {
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
    rows
}

/// What was simulated.
fn inputs(document: &LoadDocument) -> Rows {
    let setup = &document.setup;
    let parameters: Vec<String> =
        setup.parameters.iter().map(|(key, value)| format!("{key}={}", plain(value))).collect();
    vec![
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
    ]
}

/// A value without the quotes of JSON.
fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}
