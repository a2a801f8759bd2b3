//! MPI programs with the shim preloaded: their broadcasts are right, and are taken, with each MPI
//! that is installed.
//!
//! The hosts are those of labs, and the programs of `mpi/tests` compare what comes with what the
//! MPI's own broadcast gives.

mod languages;
mod matrix;
mod preparing;
mod processes;
mod programs;
mod wheels;

use std::process::Command;

use treecast_lab::LabSettings;

use programs::{
    ALL, Built, MPICH_TRIES, Mpi, Ran, TIMED_OUT, TIMEOUT_S, broadcast, broadcast_in, compare, repository,
    run, skip, start, text,
};

const TYPES: [&str; 3] = ["basic", "derived", "mixed"];

#[test]
fn every_type_count_and_root_is_right_with_one_rank_on_each_host() {
    for mpi in ALL {
        compare(mpi, &LabSettings::new(4), 1, &TYPES);
    }
}

#[test]
fn every_type_count_and_root_is_right_with_two_ranks_on_each_host() {
    compare(Mpi::OpenMpi, &LabSettings::new(4), 2, &TYPES);
    compare(Mpi::Mpich, &LabSettings::new(2), 2, &TYPES);
}

#[test]
fn every_length_is_right() {
    for mpi in ALL {
        compare(mpi, &LabSettings::new(3), 1, &["sizes", "late"]);
    }
}

#[test]
fn communicators_come_and_go() {
    compare(Mpi::OpenMpi, &LabSettings::new(4), 2, &["communicators"]);
    compare(Mpi::Mpich, &LabSettings::new(4), 1, &["communicators"]);
}

#[test]
fn a_thousand_communicators_leave_no_descriptors_or_groups() {
    compare(Mpi::OpenMpi, &LabSettings::new(2), 1, &["many"]);
}

/// Each MPI has one lab, as for all-gathers and reduces; the matrix has the others.
#[test]
fn communicators_of_the_same_processes_share_groups() {
    let parts = ["duplicates", "duplicates-threads", "duplicates-requests", "duplicates-bytes"];
    compare(Mpi::Mpich, &LabSettings::new(4), 1, &parts);
    compare(Mpi::OpenMpi, &LabSettings::new(2), 2, &parts);
}

#[test]
fn duplicates_are_made_while_messages_are_under_way() {
    compare(Mpi::OpenMpi, &LabSettings::new(3), 2, &["duplicates-pending"]);
    compare(Mpi::Mpich, &LabSettings::new(3), 1, &["duplicates-pending"]);
}

/// The first duplicate makes three groups, and 199 others use them.
#[test]
fn two_hundred_duplicates_have_three_groups() {
    let Some(ran) = broadcast(Mpi::OpenMpi, &LabSettings::new(2), 1, &[], &["many-duplicates"]) else {
        return;
    };
    let report = text(&ran.output);
    assert!(ran.output.status.success() && ran.taken >= 600, "{report}");
    assert!(report.contains(", 3 groups, 597 shared with other communicators"), "{report}");
}

#[test]
fn broadcasts_are_in_order_without_barriers_and_beside_others() {
    for mpi in ALL {
        let parts = ["back-to-back", "nonblocking", "threads", "progress", "closing"];
        compare(mpi, &LabSettings::new(4), 1, &parts);
    }
}

#[test]
fn nonblocking_broadcasts_are_completed_in_every_way() {
    for mpi in ALL {
        compare(mpi, &LabSettings::new(3), 1, &["completions", "shapes", "pending"]);
    }
    compare(Mpi::OpenMpi, &LabSettings::new(2), 2, &["completions", "shapes", "pending"]);
}

#[test]
fn nonblocking_broadcasts_go_on_while_ranks_wait_elsewhere() {
    for mpi in ALL {
        compare(mpi, &LabSettings::new(3), 1, &["waits-elsewhere", "nonblocking-threads", "other-lengths"]);
    }
}

