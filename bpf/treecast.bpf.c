/* The kernel's packet path as the programmable NIC of a node: the fast path of a group, while the node's process sleeps.
 * docs/kernel.md describes the path of a packet; crates/proto/src/flow has the same rules in Rust.
 *
 * Why access to shared memory is safe: a group is changed by its owner alone (group.h), and the program releases it before a copy
 * leaves. Only the numbers in an application's page and the payloads at a root are written by others at any time. The program reads
 * each of these numbers once, checks it, and uses none of them as an index or a length. */

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "contribute.h"
#include "flow.h"
#include "forward.h"
#include "group.h"
#include "maps.h"
#include "owner.h"
#include "packet.h"
#include "parse.h"
#include "receive.h"
#include "send.h"

/* The verdict for packets that the program leaves alone: programs of others follow. */
#define PASS TC_ACT_UNSPEC

/* The Internet checksum's sum of the payload of the packet that was accepted last. */
static __always_inline __u32 sum_of_last_payload(struct work *work, struct group *group)
{
	__u32 index = work->group_index, number = (group->flow.next - 1) & (group->slots - 1);
	void *slots = bpf_map_lookup_elem(&SLOTS, &index);
	struct slot *slot = slots ? bpf_map_lookup_elem(slots, &number) : NULL;

	return slot ? payload_sum(slot, work->length - HEADER_BYTES) : 0;
}

/* Sends the acknowledgment to the parent, and wakes a reader, as the work says. The buffer ends behind our header. */
static __always_inline int acknowledge_and_wake(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	if (!work->sends_ack)
		return work->wakes_reader ? wake_reader(buffer, work, group, HEADER_BYTES) : TC_ACT_SHOT;
	if (rewrite_headers(buffer, work, &group->parent_path, &work->ack, HEADER_BYTES)) {
		count(&group->counters.transmit_errors);
		return work->wakes_reader ? wake_reader(buffer, work, group, HEADER_BYTES) : TC_ACT_SHOT;
	}
	return send_ack(buffer, work, group);
}

static __always_inline int handle_data_packet(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	struct page *page = lookup_page(work);
	__u32 interface, removed_sum = 0;
	bool is_accepted;

	if (!page || !acquire(group))
		return PASS;
	if (group->number != bpf_ntohl(work->header.group)) {
		release(group);
		return PASS;
	}
	is_accepted = receive_data(buffer, work, group, page);
	/* The payload is removed from an acknowledgment and from the datagram that wakes a reader. Its sum is taken while the slot is still
	 * this packet's. The UDP checksum of a GSO batch is completed by the kernel later. */
	if (is_accepted && work->segments == 1 && udp_of(work->received, work->headers_bytes == IPV6_HEADER_AT)->checksum)
		removed_sum = sum_of_last_payload(work, group);
	release(group);
	if (!is_accepted)
		return PASS;
	work->wakes_reader = work->wakes_reader && __sync_lock_test_and_set(&page->is_waiting, 0);
	if (!work->is_multicast) {
		interface = forward(buffer, work, group, !work->sends_ack && !work->wakes_reader);
		if (interface)
			return bpf_redirect(interface, 0);
	}
	if (!work->sends_ack && !work->wakes_reader)
		return TC_ACT_SHOT;
	work->removed_sum = removed_sum;
	if (work->length != HEADER_BYTES && bpf_skb_change_tail(buffer, work->headers_bytes + HEADER_BYTES, 0)) {
		count(&group->counters.transmit_errors);
		/* User space wakes the reader when it reclaims the group, and acknowledges when the parent requests that again. */
		if (work->wakes_reader)
			wake_node(work->group_index, WAKE_FOR_TIMER);
		return TC_ACT_SHOT;
	}
	return acknowledge_and_wake(buffer, work, group);
}

static __always_inline int handle_ack_packet(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	struct page *page = lookup_page(work);
	bool is_accepted;

	work->wakes_node_for = 0;
	if (!page || work->segments != 1 || !acquire(group))
		return PASS;
	is_accepted = group->number == bpf_ntohl(work->header.group) && receive_ack(work, group, page);
	release(group);
	if (!is_accepted)
		return PASS;
	if (work->wakes_node_for)
		wake_node(work->group_index, work->wakes_node_for);
	work->wakes_reader = work->wakes_reader && __sync_lock_test_and_set(&page->is_waiting, 0);
	return acknowledge_and_wake(buffer, work, group);
}

static __always_inline int handle_contribution(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	int outcome = CONTRIBUTION_LEFT;

	if (!acquire(group))
		return PASS;
	if (group->number == bpf_ntohl(work->header.group))
		outcome = receive_contribution(buffer, work, group);
	release(group);
	if (outcome != CONTRIBUTION_COMPLETES)
		return outcome == CONTRIBUTION_KEPT ? TC_ACT_SHOT : PASS;
	if (write_contribution(buffer, work, group))
		return bpf_redirect(group->parent_path.interface, 0);
	count(&group->counters.transmit_errors);
	return TC_ACT_SHOT;
}

