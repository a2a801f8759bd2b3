/* Memory that the program shares with the slow path in user space, and with applications. crates/ebpf/src/layout.rs mirrors it, and
 * flow_state, child_state and what they contain are structures of crates/proto (state.rs, rtt.rs, congestion_window.rs,
 * counters.rs); a test compares all fields. Integers are in the host's byte order unless their type says otherwise. */
#pragma once

#include <linux/types.h>

/* The longest payload in bytes. */
#ifndef SLOT_BYTES
#define SLOT_BYTES 1408
#endif

/* The greatest number of children of a group that the program forwards. */
#define CHILDREN_MAX 64

/* The greatest number of segments of a GSO batch: one bit each in a word. */
#define SEGMENTS_MAX 64

/* The owner of a group. Only the owner accesses the fields of the group, except `owner`, `window_wanted` and the paths. The program
 * acquires a group that has no owner, for one packet; user space acquires it for as long as the slow path works on it. */
#define OWNER_NONE 0
#define OWNER_PROGRAM 1
#define OWNER_USER 2

/* Why user space is woken. */
#define WAKE_FOR_NAK 1
#define WAKE_FOR_TIMER 2
#define WAKE_FOR_WINDOW 3

/* How the payload of a packet is verified before the packet is accepted: by its CRC-32C, by its code, or by the checksum of the datagram
 * where that has one. */
#define CHECK_CRC 0
#define CHECK_CODE 1
#define CHECK_NETWORK 2

/* The kinds of `struct expected`. */
#define EXPECTED_MESSAGE 0
#define EXPECTED_REST 1

/* The headers below ours of packets to a neighbour, as they were in the last packet that user space sent there. `bytes` is their length;
 * `interface` is 0 as long as none was sent. */
struct path {
	__u32 interface;
	__u32 bytes;
	__u8 frame[64];
};

/* wire's `MacKey`. */
struct mac_key {
	__u64 words[2];
};

/* The bytes of a payload that one pair of hashes covers. */
#define NH_BLOCK_BYTES 256

/* wire's `PayloadKey`: the key of the codes of payloads. */
struct payload_key {
	struct mac_key code;
	__u32 hash[NH_BLOCK_BYTES / 4 + 2];
};

/* proto's `Rtt`: times in nanoseconds. */
struct rtt {
	__u64 smoothed;
	__u64 variation;
	__u64 min;
	__u64 latest;
	__u32 is_measured;
	__u32 reserved;
};

/* proto's `CongestionWindow`. */
struct congestion_window {
	__u32 packets;
	__u32 growth_eighths;
	__u32 is_slow_start;
	__u32 recovery_point;
};

/* proto's `Expected`: what the piece in the next packet has to be. */
struct expected {
	__u32 kind;
	__u32 message;
	__u64 offset;
	__u64 message_length;
};

/* proto's `GroupCounters`. */
struct counters {
	__u64 accepted;
	__u64 held;
	__u64 duplicates;
	__u64 stale;
	__u64 no_slot;
	__u64 sent;
	__u64 retransmitted;
	__u64 acks_sent;
	__u64 naks_sent;
	__u64 acks_received;
	__u64 timeouts;
	__u64 probes_sent;
	__u64 unknown_sender;
	__u64 invalid;
};

/* proto's `FlowState`: how far the packets of a group are. */
struct flow_state {
	__u32 next;
	__u32 consumed;
	__u32 stable;
	__u32 freed;
	__u32 ack_requested;
	__u32 advertised_stable;
	__u32 advertised_window_end;
	__u32 min_stable;
	__u32 min_stable_children;
	__u32 reserved;
	struct expected expected;
	__u64 bytes;
	__u64 parent_timestamp;
	__u64 ack_timestamp;
	__u64 timer_at;
	struct counters counters;
};

/* proto's `ChildState`: how far a child is. */
struct child_state {
	__u32 member;
	__u32 sent;
	__u32 acked;
	__u32 stable;
	__u32 window_end;
	__u32 ack_requested;
	__u32 unanswered;
	__u32 backoff;
	__u32 persist_probes;
	__u32 reserved;
	__u64 timestamp;
	__u64 acked_at;
	__u64 heard_at;
	__u64 timer_started_at;
	__u64 unanswered_since;
	__u64 addressed_at;
	__u64 awaited_since;
	__u32 awaited;
	__u32 reserved2;
	struct rtt rtt;
	struct congestion_window congestion_window;
};

/* proto's `MulticastState`: what the root, or a member that multicast reaches, knows of data by multicast. */
struct multicast_state {
	__u32 first;
	__u32 end;
	__u32 ack_requested;
	__u32 min_window_end;
	__u64 heard_at;
	struct congestion_window window;
	struct congestion_window spread;
	struct rtt rtt;
	__u32 max_acked;
	__u32 reserved;
};

/* A NAK that the slow path is to handle. */
struct nak {
	__u32 is_pending;
	__u32 reserved;
	__u64 arrived_at;
	__u8 header[64];
};

/* A contribution to an all-reduce, as the datagram in which it came; the slow path handles it if the
 * group is reclaimed. */
struct kept_contribution {
	/* The length of the payload in bytes; 0: there is none. What follows the payload is 0. */
	__u64 length;
	__u8 header[64];
	__u8 payload[72];
};

