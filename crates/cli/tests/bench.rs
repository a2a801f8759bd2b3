//! `treecast bench`: nodes in separate processes, on loopback and in a lab.

mod common;

use std::io::Write;
use std::process::{Command, Output};

use common::has_kernel_engine;
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

fn has_open_mpi() -> bool {
    let answers = |program| Command::new(program).arg("--version").output().is_ok();
    let has = ["mpirun", "mpicc"].into_iter().all(answers);
    if !has {
        eprintln!("skipped: Open MPI is not installed");
    }
    has
}

#[test]
fn a_peer_is_measured_in_the_same_lab() {
    if !has_open_mpi() {
        return;
    }
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
    let expected = [("user", 4), ("openmpi", 4), ("user", 71_680), ("openmpi", 71_680)];
    let expected = expected.map(|(engine, bytes)| (engine.to_owned(), bytes));
    let peer = "--offload nic --messages 6 --rounds 2 --peer openmpi";
    assert_eq!(subjects(&format!("--lab 3 --sizes 4,70K {peer}")), expected);
    assert_eq!(subjects(&format!("--lab 3 --sizes 4,70K --stream {peer}")), expected);
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

#[test]
fn all_reduces_and_barriers_of_a_peer_are_measured_in_the_same_lab() {
    if !has_open_mpi() {
        return;
    }
    let row = |engine: &str, operation: &str, bytes| (engine.to_owned(), operation.to_owned(), bytes);
    let arguments = "--lab 3 --offload nic --messages 6 --rounds 2 --peer openmpi --operation";
    let both = |operation: &str, bytes| ["user", "openmpi"].map(|engine| row(engine, operation, bytes));
    assert_eq!(operations(&format!("{arguments} all-reduce --sizes 24")), both("all-reduce", 24));
    assert_eq!(operations(&format!("{arguments} barrier")), both("barrier", 0));
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
        report("--loopback 3 --messages 5 --sizes 4 --offload nic --scheme separate;serial --skew 400us");
    check_rows(&late, &[("nic", "separate", 4), ("nic", "serial", 4)]);
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
    // Where nothing else is asked for, what hosts of several processes can do.
    let arguments = "--loopback 2 --processes 2 --messages 2 --sizes 4";
    check_rows(&report(arguments), &[("nic", "auto", 4)]);
    let table = bench(arguments).output().unwrap().stdout;
    let table = String::from_utf8(table).unwrap();
    assert!(table.starts_with(" bytes  processes  engine"), "{table}");
}

#[test]
fn a_late_process_is_measured_beside_the_others() {
    let arguments = "--loopback 3 --processes 3 --messages 5 --rounds 1 --sizes 4 --late 0us,400ms";
    for (more, process) in [("", 0), (" --late-process 1", 1)] {
        let late = report(&format!("{arguments}{more}"));
        check_rows(&late, &[("nic", "auto", 4), ("nic", "auto", 4)]);
        let row = &late["rows"][1];
        assert_eq!(row["late"]["process"], process);
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
    for part in ["throughput (MB/s)", "Measured on Linux ", "last delivery p50", "--sizes 4,64"] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn invalid_arguments_are_reported_in_one_sentence() {
    let cases: &[(&[&str], &str)] = &[
        (
            &["--sizes", "many"],
            "invalid value many for --sizes: expected a number of bytes, such as 65536, 16K, 4M or 1G",
        ),
        (&["--offload", "router"], "unknown offload 'router': known are host, assisted, nic, switch"),
        (&["--engine", "quantum"], "invalid engine quantum: expected auto, user or ebpf"),
        (&["--auth", "none"], "invalid value none for --auth: expected header or payload"),
        (&["--auth", "header,both"], "invalid value both for --auth: expected header or payload"),
        (&["--auth", "payload,"], "for --auth: expected header or payload"),
        (&["--auth", ""], "for --auth: expected header or payload"),
        (&["--auth"], "--auth"),
        (
            &["--skew", "long"],
            "invalid value long for --skew: expected a time up to 60s, such as 400us or 2ms",
        ),
        (&["--loopback", "1"], "--loopback"),
        (&["--messages", "0"], "--messages"),
        (&["--lab", "2", "--loopback", "2"], "--loopback"),
        (&["--loss", "1%"], "--lab"),
        (&["--reorder", "1%"], "--lab"),
        (
            &["--lab", "2", "--reorder", "1"],
            "invalid value 1 for --reorder: expected a percentage from 0% to less than 100%",
        ),
        (&["--mtu", "100"], "--mtu"),
        (&["--scheme", "u-torus", "--loopback", "2"], "u-torus"),
        (&["--chart", "chart.png"], "expected a file name that ends with .svg or .html"),
        (&["--kill", "2"], "--kill takes one configuration and one size, and these are 12: "),
        (
            &["--kill", "2", "--racks", "2x2", "--offload", "nic", "--sizes", "4"],
            "and these are 2: name one engine, offload, scheme, authentication, encryption, integrity, transport and size; --racks and --fabric always measure two",
        ),
        (&["--uplink", "1mbit", "--loopback", "3"], "--uplink"),
        (&["--uplink", "1mbit", "--hosts", "a,b"], "--uplink"),
        (&["--uplink", "1mbit"], "--racks"),
        (
            &["--pace", "0"],
            "invalid value 0 for --pace: expected a number of bytes from 1, such as 65536 or 16M",
        ),
        (
            &["--tcp-congestion", "auto"],
            "invalid value auto for --tcp-congestion: expected an algorithm of the kernel, such as bbr, cubic or reno",
        ),
        (
            &["--tcp-congestion", "nonsense", "--loopback", "2", "--offload", "nic", "--sizes", "4"],
            "tcp_congestion=nonsense is not available",
        ),
        (&["--kill", "4", "--offload", "nic", "--sizes", "4"], "must be from 1 to 3, and not 4"),
        (&["--kill", "1", "--offload", "nic", "--sizes", "0"], "must be from 1 to 4294967296, and not 0"),
        (&["--hosts", "a,b", "--lab", "2"], "--hosts"),
        (&["--processes", "257"], "invalid value 257 for --processes: expected a whole number from 1 to 256"),
        (
            &["--loopback", "5", "--processes", "205"],
            "processes on all hosts must be from 2 to 1024, and not 1025",
        ),
        (
            &["--processes", "2", "--offload", "nic,host"],
            "2 processes on each host, and offload host: they share the node of their host, which forwards: \
             expected offload nic or switch",
        ),
        (
            &["--processes", "2", "--scheme", "postal"],
            "they do not measure lambda: add it, such as postal:lambda=8",
        ),
        (
            &["--processes", "2", "--loopback", "2", "--scheme", "leader:local=binomial"],
            "host 0, process 0: this group cannot carry out the plan",
        ),
        (
            &["--processes", "2", "--sizes", "4", "--kill", "1"],
            "2 processes on each host, and a member to kill (1): the loss of a host is measured",
        ),
        (&["--late", "4us"], "a late process, and 1 on each host: the others of its host are compared"),
        (
            &["--processes", "2", "--late", "4us", "--late-process", "2"],
            "the number of the late process must be from 0 to 1, and not 2",
        ),
        (&["--processes", "2", "--late-process", "1"], "--late"),
        (&["--processes", "2", "--late", "1us", "--skew", "1us"], "--skew"),
        (&["--processes", "2", "--late", "1us", "--stream"], "--stream"),
        (
            &["--processes", "2", "--late", "soon"],
            "invalid value soon for --late: expected a time up to 60s, such as 400us or 2ms",
        ),
        (
            &["--hosts", "a,b", "--shell", "no-such-shell -x"],
            "host a: the remote shell 'no-such-shell -x': No such file or directory",
        ),
        (
            &["--hosts", "127.0.0.1,127.0.0.2", "--shell", "false"],
            "host 127.0.0.1: the remote shell 'false': it has ended with exit status 1",
        ),
    ];
    assert_refused(cases);
}

#[test]
fn what_only_broadcasts_support_is_refused_in_one_sentence() {
    assert_refused(&[
        (&["--operation", "reduce"], "expected broadcast, all-reduce or barrier"),
        (
            &["--operation", "all-reduce", "--sizes", "1K"],
            "a size of an all-reduce must be from 8 to 504, and not 1024",
        ),
        (
            &["--operation", "barrier", "--sizes", "8"],
            "operation barrier with 8 bytes: a barrier has no size, so leave out --sizes",
        ),
        (
            &["--operation", "barrier", "--stream"],
            "operation barrier with --stream, --when-stored, --no-flush, --skew or --late: each call waits for all members",
        ),
        (
            &["--operation", "all-reduce", "--lab", "2", "--peer", "tcp-tree"],
            "operation all-reduce with peer tcp-tree: it has only broadcasts",
        ),
    ]);
}

fn assert_refused(cases: &[(&[&str], &str)]) {
    for (arguments, expected) in cases {
        let output = bench("").args(*arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("treecast: ") && stderr.contains(expected), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

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
    assert!({ tuned }.status().unwrap().success());
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
    let refused = treecast(&format!("report --play {network} {}", bench_file.display())).output().unwrap();
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
