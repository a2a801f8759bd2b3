//! Waits that a timeout and Ctrl-C end.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use treecast_node::NodeError;

use crate::error::{TreecastError, failed};

/// The interval at which signals are checked.
pub const SLICE: Duration = Duration::from_millis(50);

/// The deadline of a call. The call waits in slices, and checks signals between them. To be used
/// without the GIL.
pub struct Deadline {
    until: Option<Instant>,
    signals_checked: Instant,
}

/// Why a wait has ended without success.
pub enum WaitError {
    /// The timeout has expired (`TimeoutError`), or a signal handler has raised an exception, such
    /// as `KeyboardInterrupt`.
    Interrupted(PyErr),
    /// The attempt has failed.
    Failed(NodeError),
}

impl From<WaitError> for PyErr {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Interrupted(error) => error,
            WaitError::Failed(error) => failed(error),
        }
    }
}

/// A timeout in seconds; `None` and values beyond the range of the clock mean no timeout.
///
/// # Errors
/// [`TreecastError`] for a negative number or NaN.
pub fn seconds(timeout: Option<f64>) -> PyResult<Option<Duration>> {
    match timeout {
        Some(seconds) if seconds >= 0.0 => Ok(Duration::try_from_secs_f64(seconds).ok()),
        Some(seconds) => Err(TreecastError::new_err(format!(
            "invalid value {seconds} for timeout: expected a number of seconds from 0, or None"
        ))),
        None => Ok(None),
    }
}

impl Deadline {
    /// After a timeout in seconds.
    ///
    /// # Errors
    /// Those of [`seconds`].
    pub fn new(timeout: Option<f64>) -> PyResult<Self> {
        let now = Instant::now();
        let until = seconds(timeout)?.and_then(|timeout| now.checked_add(timeout));
        Ok(Self { until, signals_checked: now })
    }

    /// No deadline.
    pub fn never() -> Self {
        Self { until: None, signals_checked: Instant::now() }
    }

    /// Repeats an attempt until it succeeds or fails; `Ok(None)` and timeouts of a slice mean
    /// another attempt.
    ///
    /// # Errors
    /// [`WaitError`].
    pub fn wait<T>(
        &mut self,
        mut attempt: impl FnMut(Duration) -> Result<Option<T>, NodeError>,
    ) -> Result<T, WaitError> {
        loop {
            match attempt(self.slice()) {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => self.check(NodeError::TimedOut)?,
                Err(error) if error.is_timeout() => self.check(error)?,
                Err(error) => return Err(WaitError::Failed(error)),
            }
        }
    }

    fn slice(&self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(SLICE, |left| left.min(SLICE))
    }

    #[expect(clippy::redundant_closure_for_method_calls, reason = "the method has a lifetime of its own")]
    fn check(&mut self, error: NodeError) -> Result<(), WaitError> {
        self.poll(|py| py.check_signals()).map_err(WaitError::Interrupted)?;
        if self.until.is_some_and(|until| until <= Instant::now()) {
            return Err(WaitError::Interrupted(failed(error)));
        }
        Ok(())
    }

    /// Calls `check`, for example for signals, unless the last call was less than a slice ago.
    ///
    /// # Errors
    /// Those of `check`.
    pub fn poll(&mut self, check: impl FnOnce(Python<'_>) -> PyResult<()>) -> PyResult<()> {
        let now = Instant::now();
        if now.duration_since(self.signals_checked) < SLICE {
            return Ok(());
        }
        self.signals_checked = now;
        Python::attach(check)
    }
}
