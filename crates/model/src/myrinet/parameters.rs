//! The costs and numbers of the parts, each with one key.

use treecast_terms::{Bytes, Key, Keyed, Picoseconds, parameter, positive_parameter};

use super::policies::{
    Barrier, EagerCopies, FirstBroadcast, Flow, Forwarding, Layer, Membership, Operation, Replicas, Unicasts,
};
use crate::keys::{bytes_key, choice_key, count_key, fraction_key, positive_rate_key, span_key, timeout_key};

/// The parts of a node, and the operation. The defaults are hosts of 700 MHz with 66 MHz/64 bit
/// PCI, and NICs with a processor of 133 MHz (`LANai` 9.1) under GM 2.0 on links of 2 Gb/s.
///
/// *Published* are the rate of links, the payload of a packet, the bound of the eager protocol, and
/// that a post takes under 1 us. *Measured elsewhere* are `hop` and `nic_sent` (Myricom, on the
/// same NICs), and the rates of transfers between host and NIC (SISSA, in such hosts). *Calibrated*
/// are `nic_receive` (to 7 us one way) and `nic_replica` (to a multisend 2.05 times as fast as four
/// sends). The others are *guesses* of the usual order of magnitude: a microsecond is 133 cycles of
/// the NIC's processor.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    /// The operation that is timed.
    pub operation: Operation,
    /// The software layer.
    pub layer: Layer,
    /// How a NIC makes the copies of a packet.
    pub replicas: Replicas,
    /// When an intermediate NIC forwards a packet.
    pub forwarding: Forwarding,
    /// The flow control.
    pub flow: Flow,
    /// How an intermediate NIC knows its children.
    pub membership: Membership,
    /// The number of destinations that a message names with mixed membership: the last of those
    /// given.
    pub named_destinations: u32,
    /// Whether the group exists already.
    pub first_broadcast: FirstBroadcast,
    /// Which copies the eager protocol makes.
    pub eager_copies: EagerCopies,
    /// The number of concurrent multicasts, each with its own root: at most as many as members.
    pub groups: u32,
    /// How many messages each root sends, back to back.
    pub messages: u32,
    /// How many times in a row the operation is repeated; times are averages over all of them.
    pub broadcasts: u32,
    /// What separates broadcasts in a row.
    pub barrier: Barrier,
    /// Between which processes unicasts go beside the multicasts, until these are complete.
    pub unicasts: Unicasts,
    /// The length of a unicast.
    pub unicast: Bytes,
    /// The maximum number of unicasts that the sender has in flight, from its call until it knows
    /// of the acknowledgment.
    pub unicasts_in_flight: u32,
    /// The mean pause before each unicast, drawn uniformly from 0 to twice this time.
    pub unicast_pause: Picoseconds,
    /// Average process skew: a third of the largest.
    pub skew: Picoseconds,
    /// Probability that a packet is lost, at most nine tenths; it counts in millionths.
    pub loss: f64,
    /// CPU time to post a send. *Published: under 1 us.*
    pub host_post: Picoseconds,
    /// CPU time to find an event, to handle it and to give a receive buffer back. *Guess.*
    pub host_event: Picoseconds,
    /// CPU time of a call of the MPI layer, besides what it posts and copies. *Guess.*
    pub mpi_call: Picoseconds,
    /// CPU time per member to build a tree and to post it to the NIC. *Guess.*
    pub group_member: Picoseconds,
    /// Rate at which a CPU copies, in MB/s. *Guess.*
    pub memcpy_mb_per_s: u64,
    /// The longest message of the eager protocol. *Published.*
    pub eager: Bytes,
    /// CPU time of the central manager for a request or a return, besides the event. *Guess.*
    pub manager: Picoseconds,
    /// The maximum number of messages in flight under the central manager. *Guess.*
    pub manager_credits: u32,
    /// Rate at which a NIC reads host memory over the I/O bus, in MB/s. Both directions share the
    /// bus. *Measured elsewhere.*
    pub pci_read_mb_per_s: u64,
    /// Rate at which a NIC writes into host memory over the I/O bus, in MB/s. *Measured elsewhere.*
    pub pci_write_mb_per_s: u64,
    /// Time to start a transfer over the I/O bus. *Guess.*
    pub pci_setup: Picoseconds,
    /// Rate of a link in one direction, in MB/s. *Published.*
    pub link_mb_per_s: u64,
    /// Delay of a head over a link and through the switch behind it. *Measured elsewhere: about 0.5
    /// us from NIC to NIC.*
    pub hop: Picoseconds,
    /// Maximum payload of a packet. *Published.*
    pub packet: Bytes,
    /// Route, type, numbers and check of a packet. *Guess.*
    pub header: Bytes,
    /// An acknowledgment, or a credit. *Guess.*
    pub ack: Bytes,
    /// The name of one destination in a header. *Guess.*
    pub destination: Bytes,
    /// NIC time to turn a send event into a token. *Guess.*
    pub nic_send_event: Picoseconds,
    /// NIC time that changed firmware adds to each unicast send; unchanged firmware serves
    /// host-based sends. *Guess: none.*
    pub nic_firmware: Picoseconds,
    /// NIC time to make one more token for one more child. *Guess.*
    pub nic_token: Picoseconds,
    /// NIC time to send a packet of the host: header, record, start of the transmission. *Guess.*
    pub nic_send: Picoseconds,
    /// NIC time to rewrite a header for the next child, and to queue the packet again.
    /// *Calibrated.*
    pub nic_replica: Picoseconds,
    /// NIC time to receive a packet: its check, its number, its token, start of the transfer.
    /// *Calibrated.*
    pub nic_receive: Picoseconds,
    /// NIC time to look a group up and to prepare a received packet for its first child. *Guess.*
    pub nic_forward: Picoseconds,
    /// NIC time to make an acknowledgment, or a credit. *Guess.*
    pub nic_ack_send: Picoseconds,
    /// NIC time to receive an acknowledgment, or a credit. *Guess.*
    pub nic_ack_receive: Picoseconds,
    /// NIC time to return a token when all its packets are acknowledged, the event at the host
    /// included. *Measured elsewhere: a stream of messages takes the processor 10.8 us per message,
    /// and this is the remainder.*
    pub nic_sent: Picoseconds,
    /// NIC time to raise the event of a received message at the host. *Guess.*
    pub nic_event: Picoseconds,
    /// NIC time to write or to read the name of one destination in a header. *Guess.*
    pub nic_destination: Picoseconds,
    /// Packet buffers of a NIC for what it sends from the host. *Guess.*
    pub nic_send_buffers: u32,
    /// Packet buffers of a NIC for what it receives. *Guess.*
    pub nic_receive_buffers: u32,
    /// Send tokens of a process. *Guess.*
    pub send_tokens: u32,
    /// Receive tokens of a process: registered buffers for messages. *Guess.*
    pub receive_tokens: u32,
    /// The maximum number of unacknowledged packets in a queue that the host feeds. *Guess.*
    pub window_packets: u32,
    /// The retransmission timeout of a packet. *Guess.*
    pub timeout: Picoseconds,
}

