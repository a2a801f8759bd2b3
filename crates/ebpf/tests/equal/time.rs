//! The program's own timer.

use std::thread;
use std::time::Duration;

use treecast_ebpf::WakeReason;
use treecast_proto::{Authentication, Integrity, Nanoseconds};

use super::acts::{Act, Defect};
use super::lab::Lab;
use super::stage::{Setting, Stage};

const SETTING: Setting = Setting {
    is_root: true,
    is_multicast: false,
    is_v6: false,
    is_below_root: false,
    slots_log2: 4,
    payload_bytes_max: 512,
    children: 2,
    start: 0,
    has_checksum: true,
    authentication: Authentication::Header,
    integrity: Integrity::Crc32c,
    reads_silently: false,
    sleeps: false,
};

/// Whether the program wakes user space for its timer within this time.
fn wakes_for_timer(lab: &mut Lab, within_ms: u32) -> bool {
    (0..within_ms).any(|_| {
        thread::sleep(Duration::from_millis(1));
        std::iter::from_fn(|| lab.program.take_wakeup()).any(|wakeup| wakeup.reason == WakeReason::Timer)
    })
}

#[test]
fn the_timer_wakes_user_space_when_an_acknowledgment_is_late_and_not_before() {
    let Some(mut lab) = Lab::new() else { return };
    let mut stage = Stage::new(&mut lab, &SETTING).unwrap();
    stage.act(&Act::Pass { us: 100 }).unwrap();
    let data = Act::Data { ahead: 0, ack_requested: true, pieces: 1, bytes: 100, defect: Defect::None };
    stage.act(&data).unwrap();
    assert_eq!(stage.pair.counts.forwarded, 1, "the program has forwarded it");
    let deadline = stage.pair.deadline().expect("an acknowledgment is outstanding");
    assert!(deadline > stage.now && deadline <= stage.now + Nanoseconds::from_ms(1));

    // The test clock stands still, and the program's timer polls it.
    let lab = stage.pair.lab();
    assert!(!wakes_for_timer(lab, 20), "no acknowledgment is late yet");
    lab.program.set_time(deadline.0);
    assert!(wakes_for_timer(lab, 2_000), "an acknowledgment is late");
}
