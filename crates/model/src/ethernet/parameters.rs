//! The costs of hosts on Ethernet that run Treecast's nodes.

use treecast_terms::{Bytes, Key, Keyed, Picoseconds, parameter};

use crate::keys::{bytes_key, choice_key, count_key, rate_key, span_key};

/// What a sleeping thread is woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// For each arrival: the thread that takes pieces in also has the application's message.
    Arrival,
    /// For the whole message: the kernel's packet path takes pieces in without a thread.
    Message,
}

/// The longest message that Open MPI's TCP sends without asking: 64 KB with its header
/// (`btl_tcp_eager_limit`).
pub const EAGER_MAX: Bytes = Bytes((64 << 10) - 64);

/// The rates, times and lengths of one way to send a message: an engine, an offload and a
/// transport. The defaults are guesses, rounded: 10 Gb/s, packets of 1,400 bytes, some
/// microseconds for each packet.
///
/// Costs per length are in picoseconds per KB, which is 1,000 bytes, as in MB/s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// Processors of each host, at least 1. A host uses at most two: for the kernel's packet path
    /// and for its application ([`Wake::Message`]).
    pub processors: u32,
    /// Processors that all hosts share, as the hosts of a lab do; 0: each host has its own.
    pub shared_processors: u32,
    /// Rate of each link in each direction, in millions of bytes per second; 0 for no limit.
    pub link_mb_per_s: u64,
    /// Time of a packet's head over a link, including the switch at its end.
    pub hop: Picoseconds,
    /// The most that is received, stored and forwarded at once: a packet's payload, or a read from
    /// a stream; at least 1.
    pub piece: Bytes,
    /// CPU time of the root's call before its first copy.
    pub call: Picoseconds,
    /// The part of that call per KB of the message.
    pub call_per_kb: Picoseconds,
    /// CPU time of an application that asks its node to forward.
    pub ask: Picoseconds,
    /// CPU time of each copy of a piece.
    pub send: Picoseconds,
    /// The part of a copy per KB.
    pub send_per_kb: Picoseconds,
    /// CPU time of the sender for each copy of a piece that a switch makes.
    pub switch_copy: Picoseconds,
    /// The part of a switch's copy per KB.
    pub switch_copy_per_kb: Picoseconds,
    /// What a sleeping thread is woken for.
    pub wake_for: Wake,
    /// Time from an arrival until a sleeping thread runs, in which no processor works.
    pub wake: Picoseconds,
    /// CPU time of that wake-up.
    pub wake_cpu: Picoseconds,
    /// CPU time that a wake-up takes longer for each doubling of the hosts that share a processor:
    /// what their threads have in its caches displaces what the woken one needs.
    pub cold: Picoseconds,
    /// The same for each KB that is taken in.
    pub cold_per_kb: Picoseconds,
    /// CPU time to take in and store a piece.
    pub receive: Picoseconds,
    /// The part of taking in a piece per KB.
    pub receive_per_kb: Picoseconds,
    /// CPU time from the last piece stored until the application has the message.
    pub deliver: Picoseconds,
    /// The part of that per KB of the message.
    pub deliver_per_kb: Picoseconds,
    /// What a message above the eager limit of 64 KB ([`EAGER_MAX`]) takes longer on each step,
    /// beside the network's round trip, until its receiver has answered; 0: it is sent without
    /// asking.
    pub rendezvous: Picoseconds,
    /// CPU time of a parent for the acknowledgment of a child; 0: children acknowledge nothing.
    pub ack: Picoseconds,
}

impl Default for Parameters {
    fn default() -> Self {
        let us = |count: u64| Picoseconds(count * 1_000_000);
        let ns = |count: u64| Picoseconds(count * 1_000);
        Self {
            processors: 1,
            shared_processors: 0,
            link_mb_per_s: 1_250,
            hop: us(1),
            piece: Bytes(1_400),
            call: us(5),
            call_per_kb: ns(100),
            ask: us(2),
            send: us(5),
            send_per_kb: ns(100),
            switch_copy: us(0),
            switch_copy_per_kb: ns(0),
            wake_for: Wake::Arrival,
            wake: us(10),
            wake_cpu: us(2),
            cold: us(0),
            cold_per_kb: ns(0),
            receive: us(5),
            receive_per_kb: ns(100),
            deliver: us(2),
            deliver_per_kb: ns(100),
            rendezvous: us(0),
            ack: us(2),
        }
    }
}