SEC("classifier")
int treecast_ingress(struct __sk_buff *buffer)
{
	__u32 first = 0;
	struct node *node = bpf_map_lookup_elem(&NODE, &first);
	struct group *group;
	struct work *work;
	struct datagram datagram;
	int verdict = PASS;

	/* A multicast address has a port of its own. */
	if (!node || !parse(buffer, &datagram) || (datagram.udp.to != node->port && !datagram.is_multicast))
		return PASS;
	if (datagram.udp.to == node->port)
		__sync_fetch_and_add(&node->ingress_count, 1);
	work = begin_work(buffer, &datagram);
	if (!work || work->header.version != VERSION)
		return PASS;
	group = lookup_group(work, node);
	/* User space counts packets that belong to no group. */
	if (!group)
		return PASS;
	work->now = clock();
	if (work->header.kind == KIND_DATA)
		verdict = handle_data_packet(buffer, work, group);
	else if (work->header.kind == KIND_ACKNOWLEDGMENT || work->header.kind == KIND_NAK)
		verdict = handle_ack_packet(buffer, work, group);
	else if (work->header.kind == KIND_CONTROL &&
		 work->header.control.operation == bpf_htonl(OPERATION_CONTRIBUTION))
		verdict = handle_contribution(buffer, work, group);
	if (verdict == PASS)
		count(&group->counters.slow_path);
	return verdict;
}

/* Keeps the headers and the interface of a packet that user space sends to a neighbour: the program sends its packets the same way. */
__noinline bool learn_path(struct work *work, struct path *path, __u32 interface)
{
	bool is_v6;
	__u32 word;

	if (!work || !path)
		return false;
	is_v6 = path->bytes == IPV6_HEADER_AT;
	if (path->bytes != work->headers_bytes || udp_of(work->received, is_v6)->to != udp_of(path->frame, is_v6)->to)
		return false;
	if (is_v6) {
		struct ipv6 *sent = (struct ipv6 *)(work->received + IP_AT), *known = (struct ipv6 *)(path->frame + IP_AT);

		for (word = 0; word < 4; word++)
			if (sent->to[word] != known->to[word])
				return false;
	} else {
		struct ipv4 *sent = (struct ipv4 *)(work->received + IP_AT), *known = (struct ipv4 *)(path->frame + IP_AT);

		if (sent->to != known->to)
			return false;
	}
	__builtin_memcpy(path->frame, work->received, sizeof(work->received));
	path->interface = interface;
	return true;
}

/* The contribution of this node's application, which user space sends to the parent: it leaves once
 * those of all children are there. */
static __always_inline int handle_own_contribution(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	int outcome = CONTRIBUTION_LEFT;

	work->now = clock();
	/* User space has the group, or another processor for long: user space sends the contribution
	 * in time. */
	if (!acquire(group))
		return TC_ACT_SHOT;
	if (group->number == bpf_ntohl(work->header.group))
		outcome = receive_own_contribution(buffer, work, group);
	release(group);
	if (outcome == CONTRIBUTION_DIFFERS)
		wake_node(work->group_index, WAKE_FOR_TIMER);
	if (outcome != CONTRIBUTION_COMPLETES)
		return TC_ACT_SHOT;
	if (write_contribution(buffer, work, group))
		return group->parent_path.interface == buffer->ifindex ? PASS : bpf_redirect(group->parent_path.interface, 0);
	count(&group->counters.transmit_errors);
	return TC_ACT_SHOT;
}

/* A packet that the slow path sends. */
static __always_inline int handle_slow_path_packet(struct __sk_buff *buffer, struct node *node, struct work *work)
{
	struct group *group = lookup_group(work, node);
	__u32 index;

	__sync_fetch_and_add(&node->egress_count, 1);
	if (work->header.kind == KIND_CONTROL && work->header.flags == bpf_htons(FLAG_OWN)) {
		if (!group)
			return TC_ACT_SHOT;
		learn_path(work, &group->parent_path, buffer->ifindex);
		return handle_own_contribution(buffer, work, group);
	}
	/* Data is frequent, and never the first packet to a neighbour. */
	if (!group || work->header.kind == KIND_DATA || learn_path(work, &group->parent_path, buffer->ifindex))
		return PASS;
	for (index = 0; index < CHILDREN_MAX; index++)
		if (index >= group->child_count || learn_path(work, &group->children[index].path, buffer->ifindex))
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
	struct datagram datagram;
	bool is_accepted;
	__u64 socket;
	__u32 interface;

	/* Copies that the program has sent have no socket. */
	if (!buffer->sk)
		return PASS;
	if (!node || !parse(buffer, &datagram) ||
	    (datagram.udp.from != node->port && datagram.udp.to != node->port))
		return PASS;
	socket = bpf_get_socket_cookie(buffer);
	work = begin_work(buffer, &datagram);
	if (!work)
		return PASS;
	if (socket == node->socket)
		return handle_slow_path_packet(buffer, node, work);
	group = datagram.udp.to == node->port ? lookup_group(work, node) : NULL;
	/* Datagrams to the addresses of root sockets never leave this host. */
	if (!group || group->root_socket != socket)
		return datagram.is_root_socket ? TC_ACT_SHOT : PASS;
	page = lookup_page(work);
	if (!page)
		return TC_ACT_SHOT;
	work->now = clock();
	is_accepted = acquire(group);
	if (is_accepted) {
		is_accepted = group->root_socket == socket && receive_from_root(buffer, work, group, page);
		release(group);
	}
	if (!is_accepted) {
		/* User space sends the packet from its slot. */
		count(&group->counters.deferred);
		return TC_ACT_SHOT;
	}
	interface = forward(buffer, work, group, true);
	if (interface && interface == buffer->ifindex)
		return PASS;
	if (interface && bpf_clone_redirect(buffer, interface, 0))
		count(&group->counters.transmit_errors);
	return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
