//! Settings of a node and of a group by their keys, for those who write them as text.

use std::time::Duration;

use treecast_proto::{GroupId, Nanoseconds};
use treecast_terms::{Key, Keyed};

use crate::{GroupSettings, NodeSettings};

impl Keyed for GroupSettings {
    fn keys() -> &'static [Key<Self>] {
        GROUP_KEYS
    }
}

impl Keyed for NodeSettings {
    fn keys() -> &'static [Key<Self>] {
        NODE_KEYS
    }
}

const NODE_KEYS: &[Key<NodeSettings>] = &[
    Key {
        name: "engine",
        expected: "auto, user or ebpf",
        about: "what plays the NIC: a thread of the process, or the kernel's packet path, for which it needs rights or the daemon; auto is the daemon if there is one, and else a thread",
        get: |settings| settings.engine.to_string(),
        set: |settings, text| {
            settings.engine = text.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "socket",
        expected: "auto, or a path",
        about: "where the daemon of this host listens",
        get: |settings| {
            settings.socket.as_ref().map_or_else(|| "auto".into(), |path| path.display().to_string())
        },
        set: |settings, text| {
            settings.socket = Some(text).filter(|text| *text != "auto").map(Into::into);
            (!text.is_empty()).then_some(())
        },
    },
    Key {
        name: "buffer_bytes",
        expected: "a number of bytes from 4096 to 2^30",
        about: "how large the socket's buffers should be; the system has bounds of its own",
        get: |settings| settings.buffer_bytes.to_string(),
        set: |settings, text| {
            settings.buffer_bytes = text.parse().ok().filter(|bytes| (4_096..=1 << 30).contains(bytes))?;
            Some(())
        },
    },
    Key {
        name: "spin_us",
        expected: "a number of microseconds up to 1000000",
        about: "how long whoever waits looks again and again before it sleeps",
        get: |settings| settings.spin.as_micros().to_string(),
        set: |settings, text| {
            settings.spin = Duration::from_micros(text.parse().ok().filter(|&us| us <= 1_000_000)?);
            Some(())
        },
    },
    Key {
        name: "peer_timeout_ms",
        expected: "a number of milliseconds from 10 to 600000",
        about: "how long a neighbour may say nothing, though it is asked, before it is taken for dead",
        get: |settings| (settings.protocol.peer_timeout.0 / 1_000_000).to_string(),
        set: |settings, text| {
            let silence = milliseconds(text)?;
            settings.protocol.peer_timeout = silence;
            // A quiet neighbour is to be asked some times before that.
            settings.protocol.keepalive = Nanoseconds(silence.0 / 8).min(Nanoseconds::from_ms(100));
            Some(())
        },
    },
    Key {
        name: "join_timeout_ms",
        expected: "a number of milliseconds from 10 to 600000",
        about: "how long the root waits for a member that has never answered",
        get: |settings| (settings.protocol.join_timeout.0 / 1_000_000).to_string(),
        set: |settings, text| {
            settings.protocol.join_timeout = milliseconds(text)?;
            Some(())
        },
    },
];

fn milliseconds(text: &str) -> Option<Nanoseconds> {
    text.parse().ok().filter(|ms| (10..=600_000).contains(ms)).map(Nanoseconds::from_ms)
}

const GROUP_KEYS: &[Key<GroupSettings>] = &[
    Key {
        name: "group",
        expected: "a number below 2^32",
        about: "the group's number",
        get: |settings| settings.group.to_string(),
        set: |settings, text| {
            settings.group = GroupId(text.parse().ok()?);
            Some(())
        },
    },
    Key {
        name: "root",
        expected: "a member's number",
        about: "the root's place among the members, from 0",
        get: |settings| settings.root.to_string(),
        set: |settings, text| {
            settings.root = text.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "token",
        expected: "some characters",
        about: "what all members know and others do not",
        get: |settings| settings.token.clone(),
        set: |settings, text| {
            settings.token = text.into();
            Some(())
        },
    },
    Key {
        name: "scheme",
        expected: "auto, or a scheme such as binomial",
        about: "how the tree is made",
        get: |settings| settings.scheme.as_ref().map_or_else(|| "auto".into(), ToString::to_string),
        set: |settings, text| {
            settings.scheme = if text == "auto" { None } else { Some(text.parse().ok()?) };
            Some(())
        },
    },
    Key {
        name: "offload",
        expected: "host, assisted or nic",
        about: "who forwards",
        get: |settings| settings.offload.to_string(),
        set: |settings, text| {
            settings.offload = text.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "message_bytes",
        expected: "a number of bytes up to 2^32",
        about: "how long messages are, more or less",
        get: |settings| settings.message_bytes.to_string(),
        set: |settings, text| {
            settings.message_bytes =
                text.parse().ok().filter(|&bytes| bytes <= treecast_wire::MESSAGE_BYTES_MAX)?;
            Some(())
        },
    },
    Key {
        name: "slots",
        expected: "a power of two from 4 to 65536",
        about: "how many packets each member holds",
        get: |settings| settings.slots.to_string(),
        set: |settings, text| {
            let fits = |slots: &u32| {
                slots.is_power_of_two() && (4..=treecast_wire::Table::SLOTS_MAX).contains(slots)
            };
            settings.slots = text.parse().ok().filter(fits)?;
            Some(())
        },
    },
    Key {
        name: "mtu_bytes",
        expected: "a number of bytes from 604 to 65535",
        about: "the longest datagram that the network carries whole, with its IP header",
        get: |settings| settings.mtu_bytes.to_string(),
        set: |settings, text| {
            settings.mtu_bytes = text.parse().ok().filter(|&bytes| bytes >= 604)?;
            Some(())
        },
    },
    Key {
        name: "admits",
        expected: "true or false",
        about: "whether hosts that ask later become members",
        get: |settings| settings.admits.to_string(),
        set: |settings, text| {
            settings.admits = text.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "bytes_per_s_max",
        expected: "none, or a number of bytes from 1",
        about: "how fast the root sends at most, in bytes a second",
        get: |settings| settings.bytes_per_s_max.map_or_else(|| "none".into(), |bytes| bytes.to_string()),
        set: |settings, text| {
            settings.bytes_per_s_max =
                if text == "none" { None } else { Some(text.parse().ok().filter(|&bytes: &u64| bytes > 0)?) };
            Some(())
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_read_as_it_is_written() {
        let mut settings = GroupSettings::new(Vec::new());
        settings
            .set_all(
                "group=7 root=2 token=secret scheme=separate offload=host message_bytes=5 slots=64 mtu_bytes=9000 admits=true bytes_per_s_max=1000",
            )
            .unwrap();
        let written: Vec<String> = settings.values().map(|(key, value)| format!("{key}={value}")).collect();
        let mut again = GroupSettings::new(Vec::new());
        again.set_all(&written.join(" ")).unwrap();
        assert!(again.values().eq(settings.values()));
        assert_eq!(written[3], "scheme=separate");
    }

    #[test]
    fn settings_of_a_node_are_read_as_they_are_written() {
        let mut settings = NodeSettings::default();
        settings
            .set_all("engine=user socket=/tmp/s buffer_bytes=65536 spin_us=20 peer_timeout_ms=400 join_timeout_ms=3000")
            .unwrap();
        let written: Vec<String> = settings.values().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(
            written.join(" "),
            "engine=user socket=/tmp/s buffer_bytes=65536 spin_us=20 peer_timeout_ms=400 join_timeout_ms=3000"
        );
        assert_eq!(settings.protocol.keepalive, Nanoseconds::from_ms(50));
        for wrong in [
            "engine=steam",
            "buffer_bytes=1",
            "spin_us=-1",
            "peer_timeout_ms=1",
            "join_timeout_ms=never",
            "colour=red",
        ] {
            let error = settings.set_all(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong.split('=').next().unwrap()), "{error}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let mut settings = GroupSettings::new(Vec::new());
        for wrong in [
            "slots=100",
            "offload=switch",
            "group=-1",
            "root",
            "mtu_bytes=100",
            "message_bytes=1e9",
            "colour=red",
            "bytes_per_s_max=0",
        ] {
            let error = settings.set_all(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong.split('=').next().unwrap()), "{error}");
        }
    }
}
