//! The result of an examination.

use serde::Serialize;

/// The format of a report.
pub const FORMAT: &str = "treecast-doctor-1";

/// The report on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: &'static str,
    /// Ordered by area.
    pub findings: Vec<Finding>,
    /// Whether this user can run the kernel engine on this machine.
    pub kernel_engine: bool,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub area: Area,
    /// The name of the check.
    pub name: &'static str,
    pub state: State,
    /// What the check found.
    pub found: String,
    /// The consequence, unless the state is [`State::Ok`].
    pub effect: Option<String>,
    /// How to repair it, if it can be repaired: usually a command.
    pub fix: Option<String>,
}

/// The feature that a check is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// Groups of real processes: nodes.
    Groups,
    /// Hosts made of network namespaces on this machine.
    Lab,
    KernelEngine,
    /// MPI programs whose broadcasts go by Treecast.
    Mpi,
}

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Ok,
    /// It works, with limits.
    Limited,
    /// It does not work.
    Missing,
}

impl Report {
    /// The findings that prevent the kernel engine from running.
    pub fn missing_for_kernel_engine(&self) -> impl Iterator<Item = &Finding> {
        let is_missing =
            |finding: &&Finding| finding.area == Area::KernelEngine && finding.state == State::Missing;
        self.findings.iter().filter(is_missing)
    }
}

impl Finding {
    pub fn ok(area: Area, name: &'static str, found: impl Into<String>) -> Self {
        Self { area, name, state: State::Ok, found: found.into(), effect: None, fix: None }
    }

    pub fn limited(
        area: Area,
        name: &'static str,
        found: impl Into<String>,
        effect: impl Into<String>,
    ) -> Self {
        Self { state: State::Limited, effect: Some(effect.into()), ..Self::ok(area, name, found) }
    }

    pub fn missing(
        area: Area,
        name: &'static str,
        found: impl Into<String>,
        effect: impl Into<String>,
    ) -> Self {
        Self { state: State::Missing, ..Self::limited(area, name, found, effect) }
    }

    pub fn with_fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}
