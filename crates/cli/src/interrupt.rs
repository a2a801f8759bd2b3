//! Signals that end commands: no unfinished files are left, and what ends in order has time for it.

#![expect(unsafe_code, reason = "actions of signals are set")]

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::io::Read;
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, process, thread};

use anyhow::Context;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};
use tempfile::TempDir;

/// Files and directories that are not complete. Some may be gone: their names are not used again.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn unfinished() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes a temporary file or directory that is to be removed when a signal ends the command.
pub fn remove_on_signal(path: &Path) {
    unfinished().insert(path.into());
}

/// How often the removal of a file is tried.
const REMOVALS_MAX: usize = 10;

/// Where the handler writes the numbers of signals.
static SIGNALS: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_signal(number: c_int) {
    let descriptor: RawFd = SIGNALS.load(Ordering::SeqCst);
    // SAFETY: the descriptor was set before the handler, and is never closed.
    let signals = unsafe { BorrowedFd::borrow_raw(descriptor) };
    // A full pipe has signals enough.
    let _ = nix::unistd::write(signals, &[number as u8]);
}

/// Removes unfinished files on SIGINT and SIGTERM, and then ends the process by the signal: a shell
/// shows status 130 or 143. (The library `ctrlc` does not tell which signal it was, and also takes
/// SIGHUP, which `nohup` ignores.)
pub fn clean_up_on_signals() -> anyhow::Result<()> {
    let (mut signals, written) = UnixStream::pair().context("cannot create a pipe for signals")?;
    SIGNALS.store(written.into_raw_fd(), Ordering::SeqCst);
    thread::spawn(move || {
        let mut number = [0];
        while signals.read_exact(&mut number).is_ok() {
            // Another thread that notes a file now waits until the process has ended.
            let unfinished = unfinished();
            unfinished.iter().for_each(|path| remove(path));
            if let Ok(signal) = Signal::try_from(c_int::from(number[0])) {
                let _ = set(signal, SigHandler::SigDfl).and_then(|_| raise(signal));
            }
        }
    });
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        set(signal, SigHandler::Handler(on_signal)).context("cannot install signal handlers")?;
    }
    Ok(())
}

/// How long after the first signal others repeat it: a process manager may send one to the process
/// and one to its group, and a terminal and a launcher may both pass on Ctrl-C.
const REPETITION: Duration = Duration::from_secs(1);

/// Calls `end` on the first SIGINT, SIGTERM or SIGHUP, which ends the command in order. A later one
/// ends it at once with an exit status; those within a second of the first are ignored.
pub fn end_on_signals(status: u8, end: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    let mut end = Some(end);
    let mut begun = Instant::now();
    let on_signal = move || match end.take() {
        Some(end) => {
            end();
            begun = Instant::now();
        }
        None if begun.elapsed() < REPETITION => {}
        None => process::exit(status.into()),
    };
    handle_signals(on_signal)
}

/// Calls `on_signal` at each SIGINT, SIGTERM and SIGHUP; not at SIGHUP if that was ignored when the
/// command began, as by `nohup`.
pub fn handle_signals(on_signal: impl FnMut() + Send + 'static) -> anyhow::Result<()> {
    // The library does not ask, and handles it in any case.
    let before = set(Signal::SIGHUP, SigHandler::SigIgn).context("cannot ask for signal handlers")?;
    ctrlc::set_handler(on_signal).context("cannot install signal handlers")?;
    if matches!(before.handler(), SigHandler::SigIgn) {
        set(Signal::SIGHUP, SigHandler::SigIgn).context("cannot ignore SIGHUP")?;
    }
    Ok(())
}

/// Removes a file, or a directory with all that is in it.
fn remove(path: &Path) {
    // A worker that has not ended yet may add a file to the directory meanwhile.
    for _ in 0..REMOVALS_MAX {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        if removed.is_ok() || !path.exists() {
            break;
        }
    }
}

/// Sets the action of a signal; returns what it was.
fn set(signal: Signal, handler: SigHandler) -> nix::Result<SigAction> {
    let action = SigAction::new(handler, SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler makes one system call, which is allowed in handlers.
    unsafe { sigaction(signal, &action) }
}

/// As [`clean_up_on_signals`], and puts all temporary files of the libraries into one directory
/// that is removed then, or when the returned value is dropped.
pub fn temporary_files() -> anyhow::Result<TempDir> {
    clean_up_on_signals()?;
    let directory = tempfile::tempdir().with_context(|| {
        let place = std::env::temp_dir();
        format!(
            "no temporary directory in {}: set TMPDIR to a directory that can be written",
            place.display()
        )
    })?;
    remove_on_signal(directory.path());
    // Fails if it is called twice; files are then in the first directory.
    let _ = tempfile::env::override_temp_dir(directory.path());
    Ok(directory)
}
