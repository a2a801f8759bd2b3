//! `treecast cp`: receivers that a shell starts on this machine, each in a directory of its own,
//! and receivers on the hosts of a lab.

mod again;
mod hosts;
mod interrupts;
mod served;
mod slow;
mod uploads;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use treecast_lab::{Lab, LabSettings};

use crate::hosts::{Hosts, TREECAST, assert_same_tree, make_tree, noise, report, sent_bytes, text};

/// The first part in a directory.
fn part(directory: &Path) -> Option<PathBuf> {
    let paths = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    paths.into_iter().find(|path| path.to_string_lossy().ends_with(".treecast-part"))
}

/// Waits until something is so.
fn wait_for(mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < until, "it is not so after 20 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until something is so, for as long as a copy runs: the time that it takes depends on how
/// busy this machine is, and the copy has limits of its own.
fn wait_while_running(copy: &mut Child, mut is_so: impl FnMut() -> bool) {
    loop {
        let ended = copy.try_wait().unwrap();
        if is_so() {
            return;
        }
        if let Some(status) = ended {
            let mut said = String::new();
            copy.stderr.take().map(|mut errors| errors.read_to_string(&mut said));
            panic!("the copy has ended too early, {status}: {said}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a copy has begun to write into a directory.
fn wait_for_part(copy: &mut Child, directory: &Path) -> PathBuf {
    let mut found = None;
    wait_while_running(copy, || {
        found = part(directory);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_tree_is_the_same_on_all_hosts() {
    let hosts = Hosts::new(&["a", "b", "c"]);
    make_tree(&hosts.path("data"));
    let said = hosts.cp_right(&["-a", "--ports", "41000-41099", "data/", "a,b,c:"]);
    assert!(said.contains("5 files, 3.00 MB, to 3 hosts in "), "{said}");
    for host in ["a", "b", "c"] {
        let copied = hosts.path(host).join("data");
        assert_same_tree(&hosts.path("data"), &copied);
        let metadata = |path: &str| copied.join(path).symlink_metadata().unwrap();
        assert_eq!(metadata("sub/run me").mode() & 0o7777, 0o751);
        assert_eq!(metadata("sub").mode() & 0o7777, 0o755);
        for path in ["long", "sub"] {
            let time = (metadata(path).mtime(), metadata(path).mtime_nsec());
            assert_eq!(time, (1_000_000_000, 123_456_789), "{path}");
        }
        assert!(metadata("sparse").blocks() * 512 < 1 << 20, "holes stay holes");
    }
}

#[test]
fn an_encrypted_copy_is_right() {
    let hosts = Hosts::new(&["a", "b"]);
    fs::write(hosts.path("file"), noise(3_000_000, 5)).unwrap();
    hosts.cp_right(&["--set", "encrypt=on", "file", "a,b:"]);
    for copy in ["a/file", "b/file"] {
        assert!(fs::read(hosts.path(copy)).unwrap() == noise(3_000_000, 5), "{copy}");
    }
}

#[test]
fn names_at_the_destination_are_as_of_cp() {
    let hosts = Hosts::new(&["a", "b"]);
    make_tree(&hosts.path("data"));
    // A new name, a directory that is there, one that is made.
    hosts.cp_right(&["data/long", "a,b:other"]);
    assert_eq!(hosts.list("a"), ["other"]);
    fs::create_dir(hosts.path("a/there")).unwrap();
    fs::create_dir(hosts.path("b/there")).unwrap();
    hosts.cp_right(&["data/long", "a,b:there"]);
    hosts.cp_right(&["data/long", "data/empty", "a,b:made/below/"]);
    assert_eq!(
        hosts.list("b"),
        ["made", "made/below", "made/below/empty", "made/below/long", "other", "there", "there/long"]
    );
    hosts.cp_right(&["-r", "data/sub", "a,b:there/renamed"]);
    assert!(hosts.path("b/there/renamed/run me").exists());
    // Home directories.
    hosts.cp_right(&["data/empty", "a,b:~"]);
    hosts.cp_right(&["data/empty", "a,b:~/renamed"]);
    assert!(hosts.path("a/empty").exists() && hosts.path("b/renamed").exists());
    let (status, said) = hosts.cp(&["data/empty", "a,b:~nobody-has-this/"]);
    assert!(status == 5 && said.contains("b: ~nobody-has-this: unknown user nobody-has-this"), "{said}");
    // Not the same on all hosts, or not possible.
    fs::remove_dir_all(hosts.path("b/there")).unwrap();
    let (status, said) = hosts.cp(&["data/long", "a,b:there"]);
    assert!(
        status == 2 && said.contains("there is a directory on a and not on b: with / at its end"),
        "{said}"
    );
    let (status, said) = hosts.cp(&["data/long", "data/empty", "a,b:other"]);
    assert!(status == 2 && said.contains("other is a file on a, and several files"), "{said}");
    let (status, said) = hosts.cp(&["data/long", "a,b:no/such/directory"]);
    assert!(status == 5 && said.contains("b: no/such/directory: No such file or directory"), "{said}");
}

#[test]
fn files_that_exist_are_replaced_whole_or_kept() {
    let hosts = Hosts::new(&["a", "b"]);
    fs::write(hosts.path("new"), noise(100_000, 2)).unwrap();
    fs::write(hosts.path("a/new"), "old").unwrap();
    // What another host may be writing, and what only looks like a part, stays.
    let foreign = ".new.0123456789abcdef01234567.treecast-part";
    fs::write(hosts.path("a").join(foreign), "part").unwrap();
    fs::write(hosts.path("a/.new.treecast-part"), "the user's own").unwrap();
    let said = hosts.cp_right(&["--existing", "keep", "new", "a,b:"]);
    assert!(said.contains("; 1 was there and kept"), "{said}");
    assert_eq!(fs::read(hosts.path("a/new")).unwrap(), b"old");
    assert_eq!(fs::read(hosts.path("b/new")).unwrap(), noise(100_000, 2));
    let said = hosts.cp_right(&["--existing", "newer", "new", "a,b:"]);
    assert!(said.contains("; 2 were there and kept"), "copies are newer: {said}");
    hosts.cp_right(&["new", "a,b:"]);
    assert_eq!(fs::read(hosts.path("a/new")).unwrap(), noise(100_000, 2));
    assert_eq!(hosts.list("a"), [foreign, ".new.treecast-part", "new"]);
}

#[test]
fn patterns_leave_files_out_and_hosts_come_from_a_file() {
    let hosts = Hosts::new(&["n1", "n2", "n3"]);
    make_tree(&hosts.path("data"));
    fs::write(hosts.path("list"), "# all\nn[1-2] # two\n\n n3\n").unwrap();
    hosts.cp_right(&[
        "-r",
        "--hosts-file",
        "list",
        "--exclude",
        "sub",
        "--exclude",
        "data/s*",
        "data",
        ":x/",
    ]);
    assert_eq!(hosts.list("n3").len(), 5, "{:?}", hosts.list("n3"));
    let (status, said) = hosts.cp(&["-r", "--hosts-file", "list", "data", "n1:x/"]);
    assert!(status == 2 && said.contains("the hosts are given twice"), "{said}");
    let (status, said) = hosts.cp(&["data/long", ":x/"]);
    assert!(status == 2 && said.contains("the hosts are missing"), "{said}");
    let (status, said) = hosts.cp(&["data/long", "n1,n2,n1:x/"]);
    assert!(status == 2 && said.contains("host n1 is named twice"), "{said}");
}

#[test]
fn hosts_that_fail_are_named_and_the_others_have_everything() {
    // Files of more than 51,200 bytes cannot be written on b, and nothing can be started on c.
    let hosts = Hosts::with_prologue(
        &["a", "b", "c"],
        "[ $host != b ] || { trap '' XFSZ; ulimit -f 100; }\n[ $host != c ] || exit 3",
    );
    make_tree(&hosts.path("data"));
    let output = hosts.command(&["-r", "--json", "data", "a,b,c,d:"]).output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |number: usize| report["hosts"][number].clone();
    assert_eq!(report["complete"], false);
    assert_eq!((&of(0)["state"], &of(0)["files"]), (&"complete".into(), &7.into()));
    assert_eq!((&of(1)["state"], &of(1)["failure_count"]), (&"incomplete".into(), &2.into()));
    assert_eq!(of(1)["failures"][0], "./data/long: File too large");
    assert_eq!(of(2)["state"], "failed");
    let why = of(3)["why"].as_str().unwrap().to_owned();
    assert!(why.contains("no route to d"), "{why}");
    assert_same_tree(&hosts.path("data"), &hosts.path("a/data"));
    assert!(!hosts.list("b").iter().any(|name| name.contains("treecast-part")));
    assert!(!hosts.path("b/data/long").exists() && hosts.path("b/data/empty").exists());
}

/// A host whose shell hangs, here as a grandchild that keeps the pipes, is named, and the others
/// start without it.
#[test]
fn a_host_that_hangs_is_named_and_the_others_start_without_it() {
    let hosts = Hosts::with_prologue(&["a", "b"], "[ $host != b ] || { sleep 60; touch late; exit; }");
    fs::write(hosts.path("file"), "contents").unwrap();
    let (status, said) = hosts.cp(&["--connect-timeout", "10", "file", "a,b:"]);
    assert_eq!(status, 5, "{said}");
    assert!(said.contains("waiting for ") && said.contains("b to start"), "{said}");
    assert!(
        said.contains("b: it has not started within 10 s: it is down") && said.contains("to 1 of 2 hosts"),
        "{said}"
    );
    assert_eq!((hosts.list("a"), hosts.list("b")), (vec!["file".into()], vec![]));
}

#[test]
fn hosts_that_fail_are_tried_again() {
    // The first attempt on b fails.
    let hosts =
        Hosts::with_prologue(&["a", "b"], "[ $host != b ] || [ -e tried ] || { touch tried; exit 9; }");
    make_tree(&hosts.path("data"));
    let (status, said) = hosts.cp(&["--retry", "2", "-r", "data", "a,b:new"]);
    assert!(status == 0 && said.contains("trying b again (1 of 2)"), "{said}");
    assert!(said.contains("ended with exit status 9") && said.contains("to 2 hosts"), "{said}");
    assert_same_tree(&hosts.path("data"), &hosts.path("b/new"));
    assert!(!said.contains("(2 of 2)"), "{said}");
}

#[test]
fn hashes_are_those_of_b3sum() {
    let hosts = Hosts::new(&["a"]);
    fs::write(hosts.path("empty"), "").unwrap();
    let said = hosts.cp_right(&["--hash", "--quiet", "empty", "a:"]);
    assert_eq!(said, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262  empty\n");
}

/// A copy does not follow a link in the destination, and does not change the attributes of its
/// target.
#[test]
fn a_link_in_the_destination_is_not_followed() {
    let hosts = Hosts::new(&["a"]);
    make_tree(&hosts.path("data"));
    fs::create_dir_all(hosts.path("victim/sub")).unwrap();
    fs::set_permissions(hosts.path("victim"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink("../victim", hosts.path("a/data")).unwrap();
    let (status, said) = hosts.cp(&["-r", "-p", "data", "a:"]);
    assert!(status == 5 && said.contains("./data: data is a symbolic link, which is not followed"), "{said}");
    assert_eq!(hosts.list("victim"), ["sub"]);
    assert_eq!(hosts.path("victim").metadata().unwrap().mode() & 0o7777, 0o700);
    fs::remove_file(hosts.path("a/data")).unwrap();
    fs::create_dir(hosts.path("a/data")).unwrap();
    symlink("../../victim", hosts.path("a/data/sub")).unwrap();
    let (status, said) = hosts.cp(&["-r", "-p", "data", "a:"]);
    assert!(status == 5 && said.contains("./data/sub/run me: sub is a symbolic link"), "{said}");
    assert_eq!(hosts.list("victim"), ["sub"]);
    assert_eq!(fs::read(hosts.path("a/data/long")).unwrap(), noise(3_000_000, 1), "the others are copied");
    // The destination itself is the user's own path.
    symlink("../victim", hosts.path("a/chosen")).unwrap();
    hosts.cp_right(&["data/long", "a:chosen/"]);
    assert_eq!(hosts.list("victim"), ["long", "sub"]);
}

#[test]
fn pipes_and_sockets_at_the_destination_stay() {
    let hosts = Hosts::new(&["a"]);
    make_tree(&hosts.path("data"));
    fs::create_dir(hosts.path("a/data")).unwrap();
    let made = Command::new("mkfifo").args([hosts.path("a/pipe"), hosts.path("a/data/empty")]).status();
    assert!(made.unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(hosts.path("a/data/long")).unwrap();
    symlink("pipe", hosts.path("a/link")).unwrap();
    for name in ["pipe", "link"] {
        let (status, said) = hosts.cp(&["data/long", &format!("a:{name}")]);
        assert!(status == 5 && said.contains("is a device, a pipe or a socket"), "{said}");
    }
    let (status, said) = hosts.cp(&["-r", "--delta", "data", "a:"]);
    for name in ["long", "empty"] {
        let why = format!("./data/{name}: is a device, a pipe or a socket, which is not replaced");
        assert!(status == 5 && said.contains(&why), "{said}");
    }
    let of = |path: &str| hosts.path(path).symlink_metadata().unwrap().file_type();
    assert!(of("a/pipe").is_fifo() && of("a/data/empty").is_fifo() && of("a/data/long").is_socket());
    assert!(hosts.path("a/data/sub/run me").exists());
}

/// Whichever ends last has its file there, whole, and both end well.
#[test]
fn copies_to_one_path_do_not_touch_each_other() {
    let hosts = Hosts::new(&["a"]);
    symlink("a", hosts.path("b")).unwrap();
    let contents = [noise(2_000_000, 7), noise(1_000_000, 8)];
    for (name, content) in ["one", "two"].iter().zip(&contents) {
        fs::write(hosts.path(name), content).unwrap();
    }
    for _ in 0..3 {
        // Two hosts that have the same directory, and two copies at the same time.
        let copies = ["one", "two"].map(|name| {
            let arguments = ["--rate", "16mbit", name, "a,b:file"];
            hosts.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        });
        for copy in copies {
            let output = copy.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
        }
        let copied = fs::read(hosts.path("a/file")).unwrap();
        assert!(contents.contains(&copied), "{} bytes", copied.len());
        assert_eq!(hosts.list("a"), ["file"]);
    }
}

/// A receiver that is killed leaves a part, which the next copy on the same host removes.
#[test]
fn a_copy_after_one_that_was_killed_is_right() {
    let hosts = Hosts::new(&["a"]);
    let content = noise(8_000_000, 9);
    fs::write(hosts.path("long"), &content).unwrap();
    let mut command = hosts.command(&["--rate", "16mbit", "long", "a:"]);
    let mut running = command.stderr(Stdio::null()).spawn().unwrap();
    wait_for_part(&mut running, &hosts.path("a"));
    signal("KILL", &hosts.receiver_of("a"));
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(part(&hosts.path("a")).is_some());
    hosts.cp_right(&["long", "a:"]);
    assert_eq!(hosts.list("a"), ["long"]);
    assert_eq!(fs::read(hosts.path("a/long")).unwrap(), content);
}

fn signal(name: &str, process: &str) {
    assert!(Command::new("kill").args(["-s", name, process]).status().unwrap().success());
}

#[test]
fn a_host_that_pauses_is_waited_for_and_gets_what_it_lacks() {
    let hosts = Hosts::new(&["a", "b"]);
    fs::write(hosts.path("long"), noise(8_000_000, 8)).unwrap();
    let mut command = hosts.command(&["--rate", "16mbit", "long", "a,b:"]);
    let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
    wait_for_part(&mut running, &hosts.path("b"));
    for process in [hosts.receiver_of("b"), running.id().to_string()] {
        signal("STOP", &process);
        std::thread::sleep(Duration::from_secs(4));
        signal("CONT", &process);
    }
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    for host in ["a", "b"] {
        assert_eq!(fs::read(hosts.path(host).join("long")).unwrap(), noise(8_000_000, 8));
    }
}

#[test]
fn messages_are_compressed_on_request() {
    let hosts = Hosts::new(&["a"]);
    let text: Vec<u8> = (0..200_000).flat_map(|line| format!("line {line}\n").into_bytes()).collect();
    let files = [("text", text), ("noise", noise(1_000_000, 6))];
    for (name, content) in &files {
        fs::write(hosts.path(name), content).unwrap();
        let stream_bytes =
            |arguments: &[&str]| report(&hosts, arguments)["stream_bytes"].as_u64().unwrap() as usize;
        let plain = stream_bytes(&[name, "a:plain"]);
        let compressed = stream_bytes(&["--compress", name, "a:compressed"]);
        let shorter = stream_bytes(&["--compress=19", name, "a:shorter"]);
        assert!(plain > content.len() && plain < content.len() + 1_000, "{name}: {plain}");
        match *name {
            "text" => assert!(shorter < compressed && compressed < plain / 3, "{compressed}, {shorter}"),
            _ => assert_eq!((compressed, shorter), (plain, plain)),
        }
        for copy in ["a/plain", "a/compressed", "a/shorter"] {
            assert_eq!(&fs::read(hosts.path(copy)).unwrap(), content);
        }
    }
    assert!(hosts.cp(&["--compress=20", "text", "a:x"]).1.contains("a whole number from 1 to 19"));
}

#[test]
fn what_all_hosts_have_is_not_sent_again() {
    let hosts = Hosts::new(&["a", "b"]);
    let old = noise(6_000_000, 5);
    let new = [&old[..2_000_000], b"inserted", &old[2_000_000..]].concat();
    fs::create_dir(hosts.path("data")).unwrap();
    fs::write(hosts.path("data/one"), &old).unwrap();
    fs::write(hosts.path("data/two"), &old[..1_000_000]).unwrap();
    let copy = ["--delta", "-r", "data", "a,b:"];
    assert_eq!(sent_bytes(&hosts, &copy), 7_000_000, "no host has anything");
    assert_eq!(sent_bytes(&hosts, &copy), 0, "all hosts have everything");
    fs::write(hosts.path("data/one"), &new).unwrap();
    let sent = sent_bytes(&hosts, &copy);
    assert!(sent > 0 && sent < 600_000, "the chunks around what was inserted: {sent}");
    // What one host lacks is sent to both.
    fs::remove_file(hosts.path("b/data/two")).unwrap();
    fs::write(hosts.path("a/data/one"), "broken").unwrap();
    assert_eq!(sent_bytes(&hosts, &copy), 7_000_008);
    for host in ["a", "b"] {
        assert_same_tree(&hosts.path("data"), &hosts.path(host).join("data"));
    }
}

#[test]
fn a_copy_that_was_interrupted_goes_on() {
    let hosts = Hosts::new(&["a", "b"]);
    fs::write(hosts.path("long"), noise(8_000_000, 6)).unwrap();
    let mut command = hosts.command(&["--resume", "--rate", "8mbit", "long", "a,b:"]);
    let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
    for host in ["a", "b"] {
        let part = wait_for_part(&mut running, &hosts.path(host));
        // Its space is allocated a moment after it was made.
        wait_while_running(&mut running, || {
            let bytes = fs::read(&part).unwrap();
            bytes.get(1_500_000..1_500_100).is_some_and(|some| some.iter().any(|byte| *byte != 0))
        });
    }
    assert!(Command::new("kill").arg(running.id().to_string()).status().unwrap().success());
    let interrupted = running.wait_with_output().unwrap();
    assert_eq!(interrupted.status.code(), Some(5));
    assert!(text(&interrupted).contains("interrupted: parts of files were kept"), "{}", text(&interrupted));
    assert!(part(&hosts.path("b")).is_some() && hosts.list("b").len() == 1, "{:?}", hosts.list("b"));
    let sent = sent_bytes(&hosts, &["--resume", "long", "a,b:"]);
    assert!(sent > 0 && sent < 7_000_000, "{sent}");
    for host in ["a", "b"] {
        assert_eq!(hosts.list(host), ["long"]);
        assert_eq!(fs::read(hosts.path(host).join("long")).unwrap(), noise(8_000_000, 6));
    }
}

#[test]
fn a_source_that_shrinks_is_named_and_gets_no_name() {
    let hosts = Hosts::new(&["a"]);
    for arguments in [&["--rate", "48mbit"][..], &["--rate", "48mbit", "--delta"]] {
        // Longer than what this host has read before it waits for the rate: slots of 4 MB, and
        // messages.
        fs::write(hosts.path("shrinking"), noise(12_000_000, 7)).unwrap();
        fs::write(hosts.path("steady"), "steady").unwrap();
        let mut command = hosts.command(arguments);
        command.args(["shrinking", "steady", "a:"]).stderr(Stdio::piped());
        let mut running = command.spawn().unwrap();
        wait_for_part(&mut running, &hosts.path("a"));
        let source = fs::File::options().write(true).open(hosts.path("shrinking")).unwrap();
        source.set_len(100_000).unwrap();
        let output = running.wait_with_output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(5), "{said}");
        assert!(
            said.contains("shrinking: could not be copied: it has changed while it was copied"),
            "{said}"
        );
        assert_eq!(hosts.list("a"), ["steady"]);
    }
}

#[test]
fn the_source_is_checked_before_any_host_is_asked() {
    let hosts = Hosts::new(&[]);
    make_tree(&hosts.path("data"));
    for (arguments, expected) in [
        (&["data", "a:"][..], "data is a directory: give -r"),
        (&["missing", "a:"], "missing could not be read: No such file"),
        (&["/dev/null", "a:"], "neither a file nor a directory"),
        (&["-r", "data", "./data", "a:"], "have the same name"),
        (&["-r", "data/.", "data/long", "a:"], "have the same name at the destination"),
        (&["--exclude", "[", "-r", "data", "a:"], "--exclude '[': invalid range pattern"),
        (&["--exclude", "long", "data/long", "a:"], "--exclude matches every source"),
        (&["data/long", "a"], "'a' is no destination"),
        (
            &["n1:/data/long", "."],
            "copies from this host to others: to copy from n1 to this host, type: scp n1:/data/long .",
        ),
        (&["n[1-2]:a file", "a:"], "type: scp 'n1:a file' ."),
        (&["x/n1:file", "a:"], "x/n1:file could not be read"),
        (&["--set", "token=x", "data/long", "a:"], "that is the copy's own"),
        (
            &["--set", "tcp_congestion=nonsense", "data/long", "a:"],
            "tcp_congestion=nonsense is not available",
        ),
        (&["--existing", "never", "data/long", "a:"], "replace, keep or newer"),
    ] {
        let (status, said) = hosts.cp(arguments);
        assert!(status == 2 && said.contains(expected), "{arguments:?}: {said}");
    }
}

#[test]
fn what_a_remote_shell_prints_is_quoted_to_a_limit() {
    let hosts = Hosts::with_prologue(&["a"], "head -c 300000 /dev/zero | tr '\\0' x >&2; exit 3");
    fs::write(hosts.path("new"), "new").unwrap();
    let (status, said) = hosts.cp(&["new", "a:"]);
    assert!(status == 5 && said.contains("bytes cut] xxx") && said.len() < 3_000, "{said}");
}

/// A lab, or none, which is reported.
fn lab(settings: &LabSettings) -> Option<Lab> {
    match Lab::start(settings) {
        Ok(lab) => Some(lab),
        Err(error) if error.is_about_the_machine() => {
            let _ = std::io::stderr().write_all(format!("skipped: {error}\n").as_bytes());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn on(lab: &Lab, host: u32, line: &str) -> Output {
    lab.command(host, "sh").unwrap().args(["-c", line]).stdin(Stdio::null()).output().unwrap()
}

/// Packets are lost, one host is killed in the middle and another one's disk is full: the others
/// have everything.
#[test]
fn losses_a_death_and_a_full_disk_delay_nobody_else() {
    let mut settings = LabSettings::new(5);
    settings.loss = "2%".parse().unwrap();
    settings.rate = Some("100mbit".parse().unwrap());
    let Some(lab) = lab(&settings) else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, noise(12_000_000, 4)).unwrap();
    let full = on(
        &lab,
        3,
        "mkdir /dev/shm/full && mount -t tmpfs -o size=2m tmpfs /dev/shm/full && mkdir /dev/shm/full/x && ln -s full/x /dev/shm/x",
    );
    assert!(full.status.success(), "{}", text(&full));
    let line = format!(
        "{TREECAST} cp --rate 20mbit --shell $TREECAST_LAB_AGENT {} n[1-4]:/dev/shm/x/",
        file.display()
    );
    let mut command = lab.command(0, "sh").unwrap();
    let running = command
        .args(["-c", &line])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The receiver of host 2 is found by the file that it has open; all hosts see the processes of
    // all.
    let kill = "own=$(readlink /proc/self/ns/uts); while :; do \
                for fd in $(find /proc/[0-9]*/fd -lname '/dev/shm/x/.file.*treecast-part' 2>/dev/null); do process=${fd%/fd/*}; \
                [ \"$(readlink $process/ns/uts)\" != \"$own\" ] || { kill -9 ${process#/proc/}; exit 0; }; done; done";
    let mut killer = lab.command(2, "timeout").unwrap();
    let killed = killer.args(["20", "sh", "-c", kill]).stdin(Stdio::null()).output().unwrap();
    assert!(killed.status.success(), "{}", text(&killed));
    let output = running.wait_with_output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("n3: /dev/shm/x/file: No space left on device: make room there"), "{said}");
    assert!(said.contains("n2: ") && said.contains("to 2 of 4 hosts"), "{said}");
    for host in [1, 4] {
        let compared = on(&lab, host, &format!("cmp {} /dev/shm/x/file", file.display()));
        assert!(compared.status.success(), "{}", text(&compared));
    }
    for host in [2, 3] {
        assert!(on(&lab, host, "[ ! -e /dev/shm/x/file ]").status.success());
    }
}
