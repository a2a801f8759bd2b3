//! The costs of nodes, network interfaces and the network, and the operation.

use treecast_terms::{Bytes, Key, Keyed, Picoseconds, parameter, positive_parameter};

use super::policy::{Counted, Policy};
use crate::keys::{
    bytes_key, choice_key, count_key, fraction_key, positive_rate_key, rate_key, span_key, timeout_key,
};

/// The operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Operation {
    /// Broadcasts, one after another.
    #[default]
    Broadcast,
    /// One message from the root to the first destination.
    PointToPoint,
}

/// How a broadcast is carried out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Method {
    /// The task's scheme by messages from process to process. *Published*, with a binomial tree.
    #[default]
    Original,
    /// Hardware multicast with every process attached. *Published.*
    NoSmp,
    /// One attached leader per node, which forwards to its node. *Published.*
    Smp,
    /// The same, and processes that wait too long attach themselves. *Published.*
    Dynamic,
    /// The first process to arrive on a node receives the packets, and forwards them to the others.
    /// *Ours.*
    Moving,
    /// Packets go straight into shared memory, where every process finds them itself. *Ours;
    /// rejected in the study, since on its hardware arrival could not be detected safely.*
    Direct,
}

impl Method {
    /// Whether the packets of a node are delivered once, for all its processes.
    pub(super) fn is_shared(self) -> bool {
        matches!(self, Self::Moving | Self::Direct)
    }
}

/// The processes that take turns to acknowledge a broadcast in the application: its latency is
/// measured by that acknowledgment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Turns {
    /// All receivers. *Published.*
    #[default]
    All,
    /// All processes except leaders, where there are others. *Ours.*
    NonLeaders,
}

