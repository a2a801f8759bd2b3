/* The kernel's packet path as the programmable NIC of a node: what is in the ordinary of a group's packets is done here, while
 * the node's process sleeps. docs/kernel.md tells the way of a packet; crates/proto/src/flow has the same rules in Rust.
 *
 * Why the memory shared here is right: a group is changed by its owner alone (group.h), and the program gives it back before a
 * copy leaves. Only the numbers in an application's page and payloads at a root are written by others at any time; the program
 * reads each of them once, believes none, and no number in them is an index or a length. */

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The longest payload, in bytes. */
#ifndef SLOT_BYTES
#define SLOT_BYTES 1408
#endif

#define CLOCK_MONOTONIC 1

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define PROTOCOL_UDP 17

#include "packet.h"
#include "group.h"
#include "maps.h"
#include "checksum.h"
#include "flow.h"
#include "send.h"

/* Datagrams from a root's socket to the node's port are packets of that root, whatever their address; on other interfaces than
 * loopback it is one of these groups of addresses, under which nothing leaves the host. */
#define SOURCE_IPV4 0xefff5443
#define SOURCE_IPV6_FIRST 0xff020000
#define SOURCE_IPV6_LAST 0x00005443

/* The number of a host's loopback interface (LOOPBACK_IFINDEX in Linux). */
#define LOOPBACK 1

#define SPINS_MAX 8192

/* Others' programs go on behind this one. */
#define PASS TC_ACT_UNSPEC
/* And what wakes is for none of them. */
#define GO_UP TC_ACT_OK

