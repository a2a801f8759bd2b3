//! Statistics of the uplinks of racks, from their interfaces.

use std::collections::HashMap;
use std::io;

/// The bytes that went over the uplink of a rack: Ethernet frames with their headers of 14 bytes,
/// without preamble, checksum and gap.
///
/// A batch of packets that a sender's segmentation offload makes one (GSO) is one frame here, with
/// one set of headers. A packet that the queue of an uplink drops is not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UplinkBytes {
    /// From the rack to the core.
    pub up: u64,
    /// From the core to the rack.
    pub down: u64,
}

/// Reads the statistics of the uplinks of racks `0..uplinks`. `parent` is the parent of the lab's
/// first process, which is in the network namespace of the switches; its directory in /proc shows
/// the interfaces of that namespace.
pub(crate) fn read(parent: u32, uplinks: u32) -> io::Result<Vec<UplinkBytes>> {
    let table = std::fs::read_to_string(format!("/proc/{parent}/net/dev"))?;
    let sent = sent_bytes(&table);
    let of = |interface: String| {
        let missing = || io::Error::other(format!("/proc/net/dev of the lab has no interface {interface}"));
        sent.get(interface.as_str()).copied().ok_or_else(missing)
    };
    (0..uplinks)
        .map(|rack| Ok(UplinkBytes { up: of(format!("up{rack}"))?, down: of(format!("down{rack}"))? }))
        .collect()
}

/// The bytes that each interface has sent, from the text of /proc/net/dev: `name: `, eight counters
/// of reception, the first of which is bytes, and eight of transmission in the same order.
fn sent_bytes(table: &str) -> HashMap<&str, u64> {
    table.lines().filter_map(sent_by_interface).collect()
}

fn sent_by_interface(line: &str) -> Option<(&str, u64)> {
    let (name, counters) = line.split_once(':')?;
    Some((name.trim(), counters.split_whitespace().nth(8)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_sent_are_taken_from_the_kernels_table() {
        let table = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
   up0: 5000000001    7    1    2    3     4          5         6 12345678901    8    9   10   11    12      13         14
 down0:     210       3    0    0    0     0          0         0       70       1    0    0    0     0       0          0
";
        assert_eq!(sent_bytes(table), HashMap::from([("lo", 0), ("up0", 12_345_678_901), ("down0", 70)]));
    }
}
