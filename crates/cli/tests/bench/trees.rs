//! Trees for racks, for fabrics, and by the costs of a network.

use std::process::{Command, Output};

use serde_json::Value;

use super::{assert_no_loss, bench, lab_report, report, report_without_loss};

#[test]
fn racks_are_measured_with_and_without_a_tree_for_them() {
    if !Command::new(env!("CARGO_BIN_EXE_treecast"))
        .args(["lab", "1", "--", "true"])
        .status()
        .unwrap()
        .success()
    {
        return;
    }
    let arguments = "--racks 3x4 --offload nic --sizes 2000,64K --messages 20 --rounds 2";
    let report = report(arguments);
    let rows = report["rows"].as_array().unwrap();
    rows.iter().for_each(assert_no_loss);
    let on_fabric: Vec<bool> = rows.iter().map(|row| row["on_fabric"].as_bool().unwrap()).collect();
    assert_eq!(on_fabric, [false, true, false, true]);
    // Of 12 members 8 are in other racks, and 2 of them are reached from outside. Members are on
    // one rack after the other in turn, so without the fabric more than 6 of 11 edges cross
    // uplinks: three times as many bytes and more for a message of many packets. For one packet,
    // as long as one can be, heartbeats and acknowledgments outside the tree count too: on a busy
    // machine, where a broadcast takes longer, more of them.
    let uplinks = |row: &Value| row["uplink_bytes_per_broadcast"].as_f64().unwrap();
    let busiest = |row: &Value| row["busiest_uplink_bytes_per_broadcast"].as_f64().unwrap();
    assert!(uplinks(&rows[2]) > 3.0 * uplinks(&rows[3]), "{rows:?}");
    assert!(uplinks(&rows[0]) > 2.5 * uplinks(&rows[1]), "{rows:?}");
    assert!(busiest(&rows[3]) > 65_536.0 && 2.0 * busiest(&rows[3]) <= uplinks(&rows[3]), "{rows:?}");
}

#[test]
fn racks_of_hosts_with_several_processes_are_measured() {
    let arguments = "--racks 2x2 --processes 2 --offload nic,switch --sizes 64K --messages 10 --rounds 2";
    let Some(report) = lab_report(arguments) else { return };
    let rows = report["rows"].as_array().unwrap();
    rows.iter().for_each(assert_no_loss);
    let on_fabric: Vec<_> = rows.iter().map(|row| row["on_fabric"].as_bool().unwrap()).collect();
    assert_eq!(on_fabric, [false, true, false, true]);
    let uplinks = |row: &Value| row["uplink_bytes_per_broadcast"].as_f64().unwrap();
    assert!(uplinks(&rows[0]) > 1.5 * uplinks(&rows[1]), "{rows:?}");
}

#[test]
fn a_fabric_can_be_given() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hosts.inventory");
    std::fs::write(&file, "127.0.0.1 rack1\n").unwrap();
    let arguments = "--loopback 3 --offload nic --sizes 64 --messages 4 --fabric";
    let given = report(&format!("{arguments} {}", file.display()));
    let on_fabric: Vec<_> = given["rows"].as_array().unwrap().iter().map(|row| &row["on_fabric"]).collect();
    assert_eq!(on_fabric, [false, true]);
    let output = bench(arguments).arg("star:3").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("host 0: member 0: the fabric has no host '127.0.0.1': known are h0, h1, h2"),
        "{stderr}"
    );
    let output = bench("--lab 3 --uplink 1mbit").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("expected no rate in a lab without racks"));
}

