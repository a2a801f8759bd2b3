//! What a run depends on besides its scheme and its group, put together from settings.

use std::str::FromStr;

use treecast_fabric::{Cycles, FabricSpec, Flits, NameAndOptions, RoutingPolicy, SpecError};
use treecast_sim::{Arrivals, DestinationSets, Parameters};

const FABRIC: &str = "a fabric such as irregular:switches=8,hosts=32";
const DESTINATIONS: &str = "a whole number from 1";
const MESSAGE: &str = "a number of flits from 1";
const CYCLES: &str = "a number of cycles";
const LOAD: &str = "flits a host and cycle, above 0";
const PRECISION: &str = "a share from 0.001 to 0.5";

/// What can be set besides parameters and the fabric's options.
const KEYS: [&str; 12] = [
    "fabric",
    "routing",
    "message",
    "destinations",
    "load",
    "effective_load",
    "arrivals",
    "sets",
    "cycles",
    "warmup",
    "backlog_max",
    "precision",
];

/// Fabric, message, number of destinations, parameters and traffic of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// The fabric of each topology, with the seed that made it; one without a seed where topologies are not drawn.
    pub fabrics: Vec<(Option<u64>, FabricSpec)>,
    /// The routing on it.
    pub routing: RoutingPolicy,
    /// The length of the message.
    pub message: Flits,
    /// How many destinations are drawn: the degree of a run under load.
    pub destinations: u32,
    /// How fast everything is.
    pub parameters: Parameters,
    /// The load that every host applies, in flits of messages a cycle; without one the fabric is idle but for one
    /// multicast.
    pub applied_load: Option<f64>,
    /// What else a run under load depends on.
    pub traffic: Traffic,
}

/// What a run under load depends on besides its load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    /// When hosts send.
    pub arrivals: Arrivals,
    /// To whom.
    pub sets: DestinationSets,
    /// How many cycles are simulated.
    pub cycles: Cycles,
    /// How many of them pass before the measurement.
    pub warmup: Cycles,
    /// The most multicasts under way at once; `None` for the simulator's own bound.
    pub backlog_max: Option<usize>,
    /// The relative precision of a search for saturation.
    pub precision: f64,
}

impl Default for Traffic {
    /// 1,000,000 cycles, measured after 500,000, as in the ICPP'98 study; saturation within 2 %.
    fn default() -> Self {
        Self {
            arrivals: Arrivals::default(),
            sets: DestinationSets::default(),
            cycles: Cycles(1_000_000),
            warmup: Cycles(500_000),
            backlog_max: None,
            precision: 0.02,
        }
    }
}

/// A load as it was set: the effective one is the degree times the applied one.
#[derive(Debug, Clone, Copy)]
enum Load {
    Applied(f64),
    Effective(f64),
}

/// A setup in the making: later settings replace earlier ones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Draft {
    fabric: Option<NameAndOptions>,
    routing: RoutingPolicy,
    message: Option<Flits>,
    destinations: Option<u32>,
    parameters: Parameters,
    load: Option<Load>,
    traffic: Traffic,
}

impl Draft {
    /// Applies one setting: one of [`KEYS`], a key of the parameters, or an option of the fabric.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        let positive = |number: &f64| number.is_finite() && *number > 0.0;
        match key {
            "fabric" => {
                value.parse::<FabricSpec>()?;
                self.fabric = Some(value.parse()?);
            }
            "routing" => self.routing = value.parse()?,
            "message" => self.message = Some(Flits(read(key, value, MESSAGE, |flits| *flits > 0)?)),
            "destinations" => {
                self.destinations = Some(read(key, value, DESTINATIONS, |number| *number > 0)?);
            }
            "load" => self.load = Some(Load::Applied(read(key, value, LOAD, positive)?)),
            "effective_load" => self.load = Some(Load::Effective(read(key, value, LOAD, positive)?)),
            "arrivals" => self.traffic.arrivals = value.parse()?,
            "sets" => self.traffic.sets = value.parse()?,
            "cycles" => self.traffic.cycles = Cycles(read(key, value, CYCLES, |_| true)?),
            "warmup" => self.traffic.warmup = Cycles(read(key, value, CYCLES, |_| true)?),
            "backlog_max" => {
                self.traffic.backlog_max = Some(read(key, value, DESTINATIONS, |number| *number > 0)?);
            }
            "precision" => {
                self.traffic.precision = read(key, value, PRECISION, |share| (0.001..=0.5).contains(share))?;
            }
            _ => match self.parameters.set(key, value) {
                Err(SpecError::UnknownKey { known, .. }) => self.set_fabric_option(key, value, known)?,
                other => other?,
            },
        }
        Ok(())
    }

    fn set_fabric_option(&mut self, key: &str, value: &str, mut known: Vec<String>) -> Result<(), SpecError> {
        known.extend(KEYS.map(String::from));
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
        let destinations = self.destinations.ok_or_else(|| missing("destinations", DESTINATIONS))?;
        Ok(Setup {
            fabrics: self.fabrics(topologies)?,
            routing: self.routing,
            message: self.message.ok_or_else(|| missing("message", MESSAGE))?,
            destinations,
            parameters: self.parameters.clone(),
            applied_load: self.load.map(|load| match load {
                Load::Applied(load) => load,
                Load::Effective(load) => load / f64::from(destinations),
            }),
            traffic: self.traffic,
        })
    }

    fn fabrics(&self, topologies: &[u64]) -> Result<Vec<(Option<u64>, FabricSpec)>, SpecError> {
        let fabric = self.fabric.as_ref().ok_or_else(|| missing("fabric", FABRIC))?;
        if topologies.is_empty() {
            return Ok(vec![(None, fabric.to_string().parse()?)]);
        }
        if let Some(seed) = fabric.get("seed") {
            return Err(SpecError::BadValue {
                key: "seed".into(),
                value: seed.into(),
                expected: "the topologies of [repeat] set the seed of the fabric".into(),
            });
        }
        // One that is not drawn is the same in all topologies: their seeds then draw groups and traffic alone.
        let drawn = matches!(fabric.to_string().parse()?, FabricSpec::Irregular(_));
        let seeded = |&seed: &u64| {
            let fabric = if drawn { fabric.clone().with("seed", seed) } else { fabric.clone() };
            Ok((Some(seed), fabric.to_string().parse()?))
        };
        topologies.iter().map(seeded).collect()
    }
}

fn missing(key: &'static str, expected: &'static str) -> SpecError {
    SpecError::Missing { name: "the figure".into(), key, expected }
}

fn read<T: FromStr>(
    key: &str,
    value: &str,
    expected: &str,
    fits: impl FnOnce(&T) -> bool,
) -> Result<T, SpecError> {
    value.parse().ok().filter(fits).ok_or_else(|| SpecError::BadValue {
        key: key.into(),
        value: value.into(),
        expected: expected.into(),
    })
}
