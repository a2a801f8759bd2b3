//! Copies to hosts that have something already: what is sent again, deleted, and said without doing
//! it.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Stdio;

use super::{signal, wait_while_running};
use crate::hosts::{Hosts, assert_same_tree, make_tree, noise, report, sent_bytes, text};

#[test]
fn files_of_the_same_size_and_time_are_not_sent_again() {
    let hosts = Hosts::new(&["a", "b"]);
    make_tree(&hosts.path("data"));
    let all = sent_bytes(&hosts, &["-a", "data", "a,b:"]);
    assert!(all > 3_000_000, "{all}");
    assert_eq!(sent_bytes(&hosts, &["-a", "data", "a,b:"]), 0);
    // One host has lost a file, another one has changed one, and one is new.
    fs::remove_file(hosts.path("a/data/long")).unwrap();
    fs::write(hosts.path("b/data/sub/run me"), "#!/bin/zs\n").unwrap();
    fs::remove_file(hosts.path("b/data/sub/link")).unwrap();
    symlink("elsewhere", hosts.path("b/data/sub/link")).unwrap();
    fs::write(hosts.path("data/new"), "new").unwrap();
    let report = report(&hosts, &["-a", "data", "a,b:"]);
    assert_eq!(report["bytes"], 3_000_000 + 10 + 3);
    let counts =
        |host: usize| (report["hosts"][host]["files"].clone(), report["hosts"][host]["kept"].clone());
    // Four files and links are as they were at both, and each has what the other one lacked.
    assert_eq!(counts(0), (2.into(), 6.into()), "{report}");
    assert_eq!(counts(1), (3.into(), 5.into()), "{report}");
    for host in ["a", "b"] {
        assert_same_tree(&hosts.path("data"), &hosts.path(host).join("data"));
    }
    // Without -p copies have times of their own, and are taken for others.
    hosts.cp_right(&["data/long", "a:other"]);
    assert_eq!(sent_bytes(&hosts, &["data/long", "a:other"]), 3_000_000);
    assert_eq!(sent_bytes(&hosts, &["-a", "--existing", "replace", "data", "a,b:"]), all + 3);
}

