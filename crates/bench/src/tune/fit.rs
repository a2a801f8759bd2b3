//! Costs that are not negative and fit a number of samples best.

/// A sample: how often each cost counts in it, and its value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample<const N: usize> {
    pub counts: [f64; N],
    /// In microseconds. A difference of measurements may be negative.
    pub value: f64,
}

/// The costs in microseconds, none of them negative, with the least sum of squared relative errors.
/// A cost that no sample tells apart from others is 0.
///
/// The problem has a few costs only, so each subset of them is fitted by the normal equations, and
/// the best one without a negative cost is taken: one subset at least has none, the empty one.
pub fn fit<const N: usize>(samples: &[Sample<N>]) -> [f64; N] {
    let fits = (0..1_usize << N).filter_map(|subset| {
        let chosen: Vec<usize> = (0..N).filter(|cost| subset & 1 << cost != 0).collect();
        let costs = fit_chosen(samples, &chosen)?;
        costs.iter().all(|&cost| cost >= 0.0).then(|| (error(samples, &costs), chosen.len(), costs))
    });
    let best = fits.min_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    best.map_or([0.0; N], |(_, _, costs)| costs)
}

/// Differences of measurements are no more exact than that, in microseconds.
const NOISE_US: f64 = 10.0;

/// The relative weight of a sample: small values are mostly noise, and do not outweigh others.
fn weight<const N: usize>(sample: &Sample<N>) -> f64 {
    1.0 / sample.value.abs().max(NOISE_US)
}

fn error<const N: usize>(samples: &[Sample<N>], costs: &[f64; N]) -> f64 {
    let of_sample = |sample: &Sample<N>| {
        let estimate: f64 = sample.counts.iter().zip(costs).map(|(count, cost)| count * cost).sum();
        (weight(sample) * (estimate - sample.value)).powi(2)
    };
    samples.iter().map(of_sample).sum()
}

/// The least squares of the chosen costs; the others are 0. None if the samples do not tell them
/// apart.
fn fit_chosen<const N: usize>(samples: &[Sample<N>], chosen: &[usize]) -> Option<[f64; N]> {
    // Each column is scaled to length 1, so that costs of different units are compared.
    let column = |cost: usize| samples.iter().map(move |sample| weight(sample) * sample.counts[cost]);
    let lengths: Vec<f64> =
        chosen.iter().map(|&cost| column(cost).map(|part| part * part).sum::<f64>().sqrt()).collect();
    if lengths.iter().any(|&length| length <= 0.0) {
        return None;
    }
    let product = |one: usize, other: usize| {
        let sum: f64 = column(chosen[one]).zip(column(chosen[other])).map(|(one, other)| one * other).sum();
        sum / (lengths[one] * lengths[other])
    };
    let of_value = |one: usize| {
        let sum: f64 =
            column(chosen[one]).zip(samples).map(|(part, sample)| part * weight(sample) * sample.value).sum();
        sum / lengths[one]
    };
    let size = chosen.len();
    let rows = (0..size)
        .map(|row| (0..size).map(|other| product(row, other)).chain([of_value(row)]).collect::<Vec<f64>>());
    let solved = solve(rows.collect())?;
    let mut costs = [0.0; N];
    for ((&cost, scaled), length) in chosen.iter().zip(solved).zip(&lengths) {
        costs[cost] = scaled / length;
    }
    Some(costs)
}

/// The least pivot of normal equations whose columns have length 1.
const PIVOT_MIN: f64 = 1e-9;

/// Solves linear equations, each with its right side last, by elimination with the largest pivots.
fn solve(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let size = rows.len();
    for column in 0..size {
        let best = (column..size)
            .max_by(|&one, &other| rows[one][column].abs().total_cmp(&rows[other][column].abs()))?;
        rows.swap(column, best);
        if rows[column][column].abs() < PIVOT_MIN {
            return None;
        }
        let pivot = rows[column].clone();
        for row in (0..size).filter(|&row| row != column) {
            let factor = rows[row][column] / pivot[column];
            for (value, of_pivot) in rows[row].iter_mut().zip(&pivot) {
                *value -= factor * of_pivot;
            }
        }
    }
    Some((0..size).map(|row| rows[row][size] / rows[row][row]).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exact_samples_give_their_costs_back(costs in prop::array::uniform3(0.0..100.0_f64)) {
            let samples: Vec<Sample<3>> = [(1.0, 0.1), (2.0, 0.5), (3.0, 4.0), (9.0, 5.0), (30.0, 99.0)]
                .into_iter()
                .map(|(pieces, kb)| [1.0, pieces, kb])
                .map(|counts| Sample { counts, value: counts.iter().zip(costs).map(|(count, cost)| count * cost).sum() })
                .collect();
            prop_assume!(samples.iter().all(|sample| sample.value > 0.0));
            for (found, cost) in fit(&samples).into_iter().zip(costs) {
                prop_assert!((found - cost).abs() < 1e-6 * (1.0 + cost), "{} {}", found, cost);
            }
        }

        #[test]
        fn no_cost_is_negative(values in prop::collection::vec(0.0..100.0_f64, 0..6)) {
            let sample = |(place, &value): (usize, &f64)| Sample { counts: [1.0, place as f64], value };
            let samples: Vec<Sample<2>> = values.iter().enumerate().map(sample).collect();
            prop_assert!(fit(&samples).iter().all(|cost| cost.is_finite() && *cost >= 0.0));
        }
    }

    #[test]
    fn a_falling_line_is_its_mean() {
        let samples = [(0.0, 20.0), (1.0, 19.0), (2.0, 18.0)];
        let samples = samples.map(|(place, value)| Sample { counts: [1.0, place], value });
        let [constant, slope] = fit(&samples);
        assert!(slope < 1e-9, "{slope}");
        assert!((18.0..20.0).contains(&constant), "{constant}");
    }

    #[test]
    fn a_difference_that_is_lost_in_noise_does_not_outweigh_others() {
        let samples = [(1.0, 0.0), (10.0, 100.0), (20.0, 200.0)];
        let samples = samples.map(|(place, value)| Sample { counts: [place], value });
        let [cost] = fit(&samples);
        assert!((5.0..10.0).contains(&cost), "{cost}");
    }

    #[test]
    fn costs_that_are_not_told_apart_are_one() {
        let samples = [1.0, 2.0].map(|count| Sample { counts: [count, count], value: 3.0 * count });
        let [one, other] = fit(&samples);
        assert!((one + other - 3.0).abs() < 1e-9 && one * other == 0.0);
    }
}