/// What `tune` writes, `predict` and `bench` read, and groups choose their trees by it.
#[test]
fn a_network_is_measured_and_predicted() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("network.toml");
    let network = file.to_str().unwrap();
    let treecast = |arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
        command.args(arguments.split_ascii_whitespace());
        command
    };
    let json = |mut command: Command| -> Value {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let tuned = treecast(&format!("tune --loopback 4 --sizes 64,16K --messages 20 --out {network}"));
    let tuned = { tuned }.output().unwrap();
    assert!(tuned.status.success(), "{}", String::from_utf8_lossy(&tuned.stderr));
    // The best ways and trees are printed, and are in the file too.
    let printed = String::from_utf8(tuned.stdout).unwrap();
    let written = std::fs::read_to_string(network).unwrap();
    for line in printed.lines() {
        assert!(written.contains(format!("# {line}").trim_end()), "{line}: {written}");
    }
    let best_of = |hosts: &str, bytes: &str| {
        let rows = printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        { rows }.find(|row| row.starts_with(&[hosts, bytes])).unwrap()
    };
    let predicted = json(treecast(&format!(
        "predict --network {network} --members 4 --best --format json --sizes 64,16K"
    )));
    for bytes in [64_u64, 16_384] {
        let best = best_of("4", &bytes.to_string());
        let rows = predicted["rows"].as_array().unwrap().iter();
        let of_size = rows.filter(|row| row["bytes"] == bytes);
        let us = |row: &Value| row["last_delivery_us"].as_f64().unwrap();
        let first = of_size.min_by(|one, other| us(one).total_cmp(&us(other))).unwrap();
        let names = ["engine", "offload", "scheme", "transport"].map(|name| first[name].as_str().unwrap());
        assert_eq!(best[2..6], names, "{printed}");
        assert_eq!(best[6], format!("{:.1}", us(first)));
    }
    let predict =
        format!("predict --network {network} --members 8 --best --transport stream --format json --sizes 64");
    let predicted = json(treecast(&predict));
    let best = &predicted["rows"][0];
    assert!(best["last_delivery_us"].as_f64().unwrap() > 1.0, "{predicted}");

    let measured = report_without_loss(&format!(
        "--loopback 8 --offload nic --scheme {} --sizes 64 --messages 10 --rounds 1 --predict {network}",
        best["scheme"].as_str().unwrap()
    ));
    let row = &measured["rows"][0];
    assert_eq!(row["last_delivery_us_predicted"], best["last_delivery_us"], "{row}");

    // The broadcast of the row is played beside the predicted one.
    let broadcast = &row["broadcast"];
    for list in ["parents", "delivered_us"] {
        assert_eq!(broadcast[list].as_array().map(Vec::len), Some(7), "{row}");
    }
    let (bench_file, page) = (directory.path().join("bench.json"), directory.path().join("page.html"));
    std::fs::write(&bench_file, measured.to_string()).unwrap();
    let files = format!("{} {}", bench_file.display(), page.display());
    let played = treecast(&format!("report --play --network {network} {files}")).output().unwrap();
    assert!(played.status.success(), "{}", String::from_utf8_lossy(&played.stderr));
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("A broadcast of 64 bytes among 8 hosts") && page.contains(", predicted\""),
        "{page}"
    );
    let refused = treecast(&format!("report --play {network} /dev/null")).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("network.toml: --play takes a bench"));

    let mut chosen =
        bench("--loopback 8 --offload nic --sizes 64 --messages 10 --rounds 1 --format json --predict");
    chosen.arg(network).env("TREECAST_NETWORK", network);
    let chosen = json(chosen);
    assert_eq!(chosen["rows"][0]["lost"], 0);

    let slow_relays = directory.path().join("slow_relays.toml");
    let way = "[[way]]\nengine = 'user'\noffload = 'nic'\ntransport = 'stream'\n";
    let costs = format!("format = 'treecast-network-1'\n{way}[way.set]\nsend_us = 1\nwake_us = 500\n");
    std::fs::write(&slow_relays, costs).unwrap();
    let by_costs = report_without_loss(&format!(
        "--loopback 8 --offload nic --sizes 64K --messages 10 --rounds 1 --network {}",
        slow_relays.display()
    ));
    let parents = by_costs["rows"][0]["broadcast"]["parents"].as_array().unwrap();
    assert!(parents.len() == 7 && parents.iter().all(|parent| *parent == 0), "{by_costs}");

    let unreadable = bench("--loopback 2 --messages 1 --rounds 1 --network /nowhere/network.toml").output();
    let Output { status, stderr, .. } = unreadable.unwrap();
    assert_eq!(status.code(), Some(2));
    assert!(String::from_utf8_lossy(&stderr).contains("/nowhere/network.toml: could not be read"));

    let mut unreadable = bench("--loopback 2 --messages 1 --rounds 1 --offload nic");
    let output = unreadable.env("TREECAST_NETWORK", "/nowhere/network.toml").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("/nowhere/network.toml: could not be read"), "{stderr}");
    assert_eq!(output.status.code(), Some(2));
}
