//! Whether a thread that writes waits for the disk, and not for a processor.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How long the calling thread has run, and has waited for a processor, in nanoseconds (sched-stats
/// in the kernel's documentation). Once open, the file stays that of the thread.
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";

/// The number, name and state of the calling thread, and more (`proc_pid_stat(5)`).
const STAT: &str = "/proc/thread-self/stat";

/// What a thread that writes lets others see of it.
#[derive(Debug, Default)]
pub(crate) struct WriterState {
    /// Unset before the thread has begun, and with kernels that have no such file.
    schedstat: OnceLock<File>,
    stat: OnceLock<File>,
    is_writing: AtomicBool,
}

impl WriterState {
    /// The calling thread is the one that writes.
    pub fn begin(&self) {
        for (file, path) in [(&self.schedstat, SCHEDSTAT), (&self.stat, STAT)] {
            if let Ok(opened) = File::open(path) {
                let _ = file.set(opened);
            }
        }
    }

    /// Writes by `write`.
    pub fn during<T>(&self, write: impl FnOnce() -> T) -> T {
        self.is_writing.store(true, Ordering::Relaxed);
        let written = write();
        self.is_writing.store(false, Ordering::Relaxed);
        written
    }

    /// The time for which the thread has run, or was ready to, in nanoseconds. The kernel adds a
    /// wait for a processor when it is over.
    fn processor_ns(&self) -> Option<u64> {
        let mut text = [0; 64];
        let length = self.schedstat.get()?.read_at(&mut text, 0).ok()?;
        let mut fields = str::from_utf8(&text[..length]).ok()?.split(' ');
        let mut next = || fields.next()?.parse::<u64>().ok();
        Some(next()? + next()?)
    }

    /// Whether the thread runs, or is ready to.
    fn is_ready(&self) -> Option<bool> {
        let mut text = [0; 64];
        let length = self.stat.get()?.read_at(&mut text, 0).ok()?;
        // The name is in parentheses, and may have some itself; numbers follow the state.
        let name_end = text[..length].iter().rposition(|&byte| byte == b')')?;
        Some(text.get(name_end + 2) == Some(&b'R'))
    }
}

/// Looks at a thread that writes, again and again.
#[derive(Debug, Default)]
pub(crate) struct DiskWatch {
    last: Option<(Instant, u64)>,
}

impl DiskWatch {
    /// Whether the thread is writing and asleep, and has needed a processor for less than half of
    /// the time since the last look. The rest was for the disk, or for a file system on the
    /// network.
    pub fn waits_for_disk(&mut self, writer: &WriterState) -> bool {
        let now = Instant::now();
        let is_asleep = writer.is_ready() == Some(false);
        let Some(processor_ns) = writer.processor_ns() else { return false };
        let Some((since, before_ns)) = self.last.replace((now, processor_ns)) else { return false };
        let elapsed_ns = u128::from(processor_ns.saturating_sub(before_ns));
        writer.is_writing.load(Ordering::Relaxed)
            && is_asleep
            && elapsed_ns * 2 < now.duration_since(since).as_nanos()
    }
}

#[cfg(test)]
mod tests {
    use std::hint::spin_loop;
    use std::path::Path;
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// The longest time in which a thread that is ready to run must have run.
    const PATIENCE: Duration = Duration::from_mins(1);

    #[test]
    fn a_thread_that_sleeps_while_it_writes_waits_for_the_disk() {
        if !Path::new(SCHEDSTAT).exists() {
            return;
        }
        let (state, mut watch) = (WriterState::default(), DiskWatch::default());
        let (begun, done) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                state.begin();
                state.during(|| {
                    begun.wait();
                    done.wait();
                });
            });
            begun.wait();
            assert!(!watch.waits_for_disk(&state), "the first look");
            let since = Instant::now();
            // The thread needs a processor until it sleeps.
            while !watch.waits_for_disk(&state) {
                assert!(since.elapsed() < PATIENCE, "the thread does not wait");
                thread::sleep(Duration::from_millis(10));
            }
            done.wait();
        });
        assert!(!watch.waits_for_disk(&state), "nothing is written any more");
    }

    #[test]
    fn a_thread_that_computes_does_not_wait_for_the_disk() {
        if !Path::new(SCHEDSTAT).exists() {
            return;
        }
        let (state, mut watch) = (WriterState::default(), DiskWatch::default());
        let (begun, is_done) = (Barrier::new(2), AtomicBool::new(false));
        let compute = || {
            state.begin();
            state.during(|| {
                begun.wait();
                let (since, before_ns) = (Instant::now(), state.processor_ns().unwrap());
                while !is_done.load(Ordering::Relaxed) {
                    spin_loop();
                }
                // Its waits for a processor are over, and so they are in the number.
                (state.processor_ns().unwrap() - before_ns, since.elapsed())
            })
        };
        thread::scope(|scope| {
            let computing = scope.spawn(compute);
            begun.wait();
            let looks = [(); 6].map(|()| {
                thread::sleep(Duration::from_millis(20));
                watch.waits_for_disk(&state)
            });
            is_done.store(true, Ordering::Relaxed);
            let (processor_ns, elapsed) = computing.join().unwrap();
            assert_eq!(looks, [false; 6]);
            assert!(u128::from(processor_ns) * 2 > elapsed.as_nanos(), "{processor_ns} ns of {elapsed:?}");
        });
    }
}
