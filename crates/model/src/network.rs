//! A network that was measured: `network.toml`.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::ops::Range;

use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;
use treecast_fabric::Fabric;
use treecast_plan::{Group, Order, Scheme};
use treecast_terms::{Bytes, Keyed, Offload, Picoseconds, SpecError, Value, reworded};
use treecast_wire::Transport;

use crate::ethernet::{self, Parameters};
use crate::openmpi;
use crate::task::{ModelError, Prediction, Task};

/// The format of the files, with its version.
const FORMAT: &str = "treecast-network-1";

/// One way to send a message. It is printed as `user nic stream`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Way {
    /// The engine, `user` or `ebpf`, or other software, such as `openmpi`.
    pub engine: String,
    /// Who forwards.
    pub offload: Offload,
    /// What carries data along the tree.
    pub transport: Transport,
}

impl Way {
    /// Whether it is Open MPI, whose ranks choose [an algorithm](openmpi::Algorithm) themselves.
    pub fn is_openmpi(&self) -> bool {
        self.engine == openmpi::ENGINE
    }
}

impl fmt::Display for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {} {}", self.engine, self.offload, self.transport)
    }
}

/// A network that was measured: the costs of each way to send a message on it.
///
/// ```
/// use treecast_model::Network;
///
/// let text = r#"
/// format = "treecast-network-1"
/// about = "two hosts, by hand"
/// [set]
/// link_mb_per_s = 1250
/// [[way]]
/// engine = "user"
/// offload = "nic"
/// transport = "stream"
/// [way.set]
/// send_us = 3.2
/// "#;
/// let network = Network::parse("network.toml", text)?;
/// let (way, costs) = network.ways.first_key_value().unwrap();
/// assert_eq!(way.to_string(), "user nic stream");
/// assert_eq!((costs.link_mb_per_s, costs.send.us()), (1250, 3.2));
/// assert_eq!(Network::parse("again.toml", &network.to_toml()), Ok(network));
/// # Ok::<(), treecast_model::NetworkError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Network {
    /// When it was measured, between which hosts, by which command.
    pub about: String,
    /// The costs of each way.
    pub ways: BTreeMap<Way, Parameters>,
}

/// A malformed `network.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}: {reason}")]
pub struct NetworkError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The reason, with what would be valid.
    pub reason: String,
}

impl Network {
    /// Reads the text of a `network.toml`; `file` is its name for messages.
    ///
    /// # Errors
    /// [`NetworkError`] with the line: not TOML, another format, an unknown key, a value that its
    /// key does not take, a way that is given twice, or no way at all.
    pub fn parse(file: &str, text: &str) -> Result<Self, NetworkError> {
        let source = Source { file, text };
        let parsed: File = toml::from_str(text)
            .map_err(|error| source.error(&error.span().unwrap_or_default(), reworded(error.message())))?;
        if parsed.format.get_ref() != FORMAT {
            let reason = format!("unknown format '{}': this version reads {FORMAT}", parsed.format.get_ref());
            return Err(source.error(&parsed.format.span(), reason));
        }
        let mut common = Parameters::default();
        source.apply(&mut common, &parsed.set)?;
        let mut ways = BTreeMap::new();
        for table in &parsed.way {
            let way = source.way(table.get_ref())?;
            let mut costs = common.clone();
            source.apply(&mut costs, &table.get_ref().set)?;
            let name = way.to_string();
            if ways.insert(way, costs).is_some() {
                return Err(source.error(&table.span(), format!("the way '{name}' is given twice")));
            }
        }
        if ways.is_empty() {
            return Err(source.error(&(0..0), "a network has at least one [[way]]"));
        }
        Ok(Self { about: parsed.about, ways })
    }

    /// The text of a `network.toml` from which [`Network::parse`] reads an equal network. `[set]`
    /// has what is the same for all ways.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> fmt::Result {
        let quoted = |text: &str| toml::Value::String(text.into());
        writeln!(out, "format = {}\nabout = {}\n\n[set]", quoted(FORMAT), quoted(&self.about))?;
        let default = Parameters::default();
        let first = self.ways.values().next().unwrap_or(&default);
        let is_common = |key: &str| {
            let value = |costs: &Parameters| costs.values().find(|(name, _)| *name == key);
            self.ways.values().all(|costs| value(costs) == value(first))
        };
        let (common, own): (Vec<&str>, Vec<&str>) =
            Parameters::keys().iter().map(|key| key.name).partition(|key| is_common(key));
        let write_keys = |out: &mut String, costs: &Parameters, keys: &[&str]| {
            for (key, value) in costs.values().filter(|(key, _)| keys.contains(key)) {
                match value {
                    Value::Text(text) => writeln!(out, "{key} = {}", quoted(&text))?,
                    number => writeln!(out, "{key} = {number}")?,
                }
            }
            Ok(())
        };
        write_keys(out, first, &common)?;
        for (way, costs) in &self.ways {
            let Way { engine, offload, transport } = way;
            writeln!(out, "\n[[way]]\nengine = {}", quoted(engine))?;
            writeln!(out, "offload = \"{offload}\"\ntransport = \"{transport}\"")?;
            if !own.is_empty() {
                writeln!(out, "[way.set]")?;
            }
            write_keys(out, costs, &own)?;
        }
        Ok(())
    }

    /// Runs a multicast by one of the ways: a message of `message` bytes in a group on a fabric, by
    /// a scheme, whose tree is built on an order of members. Open MPI takes [an
    /// algorithm](openmpi::Algorithm) of its own instead, in the order of the group.
    ///
    /// # Errors
    /// Those of [`ethernet::run`]; [`ModelError::Unsupported`] for a way that the network does not
    /// have.
    pub fn predict(
        &self,
        way: &Way,
        fabric: &Fabric,
        group: &Group,
        (scheme, order): (&Scheme, Option<Order>),
        message: Bytes,
    ) -> Result<Prediction, ModelError> {
        let costs = self.costs(way)?;
        if way.is_openmpi() {
            return Ok(openmpi::broadcast(costs, fabric, group, message)?.0);
        }
        let outcome = ethernet::run(costs, &task_of(way, fabric, group, (scheme, order), message))?;
        Ok(Prediction::from(&outcome))
    }
}

