/* The rules of crates/proto/src/flow for what the fast path handles. What it does not handle is left to the slow path in user space,
 * and then nothing has changed. The caller owns the group. */
#pragma once

#include <stdbool.h>

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "group.h"
#include "mac.h"
#include "maps.h"
#include "packet.h"

/* As in crates/proto/src/rtt.rs, congestion_window.rs, flow/ack.rs and flow/child.rs. */
#define INITIAL_RTO_NS 10000000ULL
/* The keepalive interval of an idle child doubles with each probe, at most this number of times. */
#define IDLE_DOUBLINGS_MAX 2
#define QUEUEING_DELAY_MAX_NS 5000000ULL
#define QUEUEING_DELAY_LONG_NS 7500000ULL
#define RTT_SAMPLE_MAX_NS 60000000000ULL
#define ACK_LAG_PACKETS_MAX (1 << 29)
#define INITIAL_WINDOW_PACKETS 64
#define MIN_WINDOW_PACKETS 8
#define ACK_INTERVAL_MAX 64

/* Sequence numbers wrap (RFC 1982). */
static __always_inline __s32 distance(__u32 packet, __u32 from)
{
	return (__s32)(packet - from);
}

static __always_inline bool is_before(__u32 packet, __u32 other)
{
	return distance(packet, other) < 0;
}

static __always_inline __u32 earlier(__u32 one, __u32 other)
{
	return is_before(one, other) ? one : other;
}

static __always_inline __u32 later(__u32 one, __u32 other)
{
	return is_before(one, other) ? other : one;
}

/* The interval, in packets, of requests for an acknowledgment: a quarter of the slots, but at most ACK_INTERVAL_MAX. */
static __always_inline __u32 ack_interval(struct group *group)
{
	__u32 quarter = group->slots / 4;

	return quarter > ACK_INTERVAL_MAX ? ACK_INTERVAL_MAX : quarter;
}

static __always_inline void update_watermarks(struct group *group)
{
	struct flow_state *flow = &group->flow;
	__u32 accepted_below = group->child_count ? flow->min_stable : flow->next;

	flow->stable = later(flow->stable, earlier(accepted_below, flow->next));
	flow->freed = later(flow->freed, earlier(flow->consumed, accepted_below));
	if (group->is_by_multicast) {
		struct multicast_state *multicast = &group->multicast;

		multicast->first = later(multicast->first, flow->freed);
		multicast->end = later(multicast->end, multicast->first);
		multicast->ack_requested = later(multicast->ack_requested, multicast->first);
	}
}

/* The end of the receive window that the parent is told. Data by multicast comes to the whole subtree, and needs slots everywhere. */
static __always_inline __u32 advertised_window_end(struct group *group)
{
	__u32 window_end = group->flow.freed + group->slots;

	if (group->is_by_multicast && group->child_count)
		return earlier(group->multicast.min_window_end, window_end);
	return window_end;
}

/* Whether the parent is to be sent an acknowledgment that it has not requested. */
static __always_inline bool has_news(struct group *group)
{
	struct flow_state *flow = &group->flow;
	__s32 interval = ack_interval(group), quarter = group->slots / 4, half = group->slots / 2;
	bool is_met, is_short;

	if (group->is_root)
		return false;
	is_met = is_before(flow->advertised_stable, flow->ack_requested) && !is_before(flow->stable, flow->ack_requested);
	if (is_met && flow->stable == flow->next)
		return true;
	is_short = distance(flow->advertised_window_end, flow->next) < half;
	if ((is_short || group->is_by_multicast) &&
	    (is_met || distance(flow->stable, flow->advertised_stable) >= interval))
		return true;
	return is_short && distance(advertised_window_end(group), flow->advertised_window_end) >= quarter;
}

/* Takes over how far the reader has read; an invalid number is counted and ignored. */
static __always_inline void consume(struct group *group, struct page *page)
{
	__u32 read = *(volatile __u32 *)&page->read;
	struct flow_state *flow = &group->flow;

	if (group->is_root || read == flow->consumed)
		return;
	if (is_before(read, flow->consumed) || is_before(flow->next, read)) {
		group->counters.invalid++;
		return;
	}
	flow->consumed = read;
	update_watermarks(group);
}