#[test]
fn persistent_broadcasts_are_started_in_any_order() {
    let parts = ["persistent", "persistent-ends"];
    for mpi in ALL {
        compare(mpi, &LabSettings::new(3), 1, &parts);
    }
    compare(Mpi::OpenMpi, &LabSettings::new(2), 2, &parts);
}

#[test]
fn short_all_gathers_are_right() {
    compare(Mpi::OpenMpi, &LabSettings::new(4), 1, &["gathers", "wrong-blocks"]);
    compare(Mpi::Mpich, &LabSettings::new(2), 2, &["gathers"]);
}

#[test]
fn short_reduces_are_right() {
    compare(Mpi::OpenMpi, &LabSettings::new(4), 2, &["reduces"]);
    compare(Mpi::Mpich, &LabSettings::new(4), 1, &["reduces"]);
}

#[test]
fn broadcasts_with_four_ranks_on_each_host_are_right() {
    compare(Mpi::OpenMpi, &LabSettings::new(4), 4, &["mixed", "back-to-back", "truncation"]);
}

#[test]
fn other_bytes_than_the_roots_are_an_error_and_no_hang() {
    for mpi in ALL {
        compare(mpi, &LabSettings::new(3), 1, &["truncation"]);
    }
}

#[test]
fn lost_packets_are_sent_again() {
    let mut lab = LabSettings::new(4);
    lab.loss = "5%".parse().unwrap();
    compare(Mpi::OpenMpi, &lab, 1, &["mixed", "back-to-back"]);
}

/// The cases mostly wait, so they run at the same time.
#[test]
fn a_rank_that_ends_does_not_leave_the_others_waiting() {
    std::thread::scope(|scope| {
        for mpi in ALL {
            for part in ["killed", "killed-nonblocking", "killed-values"] {
                scope.spawn(move || expect_an_end(mpi, part));
            }
        }
    });
}

/// The other ranks' error handler ends the program with the name of the member, or the launcher
/// notices first.
fn expect_an_end(mpi: Mpi, part: &str) {
    let environment = [("TREECAST_MPI_PEER_TIMEOUT_MS", "2000")];
    let mut tries = if mpi == Mpi::Mpich { MPICH_TRIES } else { 1 };
    loop {
        let ran = broadcast(mpi, &LabSettings::new(3), 1, &environment, &[part]);
        let Some(Ran { output, .. }) = ran else { return };
        let written = text(&output);
        let has_failed = output.status.code().is_some_and(|code| code != 0 && code != TIMED_OUT);
        assert!(has_failed, "{mpi:?}, {part}: {}: {written}", output.status);
        let is_named = [
            "Treecast: member 2 at 10.42.0.3:",
            "a nonblocking broadcast has failed: member 2 at 10.42.0.3:",
            "Treecast: rank 2 has given no block",
            "Treecast: rank 2 at 10.42.0.3:",
        ]
        .iter()
        .any(|line| written.contains(line));
        // Open MPI's launcher ends the program when a process ends without MPI_Finalize.
        if is_named || mpi == Mpi::OpenMpi && written.contains("exiting improperly") {
            return;
        }
        tries -= 1;
        assert!(tries > 0, "{mpi:?}, {part}: {}: {written}", output.status);
    }
}

