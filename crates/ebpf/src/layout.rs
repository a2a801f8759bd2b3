//! Memory that the program and this crate share: a mirror of bpf/group.h, which a test holds to it.

use treecast_wire::HEADER_BYTES;

/// As many children a group has at most where the program forwards.
pub const CHILDREN_MAX: usize = 64;

pub const OWNER_NOBODY: u32 = 0;
pub const OWNER_USER: u32 = 2;

pub const WOKEN_BY_NOTE: u32 = 1;
pub const WOKEN_BY_TIME: u32 = 2;
pub const WOKEN_BY_ROOM: u32 = 3;

pub const EXPECTED_BEGINNING: u32 = 0;
pub const EXPECTED_MESSAGE: u32 = 1;
pub const EXPECTED_REST: u32 = 2;

/// Declares a structure of C, and lets a test know its fields.
macro_rules! mirror {
    ($($(#[$doc:meta])* $visibility:vis struct $name:ident { $($(#[$field_doc:meta])* $field_visibility:vis $field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Debug, Clone, Copy)]
            $visibility struct $name { $($(#[$field_doc])* $field_visibility $field: $type,)* }
        )*

        /// Every structure: its name in C, its length, and where its fields are.
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
    pub struct Way {
        pub interface: u32,
        pub bytes: u32,
        pub frame: [u8; 64],
    }

    pub struct Trip {
        pub smoothed: u64,
        pub variation: u64,
        pub shortest: u64,
        pub last: u64,
        pub is_measured: u32,
        pub reserved: u32,
    }

    pub struct Window {
        pub packets: u32,
        pub eighths: u32,
        pub is_opening: u32,
        pub answered: u32,
    }

    pub struct Note {
        pub is_there: u32,
        pub reserved: u32,
        pub arrived_at: u64,
        pub header: [u8; HEADER_BYTES],
    }

    pub struct Child {
        pub member: u32,
        pub sent: u32,
        pub acked: u32,
        pub stable: u32,
        pub end: u32,
        pub asked: u32,
        pub questions: u32,
        pub misses: u32,
        pub looks: u32,
        pub reserved: u32,
        pub acked_at: u64,
        pub heard_at: u64,
        pub quiet_since: u64,
        pub unanswered_since: u64,
        pub trip: Trip,
        pub window: Window,
        pub way: Way,
        pub note: Note,
    }

    /// What the program counts of a group.
    pub struct Counts {
        /// Data accepted in order.
        pub accepted: u64,
        /// Copies of data sent on.
        pub sent: u64,
        /// Acknowledgments sent.
        pub acks_sent: u64,
        /// Acknowledgments taken in.
        pub acks_received: u64,
        /// Packets given to user space, which had the group, or since they were out of the ordinary.
        pub passed: u64,
        /// Copies that no interface took.
        pub unsent: u64,
        /// Packets of the root's application that could not be sent on at once.
        pub deferred: u64,
        /// Numbers in an application's page that cannot be.
        pub invalid: u64,
    }

    pub struct Group {
        pub owner: u32,
        pub wake_port: u16,
        pub reserved2: u16,
        pub timed_at: u64,
        pub cookie: u64,
        pub number: u32,
        pub epoch: u32,
        pub member: u32,
        pub parent: u32,
        pub slots: u32,
        pub payload_bytes_max: u32,
        pub is_root: u32,
        pub child_count: u32,
        pub min_rto: u64,
        pub keepalive: u64,
        pub source: u64,
        pub next: u32,
        pub consumed: u32,
        pub stable: u32,
        pub freed: u32,
        pub asked: u32,
        pub told_stable: u32,
        pub told_end: u32,
        pub least: u32,
        pub least_count: u32,
        pub expected: u32,
        pub expected_message: u32,
        pub awaits_room: u32,
        pub expected_offset: u64,
        pub expected_message_length: u64,
        pub parent_heard_at: u64,
        pub look_at: u64,
        pub counts: Counts,
        pub parent_way: Way,
        pub children: [Child; CHILDREN_MAX],
    }

    pub struct Record {
        pub message: u32,
        pub length: u32,
        pub offset: u64,
        pub message_length: u64,
        pub checksum: u32,
        pub ack_requested: u32,
        pub arrived_at: u64,
        pub sent_at: u64,
        pub reserved: [u64; 2],
    }

    pub struct Page {
        pub written: u32,
        pub fill_written: [u32; 15],
        pub read: u32,
        pub fill_read: [u32; 15],
        pub sleeps: u32,
        pub fill_sleeps: [u32; 15],
        pub taken: u32,
        pub is_lent: u32,
        pub is_left: u32,
        pub fill: [u32; 13],
        pub rest: [u8; 3840],
    }

    pub struct Node {
        pub socket: u64,
        pub port: u16,
        pub reserved: u16,
        pub seen_out: u32,
        pub seen_in: u32,
        pub reserved2: u32,
    }
}

/// How long a slot is whose payload has so many bytes at most.
pub const fn slot_bytes(payload_bytes: u32) -> u32 {
    size_of::<Record>() as u32 + payload_bytes
}

impl Counts {
    /// All of them, in their order.
    pub const fn values(&self) -> [u64; 8] {
        let Self { accepted, sent, acks_sent, acks_received, passed, unsent, deferred, invalid } = *self;
        [accepted, sent, acks_sent, acks_received, passed, unsent, deferred, invalid]
    }

    /// The same read back; what is missing is 0.
    pub fn from_values(values: impl IntoIterator<Item = u64>) -> Self {
        let mut values = values.into_iter();
        let mut next = || values.next().unwrap_or_default();
        Self {
            accepted: next(),
            sent: next(),
            acks_sent: next(),
            acks_received: next(),
            passed: next(),
            unsent: next(),
            deferred: next(),
            invalid: next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    /// The compiler is asked, since it alone knows where fields are.
    #[test]
    fn the_mirror_shows_what_the_program_has() {
        if let Err(error) = crate::Program::is_built() {
            return println!("skipped: {error}");
        }
        let mut source = String::from("#include <linux/bpf.h>\n#include <stddef.h>\n#include \"group.h\"\n");
        let mut hold = |left: &str, right: usize| {
            source.push_str(&format!("_Static_assert({left} == {right}, \"{left} is not {right}\");\n"));
        };
        for (name, bytes, fields) in structures() {
            let name = name.to_lowercase();
            hold(&format!("sizeof(struct {name})"), bytes);
            for (field, offset) in fields {
                hold(&format!("offsetof(struct {name}, {field})"), offset);
            }
        }
        let numbers = [
            ("OWNER_NOBODY", OWNER_NOBODY),
            ("OWNER_USER", OWNER_USER),
            ("WOKEN_BY_NOTE", WOKEN_BY_NOTE),
            ("WOKEN_BY_TIME", WOKEN_BY_TIME),
            ("WOKEN_BY_ROOM", WOKEN_BY_ROOM),
            ("EXPECTED_BEGINNING", EXPECTED_BEGINNING),
            ("EXPECTED_MESSAGE", EXPECTED_MESSAGE),
            ("EXPECTED_REST", EXPECTED_REST),
            ("CHILDREN_MAX", CHILDREN_MAX as u32),
        ];
        for (name, number) in numbers {
            hold(name, number as usize);
        }
        hold("offsetof(struct slot, payload)", size_of::<Record>());
        hold("sizeof(struct slot)", slot_bytes(1_408) as usize);

        let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
        let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
        let mut compiler = Command::new(clang)
            .args(["-target", "bpf", "-fsyntax-only", "-DSLOT_BYTES=1408", "-x", "c", "-"])
            .arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH))
            .arg("-I")
            .arg(headers)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("there is a compiler, since the program is built");
        let mut input = compiler.stdin.take().expect("it is a pipe");
        input.write_all(source.as_bytes()).expect("the compiler reads");
        drop(input);
        let output = compiler.wait_with_output().expect("the compiler ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
