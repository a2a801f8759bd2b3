//! The kernel's verifier is the first reader of the program.

use treecast_ebpf::{EbpfError, Program, ProgramSettings};

#[test]
fn the_kernel_takes_the_program_in_both_lengths() {
    for payload_bytes_max in [1_408, 8_912] {
        let settings = ProgramSettings { payload_bytes_max, ..ProgramSettings::default() };
        match Program::load(settings) {
            Ok(_) => {}
            Err(error @ EbpfError::NotBuilt(_)) => return println!("skipped: {error}"),
            Err(error) if !rustix::process::geteuid().is_root() => return println!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn longer_payloads_are_refused() {
    let settings = ProgramSettings { payload_bytes_max: 9_000, ..ProgramSettings::default() };
    if Program::is_built().is_ok() {
        let error = Program::load(settings).unwrap_err().to_string();
        assert_eq!(error, "payloads of 9000 bytes do not fit into the program's slots of 8912");
    }
}
