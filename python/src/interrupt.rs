//! Simulations that Ctrl-C ends.

use std::cell::RefCell;
use std::error::Error;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::deadline::{Deadline, SLICE};
use crate::error::refused;

thread_local! {
    /// What stops the simulations of this thread.
    static STOP: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

/// Stops the simulations of other threads. Python runs signal handlers in the main thread only, so
/// the threads of a sweep need this.
#[pyclass(frozen, module = "treecast._treecast")]
pub struct Stop(Arc<AtomicBool>);

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self(Arc::default())
    }

    /// Lets this value stop simulations of the calling thread, which then raise KeyboardInterrupt.
    fn watch_here(&self) {
        STOP.set(Some(Arc::clone(&self.0)));
    }

    /// Stops the simulations.
    fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a simulation without the GIL. It calls its argument often, and ends if told to break.
///
/// # Errors
/// What a signal handler has raised, such as `KeyboardInterrupt`; the error of the simulation.
pub fn interruptible<T: Send, E: Error + Send>(
    py: Python<'_>,
    simulate: impl FnOnce(&mut dyn FnMut() -> ControlFlow<()>) -> Result<T, E> + Send,
) -> PyResult<T> {
    let (raised, simulated) = py.detach(|| {
        let mut deadline = Deadline::never();
        let mut raised = None;
        let simulated = simulate(&mut || match deadline.poll(check) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                raised = Some(error);
                ControlFlow::Break(())
            }
        });
        (raised, simulated)
    });
    raised.map_or_else(|| simulated.map_err(refused), Err)
}

/// Runs work of several threads without the GIL, in a thread of its own. It ends early when the
/// flag that it is given is set.
///
/// # Errors
/// What a signal handler has raised, such as `KeyboardInterrupt`; the error of the work.
pub fn interruptible_thread<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> PyResult<T> + Send,
) -> PyResult<T> {
    py.detach(|| {
        let stop = &AtomicBool::new(false);
        let (running, ended) = channel::<()>();
        thread::scope(|scope| {
            let worker = scope.spawn(move || {
                // Dropped at the end, and so wakes the thread that waits, also if the work panics.
                let _running = running;
                work(stop)
            });
            let mut raised = None;
            while ended.recv_timeout(SLICE) == Err(RecvTimeoutError::Timeout) {
                if raised.is_none() {
                    raised = Python::attach(check).err();
                    stop.store(raised.is_some(), Ordering::Relaxed);
                }
            }
            let worked = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            raised.map_or(worked, Err)
        })
    })
}

/// Whether this thread is to stop.
fn check(py: Python<'_>) -> PyResult<()> {
    py.check_signals()?;
    let is_stopped = STOP.with_borrow(|stop| stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed)));
    if is_stopped { Err(PyKeyboardInterrupt::new_err(())) } else { Ok(()) }
}
