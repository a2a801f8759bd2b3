//! Hosts of a lab that delay a copy: which one is named, and how the tree changes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;
use treecast_lab::LabSettings;

use super::{lab, on};
use crate::hosts::{TREECAST, noise, text};

/// A host in the middle of a chain forwards slowly: it is named, and the host behind it is served
/// by the one that copies.
#[test]
fn a_host_that_forwards_slowly_becomes_a_leaf() {
    let mut settings = LabSettings::new(5);
    settings.rate = Some("200mbit".parse().unwrap());
    let Some(lab) = lab(&settings) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, noise(32_000_000, 5)).unwrap();
    let slow = on(&lab, 2, "tc qdisc replace dev eth0 root tbf rate 20mbit burst 16k limit 64k");
    assert!(slow.status.success(), "{}", text(&slow));
    let report = directory.path().join("report");
    let copy = format!(
        "timeout 60 {TREECAST} cp --json --shell $TREECAST_LAB_AGENT {} n[1-4]:/dev/shm/ > {}",
        file.display(),
        report.display()
    );
    // On a terminal, where messages come above the progress bar.
    let line =
        format!("command -v script >/dev/null || {{ {copy}; exit; }}; exec script -qec '{copy}' /dev/null");
    let output = on(&lab, 0, &line);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("the path from n2 to n3 is slow: this host sends to n3 instead"), "{said}");
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!(report["relieved"], serde_json::json!([{"host": "n2", "to": "n3", "cause": "forwarding"}]));
    for host in 1..5 {
        let compared = on(&lab, host, &format!("cmp {} /dev/shm/file", file.display()));
        assert!(compared.status.success(), "{}", text(&compared));
    }
}

/// Writes of a library that is loaded into one receiver take as long as those of a slow disk.
const SLOW_WRITES: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset)
{
    ssize_t (*write_it)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    if (count >= 1 << 16)
        usleep(80000);
    return write_it(file, bytes, count, offset);
}
"#;

/// A host in the middle of a chain has a slow disk: that is named, and the host behind it is served
/// by the one that copies.
#[test]
fn a_host_with_a_slow_disk_is_named_and_becomes_a_leaf() {
    let mut settings = LabSettings::new(5);
    settings.rate = Some("200mbit".parse().unwrap());
    let Some(lab) = lab(&settings) else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("slow.c"), SLOW_WRITES).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o", &path("slow.so"), &path("slow.c"), "-ldl"]);
    assert!(compile.status().unwrap().success());
    fs::write(path("file"), noise(36_000_000, 6)).unwrap();
    let shell = format!(
        "#!/bin/sh\nhost=$1; shift\n[ $host != n2 ] || set -- \"export LD_PRELOAD={}; $*\"\nexec $TREECAST_LAB_AGENT $host \"$@\"\n",
        path("slow.so")
    );
    fs::write(path("shell"), shell).unwrap();
    fs::set_permissions(path("shell"), fs::Permissions::from_mode(0o755)).unwrap();
    let line = format!(
        "timeout 60 {TREECAST} cp --json --shell {} {} n[1-4]:/dev/shm/",
        path("shell"),
        path("file")
    );
    let output = on(&lab, 0, &line);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("the disk of n2 is slow: this host sends to its children instead"), "{said}");
    assert!(!said.contains("the path from"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["relieved"], serde_json::json!([{"host": "n2", "to": null, "cause": "disk"}]));
    for host in 1..5 {
        let compared = on(&lab, host, &format!("cmp {} /dev/shm/file", path("file")));
        assert!(compared.status.success(), "{}", text(&compared));
    }
}
