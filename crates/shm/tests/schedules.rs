//! Model checking of the data that threads share (loom): `make schedules` runs it with the feature
//! `loom`.

use treecast_shm::models;

#[test]
fn written_packets_are_sent_by_one_side_under_every_schedule() {
    models::written_packets_are_sent_by_one_side();
}

#[test]
fn the_last_reader_frees_the_slots_under_every_schedule() {
    models::the_last_reader_frees_the_slots();
}

#[test]
fn written_packets_are_read_whole_under_every_schedule() {
    models::written_packets_are_read_whole();
}
