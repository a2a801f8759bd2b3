/* What happens to a group, as in crates/proto/src/flow: the same rules for what is in the ordinary. Whatever is not is for user
 * space, and nothing has changed then. The caller owns the group. */
#pragma once

#define FIRST_WAIT_NS 10000000ULL
#define QUEUE_MAX_NS 5000000ULL
#define SAMPLE_MAX_NS 60000000000ULL
#define LATE_MAX (1 << 29)

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

/* An eighth of the slots, as which the parent is told of progress. */
static __always_inline __u32 step_of(struct group *group)
{
	return group->slots < 8 ? 1 : group->slots / 8;
}

static __always_inline void settle(struct group *group)
{
	__u32 below = group->child_count ? group->least : group->next;

	group->stable = later(group->stable, earlier(below, group->next));
	group->freed = later(group->freed, earlier(group->consumed, below));
}

/* Whether the parent is to be told without having asked. */
static __always_inline bool has_news(struct group *group)
{
	__s32 step = step_of(group);

	if (group->is_root)
		return false;
	return (is_before(group->told_stable, group->asked) && !is_before(group->stable, group->asked)) ||
	       distance(group->stable, group->told_stable) >= step ||
	       distance(group->freed + group->slots, group->told_end) >= 2 * step;
}

/* Takes over what the reader has read, if that can be. */
static __always_inline void consume(struct group *group, struct page *page)
{
	__u32 read = *(volatile __u32 *)&page->read;

	if (group->is_root || read == group->consumed)
		return;
	if (is_before(read, group->consumed) || is_before(group->next, read)) {
		group->counts.invalid++;
		return;
	}
	group->consumed = read;
	settle(group);
}

static __always_inline bool fits(struct group *group, struct record *piece)
{
	switch (group->expected) {
	case EXPECTED_BEGINNING:
		return piece->offset == 0;
	case EXPECTED_MESSAGE:
		return piece->offset == 0 && piece->message == group->expected_message;
	case EXPECTED_REST:
		return piece->message == group->expected_message && piece->offset == group->expected_offset &&
		       piece->message_length == group->expected_message_length;
	default:
		return false;
	}
}

static __always_inline bool is_last(struct record *piece)
{
	return piece->offset + piece->length == piece->message_length;
}

static __always_inline bool owes_answer(struct child *child)
{
	return child->questions || is_before(child->acked, child->asked);
}

/* When a child is to be missed, or to be asked for a sign of life. */
static __always_inline __u64 deadline(struct group *group, struct child *child)
{
	struct trip *trip = &child->trip;
	__u64 wait = FIRST_WAIT_NS, wait_max = group->keepalive / 4;
	__u32 doublings;

	if (owes_answer(child))
		doublings = child->misses;
	else if (is_before(child->stable, child->sent) || child->sent == child->end)
		doublings = 2 + child->looks;
	else
		return (child->quiet_since > child->heard_at ? child->quiet_since : child->heard_at) + group->keepalive;
	if (trip->is_measured) {
		wait = trip->smoothed + 4 * trip->variation;
		if (wait < group->min_rto)
			wait = group->min_rto;
	}
	wait <<= doublings < 16 ? doublings : 16;
	return child->quiet_since + (wait < wait_max ? wait : wait_max);
}

static __always_inline bool may_send(struct group *group, struct child *child, __u32 packets)
{
	return child->sent == group->next && distance(child->end, child->sent) >= (__s32)packets &&
	       child->sent - child->acked + packets <= child->window.packets;
}

struct readiness {
	struct group *group;
	__u64 now;
	__u32 packets;
	__u32 is_waiting;
};

/* What is done with each child in turn is a function of its own, which the verifier looks at once and not once a child. */
static long look_for_child_that_waits(__u32 place, void *context)
{
	struct readiness *readiness = context;
	struct group *group = readiness->group;

	if (place < CHILDREN_MAX && may_send(group, &group->children[place], readiness->packets) &&
	    deadline(group, &group->children[place]) > readiness->now)
		return 0;
	readiness->is_waiting = 1;
	return 1;
}

/* Whether so many packets can go to every child now, and none of them is to be looked after first: acknowledgments shorten waits,
 * so that a child may be late before the time that is set. */
static __always_inline bool may_send_all(struct group *group, __u64 now, __u32 packets)
{
	struct readiness readiness = { group, now, packets, 0 };

	bpf_loop(group->child_count, look_for_child_that_waits, &readiness, 0);
	return !readiness.is_waiting;
}

