/* Rewriting the headers of a packet: for its copies to children, and for the acknowledgment to the parent that it becomes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "checksum.h"
#include "group.h"
#include "mac.h"
#include "maps.h"
#include "packet.h"

/* The change of the UDP checksum's pseudo header by other addresses: 8 bytes in IPv4, 32 bytes in IPv6. */
static __always_inline __s64 address_difference(struct work *work, bool is_v6)
{
	if (is_v6)
		return bpf_csum_diff((__be32 *)(work->received + IP_AT + 8), 32, (__be32 *)(work->rewritten + IP_AT + 8), 32, 0);
	return bpf_csum_diff((__be32 *)(work->received + IP_AT + 12), 8, (__be32 *)(work->rewritten + IP_AT + 12), 8, 0);
}

/* Writes the headers of a neighbour's path, and ours, in front of the payload in the buffer. The UDP checksum is updated incrementally
 * (RFC 1624). That of a datagram may be complete, or the pseudo header's sum, which the kernel completes later (CHECKSUM_PARTIAL):
 * `bpf_l4_csum_replace` tells which. In a GSO batch, truncated or not, the field always holds that sum, and the kernel completes it in each
 * segment. It does not mark batches that leave by an interface without checksum offload, from Linux 6.11 on. */
__noinline int rewrite_headers(struct __sk_buff *buffer, struct work *work, struct path *path, struct header *header,
				__u32 length)
{
	struct udp *received, *udp;
	__s64 pseudo, rest;
	__u32 header_at;
	bool is_v6;

	if (!work || !path || !header)
		return -1;
	is_v6 = path->bytes == IPV6_HEADER_AT;
	header_at = is_v6 ? IPV6_HEADER_AT : IPV4_HEADER_AT;
	if (path->bytes != work->headers_bytes)
		return -1;
	__builtin_memcpy(work->rewritten, path->frame, sizeof(work->rewritten));
	if (is_v6) {
		struct ipv6 *ip = (struct ipv6 *)(work->rewritten + IP_AT);

		ip->length = bpf_htons(UDP_BYTES + length);
	} else {
		struct ipv4 *ip = (struct ipv4 *)(work->rewritten + IP_AT);
		__u16 *words = (__u16 *)ip;
		__u32 sum = 0, word;

		ip->length = bpf_htons(IPV4_BYTES + UDP_BYTES + length);
		ip->checksum = 0;
		for (word = 0; word < IPV4_BYTES / 2; word++)
			sum += words[word];
		ip->checksum = ~folded(sum);
	}
	received = udp_of(work->received, is_v6);
	udp = udp_of(work->rewritten, is_v6);
	udp->length = bpf_htons(UDP_BYTES + length);
	udp->checksum = received->checksum;
	pseudo = address_difference(work, is_v6);
	if (pseudo < 0)
		return -1;
	/* UDP's length counts twice: in its header and in the pseudo header. */
	pseudo = folded(pseudo) + (__u16)~received->length + udp->length;
	if (work->segments > 1)
		udp->checksum = folded(received->checksum + pseudo);
	if (is_v6 ? bpf_skb_store_bytes(buffer, 0, work->rewritten, IPV6_HEADER_AT, 0)
		  : bpf_skb_store_bytes(buffer, 0, work->rewritten, IPV4_HEADER_AT, 0))
		return -1;
	if (bpf_skb_store_bytes(buffer, header_at, header, HEADER_BYTES, 0))
		return -1;
	if (work->segments > 1 || !received->checksum)
		return 0;
	rest = bpf_csum_diff((__be32 *)&work->header, HEADER_BYTES, (__be32 *)header, HEADER_BYTES, 0);
	if (rest < 0)
		return -1;
	rest = folded(rest) + (__u16)~received->from + (__u16)~received->to + (__u16)~received->length + udp->from + udp->to +
	       udp->length + (__u16)~folded(work->removed_sum);
	if (bpf_l4_csum_replace(buffer, header_at - 2, 0, folded(pseudo), BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0))
		return -1;
	return bpf_l4_csum_replace(buffer, header_at - 2, 0, folded(rest), BPF_F_MARK_MANGLED_0) ? -1 : 0;
}

/* Makes the header of a packet's copies: the packet's own with this sender's fields. */
static __always_inline void make_data(struct header *data, struct header *header, struct work *work, struct group *group,
				      bool ack_requested)
{
	*data = *header;
	data->version = VERSION;
	data->flags = ack_requested ? bpf_htons(FLAG_ACK_REQUESTED) : 0;
	data->epoch = bpf_htonl(group->epoch);
	data->sender = bpf_htonl(group->member);
	data->timestamp = bpf_cpu_to_be64(work->now ? work->now : 1);
	data->mac = header_mac(&group->header_key, data);
}
