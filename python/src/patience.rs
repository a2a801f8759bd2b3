//! Waiting that a timeout and Ctrl-C end.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use treecast_node::NodeError;

use crate::error::{TreecastError, failed};

/// Signals are looked at as often.
const SLICE: Duration = Duration::from_millis(50);

/// How long a call may wait: in slices, between which signals are looked at. To be used without the GIL.
pub struct Patience {
    until: Option<Instant>,
    signals_seen: Instant,
}

/// A time in seconds; none: for ever, as is what is more than the clock can count.
///
/// # Errors
/// [`TreecastError`] for a number that is no time.
pub fn seconds(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    match timeout {
        Some(seconds) if seconds >= 0.0 => Ok(Duration::try_from_secs_f64(seconds).ok()),
        Some(seconds) => Err(TreecastError::new_err(format!(
            "a timeout is a number of seconds from 0 on, or None for ever, and not {seconds}"
        ))),
        None => Ok(None),
    }
}

impl Patience {
    /// As long as [`seconds`] says.
    ///
    /// # Errors
    /// Those of [`seconds`].
    pub fn new(timeout: Option<f64>) -> PyResult<Self> {
        let now = Instant::now();
        let until = seconds(timeout)?.and_then(|timeout| now.checked_add(timeout));
        Ok(Self { until, signals_seen: now })
    }

    /// For ever.
    pub fn endless() -> Self {
        Self { until: None, signals_seen: Instant::now() }
    }

    /// Attempts once and, while the answer is that there is more to do or that a slice is over, again. The inner error is that of
    /// an attempt.
    ///
    /// # Errors
    /// `TimeoutError`; what a handler of signals raises, as `KeyboardInterrupt`.
    pub fn wait<T>(
        &mut self,
        mut attempt: impl FnMut(Duration) -> Result<Option<T>, NodeError>,
    ) -> PyResult<Result<T, NodeError>> {
        loop {
            match attempt(self.slice()) {
                Ok(Some(done)) => return Ok(Ok(done)),
                Ok(None) => self.check(NodeError::TimedOut)?,
                Err(error) if error.is_about_time() => self.check(error)?,
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    fn slice(&self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(SLICE, |left| left.min(SLICE))
    }

    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method has a lifetime of its own")]
    fn check(&mut self, error: NodeError) -> PyResult<()> {
        self.look(|py| py.check_signals())?;
        if self.until.is_some_and(|until| until <= Instant::now()) { Err(failed(error)) } else { Ok(()) }
    }

    /// Looks at something, such as signals, if it is time to.
    ///
    /// # Errors
    /// What is seen.
    pub fn look(&mut self, look: impl FnOnce(Python<'_>) -> PyResult<()>) -> PyResult<()> {
        let now = Instant::now();
        if now.duration_since(self.signals_seen) < SLICE {
            return Ok(());
        }
        self.signals_seen = now;
        Python::attach(look)
    }
}
