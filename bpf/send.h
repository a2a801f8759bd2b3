/* Sending a packet on under other headers: to children as copies, and to the parent as what it has become. */
#pragma once

/* Where frames have what. */
#define IP_AT ETHERNET_BYTES
#define IPV4_UDP_AT (ETHERNET_BYTES + IPV4_BYTES)
#define IPV6_UDP_AT (ETHERNET_BYTES + IPV6_BYTES)
#define IPV4_HEADER_AT (IPV4_UDP_AT + UDP_BYTES)
#define IPV6_HEADER_AT (IPV6_UDP_AT + UDP_BYTES)

static __always_inline struct udp *udp_of(__u8 *frame, bool is_v6)
{
	return (struct udp *)(is_v6 ? frame + IPV6_UDP_AT : frame + IPV4_UDP_AT);
}

/* The sum of what a UDP checksum covers of IP's header: addresses and length. Those of IPv4 lie in 8 bytes, those of IPv6 in 32. */
static __always_inline __s64 addresses_changed(struct work *work, bool is_v6)
{
	if (is_v6)
		return bpf_csum_diff((__be32 *)(work->came + IP_AT + 8), 32, (__be32 *)(work->frame + IP_AT + 8), 32, 0);
	return bpf_csum_diff((__be32 *)(work->came + IP_AT + 12), 8, (__be32 *)(work->frame + IP_AT + 12), 8, 0);
}

/* The sum of a payload, which ends with zeroes in its slot. */
static __noinline __u32 payload_sum(struct slot *slot, __u32 length)
{
	__u32 place;
	__s64 sum = 0;

	for (place = 0; place < SLOT_BYTES / 512 + 1; place++) {
		__u32 from = place * 512;
		__u32 size;

		if (from >= length || from >= SLOT_BYTES)
			break;
		size = length - from;
		if (size > 512)
			size = 512;
		size = (size + 3) & ~3u;
		if (size > SLOT_BYTES - from)
			size = SLOT_BYTES - from;
		/* At most 512 bytes a call, as kernels before 6.13 have it. */
		if (size > 512)
			break;
		sum = bpf_csum_diff(NULL, 0, (__be32 *)(slot->payload + from), size, (__wsum)sum);
		if (sum < 0)
			return 0;
	}
	return (__u32)sum;
}

static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)sum;
}

/* Puts the headers of one neighbour, and ours, before the payload that is in the buffer. The UDP checksum is changed by what has changed, and not computed anew: the kernel
 * may still have to complete it, and only it knows. */
static __noinline int readdress(struct __sk_buff *buffer, struct work *work, struct way *way, struct header *header,
				__u32 length)
{
	bool is_v6 = way->bytes == IPV6_HEADER_AT;
	__u32 header_at = is_v6 ? IPV6_HEADER_AT : IPV4_HEADER_AT;
	struct udp *came, *udp;
	__s64 pseudo, rest;

	if (way->bytes != work->headers_bytes)
		return -1;
	__builtin_memcpy(work->frame, way->frame, sizeof(work->frame));
	if (is_v6) {
		struct ipv6 *ip = (struct ipv6 *)(work->frame + IP_AT);

		ip->length = bpf_htons(UDP_BYTES + length);
	} else {
		struct ipv4 *ip = (struct ipv4 *)(work->frame + IP_AT);
		__u16 *words = (__u16 *)ip;
		__u32 sum = 0, word;

		ip->length = bpf_htons(IPV4_BYTES + UDP_BYTES + length);
		ip->checksum = 0;
		for (word = 0; word < IPV4_BYTES / 2; word++)
			sum += words[word];
		ip->checksum = ~folded(sum);
	}
	came = udp_of(work->came, is_v6);
	udp = udp_of(work->frame, is_v6);
	udp->length = bpf_htons(UDP_BYTES + length);
	udp->checksum = came->checksum;
	if (is_v6 ? bpf_skb_store_bytes(buffer, 0, work->frame, IPV6_HEADER_AT, 0)
		  : bpf_skb_store_bytes(buffer, 0, work->frame, IPV4_HEADER_AT, 0))
		return -1;
	if (bpf_skb_store_bytes(buffer, header_at, header, HEADER_BYTES, 0))
		return -1;
	if (!came->checksum)
		return 0;
	pseudo = addresses_changed(work, is_v6);
	rest = bpf_csum_diff((__be32 *)&work->header, HEADER_BYTES, (__be32 *)header, HEADER_BYTES, 0);
	if (pseudo < 0 || rest < 0)
		return -1;
	/* UDP's length counts twice: in its own header, and beside the addresses. */
	pseudo = folded(pseudo) + (__u16)~came->length + udp->length;
	rest = folded(rest) + (__u16)~came->from + (__u16)~came->to + (__u16)~came->length + udp->from + udp->to +
	       udp->length + (__u16)~folded(work->removed);
	if (bpf_l4_csum_replace(buffer, header_at - 2, 0, folded(pseudo), BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0))
		return -1;
	return bpf_l4_csum_replace(buffer, header_at - 2, 0, folded(rest), BPF_F_MARK_MANGLED_0) ? -1 : 0;
}

/* The header of a packet's copies: its own, but for what each sender says of itself. `checksum` is the payload's part. */
static __always_inline void make_data(struct header *data, struct header *header, struct work *work, struct group *group,
				      bool ack_requested, __u32 checksum)
{
	*data = *header;
	data->version = VERSION;
	data->flags = ack_requested ? bpf_htons(FLAG_ACK_REQUESTED) : 0;
	data->checksum = 0;
	data->cookie = bpf_cpu_to_be64(group->cookie);
	data->epoch = bpf_htonl(group->epoch);
	data->sender = bpf_htonl(group->member);
	data->timestamp = bpf_cpu_to_be64(work->now ? work->now : 1);
	data->checksum = bpf_htonl(packet_checksum(data, checksum));
}
