/* What the program keeps. Sizes that a node chooses are set when the program is loaded. */
#pragma once

/* CRC-32C of one byte followed by 0 to 7 others, computed when the program is loaded. */
const volatile __u32 CRC_TABLES[8][256] = {};

/* In tests time is told by `TEST_CLOCK`; the verifier removes what is not used. */
const volatile __u32 HAS_TEST_CLOCK = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node);
} NODE SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct group);
} GROUPS SEC(".maps");

/* From a group's number to its place. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} PLACES SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
		__uint(max_entries, 4);
		__uint(key_size, sizeof(__u32));
		__uint(value_size, sizeof(struct slot));
	});
} SLOTS SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(map_flags, BPF_F_MMAPABLE);
		__uint(max_entries, 1);
		__uint(key_size, sizeof(__u32));
		__uint(value_size, sizeof(struct page));
	});
} PAGES SEC(".maps");

/* What wakes the user-space half for what is out of the ordinary. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} BELL SEC(".maps");

struct timer {
	struct bpf_timer timer;
	__u32 is_made;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct timer);
} TIMERS SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} TEST_CLOCK SEC(".maps");

/* A packet while it is worked on. One a processor does: a program is not interrupted by another packet of the same processor, and
 * copies that pass the hook again leave it before it is touched. */
struct work {
	/* The headers below ours, and ours, as the packet came; and those that are written. */
	__u8 came[FRAME_BYTES_MAX + 2];
	struct header header;
	__u8 frame[FRAME_BYTES_MAX + 2];
	/* The way back up, to who sleeps. */
	struct way sleeper;
	struct header data;
	struct header acknowledgment;
	/* Where our header begins, and how long UDP's payload is, in bytes. */
	__u32 headers_bytes;
	__u32 length;
	/* Of which group by its place, what the payload's part of the checksum is, and when it came. */
	__u32 place;
	__u32 checksum;
	__u64 now;
	/* The sum of what the packet had behind our header and has no longer. */
	__u32 removed;
	/* How many packets there are, how long each is but the last, and the header of one that is not the first. */
	__u32 packets;
	__u32 each_bytes;
	struct header other;
	/* Of which packets each child is asked for an answer, a bit a packet; whether the parent is answered, and who is woken. */
	__u64 asked[CHILDREN_MAX];
	/* How a group was before packets were taken of which one cannot be. */
	struct before {
		__u64 expected_offset;
		__u64 expected_message_length;
		__u64 accepted;
		__u32 next;
		__u32 consumed;
		__u32 stable;
		__u32 freed;
		__u32 expected;
		__u32 expected_message;
	} before;
	__u32 answers;
	__u32 wakes;
	__u32 wakes_node;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct work);
} WORK SEC(".maps");

static __always_inline __u64 clock(void)
{
	if (HAS_TEST_CLOCK) {
		__u32 first = 0;
		__u64 *now = bpf_map_lookup_elem(&TEST_CLOCK, &first);
		return now ? *now : 0;
	}
	return bpf_ktime_get_ns();
}
