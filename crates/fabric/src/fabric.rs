//! A fabric: a topology and its routing; and the specs that describe both in one line.

use std::fmt;
use std::str::FromStr;

use treecast_terms::{NameAndOptions, SpecError};

use crate::error::FabricError;
use crate::generate::{
    GridShape, Irregular, LinkDensity, RandomRegular, dragonfly, fat_tree, grid, hyperx, irregular,
    leaf_spine, random_regular, star,
};
use crate::ids::SwitchId;
use crate::routing::{
    DimensionOrder, Minimal, Routing, ShortestPath, Ties, UpDown, Valiant, VirtualChannels,
};
use crate::structure::{Dragonfly, HyperX, Sizes, Structure};
use crate::topology::Topology;

/// A topology and the routing over it.
#[derive(Debug, Clone)]
pub struct Fabric {
    topology: Topology,
    routing: Routing,
}

impl Fabric {
    /// A topology with a routing.
    ///
    /// # Errors
    /// [`FabricError::RoutingMismatch`] if the topology does not support that routing;
    /// [`FabricError::NoSuchSwitch`] for an unknown root, [`FabricError::OutOfRange`] for an
    /// invalid number of channels.
    pub fn new(topology: Topology, policy: RoutingPolicy) -> Result<Self, FabricError> {
        let routing = match policy {
            RoutingPolicy::Auto if topology.grid().is_some() => {
                let routing = DimensionOrder::new(&topology, VirtualChannels::Dateline, Ties::Up)?;
                Routing::DimensionOrder(routing)
            }
            RoutingPolicy::Auto if topology.structure().is_some() => {
                Routing::Minimal(Minimal::new(&topology)?)
            }
            RoutingPolicy::Auto => Routing::UpDown(UpDown::new(&topology)?),
            RoutingPolicy::UpDown { root, channels } => {
                let routing = match root {
                    None => UpDown::new(&topology)?,
                    Some(root) => UpDown::from_root(&topology, root)?,
                };
                Routing::UpDown(routing.with_virtual_channels(channels)?)
            }
            RoutingPolicy::ShortestPath { channels } => {
                Routing::ShortestPath(ShortestPath::new(&topology, channels)?)
            }
            RoutingPolicy::DimensionOrder { channels, ties } => {
                Routing::DimensionOrder(DimensionOrder::new(&topology, channels, ties)?)
            }
            RoutingPolicy::Minimal => Routing::Minimal(Minimal::new(&topology)?),
            RoutingPolicy::Valiant => Routing::Valiant(Valiant::new(&topology)?),
            RoutingPolicy::Ugal => Routing::Valiant(Valiant::ugal(&topology)?),
        };
        Ok(Self { topology, routing })
    }

    /// The fabric of a spec, with the routing [`RoutingPolicy::Auto`].
    ///
    /// # Errors
    /// As the generators.
    pub fn from_spec(spec: &FabricSpec) -> Result<Self, FabricError> {
        Self::new(spec.topology()?, RoutingPolicy::Auto)
    }

    /// The hosts, switches and links.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The routing of packets.
    pub fn routing(&self) -> &Routing {
        &self.routing
    }
}

/// The choice of a routing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RoutingPolicy {
    /// Dimension order with dateline channels on tori and meshes, minimal routing on dragonflies
    /// and HyperX networks, up*/down* with one virtual channel elsewhere.
    #[default]
    Auto,
    /// Up*/down*.
    UpDown {
        /// The root switch; without one the topology's natural ranks, or switch 0.
        root: Option<SwitchId>,
        /// Virtual channels per link, 1 to [`Routing::VIRTUAL_CHANNELS_MAX`].
        channels: u8,
    },
    /// All shortest paths. It can deadlock, see [`ShortestPath`].
    ShortestPath {
        /// Virtual channels per link, 1 to [`Routing::VIRTUAL_CHANNELS_MAX`].
        channels: u8,
    },
    /// Dimension order.
    DimensionOrder {
        /// The virtual channels of rings.
        channels: VirtualChannels,
        /// The direction where both around a ring are equally long.
        ties: Ties,
    },
    /// Minimal routing on a dragonfly or HyperX.
    Minimal,
    /// By a random intermediate for every packet, on a dragonfly or HyperX.
    Valiant,
    /// The minimal route or one by a random intermediate, by the queues at the sender's switch.
    Ugal,
}

