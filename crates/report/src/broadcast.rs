//! Broadcasts of real nodes, played as simulated ones are.

use serde_json::json;
use treecast_fabric::{Fabric, FabricSpec, Vertex};
use treecast_page::{Page, escaped};

use crate::recording::Recording;
use crate::{BODY, Report, ReportError, SCRIPTS, STYLE, picture, with_controls};

const ABOUT: &str = include_str!("../assets/broadcasts_about.html");

/// A broadcast whose times are known: measured, or predicted from measured costs. Member 0 is the
/// root; lists are by member from 1. Times are in microseconds after the root's call.
#[derive(Debug, Clone, PartialEq)]
pub struct Broadcast {
    /// What it is: the engine, and so on.
    pub name: String,
    /// The member that sends to each.
    pub parents: Vec<u32>,
    /// When its application had the message.
    pub delivered_us: Vec<f64>,
    /// When the message was stored at its node; empty: not known.
    pub stored_us: Vec<f64>,
    /// When the root knew that all members had the message; none: not known.
    pub root_us: Option<f64>,
}

/// A page that plays broadcasts among as many hosts side by side on one clock, on hosts that one
/// switch joins.
///
/// ```
/// use treecast_report::{Broadcast, broadcasts_page};
///
/// let measured = Broadcast {
///     name: "user engine".into(),
///     parents: vec![0, 1],
///     delivered_us: vec![12.5, 21.0],
///     stored_us: vec![],
///     root_us: Some(30.0),
/// };
/// let page = broadcasts_page(&[measured], "1,024 bytes to 2 hosts", "treecast report ...")?;
/// assert!(page.starts_with("<!doctype html>"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`ReportError::DifferentGroups`] if they have different numbers of members, or one that sends is
/// no member; [`ReportError::Circle`]; [`ReportError::TooLong`].
pub fn broadcasts_page(broadcasts: &[Broadcast], title: &str, command: &str) -> Result<String, ReportError> {
    let members = broadcasts.first().map_or(0, |first| first.parents.len());
    let is_alike = |broadcast: &Broadcast| {
        broadcast.parents.len() == members
            && broadcast.delivered_us.len() == members
            && (broadcast.stored_us.is_empty() || broadcast.stored_us.len() == members)
            && broadcast.parents.iter().all(|&parent| parent as usize <= members)
    };
    if members == 0 || !broadcasts.iter().all(is_alike) {
        return Err(ReportError::DifferentGroups);
    }
    for Broadcast { name, parents, .. } in broadcasts {
        if let Some(members) = circle(parents) {
            return Err(ReportError::Circle { name: name.clone(), members });
        }
    }
    let slices = 3 * members * broadcasts.len();
    if slices > Report::SLICES_MAX {
        return Err(ReportError::TooLong { slices, max: Report::SLICES_MAX });
    }
    let fabric = Fabric::from_spec(&FabricSpec::Star(members as u32 + 1))?;
    let runs: Vec<Recording> = broadcasts.iter().map(|broadcast| recording(broadcast, &fabric)).collect();
    let body = format!(
        "{}{ABOUT}<p class=\"command\">Made with <code>{}</code></p>\n",
        with_controls(BODY, ["event", "Event", "Time"]),
        escaped(command)
    );
    let clock = json!({ "unit": "us", "ns": 1 });
    let data = json!({ "fabric": picture(&fabric), "clock": clock, "runs": runs });
    let page = Page { title, styles: &[STYLE], body: &body, data: &[("report", &data)], scripts: &SCRIPTS };
    Ok(page.html())
}

/// The members of a circle, each before its parent; none in a tree.
fn circle(parents: &[u32]) -> Option<Vec<u32>> {
    let parent = |member: u32| parents[member as usize - 1];
    // From which member the way towards the root was first followed through each one.
    let mut followed_from = vec![0; parents.len() + 1];
    for start in 1..=parents.len() as u32 {
        let mut member = start;
        while member != 0 && followed_from[member as usize] == 0 {
            followed_from[member as usize] = start;
            member = parent(member);
        }
        if member != 0 && followed_from[member as usize] == start {
            let next = |&of: &u32| Some(parent(of)).filter(|&parent| parent != member);
            return Some(std::iter::successors(Some(member), next).collect());
        }
    }
    None
}

/// In nanoseconds. A send begins when the sender has the whole message, and ends when it is stored;
/// then the host works until its application has it.
fn recording(broadcast: &Broadcast, fabric: &Fabric) -> Recording {
    let ns = |us: f64| (us.max(0.0) * 1e3).round() as u64;
    let delivered: Vec<u64> = broadcast.delivered_us.iter().copied().map(ns).collect();
    let stored = match &broadcast.stored_us[..] {
        [] => delivered.clone(),
        stored => stored.iter().copied().map(ns).zip(&delivered).map(|(at, &end)| at.min(end)).collect(),
    };
    let has = |member: u32| member.checked_sub(1).map_or(0, |index| stored[index as usize]);
    let links = links_of_hosts(fabric);
    let mut runs = Recording::named(broadcast.name.clone());
    for ((member, &parent), (&end, &delivery)) in
        (1..).zip(&broadcast.parents).zip(stored.iter().zip(&delivered))
    {
        let (worm, from) = (member - 1, has(parent).min(end.saturating_sub(1)));
        runs.worms.push((parent, vec![member]));
        let path = [links[parent as usize].0, links[member as usize].1];
        runs.transfers.extend(path.map(|link| (link, worm, 0, from, end.max(1))));
        if end < delivery {
            runs.work.push((member, true, worm, end, delivery));
        }
        runs.deliveries.push((member, delivery));
    }
    runs.transfers.sort_unstable_by_key(|&(link, _, _, from, _)| (from, link));
    runs.work.sort_unstable_by_key(|&(host, _, _, from, _)| (from, host));
    runs.deliveries.sort_unstable_by_key(|&(host, at)| (at, host));
    runs.destinations = delivered.len();
    runs.latency = delivered.iter().max().copied();
    runs.root_knew = broadcast.root_us.map(ns);
    runs
}

/// The link from each host of a star to its switch, and the one back.
fn links_of_hosts(fabric: &Fabric) -> Vec<(u32, u32)> {
    let topology = fabric.topology();
    let mut links = vec![(0, 0); topology.host_count() as usize];
    for id in topology.links() {
        let link = topology.link(id);
        if let Vertex::Host(host) = link.from {
            links[host.0 as usize].0 = id.0;
        }
        if let Vertex::Host(host) = link.to {
            links[host.0 as usize].1 = id.0;
        }
    }
    links
}
