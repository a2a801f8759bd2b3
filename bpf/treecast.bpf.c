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

/* Others' programs go on behind this one. */
#define PASS TC_ACT_UNSPEC
/* And what wakes is for none of them. */
#define GO_UP TC_ACT_OK

#include "packet.h"
#include "group.h"
#include "maps.h"
#include "checksum.h"
#include "flow.h"
#include "send.h"
#include "own.h"
#include "find.h"
#include "take.h"
#include "forward.h"

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
	else if (work->header.kind == KIND_ACKNOWLEDGMENT || work->header.kind == KIND_NAK)
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
