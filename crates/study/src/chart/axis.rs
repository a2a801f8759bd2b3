//! The range of an axis and its ticks.

use crate::figure::Scale;

/// Below this share of its values a range is taken to be a single value.
const SHARE_MIN: f64 = 1e-12;
/// The maximum number of ticks of an axis whose labels stand side by side.
const TICKS_MAX: usize = 8;
/// The gap between such labels, in letters.
const GAP: f64 = 1.5;
/// A logarithmic axis that reaches below it has ticks at powers of ten: there powers of two are not
/// short numbers.
const SHORT_MIN: f64 = 0.125;
/// Significant digits of other labels below 1 on a logarithmic axis.
const DIGITS: i32 = 3;
/// The largest exponent of a power of ten that a double holds exactly.
const EXACT_EXPONENT: i32 = 22;

/// An axis in positions (see [`Scale::position`]): equal distances are equal differences.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    scale: Scale,
    /// The position of the low end.
    pub low: f64,
    /// The position of the high end, above `low`.
    pub high: f64,
    /// Positions between the ends, evenly spaced, at least one.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// An axis that ends where its values end, with at most about `most` ticks inside: at the
    /// values themselves where these are few and evenly spaced.
    pub fn tight(values: &[f64], scale: Scale, most: usize) -> Self {
        let at = positions(values, scale);
        let (low, high) = ends(&at);
        let is_one = at.len() == 1;
        if is_one
            || (at.len() <= most && (at.first(), at.last()) == (Some(&low), Some(&high)) && are_even(&at))
        {
            return Self { scale, low, high, ticks: at };
        }
        let step = step(low, high, Unit::of(values, scale), most);
        let ticks = multiples((low / step).ceil(), (high / step).floor(), step);
        Self { scale, low, high, ticks: if ticks.len() < 2 { vec![low, high] } else { ticks } }
    }

    /// As [`tight`](Self::tight), with as many ticks as have room for their labels side by side on
    /// a line of `letters` letters.
    pub fn side_by_side(values: &[f64], scale: Scale, letters: f64) -> Self {
        let axes = (1..=TICKS_MAX).rev().map(|most| Self::tight(values, scale, most));
        let mut with_room = axes.filter(|axis| axis.has_room(letters));
        with_room.next().unwrap_or_else(|| Self::tight(values, scale, 1))
    }

    /// An axis that ends at ticks, with at most about `most` of them. A linear one includes zero,
    /// so that heights can be compared.
    pub fn rounded(values: &[f64], scale: Scale, most: usize) -> Self {
        let (low, high) = ends(&positions(values, scale));
        let (low, high) = if scale == Scale::Linear { (low.min(0.0), high.max(0.0)) } else { (low, high) };
        let step = step(low, high, Unit::of(values, scale), most);
        let ticks = multiples((low / step).floor(), (high / step).ceil(), step);
        match ticks[..] {
            [low, .., high] => Self { scale, low, high, ticks },
            _ => Self { scale, low, high, ticks: vec![low, high] },
        }
    }

    /// The ticks, each with its value and its label.
    pub fn labelled(&self) -> impl Iterator<Item = (f64, String)> {
        self.ticks.iter().map(|tick| (unrounded(self.scale.value(*tick)), self.label(*tick)))
    }

    fn has_room(&self, letters: f64) -> bool {
        let letters_each = letters / (self.high - self.low);
        let half = |tick| self.label(tick).chars().count() as f64 / 2.0;
        let room = |from: f64, to: f64| (to - from) * letters_each;
        self.ticks.windows(2).all(|pair| room(pair[0], pair[1]) >= half(pair[0]) + half(pair[1]) + GAP)
    }

    /// The position of `value` on the axis.
    pub fn position(&self, value: f64) -> f64 {
        self.scale.position(value)
    }

    /// The value at `position`, as text.
    pub fn label(&self, position: f64) -> String {
        let value = self.scale.value(position);
        label(if self.scale == Scale::Log2 && value < 1.0 { significant(value, DIGITS) } else { value })
    }
}

/// Whether a logarithmic axis of values has its ticks at powers of ten, not of two.
pub(super) fn is_decimal(values: &[f64]) -> bool {
    values.iter().any(|value| *value < SHORT_MIN)
}

/// The value of a tick, as text.
pub(super) fn label(value: f64) -> String {
    let value = unrounded(value);
    if value != 0.0 && !(1e-6..1e12).contains(&value.abs()) {
        return format!("{value:e}");
    }
    grouped(&value.to_string())
}

