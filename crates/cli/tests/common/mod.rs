//! What tests of the command share.

use std::io::Write;

use treecast_ebpf::{Program, ProgramSettings};

/// Whether this process may put programs into the kernel's packet path, and this build has one; if not, says so, past the test
/// harness, which keeps what tests that pass print.
pub fn has_kernel_engine() -> bool {
    let loaded = Program::load(ProgramSettings::default());
    if let Err(error) = &loaded {
        let _ = std::io::stderr().write_all(format!("skipped: {error}\n").as_bytes());
    }
    loaded.is_ok()
}