impl RoutingPolicy {
    /// The names it is read from.
    pub const NAMES: [&str; 7] =
        ["auto", "up-down", "shortest-path", "dimension-order", "minimal", "valiant", "ugal"];
}

/// The value of `channels`, 1 by default.
fn channels(spec: &NameAndOptions) -> Result<u8, SpecError> {
    let expected = format!("a number of virtual channels from 1 to {}", Routing::VIRTUAL_CHANNELS_MAX);
    let channels = spec.value("channels", &expected)?.unwrap_or(1);
    if (1..=Routing::VIRTUAL_CHANNELS_MAX).contains(&channels) {
        return Ok(channels);
    }
    Err(SpecError::BadValue { key: "channels".into(), value: channels.to_string(), expected })
}

impl FromStr for RoutingPolicy {
    type Err = SpecError;

    /// Reads `auto`, `up-down`, `up-down:root=3,channels=2`, `shortest-path`,
    /// `shortest-path:channels=2`, `dimension-order`,
    /// `dimension-order:channels=none|dateline|balanced,ties=up|even`, `minimal`, `valiant`,
    /// `ugal`.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let spec: NameAndOptions = text.parse()?;
        match spec.name() {
            "auto" => spec.only(&[]).map(|()| Self::Auto),
            "minimal" => spec.only(&[]).map(|()| Self::Minimal),
            "valiant" => spec.only(&[]).map(|()| Self::Valiant),
            "ugal" => spec.only(&[]).map(|()| Self::Ugal),
            "up-down" => {
                spec.only(&["root", "channels"])?;
                let root = spec.value("root", "the number of a switch")?.map(SwitchId);
                Ok(Self::UpDown { root, channels: channels(&spec)? })
            }
            "shortest-path" => {
                spec.only(&["channels"])?;
                Ok(Self::ShortestPath { channels: channels(&spec)? })
            }
            "dimension-order" => {
                spec.only(&["channels", "ties"])?;
                let bad = |key: &str, value: &str, expected: &str| SpecError::BadValue {
                    key: key.into(),
                    value: value.into(),
                    expected: expected.into(),
                };
                let channels = match spec.get("channels") {
                    None | Some("dateline") => VirtualChannels::Dateline,
                    Some("balanced") => VirtualChannels::Balanced,
                    Some("none") => VirtualChannels::None,
                    Some(other) => return Err(bad("channels", other, "dateline, balanced or none")),
                };
                let ties = match spec.get("ties") {
                    None | Some("up") => Ties::Up,
                    Some("even") => Ties::Even,
                    Some(other) => return Err(bad("ties", other, "up or even")),
                };
                Ok(Self::DimensionOrder { channels, ties })
            }
            other => Err(unknown("routing", other, &Self::NAMES)),
        }
    }
}

impl fmt::Display for RoutingPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let channels = |channels: u8| (channels != 1).then(|| format!("channels={channels}"));
        let (name, options) = match *self {
            Self::Auto => ("auto", vec![]),
            Self::Minimal => ("minimal", vec![]),
            Self::Valiant => ("valiant", vec![]),
            Self::Ugal => ("ugal", vec![]),
            Self::UpDown { root, channels: count } => {
                let root = root.map(|root| format!("root={}", root.0));
                ("up-down", root.into_iter().chain(channels(count)).collect())
            }
            Self::ShortestPath { channels: count } => {
                ("shortest-path", channels(count).into_iter().collect())
            }
            Self::DimensionOrder { channels, ties } => {
                let channels = match channels {
                    VirtualChannels::Dateline => None,
                    VirtualChannels::Balanced => Some("channels=balanced".to_string()),
                    VirtualChannels::None => Some("channels=none".to_string()),
                };
                let ties = (ties == Ties::Even).then(|| "ties=even".to_string());
                ("dimension-order", channels.into_iter().chain(ties).collect())
            }
        };
        let separator = if options.is_empty() { "" } else { ":" };
        write!(formatter, "{name}{separator}{}", options.join(","))
    }
}

