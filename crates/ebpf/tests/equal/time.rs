//! The program's own timer.

use std::thread;
use std::time::Duration;

use treecast_ebpf::WakeReason;
use treecast_proto::Nanoseconds;

use super::lab::Lab;
use super::stage::{Act, Setting, Stage, Twist};

const SETTING: Setting = Setting {
    is_root: true,
    is_v6: false,
    is_below_root: false,
    slots_log2: 4,
    payload_bytes_max: 512,
    children: 2,
    start: 0,
    has_checksum: true,
    reads_in_silence: false,
    sleeps: false,
};

/// Whether user space is told within so many milliseconds that its time has come.
fn is_told(lab: &mut Lab, within_ms: u32) -> bool {
    (0..within_ms).any(|_| {
        thread::sleep(Duration::from_millis(1));
        std::iter::from_fn(|| lab.program.take_wakeup()).any(|wakeup| wakeup.reason == WakeReason::Timer)
    })
}

#[test]
fn user_space_is_told_when_an_answer_is_late_and_not_before() {
    let Some(mut lab) = Lab::new() else { return };
    let mut stage = Stage::new(&mut lab, &SETTING).unwrap();
    stage.act(&Act::Pass { us: 100 }).unwrap();
    let data = Act::Data { ahead: 0, ack_requested: true, pieces: 1, bytes: 100, twist: Twist::Nothing };
    stage.act(&data).unwrap();
    assert_eq!(stage.pair.tally.sent_on, 1, "the program has sent it");
    let deadline = stage.pair.deadline().expect("answers are awaited");
    assert!(deadline > stage.now && deadline <= stage.now + Nanoseconds::from_ms(1));

    // The clock of tests stands still, and the program asks it again and again.
    let lab = stage.pair.lab();
    assert!(!is_told(lab, 20), "nothing is late yet");
    lab.program.set_time(deadline.0);
    assert!(is_told(lab, 2_000), "an answer is late");
}
