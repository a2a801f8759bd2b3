//! The range of an axis and its ticks.

use crate::figure::Scale;

/// Below this share of its values a range is taken to be a single value.
const SHARE_MIN: f64 = 1e-12;

/// An axis in positions (see [`Scale::position`]): equal distances are equal differences.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    scale: Scale,
    /// The position of the low end.
    pub low: f64,
    /// The position of the high end, above `low`.
    pub high: f64,
    /// Positions between the ends, evenly spaced, at least two.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// An axis that ends where its values end, with at most about `most` ticks inside.
    pub fn tight(values: impl Iterator<Item = f64>, scale: Scale, most: usize) -> Self {
        let (low, high) = ends(values.map(|value| scale.position(value)));
        let step = step(low, high, scale, most);
        let ticks = multiples((low / step).ceil(), (high / step).floor(), step);
        Self { scale, low, high, ticks: if ticks.len() < 2 { vec![low, high] } else { ticks } }
    }

    /// An axis that ends at ticks, with at most about `most` of them. A linear one includes zero, so that
    /// heights can be compared.
    pub fn rounded(values: impl Iterator<Item = f64>, scale: Scale, most: usize) -> Self {
        let (low, high) = ends(values.map(|value| scale.position(value)));
        let (low, high) = if scale == Scale::Linear { (low.min(0.0), high.max(0.0)) } else { (low, high) };
        let step = step(low, high, scale, most);
        let ticks = multiples((low / step).floor(), (high / step).ceil(), step);
        match ticks[..] {
            [low, .., high] => Self { scale, low, high, ticks },
            _ => Self { scale, low, high, ticks: vec![low, high] },
        }
    }

    /// Where `value` lies on the axis.
    pub fn position(&self, value: f64) -> f64 {
        self.scale.position(value)
    }

    /// The value at `position`, as text.
    pub fn label(&self, position: f64) -> String {
        label(self.scale.value(position))
    }
}

/// The value of a tick, as text.
pub(super) fn label(value: f64) -> String {
    // Twelve digits hide the rounding of ticks such as 3 * 0.1.
    let value = format!("{value:.11e}").parse::<f64>().unwrap_or_default();
    if value != 0.0 && !(1e-6..1e12).contains(&value.abs()) {
        return format!("{value:e}");
    }
    grouped(&value.to_string())
}

/// The lowest and the highest position, set apart if there is only one, or none.
fn ends(positions: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = positions.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), position| {
        (low.min(position), high.max(position))
    });
    if low > high {
        return (0.0, 1.0);
    }
    let magnitude = low.abs().max(high.abs());
    if high - low > (magnitude * SHARE_MIN).max(f64::MIN_POSITIVE / SHARE_MIN) {
        return (low, high);
    }
    let room = if magnitude > 1e-100 { magnitude / 2.0 } else { 0.5 };
    (low - room, high + room)
}

/// The distance between ticks: 1, 2 or 5 times a power of ten, or a whole number of doublings.
fn step(low: f64, high: f64, scale: Scale, most: usize) -> f64 {
    let least = (high - low) / most.max(1) as f64;
    match scale {
        Scale::Log2 => least.ceil(),
        Scale::Linear => {
            let unit = 10_f64.powf(least.log10().floor());
            [1.0, 2.0, 5.0]
                .into_iter()
                .map(|times| times * unit)
                .find(|step| *step >= least)
                .unwrap_or(10.0 * unit)
        }
    }
}

fn multiples(first: f64, last: f64, step: f64) -> Vec<f64> {
    let count = (last - first).max(-1.0) as usize;
    (0..=count).map(|i| (first + i as f64) * step).filter(|tick| *tick <= last * step).collect()
}

/// A decimal number with a comma between thousands.
fn grouped(number: &str) -> String {
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    let digits = whole.trim_start_matches('-').len();
    let mut text = String::new();
    for (i, c) in whole.chars().enumerate() {
        let left = whole.len() - i;
        if left < digits && left % 3 == 0 {
            text.push(',');
        }
        text.push(c);
    }
    text + fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|tick| axis.label(*tick)).collect()
    }

    #[test]
    fn a_rounded_axis_starts_at_zero_and_ends_at_a_tick() {
        let axis = Axis::rounded([3_000.0, 27_100.0].into_iter(), Scale::Linear, 4);
        assert_eq!(labels(&axis), ["0", "10,000", "20,000", "30,000"]);
        assert_eq!((axis.low, axis.high), (0.0, 30_000.0));
    }

    #[test]
    fn a_tight_axis_ends_at_its_values() {
        let axis = Axis::tight([1.0, 31.0].into_iter(), Scale::Linear, 7);
        assert_eq!((axis.low, axis.high), (1.0, 31.0));
        assert_eq!(labels(&axis), ["5", "10", "15", "20", "25", "30"]);
    }

    #[test]
    fn a_logarithmic_axis_has_ticks_at_powers_of_two() {
        let axis = Axis::tight([128.0, 2048.0].into_iter(), Scale::Log2, 8);
        assert_eq!(labels(&axis), ["128", "256", "512", "1,024", "2,048"]);
        assert_eq!(labels(&Axis::rounded([0.3, 5.0].into_iter(), Scale::Log2, 3)), ["0.25", "1", "4", "16"]);
    }

    #[test]
    fn fractions_and_negative_numbers_are_written_without_rounding_noise() {
        let axis = Axis::rounded([-0.31, 0.62].into_iter(), Scale::Linear, 5);
        assert_eq!(labels(&axis), ["-0.4", "-0.2", "0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(axis.label(-1234.5), "-1,234.5");
        assert_eq!(axis.label(-123.0), "-123");
    }

    #[test]
    fn every_set_of_values_gives_an_axis_with_a_length_and_few_ticks() {
        let sets: [&[f64]; 9] = [
            &[],
            &[0.0],
            &[7.0],
            &[1e300, -1e300],
            &[1e-300, 2e-300],
            &[1e300],
            &[5e-324],
            &[1e15, 1e15 + 1.0],
            &[1.0, 1.0 + 1e-15],
        ];
        for set in sets {
            for axis in [
                Axis::tight(set.iter().copied(), Scale::Linear, 5),
                Axis::rounded(set.iter().copied(), Scale::Linear, 5),
            ] {
                assert!(axis.high > axis.low && (axis.high - axis.low).is_finite(), "{set:?} {axis:?}");
                assert!((2..=12).contains(&axis.ticks.len()), "{set:?} {axis:?}");
                assert!(axis.ticks.iter().all(|tick| tick.is_finite()), "{set:?} {axis:?}");
            }
        }
    }
}