fn task_of<'a>(
    way: &Way,
    fabric: &'a Fabric,
    group: &'a Group,
    (scheme, order): (&'a Scheme, Option<Order>),
    message: Bytes,
) -> Task<'a> {
    Task { fabric, group, scheme, order, offload: way.offload, message, seed: 0, stop: None }
}

impl Network {
    pub(crate) fn costs(&self, way: &Way) -> Result<&Parameters, ModelError> {
        let unknown = || ModelError::Unsupported(format!("the network has no way '{way}'"));
        self.ways.get(way).ok_or_else(unknown)
    }

    /// When the application of each member has the message of the multicast that
    /// [`Network::predict`] carries out: `None` for the root, and for members outside the group.
    ///
    /// # Errors
    /// Those of [`Network::predict`].
    pub fn deliveries(
        &self,
        way: &Way,
        fabric: &Fabric,
        group: &Group,
        scheme: (&Scheme, Option<Order>),
        message: Bytes,
    ) -> Result<Vec<Option<Picoseconds>>, ModelError> {
        let costs = self.costs(way)?;
        if way.is_openmpi() {
            return Ok(openmpi::broadcast(costs, fabric, group, message)?.1);
        }
        ethernet::deliveries(costs, &task_of(way, fabric, group, scheme, message))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: Spanned<String>,
    #[serde(default)]
    about: String,
    #[serde(default)]
    set: Settings,
    #[serde(default)]
    way: Vec<Spanned<WayTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WayTable {
    engine: Spanned<String>,
    offload: Spanned<String>,
    transport: Spanned<String>,
    #[serde(default)]
    set: Settings,
}

type Settings = BTreeMap<String, Spanned<Scalar>>;

#[derive(Deserialize)]
#[serde(untagged, expecting = "a setting is a number or a text")]
enum Scalar {
    Number(f64),
    Text(String),
}

impl fmt::Display for Scalar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Text(text) => text.fmt(formatter),
        }
    }
}