/// The spec of a generated topology, in one line.
///
/// `icpp98` (the default system of that study; takes the keys of `irregular`),
/// `irregular:switches=16,ports=8,hosts=32,connectivity=0.75,seed=3`, `star:16`,
/// `torus:k=4,n=2,uni`, `mesh:k=4,n=2`, `fat-tree:k=8`, `leaf-spine:leaves=8,spines=4,hosts=64`,
/// `dragonfly:p=2,a=4,h=2,g=9`, `hyperx:s=4x4,k=1,t=4`,
/// `random-regular:switches=20,degree=4,hosts=40,seed=1`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FabricSpec {
    /// A random irregular network.
    Irregular(Irregular),
    /// One switch with that many hosts.
    Star(u32),
    /// A torus or mesh with radix k and n dimensions.
    Grid(GridShape, u32, u32),
    /// A k-ary fat tree.
    FatTree(u32),
    /// A leaf-spine network.
    LeafSpine {
        /// Leaf switches, which have the hosts.
        leaves: u32,
        /// Spine switches, each linked to every leaf.
        spines: u32,
        /// Hosts in all.
        hosts: u32,
    },
    /// A random regular network.
    RandomRegular(RandomRegular),
    /// A dragonfly or a HyperX.
    Structured(Structure),
}

impl FabricSpec {
    /// The names it is read from.
    pub const NAMES: [&str; 10] = [
        "icpp98",
        "irregular",
        "star",
        "torus",
        "mesh",
        "fat-tree",
        "leaf-spine",
        "dragonfly",
        "hyperx",
        "random-regular",
    ];

    /// The topology.
    ///
    /// # Errors
    /// As the generator.
    pub fn topology(&self) -> Result<Topology, FabricError> {
        match *self {
            Self::Irregular(parameters) => irregular(parameters),
            Self::Star(hosts) => star(hosts),
            Self::Grid(shape, radix, dimensions) => grid(shape, radix, dimensions),
            Self::FatTree(k) => fat_tree(k),
            Self::LeafSpine { leaves, spines, hosts } => leaf_spine(leaves, spines, hosts),
            Self::RandomRegular(parameters) => random_regular(parameters),
            Self::Structured(Structure::Dragonfly(parameters)) => dragonfly(parameters),
            Self::Structured(Structure::HyperX(parameters)) => hyperx(parameters),
        }
    }
}

impl FromStr for FabricSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Self::try_from(&text.parse::<NameAndOptions>()?)
    }
}

impl TryFrom<&NameAndOptions> for FabricSpec {
    type Error = SpecError;

