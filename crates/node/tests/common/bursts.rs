//! A root that sends bursts of small messages, which it leaves to its node, and the kernel's packet
//! path.

use std::ops::Range;
use std::time::Duration;

use treecast_node::Group;

use super::TIMEOUT;

const COUNT: usize = 20_000;

/// The last messages, directly before the close.
const LAST: usize = 300;

/// Pseudo-random numbers, the same in each run (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn message(number: usize) -> Vec<u8> {
    (0..number % 90).map(|place| (place * 31 + number * 7) as u8).collect()
}

/// Sends the messages with these numbers, with pauses between bursts.
fn send(root: &Group, numbers: Range<usize>, chance: &mut Chance) {
    let Range { mut start, end } = numbers;
    while start < end {
        let burst = start..end.min(start + 1 + chance.below(300) as usize);
        start = burst.end;
        burst.for_each(|number| root.send(&message(number)).unwrap());
        std::thread::sleep(Duration::from_micros(chance.below(3) * chance.below(400)));
    }
}

/// Receives all messages, with regular pauses, until the close.
fn receive(member: &Group, row: usize, pause: Duration) {
    for number in 0..COUNT {
        let received = member.receive(TIMEOUT).unwrap();
        assert!(received.as_deref() == Some(&message(number)[..]), "message {number}");
        if number % row == row - 1 {
            std::thread::sleep(pause);
        }
    }
    assert_eq!(member.receive(TIMEOUT).unwrap(), None);
}

/// The first group is the root's; the others receive, some of them slowly. All messages arrive once
/// and in order, and the kernel's packet path forwards nearly all packets.
pub fn check(groups: &[Group], seed: u64) {
    let (root, members) = groups.split_first().unwrap();
    root.wait_until_ready(TIMEOUT).unwrap();
    std::thread::scope(|scope| {
        for (member, (row, pause_us)) in members.iter().zip([(COUNT, 0), (50, 100), (2_000, 5_000)]) {
            scope.spawn(move || receive(member, row, Duration::from_micros(pause_us)));
        }
        send(root, 0..COUNT - LAST, &mut Chance(seed));
        root.flush(TIMEOUT).unwrap();
        let (counters, counts) = (root.counters().unwrap(), root.kernel_counters().unwrap());
        println!("bursts: {counters:?}, {counts:?}");
        // While user space runs the group, it receives the acknowledgments. After a timeout of a
        // busy machine it runs the group for a while, so that only a program that seldom has the
        // group is a fault.
        assert!(
            counts.fast_path.slow_path * 4 < counters.acks_received * 3,
            "the program has the group: {counts:?}"
        );
        assert!(
            counts.fast_path.deferred * 2 < COUNT as u64,
            "the program takes most of what it is given: {counts:?}"
        );
        assert_eq!(counts.fast_path.transmit_errors, 0);
        // A close directly after them loses none of the last messages.
        (COUNT - LAST..COUNT).for_each(|number| root.send(&message(number)).unwrap());
        assert_eq!(root.close(TIMEOUT).unwrap(), []);
    });
}
