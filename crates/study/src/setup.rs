//! The inputs of a run besides its scheme and its group, from settings.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use treecast_fabric::generate::{Irregular, RandomRegular};
use treecast_fabric::{Dragonfly, FabricSpec, HyperX, RoutingPolicy, Structure};
use treecast_model::Model;
use treecast_plan::{Arrangement, MemberId, Placement};
use treecast_sim::{Arrivals, DestinationSets, LoadRun, Parameters};
use treecast_terms::{Cycles, Flits, NameAndOptions, SpecError};

const FABRIC: &str = "a fabric such as irregular:switches=8,hosts=32";
const DESTINATIONS: &str = "a whole number from 1, or all";
const FROM_1: &str = "a whole number from 1";
const MESSAGE: &str = "a whole number from 1: flits, or bytes on a testbed";
const CYCLES: &str = "a number of cycles";
const LOAD: &str = "flits/host/cycle, above 0";
const PRECISION: &str = "a share from 0.001 to 0.5";

/// The share by which a sensitivity analysis moves each guessed parameter, down and up.
pub const GUESS_SHIFT: f64 = 0.2;

/// The settings besides parameters and the fabric's options.
const KEYS: [&str; 17] = [
    "fabric",
    "routing",
    "message",
    "destinations",
    "group",
    "root",
    "processes",
    "placement",
    "testbed",
    "load",
    "ejection_load",
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
    /// The fabric of each topology, with the seed that made it; a single one without a seed if
    /// topologies are not drawn.
    pub fabrics: Vec<(Option<u64>, FabricSpec)>,
    /// The routing on it.
    pub routing: RoutingPolicy,
    /// The length of the message.
    pub message: Flits,
    /// The number of destinations drawn: the degree of a run under load.
    pub destinations: u32,
    /// The root; drawn if there is none.
    pub root: Option<MemberId>,
    /// Which destinations a root has.
    pub selection: Selection,
    /// The number of processes on every host.
    pub processes: u32,
    /// The numbering of processes.
    pub arrangement: Arrangement,
    /// The hardware with its parameters.
    pub hardware: Hardware,
    /// The load that every host offers, in message flits per cycle; `None`: one multicast on an
    /// otherwise idle fabric.
    pub offered_load: Option<f64>,
    /// Further inputs of a run under load.
    pub traffic: Traffic,
}

/// The hardware that carries out a multicast.
#[derive(Debug, Clone, PartialEq)]
pub enum Hardware {
    /// Hosts, interfaces and switches of the simulators, cycle by cycle.
    Cycles(Parameters),
    /// A model of published hardware.
    Testbed(Box<Testbed>),
}

impl Setup {
    /// The random part of a group. Under load destinations are drawn by other rules.
    pub(crate) fn drawn(&self) -> Drawn {
        let members = hosts(&self.fabrics[0].1) * f64::from(self.processes);
        match self.root {
            _ if self.selection == Selection::Random && f64::from(self.destinations) + 1.0 < members => {
                Drawn::Group
            }
            None => Drawn::Root,
            Some(_) => Drawn::Nothing,
        }
    }

    /// The parameters of the simulator; `None` where a model runs.
    pub fn parameters(&self) -> Option<&Parameters> {
        match &self.hardware {
            Hardware::Cycles(parameters) => Some(parameters),
            Hardware::Testbed(_) => None,
        }
    }

    /// The model; `None` where the simulator runs.
    pub fn model(&self) -> Option<&Model> {
        self.testbed().map(|testbed| &testbed.model)
    }

    /// The testbed; `None` where the simulator runs.
    pub fn testbed(&self) -> Option<&Testbed> {
        self.hardware.testbed()
    }
}

impl Hardware {
    fn testbed(&self) -> Option<&Testbed> {
        match self {
            Self::Cycles(_) => None,
            Self::Testbed(testbed) => Some(testbed),
        }
    }
}

/// Which destinations a root has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Selection {
    /// They are drawn.
    #[default]
    Random,
    /// The next processes after the root by their numbers; the first ones follow the last one.
    Contiguous,
}

impl FromStr for Selection {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "random" => Ok(Self::Random),
            "contiguous" => Ok(Self::Contiguous),
            _ => Err(SpecError::BadValue {
                key: "group".into(),
                value: text.into(),
                expected: "random or contiguous".into(),
            }),
        }
    }
}

/// The random part of a group: none if all hosts are members and the root is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Drawn {
    /// Runs differ in other random choices, if at all.
    #[default]
    Nothing,
    /// The root, where all others are destinations.
    Root,
    /// The members.
    Group,
}

impl Drawn {
    /// The name of one run, by what was drawn for it.
    pub fn run(self) -> &'static str {
        match self {
            Self::Nothing => "run",
            Self::Root => "run from a random root",
            Self::Group => "run with a random group",
        }
    }

    /// The name of several runs.
    pub fn runs(self) -> &'static str {
        match self {
            Self::Nothing => "runs of the same group",
            Self::Root => "random roots",
            Self::Group => "random groups",
        }
    }
}

