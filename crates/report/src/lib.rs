//! Runs and plans as one page for the browser: the fabric, the multicast that moves over it,
//! tables; and pictures of fabrics.
//!
//! The page is one file that fetches nothing. It plays runs of one fabric side by side on one
//! clock: who has the message, which links are busy, where packets wait.
//!
//! ```
//! use treecast_fabric::{Fabric, FabricSpec};
//! use treecast_plan::{Group, MemberId, Placement, PlanOptions, plan};
//! use treecast_report::Report;
//! use treecast_sim::{Offload, Operation, Parameters, Run, Simulator};
//! use treecast_terms::Flits;
//!
//! let fabric = Fabric::from_spec(&"star:4".parse::<FabricSpec>()?)?;
//! let members = vec![MemberId(1), MemberId(3)];
//! let group = Group::new(Placement::one_per_host(4), MemberId(0), members)?;
//! let plan = plan(&fabric, &group, &"binomial".parse()?, &PlanOptions::default())?;
//! let parameters = Parameters::default();
//! let run = Run {
//!     fabric: &fabric,
//!     plan: &plan,
//!     operation: Operation::Broadcast,
//!     offload: Offload::Host,
//!     message: Flits(128),
//!     parameters: &parameters,
//!     seed: 1,
//!     simulator: Simulator::Event,
//! };
//!
//! let mut report = Report::new(&fabric, "star:4", parameters.cycle, "treecast report ...");
//! report.add(&run)?;
//! assert!(report.html().starts_with("<!doctype html>"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod broadcast;
mod layout;
mod load;
mod plan;
mod recording;
mod steps;
mod svg;

use std::fmt::Write as _;

use serde_json::{Value, json};
use treecast_fabric::{Fabric, FabricError, Vertex};
use treecast_page::{Page, escaped};
use treecast_plan::PlanError;
use treecast_sim::{Outcome, Recorder, Run, SimError, Slice};
use treecast_terms::Picoseconds;

use layout::{Layout, Point};
use recording::Recording;

pub use broadcast::{Broadcast, broadcasts_page};
pub use load::{LoadPageError, LoadPart, load_page};
pub use plan::plan_page;
pub use svg::{TooLarge, VERTICES_DRAWN_MAX, fabric_svg};

const STYLE: &str = include_str!("../assets/report.css");
const BODY: &str = include_str!("../assets/report.html");
const CONTROLS: &str = include_str!("../assets/controls.html");
const PICTURE: &str = include_str!("../assets/picture.js");
const TABLE: &str = include_str!("../assets/table.js");
const SCRIPTS: [&str; 3] = [PICTURE, TABLE, include_str!("../assets/report.js")];

/// Why a run is not on a page.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The run is impossible.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// The plan does not fit the fabric.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The fabric is impossible.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Broadcasts of a page have one number of members, which is more than the root.
    #[error("the broadcasts of a page are those of one group, and these have different numbers of members")]
    DifferentGroups,
    /// The parents of a broadcast are no tree.
    #[error("the parents of '{name}' form a circle, so nothing reaches {}", listed(members))]
    Circle {
        /// The broadcast.
        name: String,
        /// The members of the circle, each before its parent.
        members: Vec<u32>,
    },
    /// There is no room for it.
    #[error(
        "the page would have {slices} pieces of work, and has room for {max}: choose fewer destinations, or a shorter message"
    )]
    TooLong {
        /// The pieces of work of all runs.
        slices: usize,
        /// Their greatest number.
        max: usize,
    },
    /// The routes of a plan have too many links.
    #[error(
        "the sends of the plan cross {links} links, and a page has room for {max}: choose fewer destinations"
    )]
    TooManyLinks {
        /// The links of all routes.
        links: usize,
        /// Their greatest number.
        max: usize,
    },
}

/// How many members an error names.
const MEMBERS_NAMED: usize = 10;

fn listed(members: &[u32]) -> String {
    let named: Vec<String> = members.iter().take(MEMBERS_NAMED).map(ToString::to_string).collect();
    let rest = members.len() - named.len();
    let plural = if members.len() == 1 { "" } else { "s" };
    let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("member{plural} {}{rest}", named.join(", "))
}