static __always_inline bool is_expected(struct expected *expected, struct descriptor *piece)
{
	switch (expected->kind) {
	case EXPECTED_MESSAGE:
		return piece->offset == 0 && piece->message == expected->message;
	case EXPECTED_REST:
		return piece->message == expected->message && piece->offset == expected->offset &&
		       piece->message_length == expected->message_length;
	default:
		return false;
	}
}

static __always_inline bool is_last(struct descriptor *piece)
{
	return piece->offset + piece->length == piece->message_length;
}

static __always_inline bool owes_ack(struct child_state *child)
{
	return child->unanswered || is_before(child->acked, child->ack_requested);
}

/* When an acknowledgment is late: the RTO, the persist timer or the keepalive timer. */
static __always_inline __u64 ack_timer(struct group *group, struct child_state *child)
{
	__u64 wait = INITIAL_RTO_NS, wait_max = group->keepalive / 4;
	__u64 since = child->timer_started_at > child->heard_at ? child->timer_started_at : child->heard_at;
	struct rtt *rtt = &child->rtt;
	__u32 doublings = child->persist_probes;

	if (owes_ack(child))
		doublings = child->backoff;
	else if (is_before(child->stable, child->sent) || !is_before(child->sent, child->window_end))
		doublings += 2;
	else
		return since + (group->keepalive << (doublings < IDLE_DOUBLINGS_MAX ? doublings : IDLE_DOUBLINGS_MAX));
	if (rtt->is_measured) {
		wait = rtt->smoothed + 4 * rtt->variation;
		if (wait < group->min_rto)
			wait = group->min_rto;
	}
	wait <<= doublings < 16 ? doublings : 16;
	return child->timer_started_at + (wait < wait_max ? wait : wait_max);
}

/* When a child's timer expires. A child that gets its data by multicast is to be probed, lest it finds its parent silent. */
static __always_inline __u64 child_timer(struct group *group, struct child_state *child)
{
	__u64 timer = ack_timer(group, child), address_timer = child->addressed_at + group->keepalive;

	return group->is_by_multicast && address_timer < timer ? address_timer : timer;
}

/* Whether receive window and congestion window allow that number of packets. */
static __always_inline bool may_send(struct group *group, struct child_state *child, __u32 packets)
{
	return child->sent == group->flow.next && distance(child->window_end, child->sent) >= (__s32)packets &&
	       child->sent - child->acked + packets <= child->congestion_window.packets;
}

struct readiness {
	struct group *group;
	__u64 now;
	__u32 packets;
	__u32 is_blocked;
};

/* The body of a loop over children is a function of its own, which the verifier examines once and not once per child. */
static long check_child_ready(__u32 index, void *context)
{
	struct readiness *readiness = context;
	struct group *group = readiness->group;

	/* By multicast the root has sent the packets to the children already. */
	if (index < CHILDREN_MAX &&
	    (group->is_by_multicast || may_send(group, &group->children[index].state, readiness->packets)) &&
	    child_timer(group, &group->children[index].state) > readiness->now)
		return 0;
	readiness->is_blocked = 1;
	return 1;
}

/* Whether that number of packets may be sent to every child, and no child's timer has expired. An acknowledgment may shorten the RTO, so
 * that the timer of a child expires before `timer_at`. */
static __always_inline bool may_send_to_all(struct group *group, __u64 now, __u32 packets)
{
	struct readiness readiness = { group, now, packets, 0 };

	bpf_loop(group->child_count, check_child_ready, &readiness, 0);
	return !readiness.is_blocked;
}

/* The index of the last bit set, without an instruction for it. */
__noinline __u32 last_bit(__u64 bits)
{
	__u32 index = 0;

	if (bits >> 32) {
		index += 32;
		bits >>= 32;
	}
	if (bits >> 16) {
		index += 16;
		bits >>= 16;
	}
	if (bits >> 8) {
		index += 8;
		bits >>= 8;
	}
	if (bits >> 4) {
		index += 4;
		bits >>= 4;
	}
	if (bits >> 2) {
		index += 2;
		bits >>= 2;
	}
	return index + (bits >> 1);
}

static __always_inline __u32 count_bits(__u64 bits)
{
	bits -= bits >> 1 & 0x5555555555555555ULL;
	bits = (bits & 0x3333333333333333ULL) + (bits >> 2 & 0x3333333333333333ULL);
	bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return bits * 0x0101010101010101ULL >> 56;
}