#[test]
fn attributes_of_files_that_are_kept_become_those_of_the_sources() {
    let hosts = Hosts::new(&["a"]);
    make_tree(&hosts.path("data"));
    hosts.cp_right(&["-a", "data", "a:"]);
    let mode = |path: &str| fs::metadata(hosts.path(path)).unwrap().mode() & 0o7777;
    fs::set_permissions(hosts.path("data/long"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(sent_bytes(&hosts, &["-a", "data", "a:"]), 0);
    assert_eq!(mode("a/data/long"), 0o600);
    fs::set_permissions(hosts.path("data/long"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(sent_bytes(&hosts, &["-a", "--existing", "keep", "data", "a:"]), 0);
    assert_eq!(mode("a/data/long"), 0o600, "what is kept stays as it is");
}

#[test]
fn contents_are_compared_on_request() {
    let hosts = Hosts::new(&["a", "b"]);
    let one = noise(400_000, 7);
    let mut other = one.clone();
    other[200_000] ^= 1;
    for (path, content) in [("file", &one), ("a/file", &one), ("b/file", &other)] {
        fs::write(hosts.path(path), content).unwrap();
    }
    let same = fs::metadata(hosts.path("file")).unwrap().modified().unwrap();
    fs::File::open(hosts.path("b/file")).unwrap().set_modified(same).unwrap();
    assert_eq!(sent_bytes(&hosts, &["file", "b:"]), 0, "the same size and time");
    let report = report(&hosts, &["--checksum", "file", "a,b:"]);
    assert_eq!((&report["bytes"], &report["hosts"][0]["kept"]), (&400_000.into(), &1.into()), "{report}");
    assert_eq!(fs::read(hosts.path("b/file")).unwrap(), one);
    assert_eq!(sent_bytes(&hosts, &["-c", "file", "a,b:"]), 0);
    let (status, said) = hosts.cp(&["-c", "--existing", "keep", "file", "a:"]);
    assert!(status == 2 && said.contains("--existing changed only"), "{said}");
}

#[test]
fn what_is_not_among_the_sources_is_deleted_on_request() {
    let hosts = Hosts::new(&["a", "b"]);
    make_tree(&hosts.path("data"));
    hosts.cp_right(&["-a", "data", "a,b:"]);
    fs::write(hosts.path("a/beside"), "").unwrap();
    for path in ["a/data/old/deep", "a/data/sub/cache", "a/data/mixed/cache"] {
        fs::create_dir_all(hosts.path(path)).unwrap();
    }
    for path in ["a/data/old/deep/file", "a/data/old/one", "a/data/sub/cache/kept", "a/data/mixed/old"] {
        fs::write(hosts.path(path), "").unwrap();
    }
    symlink(hosts.path("data"), hosts.path("a/data/out")).unwrap();
    let foreign = ".new.0123456789abcdef01234567.treecast-part";
    fs::write(hosts.path("a/data").join(foreign), "part").unwrap();
    let delete = ["-a", "--delete", "--exclude", "cache", "data", "a,b:"];
    let before = hosts.list("a");
    let planned = hosts.cp_right(&[&["-n"], &delete[..]].concat());
    let mut lines: Vec<&str> = planned.lines().collect();
    lines.sort_unstable();
    let expected =
        ["old", "old/deep", "old/deep/file", "old/one", "out"].map(|path| format!("delete a:./data/{path}"));
    assert_eq!(lines[..6], [&["delete a:./data/mixed/old".to_owned()], &expected[..]].concat(), "{planned}");
    assert!(planned.contains("nothing was changed: 0 to be copied, 0 B; 6 to be deleted"), "{planned}");
    assert_eq!(hosts.list("a"), before);
    let said = hosts.cp_right(&delete);
    assert!(said.contains("; 6 deleted"), "{said}");
    let mut expected = hosts.list("b");
    for path in ["beside", "data/sub/cache", "data/sub/cache/kept", "data/mixed", "data/mixed/cache"] {
        expected.push(path.into());
    }
    expected.push(format!("data/{foreign}"));
    expected.sort();
    assert_eq!(hosts.list("a"), expected);
    assert_same_tree(&hosts.path("data"), &hosts.path("b/data"));
    let (status, said) = hosts.cp(&["--delete", "data/long", "a:"]);
    assert!(status == 2 && said.contains("--delete is about directories"), "{said}");
}

#[test]
fn the_contents_of_a_directory_become_those_of_the_destination() {
    let hosts = Hosts::new(&["a", "b"]);
    make_tree(&hosts.path("data"));
    fs::set_permissions(hosts.path("data"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::create_dir_all(hosts.path("a/there/old")).unwrap();
    fs::write(hosts.path("a/beside"), "").unwrap();
    let said = hosts.cp_right(&["-a", "--delete", "-n", "data/.", "a:there"]);
    assert!(said.contains("delete a:there/old\n") && said.contains("; 1 to be deleted"), "{said}");
    hosts.cp_right(&["-a", "--delete", "data/.", "a,b:there"]);
    for host in ["a", "b"] {
        assert_same_tree(&hosts.path("data"), &hosts.path(host).join("there"));
        let mode = fs::metadata(hosts.path(host).join("there")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o750, "{host}");
    }
    assert!(hosts.path("a/beside").exists());
    assert_eq!(sent_bytes(&hosts, &["-a", "data/.", "a,b:there"]), 0);
    // Names of two sources may not collide, and those of contents count.
    let (status, said) = hosts.cp(&["-r", "data/.", "data/long", "a:there"]);
    assert!(status == 2 && said.contains("have the same name at the destination"), "{said}");
    hosts.cp_right(&["-a", "data/sub/.", "data/long", "a:flat"]);
    assert!(hosts.path("a/flat/run me").exists() && hosts.path("a/flat/long").exists());
    let (status, said) = hosts.cp(&["-a", "data/.", "a:beside"]);
    assert!(status == 2 && said.contains("beside is a file on a"), "{said}");
}

/// A source that cannot be read may be the one that would be deleted.
#[test]
fn nothing_is_deleted_where_a_source_was_not_read() {
    let hosts = Hosts::new(&["a"]);
    fs::create_dir_all(hosts.path("a/data")).unwrap();
    fs::create_dir(hosts.path("data")).unwrap();
    fs::write(hosts.path("a/data/old"), "").unwrap();
    let made = std::process::Command::new("mkfifo").arg(hosts.path("data/pipe")).status();
    assert!(made.unwrap().success());
    let (status, said) = hosts.cp(&["-a", "--delete", "data", "a:"]);
    assert!(status == 5 && said.contains("nothing is deleted: not all sources could be read"), "{said}");
    assert_eq!(hosts.list("a/data"), ["old"]);
}

#[test]
fn a_dry_run_says_what_each_host_lacks_and_changes_nothing() {
    let hosts = Hosts::new(&["a", "b"]);
    make_tree(&hosts.path("data"));
    let dry = ["-a", "-n", "data", "a,b:new/"];
    let said = hosts.cp_right(&dry);
    assert!(
        said.contains("copy data/long (3.00 MB) to a,b\n") && said.contains("copy data/sub to a,b\n"),
        "{said}"
    );
    assert!(said.contains("nothing was changed: 10 to be copied"), "{said}");
    assert!(hosts.list("a").is_empty() && hosts.list("b").is_empty());
    hosts.cp_right(&["-a", "data", "a:new/"]);
    let said = hosts.cp_right(&dry);
    assert!(said.contains("copy data/long (3.00 MB) to b\n"), "{said}");
    let report = report(&hosts, &dry);
    assert_eq!(report["planned"].as_array().unwrap().len(), 10, "{report}");
    assert_eq!((&report["bytes"], &report["hosts"][0]["kept"]), (&0.into(), &0.into()), "{report}");
}

#[test]
fn standard_input_becomes_a_file() {
    let hosts = Hosts::new(&["a", "b"]);
    let content = noise(700_000, 8);
    let fed = |arguments: &[&str]| {
        let mut command = hosts.command(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // It may end without reading.
        let _ = input.write_all(&content);
        drop(input);
        let output = child.wait_with_output().unwrap();
        (output.status.code().unwrap(), text(&output))
    };
    let (status, said) = fed(&["-", "a,b:x.tar"]);
    assert!(status == 0 && said.contains("1 file, 700.00 kB, to 2 hosts"), "{said}");
    // A second copy replaces the file.
    assert_eq!(fed(&["-", "a,b:x.tar"]).0, 0);
    for host in ["a", "b"] {
        assert_eq!(hosts.list(host), ["x.tar"]);
        assert_eq!(fs::read(hosts.path(host).join("x.tar")).unwrap(), content);
    }
    for directory in ["a:", "a:there/"] {
        let (status, said) = fed(&["-", directory]);
        assert!(status == 2 && said.contains("standard input has no name: give one"), "{said}");
    }
    let (status, said) = fed(&["-", "data", "a:x"]);
    assert!(status == 2 && said.contains("cannot be combined with other sources"), "{said}");
    let (status, said) = fed(&["--retry", "1", "-", "a:x"]);
    assert!(status == 2 && said.contains("can be read only once"), "{said}");
}

/// A receiver is ended in the middle of the second file. Another attempt sends the rest of it.
#[test]
fn hosts_that_are_tried_again_get_only_what_they_lack() {
    let hosts = Hosts::new(&["a", "b"]);
    fs::create_dir(hosts.path("data")).unwrap();
    for (name, length, seed) in [("1", 40_000, 4), ("2", 8_000_000, 5), ("3", 30_000, 6)] {
        fs::write(hosts.path("data").join(name), noise(length, seed)).unwrap();
    }
    let mut command = hosts.command(&["--json", "--retry", "1", "--rate", "16mbit", "-r", "data", "a,b:"]);
    let mut running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_while_running(&mut running, || {
        let there = hosts.list("b");
        let part = there.iter().find(|path| path.starts_with("data/.2."));
        let bytes = part.map(|path| fs::read(hosts.path("b").join(path)).unwrap_or_default());
        let some = bytes.as_deref().and_then(|bytes| bytes.get(4_000_000..4_000_100));
        some.is_some_and(|some| some.iter().any(|byte| *byte != 0))
    });
    signal("TERM", &hosts.receiver_of("b"));
    let output = running.wait_with_output().unwrap();
    let said = text(&output);
    assert!(output.status.success() && said.contains("trying b again (1 of 1)"), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["attempts"], 2);
    let bytes = report["bytes"].as_u64().unwrap();
    let rest = bytes - 8_070_000;
    assert!(rest > 30_000 && rest < 4_500_000, "{report}");
    for host in ["a", "b"] {
        assert_same_tree(&hosts.path("data"), &hosts.path(host).join("data"));
        assert_eq!(hosts.list(host).len(), 4, "{:?}", hosts.list(host));
    }
}