struct Source<'a> {
    file: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn error(&self, span: &Range<usize>, reason: impl fmt::Display) -> NetworkError {
        let line = self.text.bytes().take(span.start).filter(|&byte| byte == b'\n').count() + 1;
        NetworkError { file: self.file.into(), line, reason: reason.to_string() }
    }

    fn way(&self, table: &WayTable) -> Result<Way, NetworkError> {
        let engine = table.engine.get_ref();
        if engine.trim().is_empty() {
            return Err(self.error(&table.engine.span(), "a way names its engine, such as user or ebpf"));
        }
        let named = |text: &Spanned<String>, reason: String| self.error(&text.span(), reason);
        let offload = table.offload.get_ref().parse();
        let offload = offload
            .map_err(|error: treecast_terms::UnknownOffload| named(&table.offload, error.to_string()))?;
        let transport = table.transport.get_ref().parse();
        let transport = transport
            .map_err(|error: treecast_wire::UnknownTransport| named(&table.transport, error.to_string()))?;
        if transport == Transport::Both {
            let message = "the costs of transport both are those of stream and of packets";
            return Err(named(&table.transport, message.into()));
        }
        Ok(Way { engine: engine.clone(), offload, transport })
    }

    fn apply(&self, costs: &mut Parameters, settings: &Settings) -> Result<(), NetworkError> {
        for (key, value) in settings {
            costs.set_key(key, &value.get_ref().to_string()).map_err(|error| {
                let error = match error {
                    SpecError::UnknownKey { given, known, .. } => {
                        SpecError::UnknownKey { name: "a network".into(), given, known }
                    }
                    other => other,
                };
                self.error(&value.span(), error)
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use treecast_fabric::FabricSpec;
    use treecast_plan::{MemberId, Placement};

    use super::*;

    const TEXT: &str = r#"format = "treecast-network-1"
about = "by hand"

[set]
link_mb_per_s = 125
wake_for = "message"

[[way]]
engine = "user"
offload = "nic"
transport = "stream"
[way.set]
send_us = 3.25

[[way]]
engine = "ebpf"
offload = "switch"
transport = "packets"
"#;

    #[test]
    fn the_settings_of_a_way_replace_the_common_ones() {
        let network = Network::parse("n", TEXT).unwrap();
        let names: Vec<String> = network.ways.keys().map(Way::to_string).collect();
        assert_eq!(names, ["ebpf switch packets", "user nic stream"]);
        let sends: Vec<f64> = network.ways.values().map(|costs| costs.send.us()).collect();
        assert_eq!(sends, [5.0, 3.25]);
        assert!(network.ways.values().all(|costs| costs.link_mb_per_s == 125));
    }

    #[test]
    fn malformed_files_are_refused_with_the_line_and_a_hint() {
        let error = |from: &str, to: &str| {
            assert!(TEXT.contains(from));
            Network::parse("n.toml", &TEXT.replacen(from, to, 1)).unwrap_err().to_string()
        };
        assert_eq!(
            error("network-1", "network-9"),
            "n.toml:1: unknown format 'treecast-network-9': this version reads treecast-network-1"
        );
        assert_eq!(
            error("send_us", "send_ms"),
            "n.toml:13: a network has no key 'send_ms': did you mean send_us, send_ns_per_kb?"
        );
        assert_eq!(
            error("3.25", "-1"),
            "n.toml:13: invalid value send_us=-1: expected a number of microseconds, up to 1,099,511 (1.1 s)"
        );
        assert_eq!(error("engine", "enigne"), "n.toml:9: unknown key 'enigne': did you mean engine?");
        assert_eq!(
            error("\"nic\"", "\"nick\""),
            "n.toml:10: unknown offload 'nick': known are host, assisted, nic, switch"
        );
        assert_eq!(
            error("\"stream\"", "\"tcp\""),
            "n.toml:11: unknown transport: known are packets, stream, both"
        );
        assert_eq!(error("\"user\"", "\" \""), "n.toml:9: a way names its engine, such as user or ebpf");
        assert_eq!(error("offload = \"nic\"\n", ""), "n.toml:8: missing field `offload`");
        let twice = "\n[[way]]\nengine = \"user\"\noffload = \"nic\"\ntransport = \"stream\"\n";
        let error = |text: &str| Network::parse("n.toml", text).unwrap_err().to_string();
        assert_eq!(error(&(TEXT.to_string() + twice)), "n.toml:20: the way 'user nic stream' is given twice");
        assert_eq!(error("format = \"treecast-network-1\""), "n.toml:1: a network has at least one [[way]]");
        assert_eq!(error("about = 'x'"), "n.toml:1: missing field `format`");
    }

    #[test]
    fn a_prediction_is_a_run_of_the_model_for_a_way() {
        let network = Network::parse("n", TEXT).unwrap();
        let fabric = Fabric::from_spec(&"star:4".parse::<FabricSpec>().unwrap()).unwrap();
        let group =
            Group::new(Placement::one_per_host(4), MemberId(0), (1..4).map(MemberId).collect()).unwrap();
        let scheme = "binomial".parse().unwrap();
        let predict = |way: &Way| network.predict(way, &fabric, &group, (&scheme, None), Bytes(64));
        for way in network.ways.keys() {
            let prediction = predict(way).unwrap();
            assert!(prediction.last_delivery.us() >= prediction.mean_delivery_us, "{way}");
            assert!(prediction.cpu_us > prediction.root_cpu_us && prediction.root_cpu_us > 0.0, "{way}");
        }
        let other = Way { engine: "openmpi".into(), offload: Offload::Host, transport: Transport::Streams };
        assert_eq!(predict(&other).unwrap_err().to_string(), "the network has no way 'openmpi host stream'");
    }

    fn any_way() -> impl Strategy<Value = (Way, Parameters)> {
        let values = prop::collection::vec((0..20_usize, 0..1_000_000_u64), 0..6);
        let (offload, transport) = (0..Offload::NAMES.len(), 0..2_usize);
        ("[a-z\"\\\\\n+é]{0,6}x", offload, transport, values).prop_map(
            |(engine, offload, transport, values)| {
                let mut costs = Parameters::default();
                for (key, value) in values {
                    let key = Parameters::keys()[key].name;
                    // A key that does not take the value keeps its default.
                    let fraction = format!("{}.{}", value / 1_000, value % 1_000);
                    let _ = costs.set_key(key, &fraction).or_else(|_| costs.set_key(key, &value.to_string()));
                }
                let (_, offload) = Offload::NAMES[offload];
                let (_, transport) = Transport::NAMES[transport];
                (Way { engine, offload, transport }, costs)
            },
        )
    }

    proptest! {
        #[test]
        fn a_written_network_reads_back(about in any::<String>(), ways in prop::collection::vec(any_way(), 1..5)) {
            let network = Network { about, ways: ways.into_iter().collect() };
            prop_assert_eq!(Network::parse("n", &network.to_toml()), Ok(network));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[a-z=\\[\\]\"\n0-9_.]{0,80}") {
            let _ = Network::parse("n", &text);
        }
    }
}
