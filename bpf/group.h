/* Memory that the program shares with the node's user-space half, and with applications. crates/ebpf/src/layout.rs mirrors it;
 * a test holds the mirror to this. Numbers are the host's own. */
#pragma once

/* As many children a group has at most where the program forwards. */
#define CHILDREN_MAX 64

/* As many packets pass as one at most: a bit each in a word. */
#define PACKETS_MAX 64

/* Whose a group is now. Only the owner touches what is in a group but for `owner` itself, `awaits_room` and the ways: the
 * program takes it from nobody for one packet, user space for as long as it has something to do that is out of the ordinary. */
#define OWNER_NOBODY 0
#define OWNER_PROGRAM 1
#define OWNER_USER 2

/* What the user-space half is woken for. */
#define WOKEN_BY_NOTE 1
#define WOKEN_BY_TIME 2
#define WOKEN_BY_ROOM 3

/* What the next piece has to be, as in proto's `Expected`. */
#define EXPECTED_BEGINNING 0
#define EXPECTED_MESSAGE 1
#define EXPECTED_REST 2

/* The headers below ours of whatever goes to one neighbour, as user space's last packet there had them. 0 bytes: none was sent. */
struct way {
	__u32 interface;
	__u32 bytes;
	__u8 frame[64];
};

/* The round trip to a child, as proto's `RoundTrip`; times in nanoseconds. */
struct trip {
	__u64 smoothed;
	__u64 variation;
	__u64 shortest;
	__u64 last;
	__u32 is_measured;
	__u32 reserved;
};

/* How many packets may be under way to a child, as proto's `Window`. */
struct window {
	__u32 packets;
	__u32 eighths;
	__u32 is_opening;
	__u32 answered;
};

/* A NAK that user space is to act on. */
struct note {
	__u32 is_there;
	__u32 reserved;
	__u64 arrived_at;
	__u8 header[64];
};

/* A child, as proto's `Child` is while it is open and misses nothing. */
struct child {
	__u32 member;
	__u32 sent;
	__u32 acked;
	__u32 stable;
	__u32 end;
	__u32 asked;
	__u32 questions;
	__u32 misses;
	__u32 looks;
	__u32 reserved;
	__u64 acked_at;
	__u64 heard_at;
	__u64 quiet_since;
	/* Since when it has been asked and not been heard; with no questions, of no meaning. */
	__u64 unanswered_since;
	struct trip trip;
	struct window window;
	struct way way;
	struct note note;
};

/* What the program counts of a group; the first four are proto's counters of the same names. */
struct counts {
	__u64 accepted;
	__u64 sent;
	__u64 acks_sent;
	__u64 acks_received;
	/* Packets that were given to user space, since it had the group or the packet was out of the ordinary. */
	__u64 passed;
	/* Copies that no interface took. */
	__u64 unsent;
	/* Datagrams of applications that the program could not send on at once. */
	__u64 deferred;
	/* Numbers in an application's page that cannot be. */
	__u64 invalid;
};

/* A group, as proto's `Flow` is while nothing in it is out of the ordinary. */
struct group {
	__u32 owner;
	/* The port of the socket on which whoever sleeps waits. */
	__be16 wake_port;
	__u16 reserved2;
	/* For when the timer is set, or before which user space is not told again that its time has come; 0: neither. */
	__u64 timed_at;
	/* What user space posts. */
	__u64 cookie;
	__u32 number;
	__u32 epoch;
	__u32 member;
	__u32 parent;
	__u32 slots;
	__u32 payload_bytes_max;
	__u32 is_root;
	__u32 child_count;
	__u64 min_rto;
	__u64 keepalive;
	/* The socket whose datagrams are packets of this group's root. */
	__u64 source;
	/* What goes on. */
	__u32 next;
	__u32 consumed;
	__u32 stable;
	__u32 freed;
	__u32 asked;
	__u32 told_stable;
	__u32 told_end;
	/* All before it are accepted by every child's subtree, and so many have no more. */
	__u32 least;
	__u32 least_count;
	__u32 expected;
	__u32 expected_message;
	/* At the root, user space is told when every child may be sent so many packets, or has everything; 0: it does not wait. User
	 * space writes it at any time, and the program 0. */
	__u32 awaits_room;
	__u64 expected_offset;
	__u64 expected_message_length;
	__u64 parent_heard_at;
	/* When a child is to be looked after, at the earliest. */
	__u64 look_at;
	struct counts counts;
	struct way parent_way;
	struct child children[CHILDREN_MAX];
};

/* What is in a slot: proto's `Slot`, and when it came. */
struct record {
	__u32 message;
	__u32 length;
	__u64 offset;
	__u64 message_length;
	/* The payload's part of the packet's checksum. */
	__u32 checksum;
	__u32 ack_requested;
	/* When the packet was accepted here, and when its copies were sent on. */
	__u64 arrived_at;
	__u64 sent_at;
	__u64 reserved[2];
};

/* A slot. Behind the longest payload there is room to end it with zeroes. */
struct slot {
	struct record record;
	__u8 payload[SLOT_BYTES];
};

_Static_assert(SLOT_BYTES % 8 == 0, "payloads are read in words");

/* What an application and its node share beside slots. Each writes its own lines; the program believes nothing that an
 * application writes, and reads nothing of what it has written itself. */
struct page {
	/* Slots from `read` to before `written` are the reader's: at the root the application writes `written`, and the node and its
	 * program `read`; at another member it is the other way round. */
	__u32 written;
	__u32 fill_written[15];
	__u32 read;
	__u32 fill_read[15];
	/* Whether somebody sleeps who is to be woken. */
	__u32 sleeps;
	__u32 fill_sleeps[15];
	/* At the root, all before it are sent on, or user space will do so. */
	__u32 taken;
	/* Whether the program has the group, as far as is known. */
	__u32 is_lent;
	/* At the root, whether the application leaves it to the node to send on what is written. */
	__u32 is_left;
	__u32 fill[13];
	__u8 rest[3840];
};

_Static_assert(sizeof(struct page) == 4096, "an application maps one page");

/* What holds for all groups. */
struct node {
	/* The socket of the user-space half, and where it listens. */
	__u64 socket;
	__be16 port;
	__u16 reserved;
	/* The number of what was last sent by that socket and seen here, in turn; and of what came for it. */
	__u32 seen_out;
	__u32 seen_in;
	__u32 reserved2;
};

/* What is put on the bell. */
struct ring {
	__u32 group;
	__u32 woken_by;
};
