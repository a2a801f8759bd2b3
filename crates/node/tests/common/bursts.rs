//! A root that sends bursts of small messages, which it leaves to its node, and the kernel's packet
//! path.

use std::ops::Range;
use std::time::Duration;

use treecast_node::Group;

use super::TIMEOUT;

/// Messages of a round.
const COUNT: usize = 20_000;

/// After a timeout of a busy machine, user space runs the group for a while: only a program that
/// seldom has the group in each of the rounds is a fault.
const ROUNDS_MAX: usize = 10;

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

/// Receives all messages, with regular pauses, until the close; returns their number.
fn receive(member: &Group, row: usize, pause: Duration) -> usize {
    let mut number = 0;
    while let Some(received) = member.receive(TIMEOUT).unwrap() {
        assert!(received == message(number), "message {number}");
        number += 1;
        if number % row == 0 {
            std::thread::sleep(pause);
        }
    }
    number
}

/// Sends the messages of a round; returns whether the program had the group, and took most of what
/// it was given.
fn is_left_to_program(root: &Group, round: usize, chance: &mut Chance) -> bool {
    // While user space runs the group, it receives the acknowledgments.
    let counts = || {
        let (group, program) = (root.counters().unwrap(), root.kernel_counters().unwrap().fast_path);
        assert_eq!(program.transmit_errors, 0);
        (group.acks_received, program.slow_path, program.deferred)
    };
    let before = counts();
    send(root, round * COUNT..(round + 1) * COUNT, chance);
    root.flush(TIMEOUT).unwrap();
    let after = counts();
    println!("round {round}: (acknowledgments, slow path, deferred) were {before:?} and are {after:?}");
    let (acks, slow, deferred) = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
    slow * 4 < acks * 3 && deferred * 2 < COUNT as u64
}

/// The first group is the root's; the others receive, some of them slowly. All messages arrive once
/// and in order, and the kernel's packet path forwards nearly all packets.
pub fn check(groups: &[Group], seed: u64) {
    let (root, members) = groups.split_first().unwrap();
    root.wait_until_ready(TIMEOUT).unwrap();
    let counts: Vec<usize> = std::thread::scope(|scope| {
        let rows = [(COUNT, 0), (50, 100), (2_000, 5_000)];
        let receiving = members.iter().zip(rows).map(|(member, (row, pause_us))| {
            scope.spawn(move || receive(member, row, Duration::from_micros(pause_us)))
        });
        let receiving: Vec<_> = receiving.collect();
        let mut chance = Chance(seed);
        let round = (0..ROUNDS_MAX).find(|&round| is_left_to_program(root, round, &mut chance));
        let round = round.expect("the program has the group, and takes most of what it is given");
        // A close directly after them loses none of the last messages.
        let start = (round + 1) * COUNT;
        (start..start + LAST).for_each(|number| root.send(&message(number)).unwrap());
        assert_eq!(root.close(TIMEOUT).unwrap(), []);
        receiving.into_iter().map(|member| member.join().unwrap() - start).collect()
    });
    assert_eq!(counts, vec![LAST; members.len()]);
}
