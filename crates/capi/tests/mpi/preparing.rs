//! Groups are made in the background: broadcasts by the MPI go on meanwhile, and a communicator or
//! the program may end.

use treecast_lab::LabSettings;

use super::programs::{ALL, MPICH_TRIES, Mpi, Ran, has_ended, run_in, start, text};

/// Runs a part of the program, and returns what it has written.
fn prepare_with(mpi: Mpi, ranks: u32, part: &str, history: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("preparing");
    let lab = start(mpi, &LabSettings::new(2))?;
    // What the program defines is to be in front of the library's.
    mpi.compile(&["-rdynamic"], &["preparing.c", "finalize.c"], &program);
    let environment = [
        ("TREECAST_MPI_ENGINE", "user"),
        ("TREECAST_MPI_CHOICE", "measure"),
        ("TREECAST_MPI_TRIAL_PERCENT", "100"),
        ("TREECAST_MPI_HISTORY", history),
    ];
    let mut tries = if mpi == Mpi::Mpich { MPICH_TRIES } else { 1 };
    loop {
        let Ran { output, .. } = run_in(&lab, mpi, ranks, &environment, &program, &[part]);
        let report = text(&output);
        tries -= 1;
        assert!(!report.contains(": broadcast "), "{mpi:?}, {part}: {report}");
        // The launcher of Debian's MPICH 4.0 may lose lines if it hangs.
        let is_whole = mpi != Mpi::Mpich || report.contains("collectives at rank 0");
        if has_ended(mpi, 2 * ranks, &output) && is_whole {
            assert!(report.contains(&format!("{part}: right")), "{mpi:?}, {part}: {report}");
            return Some(report);
        }
        assert!(mpi == Mpi::Mpich, "{mpi:?}, {part}: {report}");
        if tries == 0 {
            return None;
        }
    }
}

fn prepare(mpi: Mpi, ranks: u32, part: &str) -> Option<String> {
    prepare_with(mpi, ranks, part, "off")
}

/// How many broadcasts were passed on because groups were made.
fn unmade(report: &str) -> u32 {
    let counts = report.lines().filter_map(|line| {
        let (start, _) = line.split_once(" passed on to the MPI: while groups were made")?;
        start.split(' ').next_back()?.parse::<u32>().ok()
    });
    counts.sum()
}

#[test]
fn broadcasts_go_on_while_groups_are_made() {
    for mpi in ALL {
        // Nodes are opened, groups entered, and the nodes have answered: three agreements.
        let Some(report) = prepare(mpi, 1, "whole") else { continue };
        assert!(unmade(&report) >= 3 * 8 && report.contains(" taken, "), "{report}");
    }
    let Some(report) = prepare(Mpi::OpenMpi, 2, "whole") else { return };
    assert!(unmade(&report) >= 3 * 8 && report.contains(" taken, "), "{report}");
}

/// If a broadcast waited for the node, which is opened in a second, there would be few of them
/// until it is open.
#[test]
fn no_broadcast_waits_for_a_node_to_open() {
    let Some(report) = prepare(Mpi::OpenMpi, 1, "slow-node") else { return };
    assert!(unmade(&report) >= 200 && report.contains(" taken, "), "{report}");
}

#[test]
fn communicators_end_while_their_groups_are_made() {
    for (mpi, ranks, part) in
        [(Mpi::OpenMpi, 2, "freed"), (Mpi::OpenMpi, 1, "freed-with-node"), (Mpi::Mpich, 1, "freed")]
    {
        let Some(report) = prepare(mpi, ranks, part) else { continue };
        assert!(report.contains(" taken, "), "{report}");
    }
}

#[test]
fn programs_end_while_groups_are_made() {
    for part in ["finalized-with-node", "finalized-with-groups"] {
        for ranks in [1, 2] {
            let Some(report) = prepare(Mpi::OpenMpi, ranks, part) else { return };
            assert!(unmade(&report) >= 3, "{report}");
        }
    }
}

/// Broadcasts are right with and without the groups that were being made. Those that are made stay
/// in use.
#[test]
#[ignore = "takes a minute; make mpi-matrix"]
fn a_rank_that_is_stopped_while_groups_are_made_loses_nothing() {
    for part in ["stopped-with-node", "stopped-with-groups"] {
        for ranks in [1, 2] {
            let Some(report) = prepare(Mpi::OpenMpi, ranks, part) else { return };
            assert!(report.contains(" taken, "), "{report}");
        }
    }
}

#[test]
fn a_rank_without_a_node_lets_all_pass_their_broadcasts_on() {
    for part in ["no-node", "no-interface"] {
        let Some(report) = prepare(Mpi::OpenMpi, 1, part) else { return };
        assert!(report.contains("a rank has no node: ") && !report.contains(" taken, "), "{report}");
    }
}

#[test]
fn threads_make_groups_of_their_own_communicators() {
    let Some(report) = prepare(Mpi::OpenMpi, 1, "threads") else { return };
    assert!(unmade(&report) > 0, "{report}");
}

/// Treecast was faster in an earlier run, whose times are written by this test: so all roots get
/// groups, and nonblocking broadcasts too.
#[test]
fn other_roots_and_nonblocking_broadcasts_get_groups_in_the_background() {
    let directory = tempfile::tempdir().unwrap();
    let history = directory.path().join("mpi.tsv");
    let path = history.to_str().unwrap();
    let Some(_) = prepare_with(Mpi::OpenMpi, 1, "whole", path) else { return };
    let kept = std::fs::read_to_string(&history).unwrap();
    let faster = |line: &str| {
        let key: Vec<&str> = line.split('\t').take(6).collect();
        format!("{}\t1000\t1\n", key.join("\t"))
    };
    let lines: String = kept.lines().filter(|line| !line.starts_with('#')).map(faster).collect();
    for (part, expected) in [("roots", " 6 groups"), ("nonblocking", " taken, nonblocking, ")] {
        std::fs::write(&history, &lines).unwrap();
        let report = prepare_with(Mpi::OpenMpi, 1, part, path).unwrap();
        assert!(report.contains(expected) && unmade(&report) >= 2 * 8, "{report}");
    }
}
