//! The settings of nodes and groups by their keys, for callers with settings as text.

use std::time::Duration;

use treecast_plan::Scheme;
use treecast_proto::{GroupId, Nanoseconds};
use treecast_terms::{Key, Keyed, SpecError, Value};

use super::congestion::CongestionControl;
use super::{GroupSettings, NodeSettings};

impl Keyed for GroupSettings {
    fn keys() -> &'static [Key<Self>] {
        GROUP_KEYS
    }

    fn reason(name: &str, value: &str) -> Option<SpecError> {
        let mut error = (name == "scheme").then(|| value.parse::<Scheme>().err()).flatten()?;
        if let SpecError::UnknownName { known, .. } = &mut error {
            known.push("auto".into());
        }
        Some(error)
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
        about: "packet engine: a thread of the process, or the kernel's packet path, which needs rights or the daemon; auto is the daemon if there is one, and else a thread",
        get: |settings| settings.engine.to_string().into(),
        set: |settings, text| {
            settings.engine = text.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "socket",
        expected: "auto, or a path",
        about: "path of the daemon's socket",
        get: |settings| {
            settings.socket.as_ref().map_or("auto".into(), |path| path.display().to_string().into())
        },
        set: |settings, text| {
            settings.socket = Some(text).filter(|text| *text != "auto").map(Into::into);
            (!text.is_empty()).then_some(())
        },
    },
    Key {
        name: "share",
        expected: "a text",
        about: "processes of one user on this host that give the same text share one node",
        get: |settings| settings.share.clone().unwrap_or_default().into(),
        set: |settings, text| {
            settings.share = Some(text).filter(|text| !text.is_empty()).map(Into::into);
            Some(())
        },
    },
    Key {
        name: "ports",
        expected: "any, or a range of ports such as 7000-7099",
        about: "ports of which the node takes the first free one, where its address has none",
        get: |settings| settings.ports.map_or_else(|| "any".into(), |ports| ports.to_string().into()),
        set: |settings, text| {
            settings.ports = if text == "any" { None } else { Some(text.parse().ok()?) };
            Some(())
        },
    },
    Key {
        name: "buffer_bytes",
        expected: "a number of bytes from 4096 to 2^30",
        about: "size of the socket's buffers, within the system's bounds",
        get: |settings| (settings.buffer_bytes as u64).into(),
        set: |settings, text| {
            settings.buffer_bytes = text.parse().ok().filter(|bytes| (4_096..=1 << 30).contains(bytes))?;
            Some(())
        },
    },
    Key {
        name: "spin_us",
        expected: "auto, or a number of microseconds up to 1000000",
        about: "how long a waiting thread spins before it sleeps",
        get: |settings| settings.spin.map_or("auto".into(), |spin| (spin.as_micros() as u64).into()),
        set: |settings, text| {
            let parse = || Some(Duration::from_micros(text.parse().ok().filter(|&us| us <= 1_000_000)?));
            settings.spin = if text == "auto" { None } else { Some(parse()?) };
            Some(())
        },
    },
    Key {
        name: "status",
        expected: "true or false",
        about: "whether `treecast status` finds the node",
        get: |settings| settings.status.to_string().into(),
        set: |settings, text| {
            settings.status = text.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "peer_timeout_ms",
        expected: "a number of milliseconds from 10 to 600000",
        about: "timeout after which a silent neighbour is suspected to have failed",
        get: |settings| (settings.protocol.peer_timeout.0 / 1_000_000).into(),
        set: |settings, text| {
            let timeout = milliseconds(text)?;
            settings.protocol.peer_timeout = timeout;
            // Several keepalives fit into the timeout.
            settings.protocol.keepalive = Nanoseconds(timeout.0 / 8).min(Nanoseconds::from_ms(100));
            Some(())
        },
    },
    Key {
        name: "join_timeout_ms",
        expected: "a number of milliseconds from 10 to 600000",
        about: "timeout for a member that has never answered",
        get: |settings| (settings.protocol.join_timeout.0 / 1_000_000).into(),
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
        about: "number of the group",
        get: |settings| settings.group.0.into(),
        set: |settings, text| {
            settings.group = GroupId(text.parse().ok()?);
            Some(())
        },
    },
    Key {
        name: "root",
        expected: "a member's number",
        about: "number of the root among the members, from 0",
        get: |settings| (settings.root as u64).into(),
        set: |settings, text| {
            settings.root = text.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "member",
        expected: "auto, or a member's number",
        about: "number of this process, where several members share a node",
        get: |settings| settings.member.map_or_else(|| "auto".into(), |member| (member as u64).into()),
        set: |settings, text| {
            settings.member = if text == "auto" { None } else { Some(text.parse().ok()?) };
            Some(())
        },
    },
    Key {
        name: "token",
        expected: "a text",
        about: "secret that all members share",
        get: |settings| settings.token.clone().into(),
        set: |settings, text| {
            settings.token = text.into();
            Some(())
        },
    },
    Key {
        name: "insecure",
        expected: "true or false",
        about: "whether members on several hosts do without a token",
        get: |settings| settings.insecure.to_string().into(),
        set: |settings, text| {
            settings.insecure = text.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "auth",
        expected: "auto, header or payload",
        about: "what is authenticated of each packet of data: its header, or its payload too; auto is payload by multicast",
        get: |settings| settings.authentication.map_or("auto".into(), |covers| covers.to_string().into()),
        set: |settings, text| {
            settings.authentication = if text == "auto" { None } else { Some(text.parse().ok()?) };
            Some(())
        },
    },
    Key {
        name: "encrypt",
        expected: "on or off",
        about: "whether the root encrypts what it sends, with a key from the token; members learn it from the root",
        get: |settings| if settings.is_encrypted { "on" } else { "off" }.into(),
        set: |settings, text| {
            settings.is_encrypted = match text {
                "on" => true,
                "off" => false,
                _ => return None,
            };
            Some(())
        },
    },
    Key {
        name: "integrity",
        expected: "network or crc32c",
        about: "when members verify CRCs: when a payload is read, where the network has a checksum; or before they accept a packet",
        get: |settings| settings.integrity.to_string().into(),
        set: |settings, text| {
            settings.integrity = text.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "transport",
        expected: "auto, packets, stream or both",
        about: "what carries data along the tree: datagrams, a TCP connection from each member to its parent, or connections, and datagrams while these lose packets (both)",
        get: |settings| settings.transport.map_or("auto".into(), |transport| transport.to_string().into()),
        set: |settings, text| {
            settings.transport = if text == "auto" { None } else { Some(text.parse().ok()?) };
            Some(())
        },
    },
    Key {
        name: "tcp_congestion",
        expected: "auto, or an algorithm of the kernel such as bbr, cubic or reno",
        about: "congestion control of streams",
        get: |settings| {
            settings.tcp_congestion.as_ref().map_or("auto".into(), |algorithm| algorithm.to_string().into())
        },
        set: |settings, text| {
            settings.tcp_congestion = if text == "auto" { None } else { Some(CongestionControl::new(text)?) };
            Some(())
        },
    },
    Key {
        name: "retention",
        expected: "root or all",
        about: "who keeps packets on streams until all members have them: the root, or each member for its subtree too",
        get: |settings| settings.retention.to_string().into(),
        set: |settings, text| {
            settings.retention = text.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "scheme",
        expected: "auto, or a scheme such as binomial",
        about: "scheme of the tree",
        get: |settings| settings.scheme.as_ref().map_or("auto".into(), |scheme| scheme.to_string().into()),
        set: |settings, text| {
            settings.scheme = if text == "auto" { None } else { Some(text.parse().ok()?) };
            Some(())
        },
    },
    Key {
        name: "offload",
        expected: "auto, host, assisted, nic or switch",
        about: "where packets are forwarded",
        get: |settings| settings.offload.map_or("auto".into(), |offload| offload.to_string().into()),
        set: |settings, text| {
            settings.offload = if text == "auto" { None } else { Some(text.parse().ok()?) };
            Some(())
        },
    },
    Key {
        name: "message_bytes",
        expected: "a number of bytes up to 2^32",
        about: "expected length of messages",
        get: |settings| settings.message_bytes.into(),
        set: |settings, text| {
            settings.message_bytes =
                text.parse().ok().filter(|&bytes| bytes <= treecast_wire::MESSAGE_BYTES_MAX)?;
            Some(())
        },
    },
    Key {
        name: "slots",
        expected: "auto, or a power of two from 4 to 65536",
        about: "number of packets that each member holds",
        get: |settings| settings.slots.map_or("auto".into(), Value::from),
        set: |settings, text| {
            let is_valid = |slots: &u32| {
                slots.is_power_of_two() && (4..=treecast_wire::Table::SLOTS_MAX).contains(slots)
            };
            settings.slots = if text == "auto" { None } else { Some(text.parse().ok().filter(is_valid)?) };
            Some(())
        },
    },
    Key {
        name: "mtu_bytes",
        expected: "auto, or a number of bytes from 604 to 65535",
        about: "longest unfragmented datagram, with its IP header",
        get: |settings| settings.mtu_bytes.map_or("auto".into(), |bytes| u32::from(bytes).into()),
        set: |settings, text| {
            settings.mtu_bytes =
                if text == "auto" { None } else { Some(text.parse().ok().filter(|&bytes| bytes >= 604)?) };
            Some(())
        },
    },
    Key {
        name: "admits",
        expected: "true or false",
        about: "whether nodes can join the running group",
        get: |settings| settings.admits.to_string().into(),
        set: |settings, text| {
            settings.admits = text.parse().ok()?;
            Some(())
        },
    },
    Key {
        name: "bytes_per_s_max",
        expected: "none, or a number of bytes from 1",
        about: "rate limit of the root, in bytes per second",
        get: |settings| settings.bytes_per_s_max.map_or("none".into(), Value::Whole),
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
    fn values_are_parsed_as_they_are_formatted() {
        let mut settings = GroupSettings::new(Vec::new());
        settings
            .set_all(
                "group=7 root=2 member=3 token=secret insecure=true auth=payload encrypt=on integrity=crc32c transport=stream tcp_congestion=cubic retention=all scheme=separate offload=host message_bytes=5 slots=64 mtu_bytes=9000 admits=true bytes_per_s_max=1000",
            )
            .unwrap();
        let written: Vec<String> = settings.values().map(|(key, value)| format!("{key}={value}")).collect();
        let mut again = GroupSettings::new(Vec::new());
        again.set_all(&written.join(" ")).unwrap();
        assert!(again.values().eq(settings.values()));
        assert_eq!(written[9..12], ["tcp_congestion=cubic", "retention=all", "scheme=separate"]);
    }

    #[test]
    fn settings_of_a_node_are_parsed_as_they_are_formatted() {
        let mut settings = NodeSettings::default();
        settings
            .set_all("engine=user socket=/tmp/s share=job ports=7000-7099 buffer_bytes=65536 spin_us=20 status=false peer_timeout_ms=400 join_timeout_ms=3000")
            .unwrap();
        let written: Vec<String> = settings.values().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(
            written.join(" "),
            "engine=user socket=/tmp/s share=job ports=7000-7099 buffer_bytes=65536 spin_us=20 status=false peer_timeout_ms=400 join_timeout_ms=3000"
        );
        assert_eq!(settings.protocol.keepalive, Nanoseconds::from_ms(50));
        for wrong in [
            "engine=steam",
            "buffer_bytes=1",
            "ports=0",
            "ports=7099-7000",
            "spin_us=-1",
            "status=perhaps",
            "peer_timeout_ms=1",
            "join_timeout_ms=never",
            "colour=red",
        ] {
            let error = settings.set_all(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong.split('=').next().unwrap()), "{error}");
        }
    }

    #[test]
    fn an_invalid_scheme_is_refused_with_the_reason() {
        let error =
            |scheme| GroupSettings::new(Vec::new()).set_key("scheme", scheme).unwrap_err().to_string();
        assert_eq!(error("binomal"), "unknown scheme 'binomal': did you mean binomial, k-binomial, binary?");
        assert!(error("aut").starts_with("unknown scheme 'aut': did you mean auto"));
        assert_eq!(
            error("hierarchical:across=k-binomial,across-k=0"),
            "invalid value across-k=0: expected a whole number from 1"
        );
    }

    #[test]
    fn invalid_values_are_named() {
        let mut settings = GroupSettings::new(Vec::new());
        for wrong in [
            "slots=100",
            "offload=router",
            "insecure=perhaps",
            "auth=none",
            "transport=pigeons",
            "tcp_congestion=",
            "tcp_congestion=../reno",
            "retention=some",
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
