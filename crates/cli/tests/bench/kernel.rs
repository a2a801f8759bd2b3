//! The engine in the kernel.

use serde_json::Value;

use super::common::has_kernel_engine;
use super::{assert_no_loss, operations, report, report_without_loss};

fn rows_of<'a>(report: &'a Value, engine: &str) -> Vec<&'a Value> {
    report["rows"].as_array().unwrap().iter().filter(|row| row["engine"] == engine).collect()
}

#[test]
fn the_kernel_engine_is_measured_beside_the_user_engine() {
    if !has_kernel_engine() {
        return;
    }
    let arguments = "--lab 4 --engine user,ebpf --offload host,nic --auth header,payload --sizes 64,20K --messages 20 --rounds 2";
    let report = report(arguments);
    assert_eq!(rows_of(&report, "user").len(), 8);
    let kernel = rows_of(&report, "ebpf");
    // With offload host the engine makes no difference, and is measured once.
    let configurations: Vec<_> =
        kernel.iter().map(|row| [&row["offload"], &row["auth"]].map(|text| text.as_str().unwrap())).collect();
    assert_eq!(configurations, [["nic", "header"], ["nic", "payload"]].repeat(2));
    for row in report["rows"].as_array().unwrap() {
        assert_no_loss(row);
        let is_stored_first = row["last_stored_us_p50"].as_f64() <= row["last_delivery_us_p50"].as_f64();
        assert_eq!(row["last_stored_us_p50"].is_f64(), row["engine"] == "ebpf", "{row}");
        assert!(is_stored_first, "{row}");
    }
}

#[test]
fn the_kernel_engine_carries_results_of_all_reduces() {
    if !has_kernel_engine() {
        return;
    }
    let arguments = "--lab 3 --engine ebpf --offload nic --messages 20 --rounds 2 --operation all-reduce";
    let row = |bytes| ("ebpf".to_owned(), "all-reduce".to_owned(), bytes);
    assert_eq!(operations(&format!("{arguments} --sizes 8,504 --loss 2%")), [8, 504].map(row));
}

#[test]
fn the_kernel_engine_takes_data_by_multicast() {
    if !has_kernel_engine() {
        return;
    }
    for arguments in [
        "--lab 5 --engine user,ebpf --offload switch --sizes 64,20K --messages 100 --rounds 2",
        "--lab 5 --engine ebpf --offload switch --scheme binomial --sizes 64,3K --messages 300 --rounds 1 --loss 5%",
        "--lab 5 --engine ebpf --offload switch --scheme serial --sizes 2M --messages 3 --rounds 1 --stream --loss 1%",
        "--lab 5 --engine ebpf --offload switch --scheme binomial --sizes 64 --messages 2000 --rounds 1 --stream --reorder 5%",
    ] {
        for row in report_without_loss(arguments)["rows"].as_array().unwrap() {
            assert_eq!(row["last_stored_us_p50"].is_f64(), row["engine"] == "ebpf", "{row}");
        }
    }
}

#[test]
fn processes_share_the_kernel_engine_of_their_host() {
    if !has_kernel_engine() {
        return;
    }
    let arguments =
        "--lab 3 --processes 4 --engine user,ebpf --sizes 64,20K --messages 40 --rounds 2 --loss 2%";
    let report = report(arguments);
    let rows = report["rows"].as_array().unwrap();
    let engines: Vec<_> = rows.iter().map(|row| row["engine"].as_str().unwrap()).collect();
    assert_eq!(engines, ["user", "ebpf"].repeat(2));
    for row in rows {
        assert_no_loss(row);
        assert_eq!(row["processes"], 4);
    }
}

#[test]
fn the_kernel_engine_recovers_lost_packets() {
    if !has_kernel_engine() {
        return;
    }
    for arguments in [
        "--lab 5 --engine ebpf --offload nic --scheme binomial --sizes 64,3K --messages 300 --rounds 1 --loss 5%",
        "--lab 5 --engine ebpf --offload nic --scheme serial --sizes 2M --messages 3 --rounds 1 --stream --loss 1%",
        "--lab 5 --engine ebpf --offload nic --sizes 64 --messages 3000 --rounds 1 --stream --loss 1%",
    ] {
        for row in report_without_loss(arguments)["rows"].as_array().unwrap() {
            assert!(row["retransmitted_per_broadcast"].as_f64() > Some(0.0), "{row}");
        }
    }
}

#[test]
fn the_kernel_engine_delivers_reordered_packets_in_order() {
    if !has_kernel_engine() {
        return;
    }
    for arguments in [
        "--lab 5 --engine ebpf --offload nic --scheme binomial --sizes 64,20K --messages 150 --rounds 1 --reorder 10%",
        "--lab 5 --engine ebpf --offload nic --scheme serial --sizes 2M --messages 2 --rounds 1 --stream --reorder 2%",
        "--lab 5 --engine user,ebpf --offload nic --sizes 64 --messages 2000 --rounds 1 --stream --reorder 5% --loss 1%",
    ] {
        // Workers compare the number of each message with the expected one.
        report_without_loss(arguments);
    }
}

#[test]
fn a_dead_child_of_the_kernel_engine_is_cut_off() {
    if !has_kernel_engine() {
        return;
    }
    let arguments =
        "--lab 5 --engine ebpf --offload nic --scheme serial --sizes 4M --messages 3 --rounds 1 --kill 2";
    let report = report(arguments);
    let lost = report["lost_members"].as_array().unwrap();
    assert!(lost.len() == 1 && lost[0].as_str().unwrap().starts_with("member 2 at 10.42.0.3:"), "{lost:?}");
    assert!(report["rows"][0]["killed"]["survivors_complete_us"].as_f64() > Some(0.0));
    assert_no_loss(&report["rows"][0]);
}

/// The benchmark command of docs/kernel.md runs.
#[test]
fn the_benchmark_command_of_the_docs_runs() {
    if !has_kernel_engine() {
        return;
    }
    let path = format!("{}/../../docs/kernel.md", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let command = text.lines().find_map(|line| line.strip_prefix("    treecast bench "));
    let report = report(command.expect("the page shows a comparison"));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| &row["engine"]).collect::<Vec<_>>(), ["user", "user", "ebpf"]);
    assert!(rows.iter().all(|row| row["lost"] == 0 && row["duplicates"] == 0), "{rows:?}");
}
