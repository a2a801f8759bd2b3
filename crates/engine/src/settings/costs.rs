//! What the measured costs of a network choose, where the settings of a group leave it open.

use std::fmt;

use treecast_model::{Choice, Way};
use treecast_plan::TreeScheme;
use treecast_proto::{Offload, Transport};
use treecast_terms::Bytes;

use super::offload::ChosenOffload;
use super::{EngineChoice, GroupSettings};

/// Another way than the one that fits a group without a network is taken if the last delivery is
/// predicted to be this much earlier: smaller differences are within the errors of predictions.
const EARLIER: f64 = 0.1;

/// How a group sends: who forwards, and what carries data along the tree.
pub type Sending = (Offload, Transport);

/// A way that is better by the costs of the network than the one that fits without them.
#[derive(Debug, Clone, PartialEq)]
pub struct Better {
    /// The better way.
    pub sending: Sending,
    /// When the last member has a message by it, in microseconds.
    last_delivery_us: f64,
    /// The same by the other way.
    otherwise_us: f64,
}

impl fmt::Display for Better {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { last_delivery_us, otherwise_us, .. } = self;
        write!(
            formatter,
            "by the costs of the network a message takes {last_delivery_us:.0} us along the tree, and {otherwise_us:.0} us by multicast"
        )
    }
}

/// The ways to send that the settings leave open beside the one that fits. Where the node has
/// chosen multicast, it may use the tree instead. `may_have_streams`: the transport is open, and
/// the engine has streams.
pub fn others(settings: &GroupSettings, chosen: &ChosenOffload, may_have_streams: bool) -> Vec<Sending> {
    let is_instead_of_multicast = chosen.offload == Offload::Switch && chosen.reason.is_some();
    let is_open = is_instead_of_multicast || chosen.offload == Offload::Nic && may_have_streams;
    if !is_open || settings.scheme.is_some() || settings.plan.is_some() {
        return Vec::new();
    }
    let streams = may_have_streams.then(|| settings.with_streams());
    let transports = [Transport::Packets].into_iter().chain(streams);
    transports.map(|transport| (Offload::Nic, transport)).collect()
}

/// The best of some other ways to send, if the root has the costs of the network, they are known
/// for both, and it is clearly better than `fitting`. `has_kernel` is about the engine of the root.
pub fn better(
    settings: &GroupSettings,
    hosts: usize,
    has_kernel: bool,
    fitting: Sending,
    others: &[Sending],
) -> Option<Better> {
    let of = |sending: Sending| choice(settings, hosts, has_kernel, sending);
    let others = others.iter().filter(|&&sending| sending != fitting);
    let found = others.filter_map(|&sending| Some((sending, of(sending)?.last_delivery.us())));
    let (sending, last_delivery_us) = found.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
    let otherwise_us = of(fitting)?.last_delivery.us();
    let is_better = last_delivery_us < (1.0 - EARLIER) * otherwise_us;
    is_better.then_some(Better { sending, last_delivery_us, otherwise_us })
}

/// The best tree by the costs of the network; none if they are not known for this way to send.
pub fn best_tree(hosts: usize, settings: &GroupSettings, is_in_kernel: bool) -> Option<TreeScheme> {
    // By multicast the tree is for what is lost, and nodes forward that.
    let offload = settings.offload.filter(|offload| *offload != Offload::Switch).unwrap_or(Offload::Nic);
    // Until the node has chosen, this is what it mostly chooses.
    let streams = (!is_in_kernel && offload == Offload::Nic).then_some(Transport::Streams);
    let transport = settings.transport.or(streams).unwrap_or(Transport::Packets);
    Some(choice(settings, hosts, is_in_kernel, (offload, transport))?.tree)
}

/// The best tree of a way to send, and its last delivery.
fn choice(
    settings: &GroupSettings,
    hosts: usize,
    is_in_kernel: bool,
    (offload, transport): Sending,
) -> Option<Choice> {
    let network = settings.network.as_ref()?;
    let hosts = u32::try_from(hosts).ok().filter(|&hosts| hosts > 1)?;
    let way = way(is_in_kernel, (offload, transport));
    match network.best_of([&way], hosts, Bytes(settings.message_bytes.max(1))) {
        Ok(Some(choice)) => Some(choice),
        Ok(None) => {
            tracing::debug!(%way, "the file of the network has no costs of this way to send");
            None
        }
        Err(error) => {
            tracing::debug!(%error, "the costs of the network say nothing about this group");
            None
        }
    }
}