impl Parameters {
    /// What a wake-up takes longer, and each KB that is taken in, where a number of hosts share the
    /// processors: nothing if each host has its own, or if there are no more hosts than processors.
    pub(super) fn cold_of(&self, hosts: u32) -> (Picoseconds, Picoseconds) {
        let doublings = match self.shared_processors {
            0 => 0.0,
            shared => (f64::from(hosts) / f64::from(shared)).log2().max(0.0),
        };
        let of = |span: Picoseconds| Picoseconds((span.0 as f64 * doublings).round() as u64);
        (of(self.cold), of(self.cold_per_kb))
    }
}

/// CPU time per KB, given in nanoseconds.
macro_rules! per_kb_key {
    ($name:literal, $field:ident, $about:literal) => {
        Key {
            name: $name,
            expected: "a number of nanoseconds, up to 1,099,511,627 (1.1 s)",
            about: $about,
            get: |parameters| (parameters.$field.0 as f64 / 1e3).into(),
            set: |parameters, text| {
                let picoseconds = (text.parse::<f64>().ok()? * 1e3).round();
                let span = parameter(&picoseconds.to_string())?;
                parameters.$field = Picoseconds(span);
                Some(())
            },
        }
    };
}

const KEYS: [Key<Parameters>; 23] = [
    count_key!("processors", processors, 1, 1024, "of each host, which uses two at most"),
    count_key!(
        "shared_processors",
        shared_processors,
        0,
        1024,
        "of all hosts together, as in a lab; 0: none"
    ),
    rate_key!("link_mb_per_s", link_mb_per_s, "what each link carries in each direction"),
    span_key!("hop_us", hop, "a packet's head over a link and the switch at its end"),
    bytes_key!("piece_bytes", piece, 1, "the most that is received, stored and forwarded at once"),
    span_key!("call_us", call, "CPU time of the root's call before its first copy"),
    per_kb_key!("call_ns_per_kb", call_per_kb, "the same, for each 1,000 bytes of the message"),
    span_key!("ask_us", ask, "CPU time of an application that asks its node to forward"),
    span_key!("send_us", send, "CPU time of each copy of a piece"),
    per_kb_key!("send_ns_per_kb", send_per_kb, "the same, for each 1,000 bytes"),
    span_key!("switch_copy_us", switch_copy, "CPU time of the sender for a switch's copy of a piece"),
    per_kb_key!("switch_copy_ns_per_kb", switch_copy_per_kb, "the same, for each 1,000 bytes"),
    choice_key!("wake_for", wake_for, "what a sleeping thread is woken for", [
        "arrival" => Wake::Arrival, "message" => Wake::Message
    ]),
    span_key!("wake_us", wake, "from an arrival until a sleeping thread runs, without CPU time"),
    span_key!("wake_cpu_us", wake_cpu, "CPU time of that wake-up"),
    span_key!("cold_us", cold, "CPU time added to a wake-up for each doubling of hosts per shared processor"),
    per_kb_key!("cold_ns_per_kb", cold_per_kb, "the same, for each 1,000 bytes that are taken in"),
    span_key!("receive_us", receive, "CPU time to take in and store a piece"),
    per_kb_key!("receive_ns_per_kb", receive_per_kb, "the same, for each 1,000 bytes"),
    span_key!("deliver_us", deliver, "CPU time from stored until the application has the message"),
    per_kb_key!("deliver_ns_per_kb", deliver_per_kb, "the same, for each 1,000 bytes of the message"),
    span_key!("rendezvous_us", rendezvous, "added to each step of a message above 64 KB, with a round trip"),
    span_key!("ack_us", ack, "CPU time of a parent for a child's acknowledgment; 0: there are none"),
];

impl Keyed for Parameters {
    fn keys() -> &'static [Key<Self>] {
        &KEYS
    }
}
