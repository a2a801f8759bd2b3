//! All programs with all MPIs on several shapes of labs: `make mpi-matrix`.

use std::panic::catch_unwind;
use std::process::{Child, Command};
use std::time::Instant;

use treecast_lab::LabSettings;

use super::programs::{ALL, Mpi, broadcast, compare, text};

/// Hosts, and ranks on each.
const SHAPES: [(u32, u32); 4] = [(4, 1), (2, 2), (4, 4), (16, 1)];

const PARTS: [&[&str]; 7] = [
    &["basic", "derived", "mixed", "sizes", "late"],
    &["communicators", "many"],
    &["back-to-back", "nonblocking", "threads", "progress", "closing", "truncation"],
    &["completions", "shapes", "pending", "other-lengths", "waits-elsewhere", "nonblocking-threads"],
    &["persistent", "persistent-ends"],
    &["duplicates", "duplicates-threads", "duplicates-requests", "duplicates-bytes", "duplicates-pending"],
    &["gathers", "reduces"],
];

/// Runs all cases, also after one that fails. Each has a line, because they take minutes.
fn each_shape(mpi: Mpi) {
    let mut failed = Vec::new();
    for (hosts, ranks) in SHAPES {
        for parts in PARTS {
            let mut parts = parts.to_vec();
            parts.retain(|part| is_run(part, mpi, (hosts, ranks)));
            let case = format!("{mpi:?}, {hosts} x {ranks}: {}", parts.join(" "));
            let since = Instant::now();
            let is_right = catch_unwind(|| compare(mpi, &LabSettings::new(hosts), ranks, &parts)).is_ok();
            let result = if is_right { "right" } else { "wrong" };
            eprintln!("{case}: {result}, {:.0} s", since.elapsed().as_secs_f32());
            if !is_right {
                failed.push(case);
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Only the first shape makes a thousand communicators: descriptors and groups are counted in each
/// process, and sixteen ranks on two processors need minutes for them.
fn is_run(part: &str, mpi: Mpi, shape: (u32, u32)) -> bool {
    match part {
        "gathers" => !is_gather_wrong(mpi, shape.1),
        "many" => shape == SHAPES[0],
        _ => true,
    }
}

/// Whether the all-gathers of the MPI itself are wrong if ranks send one type and receive another:
/// those of Open MPI 5.0.11 with several ranks on each host, by its component `han`.
fn is_gather_wrong(mpi: Mpi, ranks: u32) -> bool {
    mpi == Mpi::OpenMpi5 && ranks > 1
}

#[test]
#[ignore = "takes minutes; make mpi-matrix"]
fn every_program_is_right_with_each_mpi_of_debian() {
    ALL.into_iter().for_each(each_shape);
}

#[test]
#[ignore = "takes minutes; make mpi-matrix"]
fn every_program_is_right_with_mpich_5_and_the_standard_abi() {
    [Mpi::Mpich5, Mpi::Standard].into_iter().for_each(each_shape);
}

#[test]
#[ignore = "takes minutes; make mpi-matrix"]
fn every_program_is_right_with_open_mpi_5() {
    each_shape(Mpi::OpenMpi5);
}

/// A program that keeps a processor busy until this is dropped.
struct Load(Child);

impl Load {
    fn start() -> Self {
        Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "takes a minute; make mpi-matrix"]
fn programs_are_right_by_the_kernel_engine_beside_load() {
    let _loads = [Load::start(), Load::start()];
    let parts = [
        "basic",
        "derived",
        "mixed",
        "sizes",
        "communicators",
        "threads",
        "completions",
        "shapes",
        "gathers",
        "reduces",
    ];
    let engine = [("TREECAST_MPI_ENGINE", "ebpf")];
    let Some(ran) = broadcast(Mpi::OpenMpi, &LabSettings::new(4), 2, &engine, &parts) else { return };
    let report = text(&ran.output);
    assert!(ran.output.status.success() && ran.taken > 0, "{}: {report}", ran.output.status);
    assert!(report.contains("engine ebpf, "), "{report}");
    for part in parts {
        assert!(report.lines().any(|line| line.starts_with(&format!("{part}: "))), "{part}: {report}");
    }
}
