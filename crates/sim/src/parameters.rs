//! The parameters of hosts, network interfaces and switches. Each has one key, the same everywhere.

use std::str::FromStr;

use treecast_fabric::Overlap;
use treecast_terms::{Cycles, Flits, Keyed, Picoseconds, SpecError, parameter, positive_parameter};

/// The selection among several shortest legal next links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Adaptive {
    /// The lowest free port; if none is free, the first port that becomes free.
    #[default]
    FirstFree,
    /// A random free port; if none is free, the first port that becomes free.
    Random,
    /// Always the lowest port, which makes routing deterministic.
    Lowest,
}

/// The arbitration among several worms that request an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Arbitration {
    /// The worm that has waited longest; on ties the one from the lower input link.
    #[default]
    OldestFirst,
    /// The worm from the lowest input link.
    LowestLink,
    /// Each output serves the inputs in turn.
    RoundRobin,
}

/// The switching technique (flow control).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Switching {
    /// Virtual cut-through: an output is granted when the next input buffer has room for the whole
    /// packet.
    #[default]
    CutThrough,
    /// Wormhole: each flit proceeds when the next input buffer has room for it. A packet holds all
    /// channels that it occupies.
    Wormhole,
}

/// The replication of worms in switches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Replication {
    /// Each copy proceeds on its own.
    #[default]
    Asynchronous,
    /// All copies proceed together: outputs are held as they become free, until every copy has one.
    Synchronous,
}

/// When a switch starts to route a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RoutingStart {
    /// When all header flits that the decision needs have arrived: 1 for a unicast and for a path
    /// worm without drops here, both fields for a path worm with drops here, the whole bit string
    /// for a tree worm.
    #[default]
    Fields,
    /// When the head flit has arrived. A path worm still waits for the fields that are stripped
    /// off.
    FirstFlit,
}

/// Whether headers take time on links and room in buffers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Headers {
    /// Each packet starts with its header, parts of which switches strip off.
    #[default]
    Counted,
    /// Packets are as long as their payload. The difference to `counted` is the cost of headers.
    Free,
}

/// The processors of a network interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum NicProcessors {
    /// One for each direction: the next packet is received while copies of the last are sent.
    PerDirection,
    /// One for both directions: a packet that is forwarded costs it the overheads of receiving and
    /// of each copy in turn.
    #[default]
    Shared,
}

/// The parameters of hosts, network interfaces and switches. The defaults are those of the ICPP'98
/// study.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parameters {
    /// CPU cycles to send a message.
    pub host_send_overhead: Cycles,
    /// CPU cycles to receive a message.
    pub host_receive_overhead: Cycles,
    /// Cycles of the network interface's processor for each packet and copy that it sends.
    pub nic_send_overhead: Cycles,
    /// Cycles of the network interface's processor for each packet that it receives.
    pub nic_receive_overhead: Cycles,
    /// Maximum payload of a packet.
    pub packet_flits: Flits,
    /// Header of a unicast packet: the address of its host.
    pub unicast_header_flits: Flits,
    /// Size of an input buffer of a switch. Every virtual channel of every input link has one.
    pub buffer_flits: Flits,
    /// Bandwidth of a host's I/O bus in MB/s (10^6 bytes per second), shared by both directions; 0:
    /// transfers take no time.
    pub bus_mb_per_s: u64,
    /// The length of a cycle.
    pub cycle: Picoseconds,
    /// Route computation: cycles from a header at the head of its buffer to the request for an
    /// output.
    pub routing_delay: Cycles,
    /// Crossbar traversal in cycles.
    pub crossbar_delay: Cycles,
    /// Link traversal in cycles.
    pub link_delay: Cycles,
    /// CPU cycles at each end of a message inside a host, besides copying.
    pub local_overhead: Cycles,
    /// Rate of copying into or out of shared memory in MB/s; 0: copying takes no time.
    pub local_mb_per_s: u64,
    /// The processors of a network interface.
    pub nic_processors: NicProcessors,
    /// Selection among next links.
    pub adaptive: Adaptive,
    /// Arbitration of outputs.
    pub arbitration: Arbitration,
    /// Switching technique.
    pub switching: Switching,
    /// Replication in switches.
    pub replication: Replication,
    /// Which port serves a destination that several ports reach.
    pub overlap: Overlap,
    /// When routing starts.
    pub routing_start: RoutingStart,
    /// Whether headers count.
    pub headers: Headers,
    /// The cycle limit of a run of one multicast.
    pub cycles_max: Cycles,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            host_send_overhead: Cycles(1000),
            host_receive_overhead: Cycles(1000),
            nic_send_overhead: Cycles(1000),
            nic_receive_overhead: Cycles(1000),
            packet_flits: Flits(128),
            unicast_header_flits: Flits(1),
            buffer_flits: Flits(640),
            bus_mb_per_s: 266,
            cycle: Picoseconds(5000),
            routing_delay: Cycles(1),
            crossbar_delay: Cycles(1),
            link_delay: Cycles(1),
            local_overhead: Cycles(100),
            local_mb_per_s: 1000,
            nic_processors: NicProcessors::default(),
            adaptive: Adaptive::default(),
            arbitration: Arbitration::default(),
            switching: Switching::default(),
            replication: Replication::default(),
            overlap: Overlap::default(),
            routing_start: RoutingStart::default(),
            headers: Headers::default(),
            cycles_max: Cycles(1_000_000_000_000),
        }
    }
}

