//! A root that sends bursts of small messages, which it leaves to its node, and the kernel's packet path.

use std::ops::Range;
use std::time::Duration;

use treecast_node::Group;

use super::PATIENCE;

const COUNT: usize = 20_000;

/// So many come last, directly before the end.
const LAST: usize = 300;

/// Numbers that look random and are the same each time (xorshift).
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

/// Sends the messages of these numbers, with pauses between bursts.
fn send(root: &Group, numbers: Range<usize>, chance: &mut Chance) {
    let Range { mut start, end } = numbers;
    while start < end {
        let burst = start..end.min(start + 1 + chance.below(300) as usize);
        start = burst.end;
        burst.for_each(|number| root.send(&message(number)).unwrap());
        std::thread::sleep(Duration::from_micros(chance.below(3) * chance.below(400)));
    }
}

/// Receives all messages, with a pause after each so many of them, and the end.
fn receive(member: &Group, row: usize, pause: Duration) {
    for number in 0..COUNT {
        let received = member.receive(PATIENCE).unwrap();
        assert!(received.as_deref() == Some(&message(number)[..]), "message {number}");
        if number % row == row - 1 {
            std::thread::sleep(pause);
        }
    }
    assert_eq!(member.receive(PATIENCE).unwrap(), None);
}

/// The first of the groups is the root's; the others are read from, by some slowly. All arrives, once and in order, and nearly all
/// was sent on by the kernel's packet path.
pub fn check(groups: &[Group], seed: u64) {
    let (root, members) = groups.split_first().unwrap();
    root.wait_until_ready(PATIENCE).unwrap();
    std::thread::scope(|scope| {
        for (member, (row, pause_us)) in members.iter().zip([(COUNT, 0), (50, 100), (2_000, 5_000)]) {
            scope.spawn(move || receive(member, row, Duration::from_micros(pause_us)));
        }
        send(root, 0..COUNT - LAST, &mut Chance(seed));
        root.flush(PATIENCE).unwrap();
        let (counters, counts) = (root.counters(), root.kernel_counters().unwrap());
        println!("bursts: {counters:?}, {counts:?}");
        // While user space has the group, acknowledgments are passed up to it.
        assert!(
            counts.fast_path.slow_path * 4 < counters.acks_received,
            "the program has the group: {counts:?}"
        );
        assert!(
            counts.fast_path.deferred * 2 < COUNT as u64,
            "the program takes most of what it is given: {counts:?}"
        );
        assert_eq!(counts.fast_path.transmit_errors, 0);
        // Closed directly behind them, the group loses none of the last.
        (COUNT - LAST..COUNT).for_each(|number| root.send(&message(number)).unwrap());
        assert_eq!(root.close(PATIENCE).unwrap(), []);
    });
}
