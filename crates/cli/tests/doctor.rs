//! `treecast doctor`: its output, as root and without rights.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use serde_json::Value;

fn run(mut command: Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    output
}

fn check(doctor: impl Fn() -> Command) {
    let mut json = doctor();
    json.args(["--format", "json"]);
    let report: Value = serde_json::from_slice(&run(json).stdout).unwrap();
    assert_eq!(report["format"], "treecast-doctor-1");
    let findings = report["findings"].as_array().unwrap();
    let text = String::from_utf8(run(doctor()).stdout).unwrap();
    for finding in findings {
        let (name, state) = (finding["name"].as_str().unwrap(), finding["state"].as_str().unwrap());
        assert!(["ok", "limited", "missing"].contains(&state), "{finding}");
        assert!(text.contains(&format!("  {state:<8} {name:<15} ")), "{finding} is not in\n{text}");
        assert_eq!(state == "ok", finding["effect"].is_null(), "{finding}");
    }
    // Tests of nodes run on this machine.
    assert!(findings.iter().any(|finding| finding["name"] == "UDP" && finding["state"] == "ok"));
    let is_missing = |finding: &&Value| finding["area"] == "kernel_engine" && finding["state"] == "missing";
    assert_eq!(report["kernel_engine"], findings.iter().find(is_missing).is_none());
    let verdict = if report["kernel_engine"] == true { "runs" } else { "does not run" };
    assert!(text.contains(&format!("The kernel engine {verdict} on this machine")), "{text}");
}

#[test]
fn its_text_and_json_agree() {
    check(|| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_treecast"));
        command.arg("doctor");
        command
    });
}

#[test]
fn it_needs_no_rights() {
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0);
    if !is_root {
        return;
    }
    // A directory that every user can read.
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let copy = directory.path().join("treecast");
    std::fs::copy(env!("CARGO_BIN_EXE_treecast"), &copy).unwrap();
    check(|| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy).arg("doctor");
        command.current_dir("/");
        command
    });
}
