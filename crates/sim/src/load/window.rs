//! The default window of runs under load, and the warning where a window is too short. docs/load.md
//! has the measurements.

use std::fmt;
use std::ops::RangeInclusive;

use treecast_terms::Cycles;

use super::run::LoadRun;

/// In a window of fewer mean latencies it is uncertain whether the backlog grows.
const MEAN_LATENCIES_MIN: f64 = 20.0;

impl LoadRun<'_> {
    /// The cycles of a run, unless given: those of the ICPP'98 study.
    pub const CYCLES_DEFAULT: Cycles = Cycles(1_000_000);

    /// The maximum number of cycles of a run. Times stay far from overflow.
    pub const CYCLES_MAX: Cycles = Cycles(1 << 48);

    /// The minimum length of the window: one cycle per batch.
    pub const WINDOW_MIN: Cycles = Cycles(20);

    /// The relative precision of a search for saturation, unless given.
    pub const PRECISION_DEFAULT: f64 = 0.02;

    /// The precisions that a search for saturation accepts.
    pub const PRECISIONS: RangeInclusive<f64> = 0.001..=0.5;

    /// The bound of multicasts in flight per host, unless given.
    pub const BACKLOG_PER_HOST: usize = 64;

    /// The default warm-up of a run of this number of cycles: half of them.
    pub const fn default_warmup(cycles: Cycles) -> Cycles {
        Cycles(cycles.0 / 2)
    }
}

/// The warning that a window holds too few mean latencies, so that chance may decide whether a run
/// is saturated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShortWindow {
    /// The length of the window in mean latencies, below 20.
    pub mean_latencies: f64,
    /// Whether the mean latency is that of the load which a search for saturation has found.
    pub is_of_search: bool,
}

impl ShortWindow {
    /// The warning for a window and a mean latency, if there is a reason for one.
    pub(super) fn check(
        cycles: Cycles,
        warmup: Cycles,
        latency_mean_cycles: Option<f64>,
        is_of_search: bool,
    ) -> Option<Self> {
        let mean_latencies = cycles.0.saturating_sub(warmup.0) as f64 / latency_mean_cycles?;
        (mean_latencies < MEAN_LATENCIES_MIN).then_some(Self { mean_latencies, is_of_search })
    }
}

impl fmt::Display for ShortWindow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = if self.is_of_search { " at the load found" } else { "" };
        // Rounded down, so that 20 never appears.
        let mean_latencies = (self.mean_latencies * 10.0).floor() / 10.0;
        write!(
            formatter,
            "the window is {mean_latencies:.1} mean latencies long{load}: below {MEAN_LATENCIES_MIN} the status is uncertain, \
             simulate more cycles"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_fewer_than_20_mean_latencies_is_short() {
        let check = |latency| ShortWindow::check(Cycles(1_000), Cycles(500), latency, false);
        assert_eq!(check(None), None);
        assert_eq!(check(Some(25.0)), None);
        let warning = check(Some(25.01)).unwrap().to_string();
        assert_eq!(
            warning,
            "the window is 19.9 mean latencies long: below 20 the status is uncertain, simulate more cycles"
        );
    }
}