/// The key of a parameter of simulations.
pub type Key = treecast_terms::Key<Parameters>;

const CYCLES: &str = "a number of cycles";
const FLITS: &str = "a number of flits from 1";

macro_rules! number_key {
    ($name:literal, $about:literal, $expected:expr, $read:ident, $field:ident, $unit:path) => {
        Key {
            name: $name,
            expected: $expected,
            about: $about,
            get: |parameters| parameters.$field.0.into(),
            set: |parameters, text| $read(text).map(|value| parameters.$field = $unit(value)),
        }
    };
}

macro_rules! policy_key {
    ($name:literal, $about:literal, $expected:literal, $field:ident, [$($text:literal => $value:path),+]) => {
        Key {
            name: $name,
            expected: $expected,
            about: $about,
            get: |parameters| match parameters.$field { $($value => $text.into()),+ },
            set: |parameters, text| {
                parameters.$field = match text { $($text => $value,)+ _ => return None };
                Some(())
            },
        }
    };
}

const KEYS: [Key; 23] = [
    number_key!(
        "host_send_overhead",
        "CPU time to send a message",
        CYCLES,
        parameter,
        host_send_overhead,
        Cycles
    ),
    number_key!(
        "host_receive_overhead",
        "CPU time to receive a message",
        CYCLES,
        parameter,
        host_receive_overhead,
        Cycles
    ),
    number_key!(
        "nic_send_overhead",
        "NIC time per packet and copy sent",
        CYCLES,
        parameter,
        nic_send_overhead,
        Cycles
    ),
    number_key!(
        "nic_receive_overhead",
        "NIC time per packet received",
        CYCLES,
        parameter,
        nic_receive_overhead,
        Cycles
    ),
    number_key!("packet_flits", "payload of a packet", FLITS, positive_parameter, packet_flits, Flits),
    number_key!(
        "unicast_header_flits",
        "header of a unicast packet",
        FLITS,
        positive_parameter,
        unicast_header_flits,
        Flits
    ),
    number_key!(
        "buffer_flits",
        "size of an input buffer of a switch",
        FLITS,
        positive_parameter,
        buffer_flits,
        Flits
    ),
    Key {
        name: "bus_mb_per_s",
        expected: "a number of MB/s; 0 for transfers in no time",
        about: "I/O bus of a host, shared by both directions",
        get: |parameters| parameters.bus_mb_per_s.into(),
        set: |parameters, text| parameter(text).map(|value| parameters.bus_mb_per_s = value),
    },
    Key {
        name: "cycle_ns",
        expected: "a number of nanoseconds from 0.001",
        about: "length of a cycle",
        get: |parameters| (parameters.cycle.0 as f64 / 1000.0).into(),
        set: |parameters, text| {
            let nanoseconds: f64 = text.parse().ok()?;
            let picoseconds = (nanoseconds * 1000.0).round();
            (1.0..=1e12).contains(&picoseconds).then(|| parameters.cycle = Picoseconds(picoseconds as u64))
        },
    },
    number_key!(
        "routing_delay",
        "route computation, to the request for an output",
        CYCLES,
        parameter,
        routing_delay,
        Cycles
    ),
    number_key!(
        "crossbar_delay",
        "crossbar traversal",
        "a number of cycles from 1",
        positive_parameter,
        crossbar_delay,
        Cycles
    ),
    number_key!("link_delay", "link traversal", CYCLES, parameter, link_delay, Cycles),
    number_key!(
        "local_overhead",
        "CPU time at each end of a message inside a host",
        CYCLES,
        parameter,
        local_overhead,
        Cycles
    ),
    Key {
        name: "local_mb_per_s",
        expected: "a number of MB/s; 0 for copies in no time",
        about: "copying into or out of shared memory",
        get: |parameters| parameters.local_mb_per_s.into(),
        set: |parameters, text| parameter(text).map(|value| parameters.local_mb_per_s = value),
    },
    policy_key!("nic_processors", "processors of a NIC: one for each direction, or one for both", "shared or per-direction",
        nic_processors, ["shared" => NicProcessors::Shared, "per-direction" => NicProcessors::PerDirection]),
    policy_key!("adaptive", "selection among several shortest next links", "first-free, random or lowest", adaptive,
        ["first-free" => Adaptive::FirstFree, "random" => Adaptive::Random, "lowest" => Adaptive::Lowest]),
    policy_key!("arbitration", "which of several requesting worms gets an output", "oldest-first, lowest-link or round-robin",
        arbitration, ["oldest-first" => Arbitration::OldestFirst, "lowest-link" => Arbitration::LowestLink,
            "round-robin" => Arbitration::RoundRobin]),
    policy_key!("switching", "switching technique", "cut-through or wormhole", switching,
        ["cut-through" => Switching::CutThrough, "wormhole" => Switching::Wormhole]),
    policy_key!("replication", "when the copies that a switch makes proceed", "asynchronous or synchronous", replication,
        ["asynchronous" => Replication::Asynchronous, "synchronous" => Replication::Synchronous]),
    policy_key!("overlap", "which port serves a destination that several reach", "first-port or widest-first", overlap,
        ["first-port" => Overlap::FirstPort, "widest-first" => Overlap::WidestFirst]),
    policy_key!("routing_start", "when a switch starts to route", "fields or first-flit", routing_start,
        ["fields" => RoutingStart::Fields, "first-flit" => RoutingStart::FirstFlit]),
    policy_key!("headers", "whether headers take time on links", "counted or free", headers,
        ["counted" => Headers::Counted, "free" => Headers::Free]),
    number_key!(
        "cycles_max",
        "cycle limit of a run",
        "a number of cycles from 1",
        positive_parameter,
        cycles_max,
        Cycles
    ),
];