/* The bits from an index on. */
static __always_inline __u64 bits_from(__s32 index)
{
	if (index <= 0)
		return ~0ULL;
	return index < SEGMENTS_MAX ? ~0ULL << index : 0;
}

/* Acknowledgments of these packets, one bit per packet from `first` on, are requested of a child. */
static __always_inline void request_acks(struct child_state *child, __u32 first, __u64 requests, __u64 now)
{
	__u32 unanswered = child->unanswered + count_bits(requests);

	if (!owes_ack(child))
		child->timer_started_at = now;
	child->ack_requested = later(child->ack_requested, first + last_bit(requests) + 1);
	if (!child->unanswered)
		child->unanswered_since = now;
	child->unanswered = unanswered < child->unanswered ? ~0u : unanswered;
}

/* The timer of a child has changed. */
static __always_inline void note_timer(struct group *group, struct child_state *child)
{
	__u64 timer = child_timer(group, child);

	if (timer < group->flow.timer_at)
		group->flow.timer_at = timer;
}

/* The bits of the packets that end an acknowledgment interval. */
static __always_inline __u64 interval_bits(struct group *group, __u32 first)
{
	__u32 interval = ack_interval(group), index = (interval - 1 - first) & (interval - 1);
	__u64 bits = 1;

	if (index >= SEGMENTS_MAX)
		return 0;
	if (interval <= 1)
		bits |= bits << 1;
	if (interval <= 2)
		bits |= bits << 2;
	if (interval <= 4)
		bits |= bits << 4;
	if (interval <= 8)
		bits |= bits << 8;
	if (interval <= 16)
		bits |= bits << 16;
	if (interval <= 32)
		bits |= bits << 32;
	return bits << index;
}

struct sending {
	struct group *group;
	struct work *work;
	__u32 first;
	/* One bit per packet: all of them, and those that request an acknowledgment of every child. */
	__u64 all;
	__u64 ack_requests;
};

static long send_to_child(__u32 index, void *context)
{
	struct sending *sending = context;
	struct group *group = sending->group;
	struct work *work = sending->work;
	__u32 packet = sending->first;
	struct child_state *child;
	bool starts_timer;
	__u64 requests;

	if (index >= CHILDREN_MAX)
		return 1;
	child = &group->children[index].state;
	/* Packets that fill the congestion window or the receive window request an acknowledgment. */
	requests = sending->ack_requests |
		   bits_from((__s32)(child->congestion_window.packets - (packet + 1 - child->acked))) |
		   bits_from(distance(child->window_end, packet) - 1);
	requests &= sending->all;
	/* Kept in memory, where the verifier does not distinguish sets of packets. */
	work->ack_requests[index] = requests;
	starts_timer = child->sent == child->acked;
	if (starts_timer) {
		child->timer_started_at = work->now;
		if (!is_before(child->stable, child->sent))
			child->persist_probes = 0;
	}
	child->sent = packet + work->segments;
	child->addressed_at = work->now;
	if (requests) {
		starts_timer = true;
		request_acks(child, packet, requests, work->now);
	}
	if (starts_timer)
		note_timer(group, child);
	return 0;
}

/* Records that the packets are sent to every child, and which of them request an acknowledgment of which child. */
static __always_inline void send_to_children(struct group *group, struct work *work, __u32 first, __u64 ack_requests)
{
	struct sending sending = { .group = group, .work = work, .first = first };

	sending.all = ~bits_from(work->segments);
	sending.ack_requests = ack_requests | interval_bits(group, first);
	bpf_loop(group->child_count, send_to_child, &sending, 0);
	group->flow.counters.sent += (__u64)group->child_count * work->segments;
}

/* Packets that have come by multicast, all that were accepted from `first` on. Those that request an acknowledgment have a bit each. */
struct marking {
	struct group *group;
	__u64 now;
	__u32 first;
	__u64 ack_requests;
};

