/* Contributions to all-reduces: those of the children and of this node's application are kept,
 * and combined into one for the parent once all are there. docs/protocol.md, "All-reduces";
 * crates/proto/src/group/reduction.rs has the same rules in Rust.
 *
 * The program takes few integers, whose result is the same in any order, and barriers, which
 * have no values. All others are left to user space. A contribution that is lost is sent again
 * by the user space of its sender, which has a timer for it. When a group is reclaimed, user
 * space handles what is kept as if it had just come. */
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
#include "parse.h"
#include "receive.h"
#include "send.h"

/* How a contribution is handled: left to user space, kept, or combined with all others and sent
 * to the parent; or all are there and differ in kind, which user space tells the parent. */
#define CONTRIBUTION_LEFT 0
#define CONTRIBUTION_KEPT 1
#define CONTRIBUTION_COMPLETES 2
#define CONTRIBUTION_DIFFERS 3

static __always_inline struct contribution *contribution_of(struct kept_contribution *kept)
{
	return (struct contribution *)kept->payload;
}

static __always_inline bool has_short_elements(struct contribution *contribution)
{
	return contribution->element == ELEMENT_I32 || contribution->element == ELEMENT_U32;
}

/* Reads the contribution in the buffer; false if the program does not combine it. */
static __always_inline bool read_contribution(struct __sk_buff *buffer, struct work *work, __be16 flags)
{
	struct kept_contribution *given = &work->contribution;
	struct contribution *contribution = contribution_of(given);
	struct header *header = &work->header;
	__u32 length = work->length - HEADER_BYTES, last = length - 1;

	__builtin_memset(given->payload, 0, sizeof(given->payload));
	/* The verifier has to see that the length is at least 1: it is a bounded number plus a
	 * constant. */
	asm volatile("" : "+r"(last));
	if (work->segments != 1 || last >= sizeof(given->payload))
		return false;
	if (bpf_skb_load_bytes(buffer, work->headers_bytes + HEADER_BYTES, given->payload, last + 1))
		return false;
	given->length = length;
	__builtin_memcpy(given->header, header, HEADER_BYTES);
	return header->flags == flags && header->control.length == bpf_htonl(length) && !header->control.reserved &&
	       !header->control.nonce && length >= CONTRIBUTION_BYTES &&
	       !(length & (has_short_elements(contribution) ? 3 : 7)) && contribution->operation >= OPERATION_SUM &&
	       contribution->operation <= OPERATION_XOR && contribution->element <= ELEMENT_U64;
}

static __always_inline bool is_less(__u64 one, __u64 other, bool is_signed)
{
	return is_signed ? (__s64)one < (__s64)other : one < other;
}

/* Both values combined. A value of 4 bytes is extended to 8, so that its sign is that of all of
 * them. */
static __always_inline __u64 combined(__u64 one, __u64 other, __u8 operation, bool is_signed)
{
	switch (operation) {
	case OPERATION_SUM:
		return one + other;
	case OPERATION_PRODUCT:
		return one * other;
	case OPERATION_MIN:
		return is_less(one, other, is_signed) ? one : other;
	case OPERATION_MAX:
		return is_less(one, other, is_signed) ? other : one;
	case OPERATION_AND:
		return one & other;
	case OPERATION_OR:
		return one | other;
	default:
		return one ^ other;
	}
}

static __always_inline __u64 extended(__u32 value, bool is_signed)
{
	return is_signed ? (__u64)(__s64)(__s32)value : value;
}

/* Two values of 4 bytes. */
static __always_inline __u64 combined_pair(__u64 one, __u64 other, __u8 operation, bool is_signed)
{
	__u64 low = combined(extended(one, is_signed), extended(other, is_signed), operation, is_signed);
	__u64 high = combined(extended(one >> 32, is_signed), extended(other >> 32, is_signed), operation, is_signed);

	return (low & 0xffffffff) | high << 32;
}