/// Keys that set both ends at once.
const BOTH_ENDS: [(&str, [&str; 2]); 2] = [
    ("host_overhead", ["host_send_overhead", "host_receive_overhead"]),
    ("nic_overhead", ["nic_send_overhead", "nic_receive_overhead"]),
];

impl Keyed for Parameters {
    fn keys() -> &'static [Key] {
        &KEYS
    }
}

impl Parameters {
    /// Sets a parameter by its key; `host_overhead` and `nic_overhead` set both ends.
    ///
    /// ```
    /// # use treecast_sim::Parameters;
    /// let mut parameters = Parameters::default();
    /// parameters.set("nic_overhead", "500")?;
    /// assert_eq!(parameters.nic_receive_overhead.0, 500);
    /// assert_eq!(
    ///     parameters.set("nic_overhed", "500").unwrap_err().to_string(),
    ///     "unknown key 'nic_overhed': did you mean nic_overhead, nic_send_overhead, nic_receive_overhead?"
    /// );
    /// # Ok::<(), treecast_terms::SpecError>(())
    /// ```
    ///
    /// # Errors
    /// [`SpecError::UnknownKey`], [`SpecError::BadValue`].
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SpecError> {
        if let Some((_, ends)) = BOTH_ENDS.iter().find(|(both, _)| *both == name) {
            return ends.iter().try_for_each(|end| self.set(end, value)).map_err(|error| match error {
                SpecError::BadValue { value, expected, .. } => {
                    SpecError::BadValue { key: name.into(), value, expected }
                }
                other => other,
            });
        }
        self.set_key(name, value).map_err(|error| match error {
            SpecError::UnknownKey { name, given, known } => {
                let both = BOTH_ENDS.iter().map(|(both, _)| (*both).to_string());
                SpecError::UnknownKey { name, given, known: both.chain(known).collect() }
            }
            other => other,
        })
    }