static long mark_sent_to_child(__u32 index, void *context)
{
	struct marking *marking = context;
	struct group *group = marking->group;
	struct child_state *child;
	__u64 requests;
	__u32 ahead;

	if (index >= CHILDREN_MAX)
		return 1;
	child = &group->children[index].state;
	/* A child that is ahead has acknowledged this number of the packets already. */
	ahead = child->sent - marking->first;
	if (!is_before(child->sent, group->flow.next))
		return 0;
	requests = marking->ack_requests & bits_from(ahead);
	if (child->sent == child->acked)
		child->timer_started_at = marking->now;
	child->sent = group->flow.next;
	/* The protocol marks packet by packet, and looks at the timer each time. It changes with the first packet, and with the first request. */
	if (!(requests >> (ahead & (SEGMENTS_MAX - 1)) & 1))
		note_timer(group, child);
	if (!requests)
		return 0;
	request_acks(child, marking->first, requests, marking->now);
	if (!child->awaited_since) {
		child->awaited = marking->first + last_bit(requests & -requests) + 1;
		child->awaited_since = marking->now;
	}
	note_timer(group, child);
	return 0;
}

/* Packets that have come by multicast count as sent to every child: multicast reaches each of them while the group is handed off. `freed`
 * stays as it is when packets are accepted, so that `update_watermarks` has changed nothing of this meanwhile. */
__noinline int mark_sent(struct group *group, __u32 first, __u64 ack_requests, __u64 now)
{
	struct marking marking = { .group = group, .now = now, .first = first, .ack_requests = ack_requests };
	struct multicast_state *multicast = &group->multicast;

	if (!group)
		return 0;
	if (multicast->end != first) {
		multicast->first = first;
		multicast->ack_requested = first;
	}
	multicast->end = group->flow.next;
	if (ack_requests)
		multicast->ack_requested = first + last_bit(ack_requests) + 1;
	multicast->heard_at = now;
	bpf_loop(group->child_count, mark_sent_to_child, &marking, 0);
	return 0;
}

/* Accepts the next packet, whose piece is the expected one and whose payload is in its slot. */
static __always_inline void accept(struct group *group, struct descriptor *piece)
{
	struct flow_state *flow = &group->flow;

	if (is_last(piece)) {
		flow->expected.kind = EXPECTED_MESSAGE;
		flow->expected.message = piece->message + 1;
		flow->expected.offset = 0;
		flow->expected.message_length = 0;
	} else {
		flow->expected.kind = EXPECTED_REST;
		flow->expected.message = piece->message;
		flow->expected.offset = piece->offset + piece->length;
		flow->expected.message_length = piece->message_length;
	}
	flow->bytes += piece->length;
	flow->next++;
	if (group->is_root)
		flow->consumed = flow->next;
	else
		flow->counters.accepted++;
	update_watermarks(group);
}

__noinline int on_rtt_sample(struct rtt *rtt, __u64 sample)
{
	if (!rtt)
		return 0;
	if (sample > RTT_SAMPLE_MAX_NS)
		sample = RTT_SAMPLE_MAX_NS;
	if (sample < rtt->min)
		rtt->min = sample;
	rtt->latest = sample;
	if (rtt->is_measured) {
		__u64 deviation = rtt->smoothed > sample ? rtt->smoothed - sample : sample - rtt->smoothed;

		rtt->variation = (3 * rtt->variation + deviation) / 4;
		rtt->smoothed = (7 * rtt->smoothed + sample) / 8;
	} else {
		rtt->is_measured = 1;
		rtt->smoothed = sample;
		rtt->variation = sample / 2;
	}
	return 0;
}

/* Takes in how long an acknowledgment has taken that the root has requested by multicast: no round trip, and no sample of the shortest. */
static __always_inline void on_delay(struct rtt *rtt, __u64 delay)
{
	__u64 min = rtt->min;

	if (!rtt->is_measured)
		return;
	on_rtt_sample(rtt, delay);
	rtt->min = min;
}

static __always_inline bool is_queued_for(struct rtt *rtt, __u64 span)
{
	return rtt->latest > rtt->min && rtt->latest - rtt->min > span;
}

static __always_inline bool has_standing_queue(struct rtt *rtt)
{
	return is_queued_for(rtt, QUEUEING_DELAY_MAX_NS);
}

/* Whether the queue is so long that a window is reduced. */
static __always_inline bool has_long_queue(struct rtt *rtt)
{
	return is_queued_for(rtt, QUEUEING_DELAY_LONG_NS);
}

__noinline int grow_window(struct congestion_window *window, __u32 acknowledged, __u32 packets_max)
{
	__u32 packets;

	if (!window)
		return 0;
	window->growth_eighths += window->is_slow_start ? 8 * acknowledged : acknowledged;
	packets = window->packets + window->growth_eighths / 8;
	window->packets = packets < packets_max ? packets : packets_max;
	window->growth_eighths %= 8;
	return 0;
}

