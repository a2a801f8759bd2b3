//! Batch means: confidence interval and growth of the backlog.

/// The number of batches of equal length in a measurement window.
pub(super) const BATCHES: usize = 20;

/// The 97.5 % quantile of Student's t with 19 degrees of freedom: for a two-sided 95 % interval
/// over 20 batches.
const T_975_19: f64 = 2.093;

/// The 99.9 % quantile of Student's t with 18 degrees of freedom: for the slope of a line through
/// 20 points.
const T_999_18: f64 = 3.610;

/// The minimum growth that counts, as a share of the multicasts that have started.
const GROWTH_SHARE_MIN: f64 = 0.02;

/// The maximum lag-1 autocorrelation that is corrected for. Beyond it, 20 batches are too few to
/// tell.
const CORRELATION_MAX: f64 = 0.9;

/// Half the width of the 95 % confidence interval of a mean, from the means of the batches (Law and
/// Kelton: Simulation modeling and analysis, batch means). Near saturation adjacent batches are
/// correlated, so the standard error is corrected by [`inflation`].
pub(super) fn confidence_95(means: &[f64; BATCHES]) -> f64 {
    let count = BATCHES as f64;
    let mean = means.iter().sum::<f64>() / count;
    let errors = means.map(|batch| batch - mean);
    let variance = errors.iter().map(|error| error * error).sum::<f64>() / (count - 1.0);
    // Twenty batches estimate a positive correlation too low, by (1 + 3 r) / n on average (Marriott
    // and Pope: Bias in the estimation of autocorrelations, 1954).
    let correlation = correlation(&errors);
    let unbiased = if correlation > 0.0 { (correlation * count + 1.0) / (count - 3.0) } else { 0.0 };
    T_975_19 * libm::sqrt(variance / count * inflation(unbiased.min(CORRELATION_MAX)))
}

/// The lag-1 autocorrelation of deviations from a mean or a line.
fn correlation(errors: &[f64]) -> f64 {
    let squares: f64 = errors.iter().map(|error| error * error).sum();
    let products: f64 = errors.windows(2).map(|pair| pair[0] * pair[1]).sum();
    if squares > 0.0 { products / squares } else { 0.0 }
}

/// The factor by which the variance of a mean of correlated values exceeds that of independent
/// ones, for a first-order autoregressive process with this coefficient: (1 + r) / (1 - r) (Bayley
/// and Hammersley: The "effective" number of independent observations in an autocorrelated time
/// series, 1946).
fn inflation(correlation: f64) -> f64 {
    (1.0 + correlation) / (1.0 - correlation)
}

/// Whether the backlog grows, given its mean in each batch and the number of multicasts that have
/// started in the window.
///
/// A fabric that sustains the load has as many multicasts in flight at the end as at the beginning,
/// except for random variation. The test is linear regression over the batches. The backlog grows
/// if the line rises by more than 2 % of the multicasts that have started (and by more than one
/// multicast), and if the slope is more than 3.61 standard errors, which chance exceeds once in a
/// thousand runs. Where multicasts last longer than a batch, the residuals of adjacent batches are
/// correlated. So the standard error is corrected by [`inflation`], with the correlation bounded to
/// 0..0.9.
pub(super) fn backlog_grows(backlogs: &[f64; BATCHES], begun: u64) -> bool {
    let count = BATCHES as f64;
    let centre = (count - 1.0) / 2.0;
    let mean = backlogs.iter().sum::<f64>() / count;
    let places = || (0..BATCHES).map(|place| place as f64 - centre);
    let width: f64 = places().map(|place| place * place).sum();
    let slope = places().zip(backlogs).map(|(place, backlog)| place * (backlog - mean)).sum::<f64>() / width;
    let errors: Vec<f64> =
        places().zip(backlogs).map(|(place, backlog)| backlog - mean - slope * place).collect();
    let squares: f64 = errors.iter().map(|error| error * error).sum();
    let correlation = correlation(&errors).clamp(0.0, CORRELATION_MAX);
    let variance = squares / (count - 2.0) * inflation(correlation);
    let growth = slope * count;
    growth > f64::max(GROWTH_SHARE_MIN * begun as f64, 1.0) && slope > T_999_18 * libm::sqrt(variance / width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_confidence_interval_follows_the_spread_of_the_batches() {
        let mut means = [10.0; BATCHES];
        assert!(confidence_95(&means).abs() < 1e-12);
        // Half of them 1 below, half 1 above: variance 20/19.
        for (index, mean) in means.iter_mut().enumerate() {
            *mean += if index % 2 == 0 { 1.0 } else { -1.0 };
        }
        let expected = 2.093 * (1.0_f64 / 19.0).sqrt();
        assert!((confidence_95(&means) - expected).abs() < 1e-12);
        // The same spread in two long runs: a correlation of 18/20, corrected for as 0.9.
        let halves: [f64; BATCHES] = std::array::from_fn(|index| if index < 10 { 9.0 } else { 11.0 });
        assert!((confidence_95(&halves) - expected * 19.0_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_backlog_grows_if_the_trend_is_significant_and_large_enough() {
        let line = |slope: f64, noise: f64| {
            std::array::from_fn(|index| {
                100.0 + slope * index as f64 + if index % 2 == 0 { noise } else { -noise }
            })
        };
        assert!(backlog_grows(&line(5.0, 1.0), 1000));
        assert!(
            !backlog_grows(&line(0.5, 0.1), 1000),
            "a growth by 1 % of the multicasts is below the threshold"
        );
        assert!(!backlog_grows(&line(5.0, 100.0), 1000), "the slope is within the noise");
        assert!(!backlog_grows(&line(-5.0, 1.0), 1000));
        assert!(!backlog_grows(&line(0.0, 0.0), 0));
    }

    #[test]
    fn correlated_batches_count_as_fewer_independent_ones() {
        let line = |period: usize| {
            std::array::from_fn(|index| {
                let side = if (index / period).is_multiple_of(2) { 1.0 } else { -1.0 };
                100.0 + 5.0 * index as f64 + 25.0 * side
            })
        };
        assert!(backlog_grows(&line(1), 1000));
        assert!(!backlog_grows(&line(3), 1000));
    }
}
