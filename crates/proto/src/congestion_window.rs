//! How many packets may be in flight to one child.

use treecast_wire::Sequence;

use crate::c_layout::c_layout;
use crate::rtt::Rtt;

c_layout! {
    /// A congestion window in packets (RFC 5681, with other factors).
    ///
    /// In slow start it doubles each round trip; after the first loss it grows by an eighth each
    /// round trip. A round trip with losses reduces it by a quarter, a retransmission timeout by
    /// half. Growth in proportion tolerates losses that have nothing to do with congestion, which
    /// growth by one packet does not (Mathis et al., 1997: at 1 % loss such a window has 12
    /// packets).
    pub struct CongestionWindow {
        /// The number of packets that may be in flight.
        pub packets: u32,
        /// Growth in eighths of a packet that is not yet part of `packets`; below 8.
        pub growth_eighths: u32,
        /// 1 in slow start, 0 after the first loss.
        pub is_slow_start: u32,
        /// Losses of packets before this one belong to a round trip for which the window was
        /// reduced already.
        pub recovery_point: Sequence,
    }
}

impl CongestionWindow {
    /// The initial window, in packets.
    pub(crate) const INITIAL_PACKETS: u32 = 64;
    /// The window is never reduced below this number of packets, except by `packets_max`.
    pub(crate) const MIN_PACKETS: u32 = 8;

    /// The initial window of at most `packets_max` packets, to a child whose next packet is `next`.
    pub(crate) const fn new(packets_max: u32, next: Sequence) -> Self {
        let packets = if packets_max < Self::INITIAL_PACKETS { packets_max } else { Self::INITIAL_PACKETS };
        Self { packets, growth_eighths: 0, is_slow_start: 1, recovery_point: next }
    }

    /// That many packets were acknowledged. The window grows only if the sender is limited by it
    /// and the network has no standing queue.
    pub(crate) fn on_ack(&mut self, packets: u32, may_grow: bool, packets_max: u32) {
        if !may_grow {
            return;
        }
        self.growth_eighths += if self.is_slow_start != 0 { 8 * packets } else { packets };
        self.packets = packets_max.min(self.packets + self.growth_eighths / 8);
        self.growth_eighths %= 8;
    }

    /// A packet was lost when all packets before `sent` had been sent. All losses of one round trip
    /// reduce the window once (RFC 6582, `recover`).
    pub(crate) fn on_loss(&mut self, packet: Sequence, sent: Sequence, packets_max: u32) {
        if packet.is_before(self.recovery_point) {
            return;
        }
        self.reduce_to(self.packets / 4 * 3, packets_max);
        self.recovery_point = sent;
    }

    /// Packets wait in a queue of the network for longer than they may; `packet` is the latest of
    /// them that was acknowledged, and all before `sent` had been sent. One round trip reduces the
    /// window once, to what would have made the queue as long as it may be, and at most by half.
    /// That alone reduces it to its initial value at least, since hosts that are busy look alike.
    pub(crate) fn on_long_queue(&mut self, rtt: &Rtt, packet: Sequence, sent: Sequence, packets_max: u32) {
        if packet.is_before(self.recovery_point) {
            return;
        }
        let least = self.packets.min(Self::INITIAL_PACKETS).max(self.packets / 2);
        self.reduce_to(rtt.without_long_queue(self.packets).max(least), packets_max);
        self.recovery_point = sent;
    }

    /// The retransmission timer expired.
    pub(crate) fn on_timeout(&mut self, sent: Sequence, packets_max: u32) {
        self.reduce_to(self.packets / 2, packets_max);
        self.recovery_point = sent;
    }

    fn reduce_to(&mut self, packets: u32, packets_max: u32) {
        self.packets = packets.max(Self::MIN_PACKETS).min(packets_max);
        self.is_slow_start = 0;
        self.growth_eighths = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nanoseconds;

    const MAX: u32 = 1_000;

    #[test]
    fn a_window_doubles_in_slow_start_and_then_grows_by_an_eighth() {
        let mut window = CongestionWindow::new(MAX, Sequence(0));
        window.on_ack(64, true, MAX);
        assert_eq!(window.packets, 128);
        window.on_loss(Sequence(100), Sequence(192), MAX);
        assert_eq!(window.packets, 96);
        window.on_ack(96, true, MAX);
        assert_eq!(window.packets, 108);
    }

    #[test]
    fn losses_of_one_round_trip_reduce_the_window_once() {
        let mut window = CongestionWindow::new(MAX, Sequence(0));
        window.on_loss(Sequence(5), Sequence(64), MAX);
        window.on_loss(Sequence(9), Sequence(64), MAX);
        assert_eq!(window.packets, 48);
        window.on_loss(Sequence(64), Sequence(112), MAX);
        assert_eq!(window.packets, 36);
    }

    #[test]
    fn a_standing_queue_reduces_the_window_to_its_initial_value_at_least() {
        let mut window = CongestionWindow::new(MAX, Sequence(0));
        window.on_ack(64, true, MAX);
        let mut rtt = Rtt::UNKNOWN;
        rtt.on_sample(Nanoseconds::from_ms(1));
        // The queue may take 7.5 ms: two thirds of the window would have taken that time.
        rtt.on_sample(Nanoseconds::from_us(12_750));
        let sizes = [0, 99, 100, 200].map(|packet| {
            window.on_long_queue(&rtt, Sequence(packet), Sequence(packet + 100), MAX);
            window.packets
        });
        assert_eq!(sizes, [85, 85, 64, 64]);
        window.on_timeout(Sequence(300), MAX);
        window.on_long_queue(&rtt, Sequence(300), Sequence(400), MAX);
        assert_eq!(window.packets, 32);
        let mut long = CongestionWindow::new(MAX, Sequence(0));
        long.on_ack(400, true, MAX);
        rtt.on_sample(Nanoseconds::from_ms(100));
        long.on_long_queue(&rtt, Sequence(0), Sequence(1), MAX);
        assert_eq!(long.packets, 232);
    }

    #[test]
    fn a_window_has_bounds() {
        let mut window = CongestionWindow::new(100, Sequence(0));
        window.on_ack(1_000, true, 100);
        assert_eq!(window.packets, 100);
        window.on_ack(1_000, false, 100);
        for round in 1..50 {
            window.on_timeout(Sequence(round), 100);
        }
        assert_eq!(window.packets, CongestionWindow::MIN_PACKETS);
        assert_eq!(CongestionWindow::new(2, Sequence(0)).packets, 2);
    }
}
