//! The settings of a lab.

use std::str::FromStr;
use std::time::Duration;

use crate::delay::{DELAY, REORDER};
use crate::error::LabError;
use crate::losses::Losses;
use crate::probability::Probability;
use crate::racks::Racks;

/// A GSO batch of 64 KiB with a header for each segment.
const GSO_BATCH_BYTES: u64 = 72 << 10;

/// How much later than others a reordered packet is forwarded: a few dozen packets of 1,500 bytes
/// overtake it at 1 Gb/s.
const OVERTAKEN_FOR: Duration = Duration::from_millis(1);

/// A rate in bits per second: 1 kbit/s to 100 Gbit/s.
///
/// ```
/// let rate: treecast_lab::Rate = "200mbit".parse().unwrap();
/// assert_eq!(rate.bits_per_s(), 200_000_000);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// The valid values, for error messages.
    const EXPECTED: &'static str = "a rate from 1kbit to 100gbit a second, such as 200mbit";

    /// A rate in bits per second.
    ///
    /// # Errors
    ///
    /// Outside 1 kbit/s to 100 Gbit/s.
    pub fn from_bits_per_s(bits_per_s: u64) -> Result<Self, LabError> {
        let is_valid = (1_000..=100_000_000_000).contains(&bits_per_s);
        is_valid
            .then_some(Self(bits_per_s))
            .ok_or_else(|| LabError::setting("rate", &bits_per_s, Self::EXPECTED))
    }

    /// In bits per second.
    pub fn bits_per_s(self) -> u64 {
        self.0
    }

    /// In 10^6 bytes per second, as network files have it. Rates below 1 MB/s count as 1 MB/s.
    pub fn mb_per_s(self) -> u64 {
        (self.0 / 8_000_000).max(1)
    }
}

impl FromStr for Rate {
    type Err = LabError;

    /// A number with `bit`, `kbit`, `mbit` or `gbit`.
    fn from_str(text: &str) -> Result<Self, LabError> {
        let rate = treecast_terms::parse_rate(text).ok().and_then(|rate| Self::from_bits_per_s(rate).ok());
        rate.ok_or_else(|| LabError::setting("rate", &text, Self::EXPECTED))
    }
}

/// What the switches of a lab do with multicast packets.
///
/// ```
/// use treecast_lab::Multicast;
///
/// assert_eq!("snooping".parse::<Multicast>().unwrap(), Multicast::Snooping);
/// assert!("some".parse::<Multicast>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Multicast {
    /// They send them to all hosts, as switches without snooping do.
    #[default]
    Flood,
    /// They send them to the hosts that have joined the address: switches with IGMP and MLD
    /// snooping (RFC 4541), and with a querier.
    Snooping,
    /// They drop them, as some networks do: a snooping switch without a querier, once it has
    /// forgotten who has joined.
    Drop,
}

impl Multicast {
    /// All values with their names.
    const NAMES: [(&'static str, Self); 3] =
        [("flood", Self::Flood), ("snooping", Self::Snooping), ("drop", Self::Drop)];

    /// The name of the value.
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.into_iter().find(|(_, value)| *value == self);
        found.map_or("", |(name, _)| name)
    }
}

impl FromStr for Multicast {
    type Err = LabError;

    /// `flood`, `snooping` or `drop`.
    fn from_str(text: &str) -> Result<Self, LabError> {
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == text);
        found
            .map(|(_, value)| value)
            .ok_or_else(|| LabError::setting("multicast", &text, "flood, snooping or drop"))
    }
}

