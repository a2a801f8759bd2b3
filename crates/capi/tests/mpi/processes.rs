//! Ranks that stop, compute for long, abort, fork, and are killed.

use std::time::Duration;

use treecast_lab::LabSettings;

use super::programs::{ALL, Mpi, Ran, TIMED_OUT, broadcast, compare, run_with, start, text};

/// How long a program of a few hosts takes at most from its start until its launcher has ended it,
/// on processors that other tests use too. With the default settings nodes would notice a lost one
/// only after two minutes.
const ENDED_S: u64 = 30;

/// MPICH 4.0 hangs in `MPI_Finalize` after a stop, without the shim too.
fn expect_nothing_lost(mpi: Mpi, part: &str, environment: &[(&str, &str)]) {
    let ran = broadcast(mpi, &LabSettings::new(4), 1, environment, &[part]);
    let Some(Ran { output, taken, .. }) = ran else { return };
    let written = text(&output);
    let has_all = taken == 400 && written.contains(&format!("{part}: 400 broadcasts"));
    assert!(has_all, "{mpi:?}, {environment:?}: {written}");
    assert!(mpi == Mpi::Mpich || output.status.success(), "{}: {written}", output.status);
}

#[test]
fn a_rank_that_is_stopped_for_a_while_loses_nothing() {
    for mpi in ALL {
        expect_nothing_lost(mpi, "stopped", &[]);
        compare(mpi, &LabSettings::new(3), 1, &["stopped-at-the-end"]);
    }
}

#[test]
#[ignore = "takes minutes; make mpi-matrix"]
fn a_rank_that_is_stopped_for_a_minute_loses_nothing_with_the_user_engine() {
    for mpi in ALL {
        expect_nothing_lost(mpi, "stopped-minute", &[("TREECAST_MPI_ENGINE", "user")]);
    }
}

#[test]
#[ignore = "takes minutes; make mpi-matrix"]
fn a_rank_that_is_stopped_for_a_minute_loses_nothing_with_the_kernel_engine() {
    for mpi in ALL {
        expect_nothing_lost(mpi, "stopped-minute", &[("TREECAST_MPI_ENGINE", "ebpf")]);
    }
}

#[test]
#[ignore = "takes minutes; make mpi-matrix"]
fn a_rank_that_computes_for_a_minute_loses_nothing() {
    for engine in ["user", "ebpf"] {
        expect_nothing_lost(Mpi::OpenMpi, "computing-minute", &[("TREECAST_MPI_ENGINE", engine)]);
    }
    expect_nothing_lost(Mpi::Mpich, "computing-minute", &[]);
}

#[test]
fn ranks_fork_in_the_middle_of_broadcasts() {
    for mpi in ALL {
        compare(mpi, &LabSettings::new(3), 1, &["forks"]);
    }
    compare(Mpi::OpenMpi, &LabSettings::new(2), 2, &["forks"]);
}

#[test]
fn a_program_finalizes_when_it_exits() {
    for mpi in ALL {
        compare(mpi, &LabSettings::new(3), 1, &["back-to-back", "finalize-at-exit"]);
    }
}

#[test]
fn mpi_abort_ends_the_program_with_its_status() {
    for mpi in ALL {
        let Some(ran) = broadcast(mpi, &LabSettings::new(3), 1, &[], &["aborts"]) else { continue };
        let Ran { output, elapsed, .. } = ran;
        assert_eq!(output.status.code(), Some(7), "{mpi:?}: {}", text(&output));
        assert!(elapsed < Duration::from_secs(ENDED_S), "{mpi:?}: {elapsed:?}: {}", text(&output));
    }
}

#[test]
fn the_launcher_ends_a_program_of_which_a_rank_is_killed() {
    for mpi in ALL {
        let Some(ran) = broadcast(mpi, &LabSettings::new(3), 1, &[], &["killed-at-once"]) else { continue };
        let Ran { output, elapsed, .. } = ran;
        let has_failed = output.status.code().is_some_and(|code| code != 0 && code != TIMED_OUT);
        assert!(has_failed, "{mpi:?}: {}: {}", output.status, text(&output));
        assert!(elapsed < Duration::from_secs(ENDED_S), "{mpi:?}: {elapsed:?}: {}", text(&output));
    }
}

/// Each of the other ranks has an error that names the one that was killed: as a member at roots
/// that broadcast, as the root where it should broadcast, and in all-reduces.
fn expect_a_killed_rank_to_be_named(mpi: Mpi, without_cleanup: &str) {
    let parts = [
        ("killed-without-end", "member 3 at 10.42.0.4:"),
        ("killed-root", "root 3 at 10.42.0.4:"),
        ("killed-in-reduces", "rank 3 at 10.42.0.4:"),
    ];
    let Some(lab) = start(mpi, &LabSettings::new(4)) else { return };
    let environment = [("TREECAST_MPI_PEER_TIMEOUT_MS", "2000")];
    for (part, name) in parts {
        let Ran { output, .. } = run_with(&lab, mpi, 1, without_cleanup, &environment, &[part]);
        let written = text(&output);
        for rank in 0..3 {
            let line = format!("rank {rank}: a call has failed after ");
            let line = written.lines().find(|written| written.contains(&line));
            let is_named = line.is_some_and(|line| line.contains(name));
            assert!(is_named, "{mpi:?}, {part}: {}: {written}", output.status);
        }
    }
}

#[test]
fn a_killed_rank_is_named_at_all_others_if_open_mpis_launcher_goes_on() {
    expect_a_killed_rank_to_be_named(Mpi::OpenMpi, "--enable-recovery");
}

#[test]
fn a_killed_rank_is_named_at_all_others_if_mpichs_launcher_goes_on() {
    expect_a_killed_rank_to_be_named(Mpi::Mpich, "-disable-auto-cleanup");
}
