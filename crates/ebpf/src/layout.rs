//! Memory that the program and this crate share: a mirror of bpf/group.h. A test compares the two.

use treecast_proto::{ChildState, FAST_VALUES_BYTES_MAX, FlowState, MulticastState};
use treecast_wire::{HEADER_BYTES, MacKey, PayloadKey, Sequence};

/// The greatest number of children of a group that the program forwards.
pub const CHILDREN_MAX: usize = 64;

/// The greatest number of segments of a GSO batch that the program takes.
pub const SEGMENTS_MAX: u32 = 64;

pub const OWNER_NONE: u32 = 0;
pub const OWNER_USER: u32 = 2;

/// How the payload of a packet is verified before the packet is accepted.
pub const CHECK_CRC: u32 = 0;
pub const CHECK_CODE: u32 = 1;
pub const CHECK_NETWORK: u32 = 2;

pub const WAKE_FOR_NAK: u32 = 1;
pub const WAKE_FOR_TIMER: u32 = 2;
pub const WAKE_FOR_WINDOW: u32 = 3;

/// The longest payload of a contribution that the program combines, in bytes.
pub const CONTRIBUTION_BYTES_MAX: usize = 8 + FAST_VALUES_BYTES_MAX;

/// Declares structures of C, and lists their fields for the test.
macro_rules! mirror {
    ($($(#[$doc:meta])* $visibility:vis struct $name:ident { $($(#[$field_doc:meta])* $field_visibility:vis $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy)]
            $visibility struct $name { $($(#[$field_doc])* $field_visibility $field: $type,)* }
        )*

        /// Every structure: its name in C, its length in bytes, and the offsets of its fields.
        #[cfg(test)]
        pub fn structures() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$((
                stringify!($name),
                size_of::<$name>(),
                vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            ),)*]
        }
    };
}

mirror! {
    pub struct Path {
        pub interface: u32,
        pub bytes: u32,
        pub frame: [u8; 64],
    }

    pub struct Nak {
        pub is_pending: u32,
        pub reserved: u32,
        pub arrived_at: u64,
        pub header: [u8; HEADER_BYTES],
    }

    pub struct Child {
        pub state: ChildState,
        pub path: Path,
        pub nak: Nak,
        pub contribution: KeptContribution,
    }

    pub struct KeptContribution {
        pub length: u64,
        pub header: [u8; HEADER_BYTES],
        pub payload: [u8; CONTRIBUTION_BYTES_MAX],
    }

    /// The program's counters of a group, in addition to the protocol's.
    #[derive(Default, PartialEq, Eq)]
    pub struct FastPathCounters {
        /// Packets left to the slow path: it owned the group, or the program does not handle them.
        pub slow_path: u64,
        /// Copies that no interface accepted.
        pub transmit_errors: u64,
        /// Packets of the root's application that could not be sent at once.
        pub deferred: u64,
        /// Invalid numbers in an application's page.
        pub invalid: u64,
    }

    pub struct Group {
        pub owner: u32,
        pub wake_port: u16,
        pub reserved: u16,
        pub wake_nonce: u64,
        pub timer_set_for: u64,
        pub header_key: MacKey,
        pub control_key: MacKey,
        pub payload_key: PayloadKey,
        pub payload_check: u32,
        pub number: u32,
        pub epoch: u32,
        pub member: u32,
        pub parent: u32,
        pub slots: u32,
        pub payload_bytes_max: u32,
        pub is_root: u32,
        pub child_count: u32,
        pub is_by_multicast: u32,
        pub root: u32,
        pub is_root_parent: u32,
        pub min_rto: u64,
        pub keepalive: u64,
        pub root_socket: u64,
        pub window_wanted: u32,
        pub contributions_from: u32,
        pub parent_heard_at: u64,
        pub flow: FlowState,
        pub multicast: MulticastState,
        pub counters: FastPathCounters,
        pub parent_path: Path,
        pub multicast_path: Path,
        pub contribution: KeptContribution,
        pub contribution_sent_at: u64,
        pub contribution_timestamp: u64,
        pub children: [Child; CHILDREN_MAX],
    }

    pub struct Descriptor {
        pub message: u32,
        pub length: u32,
        pub offset: u64,
        pub message_length: u64,
        pub checksum: u64,
        pub ack_requested: u32,
        pub is_verified: u32,
        pub arrived_at: u64,
        pub sent_at: u64,
        pub reserved2: u64,
    }

    pub struct Page {
        pub written: u32,
        pub fill_written: [u32; 15],
        pub read: u32,
        pub fill_read: [u32; 15],
        pub is_waiting: u32,
        pub fill_is_waiting: [u32; 15],
        pub forwarded: u32,
        pub is_handed_off: u32,
        pub is_delegated: u32,
        pub is_lent: u32,
        pub datagrams_until: u64,
        pub fill: [u32; 10],
        pub rest: [u8; 3840],
    }

    pub struct Node {
        pub socket: u64,
        pub port: u16,
        pub reserved: u16,
        pub egress_count: u32,
        pub ingress_count: u32,
        pub reserved2: u32,
    }
}

impl KeptContribution {
    /// Whether the result is to be this packet, if there is a contribution.
    pub fn is_about(&self, packet: Sequence) -> bool {
        self.payload.first_chunk() == Some(&packet.0.to_be_bytes())
    }
}

/// The length of a slot in bytes.
pub const fn slot_bytes(payload_bytes_max: u32) -> u32 {
    size_of::<Descriptor>() as u32 + payload_bytes_max
}

#[cfg(test)]
mod tests {
    use std::path::Path as FilePath;

    use treecast_proto::{CongestionWindow, Expected, GroupCounters, Rtt};
    use treecast_wire::Contribution;

    use super::*;
    use crate::compiler::{Compiler, skip, sources};

    /// The compiler is asked, since it alone knows the offsets of fields in C.
    #[test]
    fn the_mirror_has_the_layout_of_the_program() {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(why) => return skip(&why),
        };
        let mut source = String::from("#include <stddef.h>\n#include \"group.h\"\n#include \"packet.h\"\n");
        let mut hold = |left: &str, right: usize| {
            source.push_str(&format!("_Static_assert({left} == {right}, \"{left} is not {right}\");\n"));
        };
        let mut hold_structure = |name: &str, bytes: usize, fields: &[(&str, usize)]| {
            hold(&format!("sizeof(struct {name})"), bytes);
            for (field, offset) in fields {
                hold(&format!("offsetof(struct {name}, {field})"), *offset);
            }
        };
        for (name, bytes, fields) in structures() {
            hold_structure(&c_name(name), bytes, &fields);
        }
        hold_structure("flow_state", size_of::<FlowState>(), FlowState::FIELDS);
        hold_structure("child_state", size_of::<ChildState>(), ChildState::FIELDS);
        hold_structure("multicast_state", size_of::<MulticastState>(), MulticastState::FIELDS);
        hold_structure("expected", size_of::<Expected>(), Expected::FIELDS);
        hold_structure("rtt", size_of::<Rtt>(), Rtt::FIELDS);
        hold_structure("congestion_window", size_of::<CongestionWindow>(), CongestionWindow::FIELDS);
        hold_structure("counters", size_of::<GroupCounters>(), GroupCounters::FIELDS);
        let numbers = [
            ("OWNER_NONE", OWNER_NONE),
            ("OWNER_USER", OWNER_USER),
            ("CHECK_CRC", CHECK_CRC),
            ("CHECK_CODE", CHECK_CODE),
            ("CHECK_NETWORK", CHECK_NETWORK),
            ("WAKE_FOR_NAK", WAKE_FOR_NAK),
            ("WAKE_FOR_TIMER", WAKE_FOR_TIMER),
            ("WAKE_FOR_WINDOW", WAKE_FOR_WINDOW),
            ("EXPECTED_MESSAGE", Expected::MESSAGE),
            ("EXPECTED_REST", Expected::REST),
            ("CHILDREN_MAX", CHILDREN_MAX as u32),
            ("SEGMENTS_MAX", SEGMENTS_MAX),
            ("VALUES_BYTES_MAX", FAST_VALUES_BYTES_MAX as u32),
            ("sizeof(struct contribution)", CONTRIBUTION_BYTES_MAX as u32),
            ("FLAG_OWN", u32::from(Contribution::FLAG_OWN)),
        ];
        for (name, number) in numbers {
            hold(name, number as usize);
        }
        hold("offsetof(struct slot, payload)", size_of::<Descriptor>());
        hold("sizeof(struct slot)", slot_bytes(1_408) as usize);
        compiler.check(&source).unwrap();
    }

    /// `FastPathCounters` is `fast_path_counters`.
    fn c_name(name: &str) -> String {
        let mut words = String::new();
        for letter in name.chars() {
            if letter.is_uppercase() && !words.is_empty() {
                words.push('_');
            }
            words.push(letter.to_ascii_lowercase());
        }
        words
    }

    #[test]
    fn every_header_of_the_program_includes_what_it_uses() {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(why) => return skip(&why),
        };
        let files = std::fs::read_dir(sources()).unwrap().map(|file| file.unwrap().file_name());
        let names = files.map(|name| name.into_string().unwrap());
        for name in names.filter(|name| FilePath::new(name).extension().is_some_and(|end| end == "h")) {
            let included = compiler.check(&format!("#include \"{name}\"\n"));
            included.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}
