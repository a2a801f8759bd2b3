//! What batches of a measurement say.

/// How many batches of equal length a measurement is cut into.
pub(super) const BATCHES: usize = 20;

/// The 97.5 % quantile of Student's t with 19 degrees of freedom: for a two-sided 95 % interval over 20 batches.
const T_975_19: f64 = 2.093;

/// The 99.9 % quantile of Student's t with 18 degrees of freedom: for the slope of a line through 20 points.
const T_999_18: f64 = 3.610;

/// The least growth that counts as such, as a share of what has begun.
const GROWTH_SHARE_MIN: f64 = 0.02;

/// Half the width of the 95 % confidence interval of a mean, from the means of the batches (Law and Kelton: Simulation
/// modeling and analysis, batch means).
pub(super) fn confidence_95(means: &[f64; BATCHES]) -> f64 {
    let mean = means.iter().sum::<f64>() / BATCHES as f64;
    let variance =
        means.iter().map(|batch| (batch - mean) * (batch - mean)).sum::<f64>() / (BATCHES - 1) as f64;
    T_975_19 * libm::sqrt(variance / BATCHES as f64)
}

/// Whether a backlog grows, from its mean in each batch and how many multicasts have begun in all of them.
///
/// A fabric that keeps up has as many multicasts under way at the end as at the beginning, but for chance. So a straight
/// line is laid through the batches. The backlog grows if the line rises by more than 2 % of what has begun (and by more
/// than one multicast), and more steeply than chance would let it in one of a thousand runs: its slope is more than 3.61 standard errors.
pub(super) fn backlog_grows(backlogs: &[f64; BATCHES], begun: u64) -> bool {
    let count = BATCHES as f64;
    let centre = (count - 1.0) / 2.0;
    let mean = backlogs.iter().sum::<f64>() / count;
    let places = || (0..BATCHES).map(|place| place as f64 - centre);
    let width: f64 = places().map(|place| place * place).sum();
    let slope = places().zip(backlogs).map(|(place, backlog)| place * (backlog - mean)).sum::<f64>() / width;
    let off = |(place, backlog): (f64, &f64)| {
        let error = backlog - mean - slope * place;
        error * error
    };
    let variance = places().zip(backlogs).map(off).sum::<f64>() / (count - 2.0);
    let growth = slope * count;
    growth > f64::max(GROWTH_SHARE_MIN * begun as f64, 1.0) && slope > T_999_18 * libm::sqrt(variance / width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_covers_the_spread_of_the_batches() {
        let mut means = [10.0; BATCHES];
        assert!(confidence_95(&means).abs() < 1e-12);
        // Half of them 1 below, half 1 above: variance 20/19.
        for (index, mean) in means.iter_mut().enumerate() {
            *mean += if index % 2 == 0 { 1.0 } else { -1.0 };
        }
        let expected = 2.093 * (1.0_f64 / 19.0).sqrt();
        assert!((confidence_95(&means) - expected).abs() < 1e-12);
    }

    #[test]
    fn a_backlog_grows_if_it_does_so_steadily_and_by_more_than_a_little() {
        let line = |slope: f64, noise: f64| {
            std::array::from_fn(|index| {
                100.0 + slope * index as f64 + if index % 2 == 0 { noise } else { -noise }
            })
        };
        assert!(backlog_grows(&line(5.0, 1.0), 1000));
        assert!(!backlog_grows(&line(0.5, 0.1), 1000), "1 % of what has begun is little");
        assert!(!backlog_grows(&line(5.0, 100.0), 1000), "that may be chance");
        assert!(!backlog_grows(&line(-5.0, 1.0), 1000));
        assert!(!backlog_grows(&line(0.0, 0.0), 0));
    }
}
