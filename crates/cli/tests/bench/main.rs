//! `treecast bench`: nodes in separate processes, on loopback and in a lab.

#[path = "../common/mod.rs"]
mod common;
mod kernel;
mod peers;
mod refusals;
mod trees;

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

fn bench(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
    command.arg("bench").args(arguments.split_ascii_whitespace());
    command
}

fn report(arguments: &str) -> Value {
    let output = bench(arguments).args(["--format", "json"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A report in which every member has received every message once.
fn report_without_loss(arguments: &str) -> Value {
    let report = report(arguments);
    report["rows"].as_array().unwrap().iter().for_each(assert_no_loss);
    assert_eq!(report["lost_members"], Value::Array(Vec::new()));
    report
}

fn assert_no_loss(row: &Value) {
    assert_eq!(row["lost"], 0, "{row}");
    assert_eq!(row["duplicates"], 0, "{row}");
}

/// Rows of all-reduces and barriers: engine, operation and bytes. Workers check every sum.
fn operations(arguments: &str) -> Vec<(String, String, u64)> {
    let report = report_without_loss(arguments);
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        for key in ["root_us_p50", "last_delivery_us_p50", "call_us_mean", "cpu_us_per_broadcast"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key}: {row}");
        }
        assert_eq!(row["throughput_mb_s"].as_f64().unwrap() > 0.0, row["bytes"] != 0, "{row}");
    }
    let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    rows.iter()
        .map(|row| (text(row, "engine"), text(row, "operation"), row["bytes"].as_u64().unwrap()))
        .collect()
}

#[test]
fn all_reduces_and_barriers_are_measured() {
    let row = |operation: &str, bytes| ("user".to_owned(), operation.to_owned(), bytes);
    let all_reduces = operations("--loopback 3 --messages 6 --rounds 2 --operation all-reduce --offload nic");
    assert_eq!(all_reduces, [8, 64, 504].map(|bytes| row("all-reduce", bytes)));
    let shared = "--loopback 2 --processes 2 --messages 6 --rounds 2 --operation all-reduce --sizes 16";
    assert_eq!(operations(shared), [row("all-reduce", 16)]);
    let barriers = operations("--loopback 3 --messages 6 --rounds 2 --operation barrier");
    assert_eq!(barriers, [0; 3].map(|bytes| row("barrier", bytes)));
    let output = bench("--loopback 2 --messages 2 --operation barrier --offload nic").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("operation"), "the table has the operation");
}

