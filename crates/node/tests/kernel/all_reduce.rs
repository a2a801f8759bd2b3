//! All-reduces in groups that the kernel's packet path runs.

use treecast_node::{Group, GroupId, GroupSettings, Offload, Operation};

use crate::common::{TIMEOUT, groups, message};
use crate::network::in_own_network;
use crate::{binomial, counts, nodes};

#[test]
fn all_reduces_have_their_place_among_messages_of_the_fast_path() {
    in_own_network(|| {
        for offload in [Offload::Nic, Offload::Switch] {
            let nodes = nodes(5, "127.0.0.1:0");
            let groups = groups(&nodes, &GroupSettings { offload: Some(offload), ..binomial(&nodes) });
            groups[0].wait_until_ready(TIMEOUT).unwrap();
            std::thread::scope(|scope| {
                for (member, group) in groups.iter().enumerate() {
                    scope.spawn(move || {
                        for round in 0..50 {
                            let sent = message(round, 3_000);
                            if member == 0 {
                                group.send(&sent).unwrap();
                            } else {
                                assert_eq!(group.receive(TIMEOUT).unwrap().as_deref(), Some(&sent[..]));
                            }
                            let mut sum = [member as u64 + round as u64];
                            group.all_reduce(&mut sum, Operation::Sum, TIMEOUT).unwrap();
                            assert_eq!(sum, [10 + 5 * round as u64]);
                        }
                    });
                }
            });
            let accepted = counts(&groups[1]).group.accepted;
            assert!(
                offload == Offload::Switch || accepted > 0,
                "the kernel's packet path has accepted nothing"
            );
            assert_eq!(groups[0].close(TIMEOUT).unwrap(), []);
        }
    });
}

/// The program combines barriers and short integers; floats go by the slow path, in the same group.
#[test]
fn all_reduces_are_combined_by_the_program() {
    in_own_network(|| {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let nodes = nodes(6, address);
            let settings = GroupSettings { group: GroupId(1), root: 1, ..binomial(&nodes) };
            let groups = groups(&nodes, &settings);
            let run = |member: usize, group: &Group| {
                let slow_path = || counts(group).fast_path.slow_path;
                for round in 0..20_u64 {
                    let mut sums = [member as u64, round];
                    assert_eq!(group.all_reduce(&mut sums, Operation::Sum, TIMEOUT).unwrap(), 6);
                    assert_eq!(sums, [15, 6 * round]);
                    let mut least = [-(member as i32), i32::MAX];
                    group.all_reduce(&mut least, Operation::Min, TIMEOUT).unwrap();
                    assert_eq!(least, [-5, i32::MAX]);
                    let mut greatest = [member as f64];
                    group.all_reduce(&mut greatest, Operation::Max, TIMEOUT).unwrap();
                    assert_eq!(greatest.map(f64::to_bits), [5_f64.to_bits()]);
                }
                group.barrier(TIMEOUT).unwrap();
                let before = slow_path();
                for _ in 0..100 {
                    assert_eq!(group.barrier(TIMEOUT).unwrap(), 6);
                }
                // Contributions are sent again while a processor is busy, and so are probes.
                let passed = slow_path() - before;
                assert!(group.is_root() || passed < 50, "{passed} of 100 barriers left the program");
            };
            std::thread::scope(|scope| {
                for (member, group) in groups.iter().enumerate() {
                    scope.spawn(move || run(member, group));
                }
            });
            groups[1].close(TIMEOUT).unwrap();
        }
    });
}