static __always_inline __u32 smaller(__u32 one, __u32 other)
{
	return one < other ? one : other;
}

static __always_inline __u32 larger(__u32 one, __u32 other)
{
	return one > other ? one : other;
}

/* Packets wait in a queue of the network for longer than they may: one round trip reduces the window once, to what would have made
 * the queue as long as it may be, and at most by half. `packet` is acknowledged, and all before `sent` had been sent. */
static __always_inline void shrink_window(struct congestion_window *window, struct rtt *rtt, __u32 packet, __u32 sent, __u32 packets_max)
{
	__u32 least = larger(smaller(window->packets, INITIAL_WINDOW_PACKETS), window->packets / 2);
	__u64 without_queue;

	if (is_before(packet, window->recovery_point))
		return;
	/* `latest` is more than 7.5 ms, so that the divisor is not 0. */
	without_queue = (rtt->min + QUEUEING_DELAY_LONG_NS) / 1000 * window->packets / (rtt->latest / 1000);
	window->recovery_point = sent;
	window->packets = smaller(larger(larger(without_queue, least), MIN_WINDOW_PACKETS), packets_max);
	window->is_slow_start = 0;
	window->growth_eighths = 0;
}

/* At the root with data by multicast: a child has accepted all packets before `acked`, and was asked at `requested_at` if that is not 0. The
 * window of packets in the network may change; there is nothing to be sent while the group is handed off. */
static __always_inline void on_acked(struct group *group, __u32 acked, __u64 requested_at, __u64 now)
{
	struct multicast_state *multicast = &group->multicast;
	__u32 before = multicast->max_acked;

	if (!is_before(before, acked))
		return;
	multicast->max_acked = acked;
	if (requested_at && requested_at <= now)
		on_rtt_sample(&multicast->rtt, now - requested_at);
	if (has_long_queue(&multicast->rtt))
		shrink_window(&multicast->window, &multicast->rtt, acked, multicast->end, group->slots);
	if (distance(multicast->end, before) >= (__s32)multicast->window.packets && !has_standing_queue(&multicast->rtt))
		grow_window(&multicast->window, distance(acked, before), group->slots);
}

/* At the root with data by multicast: all members have accepted more packets, from `before` on. They may be further apart. */
static __always_inline void on_stable(struct group *group, __u32 before)
{
	struct multicast_state *multicast = &group->multicast;
	__s32 acknowledged = distance(group->flow.min_stable, before);

	if (acknowledged > 0 && distance(multicast->end, before) >= (__s32)multicast->spread.packets)
		grow_window(&multicast->spread, acknowledged, group->slots);
}

static long compare_min_stable(__u32 index, void *context)
{
	struct group *group = *(struct group **)context;
	struct flow_state *flow = &group->flow;
	__u32 stable;

	if (index >= CHILDREN_MAX)
		return 1;
	stable = group->children[index].state.stable;
	if (!flow->min_stable_children || is_before(stable, flow->min_stable)) {
		flow->min_stable = stable;
		flow->min_stable_children = 1;
	} else if (stable == flow->min_stable) {
		flow->min_stable_children++;
	}
	return 0;
}

static __always_inline void find_min_stable(struct group *group)
{
	group->flow.min_stable_children = 0;
	bpf_loop(group->child_count, compare_min_stable, &group, 0);
}

static long compare_min_window_end(__u32 index, void *context)
{
	struct group *group = *(struct group **)context;
	__u32 window_end;

	if (index >= CHILDREN_MAX)
		return 1;
	window_end = group->children[index].state.window_end;
	if (!index || is_before(window_end, group->multicast.min_window_end))
		group->multicast.min_window_end = window_end;
	return 0;
}

static __always_inline void find_min_window_end(struct group *group)
{
	bpf_loop(group->child_count, compare_min_window_end, &group, 0);
}

