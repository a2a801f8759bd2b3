//! Open MPI 5 and MPICH 5, the latter by its own binary interface and by the standard one, with the
//! shims that Debian's compilers have made of Open MPI 4 and MPICH 4.

use treecast_lab::LabSettings;

use super::programs::{Built, Mpi, Ran, compare, run_in, run_line, skip, start, text, treecast};

#[test]
fn open_mpi_5_is_right_with_several_ranks_on_each_host() {
    compare(Mpi::OpenMpi5, &LabSettings::new(2), 2, &["communicators"]);
}

#[test]
fn mpich_5_and_the_standard_abi_are_right() {
    let parts = ["basic", "derived", "mixed", "communicators", "threads", "completions", "persistent"];
    for mpi in [Mpi::Mpich5, Mpi::Standard] {
        compare(mpi, &LabSettings::new(3), 1, &parts);
    }
}

/// `treecast mpi` finds the launcher beside the program.
#[test]
fn open_mpi_5_starts_more_ranks_than_processors() {
    let mpi = Mpi::OpenMpi5;
    let Some(lab) = start(mpi, &LabSettings::new(1)) else { return };
    if !treecast().exists() {
        return skip("no treecast, so it starts no ranks");
    }
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    std::fs::copy(Built::get().program(mpi), &program).unwrap();
    std::os::unix::fs::symlink(mpi.tool("mpirun"), directory.path().join("mpirun")).unwrap();
    let ranks = std::thread::available_parallelism().unwrap().get() + 1;
    let line = format!(
        "exec {} mpi --library {} --ranks {ranks} -- \"$@\"",
        treecast().display(),
        Built::get().shim(mpi).parent().unwrap().display()
    );
    let Ran { output, .. } = run_line(&lab, &line, &program, &["mixed"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("mixed: "), "{}", text(&output));
}

/// Open MPI 4.1 has no sessions, and Debian's MPICH may hang at the end. In a second session of a
/// process Open MPI 5.0.11 ends with a segmentation fault, without the shim too.
#[test]
fn sessions_broadcast() {
    for (mpi, sessions) in [(Mpi::OpenMpi5, "1"), (Mpi::Mpich5, "3"), (Mpi::Standard, "3")] {
        program_is_right(mpi, "sessions", &[sessions]);
    }
}

/// Without Open MPI 5.0.11, which ends with "PMIX ERROR" in a lab, without the shim too.
#[test]
fn spawned_processes_broadcast_with_their_parents() {
    for mpi in [Mpi::Mpich5, Mpi::Standard] {
        if let Some(Ran { taken, output, .. }) = program_is_right(mpi, "spawn", &[]) {
            // Those of the parents, and with their children.
            assert!(taken >= 14, "{}", text(&output));
        }
    }
}

/// Two hosts with two ranks each. None, if the MPI is missing.
fn program_is_right(mpi: Mpi, name: &str, arguments: &[&str]) -> Option<Ran> {
    let lab = start(mpi, &LabSettings::new(2))?;
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(name);
    mpi.compile(&[], &[&format!("{name}.c")], &program);
    let ran = run_in(&lab, mpi, 2, &[], &program, arguments);
    let written = text(&ran.output);
    assert!(ran.output.status.success(), "{mpi:?}: {}: {written}", ran.output.status);
    assert!(written.lines().any(|line| line.starts_with(&format!("{name}: "))), "{mpi:?}: {written}");
    Some(ran)
}