fn check_rows(report: &Value, expected: &[(&str, &str, u64)]) {
    assert_eq!(report["format"], "treecast-bench-1");
    let rows = report["rows"].as_array().unwrap();
    let found: Vec<(&str, &str, u64)> = rows
        .iter()
        .map(|row| {
            let text = |key: &str| row[key].as_str().unwrap();
            (text("offload"), text("scheme"), row["bytes"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(found, expected);
    for row in rows {
        assert_eq!(row["engine"], "user", "{row}");
        assert_no_loss(row);
        for key in [
            "root_us_p50",
            "last_delivery_us_p50",
            "last_delivery_us_p99",
            "cpu_us_per_broadcast",
            "root_cpu_us_per_broadcast",
            "call_us_mean",
        ] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key} of {row}");
        }
        // Every member has the message before the root knows so.
        assert!(row["root_us_p99"].as_f64() >= row["root_us_p50"].as_f64());
    }
}

#[test]
fn configurations_are_measured_side_by_side() {
    let report = report("--loopback 3 --messages 6 --rounds 2 --sizes 4,2K");
    let configurations = [("host", "binomial"), ("assisted", "auto"), ("nic", "auto")];
    let expected: Vec<_> = [4, 2_048]
        .iter()
        .flat_map(|&bytes| configurations.map(|(offload, scheme)| (offload, scheme, bytes)))
        .collect();
    check_rows(&report, &expected);
    assert_eq!(report["lost_members"], Value::Array(Vec::new()));
}

#[test]
fn authentication_of_header_and_payload_is_measured_side_by_side() {
    let arguments =
        "--loopback 3 --messages 6 --rounds 2 --sizes 4,2K --offload host,nic --auth header,payload";
    let report = report(arguments);
    let configurations = [("host", "binomial"), ("host", "binomial"), ("nic", "auto"), ("nic", "auto")];
    let expected: Vec<_> = [4, 2_048]
        .iter()
        .flat_map(|&bytes| configurations.map(|(offload, scheme)| (offload, scheme, bytes)))
        .collect();
    check_rows(&report, &expected);
    let rows = report["rows"].as_array().unwrap();
    let authentications: Vec<_> = rows.iter().map(|row| row["auth"].as_str().unwrap()).collect();
    assert_eq!(authentications, ["header", "payload"].repeat(4));
}

#[test]
fn messages_are_sent_back_to_back_or_to_late_members() {
    let stream = report("--loopback 3 --messages 5 --sizes 100K --offload nic --stream");
    check_rows(&stream, &[("nic", "auto", 102_400)]);
    assert!(stream["rows"][0]["throughput_mb_s"].as_f64().unwrap() > 0.0);
    let late =
        report("--loopback 3 --messages 5 --sizes 4 --offload nic --scheme separate;serial --skew 0us,400us");
    let expected =
        [("nic", "separate", 4), ("nic", "separate", 4), ("nic", "serial", 4), ("nic", "serial", 4)];
    check_rows(&late, &expected);
    let skews: Vec<_> = late["rows"].as_array().unwrap().iter().map(|row| row["skew_us"].as_f64()).collect();
    assert_eq!(skews, [0.0, 400.0, 0.0, 400.0].map(Some));
}

#[test]
fn messages_are_sent_when_nodes_have_the_one_before_beside_the_limits_of_the_machine() {
    let report = report("--loopback 3 --messages 5 --sizes 64,3K --offload nic --when-stored --limits");
    check_rows(&report, &[("nic", "auto", 64), ("nic", "auto", 3_072)]);
    let limits = report["limits"].as_object().unwrap();
    assert_eq!(limits["processes"], 2);
    for limit in
        ["futex_wake_us", "yield_notice_us", "udp_each_us", "copy_bytes_per_s", "tcp_chain_bytes_per_s"]
    {
        assert!(limits[limit].as_f64().unwrap() > 0.0, "{limits:?}");
    }
    let table = bench("--loopback 2 --messages 2 --sizes 64 --limits").output().unwrap().stdout;
    let table = String::from_utf8(table).unwrap();
    assert!(table.contains("Limits of this machine (receivers: 1): a futex wakes all after"), "{table}");
}

#[test]
fn processes_of_a_host_share_its_node() {
    let arguments = "--loopback 3 --processes 3 --messages 6 --rounds 2 --sizes 4,2K --offload nic,switch";
    let shared = report(arguments);
    let expected =
        [("nic", "auto", 4), ("switch", "auto", 4), ("nic", "auto", 2_048), ("switch", "auto", 2_048)];
    check_rows(&shared, &expected);
    for row in shared["rows"].as_array().unwrap() {
        assert_eq!((&row["hosts"], &row["processes"]), (&3.into(), &3.into()));
    }
    // A broadcast takes one packet to each of the two other hosts; the processes there share it.
    let row = &shared["rows"][0];
    let sent = ["packets_per_broadcast", "retransmitted_per_broadcast"].map(|key| row[key].as_f64().unwrap());
    assert!((sent[0] - sent[1] - 2.0).abs() < 0.01, "{row}");
    let cyclic = report(&format!("{arguments} --placement cyclic"));
    check_rows(&cyclic, &expected);
    assert!(cyclic["rows"][0]["packets_per_broadcast"].as_f64() < Some(3.0), "{cyclic}");
    // Where nothing else is asked for, what hosts of several processes can do.
    let arguments = "--loopback 2 --processes 2 --messages 2 --sizes 4";
    check_rows(&report(arguments), &[("nic", "auto", 4)]);
    let table = bench(arguments).output().unwrap().stdout;
    let table = String::from_utf8(table).unwrap();
    assert!(table.starts_with(" bytes  processes  engine"), "{table}");
}

#[test]
fn a_late_process_is_measured_beside_the_others() {
    let arguments = "--loopback 3 --messages 5 --rounds 1 --sizes 4 --late 0us,400ms";
    for (more, process, host) in [
        ("--processes 3", 0, None),
        ("--processes 3 --late-process 1", 1, None),
        ("--processes 3 --late-process 1 --placement cyclic", 1, None),
        ("--late-host 2 --offload nic", 0, Some(2)),
    ] {
        let late = report(&format!("{arguments} {more}"));
        check_rows(&late, &[("nic", "auto", 4), ("nic", "auto", 4)]);
        let row = &late["rows"][1];
        assert_eq!(row["late"]["process"], process);
        assert_eq!(row["late"]["host"].as_u64(), host);
        assert_eq!(
            (&late["rows"][0]["late"]["delay_us"], &row["late"]["delay_us"]),
            (&0.0.into(), &400e3.into())
        );
        // The late process is the last one, and the others do not wait for it.
        let others = row["late"]["others_last_delivery_us_p50"].as_f64().unwrap();
        assert!(others > 0.0 && 2.0 * others < row["last_delivery_us_p50"].as_f64().unwrap(), "{row}");
        assert!(row["late"]["others_call_us_mean"].as_f64() > Some(0.0), "{row}");
    }
}

#[test]
fn survivors_receive_everything_after_a_member_is_killed() {
    // Long enough for the member to have less than all when it is killed.
    let arguments = "--loopback 4 --offload nic --scheme serial --sizes 16M --messages 3 --rounds 1 --kill 2";
    let report = report(arguments);
    check_rows(&report, &[("nic", "serial", 16 << 20)]);
    let lost = report["lost_members"].as_array().unwrap();
    let name = lost.first().and_then(Value::as_str).unwrap();
    assert!(lost.len() == 1 && name.starts_with("member 2 at 127.0.0.1:"), "{lost:?}");
    let killed = &report["rows"][0]["killed"];
    assert_eq!(killed["member"], 2);
    assert!(killed["root_knew_us"].as_f64() > Some(0.0), "{killed}");
    assert!(killed["survivors_complete_us"].as_f64() > Some(0.0), "{killed}");
}

#[test]
fn remote_hosts_are_reached_by_a_remote_shell() {
    let treecast = env!("CARGO_BIN_EXE_treecast");
    let arguments = "--sizes 64 --messages 5 --rounds 1 --offload nic --format json";
    let line = format!("{treecast} bench --hosts 'n[0-2]' --shell \"$TREECAST_LAB_AGENT -x\" {arguments}");
    let output = Command::new(treecast)
        .args(["lab", "3", "--on", "1", "--no-prefix", "--", "sh", "-c", &line])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("does not allow a lab") || stderr.contains("a lab needs the tool") {
        let _ = std::io::stderr().write_all(format!("skipped: {stderr}").as_bytes());
        return;
    }
    assert!(output.status.success(), "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    check_rows(&report, &[("nic", "auto", 64)]);
    assert_eq!(report["rows"][0]["hosts"], 3);
    assert!(report["nodes_opened"][0]["max_ms"].as_f64() > Some(0.0), "{}", report["nodes_opened"]);
    // All hosts of a lab share one clock, but it was compared over the network.
    assert!(report["clock_error_us"].as_f64() > Some(0.0));
}

/// A report of a lab; none, with a notice, where labs cannot be made.
fn lab_report(arguments: &str) -> Option<Value> {
    let output = bench(arguments).args(["--format", "json"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    if stderr.contains("does not allow a lab") || stderr.contains("a lab needs the tool") {
        let _ = std::io::stderr().write_all(format!("skipped: {stderr}").as_bytes());
        return None;
    }
    assert!(output.status.success(), "{stderr}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn data_by_multicast_comes_to_all_hosts_of_a_lab() {
    for arguments in [
        "--lab 5 --offload switch --sizes 64,20K --messages 50 --rounds 1",
        "--lab 5 --offload switch --sizes 64,20K --messages 50 --rounds 1 --multicast snooping",
        "--lab 5 --offload switch --sizes 64,20K --messages 50 --rounds 1 --loss 5%",
        "--lab 5 --offload switch --scheme serial --sizes 2M --messages 2 --rounds 1 --stream --loss 1%",
        "--lab 4 --offload switch --sizes 64 --messages 500 --rounds 1 --stream --reorder 5%",
    ] {
        let Some(report) = lab_report(arguments) else { return };
        for row in report["rows"].as_array().unwrap() {
            assert_no_loss(row);
            // The root sends each packet once, and a member gets by the tree only what it lacks;
            // along the tree alone each would be sent four times. Repairs do not count: on a busy
            // machine a host may be late for every message, and its parent repairs what is only
            // late.
            let [sent, retransmitted] = ["packets_per_broadcast", "retransmitted_per_broadcast"]
                .map(|key| row[key].as_f64().unwrap());
            let packets = row["bytes"].as_u64().unwrap().div_ceil(1_408) as f64;
            let is_lossless = !arguments.contains("--loss") && !arguments.contains("--reorder");
            assert!(!is_lossless || sent - retransmitted < 3.0 * packets, "{row}");
        }
        assert_eq!(report["lost_members"], Value::Array(Vec::new()));
    }
}

#[test]
fn a_group_leaves_streams_that_lose_packets() {
    let arguments = "--lab 3 --offload nic --sizes 256K --messages 80 --rounds 1 --loss 5%";
    let Some(report) = lab_report(arguments) else { return };
    let row = &report["rows"][0];
    assert_eq!(row["transport"], "both");
    assert_no_loss(row);
    // What a stream has lost TCP retransmits, and only datagrams are short.
    assert!(row["retransmitted_per_broadcast"].as_f64() > Some(1.0), "{row}");
    assert!(row["packets_per_broadcast"].as_f64() > Some(256.0), "{row}");
}

#[test]
fn where_switches_drop_multicast_parents_send() {
    let arguments =
        "--lab 5 --offload switch --scheme separate --sizes 64,20K --messages 50 --rounds 1 --multicast drop";
    let Some(report) = lab_report(arguments) else { return };
    for row in report["rows"].as_array().unwrap() {
        assert_no_loss(row);
        let packets = row["bytes"].as_u64().unwrap().div_ceil(1_408) as f64;
        assert!(row["packets_per_broadcast"].as_f64() >= Some(4.0 * packets), "{row}");
    }
}

#[test]
fn measurements_are_drawn_as_charts() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["chart.svg", "chart.html"] {
        let file = directory.path().join(name);
        let arguments = "--loopback 2 --messages 2 --sizes 4,64 --offload host,nic";
        let output = bench(arguments).args(["--format", "chart", "--chart"]).arg(&file).output().unwrap();
        let drawn = String::from_utf8(output.stdout).unwrap();
        assert!(drawn.starts_with("Broadcast among 2 hosts: latency of the last delivery\n"), "{drawn}");
        assert!(drawn.contains("host binomial") && drawn.contains("nic auto"), "{drawn}");
        let picture = std::fs::read_to_string(file).unwrap();
        assert!(picture.contains("nic auto") && picture.contains("last delivery (us)"));
    }
}

#[test]
fn charts_are_coloured_on_terminals_that_know_colours() {
    let drawn = |environment: &[(&str, &str)]| {
        let treecast = env!("CARGO_BIN_EXE_treecast");
        let command = format!("{treecast} bench --loopback 2 --messages 2 --sizes 4,64 --format chart");
        let mut script = Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
        let output = script.envs(environment.iter().copied()).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("latency of the last delivery"), "{text}");
        text
    };
    assert!(drawn(&[]).contains("\x1b["));
    assert!(!drawn(&[("TERM", "dumb")]).contains("\x1b["));
    assert!(!drawn(&[("NO_COLOR", "1")]).contains("\x1b["));
}

#[test]
fn a_saved_bench_has_the_page_that_its_chart_is() {
    let directory = tempfile::tempdir().unwrap();
    let [json, chart, page] =
        ["bench.json", "chart.html", "page.html"].map(|name| directory.path().join(name));
    let arguments = "--loopback 2 --messages 2 --sizes 4,64 --offload host,nic --format json";
    let output = bench(arguments).arg("--chart").arg(&chart).arg("--out").arg(&json).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let treecast = env!("CARGO_BIN_EXE_treecast");
    let output = Command::new(treecast).arg("report").args([&json, &page]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(page).unwrap();
    assert!(text == std::fs::read_to_string(chart).unwrap(), "the pages differ");
    for part in [
        "throughput (MB/s)",
        "time in the call (us)",
        "Measured on Linux ",
        "last delivery p50",
        "--sizes 4,64",
    ] {
        assert!(text.contains(part), "{part}");
    }
}