/// `value` to this number of significant digits; unchanged where the power of ten that this takes
/// is not exact.
fn significant(value: f64, digits: i32) -> f64 {
    // Saturates for 0, which has no logarithm.
    let places = (digits - 1).saturating_sub(value.abs().log10().floor() as i32);
    if places.saturating_abs() > EXACT_EXPONENT {
        return value;
    }
    // A quotient or product of two exact numbers is the double nearest to the decimal number (IEEE
    // 754, clause 4.3).
    let power = 10_f64.powi(places.abs());
    if places < 0 {
        (value / power).round_ties_even() * power
    } else {
        (value * power).round_ties_even() / power
    }
}

/// `value` without the rounding of ticks such as 3 * 0.1.
fn unrounded(value: f64) -> f64 {
    significant(value, 12)
}

/// The positions of the values, each once, in order.
fn positions(values: &[f64], scale: Scale) -> Vec<f64> {
    let mut positions: Vec<f64> = values.iter().map(|value| scale.position(*value)).collect();
    positions.sort_by(f64::total_cmp);
    positions.dedup();
    positions
}

/// Whether the distances between neighbours are equal.
fn are_even(positions: &[f64]) -> bool {
    let mut gaps = positions.windows(2).map(|pair| pair[1] - pair[0]);
    let first = gaps.next().unwrap_or_default();
    gaps.all(|gap| (gap - first).abs() <= first * 1e-6)
}

/// The ends of positions in order, set apart if there is only one, or none.
fn ends(positions: &[f64]) -> (f64, f64) {
    let (Some(&low), Some(&high)) = (positions.first(), positions.last()) else { return (0.0, 1.0) };
    let magnitude = low.abs().max(high.abs());
    if high - low > (magnitude * SHARE_MIN).max(f64::MIN_POSITIVE / SHARE_MIN) {
        return (low, high);
    }
    let room = if magnitude > 1e-100 { magnitude / 2.0 } else { 0.5 };
    (low - room, high + room)
}

/// The unit of the distance between ticks.
#[derive(Clone, Copy)]
enum Unit {
    /// 1, 2 or 5 times any power of ten.
    Any,
    /// 1, 2 or 5 times a power of ten from 1: the values are whole.
    Whole,
    /// A distance in positions.
    Of(f64),
}

impl Unit {
    fn of(values: &[f64], scale: Scale) -> Self {
        match scale {
            Scale::Log2 if is_decimal(values) => Self::Of(10_f64.log2()),
            Scale::Log2 => Self::Of(1.0),
            Scale::Linear if values.iter().all(|value| value.fract() == 0.0) => Self::Whole,
            Scale::Linear => Self::Any,
        }
    }
}

