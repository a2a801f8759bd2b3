//! What the settings of a group say of its streams.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::GroupSettings;
use super::congestion::CongestionControl;

/// Who retains packets on streams until all members have them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retention {
    /// The root. A member that has children receives into the buffer of the application that waits,
    /// and forwards from there, so that no packet passes its slots unless a child is behind. What a
    /// child lacks after its stream has ended comes from the root, whose child it becomes.
    #[default]
    Root,
    /// The root, and each member for its subtree: what a child lacks comes from its parent, or from
    /// the next ancestor if that is lost.
    All,
}

impl Retention {
    const NAMES: [(&'static str, Self); 2] = [("root", Self::Root), ("all", Self::All)];
}

impl fmt::Display for Retention {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(Self::NAMES[*self as usize].0)
    }
}

/// A text that names no [`Retention`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown retention: known are root, all")]
pub struct UnknownRetention;

impl FromStr for Retention {
    type Err = UnknownRetention;

    /// ```
    /// use treecast_engine::settings::stream_settings::Retention;
    ///
    /// assert_eq!("all".parse(), Ok(Retention::All));
    /// let unknown = "some".parse::<Retention>().unwrap_err();
    /// assert_eq!(unknown.to_string(), "unknown retention: known are root, all");
    /// ```
    fn from_str(text: &str) -> Result<Self, UnknownRetention> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, retention)| retention).ok_or(UnknownRetention)
    }
}

/// What a node has to know of the settings of a group, to open and use its streams.
#[derive(Debug, Default, Clone)]
pub struct StreamSettings {
    /// Their congestion control, if the settings name one.
    pub congestion: Option<CongestionControl>,
    /// Who retains packets.
    pub retention: Retention,
}

impl StreamSettings {
    /// Those of a group.
    pub fn of(settings: &GroupSettings) -> Self {
        Self { congestion: settings.tcp_congestion.clone(), retention: settings.retention }
    }
}
