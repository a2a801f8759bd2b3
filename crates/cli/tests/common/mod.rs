//! Helpers for tests of the command.

use std::io::Write;

use treecast_ebpf::{Program, ProgramSettings};

/// Whether this process can load the BPF program. If not, prints a message directly, because the
/// test harness captures output.
pub fn has_kernel_engine() -> bool {
    let loaded = Program::load(ProgramSettings::default());
    if let Err(error) = &loaded {
        let _ = std::io::stderr().write_all(format!("skipped: {error}\n").as_bytes());
    }
    loaded.is_ok()
}
