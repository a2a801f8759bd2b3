/* The maps of the program. Their sizes are set when the program is loaded. */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "group.h"
#include "packet.h"

/* CRC-32C of one byte followed by 0 to 7 others, computed when the program is loaded. */
const volatile __u32 CRC_TABLES[8][256] = {};

/* In tests `TEST_CLOCK` replaces the clock; the verifier removes unused code. */
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

/* From a group's number to its index in `GROUPS`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} GROUP_INDICES SEC(".maps");

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

/* Wakes user space for the slow path. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} WAKEUPS SEC(".maps");

struct timer {
	struct bpf_timer timer;
	__u32 is_initialized;
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

/* The work area of a packet. One per processor suffices: another packet of the same processor does not interrupt the program, and
 * copies that pass the hook again leave the program before they touch it. */
struct work {
	/* The headers below ours, and ours, as they were received, and as they are rewritten. */
	__u8 received[FRAME_BYTES_MAX + 2];
	struct header header;
	__u8 rewritten[FRAME_BYTES_MAX + 2];
	/* The path to a sleeping reader of this host. */
	struct path reader_path;
	struct header data;
	struct header ack;
	/* The offset of our header, and the length of UDP's payload, in bytes. */
	__u32 headers_bytes;
	__u32 length;
	/* Whether it was sent to a multicast address. */
	__u32 is_multicast;
	/* The group's index, and the time of arrival. */
	__u32 group_index;
	__u64 now;
	/* The Internet checksum's sum of the payload that was removed behind our header. */
	__u32 removed_sum;
	/* The number of segments, the length of each but the last, and the header of a segment that is not the first. */
	__u32 segments;
	__u32 segment_bytes;
	struct header segment_header;
	/* The description of the segment at hand. */
	struct descriptor piece;
	/* The contribution in the buffer; then the combined one. */
	struct kept_contribution contribution;
	/* The packets of which each child is requested an acknowledgment, one bit per packet. */
	__u64 ack_requests[CHILDREN_MAX];
	/* The state of the group before a batch, which is restored if one of its segments is left to the slow path. */
	struct flow_state saved;
	/* Whether an acknowledgment is sent to the parent, whether a reader is woken, and why the node is woken (0: it is not). */
	__u32 sends_ack;
	__u32 wakes_reader;
	__u32 wakes_node_for;
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
