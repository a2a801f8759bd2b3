//! When a member's application forwards packets, and when its node wakes it.

use treecast_wire::{Offload, Sequence};

/// Whether an application that has read the packets before `upto` forwards them now, having
/// forwarded those before `forwarded`: with offload `host` or `assisted` after each message, and
/// within long ones at every multiple of half of the slots.
///
/// The multiples are the same at all members. A window of packets contains one beyond its first
/// packet, which the applications of all members forward, so that a message that is longer than the
/// slots never waits for its own rest.
///
/// ```
/// use treecast_proto::{Offload, Sequence, is_forward_due};
///
/// assert!(!is_forward_due(Offload::Host, Sequence(0), Sequence(7), false, 16));
/// assert!(is_forward_due(Offload::Host, Sequence(7), Sequence(8), false, 16));
/// ```
pub fn is_forward_due(
    offload: Offload,
    forwarded: Sequence,
    upto: Sequence,
    is_whole: bool,
    slots: u32,
) -> bool {
    let half = (slots / 2).max(1);
    !offload.is_by_node() && (is_whole || forwarded.0 / half != upto.0 / half)
}

/// Whether a sleeping application that has read the packets before `read` is woken when those
/// before `end` are there, apart from the ends of messages: when a quarter of the slots is full, or
/// when it has to forward.
pub fn is_wake_due(offload: Offload, read: Sequence, end: Sequence, slots: u32) -> bool {
    end.distance_from(read) as u32 >= slots / 4 || is_forward_due(offload, read, end, false, slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members below one another, each with slots for 16 packets of a message that is longer:
    /// whatever each has left unread in its sleep, the last one gets a packet beyond the first of
    /// the window.
    #[test]
    fn a_chain_of_sleeping_applications_forwards_within_each_window() {
        let slots = 16;
        for (first, parts) in (0..64).flat_map(|first| (1..slots / 4).map(move |parts| (first, parts))) {
            let first = Sequence(u32::MAX - 20) + first;
            let mut end = first + slots;
            for _ in 0..5 {
                let (mut read, mut forwarded) = (first, first);
                // Packets arrive a few at a time.
                for arrived in
                    first.until(end + 1).filter(|arrived| arrived.0 % parts == 0 || *arrived == end)
                {
                    if is_wake_due(Offload::Host, read, arrived, slots) {
                        read = arrived;
                    }
                    if is_forward_due(Offload::Host, forwarded, read, false, slots) {
                        forwarded = read;
                    }
                }
                end = forwarded;
            }
            assert!(first.is_before(end), "first {first}, {parts} packets at a time");
        }
    }
}
