//! The parameters of hosts, network interfaces and switches, each known by one key everywhere.

use std::str::FromStr;

use treecast_fabric::Overlap;
use treecast_terms::{Cycles, Flits, Keyed, Picoseconds, SpecError, parameter, positive_parameter};

/// Which of several shortest legal next links a worm takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Adaptive {
    /// The lowest port of those that are free; if none is, whichever becomes free first.
    #[default]
    FirstFree,
    /// A random one of those that are free; if none is, whichever becomes free first.
    Random,
    /// Always the lowest port: the worm waits for it. Routing is then deterministic.
    Lowest,
}

/// Which of several waiting worms a free output serves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Arbitration {
    /// The one that has waited longest; on ties the one that came in over the lower link.
    #[default]
    OldestFirst,
    /// The one that came in over the lowest link.
    LowestLink,
    /// Each output takes the inputs in turn.
    RoundRobin,
}

/// How a packet flows through switches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Switching {
    /// Virtual cut-through: an output is granted when the next input buffer has room for the whole packet.
    #[default]
    CutThrough,
    /// Wormhole: flit by flit, each when the next input buffer has room for it; a packet holds the channels that it lies
    /// on.
    Wormhole,
}

/// When the copies of a packet that a switch makes go on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Replication {
    /// Each when it can.
    #[default]
    Asynchronous,
    /// All together: outputs are held as they come free, until all copies have theirs.
    Synchronous,
}

/// When a switch begins to route a worm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum RoutingStart {
    /// When all header flits have arrived that the decision needs: 1 for a unicast and for a path worm that passes, both
    /// fields for a path worm that drops, the whole bit string for a tree worm.
    #[default]
    Fields,
    /// When the first flit has arrived; a path worm still waits for the fields that it loses.
    FirstFlit,
}

/// Whether headers take time on links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Headers {
    /// Each header comes before its packet's payload, and is stripped as it goes.
    #[default]
    Counted,
    /// Packets are as long as their payload: what the headers cost is the difference.
    Free,
}

/// How fast everything is. The defaults are those of the ICPP'98 study.
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
    /// Payload of a packet.
    pub packet_flits: Flits,
    /// Header of a unicast packet: the address of its host.
    pub unicast_header_flits: Flits,
    /// Room in each input buffer of a switch, for each virtual channel.
    pub buffer_flits: Flits,
    /// The I/O bus of a host, in millions of bytes a second, shared by both directions; 0: transfers take no time.
    pub bus_mb_per_s: u64,
    /// The length of a cycle.
    pub cycle: Picoseconds,
    /// Cycles from a header at the head of its buffer to a request for an output.
    pub routing_delay: Cycles,
    /// Cycles through the crossbar.
    pub crossbar_delay: Cycles,
    /// Cycles over a link.
    pub link_delay: Cycles,
    /// CPU cycles at either end of a message inside a host, besides copying.
    pub local_overhead: Cycles,
    /// Copying into or out of shared memory, in millions of bytes a second; 0: it takes no time.
    pub local_mb_per_s: u64,
    /// Which of several next links.
    pub adaptive: Adaptive,
    /// Which of several worms.
    pub arbitration: Arbitration,
    /// How packets flow.
    pub switching: Switching,
    /// When copies go on.
    pub replication: Replication,
    /// Which port takes a destination that several reach.
    pub overlap: Overlap,
    /// When routing begins.
    pub routing_start: RoutingStart,
    /// Whether headers take time.
    pub headers: Headers,
    /// The cycle at which a run ends whatever is left.
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

/// A key that a parameter of a simulation is known by.
pub type Key = treecast_terms::Key<Parameters>;

const CYCLES: &str = "a number of cycles";
const FLITS: &str = "a number of flits from 1";