/// The costs of the parts, and the operation. The defaults are those of testbed A of the study
/// (papers/smpib/testbed-a.toml says which of them are published).
#[derive(Debug, Clone, PartialEq)]
pub struct Parameters {
    /// The operation.
    pub operation: Operation,
    /// The algorithm of the broadcast.
    pub method: Method,
    /// Number of measured broadcasts, at least 1.
    pub iterations: u32,
    /// Number of broadcasts before them, which do not count for the latency.
    pub warmup_iterations: u32,
    /// The processes that acknowledge for the measurement.
    pub turns: Turns,
    /// Delay with which the leaders, except the root, enter each broadcast.
    pub leader_delay: Picoseconds,
    /// Rate of links, in millions of bytes per second, at least 1.
    pub link_mb_per_s: u64,
    /// A head's time over a link with its switch.
    pub hop: Picoseconds,
    /// Headers of a packet.
    pub header: Bytes,
    /// Maximum data of a packet, at least 1.
    pub mtu: Bytes,
    /// Rate of a node's I/O bus, shared by both directions, in millions of bytes per second.
    pub bus_mb_per_s: u64,
    /// Time for which a packet occupies a direction of the network interface.
    pub nic_gap: Picoseconds,
    /// Further time of an outgoing packet in the network interface, during which others may follow.
    pub nic_send: Picoseconds,
    /// Further time of an incoming packet.
    pub nic_receive: Picoseconds,
    /// The network interface's time to look up and serve each attached process, besides the bus.
    pub nic_deliver: Picoseconds,
    /// CPU time to send a message to another node.
    pub send: Picoseconds,
    /// CPU time to receive one.
    pub receive: Picoseconds,
    /// The longest message to another node that is copied; a longer one needs a rendezvous, and is
    /// not copied.
    pub eager: Bytes,
    /// CPU time to post a datagram or an acknowledgment.
    pub post: Picoseconds,
    /// CPU time to take a datagram.
    pub take: Picoseconds,
    /// The root's CPU time for each acknowledgment.
    pub acknowledgment: Picoseconds,
    /// Rate of copying in memory, in millions of bytes per second.
    pub copy_mb_per_s: u64,
    /// CPU time at either end of a message inside a node, besides copying.
    pub shared: Picoseconds,
    /// Time from the writing of a flag in shared memory until it is seen.
    pub flag: Picoseconds,
    /// The longest message inside a node that needs no rendezvous.
    pub shared_eager: Bytes,
    /// Length of the pieces of a longer one.
    pub piece: Bytes,
    /// Number of messages or pieces that a queue between two processes holds.
    pub queue_slots: u32,
    /// Number of neighbouring processes that share a part of the memory.
    pub domain_processes: u32,
    /// Factor by which reading from another part of the memory takes longer, at least 1.
    pub numa_factor: f64,
    /// Share of datagrams that are lost on the way to a node.
    pub loss: f64,
    /// Share of datagrams that arrive late.
    pub reorder: f64,
    /// Delay of a late datagram.
    pub reorder_delay: Picoseconds,
    /// Maximum number of datagrams that wait for a process, or for a node with shared delivery;
    /// more are dropped.
    pub receive_buffers: u32,
    /// Maximum number of broadcasts of the root that lack acknowledgments.
    pub window_broadcasts: u32,
    /// Timeout after which the root retransmits unacknowledged broadcasts.
    pub timeout: Picoseconds,
    /// CPU time to attach to the multicast group.
    pub attach: Picoseconds,
    /// CPU time to detach.
    pub detach: Picoseconds,
    /// The threshold of the dynamic policy; by default the time of attaching, multiplied by the
    /// number of processes of a node.
    pub threshold: Option<Picoseconds>,
    /// Broadcasts before the dynamic policy begins.
    pub minimum_broadcasts: u32,
    /// Further broadcasts before a process detaches.
    pub lazy_broadcasts: u32,
    /// Which broadcasts the dynamic policy counts.
    pub counted: Counted,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            operation: Operation::default(),
            method: Method::default(),
            iterations: 100,
            warmup_iterations: 0,
            turns: Turns::default(),
            leader_delay: Picoseconds::ZERO,
            link_mb_per_s: 1000,
            hop: Picoseconds(100_000),
            header: Bytes(60),
            mtu: Bytes(2048),
            bus_mb_per_s: 1066,
            nic_gap: Picoseconds(300_000),
            nic_send: Picoseconds(1_600_000),
            nic_receive: Picoseconds(1_600_000),
            nic_deliver: Picoseconds(700_000),
            send: Picoseconds(1_000_000),
            receive: Picoseconds(900_000),
            eager: Bytes(8192),
            post: Picoseconds(600_000),
            take: Picoseconds(600_000),
            acknowledgment: Picoseconds(400_000),
            copy_mb_per_s: 1500,
            shared: Picoseconds(220_000),
            flag: Picoseconds(150_000),
            shared_eager: Bytes(8192),
            piece: Bytes(8192),
            queue_slots: 16,
            domain_processes: 1024,
            numa_factor: 1.0,
            loss: 0.0,
            reorder: 0.0,
            reorder_delay: Picoseconds(20_000_000),
            receive_buffers: 1024,
            window_broadcasts: 32,
            timeout: Picoseconds(10_000_000_000),
            attach: Picoseconds(250_000_000),
            detach: Picoseconds(250_000_000),
            threshold: None,
            minimum_broadcasts: 10,
            lazy_broadcasts: 10,
            counted: Counted::default(),
        }
    }
}

