//! The kernel's verifier is the first reader of the program.

#![expect(unsafe_code, reason = "what a signal does is set for the whole process")]

use std::fmt::Display;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use treecast_ebpf::{EbpfError, Program, ProgramSettings};
use treecast_proto::GroupId;

/// Says why a test does nothing, past the test harness, which keeps what tests that pass print, and in one piece.
fn skip(why: &dyn Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

/// A program in the kernel; none, and a word on why, where there can be none.
fn load(settings: ProgramSettings) -> Option<Program> {
    match Program::load(settings) {
        Ok(program) => Some(program),
        Err(error @ EbpfError::NotBuilt(_)) => {
            skip(&error);
            None
        }
        Err(error) if !rustix::process::geteuid().is_root() => {
            skip(&error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Without the program its tests are skipped: so where the compiler could have made it, it has to be there.
#[test]
fn the_program_is_built_wherever_such_programs_can_be() {
    let compiler = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let headers = format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let compiler = Command::new(compiler)
        .args(["-target", "bpf", &headers, "-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut compiler) = compiler else { return skip(&"no clang, so the BPF program is not compiled") };
    let source = b"#include <linux/bpf.h>\n#include <bpf/bpf_helpers.h>\n";
    // Whether it reads that or has ended before, its status says.
    let _ = compiler.stdin.take().expect("it is piped").write_all(source);
    if compiler.wait().unwrap().success() {
        Program::is_built().unwrap();
    } else {
        skip(&"clang does not find libbpf's headers, so the BPF program is not compiled");
    }
}

/// The kernel looks at so many instructions of a program at most (`BPF_COMPLEXITY_LIMIT_INSNS`).
const INSTRUCTIONS_MAX: u32 = 1_000_000;

/// What the verifier looks at multiplies with every choice in a loop: a small change may be too much, and another kernel looks at
/// more. So half of that is the limit here.
#[test]
fn the_kernel_takes_the_program_in_both_lengths_and_looks_at_little_of_it() {
    for payload_bytes_max in [1_408, 8_912] {
        let begun = Instant::now();
        let settings = ProgramSettings { payload_bytes_max, ..ProgramSettings::default() };
        let Some(mut program) = load(settings) else { return };
        println!("payloads of {payload_bytes_max} bytes: loaded in {:?}", begun.elapsed());
        for name in ["treecast_ingress", "treecast_egress"] {
            let info = program.classifier(name).info().unwrap();
            let verified = info.verified_instruction_count().expect("this kernel counts what it verifies");
            let bytes = info.size_translated().unwrap_or_default();
            println!("  {name}: {} instructions, {verified} verified", bytes / 8);
            assert!(verified < INSTRUCTIONS_MAX / 2, "{name}: {verified} instructions are looked at");
        }
    }
}

/// A signal that nobody handles would interrupt nobody.
extern "C" fn do_nothing(_: libc::c_int) {}

/// The kernel stops looking at a program when a signal comes, and a profiler sends many a second. In a process of its own: the timer
/// is the whole process's.
#[test]
fn signals_do_not_keep_the_program_out() {
    const IN_CHILD: &str = "TREECAST_TEST_SIGNALS";
    if std::env::var_os(IN_CHILD).is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "signals_do_not_keep_the_program_out", "--test-threads", "1"]);
        assert!(command.env(IN_CHILD, "1").status().unwrap().success());
        return;
    }
    let thread = pthread_self();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    let signals = std::thread::spawn(move || {
        while is_done
            .recv_timeout(Duration::from_millis(1))
            .is_err_and(|error| error == RecvTimeoutError::Timeout)
        {
            pthread_kill(thread, Signal::SIGURG).unwrap();
        }
    });
    let action = SigAction::new(SigHandler::Handler(do_nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: the handler does nothing.
    unsafe { sigaction(Signal::SIGURG, &action) }.unwrap();
    load(ProgramSettings::default());
    drop(done);
    signals.join().unwrap();
}

#[test]
fn longer_payloads_are_refused() {
    let settings = ProgramSettings { payload_bytes_max: 9_000, ..ProgramSettings::default() };
    if Program::is_built().is_ok() {
        let error = Program::load(settings).unwrap_err().to_string();
        assert_eq!(error, "payloads of 9000 bytes do not fit into the program's slots of 8912");
    }
}

#[test]
fn a_full_table_is_named_and_what_goes_makes_room() {
    let Some(mut program) = load(ProgramSettings { groups_max: 2, ..ProgramSettings::default() }) else {
        return;
    };
    let first = program.add_group(GroupId(1), 64, 1_388).unwrap();
    program.add_group(GroupId(2), 64, 1_388).unwrap();
    let full = program.add_group(GroupId(3), 64, 1_388).unwrap_err().to_string();
    assert_eq!(full, "the kernel's table has room for 2 groups, and all of it is taken");
    program.remove_group(&first);
    program.add_group(GroupId(3), 64, 1_388).unwrap();
    let long = program.add_group(GroupId(4), 64, 1_409).unwrap_err().to_string();
    assert_eq!(long, "payloads of 1409 bytes do not fit into the program's slots of 1408");
}
