//! The two simulators, and the choice between them.

use std::fmt;
use std::str::FromStr;

use treecast_terms::SpecError;

use crate::error::SimError;
use crate::multicast::Multicast;
use crate::observer::Observer;
use crate::parameters::Switching;
use crate::setting::{Ending, Setting};
use crate::{cycle, event};

/// A simulator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Simulator {
    /// Event-driven: fast, and exact with virtual cut-through switching.
    #[default]
    Event,
    /// Cycle-driven: every flit in every cycle. Slow, and written to be obviously right. Any
    /// switching, any buffers.
    Cycle,
}

impl Simulator {
    /// All simulators with their names.
    pub const NAMES: [(&str, Self); 2] = [("event", Self::Event), ("cycle", Self::Cycle)];

    /// The fastest simulator that supports a switching technique.
    pub const fn fastest_for(switching: Switching) -> Self {
        match switching {
            Switching::CutThrough => Self::Event,
            Switching::Wormhole => Self::Cycle,
        }
    }
}

impl FromStr for Simulator {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let found = Self::NAMES.iter().find(|(name, _)| *name == text);
        found.map(|&(_, simulator)| simulator).ok_or_else(|| SpecError::UnknownName {
            what: "simulator",
            given: text.into(),
            known: Self::NAMES.map(|(name, _)| name.to_string()).to_vec(),
        })
    }
}

impl fmt::Display for Simulator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Event => "event",
            Self::Cycle => "cycle",
        })
    }
}

/// Simulates multicasts, given in the order of their starts. Returns how the run ended, and the
/// number of simulated events ([`Simulator::Event`]) or cycles ([`Simulator::Cycle`]).
pub(crate) fn simulate(
    simulator: Simulator,
    setting: &Setting,
    multicasts: impl Iterator<Item = Result<Multicast, SimError>>,
    observer: &mut impl Observer,
) -> Result<(Ending, u64), SimError> {
    match simulator {
        Simulator::Event => event::simulate(setting, multicasts, observer),
        Simulator::Cycle => cycle::simulate(setting, multicasts, observer),
    }
}