const KEYS: [Key<Parameters>; 41] = [
    choice_key!("operation", operation, "what is carried out",
        ["broadcast" => Operation::Broadcast, "point_to_point" => Operation::PointToPoint]),
    choice_key!("method", method, "how a broadcast is carried out",
        ["ori_bcst" => Method::Original, "nosmp_mcst" => Method::NoSmp, "smp_mcst" => Method::Smp,
         "smp_mcst_dynamic" => Method::Dynamic, "smp_mcst_moving" => Method::Moving,
         "smp_mcst_direct" => Method::Direct]),
    count_key!("iterations", iterations, 1, 1_000_000, "broadcasts that are measured"),
    count_key!("warmup_iterations", warmup_iterations, 0, 1_000_000, "broadcasts before them"),
    choice_key!("turns", turns, "who takes turns to acknowledge to the application",
        ["all" => Turns::All, "nonleaders" => Turns::NonLeaders]),
    span_key!("leader_delay_us", leader_delay, "how late leaders come to each broadcast"),
    positive_rate_key!("link_mb_per_s", link_mb_per_s, "what links carry"),
    span_key!("hop_us", hop, "a head's time over a link with its switch"),
    bytes_key!("header_bytes", header, 0, "headers of a packet"),
    bytes_key!("mtu_bytes", mtu, 1, "the most data of a packet"),
    rate_key!("bus_mb_per_s", bus_mb_per_s, "I/O bus of a node, shared by both directions"),
    span_key!("nic_gap_us", nic_gap, "how long each direction of the NIC is taken by a packet"),
    span_key!("nic_send_us", nic_send, "how much longer a packet takes through the NIC on its way out"),
    span_key!("nic_receive_us", nic_receive, "how much longer on its way in"),
    span_key!("nic_deliver_us", nic_deliver, "NIC time for each attached process, besides the bus"),
    span_key!("send_us", send, "CPU time to send a message to another node"),
    span_key!("receive_us", receive, "CPU time to receive one"),
    bytes_key!("eager_bytes", eager, 0, "the longest message to another node that is copied"),
    span_key!("post_us", post, "CPU time to post a datagram or an acknowledgment"),
    span_key!("take_us", take, "CPU time to take a datagram"),
    span_key!("acknowledgment_us", acknowledgment, "the root's CPU time for an acknowledgment"),
    rate_key!("copy_mb_per_s", copy_mb_per_s, "copying in memory"),
    span_key!("shared_us", shared, "CPU time at either end of a message inside a node"),
    span_key!("flag_us", flag, "from a flag written in shared memory until it is seen"),
    bytes_key!("shared_eager_bytes", shared_eager, 0, "the longest message inside a node without handshake"),
    bytes_key!("piece_bytes", piece, 1, "the pieces of a longer one"),
    count_key!("queue_slots", queue_slots, 1, 65_536, "what a queue between two processes of a node holds"),
    count_key!("domain_processes", domain_processes, 1, 65_536, "processes that share a part of the memory"),
    Key {
        name: "numa_factor",
        expected: "a number from 1 to 100",
        about: "how much longer reading from another part of the memory takes",
        get: |parameters| parameters.numa_factor.into(),
        set: |parameters, text| {
            let factor = text.parse().ok().filter(|factor| (1.0..=100.0).contains(factor))?;
            parameters.numa_factor = factor;
            Some(())
        },
    },
    fraction_key!("loss", loss, "the fraction of datagrams that a node does not get"),
    fraction_key!("reorder", reorder, "the fraction of datagrams that come late"),
    span_key!("reorder_delay_us", reorder_delay, "how late"),
    count_key!("receive_buffers", receive_buffers, 1, 1_048_576, "datagrams that wait for a process"),
    count_key!("window_broadcasts", window_broadcasts, 1, 65_536, "broadcasts without all acknowledgments"),
    timeout_key!("timeout_us", timeout, "when the root retransmits what is not acknowledged"),
    span_key!("attach_us", attach, "CPU time to attach to the multicast group"),
    span_key!("detach_us", detach, "CPU time to detach"),
    Key {
        name: "threshold_us",
        expected: "a number of microseconds, or auto: processes of a node times attach_us",
        about: "threshold of the dynamic policy",
        get: |parameters| parameters.threshold.map_or("auto".into(), |span| span.us().into()),
        set: |parameters, text| {
            parameters.threshold = if text == "auto" { None } else { Some(Picoseconds::from_us(text)?) };
            Some(())
        },
    },
    count_key!("minimum_broadcasts", minimum_broadcasts, 0, 1_000_000, "broadcasts before the policy begins"),
    count_key!("lazy_broadcasts", lazy_broadcasts, 0, 1_000_000, "broadcasts before a process detaches"),
    choice_key!("counted", counted,
        "which broadcasts the policy counts: those whose packet and process waited for the leader, or all",
        ["waiting" => Counted::Waiting, "all" => Counted::All]),
];

impl Keyed for Parameters {
    fn keys() -> &'static [Key<Self>] {
        &KEYS
    }
}

impl Parameters {
    /// The time of a copy from the same or from another part of the memory.
    pub(super) fn copy(&self, length: Bytes, is_far: bool) -> Picoseconds {
        let near = length.time_at(self.copy_mb_per_s);
        if is_far { Picoseconds((near.0 as f64 * self.numa_factor).round() as u64) } else { near }
    }

    /// The dynamic policy on nodes with `processes` processes.
    pub(super) fn policy(&self, processes: u32) -> Policy {
        Policy {
            threshold: self.threshold.unwrap_or(Picoseconds(u64::from(processes) * self.attach.0)),
            minimum_broadcasts: self.minimum_broadcasts,
            lazy_broadcasts: self.lazy_broadcasts,
            counted: self.counted,
        }
    }
}
