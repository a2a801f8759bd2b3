/* Taking packets: data into slots, from the network and from a root's application, and acknowledgments. */
#pragma once

/* What a data packet says of its piece; false for what cannot be. */
static __always_inline bool read_piece(struct header *header, __u32 length, struct group *group, struct record *piece)
{
	piece->message = bpf_ntohl(header->data.message);
	piece->length = bpf_ntohl(header->data.length);
	piece->offset = bpf_be64_to_cpu(header->data.offset);
	piece->message_length = bpf_be64_to_cpu(header->data.message_length);
	piece->checksum = 0;
	piece->ack_requested = header->flags != 0;
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
	slot->record.ack_requested = piece->ack_requested;
	slot->record.arrived_at = work->now;
	slot->record.sent_at = work->now;
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
	__u64 ack_requested;
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
	    bpf_ntohl(header->sequence) != group->next || header->flags & ~bpf_htons(FLAG_ACK_REQUESTED) ||
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
	if (piece.ack_requested) {
		taking->ack_requested |= 1ULL << place;
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
	if (taking.ack_requested) {
		group->asked = later(group->asked, taking.asked);
		answer(group, &work->acknowledgment, taking.timestamp);
		work->answers = 1;
	} else if (has_news(group)) {
		answer(group, &work->acknowledgment, 0);
		work->answers = 1;
	}
	if (work->answers)
		work->acknowledgment.checksum = bpf_htonl(packet_checksum(&work->acknowledgment, 0));
	send_all(group, work, first, taking.ack_requested);
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
	if (header->kind == KIND_NAK) {
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
