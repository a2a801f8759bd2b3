//! The search for the load at which a scheme saturates.

use crate::outcome::Status;

/// A load that was tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SaturationPoint {
    /// The offered load in flits/host/cycle.
    pub offered_load: f64,
    /// How the run ended.
    pub status: Status,
    /// The mean latency in cycles, if a multicast was measured.
    pub latency_mean_cycles: Option<f64>,
}

/// The load at which a scheme saturates.
#[derive(Debug, Clone, PartialEq)]
pub struct Saturation {
    /// The highest offered load that was sustained, in flits/host/cycle; `None` if no load tried
    /// was sustained, or if a run was so light that no multicast was measured.
    pub offered_load: Option<f64>,
    /// All loads tried, in order.
    pub points: Vec<SaturationPoint>,
}

impl Saturation {
    /// The run at the highest load that was sustained.
    pub fn found(&self) -> Option<&SaturationPoint> {
        self.points.iter().find(|point| Some(point.offered_load) == self.offered_load)
    }
}

/// The maximum number of times that the load is halved in search of one that is sustained.
const HALVINGS_MAX: u32 = 24;

/// Searches for the highest sustained load up to `load_max`: halves the load until it is sustained,
/// then bisects until the bracket is no wider than `precision` times its lower end. Needs a few
/// more probes than log2(1 / precision); at most 24 halvings, and as many bisections as the
/// precision of a double allows.
///
/// # Errors
/// The first error of a probe.
pub(super) fn search<E>(
    load_max: f64,
    precision: f64,
    mut probe: impl FnMut(f64) -> Result<SaturationPoint, E>,
) -> Result<Saturation, E> {
    let mut points = Vec::new();
    let mut status = |load: f64| -> Result<Status, E> {
        let point = probe(load)?;
        points.push(point);
        Ok(point.status)
    };
    let mut high = load_max;
    if status(high)? == Status::Complete {
        return Ok(Saturation { offered_load: Some(high), points });
    }
    let mut low = None;
    for _ in 0..HALVINGS_MAX {
        let half = high / 2.0;
        match status(half)? {
            Status::Complete => low = Some(half),
            Status::Saturated | Status::Deadlocked => {
                high = half;
                continue;
            }
            Status::Incomplete => {}
        }
        break;
    }
    if let Some(low) = &mut low {
        while high - *low > precision * *low {
            let middle = f64::midpoint(*low, high);
            if status(middle)? == Status::Complete {
                *low = middle;
            } else {
                high = middle;
            }
        }
    }
    Ok(Saturation { offered_load: low, points })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(threshold: f64, load_max: f64, precision: f64) -> Saturation {
        search(load_max, precision, |load| {
            let status = if load <= threshold { Status::Complete } else { Status::Saturated };
            Ok::<_, ()>(SaturationPoint { offered_load: load, status, latency_mean_cycles: None })
        })
        .unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn the_highest_load_that_is_sustained_is_found(
            threshold in 1e-5..2.0_f64,
            load_max in 0.01..1.0_f64,
            precision in 0.001..0.2_f64,
        ) {
            let saturation = found(threshold, load_max, precision);
            let load = saturation.offered_load.unwrap();
            let most = threshold.min(load_max);
            prop_assert!(load <= most && most <= load * (1.0 + precision));
            let bisections = (1.0 / precision).log2().ceil() as usize;
            prop_assert!(saturation.points.len() <= 20 + bisections);
        }
    }

    #[test]
    fn the_search_ends_where_no_load_is_sustained() {
        let saturation = found(0.0, 1.0, 0.02);
        assert_eq!((saturation.offered_load, saturation.points.len()), (None, 25));
    }
}
