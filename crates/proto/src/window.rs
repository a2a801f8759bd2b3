//! How many packets may be under way to one child.

use treecast_wire::Sequence;

use crate::lent::LentWindow;

/// A window that opens while packets arrive and closes a little when some are lost.
///
/// It doubles a round trip until the first loss, and then grows by an eighth; a round trip with losses takes a quarter, one
/// in which nothing came back takes half. Growth in proportion lets it live with losses that have nothing to do with
/// congestion, which a window that grows by one packet does not (Mathis et al., 1997: at 1 % such a window is 12 packets).
#[derive(Debug, Clone)]
pub(crate) struct Window {
    packets: u32,
    packets_max: u32,
    /// Eighths of a packet that are gained and not yet counted.
    eighths: u32,
    /// Whether nothing has been lost yet.
    is_opening: bool,
    /// Losses of packets before this one have been answered.
    answered: Sequence,
}

impl Window {
    /// As many packets as a window begins with.
    pub const FIRST: u32 = 64;
    /// As many packets as are always allowed.
    pub const LEAST: u32 = 8;

    /// A window to a child whose next packet is `next`, never above `packets_max`.
    pub fn new(packets_max: u32, next: Sequence) -> Self {
        Self {
            packets: Self::FIRST.min(packets_max),
            packets_max,
            eighths: 0,
            is_opening: true,
            answered: next,
        }
    }

    /// How many packets may be under way.
    pub const fn packets(&self) -> u32 {
        self.packets
    }

    /// So many packets have arrived; `wants_more` if the window kept others back, and there is no queue on the way.
    pub fn arrived(&mut self, packets: u32, wants_more: bool) {
        if !wants_more {
            return;
        }
        self.eighths += if self.is_opening { 8 * packets } else { packets };
        self.packets = self.packets_max.min(self.packets + self.eighths / 8);
        self.eighths %= 8;
    }

    /// The packet has been lost, when all before `sent` had been sent. Losses of one round trip count once.
    pub fn lost(&mut self, packet: Sequence, sent: Sequence) {
        if packet.is_before(self.answered) {
            return;
        }
        self.close_to(self.packets / 4 * 3);
        self.answered = sent;
    }

    /// Nothing has come back for as long as an answer may take.
    pub fn silent(&mut self, sent: Sequence) {
        self.close_to(self.packets / 2);
        self.answered = sent;
    }

    pub const fn lend(&self) -> LentWindow {
        let Self { packets, eighths, is_opening, answered, .. } = *self;
        LentWindow { packets, eighths, is_opening, answered }
    }

    pub const fn take_back(&mut self, lent: LentWindow) {
        let LentWindow { packets, eighths, is_opening, answered } = lent;
        (self.packets, self.eighths, self.is_opening, self.answered) =
            (packets, eighths, is_opening, answered);
    }

    fn close_to(&mut self, packets: u32) {
        self.packets = packets.max(Self::LEAST).min(self.packets_max);
        self.is_opening = false;
        self.eighths = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_doubles_and_then_grows_by_an_eighth() {
        let mut window = Window::new(1_000, Sequence(0));
        window.arrived(64, true);
        assert_eq!(window.packets(), 128);
        window.lost(Sequence(100), Sequence(192));
        assert_eq!(window.packets(), 96);
        window.arrived(96, true);
        assert_eq!(window.packets(), 108);
    }

    #[test]
    fn losses_of_one_round_trip_count_once() {
        let mut window = Window::new(1_000, Sequence(0));
        window.lost(Sequence(5), Sequence(64));
        window.lost(Sequence(9), Sequence(64));
        assert_eq!(window.packets(), 48);
        window.lost(Sequence(64), Sequence(112));
        assert_eq!(window.packets(), 36);
    }

    #[test]
    fn a_window_has_bounds() {
        let mut window = Window::new(100, Sequence(0));
        window.arrived(1_000, true);
        assert_eq!(window.packets(), 100);
        window.arrived(1_000, false);
        for round in 1..50 {
            window.silent(Sequence(round));
        }
        assert_eq!(window.packets(), Window::LEAST);
        assert_eq!(Window::new(2, Sequence(0)).packets(), 2);
    }
}