#[test]
fn what_is_not_taken_is_passed_on_and_reported() {
    let run = |lab: &LabSettings, ranks, environment: &[(&str, &str)]| {
        let ran = broadcast(Mpi::OpenMpi, lab, ranks, environment, &["mixed"])?;
        assert!(ran.output.status.success(), "{}", text(&ran.output));
        Some((ran.taken, text(&ran.output)))
    };
    let hosts = LabSettings::new(2);
    let Some((taken, report)) = run(&LabSettings::new(1), 2, &[]) else { return };
    assert!(taken == 0 && report.contains("8 passed on to the MPI: all ranks on one host"), "{report}");
    let (taken, report) = run(&hosts, 1, &[("TREECAST_MPI_MIN_BYTES", "40K")]).unwrap();
    assert!(taken == 6 && report.contains("2 passed on to the MPI: shorter or longer than set"), "{report}");
    let (taken, report) = run(&hosts, 1, &[("TREECAST_MPI", "off")]).unwrap();
    assert!(taken == 0 && !report.contains("treecast"), "{report}");
    // A setting that no group can have: the program runs as without the shim, and the report says
    // why.
    let (taken, report) = run(&hosts, 1, &[("TREECAST_MPI_SCHEME", "nonsense")]).unwrap();
    assert!(taken == 0 && report.contains("a rank cannot make the group: "), "{report}");
    let (taken, report) = run(&hosts, 1, &[("TREECAST_MPI_INTERFACE", "10.42.0.0/16")]).unwrap();
    // As the library does by default, which sends on streams.
    assert!(taken == 8 && report.contains(", offload nic\n"), "{report}");
    for interface in ["none0", "10.43.0.0/16", "10.42.0.0/99"] {
        let (taken, report) = run(&hosts, 1, &[("TREECAST_MPI_INTERFACE", interface)]).unwrap();
        let why = format!("a rank has no node: TREECAST_MPI_INTERFACE={interface}: this host has no such ");
        assert!(taken == 0 && report.contains(&why), "{report}");
    }
    for (name, value, expected) in [
        ("TREECAST_MPI_MAX_BYTES", "much", "a number of bytes, such as 512 or 64K,"),
        ("TREECAST_MPI_ROOTS", "many", "a number from 1 to 64"),
    ] {
        let (taken, report) = run(&hosts, 1, &[(name, value)]).unwrap();
        let ignored = format!("{name}={value} is ignored: {expected} is expected");
        assert!(taken == 8 && report.matches(&ignored).count() == 1, "one rank says so: {report}");
    }
}

