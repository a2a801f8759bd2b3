//! `treecast bench`: nodes in processes of their own, on loopback and in a lab.

use std::process::Command;

use serde_json::Value;

fn bench(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
    command.arg("bench").args(words);
    command
}

fn report(words: &[&str]) -> Value {
    let output = bench(words).args(["--format", "json"]).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    serde_json::from_slice(&output.stdout).unwrap()
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
        assert_eq!(
            (&row["engine"], &row["lost"], &row["doubled"]),
            (&"user".into(), &0.into(), &0.into()),
            "{row}"
        );
        for key in [
            "root_us_p50",
            "last_delivery_us_p50",
            "last_delivery_us_p99",
            "cpu_us_per_broadcast",
            "bcast_cpu_us_mean",
        ] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key} of {row}");
        }
        // Every member has the message before the root knows so.
        assert!(row["root_us_p99"].as_f64() >= row["root_us_p50"].as_f64());
    }
}

#[test]
fn ways_are_measured_side_by_side() {
    let report = report(&["--loopback", "3", "--messages", "6", "--rounds", "2", "--sizes", "4,2K"]);
    let ways = [("host", "binomial"), ("assisted", "auto"), ("nic", "auto")];
    let expected: Vec<_> =
        [4, 2_048].iter().flat_map(|&bytes| ways.map(|(offload, scheme)| (offload, scheme, bytes))).collect();
    check_rows(&report, &expected);
    assert_eq!(report["lost_members"], Value::Array(Vec::new()));
}

#[test]
fn messages_follow_one_another_or_meet_members_that_come_late() {
    let stream =
        report(&["--loopback", "3", "--messages", "5", "--sizes", "100K", "--offload", "nic", "--stream"]);
    check_rows(&stream, &[("nic", "auto", 102_400)]);
    assert!(stream["rows"][0]["throughput_mb_s"].as_f64().unwrap() > 0.0);
    let words = [
        "--loopback",
        "3",
        "--messages",
        "5",
        "--sizes",
        "4",
        "--offload",
        "nic",
        "--scheme",
        "separate;serial",
    ];
    let late = report(&[&words[..], &["--skew", "400us"]].concat());
    check_rows(&late, &[("nic", "separate", 4), ("nic", "serial", 4)]);
}

#[test]
fn what_makes_no_sense_is_said_in_a_sentence() {
    let cases: &[(&[&str], &str)] = &[
        (&["--sizes", "many"], "there is no size many: known is bytes, or 16K, 4M, 1G"),
        (&["--offload", "switch"], "unknown offload 'switch': known are host, assisted, nic"),
        (&["--engine", "quantum"], "there is no engine quantum: known is user"),
        (&["--skew", "long"], "there is no time long: known is 400us, 2ms, up to 60s"),
        (&["--loopback", "1"], "--loopback"),
        (&["--messages", "0"], "--messages"),
        (&["--lab", "2", "--loopback", "2"], "--loopback"),
        (&["--drop", "1%"], "--lab"),
        (&["--mtu", "100"], "--mtu"),
        (&["--scheme", "u-torus", "--loopback", "2"], "u-torus"),
    ];
    for (words, said) in cases {
        let output = bench(words).output().unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {complaint}");
        assert!(complaint.starts_with("treecast: ") && complaint.contains(said), "{words:?}: {complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
}