/// Published hardware as a study's file `testbed-NAME.toml` describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct Testbed {
    /// Its name.
    pub name: String,
    /// The model with its parameters.
    pub model: Model,
    /// The keys of numbers that are not published: guesses, calibrated, or measured elsewhere.
    pub guessed: Vec<String>,
}

/// The inputs of a run under load besides its load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Traffic {
    /// The arrival process of each host.
    pub arrivals: Arrivals,
    /// The choice of destinations.
    pub sets: DestinationSets,
    /// The number of simulated cycles.
    pub cycles: Cycles,
    /// The warm-up: cycles before the measurement window.
    pub warmup: Cycles,
    /// The bound of multicasts in flight; `None` for the simulator's default.
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
            cycles: LoadRun::CYCLES_DEFAULT,
            warmup: LoadRun::default_warmup(LoadRun::CYCLES_DEFAULT),
            backlog_max: None,
            precision: LoadRun::PRECISION_DEFAULT,
        }
    }
}

/// A load as it was set: the ejection load is the degree times the offered load.
#[derive(Debug, Clone, Copy)]
enum Load {
    Offered(f64),
    Ejection(f64),
}

/// A setup in the making: later settings replace earlier ones.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    testbeds: Arc<BTreeMap<String, Testbed>>,
    fabric: Option<NameAndOptions>,
    routing: RoutingPolicy,
    message: Option<Flits>,
    destinations: Option<Destinations>,
    selection: Selection,
    root: Option<MemberId>,
    processes: u32,
    arrangement: Arrangement,
    hardware: Hardware,
    load: Option<Load>,
    traffic: Traffic,
}

/// The number of destinations, as it was set.
#[derive(Debug, Clone, Copy)]
enum Destinations {
    All,
    Count(u32),
}

impl Draft {
    /// An empty draft, in a study with these testbeds.
    pub fn new(testbeds: Arc<BTreeMap<String, Testbed>>) -> Self {
        Self {
            testbeds,
            fabric: None,
            routing: RoutingPolicy::default(),
            message: None,
            destinations: None,
            selection: Selection::default(),
            root: None,
            processes: 1,
            arrangement: Arrangement::default(),
            hardware: Hardware::Cycles(Parameters::default()),
            load: None,
            traffic: Traffic::default(),
        }
    }

    /// The model that is set; `None` where the simulator runs.
    pub fn model(&self) -> Option<&Model> {
        self.hardware.testbed().map(|testbed| &testbed.model)
    }

