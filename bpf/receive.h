/* Receiving packets: data into slots, from the parent and from a root's application, and acknowledgments from children. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "checksum.h"
#include "flow.h"
#include "group.h"
#include "mac.h"
#include "maps.h"
#include "owner.h"
#include "packet.h"
#include "parse.h"

/* Reads the piece of a data packet; false if it is invalid. */
static __always_inline bool read_piece(struct header *header, __u32 length, struct group *group, struct descriptor *piece)
{
	piece->message = bpf_ntohl(header->data.message);
	piece->length = bpf_ntohl(header->data.length);
	piece->offset = bpf_ntohl(header->data.offset);
	piece->message_length = bpf_be64_to_cpu(header->data.message_length);
	piece->checksum = bpf_be64_to_cpu(header->data.checksum);
	piece->ack_requested = (header->flags & bpf_htons(FLAG_ACK_REQUESTED)) != 0;
	return piece->length == length - HEADER_BYTES && piece->length <= group->payload_bytes_max &&
	       piece->length <= SLOT_BYTES && piece->message_length <= MESSAGE_BYTES_MAX &&
	       piece->offset <= piece->message_length && piece->length <= piece->message_length - piece->offset &&
	       (piece->length || !piece->message_length);
}

/* Reads the piece of a data packet; false if that is not the next packet of the group. */
__noinline bool read_next_piece(struct header *header, __u32 length, struct group *group, struct descriptor *piece)
{
	__be16 flags;

	if (!header || !group || !piece)
		return false;
	flags = group->is_by_multicast ? bpf_htons(FLAGS_MULTICAST) : 0;
	return header->kind == KIND_DATA && bpf_ntohl(header->group) == group->number &&
	       bpf_ntohl(header->sequence) == group->flow.next && (header->flags & ~bpf_htons(FLAG_ACK_REQUESTED)) == flags &&
	       read_piece(header, length, group, piece) && is_expected(&group->flow.expected, piece);
}

/* Pads the payload of a slot with zeros to a multiple of 8 bytes, before it is stored. */
static __always_inline void pad(struct slot *slot, __u32 length)
{
	__u32 word = (length - 1) & ~7u;

	/* The verifier of Linux 6.1 has to see one check of the number that is added. */
	asm volatile("" : "+r"(word));
	if (word <= SLOT_BYTES - 8)
		*(__u64 *)(slot->payload + word) = 0;
}

/* Stores the payload in its slot. */
static __always_inline bool store(struct __sk_buff *buffer, __u32 at, struct slot *slot, __u32 length)
{
	__u32 last = length - 1;

	if (!length)
		return true;
	pad(slot, length);
	/* The verifier has to see that the length is at least 1: it is a bounded number plus a constant. */
	asm volatile("" : "+r"(last));
	if (last >= SLOT_BYTES)
		return false;
	return !bpf_skb_load_bytes(buffer, at, slot->payload, last + 1);
}

/* Stores a segment in a free slot, with its header in place of the descriptor: one look into the buffer is faster than two. */
static __always_inline bool store_segment(struct __sk_buff *buffer, __u32 at, struct slot *slot, __u32 length)
{
	__u32 last = length - 1;

	pad(slot, length - HEADER_BYTES);
	asm volatile("" : "+r"(last));
	if (last >= sizeof(*slot))
		return false;
	return !bpf_skb_load_bytes(buffer, at, slot, last + 1);
}

/* Writes the descriptor of a packet that was accepted. */
static __always_inline void describe(struct slot *slot, struct descriptor *piece, struct work *work)
{
	slot->descriptor.message = piece->message;
	slot->descriptor.length = piece->length;
	slot->descriptor.offset = piece->offset;
	slot->descriptor.message_length = piece->message_length;
	slot->descriptor.checksum = piece->checksum;
	slot->descriptor.ack_requested = piece->ack_requested;
	slot->descriptor.is_verified = piece->is_verified;
	slot->descriptor.arrived_at = work->now;
	slot->descriptor.sent_at = work->now;
}

/* The reception of a GSO batch, or of one packet. */
struct reception {
	struct __sk_buff *buffer;
	struct work *work;
	struct group *group;
	void *slots;
	/* Of the last segment that requests an acknowledgment, its timestamp and the number behind it. */
	__be64 echo;
	__u32 ack_requested;
	__u32 received;
	/* The segments that request an acknowledgment, and those that end a message, one bit per segment. */
	__u64 ack_requests;
	__u64 message_ends;
	bool is_from_root_socket;
	/* Whether the checksum of the datagram is verified in place of those of payloads; of a batch it is verified already. */
	bool trusts_network;
	/* By multicast the root may not be the parent: its timestamps are of another clock, and are not for the parent. */
	bool is_from_parent;
};

/* Whether the payload in a slot is what was sent. */
static __always_inline bool verify_payload(struct reception *reception, struct slot *slot, struct descriptor *piece)
{
	piece->is_verified = !reception->trusts_network;
	if (reception->trusts_network)
		return reception->work->segments > 1 ||
		       has_right_udp_checksum(reception->buffer, reception->work, slot, piece->length);
	return payload_checksum(reception->group, slot, piece->length) == piece->checksum;
}