    /// Sets a parameter from `key=value`.
    ///
    /// # Errors
    /// As [`Parameters::set`].
    pub fn set_from(&mut self, setting: &str) -> Result<(), SpecError> {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        self.set(key.trim(), value.trim())
    }

    /// The time of a transfer over the I/O bus, rounded up to whole cycles.
    pub fn bus_time(&self, bytes: Flits) -> Cycles {
        self.transfer_time(bytes, self.bus_mb_per_s)
    }

    /// The time of a copy into or out of shared memory, rounded up to whole cycles.
    pub fn local_copy_time(&self, bytes: Flits) -> Cycles {
        self.transfer_time(bytes, self.local_mb_per_s)
    }

    fn transfer_time(&self, bytes: Flits, mb_per_s: u64) -> Cycles {
        if mb_per_s == 0 {
            return Cycles::ZERO;
        }
        // One byte takes 10^12 / (mb_per_s * 10^6) picoseconds.
        let picoseconds_1e6 = u128::from(bytes.0) * 1_000_000;
        Cycles(picoseconds_1e6.div_ceil(u128::from(mb_per_s) * u128::from(self.cycle.0)) as u64)
    }

    /// A number of cycles in nanoseconds.
    pub fn nanoseconds(&self, cycles: Cycles) -> f64 {
        cycles.0 as f64 * self.cycle.0 as f64 / 1000.0
    }
}

impl FromStr for Parameters {
    type Err = SpecError;

    /// Reads `key=value,key=value` over the defaults.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut parameters = Self::default();
        text.split(',')
            .filter(|item| !item.trim().is_empty())
            .try_for_each(|item| parameters.set_from(item))?;
        Ok(parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_reads_back_what_it_prints() {
        let defaults = Parameters::default();
        let text: Vec<String> = defaults.values().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(text.join(",").parse(), Ok(defaults));
        let changed = "host_overhead=7,nic_overhead=8,packet_flits=9,unicast_header_flits=10,buffer_flits=11,\
             bus_mb_per_s=0,cycle_ns=2.5,routing_delay=3,crossbar_delay=4,link_delay=5,local_overhead=6,local_mb_per_s=0,\
             nic_processors=per-direction,\
             adaptive=lowest,arbitration=lowest-link,switching=wormhole,replication=synchronous,overlap=widest-first,routing_start=first-flit,headers=free,cycles_max=99";
        let changed: Parameters = changed.parse().unwrap();
        let text: Vec<String> = changed.values().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(text.join(",").parse(), Ok(changed.clone()));
        assert!(changed.values().zip(Parameters::default().values()).all(|(new, old)| new.1 != old.1));
    }

    #[test]
    fn an_invalid_value_is_rejected_with_what_is_expected() {
        let error = |setting: &str| Parameters::default().set_from(setting).unwrap_err().to_string();
        assert_eq!(error("host_overhead=-1"), "invalid value host_overhead=-1: expected a number of cycles");
        assert_eq!(
            error("packet_flits=0"),
            "invalid value packet_flits=0: expected a number of flits from 1"
        );
        assert_eq!(
            error("adaptive=maybe"),
            "invalid value adaptive=maybe: expected first-free, random or lowest"
        );
        assert_eq!(
            error("cycle_ns=nan"),
            "invalid value cycle_ns=nan: expected a number of nanoseconds from 0.001"
        );
        assert_eq!(error("link_delay"), "invalid value link_delay=: expected a number of cycles");
    }

    #[test]
    fn the_bus_of_the_study_moves_a_packet_in_97_cycles() {
        assert_eq!(Parameters::default().bus_time(Flits(128)), Cycles(97));
    }
}