/* Two contributions of one kind. */
struct pair {
	struct contribution *one;
	struct contribution *other;
};

static long combine_word(__u32 index, void *context)
{
	struct pair *pair = context;
	struct contribution *one = pair->one, *other = pair->other;
	bool is_signed = one->element == ELEMENT_I32 || one->element == ELEMENT_I64;
	__u64 *words = (__u64 *)one->values, *others = (__u64 *)other->values;

	if (index >= VALUES_BYTES_MAX / 8)
		return 1;
	words[index] = has_short_elements(one) ? combined_pair(words[index], others[index], one->operation, is_signed)
					       : combined(words[index], others[index], one->operation, is_signed);
	return 0;
}

/* Combines a contribution with others; false if they differ in kind. */
__noinline bool combine(struct kept_contribution *into, struct kept_contribution *from)
{
	struct pair pair;
	__u32 processes;

	if (!into || !from)
		return false;
	pair.one = contribution_of(into);
	pair.other = contribution_of(from);
	if (into->length != from->length || pair.one->operation != pair.other->operation ||
	    pair.one->element != pair.other->element)
		return false;
	processes = bpf_ntohs(pair.one->processes) + bpf_ntohs(pair.other->processes);
	pair.one->processes = bpf_htons(processes < 0xffff ? processes : 0xffff);
	/* Half a word behind the values may take part: it is 0 in both, and in what they make. */
	bpf_loop((into->length - CONTRIBUTION_BYTES + 7) / 8, combine_word, &pair, 0);
	return true;
}

struct combination {
	struct group *group;
	struct work *work;
	/* The child whose contribution is not looked for, or CHILDREN_MAX. */
	__u32 except;
	bool is_complete;
};

/* Whether contributions to the next result are kept here. */
static __always_inline bool takes_contributions(struct group *group)
{
	return !is_before(group->flow.next, group->contributions_from);
}

static __always_inline bool is_about(struct kept_contribution *kept, __u32 packet)
{
	return kept->length && contribution_of(kept)->packet == bpf_htonl(packet);
}

static long find_contribution(__u32 index, void *context)
{
	struct combination *combination = context;
	struct group *group = combination->group;

	if (index >= CHILDREN_MAX)
		return 1;
	if (index == combination->except || is_about(&group->children[index].contribution, group->flow.next))
		return 0;
	combination->is_complete = false;
	return 1;
}

static long add_contribution(__u32 index, void *context)
{
	struct combination *combination = context;
	struct group *group = combination->group;

	if (index >= CHILDREN_MAX)
		return 1;
	if (combine(&combination->work->contribution, &group->children[index].contribution))
		return 0;
	combination->is_complete = false;
	return 1;
}

/* Combines all contributions, if they are there, and makes the header for the parent. */
__noinline int complete_contributions(struct work *work, struct group *group)
{
	struct combination combination = { .group = group, .work = work, .except = CHILDREN_MAX, .is_complete = true };
	struct kept_contribution *all;
	struct header *header;
	__u64 timestamp;

	if (!work || !group)
		return CONTRIBUTION_LEFT;
	/* It was sent already: the timer of user space repeats it. */
	if (!is_about(&group->contribution, group->flow.next) || group->contribution_sent_at)
		return CONTRIBUTION_KEPT;
	bpf_loop(group->child_count, find_contribution, &combination, 0);
	if (!combination.is_complete)
		return CONTRIBUTION_KEPT;
	all = &work->contribution;
	work->removed_sum = bpf_csum_diff(0, 0, (__be32 *)all->payload, sizeof(all->payload), 0);
	*all = group->contribution;
	bpf_loop(group->child_count, add_contribution, &combination, 0);
	if (!combination.is_complete)
		return CONTRIBUTION_DIFFERS;
	header = &work->data;
	__builtin_memcpy(header, all->header, HEADER_BYTES);
	/* Later than those of user space, which has chosen a timestamp when the application
	 * contributed, and than the last one. */
	timestamp = bpf_be64_to_cpu(header->timestamp);
	if (timestamp <= group->contribution_timestamp)
		timestamp = group->contribution_timestamp + 1;
	if (timestamp < work->now)
		timestamp = work->now;
	group->contribution_timestamp = timestamp;
	group->contribution_sent_at = work->now ? work->now : 1;
	header->flags = 0;
	header->timestamp = bpf_cpu_to_be64(timestamp);
	header->control.checksum = contribution_mac(&group->control_key, all);
	header->mac = header_mac(&group->header_key, header);
	return CONTRIBUTION_COMPLETES;
}