/* Takes an acknowledgment of a child; false if the slow path has to handle it. */
__noinline bool handle_ack(struct group *group, struct child_state *child, struct header *header, __u64 now)
{
	__u32 next, stable, receive_window, window_end, sent_end, min_stable;
	bool was_at_min, had_min_window_end, may_be_ahead;
	__u64 requested_at;
	__s32 acknowledged;

	if (!group || !child || !header)
		return false;
	next = bpf_ntohl(header->sequence);
	stable = bpf_ntohl(header->acknowledgment.stable);
	receive_window = bpf_ntohl(header->acknowledgment.receive_window);
	window_end = next + receive_window;
	requested_at = bpf_be64_to_cpu(header->acknowledgment.echo);
	acknowledged = distance(next, child->acked);
	was_at_min = child->stable == group->flow.min_stable;
	had_min_window_end = child->window_end == group->multicast.min_window_end;
	/* By multicast a member's child may be ahead, by as many packets as there are slots. */
	may_be_ahead = group->is_by_multicast && !group->is_root;
	sent_end = may_be_ahead ? group->flow.next + group->slots : group->flow.next;
	min_stable = group->flow.min_stable;
	if (is_before(next, child->sent - ACK_LAG_PACKETS_MAX) || is_before(sent_end, next) ||
	    distance(next, stable) < 0 || distance(next, stable) > ACK_LAG_PACKETS_MAX || receive_window > group->slots)
		return false;
	/* It acknowledges less than before, in reply to a later request: it has lost its state. */
	if (acknowledged < 0 && requested_at > child->acked_at)
		return false;
	group->flow.counters.acks_received++;
	child->timestamp = bpf_be64_to_cpu(header->timestamp);
	child->heard_at = now;
	child->unanswered = 0;
	child->backoff = 0;
	if (requested_at && requested_at <= now)
		on_rtt_sample(&child->rtt, now - requested_at);
	/* Requested by multicast, it has no timestamp of this node's; if it has one, it answers something later. */
	if (child->awaited_since && !is_before(next, child->awaited)) {
		if (!requested_at)
			on_delay(&child->rtt, now > child->awaited_since ? now - child->awaited_since : 0);
		child->awaited_since = 0;
	}
	child->sent = later(child->sent, next);
	if (acknowledged > 0) {
		if (!group->is_by_multicast && child->sent - child->acked >= child->congestion_window.packets &&
		    !has_standing_queue(&child->rtt))
			grow_window(&child->congestion_window, acknowledged, group->slots);
		child->acked = next;
		child->acked_at = now;
		child->timer_started_at = now;
	}
	if (is_before(child->stable, stable) || is_before(child->window_end, window_end))
		child->persist_probes = 0;
	child->stable = later(child->stable, stable);
	child->window_end = later(child->window_end, window_end);
	if (group->is_by_multicast && had_min_window_end)
		find_min_window_end(group);
	if (group->is_by_multicast && group->is_root)
		on_acked(group, child->acked, requested_at, now);
	if (was_at_min && child->stable != group->flow.min_stable) {
		if (group->flow.min_stable_children > 1)
			group->flow.min_stable_children--;
		else
			find_min_stable(group);
		if (group->is_by_multicast && group->is_root)
			on_stable(group, min_stable);
	}
	update_watermarks(group);
	return true;
}

/* The flags of acknowledgments while the group is handed off: by multicast every member is reached, and none is congested. */
static __always_inline __be16 ack_flags(struct group *group)
{
	return group->is_by_multicast ? bpf_htons(FLAG_REACHED) : 0;
}

/* Makes the acknowledgment to the parent, and records what it advertises. */
static __always_inline void make_ack(struct group *group, struct header *header, __be64 echo, __u64 now)
{
	struct flow_state *flow = &group->flow;
	__u32 window_end = advertised_window_end(group);
	__s32 receive_window = distance(window_end, flow->next);

	flow->ack_timestamp = now > flow->ack_timestamp ? now : flow->ack_timestamp + 1;
	header->version = VERSION;
	header->kind = KIND_ACKNOWLEDGMENT;
	header->flags = ack_flags(group);
	header->group = bpf_htonl(group->number);
	header->timestamp = bpf_cpu_to_be64(flow->ack_timestamp);
	header->epoch = bpf_htonl(group->epoch);
	header->sender = bpf_htonl(group->member);
	header->sequence = bpf_htonl(flow->next);
	header->acknowledgment.stable = bpf_htonl(flow->stable);
	header->acknowledgment.echo = echo;
	header->acknowledgment.receive_window = bpf_htonl(receive_window > 0 ? receive_window : 0);
	header->acknowledgment.missing_first = 0;
	header->acknowledgment.missing = 0;
	header->mac = header_mac(&group->header_key, header);
	flow->advertised_stable = flow->stable;
	flow->advertised_window_end = window_end;
	flow->counters.acks_sent++;
}
