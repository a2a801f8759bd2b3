//! Attempts after the first one, in which a complete host serves the others.

use std::fs;
use std::path::Path;

use serde_json::Value;
use treecast_lab::LabSettings;

use super::{lab, on, signal, wait_for_part};
use crate::hosts::{Hosts, TREECAST, assert_same_tree, make_tree, noise, text};

/// The first attempt on b fails. Before the second one, `meanwhile` runs in a shell.
fn hosts_of_which_one_fails_first(meanwhile: &str) -> Hosts {
    let prologue = format!(
        "[ $host != b ] || [ -e ../tried ] || {{ touch ../tried; exit 9; }}\n[ $host != b ] || {{ {meanwhile}; }}"
    );
    Hosts::with_prologue(&["a", "b", "c"], &prologue)
}

/// The report of a copy that is complete in the end, and what was said.
fn report(hosts: &Hosts, arguments: &[&str]) -> (Value, String) {
    let output = hosts.command(&["--json", "--retry", "1"]).args(arguments).output().unwrap();
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

#[test]
fn a_complete_host_serves_trees_and_single_files_in_another_attempt() {
    let cases: [&[&str]; 5] = [
        &["-a", "data", "a,b,c:"],
        &["-r", "--compress", "data", "a,b,c:new"],
        &["-r", "--set", "encrypt=on", "--set", "transport=packets", "data/.", "a,b,c:all/"],
        &["--delta", "data/long", "a,b,c:renamed"],
        &["--checksum", "data/sparse", "a,b,c:"],
    ];
    let copied = ["data", "new", "all", "renamed", "sparse"];
    for (arguments, copied) in cases.into_iter().zip(copied) {
        let hosts = hosts_of_which_one_fails_first("true");
        make_tree(&hosts.path("data"));
        let (report, said) = report(&hosts, arguments);
        assert!(said.contains("trying b again (1 of 1): a serves what it has"), "{said}");
        let served = &report["served_by"][0];
        assert_eq!((&served["host"], &served["refusal"]), (&"a".into(), &Value::Null), "{report}");
        let bytes = report["stream_bytes"].as_u64().unwrap();
        let share = served["bytes"].as_u64().unwrap() as f64 / bytes as f64;
        assert!((0.2..=0.5).contains(&share), "{report}");
        for host in ["a", "b", "c"] {
            assert_same_tree(&hosts.path("a").join(copied), &hosts.path(host).join(copied));
        }
        let is_tree = !arguments.contains(&"a,b,c:renamed") && copied != "sparse";
        let source = match copied {
            "renamed" => "data/long",
            "sparse" => "data/sparse",
            _ => "data",
        };
        assert_same_tree(&hosts.path(source), &hosts.path("b").join(copied));
        assert!(!is_tree || hosts.path("b").join(copied).is_dir());
    }
}

#[test]
fn a_file_that_was_changed_on_the_serving_host_is_named_and_sent_by_the_source() {
    for change in
        ["printf X | dd of=../a/data/2 bs=1 seek=1000000 conv=notrunc 2>/dev/null", "rm ../a/data/2"]
    {
        let hosts = hosts_of_which_one_fails_first(change);
        fs::create_dir(hosts.path("data")).unwrap();
        for (name, seed) in [("1", 4), ("2", 5), ("3", 6)] {
            fs::write(hosts.path("data").join(name), noise(3_000_000, seed)).unwrap();
        }
        let (report, said) = report(&hosts, &["-r", "data", "a,b,c:"]);
        assert!(said.contains("data/2"), "{said}");
        assert!(said.contains("this host sends what a does not serve"), "{said}");
        let served = &report["served_by"][0];
        assert!(served["refusal"].as_str().unwrap().contains("./data/2"), "{report}");
        let bytes = served["bytes"].as_u64().unwrap();
        assert!((5_000_000..9_000_000).contains(&bytes), "{report}");
        assert_same_tree(&hosts.path("data"), &hosts.path("b/data"));
    }
}

/// The receiver of the serving host is ended while it serves. The attempt is repeated by the host
/// that copies, and does not count.
#[test]
fn a_serving_host_that_dies_is_named_and_replaced() {
    let hosts = hosts_of_which_one_fails_first("true");
    fs::write(hosts.path("file"), noise(8_000_000, 7)).unwrap();
    let mut command = hosts.command(&["--json", "--retry", "1", "--rate", "16mbit", "file", "a,b:"]);
    let mut running =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    wait_for_part(&mut running, &hosts.path("b"));
    signal("KILL", &hosts.receiver_of("a"));
    let output = running.wait_with_output().unwrap();
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("a: it has failed as it served others"), "{said}");
    assert_eq!(said.matches("trying b again (1 of 1)").count(), 2, "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["complete"], &report["attempts"]), (&true.into(), &3.into()));
    assert_same_tree(&hosts.path("file"), &hosts.path("b/file"));
}

fn sent(lab: &treecast_lab::Lab) -> u64 {
    let read = on(lab, 0, "cat /sys/class/net/eth0/statistics/tx_bytes");
    text(&read).trim().parse().unwrap()
}

/// The link of the source carries the data once, although one of two hosts needs another attempt.
#[test]
fn the_link_of_the_source_does_not_carry_data_again() {
    let Some(lab) = lab(&LabSettings::new(3)) else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("file"), noise(16_000_000, 8)).unwrap();
    write_shell(&path("shell"), &path("tried"));
    let before = sent(&lab);
    let line = format!(
        "timeout 60 {TREECAST} cp --json --retry 1 --shell {} {} n[1-2]:/dev/shm/",
        path("shell"),
        path("file")
    );
    let output = on(&lab, 0, &line);
    let (said, bytes) = (text(&output), sent(&lab) - before);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("trying n2 again (1 of 1): n1 serves what it has"), "{said}");
    assert!((16_000_000..20_000_000).contains(&bytes), "{bytes}: {said}");
    for host in 1..3 {
        let compared = on(&lab, host, &format!("cmp {} /dev/shm/file", path("file")));
        assert!(compared.status.success(), "{}", text(&compared));
    }
}

/// A remote shell of a lab whose first command on n2 fails.
fn write_shell(path: &str, tried: &str) {
    let script = format!(
        "#!/bin/sh\n[ $1 != n2 ] || [ -e {tried} ] || {{ touch {tried}; exit 9; }}\nexec $TREECAST_LAB_AGENT \"$@\"\n"
    );
    fs::write(path, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(Path::new(path), executable).unwrap();
}
