//! Paths that carry the group's datagrams at first, and later only shorter ones.

use std::fs;
use std::io::Write;
use std::process::Command;

use super::common::has_kernel_engine;
use super::{file, text, utf8};

/// Runs a chain of five hosts in a lab with this MTU. While the root sends, the path to the relay
/// n1 shrinks at the switch, and that to the last host at its own interface. Both are lost for that
/// reason, and the others get all messages.
fn check_path_that_shrinks(engine: &str, mtu: u16, shrunk: u16) {
    const SLOTS: u64 = 64;
    let directory = tempfile::tempdir().unwrap();
    let treecast = env!("CARGO_BIN_EXE_treecast");
    // Interfaces take a batch (GSO) whatever its length, so there are none: then all frames are as
    // long as on a wire.
    let line = format!(
        "ip link set eth0 gso_max_segs 1; host=$TREECAST_LAB_HOST; case $host in \
         0) until [ \"$(grep -c 'is lost' n0)\" = 2 ]; do head -c 50000 /dev/zero; sleep 0.02; done | \
            {treecast} node --engine {engine} --listen 0.0.0.0:7000 --count 5 --set scheme=serial \
            --set slots={SLOTS} --send - 2> n0;; \
         *) {treecast} node --engine {engine} --join n0:7000 --member $host --receive - 2> n$host | {{ \
            head -c 100000; case $host in \
            1) nsenter --target 1 --net ip link set n1 mtu {shrunk};; \
            4) ip link set eth0 mtu {shrunk};; esac; cat; }} > /dev/null;; esac"
    );
    let mut lab = Command::new("timeout");
    lab.args(["120", treecast, "lab", "5", "--mtu", &mtu.to_string(), "--", "sh", "-c", &line]);
    let output = lab.current_dir(directory.path()).output().unwrap();
    let stderr = utf8(&output.stderr);
    if stderr.contains("does not allow a lab") || stderr.contains("a lab needs the tool") {
        let _ = std::io::stderr().write_all(format!("skipped: {stderr}").as_bytes());
        return;
    }
    let [root, relay, next, other, last] = [0, 1, 2, 3, 4]
        .map(|host| fs::read_to_string(directory.path().join(format!("n{host}"))).unwrap_or_default());
    let all = format!("{engine}, MTU {mtu}: {stderr}\n{root}\n{relay}\n{next}\n{other}\n{last}");
    let find = |output: &str, part: &str| {
        let found = output.lines().find(|line| line.contains(part)).map(str::to_owned);
        found.unwrap_or_else(|| panic!("'{part}' is not in\n{output}\nof\n{all}"))
    };
    for member in [1, 4] {
        let line = find(&root, &format!("member {member} at "));
        let words: Vec<&str> = line.split(' ').collect();
        let ["is", "lost:", "datagrams", "of", bytes, "bytes", "do", "not", "arrive", "there"] =
            words[words.len() - 10..]
        else {
            panic!("{line}\nof\n{all}");
        };
        // That of the first packet that does not arrive; the last one of a message is shorter.
        assert!(bytes.parse().is_ok_and(|bytes: u16| shrunk < bytes && bytes <= mtu), "{all}");
    }
    for lost in [&relay, &last] {
        find(lost, "datagrams as long as the group's do not reach this member");
    }
    let sent = find(&root, "sent ").replace("sent ", "received ");
    for survivor in [&next, &other] {
        find(survivor, &format!("{sent}; the group is closed"));
    }
    let packets = find(&root, " retransmitted");
    let count = packets.split(' ').rev().nth(1).and_then(|count| count.parse::<u64>().ok());
    // Three rounds for each of the two, and then a packet for each of a few timeouts; and what a
    // busy machine takes for lost.
    let bound = 2 * (3 * SLOTS + 200);
    assert!(count.is_some_and(|count| count <= bound), "more than {bound} packets were retransmitted\n{all}");
}

#[test]
fn a_relay_and_a_leaf_whose_paths_shrink_are_lost_and_the_others_go_on() {
    check_path_that_shrinks("user", 1_500, 1_280);
    check_path_that_shrinks("user", 9_000, 1_500);
}

#[test]
fn a_relay_and_a_leaf_whose_paths_shrink_are_lost_and_the_others_go_on_in_the_kernel() {
    if has_kernel_engine() {
        check_path_that_shrinks("ebpf", 1_500, 1_280);
        check_path_that_shrinks("ebpf", 9_000, 1_500);
    }
}

/// In a lab: links lose packets, so that a group leaves its streams; then datagrams become too long
/// for the links of two members, while some that follow lost ones have come already.
#[test]
fn data_goes_on_streams_again_where_a_path_becomes_too_narrow_for_datagrams() {
    let treecast = env!("CARGO_BIN_EXE_treecast");
    let directory = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> =
        (0..30_000_000_u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let input = file(&directory, "input", &bytes);
    let line = format!(
        "case $TREECAST_LAB_HOST in \
         0) {treecast} node --listen 0.0.0.0:7000 --count 3 --send {input} --set scheme=serial;; \
         *) {treecast} node --join n0:7000 --receive - \
            | {{ head -c 8000000; ip link set dev eth0 mtu 1300; cat; }} | cmp - {input} && echo right;; esac",
        input = text(&input)
    );
    let arguments = ["lab", "3", "--loss", "5%", "--", "sh", "-c", &line];
    let output = Command::new(treecast).args(arguments).output().unwrap();
    let (stdout, stderr) = (utf8(&output.stdout), utf8(&output.stderr));
    if stderr.contains("does not allow a lab") || stderr.contains("a lab needs the tool") {
        let _ = std::io::stderr().write_all(format!("skipped: {stderr}").as_bytes());
        return;
    }
    assert!(output.status.success(), "{stderr}");
    assert_eq!(stdout.matches("right").count(), 2, "{stdout}{stderr}");
}
