//! Whether a thread that writes waits for the disk, and not for a processor.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How long the calling thread has run, and has waited for a processor, in nanoseconds (sched-stats
/// in the kernel's documentation). Once open, the file stays that of the thread.
const SCHEDSTAT: &str = "/proc/thread-self/schedstat";

/// What a thread that writes lets others see of it.
#[derive(Debug, Default)]
pub(crate) struct WriterState {
    /// Unset before the thread has begun, and with kernels that have no such file.
    schedstat: OnceLock<File>,
    is_writing: AtomicBool,
}

impl WriterState {
    /// The calling thread is the one that writes.
    pub fn begin(&self) {
        if let Ok(file) = File::open(SCHEDSTAT) {
            let _ = self.schedstat.set(file);
        }
    }

    /// Writes by `write`.
    pub fn during<T>(&self, write: impl FnOnce() -> T) -> T {
        self.is_writing.store(true, Ordering::Relaxed);
        let written = write();
        self.is_writing.store(false, Ordering::Relaxed);
        written
    }

    /// The time for which the thread has run, or was ready to, in nanoseconds.
    fn processor_ns(&self) -> Option<u64> {
        let mut text = [0; 64];
        let length = self.schedstat.get()?.read_at(&mut text, 0).ok()?;
        let mut fields = str::from_utf8(&text[..length]).ok()?.split(' ');
        let mut next = || fields.next()?.parse::<u64>().ok();
        Some(next()? + next()?)
    }
}

/// Looks at a thread that writes, again and again.
#[derive(Debug, Default)]
pub(crate) struct DiskWatch {
    last: Option<(Instant, u64)>,
}

impl DiskWatch {
    /// Whether the thread is writing, and has needed a processor for less than half of the time
    /// since the last look. The rest was for the disk, or for a file system on the network.
    pub fn waits_for_disk(&mut self, writer: &WriterState) -> bool {
        let now = Instant::now();
        let Some(processor_ns) = writer.processor_ns() else { return false };
        let Some((since, before_ns)) = self.last.replace((now, processor_ns)) else { return false };
        let elapsed_ns = u128::from(processor_ns.saturating_sub(before_ns));
        writer.is_writing.load(Ordering::Relaxed) && elapsed_ns * 2 < now.duration_since(since).as_nanos()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Whether a thread that does something for 300 ms waits for the disk.
    fn waits(act: fn(Instant)) -> bool {
        let state = Arc::new(WriterState::default());
        let of_writer = Arc::clone(&state);
        let writer = thread::spawn(move || {
            of_writer.begin();
            of_writer.during(|| act(Instant::now()));
        });
        let mut watch = DiskWatch::default();
        thread::sleep(Duration::from_millis(50));
        assert!(!watch.waits_for_disk(&state), "the first look");
        thread::sleep(Duration::from_millis(100));
        let waits = watch.waits_for_disk(&state);
        writer.join().unwrap();
        assert!(!watch.waits_for_disk(&state), "nothing is written any more");
        waits
    }

    #[test]
    fn a_thread_that_computes_does_not_wait_for_the_disk() {
        if !std::path::Path::new(SCHEDSTAT).exists() {
            return;
        }
        assert!(waits(|_| thread::sleep(Duration::from_millis(300))));
        assert!(!waits(|since| while since.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }));
    }
}
