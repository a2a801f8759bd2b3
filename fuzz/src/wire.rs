//! The wire format with arbitrary bytes.

use treecast_wire::{
    Authentication, Body, Control, Crcs, Handshake, Keys, MacKey, Malformed, PayloadKey, View,
};

const KEYS: Keys = Keys {
    header: MacKey([1, 2]),
    control: MacKey([3, 4]),
    data: PayloadKey { code: MacKey([5, 6]), hash: [7; PayloadKey::HASH_WORDS] },
    authentication: Authentication::Header,
    crcs: Crcs::All,
};

/// Parses a datagram. A valid packet must be written as the same bytes, and verified.
///
/// # Panics
/// If it is written differently, or the parser panics.
pub fn wire(bytes: &[u8]) {
    // The code would hide all other checks from the fuzzer, so fields are read without it.
    let Ok(packet) = View::new(bytes).and_then(View::read) else { return };
    let payload = packet.payload;
    let written = [&packet.header.write(&KEYS.header)[..], payload].concat();
    let (covered, rest) = (&bytes[..56], &bytes[64..]);
    assert_eq!(
        (&written[..56], &written[64..]),
        (covered, rest),
        "a packet is written differently than it was read"
    );
    match View::new(&written).and_then(|view| view.check(&KEYS)) {
        Ok(checked) => assert_eq!(checked, packet),
        Err(malformed) => assert!(matches!(malformed, Malformed::Checksum { .. }), "{malformed}"),
    }
    match packet.header.body {
        Body::Control(header) => {
            if let Ok(control) = Control::read(header.operation, payload) {
                assert_eq!((control.operation(), &control.write()[..]), (header.operation, payload));
            }
        }
        Body::Handshake(header) => {
            if let Ok(handshake) = Handshake::read(header.operation, payload) {
                assert_eq!((handshake.operation(), &handshake.write()[..]), (header.operation, payload));
            }
        }
        _ => {}
    }
}
