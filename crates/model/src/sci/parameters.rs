//! The costs of the parts of an SCI torus.

use treecast_terms::{Bytes, Key, Keyed, Picoseconds, parameter, positive_parameter};

use crate::keys::{bytes_key, choice_key, count_key, positive_rate_key, rate_key, span_key};

/// Which messages go through the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// None: each sender writes straight into the memory of its receiver.
    None,
    /// Those that a relay receives or sends. The root writes straight into the memory of a leaf.
    Relays,
    /// All.
    All,
}

/// The rates, times and lengths. The defaults are those of the testbed of the SCI study
/// (papers/sci/testbed-sci.toml states which of them are published).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    /// Rate of a ringlet's links, in millions of bytes per second, at least 1.
    pub link_mb_per_s: u64,
    /// Time from a packet's head on a link to the next node's output: cable, address lookup,
    /// bypass.
    pub hop: Picoseconds,
    /// Time from the tail of a packet that has left a ringlet to its request for the other one.
    pub corner: Picoseconds,
    /// Header of a request, without data.
    pub header: Bytes,
    /// Maximum data of a request, at least 1.
    pub data: Bytes,
    /// An echo.
    pub echo: Bytes,
    /// A response, which carries no data.
    pub response: Bytes,
    /// Length that each further address adds to the header of a worm.
    pub address: Bytes,
    /// Flag that a sender writes behind a message, by which the receiver sees that it has arrived.
    pub flag: Bytes,
    /// CPU time of a sender for each message, before it copies.
    pub send: Picoseconds,
    /// Rate at which a CPU writes into remote memory, in millions of bytes per second.
    pub write_mb_per_s: u64,
    /// Rate of a node's I/O bus, shared by both directions, in millions of bytes per second.
    pub bus_mb_per_s: u64,
    /// Time from the bus through the adapter to the request for a link.
    pub adapter_send: Picoseconds,
    /// Time from the tail of a packet through the adapter to the bus.
    pub adapter_receive: Picoseconds,
    /// Time from a flag in memory until the polling process has seen it.
    pub poll: Picoseconds,
    /// Maximum number of transactions of a node without response; at the maximum the CPU's next
    /// write stalls.
    pub outstanding: u32,
    /// Which messages go through the message library.
    pub library: Library,
    /// CPU time of the library for sending a message.
    pub library_send: Picoseconds,
    /// CPU time of the library for receiving a message, besides copies.
    pub library_receive: Picoseconds,
    /// Description of a message in a slot.
    pub envelope: Bytes,
    /// The longest slot: it holds a short message with envelope and flag.
    pub slot: Bytes,
    /// The longest message that is written into a buffer of its receiver without a handshake.
    pub eager: Bytes,
    /// The block of a long message that is announced to the receiver at once.
    pub block: Bytes,
    /// CPU time to check that a block has arrived.
    pub check: Picoseconds,
    /// Rate at which a receiver copies out of slots and blocks, in millions of bytes per second.
    pub copy_mb_per_s: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            link_mb_per_s: 663,
            hop: Picoseconds(70_000),
            corner: Picoseconds(250_000),
            header: Bytes(16),
            data: Bytes(64),
            echo: Bytes(8),
            response: Bytes(16),
            address: Bytes(2),
            flag: Bytes(4),
            send: Picoseconds(100_000),
            write_mb_per_s: 170,
            bus_mb_per_s: 528,
            adapter_send: Picoseconds(830_000),
            adapter_receive: Picoseconds(830_000),
            poll: Picoseconds(100_000),
            outstanding: 16,
            library: Library::Relays,
            library_send: Picoseconds(2_000_000),
            library_receive: Picoseconds(2_000_000),
            envelope: Bytes(24),
            slot: Bytes(512),
            eager: Bytes(131_072),
            block: Bytes(131_072),
            check: Picoseconds(1_500_000),
            copy_mb_per_s: 500,
        }
    }
}

const KEYS: [Key<Parameters>; 25] = [
    positive_rate_key!("link_mb_per_s", link_mb_per_s, "what a ringlet's links carry"),
    span_key!("hop_us", hop, "from a packet's head on a link to the next node's output"),
    span_key!("corner_us", corner, "from one ringlet to the other, in the node at the corner"),
    bytes_key!("header_bytes", header, 1, "header of a request"),
    bytes_key!("data_bytes", data, 1, "the most data of a request"),
    bytes_key!("echo_bytes", echo, 1, "an echo"),
    bytes_key!("response_bytes", response, 1, "a response"),
    bytes_key!("address_bytes", address, 0, "each further address in the header of a worm"),
    bytes_key!("flag_bytes", flag, 0, "what is written behind a message for the receiver to see"),
    span_key!("send_us", send, "CPU time of a sender for each message"),
    rate_key!("write_mb_per_s", write_mb_per_s, "the CPU's writes into the memory of others"),
    rate_key!("bus_mb_per_s", bus_mb_per_s, "I/O bus of a node, shared by both directions"),
    span_key!("adapter_send_us", adapter_send, "from the bus through the adapter to the link"),
    span_key!("adapter_receive_us", adapter_receive, "from the link through the adapter to the bus"),
    span_key!("poll_us", poll, "from a flag in memory until its process has seen it"),
    count_key!("outstanding_transactions", outstanding, 1, 65536, "transactions of a node without response"),
    choice_key!("library", library, "which messages go through the message library", [
        "relays" => Library::Relays, "none" => Library::None, "all" => Library::All
    ]),
    span_key!("library_send_us", library_send, "CPU time of the library to send a message"),
    span_key!("library_receive_us", library_receive, "CPU time of the library to receive a message"),
    bytes_key!("envelope_bytes", envelope, 0, "description of a message in a slot"),
    bytes_key!("slot_bytes", slot, 1, "the longest slot, with envelope and flag"),
    bytes_key!("eager_bytes", eager, 0, "the longest message that is written without a handshake"),
    bytes_key!("block_bytes", block, 64, "the block of a long message that is announced at once"),
    span_key!("check_us", check, "CPU time to check that a block has arrived"),
    rate_key!("copy_mb_per_s", copy_mb_per_s, "the receiver's copies out of slots and blocks"),
];

impl Keyed for Parameters {
    fn keys() -> &'static [Key<Self>] {
        &KEYS
    }
}