macro_rules! number_key {
    ($name:literal, $about:literal, $expected:expr, $read:ident, $field:ident, $unit:path) => {
        Key {
            name: $name,
            expected: $expected,
            about: $about,
            get: |parameters| parameters.$field.0.to_string(),
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

const KEYS: [Key; 22] = [
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
        "NIC time for each packet and copy sent",
        CYCLES,
        parameter,
        nic_send_overhead,
        Cycles
    ),
    number_key!(
        "nic_receive_overhead",
        "NIC time for each packet received",
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
        "room in each input buffer of a switch",
        FLITS,
        positive_parameter,
        buffer_flits,
        Flits
    ),
    Key {
        name: "bus_mb_per_s",
        expected: "a number of MB/s; 0 for a bus that takes no time",
        about: "I/O bus of a host, shared by both directions",
        get: |parameters| parameters.bus_mb_per_s.to_string(),
        set: |parameters, text| parameter(text).map(|value| parameters.bus_mb_per_s = value),
    },
    Key {
        name: "cycle_ns",
        expected: "a number of nanoseconds from 0.001",
        about: "length of a cycle",
        get: |parameters| (parameters.cycle.0 as f64 / 1000.0).to_string(),
        set: |parameters, text| {
            let nanoseconds: f64 = text.parse().ok()?;
            let picoseconds = (nanoseconds * 1000.0).round();
            (1.0..=1e12).contains(&picoseconds).then(|| parameters.cycle = Picoseconds(picoseconds as u64))
        },
    },
    number_key!(
        "routing_delay",
        "from a header in place to a request for an output",
        CYCLES,
        parameter,
        routing_delay,
        Cycles
    ),
    number_key!(
        "crossbar_delay",
        "through the crossbar",
        "a number of cycles from 1",
        positive_parameter,
        crossbar_delay,
        Cycles
    ),
    number_key!("link_delay", "over a link", CYCLES, parameter, link_delay, Cycles),
    number_key!(
        "local_overhead",
        "CPU time at either end of a message inside a host",
        CYCLES,
        parameter,
        local_overhead,
        Cycles
    ),
    Key {
        name: "local_mb_per_s",
        expected: "a number of MB/s; 0 for copies that take no time",
        about: "copying into or out of shared memory",
        get: |parameters| parameters.local_mb_per_s.to_string(),
        set: |parameters, text| parameter(text).map(|value| parameters.local_mb_per_s = value),
    },
    policy_key!("adaptive", "which of several shortest next links", "first-free, random or lowest", adaptive,
        ["first-free" => Adaptive::FirstFree, "random" => Adaptive::Random, "lowest" => Adaptive::Lowest]),
    policy_key!("arbitration", "which of several waiting worms", "oldest-first, lowest-link or round-robin",
        arbitration, ["oldest-first" => Arbitration::OldestFirst, "lowest-link" => Arbitration::LowestLink,
            "round-robin" => Arbitration::RoundRobin]),
    policy_key!("switching", "how packets flow through switches", "cut-through or wormhole", switching,
        ["cut-through" => Switching::CutThrough, "wormhole" => Switching::Wormhole]),
    policy_key!("replication", "when the copies that a switch makes go on", "asynchronous or synchronous", replication,
        ["asynchronous" => Replication::Asynchronous, "synchronous" => Replication::Synchronous]),
    policy_key!("overlap", "which port takes a destination that several reach", "first-port or widest-first", overlap,
        ["first-port" => Overlap::FirstPort, "widest-first" => Overlap::WidestFirst]),
    policy_key!("routing_start", "when a switch begins to route", "fields or first-flit", routing_start,
        ["fields" => RoutingStart::Fields, "first-flit" => RoutingStart::FirstFlit]),
    policy_key!("headers", "whether headers take time on links", "counted or free", headers,
        ["counted" => Headers::Counted, "free" => Headers::Free]),
    number_key!(
        "cycles_max",
        "when a run ends whatever is left",
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
    ///     "--set has no key 'nic_overhed': did you mean nic_overhead, nic_send_overhead, nic_receive_overhead?"
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

    /// How long the I/O bus takes for so many bytes, rounded up to whole cycles.
    pub fn bus_time(&self, bytes: Flits) -> Cycles {
        self.transfer_time(bytes, self.bus_mb_per_s)
    }

    /// How long a copy into or out of shared memory takes, rounded up to whole cycles.
    pub fn local_copy_time(&self, bytes: Flits) -> Cycles {
        self.transfer_time(bytes, self.local_mb_per_s)
    }

    fn transfer_time(&self, bytes: Flits, mb_per_s: u64) -> Cycles {
        if mb_per_s == 0 {
            return Cycles::ZERO;
        }
        // A byte takes 10^12 / (mb_per_s * 10^6) picoseconds.
        let picoseconds_1e6 = u128::from(bytes.0) * 1_000_000;
        Cycles(picoseconds_1e6.div_ceil(u128::from(mb_per_s) * u128::from(self.cycle.0)) as u64)
    }

    /// What a span of cycles is in nanoseconds.
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
             adaptive=lowest,arbitration=lowest-link,switching=wormhole,replication=synchronous,overlap=widest-first,routing_start=first-flit,headers=free,cycles_max=99";
        let changed: Parameters = changed.parse().unwrap();
        let text: Vec<String> = changed.values().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(text.join(",").parse(), Ok(changed.clone()));
        assert!(changed.values().zip(Parameters::default().values()).all(|(new, old)| new.1 != old.1));
    }

    #[test]
    fn bad_values_say_what_fits() {
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