/* Accepts one segment, if it is the next packet and valid. Nothing has changed otherwise. */
static long receive_segment(__u32 index, void *context)
{
	struct reception *reception = context;
	struct __sk_buff *buffer = reception->buffer;
	struct work *work = reception->work;
	struct group *group = reception->group;
	struct header *header = &work->header;
	__u32 at = index * work->segment_bytes, length = work->length - at, number = group->flow.next & (group->slots - 1);
	struct slot *slot = bpf_map_lookup_elem(reception->slots, &number);
	__u32 sender = group->is_by_multicast ? group->root : group->parent;
	/* The stack of all calls together is 512 bytes, of which kernels before 6.4 round each frame up to 32. */
	struct descriptor *piece = &work->piece;
	__u64 timestamp;

	if (index >= SEGMENTS_MAX || !slot)
		return 1;
	if (length > work->segment_bytes)
		length = work->segment_bytes;
	at += work->headers_bytes;
	/* The slot is free: no packet behind `next` is held while the group is handed off, and packets before `freed` have left it. */
	if (length < HEADER_BYTES || !is_before(group->flow.next, group->flow.freed + group->slots))
		return 1;
	if (index && reception->is_from_root_socket) {
		header = &work->segment_header;
		if (bpf_skb_load_bytes(buffer, at, header, HEADER_BYTES))
			return 1;
	} else if (index) {
		header = (struct header *)&slot->descriptor;
		if (!store_segment(buffer, at, slot, length))
			return 1;
	}
	__builtin_memset(piece, 0, sizeof(*piece));
	if (!read_next_piece(header, length, group, piece))
		return 1;
	if (reception->is_from_root_socket) {
		/* The application has stored the payload and computed its checksum. If that is wrong, the members of its own group drop the
		 * packet. */
		if (header->flags)
			return 1;
		piece->is_verified = 1;
	} else {
		if (header->version != VERSION || bpf_ntohl(header->epoch) != group->epoch ||
		    bpf_ntohl(header->sender) != sender || header_mac(&group->header_key, header) != header->mac)
			return 1;
		if ((!index && !store(buffer, at + HEADER_BYTES, slot, piece->length)) ||
		    !verify_payload(reception, slot, piece))
			return 1;
		timestamp = bpf_be64_to_cpu(header->timestamp);
		if (reception->is_from_parent && timestamp > group->flow.parent_timestamp)
			group->flow.parent_timestamp = timestamp;
	}
	if (piece->ack_requested) {
		reception->ack_requests |= 1ULL << index;
		/* No packet of a correct sender has the timestamp 0. */
		if (header->timestamp)
			reception->echo = header->timestamp;
		reception->ack_requested = group->flow.next + 1;
	}
	if (is_last(piece))
		reception->message_ends |= 1ULL << index;
	describe(slot, piece, work);
	accept(group, piece);
	reception->received++;
	return 0;
}

/* Accepts all segments or none. The slots of segments that are not accepted are free, so that what was stored there is ignored. */
static __noinline bool receive_segments(struct work *work, struct group *group, struct reception *reception)
{
	if (!may_send_to_all(group, work->now, work->segments))
		return false;
	/* One segment changes nothing unless it is accepted. */
	if (work->segments > 1)
		work->saved = group->flow;
	bpf_loop(work->segments, receive_segment, reception, 0);
	if (reception->received == work->segments)
		return true;
	if (work->segments > 1)
		group->flow = work->saved;
	return false;
}

/* Data from the parent, or by multicast from the root. The caller owns the group. False: nothing has changed, and the slow path has to
 * handle the packets. */
__noinline bool receive_data(struct __sk_buff *buffer, struct work *work, struct group *group, struct page *page)
{
	struct reception reception = { .buffer = buffer, .work = work, .group = group };
	__u32 index, first;

	if (!work || !group || !page)
		return false;
	index = work->group_index;
	first = group->flow.next;
	reception.slots = bpf_map_lookup_elem(&SLOTS, &index);
	if (!reception.slots || group->is_root || work->is_multicast != group->is_by_multicast)
		return false;
	if (!is_from_neighbour(work, group->is_by_multicast ? &group->multicast_path : &group->parent_path))
		return false;
	reception.is_from_parent = !group->is_by_multicast || group->is_root_parent;
	/* A batch has one checksum, by which no segment can be verified, and from which the kernel computes those of forwarded segments. */
	if (work->segments > 1 && !is_vouched_for(buffer, work))
		return false;
	reception.trusts_network = group->payload_check == CHECK_NETWORK &&
				   udp_of(work->received, work->headers_bytes == IPV6_HEADER_AT)->checksum;
	consume(group, page);
	if (!receive_segments(work, group, &reception))
		return false;
	/* What comes by multicast says nothing about the way to the parent and back, even where the root is the parent. */
	if (!group->is_by_multicast)
		group->parent_heard_at = work->now;
	if (reception.ack_requests) {
		group->flow.ack_requested = later(group->flow.ack_requested, reception.ack_requested);
		make_ack(group, &work->ack, reception.is_from_parent ? reception.echo : 0, work->now);
		work->sends_ack = 1;
	} else if (has_news(group)) {
		make_ack(group, &work->ack, 0, work->now);
		work->sends_ack = 1;
	}
	if (group->is_by_multicast)
		mark_sent(group, first, reception.ack_requests, work->now);
	else
		send_to_children(group, work, first, reception.ack_requests);
	set_timer(group, work->group_index, work->now);
	publish(&page->written, group->flow.next);
	if (page->is_waiting && (reception.message_ends || group->flow.next - group->flow.consumed >= group->slots / 4))
		work->wakes_reader = 1;
	return true;
}