struct child {
	struct child_state state;
	struct path path;
	struct nak nak;
	struct kept_contribution contribution;
};

/* What the program counts beside proto's counters. */
struct fast_path_counters {
	/* Packets that were left to the slow path. */
	__u64 slow_path;
	/* Copies that no interface accepted. */
	__u64 transmit_errors;
	/* Datagrams of a root's application that could not be sent at once. */
	__u64 deferred;
	/* Invalid numbers in an application's page. */
	__u64 invalid;
};

struct group {
	__u32 owner;
	/* The port of the socket on which a sleeping reader waits, and the number by which that knows the program's datagrams. */
	__be16 wake_port;
	__u16 reserved;
	__be64 wake_nonce;
	/* The time for which the timer is set, or before which user space is not woken again by the timer; 0: neither. */
	__u64 timer_set_for;
	/* What user space posts before it hands the group off: the keys of the session, how payloads of data are verified, and so on. */
	struct mac_key header_key;
	struct mac_key control_key;
	struct payload_key payload_key;
	__u32 payload_check;
	__u32 number;
	__u32 epoch;
	__u32 member;
	__u32 parent;
	__u32 slots;
	__u32 payload_bytes_max;
	__u32 is_root;
	__u32 child_count;
	/* Whether the root sends data by multicast: then the program takes no data from the parent or the root's application, and forwards
	 * none. */
	__u32 is_by_multicast;
	/* At a member with data by multicast, the root's number, and whether the root is the parent. */
	__u32 root;
	__u32 is_root_parent;
	__u64 min_rto;
	__u64 keepalive;
	/* The cookie (SO_COOKIE) of the socket whose datagrams are packets of this group's root; 0: none. */
	__u64 root_socket;
	/* At the root, user space is woken when this number of packets may be sent to every child, or all packets are freed; 0: not. User
	 * space writes it at any time, and the program resets it to 0. */
	__u32 window_wanted;
	/* The first packet of a result whose contributions are kept and combined here: user space has
	 * those to earlier ones. */
	__u32 contributions_from;
	__u64 parent_heard_at;
	struct flow_state flow;
	struct multicast_state multicast;
	struct fast_path_counters counters;
	struct path parent_path;
	/* At a member with data by multicast, the headers of a packet from the multicast address to the root, which is never sent. Packets of
	 * the root have the same addresses and ports, the other way round, as packets of a neighbour have. */
	struct path multicast_path;
	/* The contribution of this node's application; when it was sent to the parent, with those of
	 * the children, or 0; and the timestamp of the last one that was, or 0. */
	struct kept_contribution contribution;
	__u64 contribution_sent_at;
	__u64 contribution_timestamp;
	struct child children[CHILDREN_MAX];
};

/* What a slot holds. */
struct descriptor {
	__u32 message;
	__u32 length;
	__u64 offset;
	__u64 message_length;
	/* The payload's checksum. */
	__u64 checksum;
	__u32 ack_requested;
	/* Whether the payload has this checksum. If it is not known, the reader verifies it. */
	__u32 is_verified;
	/* When the packet was accepted here, and when its copies were forwarded. */
	__u64 arrived_at;
	__u64 sent_at;
	__u64 reserved2;
};

struct slot {
	struct descriptor descriptor;
	__u8 payload[SLOT_BYTES];
};

_Static_assert(sizeof(struct descriptor) == 64, "as long as a header");
_Static_assert(SLOT_BYTES % 8 == 0, "payloads are read in words of 8 bytes");

/* What an application and its node share beside slots. Each side writes cache lines of its own. The program checks every number that an
 * application writes, and does not read numbers that it has written itself. */
struct page {
	/* Slots from `read` to before `written` belong to the reader: at the root the application writes `written`, and the node and the
	 * program write `read`; at another member it is the other way round. */
	__u32 written;
	__u32 fill_written[15];
	__u32 read;
	__u32 fill_read[15];
	/* Whether a sleeping reader or writer is to be woken. */
	__u32 is_waiting;
	__u32 fill_is_waiting[15];
	/* At the root, packets before it are forwarded, or will be by user space. */
	__u32 forwarded;
	/* Whether the group is handed off to the program, as far as is known. */
	__u32 is_handed_off;
	/* At the root, whether the application delegates sending to the node. */
	__u32 is_delegated;
	/* Not 0 as long as a daemon lends the memory to its client. */
	__u32 is_lent;
	/* At the root of a group with both carriers: until when its messages go in datagrams, in
	 * nanoseconds of the clock. */
	__u64 datagrams_until;
	__u32 fill[10];
	__u8 rest[3840];
};

_Static_assert(sizeof(struct page) == 4096, "an application maps one page");

/* What all groups have in common. */
struct node {
	/* The cookie of the slow path's socket, and its port. */
	__u64 socket;
	__be16 port;
	__u16 reserved;
	/* The number of packets that passed the program from that socket, and to it. */
	__u32 egress_count;
	__u32 ingress_count;
	__u32 reserved2;
};

/* What is put into the ring buffer that wakes user space. */
struct wakeup {
	__u32 group;
	__u32 reason;
};