/* The place of the last bit of some, without an instruction for it. */
static __always_inline __u32 last_bit(__u64 bits)
{
	__u32 place = 0;

	if (bits >> 32) {
		place += 32;
		bits >>= 32;
	}
	if (bits >> 16) {
		place += 16;
		bits >>= 16;
	}
	if (bits >> 8) {
		place += 8;
		bits >>= 8;
	}
	if (bits >> 4) {
		place += 4;
		bits >>= 4;
	}
	if (bits >> 2) {
		place += 2;
		bits >>= 2;
	}
	return place + (bits >> 1);
}

static __always_inline __u32 bits_set(__u64 bits)
{
	bits -= bits >> 1 & 0x5555555555555555ULL;
	bits = (bits & 0x3333333333333333ULL) + (bits >> 2 & 0x3333333333333333ULL);
	bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
	return bits * 0x0101010101010101ULL >> 56;
}

struct sending {
	struct group *group;
	struct work *work;
	/* The first of the packets, and which of them there are, and ask whoever they are sent to; a bit a packet. */
	__u32 first;
	__u64 all;
	__u64 ack_requested;
};

/* The bits from one place on. */
static __always_inline __u64 bits_from(__s32 place)
{
	if (place <= 0)
		return ~0ULL;
	return place < PACKETS_MAX ? ~0ULL << place : 0;
}

/* The bits of the packets that are the last of a step. */
static __always_inline __u64 last_of_steps(struct group *group, __u32 first)
{
	__u32 step = step_of(group), place = (step - 1 - first) & (step - 1);
	__u64 bits = 1;

	if (place >= PACKETS_MAX)
		return 0;
	if (step <= 1)
		bits |= bits << 1;
	if (step <= 2)
		bits |= bits << 2;
	if (step <= 4)
		bits |= bits << 4;
	if (step <= 8)
		bits |= bits << 8;
	if (step <= 16)
		bits |= bits << 16;
	if (step <= 32)
		bits |= bits << 32;
	return bits << place;
}

static long send_to(__u32 place, void *context)
{
	struct sending *sending = context;
	struct group *group = sending->group;
	struct work *work = sending->work;
	__u32 packet = sending->first, questions;
	struct child *child;
	bool is_looked_at;
	__u64 asked, look_at;

	if (place >= CHILDREN_MAX)
		return 1;
	child = &group->children[place];
	/* It is asked where nothing more can be sent to it: as far as its window is open, and it has slots. */
	asked = sending->ack_requested | bits_from((__s32)(child->window.packets - (packet + 1 - child->acked))) |
		bits_from(distance(child->end, packet) - 1);
	asked &= sending->all;
	/* Kept in memory, where the verifier does not tell every set of packets from every other. */
	work->asked[place] = asked;
	is_looked_at = child->sent == child->acked;
	if (is_looked_at)
		child->quiet_since = work->now;
	child->sent = packet + work->packets;
	if (asked) {
		is_looked_at = true;
		if (!owes_answer(child))
			child->quiet_since = work->now;
		child->asked = later(child->asked, packet + last_bit(asked) + 1);
		if (!child->questions)
			child->unanswered_since = work->now;
		questions = child->questions + bits_set(asked);
		child->questions = questions < child->questions ? ~0u : questions;
	}
	if (!is_looked_at)
		return 0;
	look_at = deadline(group, child);
	if (look_at < group->look_at)
		group->look_at = look_at;
	return 0;
}

/* Notes that the packets are sent to every child, and of which each is asked for an answer. */
static __always_inline void send_all(struct group *group, struct work *work, __u32 first, __u64 ack_requested)
{
	struct sending sending = { .group = group, .work = work, .first = first };

	sending.all = ~bits_from(work->packets);
	sending.ack_requested = ack_requested | last_of_steps(group, first);
	bpf_loop(group->child_count, send_to, &sending, 0);
	group->counts.sent += (__u64)group->child_count * work->packets;
}

/* Accepts the next packet, whose piece fits and whose payload is in its slot. */
static __always_inline void accept(struct group *group, struct record *piece)
{
	if (is_last(piece)) {
		group->expected = EXPECTED_MESSAGE;
		group->expected_message = piece->message + 1;
	} else {
		group->expected = EXPECTED_REST;
		group->expected_message = piece->message;
		group->expected_offset = piece->offset + piece->length;
		group->expected_message_length = piece->message_length;
	}
	group->next++;
	if (group->is_root)
		group->consumed = group->next;
	else
		group->counts.accepted++;
	settle(group);
}