/* The contribution of a child. The caller owns the group. */
__noinline int receive_contribution(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	struct combination others = { .group = group, .work = work, .is_complete = true };
	struct kept_contribution *given;
	struct header *header;
	struct child *child;
	__u32 index;
	int outcome;

	if (!work || !group)
		return CONTRIBUTION_LEFT;
	given = &work->contribution;
	header = &work->header;
	index = find_child(group, bpf_ntohl(header->sender));
	if (index >= CHILDREN_MAX || !takes_contributions(group) || !read_contribution(buffer, work, 0))
		return CONTRIBUTION_LEFT;
	child = &group->children[index];
	if (bpf_ntohl(header->epoch) != group->epoch || !is_about(given, group->flow.next) ||
	    !is_from_neighbour(work, &child->path) || header_mac(&group->header_key, header) != header->mac ||
	    contribution_mac(&group->control_key, given) != header->control.checksum)
		return CONTRIBUTION_LEFT;
	/* User space counts it. */
	if (child->contribution.length &&
	    bpf_be64_to_cpu(header->timestamp) <=
		    bpf_be64_to_cpu(((struct header *)child->contribution.header)->timestamp))
		return CONTRIBUTION_LEFT;
	/* The root's user space handles all at once, when the last one is there. */
	others.except = index;
	if (group->is_root)
		bpf_loop(group->child_count, find_contribution, &others, 0);
	if (group->is_root && others.is_complete)
		return CONTRIBUTION_LEFT;
	child->contribution = *given;
	outcome = group->is_root ? CONTRIBUTION_KEPT : complete_contributions(work, group);
	if (outcome != CONTRIBUTION_DIFFERS)
		return outcome;
	child->contribution.length = 0;
	return CONTRIBUTION_LEFT;
}

/* The contribution of this node's application. The caller owns the group. */
__noinline int receive_own_contribution(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	if (!work || !group)
		return CONTRIBUTION_LEFT;
	if (group->is_root || !takes_contributions(group) || bpf_ntohl(work->header.epoch) != group->epoch ||
	    !read_contribution(buffer, work, bpf_htons(FLAG_OWN)) || !is_about(&work->contribution, group->flow.next))
		return CONTRIBUTION_LEFT;
	group->contribution = work->contribution;
	group->contribution_sent_at = 0;
	return complete_contributions(work, group);
}

/* Makes the buffer the combined contribution to the parent; false if that failed. */
static __always_inline bool write_contribution(struct __sk_buff *buffer, struct work *work, struct group *group)
{
	struct kept_contribution *all = &work->contribution;
	__u32 last = work->length - HEADER_BYTES - 1;
	__s64 sum = bpf_csum_diff(0, 0, (__be32 *)all->payload, sizeof(all->payload), 0);

	asm volatile("" : "+r"(last));
	if (sum < 0 || last >= sizeof(all->payload) ||
	    bpf_skb_store_bytes(buffer, work->headers_bytes + HEADER_BYTES, all->payload, last + 1, 0))
		return false;
	work->removed_sum = folded(work->removed_sum) + (__u16)~folded(sum);
	return !rewrite_headers(buffer, work, &group->parent_path, &work->data, work->length);
}