impl Default for Parameters {
    fn default() -> Self {
        let us = |text: &str| Picoseconds::from_us(text).expect("a number of microseconds");
        Self {
            operation: Operation::default(),
            layer: Layer::default(),
            replicas: Replicas::default(),
            forwarding: Forwarding::default(),
            flow: Flow::default(),
            membership: Membership::default(),
            named_destinations: 1,
            first_broadcast: FirstBroadcast::default(),
            eager_copies: EagerCopies::default(),
            groups: 1,
            messages: 1,
            broadcasts: 1,
            barrier: Barrier::default(),
            unicasts: Unicasts::default(),
            unicast: Bytes(4),
            unicasts_in_flight: 1,
            unicast_pause: Picoseconds::ZERO,
            skew: Picoseconds::ZERO,
            loss: 0.0,
            host_post: us("0.8"),
            host_event: us("0.4"),
            mpi_call: us("0.5"),
            group_member: us("0.5"),
            memcpy_mb_per_s: 400,
            eager: Bytes(16_287),
            manager: us("0.5"),
            manager_credits: 16,
            pci_read_mb_per_s: 227,
            pci_write_mb_per_s: 315,
            pci_setup: us("0.3"),
            link_mb_per_s: 250,
            hop: us("0.25"),
            packet: Bytes(4096),
            header: Bytes(24),
            ack: Bytes(24),
            destination: Bytes(4),
            nic_send_event: us("2.2"),
            nic_firmware: us("0"),
            nic_token: us("0.6"),
            nic_send: us("0.8"),
            nic_replica: us("1.75"),
            nic_receive: us("0.87"),
            nic_forward: us("2"),
            nic_ack_send: us("0.2"),
            nic_ack_receive: us("0.8"),
            nic_sent: us("7"),
            nic_event: us("0.2"),
            nic_destination: us("0.05"),
            nic_send_buffers: 16,
            nic_receive_buffers: 64,
            send_tokens: 32,
            receive_tokens: 64,
            window_packets: 64,
            timeout: us("10000"),
        }
    }
}

