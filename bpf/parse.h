/* Recognizing packets of the protocol in frames, and finding their group. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "group.h"
#include "maps.h"
#include "packet.h"

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define PROTOCOL_UDP 17

/* Datagrams from a root's socket to the node's port are packets of that root, whatever their destination address. On interfaces other
 * than loopback it is one of these multicast addresses; the program drops or rewrites all datagrams to them. */
#define ROOT_SOCKET_IPV4 0xefff5443
#define ROOT_SOCKET_IPV6_FIRST 0xff020000
#define ROOT_SOCKET_IPV6_LAST 0x00005443

/* What is read of a frame that may be a packet of ours. */
struct datagram {
	struct udp udp;
	bool is_v6;
	bool is_root_socket;
	bool is_multicast;
};

/* Parses the headers of a frame; false if it is no UDP datagram that may be a packet of ours. */
static __always_inline bool parse(struct __sk_buff *buffer, struct datagram *found)
{
	void *data = (void *)(long)buffer->data, *end = (void *)(long)buffer->data_end;
	struct ethernet *ethernet = data;
	struct udp *udp;
	__u32 length;

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
		found->is_v6 = false;
		found->is_root_socket = ip->to == bpf_htonl(ROOT_SOCKET_IPV4);
		found->is_multicast = (ip->to & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000);
		udp = data + IPV4_UDP_AT;
		length = IPV4_HEADER_AT;
	} else if (ethernet->protocol == bpf_htons(ETHERTYPE_IPV6)) {
		struct ipv6 *ip = data + IP_AT;

		if (data + IPV6_HEADER_AT > end || ip->protocol != PROTOCOL_UDP)
			return false;
		found->is_v6 = true;
		found->is_root_socket =
			ip->to[0] == bpf_htonl(ROOT_SOCKET_IPV6_FIRST) && ip->to[3] == bpf_htonl(ROOT_SOCKET_IPV6_LAST);
		found->is_multicast = (ip->to[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
		udp = data + IPV6_UDP_AT;
		length = IPV6_HEADER_AT;
	} else {
		return false;
	}
	found->udp = *udp;
	/* Truncated and short datagrams are left to user space. */
	return bpf_ntohs(udp->length) >= UDP_BYTES + HEADER_BYTES &&
	       buffer->len == length + bpf_ntohs(udp->length) - UDP_BYTES;
}

/* Reads a packet into this processor's work area. */
static __always_inline struct work *begin_work(struct __sk_buff *buffer, struct datagram *datagram)
{
	bool is_v6 = datagram->is_v6;
	__u32 first = 0;
	struct work *work = bpf_map_lookup_elem(&WORK, &first);

	if (!work)
		return NULL;
	work->headers_bytes = is_v6 ? IPV6_HEADER_AT : IPV4_HEADER_AT;
	work->length = bpf_ntohs(datagram->udp.length) - UDP_BYTES;
	work->is_multicast = datagram->is_multicast;
	/* The segments of a GSO batch have one length, but for the last, which may be shorter. */
	work->segment_bytes = buffer->gso_size ? buffer->gso_size : work->length;
	if (work->segment_bytes < HEADER_BYTES)
		return NULL;
	work->segments = (work->length + work->segment_bytes - 1) / work->segment_bytes;
	if (work->segments > SEGMENTS_MAX)
		return NULL;
	if (is_v6 ? bpf_skb_load_bytes(buffer, 0, work->received, IPV6_HEADER_AT)
		  : bpf_skb_load_bytes(buffer, 0, work->received, IPV4_HEADER_AT))
		return NULL;
	if (bpf_skb_load_bytes(buffer, work->headers_bytes, &work->header, HEADER_BYTES))
		return NULL;
	work->sends_ack = 0;
	work->wakes_reader = 0;
	work->removed_sum = 0;
	return work;
}

static __always_inline struct group *lookup_group(struct work *work, struct node *node)
{
	__u32 number = bpf_ntohl(work->header.group);
	__u32 *index = bpf_map_lookup_elem(&GROUP_INDICES, &number);

	if (!index)
		return NULL;
	work->group_index = *index;
	return bpf_map_lookup_elem(&GROUPS, index);
}

/* Whether the packet has the addresses and ports of a neighbour's packets to this node. */
static __always_inline bool is_from_neighbour(struct work *work, struct path *path)
{
	bool is_v6 = path->bytes == IPV6_HEADER_AT;
	struct udp *received, *sent;

	if (path->bytes != work->headers_bytes)
		return false;
	if (is_v6) {
		struct ipv6 *from = (struct ipv6 *)(work->received + IP_AT), *to = (struct ipv6 *)(path->frame + IP_AT);
		__u32 word;

		for (word = 0; word < 4; word++)
			if (from->from[word] != to->to[word] || from->to[word] != to->from[word])
				return false;
	} else {
		struct ipv4 *from = (struct ipv4 *)(work->received + IP_AT), *to = (struct ipv4 *)(path->frame + IP_AT);

		if (from->from != to->to || from->to != to->from)
			return false;
	}
	received = udp_of(work->received, is_v6);
	sent = udp_of(path->frame, is_v6);
	return received->from == sent->to && received->to == sent->from;
}

static __always_inline struct page *lookup_page(struct work *work)
{
	__u32 index = work->group_index, first = 0;
	void *pages = bpf_map_lookup_elem(&PAGES, &index);

	return pages ? bpf_map_lookup_elem(pages, &first) : NULL;
}