/// The settings of a lab.
#[derive(Debug, Clone, PartialEq)]
pub struct LabSettings {
    /// The number of hosts: 1 to 250.
    pub hosts: u32,
    /// The racks of the hosts: each rack has a switch, and a core switch joins these by one uplink
    /// each. The racks have as many hosts as the lab. `None` for one switch that joins all hosts.
    pub racks: Option<Racks>,
    /// The rate limit of each uplink of a rack in each direction; `None` for no limit, and without
    /// racks.
    pub uplink: Option<Rate>,
    /// The rate limit of each link in each direction; `None` for no limit.
    pub rate: Option<Rate>,
    /// The delay of each host's link in each direction, at most [`LabSettings::DELAY_MAX`]. A
    /// packet from one host to another takes twice as long.
    pub delay: Duration,
    /// The MTU in bytes: 1280, which IPv6 needs, to 65535.
    pub mtu: u32,
    /// The probability with which the switch drops a packet on each link to a host.
    pub loss: Losses,
    /// The probability with which the switch delays a packet by a millisecond, so that later ones
    /// overtake it. Broadcast and multicast packets are never delayed.
    pub reorder: Probability,
    /// What the switches do with multicast packets.
    pub multicast: Multicast,
    /// The number of processes that run on each host: 1 to 256, and at most 1,024 on all hosts
    /// together. They are numbered host by host; see
    /// [`Lab::process_command`](crate::Lab::process_command).
    pub processes: u32,
    /// Whether the commands of each host run on one processor only: those of host `i` on the one at
    /// `i` modulo `n` of the `n` on which this process may run. So two hosts on a machine with two
    /// processors have one each.
    pub pin: bool,
}

impl LabSettings {
    /// The maximum number of [`processes`](Self::processes) on a host.
    pub const PROCESSES_PER_HOST_MAX: u32 = 256;

    /// The maximum number of [`processes`](Self::processes) on all hosts together.
    pub const PROCESSES_MAX: u32 = 1024;

    /// The maximum number of hosts, which is bounded by the addresses of a /24 network.
    pub const HOSTS_MAX: u32 = Racks::HOSTS_MAX;

    /// The maximum [`delay`](Self::delay).
    pub const DELAY_MAX: Duration = Duration::from_secs(1);

    /// The smallest [`mtu`](Self::mtu), which IPv6 requires (RFC 8200, section 5).
    pub const MTU_MIN: u32 = 1280;

    /// The largest [`mtu`](Self::mtu), the maximum total length of an IPv4 packet (RFC 791).
    pub const MTU_MAX: u32 = 65535;

    /// The defaults for a number of hosts: no rate limit, no delay, an MTU of 1500 bytes, no loss,
    /// no reordering, multicast to all hosts, one process on each host, which runs on any
    /// processor.
    pub fn new(hosts: u32) -> Self {
        Self {
            hosts,
            racks: None,
            uplink: None,
            rate: None,
            delay: Duration::ZERO,
            mtu: 1500,
            loss: Losses::default(),
            reorder: Probability::default(),
            multicast: Multicast::default(),
            processes: 1,
            pin: false,
        }
    }

    /// The defaults for racks of hosts: as for their hosts, and no rate limit of the uplinks.
    pub fn in_racks(racks: Racks) -> Self {
        Self { racks: Some(racks), ..Self::new(racks.hosts()) }
    }

    pub(crate) fn check(&self) -> Result<(), LabError> {
        if !(1..=Self::HOSTS_MAX).contains(&self.hosts) {
            return Err(LabError::setting("hosts", &self.hosts, "1 to 250 hosts"));
        }
        match (self.racks, self.uplink) {
            (Some(racks), _) if racks.hosts() != self.hosts => {
                let given = format!("{racks} in a lab of {} hosts", self.hosts);
                return Err(LabError::setting("racks", &given, "racks that have as many hosts as the lab"));
            }
            (None, Some(Rate(bits_per_s))) => {
                return Err(LabError::setting(
                    "uplink",
                    &format!("{bits_per_s}bit"),
                    "no rate in a lab without racks",
                ));
            }
            _ => {}
        }
        if self.delay > Self::DELAY_MAX {
            return Err(LabError::setting("delay", &format!("{:?}", self.delay), "a time up to 1s"));
        }
        if !(Self::MTU_MIN..=Self::MTU_MAX).contains(&self.mtu) {
            return Err(LabError::setting("mtu", &self.mtu, "1280 to 65535 bytes (IPv6 needs 1280)"));
        }
        if !(1..=Self::PROCESSES_PER_HOST_MAX).contains(&self.processes) {
            return Err(LabError::setting("processes", &self.processes, "1 to 256 processes on each host"));
        }
        if self.hosts * self.processes > Self::PROCESSES_MAX {
            let given = format!("{} on each of {} hosts", self.processes, self.hosts);
            return Err(LabError::setting(
                "processes",
                &given,
                "at most 1024 processes on all hosts together",
            ));
        }
        self.loss.check(self.hosts)
    }