    /// Applies one setting: one of [`KEYS`], a key of the parameters, or an option of the fabric.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        let positive = |number: &f64| number.is_finite() && *number > 0.0;
        match key {
            "fabric" => {
                let fabric: NameAndOptions = value.parse()?;
                FabricSpec::try_from(&fabric)?;
                self.fabric = Some(fabric);
            }
            "routing" => self.routing = value.parse()?,
            "message" => self.message = Some(Flits(read(key, value, MESSAGE, |flits| *flits > 0)?)),
            "destinations" if value == "all" => self.destinations = Some(Destinations::All),
            "destinations" => {
                let count = read(key, value, DESTINATIONS, |number| *number > 0)?;
                self.destinations = Some(Destinations::Count(count));
            }
            "group" => self.selection = value.parse()?,
            "root" => {
                self.root = Some(MemberId(read(key, value, "the number of a process, from 0", |_| true)?));
            }
            "processes" => self.processes = read(key, value, FROM_1, |number| *number > 0)?,
            "placement" => self.arrangement = value.parse()?,
            "testbed" if self.testbeds.is_empty() => {
                return Err(SpecError::BadValue {
                    key: key.into(),
                    value: value.into(),
                    expected: format!("the name of a testbed file, and testbed-{value}.toml does not exist"),
                });
            }
            "testbed" => {
                let testbed = self.testbeds.get(value).ok_or_else(|| SpecError::UnknownName {
                    what: "testbed",
                    given: value.into(),
                    known: self.testbeds.keys().cloned().collect(),
                })?;
                self.hardware = Hardware::Testbed(Box::new(testbed.clone()));
            }
            "load" => self.load = Some(Load::Offered(read(key, value, LOAD, positive)?)),
            "ejection_load" => self.load = Some(Load::Ejection(read(key, value, LOAD, positive)?)),
            "arrivals" => self.traffic.arrivals = value.parse()?,
            "sets" => self.traffic.sets = value.parse()?,
            "cycles" => self.traffic.cycles = Cycles(read(key, value, CYCLES, |_| true)?),
            "warmup" => self.traffic.warmup = Cycles(read(key, value, CYCLES, |_| true)?),
            "backlog_max" => {
                self.traffic.backlog_max = Some(read(key, value, FROM_1, |number| *number > 0)?);
            }
            "precision" => {
                self.traffic.precision =
                    read(key, value, PRECISION, |share| LoadRun::PRECISIONS.contains(share))?;
            }
            _ => match self.set_parameter(key, value) {
                Err(SpecError::UnknownKey { known, .. }) => self.set_fabric_option(key, value, known)?,
                other => other?,
            },
        }
        Ok(())
    }

    fn set_parameter(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        match &mut self.hardware {
            Hardware::Cycles(parameters) => parameters.set(key, value),
            Hardware::Testbed(testbed) => {
                // A value that is set explicitly does not depend on the testbed's guess.
                testbed.guessed.retain(|guess| guess != key);
                testbed.model.set(key, value)
            }
        }
    }

    fn set_fabric_option(&mut self, key: &str, value: &str, mut known: Vec<String>) -> Result<(), SpecError> {
        known.extend(KEYS.map(String::from));
        if let Some(fabric) = &self.fabric {
            let changed = fabric.clone().with(key, value);
            match FabricSpec::try_from(&changed) {
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
        let fabrics = self.fabrics(topologies)?;
        // All topologies of a figure have the same number of hosts.
        let destinations = self.destinations_of(hosts(&fabrics[0].1))?;
        Ok(Setup {
            fabrics,
            routing: self.routing,
            message: self.message.ok_or_else(|| missing("message", MESSAGE))?,
            destinations,
            selection: self.selection,
            root: self.root,
            processes: self.processes,
            arrangement: self.arrangement,
            hardware: self.hardware.clone(),
            offered_load: self.load.map(|load| match load {
                Load::Offered(load) => load,
                Load::Ejection(load) => load / f64::from(destinations),
            }),
            traffic: self.traffic,
        })
    }

    /// The number of destinations among the processes of `hosts` hosts, if these have room for all
    /// that is set.
    fn destinations_of(&self, hosts: f64) -> Result<u32, SpecError> {
        let refused = |key: &str, value: u32, expected: String| SpecError::BadValue {
            key: key.into(),
            value: value.to_string(),
            expected,
        };
        let members = hosts * f64::from(self.processes);
        let most = f64::from(Placement::MEMBERS_MAX);
        if members > most && self.processes > 1 {
            let expected = format!("at most {most} processes in all on {hosts} hosts");
            return Err(refused("processes", self.processes, expected));
        }
        let last = (members - 1.0).max(0.0);
        if let Some(root) = self.root.filter(|root| f64::from(root.0) > last) {
            return Err(refused("root", root.0, format!("a process from 0 to {last}")));
        }
        match self.destinations {
            Some(Destinations::Count(count)) if f64::from(count) > last => Err(refused(
                "destinations",
                count,
                format!("at most {last}, since the root is no destination"),
            )),
            Some(Destinations::Count(count)) => Ok(count),
            Some(Destinations::All) => Ok(last as u32),
            None => Err(missing("destinations", DESTINATIONS)),
        }
    }

    fn fabrics(&self, topologies: &[u64]) -> Result<Vec<(Option<u64>, FabricSpec)>, SpecError> {
        let fabric = self.fabric.as_ref().ok_or_else(|| missing("fabric", FABRIC))?;
        let spec = FabricSpec::try_from(fabric)?;
        if topologies.is_empty() {
            return Ok(vec![(None, spec)]);
        }
        if let Some(seed) = fabric.get("seed") {
            return Err(SpecError::BadValue {
                key: "seed".into(),
                value: seed.into(),
                expected: "no seed, because the topologies of [repeat] set it".into(),
            });
        }
        // A fabric that is not drawn is the same in all topologies: their seeds then draw only
        // groups and traffic.
        let seeded = |seed: u64| match spec {
            FabricSpec::Irregular(irregular) => FabricSpec::Irregular(Irregular { seed, ..irregular }),
            FabricSpec::RandomRegular(regular) => {
                FabricSpec::RandomRegular(RandomRegular { seed, ..regular })
            }
            other => other,
        };
        Ok(topologies.iter().map(|&seed| (Some(seed), seeded(seed))).collect())
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

/// The number of hosts of a fabric.
pub(crate) fn hosts(fabric: &FabricSpec) -> f64 {
    match *fabric {
        FabricSpec::Irregular(Irregular { hosts, .. })
        | FabricSpec::Star(hosts)
        | FabricSpec::LeafSpine { hosts, .. }
        | FabricSpec::RandomRegular(RandomRegular { hosts, .. }) => f64::from(hosts),
        FabricSpec::Grid(_, radix, dimensions) => f64::from(radix).powf(f64::from(dimensions)),
        FabricSpec::FatTree(k) => f64::from(k).powf(3.0) / 4.0,
        FabricSpec::Structured(Structure::Dragonfly(Dragonfly { p, a, g, .. })) => {
            [p, a, g].map(f64::from).iter().product()
        }
        FabricSpec::Structured(Structure::HyperX(HyperX { s, t, .. })) => {
            s.as_slice().iter().chain([&t]).map(|&size| f64::from(size)).product()
        }
    }
}