    fn try_from(spec: &NameAndOptions) -> Result<Self, SpecError> {
        const COUNT: &str = "a whole number";
        match spec.name() {
            "icpp98" | "irregular" => {
                spec.only(&["switches", "ports", "hosts", "connectivity", "links_per_switch", "seed"])?;
                let base = Irregular::default();
                let connectivity = spec.value("connectivity", "a share from 0 to 1")?;
                let per_switch = spec.value("links_per_switch", "a number of links")?;
                let links = match (connectivity, per_switch) {
                    (Some(_), Some(_)) => {
                        return Err(SpecError::BadValue {
                            key: "links_per_switch".into(),
                            value: spec.get("links_per_switch").unwrap_or_default().into(),
                            expected: "either connectivity or links_per_switch".into(),
                        });
                    }
                    (Some(share), None) => LinkDensity::Connectivity(share),
                    (None, Some(links)) => LinkDensity::PerSwitch(links),
                    (None, None) => base.links,
                };
                Ok(Self::Irregular(Irregular {
                    switches: spec.value("switches", COUNT)?.unwrap_or(base.switches),
                    ports: spec.value("ports", COUNT)?.unwrap_or(base.ports),
                    hosts: spec.value("hosts", COUNT)?.unwrap_or(base.hosts),
                    links,
                    seed: spec.value("seed", COUNT)?.unwrap_or(base.seed),
                }))
            }
            "star" => star_spec(spec),
            "torus" => {
                spec.only(&["k", "n", "uni"])?;
                let shape = if spec.flag("uni")? { GridShape::UnidirectionalTorus } else { GridShape::Torus };
                Ok(Self::Grid(shape, spec.required("k", COUNT)?, spec.value("n", COUNT)?.unwrap_or(2)))
            }
            "mesh" => {
                spec.only(&["k", "n"])?;
                Ok(Self::Grid(
                    GridShape::Mesh,
                    spec.required("k", COUNT)?,
                    spec.value("n", COUNT)?.unwrap_or(2),
                ))
            }
            "fat-tree" => {
                spec.only(&["k"])?;
                Ok(Self::FatTree(spec.required("k", "an even number of ports")?))
            }
            "leaf-spine" => {
                spec.only(&["leaves", "spines", "hosts"])?;
                Ok(Self::LeafSpine {
                    leaves: spec.required("leaves", "a number of switches")?,
                    spines: spec.required("spines", "a number of switches")?,
                    hosts: spec.required("hosts", "a number of hosts")?,
                })
            }
            "dragonfly" => {
                spec.only(&["p", "a", "h", "g"])?;
                let base = Dragonfly::balanced(spec.required("p", "a number of hosts of each router")?);
                let (a, h) =
                    (spec.value("a", COUNT)?.unwrap_or(base.a), spec.value("h", COUNT)?.unwrap_or(base.h));
                let g = spec.value("g", COUNT)?.unwrap_or_else(|| Dragonfly::groups_max(a, h));
                Ok(Self::Structured(Structure::Dragonfly(Dragonfly { a, h, g, ..base })))
            }
            "hyperx" => {
                spec.only(&["s", "k", "t"])?;
                let s: Sizes = spec.required("s", "1 to 16 sizes of dimensions, such as 4x4")?;
                let (k, t) = (spec.value("k", COUNT)?.unwrap_or(1), spec.value("t", COUNT)?.unwrap_or(1));
                Ok(Self::Structured(Structure::HyperX(HyperX { s, k, t })))
            }
            "random-regular" => {
                spec.only(&["switches", "degree", "hosts", "seed"])?;
                Ok(Self::RandomRegular(RandomRegular {
                    switches: spec.required("switches", "a number of switches")?,
                    degree: spec.required("degree", "a number of links of each switch to others")?,
                    hosts: spec.required("hosts", "a number of hosts")?,
                    seed: spec.value("seed", COUNT)?.unwrap_or(1),
                }))
            }
            other => Err(unknown("fabric", other, &Self::NAMES)),
        }
    }
}

/// `star:16` or `star:hosts=16`.
fn star_spec(spec: &NameAndOptions) -> Result<FabricSpec, SpecError> {
    let options: Vec<_> = spec.options().collect();
    if let [(count, None)] = options[..] {
        return count.parse().map(FabricSpec::Star).map_err(|_| SpecError::BadValue {
            key: "hosts".into(),
            value: count.into(),
            expected: "a number of hosts".into(),
        });
    }
    spec.only(&["hosts"])?;
    Ok(FabricSpec::Star(spec.required("hosts", "a number of hosts")?))
}

fn unknown(what: &'static str, given: &str, known: &[&str]) -> SpecError {
    SpecError::UnknownName {
        what,
        given: given.into(),
        known: known.iter().map(ToString::to_string).collect(),
    }
}