    /// The number of switches that hosts are connected to: one for each rack.
    pub(crate) fn switches(&self) -> u32 {
        self.racks.map_or(1, Racks::racks)
    }

    /// The number of hosts of each switch.
    pub(crate) fn hosts_per_switch(&self) -> u32 {
        self.racks.map_or(self.hosts, Racks::hosts_per_rack)
    }

    /// The name of the bridge that joins the racks; empty without racks.
    pub(crate) fn core(&self) -> &'static str {
        if self.racks.is_some() { "core" } else { "" }
    }

    /// The token bucket of a link in one direction, as arguments of `tc qdisc add ... root`; empty
    /// without a rate.
    ///
    /// The bucket holds 2 ms of traffic, and at least two packets: small enough that a receiver
    /// sees the rate, large enough that a timer which is late by less than that costs no
    /// throughput. Where it is at most 4 ms of traffic, it holds a GSO batch: the kernel would
    /// divide longer ones, and the hosts' processors would spend more time with their packets than
    /// real hosts do. The queue holds 10 ms of traffic, as the buffers of a small switch do (a
    /// quarter of a megabyte at 200 Mb/s), and at least 16 packets: this bounds the queueing delay,
    /// and a sender that is too fast loses packets.
    pub(crate) fn bucket(&self, rate: Option<Rate>) -> String {
        let Some(rate) = rate else { return String::new() };
        let packet = u64::from(self.mtu) + 14;
        let passing_in = |per_s: u64| rate.bits_per_s() / 8 / per_s;
        let batch = Some(GSO_BATCH_BYTES).filter(|&bytes| bytes <= passing_in(250));
        let burst = passing_in(500).max(2 * packet).max(batch.unwrap_or(0));
        let limit = passing_in(100).max(16 * packet);
        format!("tbf rate {}bit burst {burst} limit {limit}", rate.bits_per_s())
    }

    /// Arguments of `ip link` that disable segmentation offload (GSO) if packets are lost or
    /// reordered, so that this happens to each packet independently; empty otherwise.
    pub(crate) fn segments(&self) -> &'static str {
        if !self.loss.is_none() || self.reorder.get() > 0.0 { "gso_max_segs 1" } else { "" }
    }

    /// The TAP devices of each switch: their names, without the number of the switch, and how long
    /// each holds packets.
    ///
    /// A packet is held once for the delays of both links that it crosses. All links have the same
    /// delay, so only the time at which it is in the queue of a port differs from that of a real
    /// network, and for all packets by the same.
    pub(crate) fn holds(&self) -> Vec<(&'static str, Duration)> {
        let both_links = 2 * self.delay;
        let mut holds = Vec::new();
        if self.reorder.get() > 0.0 {
            holds.push((REORDER, both_links + OVERTAKEN_FOR));
        }
        if self.has_delay() {
            holds.push((DELAY, both_links));
        }
        holds
    }

    pub(crate) fn has_delay(&self) -> bool {
        !self.delay.is_zero()
    }

    /// The traffic control of the port of a host at its switch: commands for `tc -batch`, with `@`
    /// for the port, `%` for the number of the rack, `!` for the threshold of the port's loss
    /// ([`Losses::thresholds`]), and `^` for the last byte of the host's address.
    ///
    /// Losses happen at the switch, so that hosts can use the queueing disciplines of their own
    /// interfaces. The program is classic BPF, which needs no rights and no compiler: drop (2) if a
    /// random number is below the probability, otherwise continue (-1). netem is not in every
    /// kernel, and alternatives need more tools.
    ///
    /// Packets to reorder are redirected on ingress, before the bridge forwards them, so that rates
    /// and losses apply to them as to any packet. The program ignores (0) broadcast and multicast
    /// frames (the lowest bit of the first byte is set), and otherwise matches (-1) at random.
    ///
    /// With a delay all other packets are redirected too, except reports of IGMP and MLD (protocol
    /// 2, and next header 0), which tell the bridge the port of a member. The bridge would return a
    /// host's broadcast and multicast packets to it, as they enter by the TAP device: on egress
    /// those with the host's own source address (02:00:00:00:00:^) are dropped.
    pub(crate) fn port(&self) -> String {
        let mut commands = Vec::new();
        if self.rate.is_some() {
            commands.push(format!("qdisc add dev @ root {}", self.bucket(self.rate)));
        }
        let reorder = (self.reorder.get() * 2f64.powi(32)) as u32;
        if !self.loss.is_none() || reorder > 0 || self.has_delay() {
            commands.push("qdisc add dev @ clsact".into());
        }
        if !self.loss.is_none() {
            let program = "4,32 0 0 4294963256,53 1 0 !,6 0 0 2,6 0 0 4294967295";
            commands.push(format!("filter add dev @ egress bpf direct-action bytecode '{program}'"));
        }
        if reorder > 0 {
            commands.push(format!(
                "filter add dev @ ingress prio 1 bpf bytecode \
                 '6,48 0 0 0,69 2 0 1,32 0 0 4294963256,53 0 1 {reorder},6 0 0 0,6 0 0 4294967295' \
                 flowid 1:1 action mirred egress redirect dev {REORDER}%"
            ));
        }
        if self.has_delay() {
            let program = membership_program(0);
            commands.push(format!(
                "filter add dev @ ingress prio 2 bpf bytecode '{program}' \
                 flowid 1:1 action mirred egress redirect dev {DELAY}%"
            ));
            let own = "6,32 0 0 6,21 0 2 33554432,40 0 0 10,21 1 0 ^,6 0 0 4294967295,6 0 0 2";
            commands.push(format!("filter add dev @ egress bpf direct-action bytecode '{own}'"));
        }
        commands.join("\n")
    }
}

