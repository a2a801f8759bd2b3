//! The configurations that a benchmark compares.

use serde::{Deserialize, Serialize};
use treecast_node::{Authentication, EngineChoice, Integrity, Offload, Scheme, Transport};

/// A configuration: engine, offload, scheme, authentication, encryption, integrity, transport, and
/// whether the racks are known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mode {
    /// The packet engine.
    #[serde(with = "by_name")]
    pub engine: EngineChoice,
    /// Who forwards.
    #[serde(with = "by_name")]
    pub offload: Offload,
    /// The scheme that builds the tree; `None` to choose it by the message size.
    #[serde(with = "scheme")]
    pub scheme: Option<Scheme>,
    /// What is authenticated of each packet of data.
    #[serde(with = "by_name")]
    pub authentication: Authentication,
    /// Whether the root encrypts what it sends.
    pub is_encrypted: bool,
    /// When members verify the CRCs of payloads.
    #[serde(with = "by_name")]
    pub integrity: Integrity,
    /// What carries data along the tree.
    #[serde(with = "by_name")]
    pub transport: Transport,
    /// Whether the tree is made for the fabric that joins the hosts.
    pub on_fabric: bool,
}

/// Values that are serialized by their names.
pub(crate) mod by_name {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

mod scheme {
    use serde::{Deserialize, Deserializer, Serializer, de};
    use treecast_node::Scheme;

    #[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
    pub fn serialize<S: Serializer>(scheme: &Option<Scheme>, serializer: S) -> Result<S::Ok, S::Error> {
        match scheme {
            Some(scheme) => serializer.collect_str(scheme),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Scheme>, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?;
        name.map(|name| name.parse().map_err(de::Error::custom)).transpose()
    }
}