/// The way of the network's file.
fn way(is_in_kernel: bool, (offload, transport): Sending) -> Way {
    // While streams lose no packets, they carry everything.
    let transport = if transport == Transport::Both { Transport::Streams } else { transport };
    // Where applications ask for it, user space forwards, and the kernel has no streams.
    let is_forwarded = matches!(offload, Offload::Nic | Offload::Switch) && transport == Transport::Packets;
    let engine = if is_in_kernel && is_forwarded { EngineChoice::Ebpf } else { EngineChoice::User };
    Way { engine: engine.to_string(), offload, transport }
}

#[cfg(test)]
mod tests {
    use treecast_model::Network;
    use treecast_proto::Authentication;

    use super::*;
    use crate::settings::config::{GroupConfig, settings_of};

    /// A network with these times of a copy by some ways, in microseconds.
    fn network(ways: &[(&str, &str, &str, u32)]) -> Network {
        let ways = ways.iter().map(|(engine, offload, transport, send_us)| {
            let way = format!("engine = '{engine}'\noffload = '{offload}'\ntransport = '{transport}'");
            format!("[[way]]\n{way}\n[way.set]\nsend_us = {send_us}\n")
        });
        let text = format!("format = 'treecast-network-1'\n{}", ways.collect::<String>());
        Network::parse("network.toml", &text).unwrap()
    }

    /// What the root of eight hosts chooses.
    fn chosen(settings: GroupSettings, has_kernel: bool) -> GroupConfig {
        GroupConfig::new(settings).unwrap().for_engine(true, has_kernel)
    }

    /// Settings of eight members on a network, which is not the loopback.
    fn settings(offload: Option<Offload>, ways: &[(&str, &str, &str, u32)]) -> GroupSettings {
        let members = (1..9).map(|host| ([10, 0, 0, host], 7_700).into()).collect();
        let secret = GroupSettings { members, offload, token: "secret".into(), ..settings_of(8) };
        GroupSettings { mtu_bytes: Some(1_500), ..secret.with_network(network(ways)) }
    }

    #[test]
    fn datagrams_and_streams_are_chosen_by_costs() {
        let transport = |kernel_us, stream_us| {
            let ways = [("ebpf", "nic", "packets", kernel_us), ("user", "nic", "stream", stream_us)];
            chosen(settings(Some(Offload::Nic), &ways), true).transport()
        };
        assert_eq!(transport(1, 50), Transport::Packets);
        assert_eq!(transport(50, 1), Transport::Both);
        // A small difference is within the errors of predictions.
        assert_eq!(transport(20, 19), Transport::Packets);
        let ways = [("ebpf", "nic", "packets", 50), ("user", "nic", "stream", 1)];
        let open = settings(Some(Offload::Nic), &ways);
        for given in [
            GroupSettings { scheme: Some("binomial".parse().unwrap()), ..open.clone() },
            GroupSettings { transport: Some(Transport::Packets), ..open.clone() },
            GroupSettings { slots: Some(512), ..open },
            settings(Some(Offload::Nic), &ways[..1]),
        ] {
            assert_eq!(chosen(given, true).transport(), Transport::Packets);
        }
    }

    #[test]
    fn multicast_is_not_used_where_the_tree_is_faster() {
        let ways = |switch_us| {
            [
                ("user", "switch", "packets", switch_us),
                ("user", "nic", "stream", 10),
                ("user", "nic", "packets", 10),
            ]
        };
        let slow = chosen(settings(None, &ways(900)), false);
        assert_eq!((slow.offload().offload, slow.settings().offload), (Offload::Nic, Some(Offload::Nic)));
        assert_eq!((slow.transport(), slow.multicast()), (Transport::Packets, None));
        assert_eq!(slow.authentication(), Authentication::Header);
        let reason = slow.offload().reason.clone().unwrap();
        assert!(reason.starts_with("by the costs of the network a message takes "), "{reason}");
        for kept in [settings(None, &ways(1)), settings(Some(Offload::Switch), &ways(900))] {
            let kept = chosen(kept, false);
            assert_eq!(kept.offload().offload, Offload::Switch);
            assert!(kept.multicast().is_some() && kept.authentication() == Authentication::Payload);
        }
    }
}
