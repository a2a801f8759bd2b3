//! Whether the kernel loads the program: its verifier accepts it, within a limit of its work.

#![expect(unsafe_code, reason = "a signal's action is set for the whole process")]

use std::fmt::Display;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use treecast_ebpf::{Program, ProgramSettings, kernel_version};
use treecast_proto::GroupId;

/// Says why a test is skipped: in one write to stderr, since the test harness captures what passing
/// tests print.
fn skip(why: &dyn Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

/// A loaded program; `None`, with the reason on stderr, where it cannot be loaded for lack of
/// privileges.
fn load(settings: ProgramSettings) -> Option<Program> {
    match Program::load(settings) {
        Ok(program) => Some(program),
        Err(error) if !rustix::process::geteuid().is_root() => {
            skip(&error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// What the kernel says that a map takes, in bytes.
fn map_bytes(map: &impl AsRawFd) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd())).unwrap();
    let bytes = text.lines().find_map(|line| line.strip_prefix("memlock:")).unwrap();
    bytes.trim().parse().unwrap()
}

#[test]
fn a_group_takes_the_memory_that_is_stated() {
    for payload_bytes_max in [1_408, 8_912] {
        let settings = ProgramSettings { payload_bytes_max, groups_max: 16, ..ProgramSettings::default() };
        let Some(program) = load(settings) else { return };
        if kernel_version() < (6, 4) {
            return skip(&"this kernel does not say what a map takes in all");
        }
        let maker = program.maker();
        for (number, slots) in [4, 16, 512, 4_096, 65_536].into_iter().enumerate() {
            // Slots have the same length for shorter payloads.
            let mut group = maker.make(GroupId(number as u32), slots, 512).unwrap();
            let (slot_map, page_map) = group.take_descriptors().unwrap().unwrap();
            let taken = map_bytes(&slot_map) + map_bytes(&page_map);
            assert_eq!(maker.group_bytes(slots), taken, "{slots} slots for {payload_bytes_max} bytes");
            maker.unmake(group);
        }
    }
}

/// The greatest number of instructions that the verifier may process for one of the two programs:
/// about 50 ms of its time. The kernel's limit is a million (`BPF_COMPLEXITY_LIMIT_INSNS`). The
/// verifier's work multiplies with every branch in a function that it examines for each call, or in
/// a loop, so that a small change may cost much.
const INSTRUCTIONS_MAX: u32 = 50_000;

#[test]
fn the_verifier_accepts_both_variants_with_little_work() {
    for payload_bytes_max in [1_408, 8_912] {
        let started = Instant::now();
        let settings = ProgramSettings { payload_bytes_max, ..ProgramSettings::default() };
        let Some(mut program) = load(settings) else { return };
        println!("payloads of {payload_bytes_max} bytes: loaded in {:?}", started.elapsed());
        for name in ["treecast_ingress", "treecast_egress"] {
            let info = program.classifier(name).info().unwrap();
            let verified =
                info.verified_instruction_count().expect("this kernel counts verified instructions");
            let bytes = info.size_translated().unwrap_or_default();
            println!("  {name}: {} instructions, {verified} verified", bytes / 8);
            assert!(verified < INSTRUCTIONS_MAX, "{name}: {verified} instructions were verified");
        }
    }
}

/// A signal without a handler would not interrupt the system call.
extern "C" fn do_nothing(_: libc::c_int) {}

/// A signal interrupts the verifier, and a profiler sends many per second. The test runs in a
/// process of its own, since the action of a signal is set for the whole process.
#[test]
fn loading_succeeds_in_spite_of_signals() {
    const IN_CHILD: &str = "TREECAST_TEST_SIGNALS";
    if std::env::var_os(IN_CHILD).is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "loading_succeeds_in_spite_of_signals", "--test-threads", "1"]);
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
fn payloads_longer_than_the_slots_are_rejected() {
    let settings = ProgramSettings { payload_bytes_max: 9_000, ..ProgramSettings::default() };
    let error = Program::load(settings).unwrap_err().to_string();
    assert_eq!(error, "payloads of 9000 bytes do not fit into the program's slots of 8912");
}

#[test]
fn a_full_group_table_is_reported_and_a_removed_group_makes_room() {
    let Some(program) = load(ProgramSettings { groups_max: 2, ..ProgramSettings::default() }) else {
        return;
    };
    let maker = program.maker();
    let first = maker.make(GroupId(1), 64, 1_388).unwrap();
    let _second = maker.make(GroupId(2), 64, 1_388).unwrap();
    let full = maker.make(GroupId(3), 64, 1_388).unwrap_err().to_string();
    assert_eq!(full, "the kernel's group table is full: it has room for 2 groups");
    maker.unmake(first);
    maker.make(GroupId(3), 64, 1_388).unwrap();
    let long = maker.make(GroupId(4), 64, 1_409).unwrap_err().to_string();
    assert_eq!(long, "payloads of 1409 bytes do not fit into the program's slots of 1408");
}