impl fmt::Display for FabricSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Irregular(Irregular { switches, ports, hosts, links, seed }) => write!(
                formatter,
                "irregular:switches={switches},ports={ports},hosts={hosts},{links},seed={seed}"
            ),
            Self::Star(hosts) => write!(formatter, "star:{hosts}"),
            Self::Grid(shape, k, n) => formatter.write_str(&shape.spec(k, n)),
            Self::FatTree(k) => write!(formatter, "fat-tree:k={k}"),
            Self::LeafSpine { leaves, spines, hosts } => {
                write!(formatter, "leaf-spine:leaves={leaves},spines={spines},hosts={hosts}")
            }
            Self::RandomRegular(RandomRegular { switches, degree, hosts, seed }) => {
                write!(
                    formatter,
                    "random-regular:switches={switches},degree={degree},hosts={hosts},seed={seed}"
                )
            }
            Self::Structured(structure) => structure.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_reads_back_as_it_prints() {
        for text in [
            "irregular:switches=16,ports=8,hosts=32,connectivity=0.75,seed=3",
            "irregular:switches=16,ports=8,hosts=32,links_per_switch=1.25,seed=3",
            "star:16",
            "torus:k=4,n=2,uni",
            "torus:k=4,n=3",
            "mesh:k=4,n=2",
            "fat-tree:k=8",
            "leaf-spine:leaves=8,spines=4,hosts=64",
            "dragonfly:p=2,a=4,h=2,g=5",
            "hyperx:s=4x3x2,k=2,t=4",
            "random-regular:switches=20,degree=4,hosts=40,seed=7",
        ] {
            assert_eq!(text.parse::<FabricSpec>().unwrap().to_string(), text);
        }
        assert_eq!("icpp98".parse::<FabricSpec>().unwrap(), FabricSpec::Irregular(Irregular::default()));
        let short = |text: &str| text.parse::<FabricSpec>().unwrap().to_string();
        assert_eq!(short("dragonfly:p=2"), "dragonfly:p=2,a=4,h=2,g=9");
        assert_eq!(short("dragonfly:p=1,a=3"), "dragonfly:p=1,a=3,h=1,g=4");
        assert_eq!(short("hyperx:s=8"), "hyperx:s=8,k=1,t=1");
        for text in [
            "auto",
            "up-down",
            "up-down:root=3",
            "up-down:channels=2",
            "up-down:root=3,channels=16",
            "shortest-path",
            "shortest-path:channels=4",
            "dimension-order",
            "dimension-order:channels=none",
            "dimension-order:ties=even",
            "dimension-order:channels=balanced,ties=even",
            "minimal",
            "valiant",
            "ugal",
        ] {
            assert_eq!(text.parse::<RoutingPolicy>().unwrap().to_string(), text);
        }
        assert_eq!("up-down:channels=1".parse::<RoutingPolicy>().unwrap().to_string(), "up-down");
    }

    #[test]
    fn a_link_has_one_to_sixteen_virtual_channels() {
        for text in ["up-down:channels=0", "shortest-path:channels=17", "up-down:channels=many"] {
            let error = text.parse::<RoutingPolicy>().unwrap_err().to_string();
            assert!(error.ends_with(": expected a number of virtual channels from 1 to 16"), "{error}");
        }
        let topology = crate::generate::star(2).unwrap();
        for policy in
            [RoutingPolicy::UpDown { root: None, channels: 0 }, RoutingPolicy::ShortestPath { channels: 17 }]
        {
            let error = Fabric::new(topology.clone(), policy).unwrap_err().to_string();
            assert!(error.ends_with("is out of range: 1 to 16"), "{error}");
        }
    }

    #[test]
    fn mistyped_specs_suggest_the_nearest_names() {
        let error = |text: &str| text.parse::<FabricSpec>().unwrap_err().to_string();
        assert_eq!(error("tours:k=4"), "unknown fabric 'tours': did you mean torus?");
        assert_eq!(error("irregular:switch=4"), "irregular has no key 'switch': did you mean switches?");
        assert_eq!(error("star:many"), "invalid value hosts=many: expected a number of hosts");
        assert_eq!(error("fat-tree"), "fat-tree needs k=...: an even number of ports");
    }
}
