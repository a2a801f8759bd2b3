//! The wire format, given any bytes.

use treecast_wire::{Body, Control, Malformed, Payload, View};

/// A datagram: nothing panics, and what is read is written as it was.
///
/// # Panics
/// If something is wrong with the format.
pub fn wire(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    // The checksum is what spoilt packets are told by; here everything else has to see what is wrong.
    if let Err(Malformed::Checksum { computed, .. }) = View::new(&bytes).and_then(View::check) {
        bytes[4..8].copy_from_slice(&computed.to_be_bytes());
    }
    let Ok(packet) = View::new(&bytes).and_then(View::check) else { return };
    let payload = packet.payload.bytes();
    let again = [&packet.header.write(Payload::new(payload).checksum())[..], payload].concat();
    assert_eq!(again, bytes, "a packet is written otherwise than it was read");
    if let Body::Control { operation, .. } = packet.header.body
        && let Ok(control) = Control::read(operation, payload)
    {
        assert_eq!((control.operation(), &control.write()[..]), (operation, payload));
    }
}
