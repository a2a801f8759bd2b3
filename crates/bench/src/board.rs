//! Memory that the processes of a benchmark share, where they are all on this machine.

#![expect(unsafe_code, reason = "processes share memory")]

use std::fs::File;
use std::io;
use std::path::Path;
use std::slice;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use treecast_ebpf::Mapping;

/// A word for all processes, and a number of each.
pub struct Board {
    memory: Mapping,
    processes: usize,
}

impl Board {
    /// Maps the file, which is made if it does not exist; all numbers are 0 at first.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(path: &Path, processes: u32) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let processes = processes as usize;
        let bytes = (1 + processes) * size_of::<AtomicU64>();
        file.set_len(bytes as u64)?;
        Ok(Self { memory: Mapping::new(&file, bytes, true)?, processes })
    }

    /// The word for all processes.
    pub fn word(&self) -> &AtomicU32 {
        // SAFETY: the mapping has more bytes, zeros at first, lives as long as this value, and all
        // processes use the word atomically.
        unsafe { &*self.memory.address::<AtomicU32>() }
    }

    fn numbers(&self) -> &[AtomicU64] {
        // SAFETY: as above; they follow the first eight bytes, and the mapping has room for this
        // number of them.
        unsafe { slice::from_raw_parts(self.memory.address::<AtomicU64>().add(1), self.processes) }
    }

    /// Sets the number of a process.
    pub fn set(&self, process: usize, value: u64) {
        self.numbers()[process].store(value, Ordering::SeqCst);
    }

    /// The numbers of all processes.
    pub fn values(&self) -> impl Iterator<Item = u64> {
        self.numbers().iter().map(|number| number.load(Ordering::SeqCst))
    }

    /// Sets the numbers of all processes to 0.
    pub fn clear(&self) {
        self.numbers().iter().for_each(|number| number.store(0, Ordering::SeqCst));
    }
}