/// Compiles a program of `mpi/tests` that needs no launcher with files of the shim, and runs it.
fn run_alone(test: &str, files: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let Some(mpi) = ALL.into_iter().find(|mpi| Built::get().program(*mpi).exists()) else {
        return skip(&format!("no MPI, so mpi/tests/{test} is not compiled"));
    };
    let program = directory.path().join("program");
    let mut compile = Command::new(format!("mpicc.{}", mpi.name()));
    let shim = repository().join("mpi");
    let sources = [shim.join("tests").join(test)].into_iter().chain(files.iter().map(|file| shim.join(file)));
    compile.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
    compile.arg("-I").arg(repository().join("include"));
    run(compile.args(sources));
    let output = Command::new("timeout").arg(TIMEOUT_S).arg(program).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

/// In simulated time: threads are ranks.
#[test]
fn ranks_choose_the_same_way_and_trials_stay_within_their_bound() {
    run_alone("choice.c", &["choice.c"]);
}

/// Groups are in the memory of one process: threads are ranks, and have threads of their own.
#[test]
fn messages_of_several_communicators_arrive_in_any_order() {
    run_alone("channel.c", &["channel.c", "channel_use.c", "channel_send.c", "channel_receive.c"]);
}

#[test]
fn processes_that_end_together_keep_what_each_has_measured() {
    run_alone("history.c", &["history.c"]);
}

/// Broadcasts by both ways in turn are right, and what was measured is kept for the next run.
#[test]
fn ways_are_compared_and_remembered() {
    for mpi in ALL {
        let directory = tempfile::tempdir().unwrap();
        let history = directory.path().join("kept/mpi.tsv");
        let environment = [
            ("TREECAST_MPI_ENGINE", "user"),
            ("TREECAST_MPI_CHOICE", "measure"),
            ("TREECAST_MPI_TRIAL_PERCENT", "100"),
            ("TREECAST_MPI_HISTORY", history.to_str().unwrap()),
        ];
        // A trial starts some hundred broadcasts after it was decided.
        let iterations = ["iterations"; 6];
        let parts = [&iterations[..], &["completions", "pending", "gathers", "reduces"]].concat();
        let ran = broadcast(mpi, &LabSettings::new(3), 1, &environment, &parts);
        let Some(Ran { output, taken, .. }) = ran else { continue };
        let report = text(&output);
        assert!(report.matches("iterations: 1500 broadcasts").count() == iterations.len(), "{report}");
        // MPICH's launcher may lose what a rank wrote that hung in `MPI_Finalize`.
        assert!(
            mpi == Mpi::Mpich || (taken > 0 && report.contains(" us by Treecast (medians): goes by ")),
            "{report}"
        );
        let kept = std::fs::read_to_string(&history).unwrap();
        let times: Vec<Vec<&str>> = kept.lines().skip(1).map(|line| line.split('\t').collect()).collect();
        assert!(!times.is_empty() && times.iter().all(|line| line.len() == 8 && line[2] == "3"), "{kept}");
        let others = std::fs::read_dir(history.parent().unwrap()).unwrap().count();
        assert_eq!(others, 1, "{kept}");
    }
}

/// The ranks go the same way for each broadcast, whatever their own bounds are: those of rank 0
/// count.
#[test]
fn a_bound_that_only_rank_0_has_is_that_of_all_ranks() {
    let environment = [
        ("TREECAST_MPI_ENGINE", "user"),
        ("TREECAST_MPI_CHOICE", "measure"),
        ("TREECAST_MPI_TRIAL_PERCENT", "100"),
        ("TREECAST_MPI_HISTORY", "off"),
    ];
    let parts = ["bounds", "iterations"];
    let Some(ran) = broadcast(Mpi::OpenMpi, &LabSettings::new(3), 1, &environment, &parts) else { return };
    let report = text(&ran.output);
    assert!(ran.output.status.success(), "{}: {report}", ran.output.status);
    assert!(report.contains("passed on to the MPI: shorter or longer than set"), "{report}");
}

#[test]
fn few_broadcasts_are_passed_on() {
    let choice = |choice| [("TREECAST_MPI_HISTORY", "off"), ("TREECAST_MPI_CHOICE", choice)];
    let lab = LabSettings::new(2);
    for (name, reason) in [
        ("measure", "too few to try Treecast"),
        ("never", "switched off"),
        ("sometimes", "too few to try Treecast"),
    ] {
        let Some(ran) = broadcast(Mpi::OpenMpi, &lab, 1, &choice(name), &["mixed"]) else { return };
        let report = text(&ran.output);
        assert!(ran.output.status.success() && ran.taken == 0, "{report}");
        assert!(report.contains(&format!("8 passed on to the MPI: {reason}")), "{report}");
        assert!(
            report.contains("TREECAST_MPI_CHOICE=sometimes is ignored: measure, always or never is expected")
                == (name == "sometimes"),
            "{report}"
        );
    }
}

/// The nodes listen at addresses of one network, of which each host has a link of its own.
#[test]
fn broadcasts_are_passed_on_where_no_datagrams_arrive() {
    let mpi = Mpi::OpenMpi;
    let Some(lab) = start(mpi, &LabSettings::new(2)) else { return };
    for host in 0..2 {
        let line = format!(
            "ip link add one type veth peer name two && ip address add 10.99.0.{}/24 dev one && \
             ip link set one up && ip link set two up",
            host + 1
        );
        run(lab.command(host, "sh").unwrap().args(["-c", &line]));
    }
    let Ran { output, taken, .. } =
        broadcast_in(&lab, mpi, 1, &[("TREECAST_MPI_INTERFACE", "one")], &["mixed"]);
    let report = text(&output);
    assert!(output.status.success() && taken == 0, "{report}");
    assert!(report.contains("a rank cannot make the group: member 1 at 10.99.0.2:"), "{report}");
}

/// The shim loads the library when it opens a node.
#[test]
fn broadcasts_are_passed_on_where_the_library_cannot_be_loaded() {
    let mpi = Mpi::OpenMpi;
    let Some(lab) = start(mpi, &LabSettings::new(2)) else { return };
    let directory = tempfile::tempdir().unwrap();
    let shim = directory.path().join("shim.so");
    std::fs::copy(Built::get().shim(mpi), &shim).unwrap();
    let abi = concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
    std::fs::write(directory.path().join(format!("libtreecast.so.{abi}")), "").unwrap();
    let Ran { output, taken, .. } =
        broadcast_in(&lab, mpi, 1, &[("LD_PRELOAD", shim.to_str().unwrap())], &["mixed"]);
    let report = text(&output);
    assert!(output.status.success() && taken == 0, "{report}");
    assert!(report.contains("a rank has no node: the library of Treecast cannot be loaded: /"), "{report}");
    assert!(report.contains("file too short"), "{report}");
}

/// The shim of another MPI does nothing, and reports that.
#[test]
fn the_shim_of_another_mpi_passes_everything_on() {
    let built = Built::get();
    if ALL.iter().any(|&mpi| !built.program(mpi).exists()) {
        return skip("not two MPIs, so no program has the shim of the other");
    }
    for (mpi, other) in [(Mpi::OpenMpi, Mpi::Mpich), (Mpi::Mpich, Mpi::OpenMpi)] {
        let mut command = Command::new(format!("mpirun.{}", mpi.name()));
        if mpi == Mpi::OpenMpi {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
        }
        command.args(["-n", "2"]).arg("env").arg(format!("LD_PRELOAD={}", built.shim(other).display()));
        let output = run(command.arg(built.program(mpi)).arg("mixed"));
        let written = text(&output);
        assert!(
            written.contains("mixed: 8 broadcasts") && written.contains("is for another MPI"),
            "{written}"
        );
    }
}

/// In a mount namespace whose `/etc` has such a file.
#[test]
fn a_shim_that_is_preloaded_into_all_programs_of_a_host_passes_everything_on() {
    let (built, mpi) = (Built::get(), Mpi::OpenMpi);
    if !built.program(mpi).exists() {
        return skip("no Open MPI, so no program has the shim of /etc/ld.so.preload");
    }
    let namespace = ["--mount", "--map-root-user", "sh", "-ec"];
    if !Command::new("unshare").args(namespace).arg("true").output().is_ok_and(|ran| ran.status.success()) {
        return skip("no mount namespace, so no program has the shim of /etc/ld.so.preload");
    }
    let etc = tempfile::tempdir().unwrap();
    let line = "cp -R /etc/. \"$1\" 2>/dev/null || true; echo \"$2\" > \"$1/ld.so.preload\"; \
                mount --bind \"$1\" /etc; \
                exec timeout \"$3\" mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 $4 \"$5\" mixed";
    let written = |option: &str| {
        let mut command = Command::new("unshare");
        command.args(namespace).args([line, "sh"]).arg(etc.path()).arg(built.shim(mpi));
        command.args([TIMEOUT_S, option]).arg(built.program(mpi)).env("TREECAST_MPI_REPORT", "on");
        text(&run(&mut command))
    };
    let refused = written("");
    assert!(
        refused.contains("mixed: 8 broadcasts") && refused.contains("in /etc/ld.so.preload"),
        "{refused}"
    );
    assert!(!refused.contains("collectives at rank 0"), "{refused}");
    // The shim of this variable counts, as on hosts without the file.
    let by_variable = written(&format!("env LD_PRELOAD={}", built.shim(mpi).display()));
    assert!(by_variable.contains("mixed: 8 broadcasts"), "{by_variable}");
    assert!(by_variable.contains("collectives at rank 0"), "{by_variable}");
}
