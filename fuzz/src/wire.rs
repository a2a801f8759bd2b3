//! The wire format with arbitrary bytes.

use treecast_wire::{Body, Control, Malformed, Payload, View};

/// Parses a datagram. A valid packet must be written as the same bytes.
///
/// # Panics
/// If it is written differently, or the parser panics.
pub fn wire(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    // The checksum would hide all other checks from the fuzzer, so it is corrected here.
    if let Err(Malformed::Checksum { computed, .. }) = View::new(&bytes).and_then(View::check) {
        bytes[4..8].copy_from_slice(&computed.to_be_bytes());
    }
    let Ok(packet) = View::new(&bytes).and_then(View::check) else { return };
    let payload = packet.payload.bytes();
    let written = [&packet.header.write(Payload::new(payload).checksum())[..], payload].concat();
    assert_eq!(written, bytes, "a packet is written differently than it was read");
    if let Body::Control { operation, .. } = packet.header.body
        && let Ok(control) = Control::read(operation, payload)
    {
        assert_eq!((control.operation(), &control.write()[..]), (operation, payload));
    }
}