static __always_inline void count(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

static long try_to_own(__u32 turn, void *context)
{
	struct group *group = *(struct group **)context;
	__u32 owner = __sync_val_compare_and_swap(&group->owner, OWNER_NOBODY, OWNER_PROGRAM);

	if (owner == OWNER_PROGRAM)
		return 0;
	*(__u64 *)(context + 8) = owner == OWNER_NOBODY;
	return 1;
}

/* Takes a group that nobody has; waits while another processor has it. User space may keep it for long, and is not waited for. */
static __always_inline bool own(struct group *group)
{
	struct {
		struct group *group;
		__u64 is_own;
	} context = { group, 0 };

	if (__sync_val_compare_and_swap(&group->owner, OWNER_NOBODY, OWNER_PROGRAM) == OWNER_NOBODY)
		return true;
	bpf_loop(SPINS_MAX, try_to_own, &context, 0);
	return context.is_own;
}

/* Everything done before is seen by whoever owns it next: atomic operations that give back a value order all others. */
static __always_inline void disown(struct group *group)
{
	__sync_lock_test_and_set(&group->owner, OWNER_NOBODY);
}

static __always_inline void publish(__u32 *number, __u32 value)
{
	__sync_lock_test_and_set(number, value);
}

/* Wakes the user-space half. A full bell has been rung. */
static __always_inline void ring(__u32 group, __u32 woken_by)
{
	struct ring note = { group, woken_by };

	bpf_ringbuf_output(&BELL, &note, sizeof(note), BPF_RB_FORCE_WAKEUP);
}

struct look {
	struct group *group;
	__u64 first;
};

static long look_after(__u32 place, void *context)
{
	struct look *look = context;
	__u64 at;

	if (place >= CHILDREN_MAX)
		return 1;
	at = deadline(look->group, &look->group->children[place]);
	if (at < look->first)
		look->first = at;
	return 0;
}

/* Looks whether a child is to be looked after, which user space does: deadlines move on while acknowledgments come. */
static int time_is_over(void *map, __u32 *place, struct timer *timer)
{
	struct group *group = bpf_map_lookup_elem(&GROUPS, place);
	struct look look = { group, ~0ULL };
	__u64 now = clock(), wait = 0;

	if (!group)
		return 0;
	/* User space knows what is awaited. */
	if (!own(group))
		return 0;
	if (group->look_at <= now) {
		bpf_loop(group->child_count, look_after, &look, 0);
		if (look.first > now)
			group->look_at = look.first;
	}
	if (group->look_at > now)
		wait = group->look_at - now;
	group->timed_at = now + (wait ? wait : group->wait_min);
	disown(group);
	if (wait)
		bpf_timer_start(&timer->timer, wait, 0);
	else
		ring(*place, WOKEN_BY_TIME);
	return 0;
}

/* Sees to it that the timer rings in time for a group which has just sent something. The caller owns the group. */
static __always_inline void set_timer(struct group *group, __u32 place, __u64 now)
{
	__u64 wait = group->look_at > now ? group->look_at - now : 1;
	struct timer *timer;

	if (!group->child_count || (group->timed_at > now && group->timed_at <= now + wait))
		return;
	timer = bpf_map_lookup_elem(&TIMERS, &place);
	if (!timer)
		return;
	if (!timer->is_made) {
		bpf_timer_init(&timer->timer, &TIMERS, CLOCK_MONOTONIC);
		bpf_timer_set_callback(&timer->timer, time_is_over);
		timer->is_made = 1;
	}
	group->timed_at = bpf_timer_start(&timer->timer, wait, 0) ? 0 : now + wait;
}

/* Finds our packet in a frame, and keeps its headers; false for what is none. `out` says whether it leaves this host: what comes
 * has the node's port as its destination. */
static __always_inline bool find(struct __sk_buff *buffer, struct node *node, bool *is_v6, struct udp *found, __u8 *is_source)
{
	void *data = (void *)(long)buffer->data, *end = (void *)(long)buffer->data_end;
	struct ethernet *ethernet = data;
	struct udp *udp;
	__u32 length;

	*is_source = 0;
	if (data + IPV4_HEADER_AT > end) {
		if (buffer->len < IPV4_HEADER_AT + HEADER_BYTES || bpf_skb_pull_data(buffer, IPV4_HEADER_AT + HEADER_BYTES))
			return false;
		data = (void *)(long)buffer->data;
		end = (void *)(long)buffer->data_end;
		ethernet = data;
		if (data + IPV4_HEADER_AT > end)
			return false;
	}
	if (ethernet->protocol == bpf_htons(ETHERTYPE_IPV4)) {
		struct ipv4 *ip = data + IP_AT;

		if (ip->version_and_length != 0x45 || ip->protocol != PROTOCOL_UDP || ip->fragment & bpf_htons(0x3fff))
			return false;
		*is_v6 = false;
		*is_source = ip->to == bpf_htonl(SOURCE_IPV4);
		udp = data + IPV4_UDP_AT;
		length = IPV4_HEADER_AT;
	} else if (ethernet->protocol == bpf_htons(ETHERTYPE_IPV6)) {
		struct ipv6 *ip = data + IP_AT;

		if (data + IPV6_HEADER_AT > end || ip->protocol != PROTOCOL_UDP)
			return false;
		*is_v6 = true;
		*is_source = ip->to[0] == bpf_htonl(SOURCE_IPV6_FIRST) && ip->to[3] == bpf_htonl(SOURCE_IPV6_LAST);
		udp = data + IPV6_UDP_AT;
		length = IPV6_HEADER_AT;
	} else {
		return false;
	}
	*found = *udp;
	/* What is cut off, or too short, is for user space. */
	return bpf_ntohs(udp->length) >= UDP_BYTES + HEADER_BYTES &&
	       buffer->len == length + bpf_ntohs(udp->length) - UDP_BYTES;
}

static __always_inline struct work *begin(struct __sk_buff *buffer, bool is_v6, struct udp *udp)
{
	__u32 first = 0;
	struct work *work = bpf_map_lookup_elem(&WORK, &first);

	if (!work)
		return NULL;
	work->headers_bytes = is_v6 ? IPV6_HEADER_AT : IPV4_HEADER_AT;
	work->length = bpf_ntohs(udp->length) - UDP_BYTES;
	/* Packets of one length may pass the system as one, and are cut apart where they leave it. */
	work->each_bytes = buffer->gso_size ? buffer->gso_size : work->length;
	if (work->each_bytes < HEADER_BYTES)
		return NULL;
	work->packets = (work->length + work->each_bytes - 1) / work->each_bytes;
	if (work->packets > PACKETS_MAX)
		return NULL;
	if (is_v6 ? bpf_skb_load_bytes(buffer, 0, work->came, IPV6_HEADER_AT)
		  : bpf_skb_load_bytes(buffer, 0, work->came, IPV4_HEADER_AT))
		return NULL;
	if (bpf_skb_load_bytes(buffer, work->headers_bytes, &work->header, HEADER_BYTES))
		return NULL;
	work->answers = 0;
	work->wakes = 0;
	work->removed = 0;
	return work;
}

static __always_inline struct group *group_of(struct work *work, struct node *node)
{
	__u32 number = bpf_ntohl(work->header.group);
	__u32 *place = bpf_map_lookup_elem(&PLACES, &number);

	if (!place)
		return NULL;
	work->place = *place;
	return bpf_map_lookup_elem(&GROUPS, place);
}

/* Whether the packet comes from where packets for that neighbour go, and to where they come from. */
static __always_inline bool is_from(struct work *work, struct way *way)
{
	bool is_v6 = way->bytes == IPV6_HEADER_AT;
	struct udp *came, *goes;

	if (way->bytes != work->headers_bytes)
		return false;
	if (is_v6) {
		struct ipv6 *from = (struct ipv6 *)(work->came + IP_AT), *to = (struct ipv6 *)(way->frame + IP_AT);
		__u32 word;

		for (word = 0; word < 4; word++)
			if (from->from[word] != to->to[word] || from->to[word] != to->from[word])
				return false;
	} else {
		struct ipv4 *from = (struct ipv4 *)(work->came + IP_AT), *to = (struct ipv4 *)(way->frame + IP_AT);

		if (from->from != to->to || from->to != to->from)
			return false;
	}
	came = udp_of(work->came, is_v6);
	goes = udp_of(way->frame, is_v6);
	return came->from == goes->to && came->to == goes->from;
}

/* What a data packet says of its piece; false for what cannot be. */
static __always_inline bool read_piece(struct header *header, __u32 length, struct group *group, struct record *piece)
{
	piece->message = bpf_ntohl(header->data.message);
	piece->length = bpf_ntohl(header->data.length);
	piece->offset = bpf_be64_to_cpu(header->data.offset);
	piece->message_length = bpf_be64_to_cpu(header->data.message_length);
	piece->checksum = 0;
	piece->asks = header->flags != 0;
	return piece->length == length - HEADER_BYTES && piece->length <= group->payload_bytes_max &&
	       piece->length <= SLOT_BYTES && piece->message_length <= MESSAGE_BYTES_MAX &&
	       piece->offset <= piece->message_length && piece->length <= piece->message_length - piece->offset &&
	       (piece->length || !piece->message_length);
}

/* Puts the payload into its slot, which ends with zeroes then. */
static __always_inline bool store(struct __sk_buff *buffer, __u32 at, struct slot *slot, __u32 length)
{
	__u32 last = length - 1, padded = (length + 7) & ~7u;

	if (!length)
		return true;
	if (padded >= 8 && padded <= SLOT_BYTES)
		*(__u64 *)(slot->payload + padded - 8) = 0;
	/* The verifier is shown that the length is at least 1: of a constant and a bounded rest. */
	asm volatile("" : "+r"(last));
	if (last >= SLOT_BYTES)
		return false;
	return !bpf_skb_load_bytes(buffer, at, slot->payload, last + 1);
}

static __always_inline void describe(struct slot *slot, struct record *piece, __u32 checksum, struct work *work)
{
	slot->record.message = piece->message;
	slot->record.length = piece->length;
	slot->record.offset = piece->offset;
	slot->record.message_length = piece->message_length;
	slot->record.checksum = checksum;
	slot->record.asks = piece->asks;
	slot->record.arrived_at = work->now;
	slot->record.sent_at = work->now;
}

static __always_inline struct page *page_of(struct work *work)
{
	__u32 place = work->place, first = 0;
	void *pages = bpf_map_lookup_elem(&PAGES, &place);

	return pages ? bpf_map_lookup_elem(pages, &first) : NULL;
}

/* What has been taken of the packets that came as one. */
struct taking {
	struct __sk_buff *buffer;
	struct work *work;
	struct group *group;
	void *slots;
	/* What the last packet that asks says of its time, as it came, and the number behind it. */
	__be64 timestamp;
	__u32 asked;
	__u32 taken;
	/* Which packets ask, and which end a message, a bit a packet. */
	__u64 asks;
	__u64 ends;
	__u32 is_from_source;
};

/* Takes one of the packets, if it is the next one and all is right with it. */
static long take_packet(__u32 place, void *context)
{
	struct taking *taking = context;
	struct __sk_buff *buffer = taking->buffer;
	struct work *work = taking->work;
	struct group *group = taking->group;
	struct header *header = place ? &work->other : &work->header;
	__u32 at = place * work->each_bytes, length = work->length - at, number = group->next & (group->slots - 1);
	struct slot *slot = bpf_map_lookup_elem(taking->slots, &number);
	__u32 payload_checksum_of;
	struct record piece;
	__be32 checksum;

	if (place >= PACKETS_MAX || !slot)
		return 1;
	if (length > work->each_bytes)
		length = work->each_bytes;
	at += work->headers_bytes;
	if (length < HEADER_BYTES || (place && bpf_skb_load_bytes(buffer, at, header, HEADER_BYTES)))
		return 1;
	if (header->kind != KIND_DATA || bpf_ntohl(header->group) != group->number ||
	    bpf_ntohl(header->sequence) != group->next || header->flags & ~bpf_htons(FLAG_ASK) ||
	    !read_piece(header, length, group, &piece) || !is_before(group->next, group->freed + group->slots) ||
	    !fits(group, &piece))
		return 1;
	checksum = header->checksum;
	if (taking->is_from_source) {
		if (header->flags)
			return 1;
		/* The payload is in its slot, and this is what the application says of it: if it is wrong, its own members find out. */
		payload_checksum_of = bpf_ntohl(checksum);
	} else {
		if (header->version != VERSION || bpf_be64_to_cpu(header->cookie) != group->cookie ||
		    bpf_ntohl(header->epoch) != group->epoch || bpf_ntohl(header->sender) != group->parent)
			return 1;
		/* The slot is free: nothing behind `next` is held while the group is lent, and all before has left it. */
		if (!store(buffer, at + HEADER_BYTES, slot, piece.length))
			return 1;
		payload_checksum_of = payload_checksum(slot, piece.length);
		header->checksum = 0;
		if (packet_checksum(header, payload_checksum_of) != bpf_ntohl(checksum))
			return 1;
		header->checksum = checksum;
	}
	if (!place)
		work->checksum = payload_checksum_of;
	if (piece.asks) {
		taking->asks |= 1ULL << place;
		taking->timestamp = header->timestamp;
		taking->asked = group->next + 1;
	}
	if (is_last(&piece))
		taking->ends |= 1ULL << place;
	describe(slot, &piece, payload_checksum_of, work);
	accept(group, &piece);
	taking->taken++;
	return 0;
}

/* Takes all packets that came as one, or none of them: then nothing has changed that counts, since slots behind `next` are free. */
static __noinline bool take_packets(struct work *work, struct group *group, struct taking *taking)
{
	struct before *before = &work->before;

	if (!may_send_all(group, work->now, work->packets))
		return false;
	before->next = group->next;
	before->consumed = group->consumed;
	before->stable = group->stable;
	before->freed = group->freed;
	before->expected = group->expected;
	before->expected_message = group->expected_message;
	before->expected_offset = group->expected_offset;
	before->expected_message_length = group->expected_message_length;
	before->accepted = group->counts.accepted;
	bpf_loop(work->packets, take_packet, taking, 0);
	if (taking->taken == work->packets)
		return true;
	group->next = before->next;
	group->consumed = before->consumed;
	group->stable = before->stable;
	group->freed = before->freed;
	group->expected = before->expected;
	group->expected_message = before->expected_message;
	group->expected_offset = before->expected_offset;
	group->expected_message_length = before->expected_message_length;
	group->counts.accepted = before->accepted;
	return false;
}

/* Data from the parent. The caller owns the group; false: nothing has changed, and the packets are for user space. */
static __noinline bool take_data(struct __sk_buff *buffer, struct work *work, struct group *group, struct page *page)
{
	struct taking taking = { .buffer = buffer, .work = work, .group = group };
	__u32 place = work->place, first = group->next;

	taking.slots = bpf_map_lookup_elem(&SLOTS, &place);
	if (!taking.slots || group->is_root || !is_from(work, &group->parent_way))
		return false;
	consume(group, page);
	if (!take_packets(work, group, &taking))
		return false;
	group->parent_heard_at = work->now;
	if (taking.asks) {
		group->asked = later(group->asked, taking.asked);
		answer(group, &work->acknowledgment, taking.timestamp);
		work->answers = 1;
	} else if (has_news(group)) {
		answer(group, &work->acknowledgment, 0);
		work->answers = 1;
	}
	if (work->answers)
		work->acknowledgment.checksum = bpf_htonl(packet_checksum(&work->acknowledgment, 0));
	send_all(group, work, first, taking.asks);
	set_timer(group, work->place, work->now);
	publish(&page->written, group->next);
	if (page->sleeps && (taking.ends || group->next - group->consumed >= group->slots / 4))
		work->wakes = 1;
	return true;
}

/* Packets of the root's application, already in their slots. As `take_data`. */
static __noinline bool take_from_source(struct __sk_buff *buffer, struct work *work, struct group *group, struct page *page)
{
	struct taking taking = { .buffer = buffer, .work = work, .group = group };
	__u32 place = work->place, first = group->next, last = work->packets - 1;

	taking.is_from_source = 1;
	taking.slots = bpf_map_lookup_elem(&SLOTS, &place);
	/* Everybody is reached by the same IP, and it has to be that of the packets. */
	if (!taking.slots || !group->is_root ||
	    (group->child_count && group->children[0].way.bytes != work->headers_bytes))
		return false;
	if (!take_packets(work, group, &taking))
		return false;
	/* The last packet that there is to send asks, if it ends a message. */
	send_all(group, work, first, taking.ends & 1ULL << (last & (PACKETS_MAX - 1)));
	set_timer(group, work->place, work->now);
	publish(&page->taken, group->next);
	return true;
}

/* Packets that are sent on to the children. */
struct forwarding {
	struct __sk_buff *buffer;
	struct work *work;
	struct group *group;
	void *slots;
	__u32 first;
	/* About which packets the headers ask as they are now, a bit a packet, and which are to be written anew. */
	__u64 asked;
	__u64 changed;
	__u32 has_failed;
	/* Whether the packets themselves are the last copy, and then by which interface they leave. */
	__u32 may_leave;
	__u32 interface;
};

/* Writes the header of another packet than the first. */
static long rewrite(__u32 place, void *context)
{
	struct forwarding *forwarding = context;
	struct work *work = forwarding->work;
	struct group *group = forwarding->group;
	__u32 at = work->headers_bytes + place * work->each_bytes;
	__u32 number = (forwarding->first + place) & (group->slots - 1);
	struct slot *slot;

	if (place >= PACKETS_MAX)
		return 1;
	if (!place || !(forwarding->changed >> place & 1))
		return 0;
	slot = bpf_map_lookup_elem(forwarding->slots, &number);
	if (!slot || bpf_skb_load_bytes(forwarding->buffer, at, &work->other, HEADER_BYTES))
		goto failed;
	/* The slot is the packet's until all children have acknowledged it, which they have not been sent yet. */
	make_data(&work->other, &work->other, work, group, forwarding->asked >> place & 1, slot->record.checksum);
	if (!bpf_skb_store_bytes(forwarding->buffer, at, &work->other, HEADER_BYTES, 0))
		return 0;
failed:
	forwarding->has_failed = 1;
	return 1;
}

static long forward_to(__u32 place, void *context)
{
	struct forwarding *forwarding = context;
	struct work *work = forwarding->work;
	struct group *group = forwarding->group;
	struct way *way;
	__u64 asked;

	if (place >= CHILDREN_MAX)
		return 1;
	way = &group->children[place].way;
	asked = work->asked[place];
	forwarding->changed = place ? asked ^ forwarding->asked : ~0ULL;
	forwarding->asked = asked;
	if (forwarding->changed & 1)
		make_data(&work->data, &work->header, work, group, asked & 1, work->checksum);
	if (work->packets > 1 && forwarding->changed > 1)
		bpf_loop(work->packets, rewrite, forwarding, 0);
	if (forwarding->has_failed || readdress(forwarding->buffer, work, way, &work->data, work->length))
		count(&group->counts.unsent);
	else if (forwarding->may_leave && place + 1 == group->child_count)
		forwarding->interface = way->interface;
	else if (bpf_clone_redirect(forwarding->buffer, way->interface, 0))
		count(&group->counts.unsent);
	return 0;
}

/* Sends the copies; says by which interface the packets themselves leave, which are the last of them if `may_leave`. */
static __always_inline __u32 forward(struct __sk_buff *buffer, struct work *work, struct group *group, bool may_leave)
{
	struct forwarding forwarding = { .buffer = buffer, .work = work, .group = group, .may_leave = may_leave };
	__u32 place = work->place;

	forwarding.first = bpf_ntohl(work->header.sequence);
	forwarding.slots = bpf_map_lookup_elem(&SLOTS, &place);
	if (forwarding.slots)
		bpf_loop(group->child_count, forward_to, &forwarding, 0);
	return forwarding.interface;
}

/* Wakes who sleeps by the packet itself, or what is left of it: it goes up to the socket that is waited on, under a version that no
 * packet of ours has. A bell would have to interrupt this processor, which takes longer than all else together. Packets that have
 * come already go first, since waking takes longer than they do: it comes in once more, behind them. But over loopback a packet has
 * its route from where it was sent, and would lose it on the way: the host's own addresses are taken from nowhere else. */
static __noinline int wake(struct __sk_buff *buffer, struct work *work, struct group *group, __u32 length)
{
	struct way *sleeper = &work->sleeper;

	sleeper->bytes = work->headers_bytes;
	__builtin_memcpy(sleeper->frame, work->came, sizeof(sleeper->frame));
	udp_of(sleeper->frame, sleeper->bytes == IPV6_HEADER_AT)->to = group->wake_port;
	work->data = work->header;
	work->data.version = VERSION_OF_WAKING;
	if (!readdress(buffer, work, sleeper, &work->data, length))
		return buffer->ifindex == LOOPBACK ? GO_UP : bpf_redirect(buffer->ifindex, BPF_F_INGRESS);
	ring(work->place, WOKEN_BY_TIME);
	return TC_ACT_SHOT;
}

/* Sends the answer that the packet has become, and wakes who sleeps by what is left. */
static __always_inline int answer_parent(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	__u32 interface = group->parent_way.interface;

	if (!work->wakes)
		return bpf_redirect(interface, 0);
	if (bpf_clone_redirect(buffer, interface, 0))
		count(&group->counts.unsent);
	return wake(buffer, work, group, HEADER_BYTES);
}

/* The sum of the payload of the packet that was taken last. */
static __always_inline __u32 sum_of(struct work *work, struct group *group)
{
	__u32 place = work->place, number = (group->next - 1) & (group->slots - 1);
	void *slots = bpf_map_lookup_elem(&SLOTS, &place);
	struct slot *slot = slots ? bpf_map_lookup_elem(slots, &number) : NULL;

	return slot ? payload_sum(slot, work->length - HEADER_BYTES) : 0;
}

static __always_inline int data(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	struct page *page = page_of(work);
	__u32 removed = 0;
	bool is_taken;
	__u32 interface;

	if (!page || !own(group))
		return PASS;
	if (group->number != bpf_ntohl(work->header.group)) {
		disown(group);
		return PASS;
	}
	is_taken = take_data(buffer, work, group, page);
	/* An answer goes without the payload, as does what wakes a sleeper. The slot may soon be another packet's. Of several packets
	 * the kernel has the sum still to complete. */
	if (is_taken && work->packets == 1 && udp_of(work->came, work->headers_bytes == IPV6_HEADER_AT)->checksum)
		removed = sum_of(work, group);
	disown(group);
	if (!is_taken)
		return PASS;
	work->wakes = work->wakes && __sync_lock_test_and_set(&page->sleeps, 0);
	interface = forward(buffer, work, group, !work->answers && !work->wakes);
	if (interface)
		return bpf_redirect(interface, 0);
	if (!work->answers && !work->wakes)
		return TC_ACT_SHOT;
	work->removed = removed;
	if (work->length != HEADER_BYTES && bpf_skb_change_tail(buffer, work->headers_bytes + HEADER_BYTES, 0)) {
		count(&group->counts.unsent);
		/* User space wakes whoever sleeps when it takes the group back, and tells the parent when that asks again. */
		if (work->wakes)
			ring(work->place, WOKEN_BY_TIME);
		return TC_ACT_SHOT;
	}
	if (!work->answers)
		return wake(buffer, work, group, HEADER_BYTES);
	if (readdress(buffer, work, &group->parent_way, &work->acknowledgment, HEADER_BYTES)) {
		count(&group->counts.unsent);
		return work->wakes ? wake(buffer, work, group, HEADER_BYTES) : TC_ACT_SHOT;
	}
	return answer_parent(buffer, work, group);
}

/* An acknowledgment of a child. The caller owns the group; as `take_data`. */
static __noinline bool take_acknowledgment(struct work *work, struct group *group, struct page *page)
{
	struct header *header = &work->header;
	__be32 checksum = header->checksum;
	__u32 place, freed, room, sender = bpf_ntohl(header->sender);
	struct child *child = NULL;

	for (place = 0; place < CHILDREN_MAX; place++) {
		if (place >= group->child_count)
			break;
		if (group->children[place].member == sender) {
			child = &group->children[place];
			break;
		}
	}
	if (!child || bpf_ntohl(header->epoch) != group->epoch || header->flags ||
	    work->length != HEADER_BYTES || header->acknowledgment.reserved || !is_from(work, &child->way))
		return false;
	header->checksum = 0;
	if (packet_checksum(header, 0) != bpf_ntohl(checksum))
		return false;
	header->checksum = checksum;
	if (header->kind == KIND_NEGATIVE) {
		if (!(header->acknowledgment.missing & bpf_cpu_to_be64(1)) || child->note.is_there)
			return false;
		__builtin_memcpy(child->note.header, header, HEADER_BYTES);
		child->note.arrived_at = work->now;
		child->note.is_there = 1;
		work->wakes_node = WOKEN_BY_NOTE;
		return true;
	}
	if (header->acknowledgment.missing || header->acknowledgment.missing_first)
		return false;
	consume(group, page);
	freed = group->freed;
	if (!told(group, child, header, work->now))
		return false;
	if (has_news(group)) {
		answer(group, &work->acknowledgment, 0);
		work->acknowledgment.checksum = bpf_htonl(packet_checksum(&work->acknowledgment, 0));
		work->answers = 1;
	}
	if (!group->is_root)
		return true;
	if (group->freed != freed) {
		publish(&page->read, group->freed);
		if (page->sleeps && (group->freed == group->next || group->next - group->freed <= group->slots / 2))
			work->wakes = 1;
	}
	/* An atomic operation comes behind what has just been written, which who has said meanwhile that it waits looks at. */
	room = __sync_val_compare_and_swap(&group->awaits_room, 0, 0);
	if (room && (group->freed == group->next || (may_send(group, child, room) && may_send_all(group, work->now, room))) &&
	    __sync_lock_test_and_set(&group->awaits_room, 0))
		work->wakes_node = WOKEN_BY_ROOM;
	return true;
}

static __always_inline int acknowledgment(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	struct page *page = page_of(work);
	bool is_taken;

	work->wakes_node = 0;
	if (!page || work->packets != 1 || !own(group))
		return PASS;
	is_taken = group->number == bpf_ntohl(work->header.group) && take_acknowledgment(work, group, page);
	disown(group);
	if (!is_taken)
		return PASS;
	if (work->wakes_node)
		ring(work->place, work->wakes_node);
	work->wakes = work->wakes && __sync_lock_test_and_set(&page->sleeps, 0);
	if (!work->answers)
		return work->wakes ? wake(buffer, work, group, HEADER_BYTES) : TC_ACT_SHOT;
	if (readdress(buffer, work, &group->parent_way, &work->acknowledgment, HEADER_BYTES)) {
		count(&group->counts.unsent);
		return work->wakes ? wake(buffer, work, group, HEADER_BYTES) : TC_ACT_SHOT;
	}
	return answer_parent(buffer, work, group);
}

SEC("classifier")
int treecast_ingress(struct __sk_buff *buffer)
{
	__u32 first = 0;
	struct node *node = bpf_map_lookup_elem(&NODE, &first);
	struct group *group;
	struct work *work;
	struct udp udp;
	bool is_v6;
	__u8 is_source;
	int verdict = PASS;

	if (!node || !find(buffer, node, &is_v6, &udp, &is_source) || udp.to != node->port)
		return PASS;
	__sync_fetch_and_add(&node->seen_in, 1);
	work = begin(buffer, is_v6, &udp);
	if (!work || work->header.version != VERSION)
		return PASS;
	group = group_of(work, node);
	/* User space counts what belongs to no group. */
	if (!group || bpf_be64_to_cpu(work->header.cookie) != group->cookie)
		return PASS;
	work->now = clock();
	if (work->header.kind == KIND_DATA)
		verdict = data(buffer, work, group);
	else if (work->header.kind == KIND_ACKNOWLEDGMENT || work->header.kind == KIND_NEGATIVE)
		verdict = acknowledgment(buffer, work, group);
	if (verdict == PASS)
		count(&group->counts.passed);
	return verdict;
}

/* Keeps how a packet of user space goes to a neighbour: what the program sends there goes the same way. */
static __always_inline bool learn(struct __sk_buff *buffer, struct work *work, struct way *way)
{
	bool is_v6 = way->bytes == IPV6_HEADER_AT;
	__u32 word;

	if (way->bytes != work->headers_bytes || udp_of(work->came, is_v6)->to != udp_of(way->frame, is_v6)->to)
		return false;
	if (is_v6) {
		struct ipv6 *sent = (struct ipv6 *)(work->came + IP_AT), *known = (struct ipv6 *)(way->frame + IP_AT);

		for (word = 0; word < 4; word++)
			if (sent->to[word] != known->to[word])
				return false;
	} else {
		struct ipv4 *sent = (struct ipv4 *)(work->came + IP_AT), *known = (struct ipv4 *)(way->frame + IP_AT);

		if (sent->to != known->to)
			return false;
	}
	__builtin_memcpy(way->frame, work->came, sizeof(work->came));
	way->interface = buffer->ifindex;
	return true;
}

static __always_inline int sent_by_user_space(struct __sk_buff *buffer, struct node *node, struct work *work)
{
	struct group *group = group_of(work, node);
	__u32 place;

	__sync_fetch_and_add(&node->seen_out, 1);
	/* Data is frequent, and never the first to go anywhere. */
	if (!group || work->header.kind == KIND_DATA || learn(buffer, work, &group->parent_way))
		return PASS;
	for (place = 0; place < CHILDREN_MAX; place++)
		if (place >= group->child_count || learn(buffer, work, &group->children[place].way))
			break;
	return PASS;
}

SEC("classifier")
int treecast_egress(struct __sk_buff *buffer)
{
	__u32 first = 0;
	struct node *node = bpf_map_lookup_elem(&NODE, &first);
	struct group *group;
	struct page *page;
	struct work *work;
	struct udp udp;
	bool is_v6, is_taken;
	__u8 is_source;
	__u64 socket;
	__u32 interface;

	/* Copies have no socket: they leave. */
	if (!buffer->sk)
		return PASS;
	if (!node || !find(buffer, node, &is_v6, &udp, &is_source) ||
	    (udp.from != node->port && udp.to != node->port))
		return PASS;
	socket = bpf_get_socket_cookie(buffer);
	work = begin(buffer, is_v6, &udp);
	if (!work)
		return PASS;
	if (socket == node->socket)
		return sent_by_user_space(buffer, node, work);
	group = udp.to == node->port ? group_of(work, node) : NULL;
	/* What only roots' sockets send never leaves this host under its address. */
	if (!group || group->source != socket)
		return is_source ? TC_ACT_SHOT : PASS;
	page = page_of(work);
	if (!page)
		return TC_ACT_SHOT;
	work->now = clock();
	is_taken = own(group);
	if (is_taken) {
		is_taken = group->source == socket && take_from_source(buffer, work, group, page);
		disown(group);
	}
	if (!is_taken) {
		/* It lies in its slot, from where user space takes it. */
		count(&group->counts.deferred);
		return TC_ACT_SHOT;
	}
	interface = forward(buffer, work, group, true);
	if (interface && interface == buffer->ifindex)
		return PASS;
	if (interface && bpf_clone_redirect(buffer, interface, 0))
		count(&group->counts.unsent);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
