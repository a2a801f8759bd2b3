//! Labs of racks, and their uplinks.

use treecast_lab::{Lab, LabSettings, Probability, UplinkBytes};

use super::players::play_on;
use super::{BACKLOG, printed, start};

/// A lab of racks, such as `2x3`.
fn in_racks(racks: &str) -> LabSettings {
    LabSettings::in_racks(racks.parse().unwrap())
}

/// The output of a command in the network namespace of the switches.
fn printed_by_switches(lab: &Lab, line: &str) -> String {
    printed(lab, 0, &format!("PATH=$PATH:/usr/sbin:/sbin exec nsenter --target 1 --net sh -c '{line}'"))
}

#[test]
fn hosts_of_different_racks_reach_one_another_immediately() {
    let Some(lab) = start(&in_racks("3x2")) else { return };
    assert_eq!(lab.hosts().iter().map(|host| host.rack).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
    let mut server = play_on(&lab, 4, "echo");
    server.next_line();
    // In the same rack, and from each of the others.
    for from in [5, 0, 3] {
        for address in ["10.42.0.5:7000", "[fd42::5]:7000"] {
            assert_eq!(play_on(&lab, from, &format!("ping {address}")).next_line(), "hello");
        }
    }
}

#[test]
fn hosts_know_their_rack_and_those_of_others() {
    let Some(lab) = start(&in_racks("2x2")) else { return };
    assert_eq!(printed(&lab, 1, "echo $TREECAST_LAB_RACK"), "0");
    assert_eq!(printed(&lab, 2, "echo $TREECAST_LAB_RACK"), "1");
    assert_eq!(printed(&lab, 2, "cat $TREECAST_LAB_INVENTORY"), "n0 r0\nn1 r0\nn2 r1\nn3 r1");
    assert_eq!(printed(&lab, 0, "$TREECAST_LAB_AGENT n3 'echo $TREECAST_LAB_RACK'"), "1");
    let Some(lab) = start(&LabSettings::new(2)) else { return };
    assert_eq!(printed(&lab, 1, "echo $TREECAST_LAB_RACK; cat $TREECAST_LAB_INVENTORY"), "0\nn0 r0\nn1 r0");
    assert_eq!(lab.uplink_bytes().unwrap(), []);
}

/// How many bytes more went over each uplink while this many bytes were sent from one host to
/// another.
fn counted_during_upload(lab: &Lab, from: u32, to: u32, bytes: u32) -> Vec<UplinkBytes> {
    let before = lab.uplink_bytes().unwrap();
    let mut sink = play_on(lab, to, "sink");
    sink.next_line();
    play_on(lab, from, &format!("upload 10.42.0.{}:7000 {bytes}", to + 1)).next_line();
    let after = lab.uplink_bytes().unwrap();
    let differences = before.iter().zip(&after);
    differences
        .map(|(before, after)| UplinkBytes { up: after.up - before.up, down: after.down - before.down })
        .collect()
}

/// More than what is sent in the background, acknowledgments of TCP and headers, for a megabyte of
/// payload.
const OVERHEAD_MAX: u64 = 250_000;

#[test]
fn uplinks_count_what_crosses_them() {
    let Some(lab) = start(&in_racks("3x2")) else { return };
    let inside = counted_during_upload(&lab, 0, 1, 1_000_000);
    assert_eq!(inside.len(), 3);
    assert!(inside.iter().all(|rack| rack.up < OVERHEAD_MAX && rack.down < OVERHEAD_MAX), "{inside:?}");
    let across = counted_during_upload(&lab, 0, 4, 1_000_000);
    let payload = 1_000_000..1_000_000 + OVERHEAD_MAX;
    assert!(payload.contains(&across[0].up) && across[0].down < OVERHEAD_MAX, "{across:?}");
    assert!(payload.contains(&across[2].down) && across[2].up < OVERHEAD_MAX, "{across:?}");
    assert!(across[1].up < OVERHEAD_MAX && across[1].down < OVERHEAD_MAX, "{across:?}");
    // What was acknowledged.
    assert!(across[0].down > 0 && across[2].up > 0, "{across:?}");
}

#[test]
fn packets_to_a_silent_host_stay_off_the_uplinks_of_other_racks() {
    let Some(lab) = start(&in_racks("3x2")) else { return };
    // No switch learns where a host is, as if it had never sent anything.
    printed_by_switches(
        &lab,
        "for port in n0 n1 n4 up0 up2 down0 down2; do ip link set $port type bridge_slave learning off; done; \
         for switch in switch0 switch2 core; do ip link set $switch type bridge fdb_flush; done",
    );
    let inside = counted_during_upload(&lab, 0, 1, 1_000_000);
    assert!(inside.iter().all(|rack| rack.up < OVERHEAD_MAX && rack.down < OVERHEAD_MAX), "{inside:?}");
    let across = counted_during_upload(&lab, 0, 4, 1_000_000);
    assert!(across[1].up < OVERHEAD_MAX && across[1].down < OVERHEAD_MAX, "{across:?}");
    assert!(across[2].down >= 1_000_000, "{across:?}");
}

#[test]
fn an_uplink_has_its_rate_in_each_direction() {
    let settings = LabSettings {
        uplink: Some("200mbit".parse().unwrap()),
        rate: Some("1gbit".parse().unwrap()),
        mtu: 9000,
        ..in_racks("2x2")
    };
    let Some(lab) = start(&settings) else { return };
    for port in ["up0", "down0", "up1", "down1"] {
        let shown = printed_by_switches(&lab, &format!("tc qdisc show dev {port}; ip link show {port}"));
        assert!(shown.starts_with("qdisc tbf ") && shown.contains(" rate 200Mbit "), "{shown}");
        assert!(shown.contains(" mtu 9000 "), "{shown}");
    }
    // Those of the hosts keep theirs.
    assert!(printed_by_switches(&lab, "tc qdisc show dev n3").contains(" rate 1Gbit "));
    let Some(lab) = start(&in_racks("2x2")) else { return };
    assert!(!printed_by_switches(&lab, "tc qdisc show").contains("tbf"));
}

#[test]
fn packets_are_reordered_within_their_rack() {
    let _quiet = BACKLOG.read();
    let Some(lab) = start(&LabSettings { reorder: Probability::new(0.2).unwrap(), ..in_racks("2x2") }) else {
        return;
    };
    for (from, to) in [(2, 3), (0, 3)] {
        let before = lab.uplink_bytes().unwrap();
        let mut receiver = play_on(&lab, to, "receive_numbered");
        receiver.next_line();
        let role = format!("send_numbered 10.42.0.{}:7000 2000", to + 1);
        assert_eq!(play_on(&lab, from, &role).next_line(), "done");
        let counted = receiver.next_line();
        let numbers: Vec<u32> = counted.split(' ').map(|number| number.parse().unwrap()).collect();
        // None is lost or duplicate; the upper bound is eight standard deviations.
        assert!(numbers[0] == 2000 && (100..550).contains(&numbers[1]) && numbers[2] == 0, "{counted}");
        // 2,000 packets of 46 bytes.
        let down = lab.uplink_bytes().unwrap()[1].down - before[1].down;
        assert_eq!(down >= 92_000, from == 0, "{down} bytes from host {from}");
    }
}

#[test]
fn a_rack_may_have_one_host() {
    let Some(lab) = start(&in_racks("20x1")) else { return };
    let mut server = play_on(&lab, 19, "echo");
    server.next_line();
    assert_eq!(play_on(&lab, 0, "ping 10.42.0.20:7000").next_line(), "hello");
    assert_eq!(lab.uplink_bytes().unwrap().len(), 20);
    assert_eq!(printed(&lab, 19, "echo $TREECAST_LAB_RACK"), "19");
}