const KEYS: &[Key<Parameters>] = &[
    choice_key!("operation", operation, "operation that is timed",
        ["multisend" => Operation::Multisend, "multicast" => Operation::Multicast,
         "broadcast" => Operation::Broadcast, "skew" => Operation::Skew]),
    choice_key!("layer", layer, "software layer", ["gm" => Layer::Gm, "mpi" => Layer::Mpi]),
    choice_key!("replicas", replicas, "how a NIC makes the copies of a packet",
        ["tokens" => Replicas::Tokens, "callback" => Replicas::Callback,
         "header-rewrite" => Replicas::HeaderRewrite]),
    choice_key!("forwarding", forwarding, "when an intermediate NIC forwards a packet",
        ["copy-then-forward" => Forwarding::CopyThenForward,
         "copy-while-forwarding" => Forwarding::CopyWhileForwarding]),
    choice_key!("flow", flow, "flow control",
        ["none" => Flow::None, "fm-mc" => Flow::FmMc, "lfc" => Flow::Lfc]),
    choice_key!("membership", membership, "how an intermediate NIC knows its children",
        ["posted" => Membership::Posted, "named" => Membership::Named, "mixed" => Membership::Mixed]),
    count_key!(
        "named_destinations",
        named_destinations,
        1,
        1_000_000,
        "destinations that a message names where membership is mixed"
    ),
    choice_key!("first_broadcast", first_broadcast, "whether the group has yet to be made",
        ["no" => FirstBroadcast::No, "yes" => FirstBroadcast::Yes]),
    choice_key!("eager_copies", eager_copies, "which copies the eager protocol makes",
        ["receive" => EagerCopies::Receive, "both" => EagerCopies::Both]),
    count_key!("groups", groups, 1, 1_000_000, "multicasts at once, each from a root of its own"),
    count_key!("messages", messages, 1, 1_000_000, "messages of each root, back to back"),
    count_key!("broadcasts", broadcasts, 1, 1_000_000, "times in a row that the operation is repeated"),
    choice_key!("barrier", barrier, "what separates broadcasts in a row",
        ["none" => Barrier::None, "dissemination" => Barrier::Dissemination]),
    choice_key!("unicasts", unicasts, "between which processes unicasts go beside multicasts",
        ["none" => Unicasts::None, "members" => Unicasts::Members, "others" => Unicasts::Others]),
    bytes_key!("unicast_bytes", unicast, 0, "length of a unicast beside multicasts"),
    count_key!(
        "unicasts_in_flight",
        unicasts_in_flight,
        1,
        1_000_000,
        "unicasts that their sender has in flight"
    ),
    span_key!("unicast_pause_us", unicast_pause, "mean pause before each unicast"),
    span_key!("skew_us", skew, "average process skew, a third of the largest"),
    fraction_key!("loss", loss, "probability that a packet is lost"),
    span_key!("host_post_us", host_post, "CPU time to post a send"),
    span_key!("host_event_us", host_event, "CPU time to find an event and to handle it"),
    span_key!("mpi_call_us", mpi_call, "CPU time of a call of the MPI layer"),
    span_key!("group_member_us", group_member, "CPU time to build a tree and to post it, a member"),
    positive_rate_key!("memcpy_mb_per_s", memcpy_mb_per_s, "rate at which a CPU copies"),
    bytes_key!("eager_bytes", eager, 0, "longest message of the eager protocol"),
    span_key!("manager_us", manager, "CPU time of the central manager for a request or a return"),
    count_key!(
        "manager_credits",
        manager_credits,
        1,
        1_000_000,
        "messages that the central manager lets be in flight"
    ),
    positive_rate_key!("pci_read_mb_per_s", pci_read_mb_per_s, "rate at which a NIC reads host memory"),
    positive_rate_key!(
        "pci_write_mb_per_s",
        pci_write_mb_per_s,
        "rate at which a NIC writes into host memory"
    ),
    span_key!("pci_setup_us", pci_setup, "time to start a transfer over the I/O bus"),
    positive_rate_key!("link_mb_per_s", link_mb_per_s, "rate of a link in one direction"),
    span_key!("hop_us", hop, "delay over a link and through the switch behind it"),
    bytes_key!("packet_bytes", packet, 1, "most payload of a packet"),
    bytes_key!("header_bytes", header, 1, "header of a packet"),
    bytes_key!("ack_bytes", ack, 1, "an acknowledgment, or a credit"),
    bytes_key!("destination_bytes", destination, 0, "name of one destination in a header"),
    span_key!("nic_send_event_us", nic_send_event, "NIC time to turn a send event into a token"),
    span_key!("nic_firmware_us", nic_firmware, "NIC time that changed firmware adds to each unicast send"),
    span_key!("nic_token_us", nic_token, "NIC time to make one more token for one more child"),
    span_key!("nic_send_us", nic_send, "NIC time to send a packet that has come from the host"),
    span_key!("nic_replica_us", nic_replica, "NIC time to rewrite a header for the next child"),
    span_key!("nic_receive_us", nic_receive, "NIC time to receive a packet"),
    span_key!("nic_forward_us", nic_forward, "NIC time to prepare a received packet for its first child"),
    span_key!("nic_ack_send_us", nic_ack_send, "NIC time to make an acknowledgment"),
    span_key!("nic_ack_receive_us", nic_ack_receive, "NIC time to take an acknowledgment"),
    span_key!("nic_sent_us", nic_sent, "NIC time to give a token back"),
    span_key!("nic_event_us", nic_event, "NIC time to raise the event of a received message"),
    span_key!("nic_destination_us", nic_destination, "NIC time for the name of one destination in a header"),
    count_key!(
        "nic_send_buffers",
        nic_send_buffers,
        1,
        1_000_000,
        "packet buffers for what a NIC sends from the host"
    ),
    count_key!(
        "nic_receive_buffers",
        nic_receive_buffers,
        1,
        1_000_000,
        "packet buffers for what a NIC receives"
    ),
    count_key!("send_tokens", send_tokens, 1, 1_000_000, "send tokens of a process"),
    count_key!("receive_tokens", receive_tokens, 1, 1_000_000, "receive tokens of a process"),
    count_key!(
        "window_packets",
        window_packets,
        1,
        1_000_000,
        "most packets of a queue that wait for acknowledgment"
    ),
    timeout_key!("timeout_us", timeout, "retransmission timeout"),
];

