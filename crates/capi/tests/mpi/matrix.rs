//! All programs with all MPIs on several shapes of labs: `make mpi-matrix`.

use treecast_lab::LabSettings;

use super::programs::{ALL, Mpi, compare};

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

/// Each case has a line, because they take minutes.
fn each_shape(mpi: Mpi) {
    for (hosts, ranks) in SHAPES {
        for parts in PARTS {
            let parts = if is_gather_wrong(mpi, ranks) { without_gathers(parts) } else { parts.to_vec() };
            eprintln!("{mpi:?}, {hosts} x {ranks}: {}", parts.join(" "));
            compare(mpi, &LabSettings::new(hosts), ranks, &parts);
        }
    }
}

/// Whether the all-gathers of the MPI itself are wrong if ranks send one type and receive another:
/// those of Open MPI 5.0.11 with several ranks on each host, by its component `han`.
fn is_gather_wrong(mpi: Mpi, ranks: u32) -> bool {
    mpi == Mpi::OpenMpi5 && ranks > 1
}

fn without_gathers(parts: &[&'static str]) -> Vec<&'static str> {
    parts.iter().copied().filter(|&part| part != "gathers").collect()
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
