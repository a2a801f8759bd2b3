//! What a run depends on besides its scheme and its group, put together from settings.

use std::str::FromStr;

use treecast_fabric::{FabricSpec, Flits, NameAndOptions, SpecError};
use treecast_sim::Parameters;

const DESTINATIONS: &str = "a whole number from 1";
const MESSAGE: &str = "a number of flits from 1";
const FABRIC: &str = "a fabric such as irregular:switches=8,hosts=32";

/// Fabric, message, number of destinations and parameters of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// The fabric of each topology, with the seed that made it; one without a seed where topologies are not drawn.
    pub fabrics: Vec<(Option<u64>, FabricSpec)>,
    /// The length of the message.
    pub message: Flits,
    /// How many destinations are drawn.
    pub destinations: u32,
    /// How fast everything is.
    pub parameters: Parameters,
}

/// A setup in the making: later settings replace earlier ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draft {
    fabric: Option<NameAndOptions>,
    message: Option<Flits>,
    destinations: Option<u32>,
    parameters: Parameters,
}

impl Draft {
    /// Applies one setting: `fabric`, `message`, `destinations`, a key of the parameters, or an option of the fabric.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        match key {
            "fabric" => {
                value.parse::<FabricSpec>()?;
                self.fabric = Some(value.parse()?);
            }
            "message" => self.message = Some(Flits(positive(key, value, MESSAGE)?)),
            "destinations" => self.destinations = Some(positive(key, value, DESTINATIONS)?),
            _ => match self.parameters.set(key, value) {
                Err(SpecError::UnknownKey { known, .. }) => self.set_fabric_option(key, value, known)?,
                other => other?,
            },
        }
        Ok(())
    }

    fn set_fabric_option(&mut self, key: &str, value: &str, mut known: Vec<String>) -> Result<(), SpecError> {
        known.extend(["fabric", "message", "destinations"].map(String::from));
        if let Some(fabric) = &self.fabric {
            let changed = fabric.clone().with(key, value);
            match changed.to_string().parse::<FabricSpec>() {
                Ok(_) => {
                    self.fabric = Some(changed);
                    return Ok(());
                }
                Err(SpecError::UnknownKey { known: options, .. }) => known.extend(options),
                Err(other) => return Err(other),
            }
        }
        Err(SpecError::UnknownName { what: "setting", given: key.into(), known })
    }

    /// The setup on topologies with these seeds; without seeds on the fabric as it is.
    pub fn finish(&self, topologies: &[u64]) -> Result<Setup, SpecError> {
        let missing = |key, expected| SpecError::Missing { name: "the figure".into(), key, expected };
        let fabric = self.fabric.as_ref().ok_or_else(|| missing("fabric", FABRIC))?;
        let fabrics = if topologies.is_empty() {
            vec![(None, fabric.to_string().parse()?)]
        } else {
            if let Some(seed) = fabric.get("seed") {
                return Err(SpecError::BadValue {
                    key: "seed".into(),
                    value: seed.into(),
                    expected: "the topologies of [repeat] set the seed of the fabric".into(),
                });
            }
            let seeded =
                |&seed: &u64| Ok((Some(seed), fabric.clone().with("seed", seed).to_string().parse()?));
            topologies.iter().map(seeded).collect::<Result<_, SpecError>>()?
        };
        Ok(Setup {
            fabrics,
            message: self.message.ok_or_else(|| missing("message", MESSAGE))?,
            destinations: self.destinations.ok_or_else(|| missing("destinations", DESTINATIONS))?,
            parameters: self.parameters.clone(),
        })
    }
}

fn positive<T: FromStr + Default + PartialEq>(
    key: &str,
    value: &str,
    expected: &str,
) -> Result<T, SpecError> {
    value.parse().ok().filter(|number| *number != T::default()).ok_or_else(|| SpecError::BadValue {
        key: key.into(),
        value: value.into(),
        expected: expected.into(),
    })
}