/// The distance between ticks.
fn step(low: f64, high: f64, unit: Unit, most: usize) -> f64 {
    let least = (high - low) / most.max(1) as f64;
    let round = |least: f64| {
        let power = 10_f64.powf(least.log10().floor());
        let steps = [1.0, 2.0, 5.0].into_iter().map(|times| times * power);
        steps.into_iter().find(|step| *step >= least).unwrap_or(10.0 * power)
    };
    match unit {
        Unit::Of(distance) => (least / distance).ceil() * distance,
        Unit::Whole => round(least.max(1.0)),
        Unit::Any => round(least),
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
    use proptest::prelude::*;

    use super::*;

    /// The text of the decimal number that is nearest to the exact value of the double.
    fn printed(value: f64, digits: i32) -> String {
        let decimal: f64 = format!("{value:.*e}", digits as usize - 1).parse().unwrap();
        decimal.to_string()
    }

    proptest! {
        #[test]
        fn ticks_have_no_rounding_noise(
            number in -999_999_999_999_i64..=999_999_999_999,
            exponent in -11..=22,
            noise in -1e-14..1e-14,
        ) {
            let value = number as f64 * 10_f64.powi(exponent) * (1.0 + noise);
            let nearest: f64 = format!("{number}e{exponent}").parse().unwrap();
            prop_assert_eq!(unrounded(value).to_string(), nearest.to_string());
            prop_assert_eq!(unrounded(value).to_string(), printed(value, 12));
        }

        #[test]
        fn few_digits_are_those_of_the_exact_value(number in 1.0..10.0, exponent in -20..=24) {
            let value = number * 10_f64.powi(exponent);
            prop_assert_eq!(significant(value, DIGITS).to_string(), printed(value, DIGITS));
        }
    }

    #[test]
    fn halves_are_rounded_to_even_digits() {
        for exponent in -64..64 {
            let value = f64::from(exponent).exp2();
            assert_eq!(significant(value, DIGITS).to_string(), printed(value, DIGITS));
        }
        assert_eq!(significant(0.03125, DIGITS).to_string(), "0.0312");
    }

    #[test]
    fn numbers_without_an_exact_power_of_ten_are_unchanged() {
        for value in [0.0, 5e-324, -1e-300, 1e300, f64::MAX, f64::INFINITY] {
            assert_eq!(unrounded(value).to_bits(), value.to_bits());
        }
    }

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks.iter().map(|tick| axis.label(*tick)).collect()
    }

    #[test]
    fn a_rounded_axis_starts_at_zero_and_ends_at_a_tick() {
        let axis = Axis::rounded(&[3_000.0, 27_100.0], Scale::Linear, 4);
        assert_eq!(labels(&axis), ["0", "10,000", "20,000", "30,000"]);
        assert_eq!((axis.low, axis.high), (0.0, 30_000.0));
    }

    #[test]
    fn a_tight_axis_ends_at_its_values() {
        let axis = Axis::tight(&[1.0, 2.0, 31.0], Scale::Linear, 7);
        assert_eq!((axis.low, axis.high), (1.0, 31.0));
        assert_eq!(labels(&axis), ["5", "10", "15", "20", "25", "30"]);
    }

    #[test]
    fn whole_numbers_have_ticks_at_whole_numbers_and_at_themselves_where_they_are_few_and_even() {
        let labels_of = |values: &[f64], most| labels(&Axis::tight(values, Scale::Linear, most));
        assert_eq!(labels_of(&[2.0, 3.0, 5.0], 8), ["2", "3", "4", "5"]);
        assert_eq!(labels_of(&[3.0, 5.0, 7.0, 9.0], 8), ["3", "5", "7", "9"]);
        assert_eq!(labels_of(&[2.5, 2.7, 3.0], 3), ["2.6", "2.8", "3"]);
        assert_eq!(labels_of(&[1.0], 8), ["1"]);
        assert_eq!(labels(&Axis::rounded(&[1.0, 3.0], Scale::Linear, 7)), ["0", "1", "2", "3"]);
    }

    #[test]
    fn a_logarithmic_axis_has_ticks_at_powers_of_two() {
        let axis = Axis::tight(&[128.0, 150.0, 2048.0], Scale::Log2, 8);
        assert_eq!(labels(&axis), ["128", "256", "512", "1,024", "2,048"]);
        assert_eq!(labels(&Axis::rounded(&[0.3, 5.0], Scale::Log2, 3)), ["0.25", "1", "4", "16"]);
    }

    #[test]
    fn a_logarithmic_axis_of_small_values_has_ticks_at_short_numbers() {
        let axis = Axis::rounded(&[0.0009, 0.5, 3.0], Scale::Log2, 7);
        assert_eq!(labels(&axis), ["0.0001", "0.001", "0.01", "0.1", "1", "10"]);
        assert_eq!(
            labels(&Axis::rounded(&[0.0009, 3000.0], Scale::Log2, 4)),
            ["0.0001", "0.01", "1", "100", "10,000"]
        );
        let between = Axis::tight(&[1.0 / 1024.0, 0.005, 0.0075], Scale::Log2, 2);
        assert_eq!(labels(&between), ["0.000977", "0.0075"]);
    }

    #[test]
    fn labels_side_by_side_have_room() {
        let values = [0.0, 100_000.0, 250_000.0, 800_000.0];
        let count = |letters| Axis::side_by_side(&values, Scale::Linear, letters).ticks.len();
        assert_eq!((count(100.0), count(40.0), count(20.0)), (9, 5, 2));
    }

    #[test]
    fn fractions_and_negative_numbers_are_written_without_rounding_noise() {
        let axis = Axis::rounded(&[-0.31, 0.62], Scale::Linear, 5);
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
            for axis in [Axis::tight(set, Scale::Linear, 5), Axis::rounded(set, Scale::Linear, 5)] {
                assert!(axis.high > axis.low && (axis.high - axis.low).is_finite(), "{set:?} {axis:?}");
                assert!((1..=12).contains(&axis.ticks.len()), "{set:?} {axis:?}");
                assert!(axis.ticks.iter().all(|tick| tick.is_finite()), "{set:?} {axis:?}");
            }
        }
    }
}
