/* Finding our packets in frames, and the group that they belong to. */
#pragma once

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define PROTOCOL_UDP 17

/* Datagrams from a root's socket to the node's port are packets of that root, whatever their address; on other interfaces than
 * loopback it is one of these groups of addresses, under which nothing leaves the host. */
#define SOURCE_IPV4 0xefff5443
#define SOURCE_IPV6_FIRST 0xff020000
#define SOURCE_IPV6_LAST 0x00005443

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

static __always_inline struct page *page_of(struct work *work)
{
	__u32 place = work->place, first = 0;
	void *pages = bpf_map_lookup_elem(&PAGES, &place);

	return pages ? bpf_map_lookup_elem(pages, &first) : NULL;
}