/// Runs on one fabric, as a page.
#[derive(Debug)]
pub struct Report<'a> {
    fabric: &'a Fabric,
    fabric_text: &'a str,
    cycle: Picoseconds,
    command: &'a str,
    runs: Vec<Recording>,
    slices: usize,
}

impl<'a> Report<'a> {
    /// The most pieces of work of all runs on a page. They take about 20 bytes of it each.
    pub const SLICES_MAX: usize = 1_000_000;

    /// A page without runs. `fabric_text` is the spec or the file of the fabric, `command` what
    /// makes the page.
    pub fn new(fabric: &'a Fabric, fabric_text: &'a str, cycle: Picoseconds, command: &'a str) -> Self {
        Self { fabric, fabric_text, cycle, command, runs: Vec::new(), slices: 0 }
    }

    /// Simulates a run on the fabric, and adds it.
    ///
    /// # Errors
    /// [`ReportError`]: the page stays as it was.
    pub fn add(&mut self, run: &Run) -> Result<Outcome, ReportError> {
        let mut recorder = Bounded { slices: Vec::new(), max: Self::SLICES_MAX - self.slices, count: 0 };
        let outcome = run.simulate_recorded(Some(&mut recorder))?;
        let slices = self.slices + recorder.count;
        if slices > Self::SLICES_MAX {
            return Err(ReportError::TooLong { slices, max: Self::SLICES_MAX });
        }
        self.slices = slices;
        self.runs.push(Recording::new(run, &outcome, &recorder.slices));
        Ok(outcome)
    }

    /// The file.
    pub fn html(&self) -> String {
        let title = match &self.runs[..] {
            [] => self.fabric_text.to_string(),
            [first, ..] => format!("{} on {}", first.scheme, self.fabric_text),
        };
        let body = with_controls(BODY, ["event", "Event", "Cycle"]);
        let body =
            format!("{body}<p class=\"command\">Made with <code>{}</code></p>\n", escaped(self.command));
        let clock = json!({ "unit": "cycle", "ns": self.cycle.0 as f64 / 1e3 });
        let data = json!({ "fabric": picture(self.fabric), "clock": clock, "runs": self.runs });
        Page { title: &title, styles: &[STYLE], body: &body, data: &[("report", &data)], scripts: &SCRIPTS }
            .html()
    }
}

/// The body of a page with the controls of its clock, which goes from move to move: the name of a
/// move in a sentence and on a button, and what the clock shows.
fn with_controls(body: &str, [r#move, title, clock]: [&str; 3]) -> String {
    let controls = CONTROLS.replace("{move}", r#move).replace("{title}", title).replace("{clock}", clock);
    body.replace("<!-- controls -->\n", &controls)
}

/// The fabric: names and positions, and the links by their numbers.
fn picture(fabric: &Fabric) -> Value {
    let topology = fabric.topology();
    let layout = Layout::new(topology);
    let rounded = |&(x, y): &Point| ((x * 100.0).round() / 100.0, (y * 100.0).round() / 100.0);
    let hosts = topology.hosts().zip(&layout.hosts);
    let switches = topology.switches().zip(&layout.switches);
    // Hosts have numbers from 0, switches from -1 downwards.
    let end = |vertex: Vertex| match vertex {
        Vertex::Host(host) => i64::from(host.0),
        Vertex::Switch(switch) => -1 - i64::from(switch.0),
    };
    let links = topology.links().map(|link| {
        let link = topology.link(link);
        (end(link.from), end(link.to))
    });
    json!({
        "hosts": hosts.map(|(host, at)| (topology.host_name(host), rounded(at))).collect::<Vec<_>>(),
        "switches": switches.map(|(switch, at)| (topology.switch_name(switch), rounded(at))).collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
        "pitch": layout.pitch,
    })
}

/// A table of names and values.
fn facts<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut text = String::from("<div class=\"scroll\"><table class=\"facts\">\n");
    for (name, value) in rows {
        let _ =
            writeln!(text, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escaped(name), escaped(&value));
    }
    text + "</table></div>\n"
}

/// Keeps the first slices, and counts all.
struct Bounded {
    slices: Vec<Slice>,
    max: usize,
    count: usize,
}

impl Recorder for Bounded {
    fn record(&mut self, slice: &Slice) {
        self.count += 1;
        if self.slices.len() < self.max {
            self.slices.push(*slice);
        }
    }
}
