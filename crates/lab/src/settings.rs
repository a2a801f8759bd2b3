//! What a lab is to be like.

use std::str::FromStr;

use crate::LabError;
use crate::late::DEVICE;

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

    /// So many bits per second.
    ///
    /// # Errors
    ///
    /// Outside 1 kbit/s to 100 Gbit/s.
    pub fn from_bits_per_s(bits_per_s: u64) -> Result<Self, LabError> {
        let is_valid = (1_000..=100_000_000_000).contains(&bits_per_s);
        is_valid.then_some(Self(bits_per_s)).ok_or_else(|| wrong("rate", &bits_per_s, Self::EXPECTED))
    }

    /// In bits per second.
    pub fn bits_per_s(self) -> u64 {
        self.0
    }
}

impl FromStr for Rate {
    type Err = LabError;

    /// A number with `bit`, `kbit`, `mbit` or `gbit`.
    fn from_str(text: &str) -> Result<Self, LabError> {
        let rate = treecast_terms::parse_rate(text).ok().and_then(|rate| Self::from_bits_per_s(rate).ok());
        rate.ok_or_else(|| wrong("rate", &text, Self::EXPECTED))
    }
}

/// A share of all packets, from 0 to less than 1.
///
/// ```
/// let share: treecast_lab::Share = "1%".parse().unwrap();
/// assert_eq!(share, "0.01".parse().unwrap());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Share(f64);

impl Share {
    /// The valid values, for error messages.
    const EXPECTED: &'static str = "a share from 0% to less than 100%, such as 1% or 0.01";

    /// A share as a number.
    ///
    /// # Errors
    ///
    /// Outside 0 to less than 1.
    pub fn new(share: f64) -> Result<Self, LabError> {
        (0.0..1.0)
            .contains(&share)
            .then_some(Self(share))
            .ok_or_else(|| wrong("share", &share, Self::EXPECTED))
    }

    /// As a number, 0 to less than 1.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Share {
    type Err = LabError;

    /// A number, or a number with `%`.
    fn from_str(text: &str) -> Result<Self, LabError> {
        let number = match text.strip_suffix('%') {
            Some(percent) => decimal(percent).map(|percent| percent / 100.0),
            None => decimal(text),
        };
        number.and_then(|share| Self::new(share).ok()).ok_or_else(|| wrong("share", &text, Self::EXPECTED))
    }
}

/// Digits with at most one point.
fn decimal(text: &str) -> Option<f64> {
    let text = text.trim();
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| plain)
}

/// What a lab is to be like.
#[derive(Debug, Clone, PartialEq)]
pub struct LabSettings {
    /// How many hosts: 1 to 250.
    pub hosts: u32,
    /// What each link carries, each way; `None` for as much as the machine can.
    pub rate: Option<Rate>,
    /// The largest packet without its Ethernet header, in bytes: 1280, which IPv6 needs, to 65535.
    pub mtu: u32,
    /// The share of packets that are lost at random on the way from the switch to a host.
    pub loss: Share,
    /// The share of packets, drawn at random, that take a millisecond longer through the switch, so that later ones overtake
    /// them. Packets to several hosts (broadcast, multicast) are not among them.
    pub reorder: Share,
}

impl LabSettings {
    /// The most hosts of a lab: each has a port of the switch and an address of one small network.
    pub const HOSTS_MAX: u32 = 250;

    /// The smallest [`mtu`](Self::mtu): what IPv6 needs.
    pub const MTU_MIN: u32 = 1280;

    /// The largest [`mtu`](Self::mtu): what IPv4 can say.
    pub const MTU_MAX: u32 = 65535;

    /// So many hosts, links as fast as the machine, packets of 1500 bytes, no losses, all in order.
    pub fn new(hosts: u32) -> Self {
        Self { hosts, rate: None, mtu: 1500, loss: Share::default(), reorder: Share::default() }
    }

    pub(crate) fn check(&self) -> Result<(), LabError> {
        if !(1..=Self::HOSTS_MAX).contains(&self.hosts) {
            return Err(wrong("hosts", &self.hosts, "1 to 250 hosts"));
        }
        if !(Self::MTU_MIN..=Self::MTU_MAX).contains(&self.mtu) {
            return Err(wrong("mtu", &self.mtu, "1280 to 65535 bytes (IPv6 needs 1280)"));
        }
        Ok(())
    }

    /// The token bucket of a link, one way, in words for `tc qdisc add ... root`; nothing without a rate.
    ///
    /// The bucket holds what passes in 2 ms: small enough that a receiver sees the rate, large enough that a timer which
    /// is late by less costs nothing; and two packets at least. The queue holds what passes in 10 ms, as the buffers of a
    /// small switch do (a quarter of a megabyte at 200 Mb/s): a sender that is too fast is told so by losses, and a
    /// packet is never later than that. It holds 16 packets at least.
    pub(crate) fn bucket(&self) -> String {
        let Some(rate) = self.rate else { return String::new() };
        let packet = u64::from(self.mtu) + 14;
        let passing_in = |per_s: u64| rate.bits_per_s() / 8 / per_s;
        let burst = passing_in(500).max(2 * packet);
        let limit = passing_in(100).max(16 * packet);
        format!("tbf rate {}bit burst {burst} limit {limit}", rate.bits_per_s())
    }