static __always_inline void measured(struct trip *trip, __u64 sample)
{
	if (sample > SAMPLE_MAX_NS)
		sample = SAMPLE_MAX_NS;
	if (sample < trip->shortest)
		trip->shortest = sample;
	trip->last = sample;
	if (trip->is_measured) {
		__u64 apart = trip->smoothed > sample ? trip->smoothed - sample : sample - trip->smoothed;

		trip->variation = (3 * trip->variation + apart) / 4;
		trip->smoothed = (7 * trip->smoothed + sample) / 8;
	} else {
		trip->is_measured = 1;
		trip->smoothed = sample;
		trip->variation = sample / 2;
	}
}

static __always_inline bool is_queueing(struct trip *trip)
{
	return trip->last > trip->shortest && trip->last - trip->shortest > QUEUE_MAX_NS;
}

static __always_inline void open_window(struct group *group, struct window *window, __u32 packets)
{
	__u32 opened;

	window->eighths += window->is_opening ? 8 * packets : packets;
	opened = window->packets + window->eighths / 8;
	window->packets = opened < group->slots ? opened : group->slots;
	window->eighths %= 8;
}

static long look_for_least(__u32 place, void *context)
{
	struct group *group = *(struct group **)context;
	__u32 stable;

	if (place >= CHILDREN_MAX)
		return 1;
	stable = group->children[place].stable;
	if (!group->least_count || is_before(stable, group->least)) {
		group->least = stable;
		group->least_count = 1;
	} else if (stable == group->least) {
		group->least_count++;
	}
	return 0;
}

static __always_inline void find_least(struct group *group)
{
	group->least_count = 0;
	bpf_loop(group->child_count, look_for_least, &group, 0);
}

/* Takes in an acknowledgment of a child; false if that is out of the ordinary. */
static __always_inline bool told(struct group *group, struct child *child, struct header *header, __u64 now)
{
	__u32 next = bpf_ntohl(header->sequence), stable = bpf_ntohl(header->acknowledgment.stable);
	__u32 window = bpf_ntohl(header->acknowledgment.window), end = next + window;
	__u64 sent_at = bpf_be64_to_cpu(header->timestamp);
	__s32 arrived = distance(next, child->acked);
	bool was_least = child->stable == group->least;

	if (is_before(next, child->sent - LATE_MAX) || is_before(group->next, next) || distance(next, stable) < 0 ||
	    distance(next, stable) > LATE_MAX || window > group->slots)
		return false;
	/* It has less than it had when that was asked: it has forgotten what it had accepted. */
	if (arrived < 0 && sent_at > child->acked_at)
		return false;
	group->counts.acks_received++;
	child->heard_at = now;
	child->questions = 0;
	child->misses = 0;
	if (sent_at && sent_at <= now)
		measured(&child->trip, now - sent_at);
	child->sent = later(child->sent, next);
	if (arrived > 0) {
		if (child->sent - child->acked >= child->window.packets && !is_queueing(&child->trip))
			open_window(group, &child->window, arrived);
		child->acked = next;
		child->acked_at = now;
		child->quiet_since = now;
	}
	if (is_before(child->stable, stable) || is_before(child->end, end))
		child->looks = 0;
	child->stable = later(child->stable, stable);
	child->end = later(child->end, end);
	if (was_least && child->stable != group->least) {
		if (group->least_count > 1)
			group->least_count--;
		else
			find_least(group);
	}
	settle(group);
	return true;
}

/* Makes the answer to the parent, which has been told of everything then. */
static __always_inline void answer(struct group *group, struct header *header, __be64 timestamp)
{
	__u32 end = group->freed + group->slots;
	__s32 window = distance(end, group->next);

	header->version = VERSION;
	header->kind = KIND_ACKNOWLEDGMENT;
	header->flags = 0;
	header->checksum = 0;
	header->cookie = bpf_cpu_to_be64(group->cookie);
	header->group = bpf_htonl(group->number);
	header->epoch = bpf_htonl(group->epoch);
	header->sender = bpf_htonl(group->member);
	header->sequence = bpf_htonl(group->next);
	header->timestamp = timestamp;
	header->acknowledgment.stable = bpf_htonl(group->stable);
	header->acknowledgment.window = bpf_htonl(window > 0 ? window : 0);
	header->acknowledgment.missing_first = 0;
	header->acknowledgment.reserved = 0;
	header->acknowledgment.missing = 0;
	group->told_stable = group->stable;
	group->told_end = end;
	group->counts.acks_sent++;
}
