/* What a packet that was taken becomes: copies, an answer, what wakes a sleeper. */
#pragma once

/* The number of a host's loopback interface (LOOPBACK_IFINDEX in Linux). */
#define LOOPBACK 1

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