/// A program that returns `membership` for packets of IGMP and MLD, and otherwise -1.
pub(crate) fn membership_program(membership: u32) -> String {
    format!(
        "9,40 0 0 12,21 0 2 2048,48 0 0 23,21 4 3 2,21 0 2 34525,48 0 0 20,21 1 0 0,\
         6 0 0 4294967295,6 0 0 {membership}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parsed_with_units() {
        let read = |text: &str| text.parse::<Rate>().map(Rate::bits_per_s).map_err(|error| error.to_string());
        assert_eq!(read("200mbit"), Ok(200_000_000));
        assert_eq!(read("2.5Gbit"), Ok(2_500_000_000));
        assert_eq!(read("64kbit"), Ok(64_000));
        assert_eq!(read("1000bit"), Ok(1_000));
        for text in ["0", "0mbit", "200", "mbit", "-1mbit", "infbit", "1e3mbit", "999bit", "101gbit", ""] {
            assert_eq!(
                read(text),
                Err(format!(
                    "invalid value {text} for rate: expected a rate from 1kbit to 100gbit a second, such as 200mbit"
                ))
            );
        }
    }

    #[test]
    fn settings_out_of_bounds_are_rejected() {
        let said = |settings: &LabSettings| settings.check().map_err(|error| error.to_string());
        for hosts in [1, 250] {
            assert_eq!(said(&LabSettings::new(hosts)), Ok(()));
        }
        for hosts in [0, 251] {
            let expected = format!("invalid value {hosts} for hosts: expected 1 to 250 hosts");
            assert_eq!(said(&LabSettings::new(hosts)), Err(expected));
        }
        for mtu in [10, 1279, 65536] {
            let settings = LabSettings { mtu, ..LabSettings::new(2) };
            let expected =
                format!("invalid value {mtu} for mtu: expected 1280 to 65535 bytes (IPv6 needs 1280)");
            assert_eq!(said(&settings), Err(expected));
        }
        for (hosts, processes) in [(4, 256), (250, 4)] {
            assert_eq!(said(&LabSettings { processes, ..LabSettings::new(hosts) }), Ok(()));
        }
        for processes in [0, 257] {
            let expected =
                format!("invalid value {processes} for processes: expected 1 to 256 processes on each host");
            assert_eq!(said(&LabSettings { processes, ..LabSettings::new(2) }), Err(expected));
        }
        assert_eq!(
            said(&LabSettings { processes: 5, ..LabSettings::new(250) }).unwrap_err(),
            "invalid value 5 on each of 250 hosts for processes: expected at most 1024 processes on all hosts together"
        );
        let delay = Duration::from_millis(1001);
        assert_eq!(
            said(&LabSettings { delay, ..LabSettings::new(2) }).unwrap_err(),
            "invalid value 1.001s for delay: expected a time up to 1s"
        );
        let racks: Racks = "2x3".parse().unwrap();
        let uplink = Some(Rate(1_000_000));
        assert_eq!(said(&LabSettings { uplink, ..LabSettings::in_racks(racks) }), Ok(()));
        assert_eq!(
            said(&LabSettings { hosts: 5, ..LabSettings::in_racks(racks) }).unwrap_err(),
            "invalid value 2x3 in a lab of 5 hosts for racks: expected racks that have as many hosts as the lab"
        );
        assert_eq!(
            said(&LabSettings { uplink, ..LabSettings::new(6) }).unwrap_err(),
            "invalid value 1000000bit for uplink: expected no rate in a lab without racks"
        );
    }

    #[test]
    fn token_buckets_hold_at_least_two_packets() {
        let bucket = |rate: Option<&str>| LabSettings::new(2).bucket(rate.map(|rate| rate.parse().unwrap()));
        assert_eq!(bucket(Some("200mbit")), "tbf rate 200000000bit burst 73728 limit 250000");
        assert_eq!(bucket(Some("1mbit")), "tbf rate 1000000bit burst 3028 limit 24224");
        assert_eq!(bucket(None), "");
    }

    #[test]
    fn a_port_has_commands_for_rate_loss_and_reordering() {
        let mut settings = LabSettings::new(2);
        assert_eq!(settings.port(), "");
        settings.loss = Probability::new(0.25).unwrap().into();
        assert_eq!(
            settings.port(),
            "qdisc add dev @ clsact\nfilter add dev @ egress bpf direct-action bytecode \
             '4,32 0 0 4294963256,53 1 0 !,6 0 0 2,6 0 0 4294967295'"
        );
        settings.rate = Some(Rate::from_bits_per_s(200_000_000).unwrap());
        assert!(settings.port().starts_with("qdisc add dev @ root tbf rate 200000000bit burst"));
        settings.reorder = Probability::new(0.5).unwrap();
        assert_eq!(settings.port().lines().count(), 4);
        settings.loss = Losses::default();
        assert_eq!(settings.port().lines().count(), 3);
        let last = "filter add dev @ ingress prio 1 bpf bytecode \
                    '6,48 0 0 0,69 2 0 1,32 0 0 4294963256,53 0 1 2147483648,6 0 0 0,6 0 0 4294967295' \
                    flowid 1:1 action mirred egress redirect dev reorder%";
        assert_eq!(settings.port().lines().last(), Some(last));
    }

    #[test]
    fn packets_are_held_for_the_delays_of_two_links() {
        let mut settings = LabSettings::new(2);
        assert_eq!(settings.holds(), []);
        settings.delay = Duration::from_micros(300);
        assert_eq!(settings.holds(), [("delay", Duration::from_micros(600))]);
        assert_eq!(settings.port().lines().count(), 3);
        settings.reorder = Probability::new(0.5).unwrap();
        let reordered = ("reorder", Duration::from_micros(1_600));
        assert_eq!(settings.holds(), [reordered, ("delay", Duration::from_micros(600))]);
    }
}
