//! What an examination finds.

use serde::Serialize;

/// The format of a report.
pub const FORMAT: &str = "treecast-doctor-1";

/// What a machine can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: &'static str,
    /// One by one, by what they are about.
    pub findings: Vec<Finding>,
    /// Whether the kernel engine runs here for the user who asks.
    pub kernel_engine: bool,
}

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What it is for.
    pub area: Area,
    /// What was looked at.
    pub name: &'static str,
    /// How it is.
    pub state: State,
    /// What is there.
    pub found: String,
    /// What follows, if it is not as it should be.
    pub means: Option<String>,
    /// What to do about it, if anything can be done: mostly a command.
    pub remedy: Option<String>,
}

/// What something is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// Groups of real processes: nodes.
    Groups,
    /// Hosts on this machine.
    Lab,
    /// The engine within the kernel.
    KernelEngine,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Ok,
    /// It works, with limits.
    Limited,
    /// It does not work.
    Missing,
}

impl Report {
    /// What keeps the kernel engine from running here.
    pub fn against_kernel_engine(&self) -> impl Iterator<Item = &Finding> {
        let is_against =
            |finding: &&Finding| finding.area == Area::KernelEngine && finding.state == State::Missing;
        self.findings.iter().filter(is_against)
    }
}

impl Finding {
    pub fn ok(area: Area, name: &'static str, found: impl Into<String>) -> Self {
        Self { area, name, state: State::Ok, found: found.into(), means: None, remedy: None }
    }

    pub fn limited(area: Area, name: &'static str, found: impl Into<String>, means: impl Into<String>) -> Self {
        Self { state: State::Limited, means: Some(means.into()), ..Self::ok(area, name, found) }
    }

    pub fn missing(area: Area, name: &'static str, found: impl Into<String>, means: impl Into<String>) -> Self {
        Self { state: State::Missing, ..Self::limited(area, name, found, means) }
    }

    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}