impl Parameters {
    /// The number of nodes at the end of the list that multicasts leave out.
    pub(super) fn outsiders(&self) -> usize {
        if self.unicasts == Unicasts::Others { 2 } else { 0 }
    }
}

impl Keyed for Parameters {
    fn keys() -> &'static [Key<Self>] {
        KEYS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_reads_back_what_it_prints_and_stands_for_itself_alone() {
        let defaults = Parameters::default();
        for key in Parameters::keys() {
            let mut copy = defaults.clone();
            copy.set_key(key.name, &key.value(&defaults).to_string()).unwrap();
            assert_eq!(copy, defaults, "{}", key.name);
            let other = [
                "13",
                "0.25",
                "mpi",
                "tokens",
                "copy-while-forwarding",
                "lfc",
                "named",
                "yes",
                "receive",
                "broadcast",
                "dissemination",
                "members",
            ]
            .into_iter()
            .find(|text| copy.set_key(key.name, text).is_ok())
            .unwrap();
            assert_ne!(copy, defaults, "{}={other}", key.name);
            let changed = copy.values().zip(defaults.values()).filter(|(new, old)| new != old).count();
            assert_eq!(changed, 1, "{}", key.name);
        }
    }

    #[test]
    fn an_invalid_value_is_rejected_with_what_is_expected() {
        let error = |key, value| Parameters::default().set_key(key, value).unwrap_err().to_string();
        assert_eq!(error("loss", "1"), "invalid value loss=1: expected a fraction from 0 to 0.9");
        assert_eq!(error("flow", "credit"), "invalid value flow=credit: expected one of none, fm-mc, lfc");
        assert_eq!(
            error("receive_tokens", "0"),
            "invalid value receive_tokens=0: expected a whole number from 1 to 1000000"
        );
        assert!(error("nic_recieve_us", "1").contains("did you mean nic_receive_us"));
    }
}
