//! What scripts for a daemon and for gathering share.

use std::time::Duration;

use arbitrary::Arbitrary;
use treecast_node::{EngineChoice, GroupSettings, Keyed, Nanoseconds, NodeSettings};

/// How long an answer may take, on a machine that is busy.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// The most settings of a group that a script names.
pub const ANY_SETTINGS_MAX: usize = 8;

/// The longest text for a user, in bytes.
const TEXT_BYTES_MAX: usize = 8_192;

/// A setting of a group.
#[derive(Debug, Arbitrary)]
pub struct AnySetting {
    key: u8,
    value: AnyValue,
}

#[derive(Debug, Arbitrary)]
enum AnyValue {
    Default,
    Number(u32),
    Text(String),
}

impl AnySetting {
    pub fn read(&self) -> (&'static str, String) {
        let keys = GroupSettings::keys();
        let key = &keys[usize::from(self.key) % keys.len()];
        let value = match &self.value {
            AnyValue::Default => key.value(&GroupSettings::new(Vec::new())).to_string(),
            AnyValue::Number(number) => number.to_string(),
            AnyValue::Text(text) => text.clone(),
        };
        (key.name, value)
    }
}

/// A node whose groups end soon without their members. What it sends does not leave this host: it
/// is bound to the loopback address.
pub fn node_settings() -> NodeSettings {
    let mut settings = NodeSettings {
        bind: "127.0.0.1:0".parse().expect("an address"),
        engine: EngineChoice::User,
        ..NodeSettings::default()
    };
    settings.protocol.peer_timeout = Nanoseconds::from_ms(20);
    settings.protocol.join_timeout = Nanoseconds::from_ms(20);
    settings.protocol.keepalive = Nanoseconds::from_ms(4);
    settings
}

/// Checks a text that a user sees in a terminal or in a log.
///
/// # Panics
/// If it is long, or has control characters.
pub fn check_text(text: &str) {
    assert!(text.len() <= TEXT_BYTES_MAX, "a text for a user has {} bytes", text.len());
    assert!(!text.chars().any(char::is_control), "a text for a user has control characters: {text:?}");
}