/* Packets of the root's application, which are in their slots already. The root has children, whose acknowledgments free the slots and
 * wake the application. Returns as `receive_data` does. */
__noinline bool receive_from_root(struct __sk_buff *buffer, struct work *work, struct group *group, struct page *page)
{
	struct reception reception = { .buffer = buffer, .work = work, .group = group };
	__u32 index, first, last;

	if (!work || !group || !page)
		return false;
	index = work->group_index;
	first = group->flow.next;
	last = work->segments - 1;
	reception.is_from_root_socket = 1;
	reception.slots = bpf_map_lookup_elem(&SLOTS, &index);
	/* All neighbours are reached by the same version of IP, and the packets must have that too. */
	if (!reception.slots || !group->is_root || group->is_by_multicast ||
	    group->children[0].path.bytes != work->headers_bytes)
		return false;
	if (!receive_segments(work, group, &reception))
		return false;
	/* The last packet queued requests an acknowledgment if it ends a message. */
	send_to_children(group, work, first, reception.message_ends & 1ULL << (last & (SEGMENTS_MAX - 1)));
	set_timer(group, work->group_index, work->now);
	publish(&page->forwarded, group->flow.next);
	return true;
}

/* The index of the child with this member's number; CHILDREN_MAX if there is none. The verifier does not know which: it would examine all
 * that follows for each child. */
__noinline __u32 find_child(struct group *group, __u32 member)
{
	__u32 index;

	if (!group)
		return CHILDREN_MAX;
	for (index = 0; index < CHILDREN_MAX; index++) {
		if (index >= group->child_count)
			break;
		if (group->children[index].state.member == member)
			return index;
	}
	return CHILDREN_MAX;
}

/* An acknowledgment of a child. The caller owns the group. Returns as `receive_data` does. */
__noinline bool receive_ack(struct work *work, struct group *group, struct page *page)
{
	struct header *header = &work->header;
	__u32 index, freed, wanted;
	struct child *child;
	bool is_stale;

	if (!work || !group || !page)
		return false;
	index = find_child(group, bpf_ntohl(header->sender));
	if (index >= CHILDREN_MAX)
		return false;
	child = &group->children[index];
	/* User space handles a pending NAK before the acknowledgments that follow it. */
	if (child->nak.is_pending || bpf_ntohl(header->epoch) != group->epoch || header->flags != ack_flags(group) ||
	    work->length != HEADER_BYTES || !is_from_neighbour(work, &child->path) ||
	    header_mac(&group->header_key, header) != header->mac)
		return false;
	/* Malformed: user space counts it. */
	if (header->kind == KIND_NAK ? !(header->acknowledgment.missing & bpf_cpu_to_be64(1)) :
				       header->acknowledgment.missing || header->acknowledgment.missing_first)
		return false;
	/* Overtaken by a later one, or a replay: what it says has no effect. */
	is_stale = bpf_be64_to_cpu(header->timestamp) <= child->state.timestamp;
	if (header->kind == KIND_NAK && !is_stale) {
		__builtin_memcpy(child->nak.header, header, HEADER_BYTES);
		child->nak.arrived_at = work->now;
		child->nak.is_pending = 1;
		work->wakes_node_for = WAKE_FOR_NAK;
		return true;
	}
	consume(group, page);
	freed = group->flow.freed;
	if (is_stale)
		group->flow.counters.stale++;
	else if (!handle_ack(group, &child->state, header, work->now))
		return false;
	if (has_news(group)) {
		make_ack(group, &work->ack, 0, work->now);
		work->sends_ack = 1;
	}
	if (!group->is_root)
		return true;
	if (group->flow.freed != freed) {
		publish(&page->read, group->flow.freed);
		if (page->is_waiting && group->flow.next - group->flow.freed <= group->slots / 2)
			work->wakes_reader = 1;
	}
	/* The atomic operation is ordered behind the writes above. User space writes `window_wanted` and then reads them, so that one of the
	 * two sees the window. */
	wanted = __sync_val_compare_and_swap(&group->window_wanted, 0, 0);
	if (!wanted)
		return true;
	if (group->flow.freed != group->flow.next &&
	    !(may_send(group, &child->state, wanted) && may_send_to_all(group, work->now, wanted)))
		return true;
	if (__sync_lock_test_and_set(&group->window_wanted, 0))
		work->wakes_node_for = WAKE_FOR_WINDOW;
	return true;
}
