/* What an accepted packet becomes: copies to the children, an acknowledgment to the parent, and a datagram that wakes a reader. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "group.h"
#include "maps.h"
#include "owner.h"
#include "packet.h"
#include "send.h"

/* The verdict for a datagram that wakes a reader: programs of others do not see it. */
#define DELIVER TC_ACT_OK

/* The index of a host's loopback interface (LOOPBACK_IFINDEX in Linux). */
#define LOOPBACK 1

/* The forwarding of a GSO batch, or of one packet, to the children. */
struct forwarding {
	struct __sk_buff *buffer;
	struct work *work;
	struct group *group;
	/* One bit per segment: those whose header in the buffer requests an acknowledgment, and those whose header is to be rewritten. */
	__u64 ack_requests;
	__u64 changed;
	__u32 has_failed;
	/* Whether the buffer itself is the last copy, and the interface by which it then leaves. */
	__u32 may_leave;
	__u32 interface;
};

/* Rewrites the header of a segment that is not the first. */
static long rewrite_segment(__u32 index, void *context)
{
	struct forwarding *forwarding = context;
	struct work *work = forwarding->work;
	struct group *group = forwarding->group;
	__u32 at = work->headers_bytes + index * work->segment_bytes;

	if (index >= SEGMENTS_MAX)
		return 1;
	if (!index || !(forwarding->changed >> index & 1))
		return 0;
	if (bpf_skb_load_bytes(forwarding->buffer, at, &work->segment_header, HEADER_BYTES))
		goto failed;
	make_data(&work->segment_header, &work->segment_header, work, group, forwarding->ack_requests >> index & 1);
	if (!bpf_skb_store_bytes(forwarding->buffer, at, &work->segment_header, HEADER_BYTES, 0))
		return 0;
failed:
	forwarding->has_failed = 1;
	return 1;
}

static long forward_to_child(__u32 index, void *context)
{
	struct forwarding *forwarding = context;
	struct work *work = forwarding->work;
	struct group *group = forwarding->group;
	struct path *path;
	__u64 requests;

	if (index >= CHILDREN_MAX)
		return 1;
	path = &group->children[index].path;
	requests = work->ack_requests[index];
	forwarding->changed = index ? requests ^ forwarding->ack_requests : ~0ULL;
	forwarding->ack_requests = requests;
	if (forwarding->changed & 1)
		make_data(&work->data, &work->header, work, group, requests & 1);
	if (work->segments > 1 && forwarding->changed > 1)
		bpf_loop(work->segments, rewrite_segment, forwarding, 0);
	if (forwarding->has_failed || rewrite_headers(forwarding->buffer, work, path, &work->data, work->length))
		count(&group->counters.transmit_errors);
	else if (forwarding->may_leave && index + 1 == group->child_count)
		forwarding->interface = path->interface;
	else if (bpf_clone_redirect(forwarding->buffer, path->interface, 0))
		count(&group->counters.transmit_errors);
	return 0;
}

/* Sends the copies. With `may_leave` the buffer itself is the last of them; returns the interface by which it leaves, or 0. */
static __always_inline __u32 forward(struct __sk_buff *buffer, struct work *work, struct group *group, bool may_leave)
{
	struct forwarding forwarding = { .buffer = buffer, .work = work, .group = group, .may_leave = may_leave };

	bpf_loop(group->child_count, forward_to_child, &forwarding, 0);
	return forwarding.interface;
}

/* Replaces the destination of a path by the source of another one of the same version of IP. */
static __always_inline void address_to_sender(struct path *path, struct path *other)
{
	struct ethernet *to = (struct ethernet *)path->frame, *from = (struct ethernet *)other->frame;

	__builtin_memcpy(to->to, from->from, sizeof(to->to));
	if (path->bytes == IPV6_HEADER_AT)
		__builtin_memcpy(((struct ipv6 *)(path->frame + IP_AT))->to, ((struct ipv6 *)(other->frame + IP_AT))->from,
				 sizeof(((struct ipv6 *)0)->to));
	else
		((struct ipv4 *)(path->frame + IP_AT))->to = ((struct ipv4 *)(other->frame + IP_AT))->from;
}

/* Wakes a reader by the packet itself: its header goes up to the socket on which the reader sleeps, with a version that no packet of ours
 * has, and in place of its code with the socket's nonce. Nobody else learns the nonce: the datagram does not leave this host.
 * A ring buffer would wake user space by an interrupt of this processor, which takes longer than everything else together. The datagram
 * enters the interface once more, behind packets that have arrived already, since waking takes longer than forwarding them.
 * Over loopback it goes up at once: redirected, it would lose the route that it got when it was sent, and the kernel drops datagrams from
 * its own addresses without one. */
__noinline int wake_reader(struct __sk_buff *buffer, struct work *work, struct group *group, __u32 length)
{
	struct path *reader = &work->reader_path;

	if (!work || !group)
		return TC_ACT_SHOT;
	/* Over loopback a packet by multicast keeps its route, which leads to the sockets at the multicast address. */
	if (work->is_multicast && buffer->ifindex == LOOPBACK) {
		wake_node(work->group_index, WAKE_FOR_TIMER);
		return TC_ACT_SHOT;
	}
	reader->bytes = work->headers_bytes;
	__builtin_memcpy(reader->frame, work->received, sizeof(reader->frame));
	udp_of(reader->frame, reader->bytes == IPV6_HEADER_AT)->to = group->wake_port;
	/* The reader waits at this node's own address, from which packets to the parent are sent. */
	if (work->is_multicast)
		address_to_sender(reader, &group->parent_path);
	work->data = work->header;
	work->data.version = WAKE_VERSION;
	work->data.mac = group->wake_nonce;
	if (!rewrite_headers(buffer, work, reader, &work->data, length))
		return buffer->ifindex == LOOPBACK ? DELIVER : bpf_redirect(buffer->ifindex, BPF_F_INGRESS);
	wake_node(work->group_index, WAKE_FOR_TIMER);
	return TC_ACT_SHOT;
}

/* Sends the acknowledgment that the packet has become, and wakes a reader by the same buffer. */
static __always_inline int send_ack(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	__u32 interface = group->parent_path.interface;

	if (!work->wakes_reader)
		return bpf_redirect(interface, 0);
	if (bpf_clone_redirect(buffer, interface, 0))
		count(&group->counters.transmit_errors);
	return wake_reader(buffer, work, group, HEADER_BYTES);
}