    /// Whether a link takes packets of one sender together, as interfaces do that cut them apart themselves, in words for
    /// `ip link`. Where packets are lost or overtaken, each goes by itself, so that this happens to each by itself.
    pub(crate) fn segments(&self) -> &'static str {
        if self.loss.get() > 0.0 || self.reorder.get() > 0.0 { "gso_max_segs 1" } else { "" }
    }

    /// The name of the device where packets are held that are overtaken; nothing where there are none.
    pub(crate) fn late(&self) -> &'static str {
        if self.reorder.get() > 0.0 { DEVICE } else { "" }
    }

    /// What a port of the switch, written `@`, does with packets to and from its host: commands for `tc -batch`.
    ///
    /// Losses are those of the link, so they happen at the switch, where nothing that a host does to its own interface
    /// can go before them. The program is classic BPF, which needs no rights and no compiler: drop (2) if a random word
    /// is below the share, else go on (-1). netem is not in every kernel, and other ways need more tools.
    ///
    /// Packets that are overtaken are taken aside where they come from their host, before the switch looks where they go,
    /// so that losses and rates of the way to another host are those of any packet. The program leaves alone (0) what is
    /// addressed to several (the lowest bit of a frame's first byte), and else chooses (-1) in the same way.
    pub(crate) fn port(&self) -> String {
        let mut commands = Vec::new();
        if self.rate.is_some() {
            commands.push(format!("qdisc add dev @ root {}", self.bucket()));
        }
        let [loss, reorder] = [self.loss, self.reorder].map(|share| (share.get() * 2f64.powi(32)) as u32);
        if loss > 0 || reorder > 0 {
            commands.push("qdisc add dev @ clsact".into());
        }
        if loss > 0 {
            commands.push(format!(
                "filter add dev @ egress bpf direct-action bytecode \
                 '4,32 0 0 4294963256,53 1 0 {loss},6 0 0 2,6 0 0 4294967295'"
            ));
        }
        if reorder > 0 {
            commands.push(format!(
                "filter add dev @ ingress bpf bytecode \
                 '6,48 0 0 0,69 2 0 1,32 0 0 4294963256,53 0 1 {reorder},6 0 0 0,6 0 0 4294967295' \
                 flowid 1:1 action mirred egress redirect dev {DEVICE}"
            ));
        }
        commands.join("\n")
    }
}

fn wrong(key: &'static str, given: &impl ToString, expected: &'static str) -> LabError {
    LabError::Setting { key, given: given.to_string(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_with_their_units() {
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
    fn shares_are_read_with_and_without_per_cent() {
        let read = |text: &str| text.parse::<Share>().map(Share::get).map_err(|error| error.to_string());
        assert_eq!(read("1%"), Ok(0.01));
        assert_eq!(read("0.5"), Ok(0.5));
        assert_eq!(read("0"), Ok(0.0));
        for text in ["150%", "100%", "1", "-1%", "NaN", "%", "", "a tenth"] {
            let expected = "a share from 0% to less than 100%, such as 1% or 0.01";
            assert_eq!(read(text), Err(format!("invalid value {text} for share: expected {expected}")));
        }
    }

    #[test]
    fn settings_outside_their_bounds_are_named() {
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
    }

    #[test]
    fn slow_links_still_take_whole_packets() {
        let with = |rate: &str| LabSettings { rate: Some(rate.parse().unwrap()), ..LabSettings::new(2) };
        assert_eq!(with("200mbit").bucket(), "tbf rate 200000000bit burst 50000 limit 250000");
        assert_eq!(with("1mbit").bucket(), "tbf rate 1000000bit burst 3028 limit 24224");
        assert_eq!(LabSettings::new(2).bucket(), "");
    }

    #[test]
    fn a_port_limits_and_loses_what_is_asked_for() {
        let mut settings = LabSettings::new(2);
        assert_eq!(settings.port(), "");
        settings.loss = Share::new(0.25).unwrap();
        assert_eq!(
            settings.port(),
            "qdisc add dev @ clsact\nfilter add dev @ egress bpf direct-action bytecode \
             '4,32 0 0 4294963256,53 1 0 1073741824,6 0 0 2,6 0 0 4294967295'"
        );
        settings.rate = Some(Rate::from_bits_per_s(200_000_000).unwrap());
        assert!(settings.port().starts_with("qdisc add dev @ root tbf rate 200000000bit burst"));
        settings.reorder = Share::new(0.5).unwrap();
        assert_eq!(settings.port().lines().count(), 4);
        settings.loss = Share::default();
        assert_eq!(settings.port().lines().count(), 3);
        let last = "filter add dev @ ingress bpf bytecode \
                    '6,48 0 0 0,69 2 0 1,32 0 0 4294963256,53 0 1 2147483648,6 0 0 0,6 0 0 4294967295' \
                    flowid 1:1 action mirred egress redirect dev late";
        assert_eq!(settings.port().lines().last(), Some(last));
    }
}
