//! How late a member enters each of its calls.

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::control::Delay;

/// The delays of a member in a run, call by call, in nanoseconds. A member of a peer's program has
/// the same ones as a member of a group.
#[derive(Debug)]
pub struct Delays {
    delay: Delay,
    random: Pcg64,
}

impl Delays {
    /// `delay` is the member's own.
    pub fn new(delay: Delay, member: u32) -> Self {
        let seed = match delay {
            Delay::Random { seed, .. } => seed,
            Delay::OfProcess { .. } => 0,
        };
        Self { delay, random: Pcg64::seed_from_u64(seed ^ u64::from(member) << 32) }
    }
}

impl Iterator for Delays {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        Some(match self.delay {
            Delay::Random { max_ns, .. } => {
                let half = (max_ns / 2) as i64;
                let drawn = if half == 0 { 0 } else { self.random.random_range(-half..=half) };
                drawn.max(0) as u64
            }
            Delay::OfProcess { ns, .. } => ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_random_delays_are_none_and_the_others_are_up_to_half_the_range() {
        let delays = |member| Delays::new(Delay::Random { max_ns: 1_000, seed: 1 }, member).take(400);
        assert!(delays(1).eq(delays(1)) && !delays(1).eq(delays(2)));
        assert!(delays(1).all(|ns| ns <= 500));
        let none = delays(1).filter(|&ns| ns == 0).count();
        assert!((150..250).contains(&none), "{none}");
        assert!(Delays::new(Delay::Random { max_ns: 0, seed: 1 }, 1).take(3).eq([0; 3]));
        let process = Delay::OfProcess { process: 0, host: None, ns: 7 };
        assert!(Delays::new(process, 1).take(3).eq([7; 3]));
    }
}
