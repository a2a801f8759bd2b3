/* Checksums of payloads: CRC-32C (RFC 9260, appendix A), eight bytes at a time, or a code (mac.h); and those of datagrams. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "group.h"
#include "mac.h"
#include "maps.h"
#include "packet.h"
#include "parse.h"

/* The bytes of one iteration of a loop, whose body the verifier examines once. */
#define BLOCK_BYTES 64

/* The address of the tables in one register: otherwise the compiler loads the address of each table. */
static __always_inline const __u8 *crc_tables(void)
{
	const __u8 *tables = (const __u8 *)CRC_TABLES;

	asm volatile("" : "+r"(tables));
	return tables;
}

/* An entry of a table by its offset in bytes, in as few instructions as possible: half of the program's time is spent here. The mask
 * keeps the offset within the table. */
#define CRC_ENTRY(tables, table, offset)                                                                              \
	({                                                                                                            \
		__u64 entry = (offset);                                                                               \
		asm volatile("%0 &= 0x3fc\n\t"                                                                        \
			     "%0 += %1\n\t"                                                                           \
			     "%0 = *(u32 *)(%0 + %2)"                                                                 \
			     : "+r"(entry)                                                                            \
			     : "r"(tables), "i"((table) * sizeof(CRC_TABLES[0])));                                    \
		(__u32)entry;                                                                                         \
	})

static __always_inline __u32 crc_word(const __u8 *tables, __u32 crc, __u64 word)
{
	/* Loads that do not depend on the CRC so far come first, so that they overlap with it. */
	__u32 rest = CRC_ENTRY(tables, 3, word >> 30), first, second;

	rest ^= CRC_ENTRY(tables, 2, word >> 38);
	rest ^= CRC_ENTRY(tables, 1, word >> 46);
	rest ^= CRC_ENTRY(tables, 0, word >> 54);
	word ^= crc;
	first = CRC_ENTRY(tables, 7, word << 2);
	first ^= CRC_ENTRY(tables, 6, word >> 6);
	second = CRC_ENTRY(tables, 5, word >> 14);
	second ^= CRC_ENTRY(tables, 4, word >> 22);
	return rest ^ (first ^ second);
}

struct summing {
	struct slot *slot;
	__u32 crc;
	__u32 reserved;
};

static long crc_block(__u32 index, void *context)
{
	struct summing *summing = context;
	const __u8 *tables = crc_tables();
	__u32 at = index * BLOCK_BYTES, word, crc = summing->crc;

	asm volatile("" : "+r"(at));
	if (at > SLOT_BYTES - BLOCK_BYTES)
		return 1;
#pragma unroll
	for (word = 0; word < BLOCK_BYTES / 8; word++)
		crc = crc_word(tables, crc, *(__u64 *)(summing->slot->payload + at + 8 * word));
	summing->crc = crc;
	return 0;
}

/* The CRC-32C of a payload. */
__noinline __u32 payload_crc(struct slot *slot, __u32 length)
{
	struct summing summing = { slot, ~0u, 0 };
	const __u8 *tables = crc_tables();
	__u32 at = length & ~(BLOCK_BYTES - 1), index;
	__u32 crc;

	if (!slot || length > SLOT_BYTES)
		return 0;
	bpf_loop(length / BLOCK_BYTES, crc_block, &summing, 0);
	crc = summing.crc;
	for (index = 0; index < BLOCK_BYTES / 8 - 1; index++, at += 8) {
		__u32 word = at;

		/* The value that is checked is the value that is used: the barrier keeps the compiler from deriving another one. */
		asm volatile("" : "+r"(word));
		if (word + 8 > length || word > SLOT_BYTES - 8)
			break;
		crc = crc_word(tables, crc, *(__u64 *)(slot->payload + word));
	}
	/* The words before end here. A number that the loop above has left would be one of which the verifier knows too much. */
	at = length & ~7u;
	for (index = 0; index < 7; index++, at++) {
		__u32 byte = at;

		asm volatile("" : "+r"(byte));
		if (byte >= length || byte >= SLOT_BYTES)
			break;
		crc = CRC_ENTRY(tables, 0, (crc ^ slot->payload[byte]) << 2) ^ crc >> 8;
	}
	return ~crc;
}

/* The checksum of the payload of the next packet of data. */
static __always_inline __u64 payload_checksum(struct group *group, struct slot *slot, __u32 length)
{
	return group->payload_check == CHECK_CODE ? payload_mac(&group->payload_key, slot, group->flow.next, length) :
						    payload_crc(slot, length);
}

/* The Internet checksum's sum of a payload, which is padded with zeros in its slot. */
__noinline __u32 payload_sum(struct slot *slot, __u32 length)
{
	__u32 block;
	__s64 sum = 0;

	if (!slot || length > SLOT_BYTES)
		return 0;
	for (block = 0; block < SLOT_BYTES / 512 + 1; block++) {
		__u32 from = block * 512;
		__u64 size;

		if (from >= length || from >= SLOT_BYTES)
			break;
		size = length - from;
		if (size > 512)
			size = 512;
		size = (size + 3) & ~3u;
		/* The verifier of Linux 6.1 has to see the checks of the number that is passed. */
		asm volatile("" : "+r"(size));
		/* Kernels before 6.13 take at most 512 bytes per call. */
		if (size > SLOT_BYTES - from || size > 512)
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

/* The sum of the pseudo-header of a datagram, or of a batch (RFC 768; RFC 8200, section 8.1); negative if it cannot be computed. */
static __always_inline __s64 pseudo_header_sum(struct work *work)
{
	bool is_v6 = work->headers_bytes == IPV6_HEADER_AT;
	__s64 addresses = is_v6 ? bpf_csum_diff(NULL, 0, (__be32 *)(work->received + IP_AT + 8), 32, 0) :
				  bpf_csum_diff(NULL, 0, (__be32 *)(work->received + IP_AT + 12), 8, 0);

	if (addresses < 0)
		return addresses;
	return (__s64)folded(addresses) + bpf_htons(PROTOCOL_UDP) + udp_of(work->received, is_v6)->length;
}

/* Whether the kernel vouches for the UDP checksum of a datagram, or for those of the segments of a batch. */
__noinline bool is_vouched_for(struct __sk_buff *buffer, struct work *work)
{
	__s64 pseudo;

	if (!work)
		return false;
	/* The network interface has verified it. */
	if (bpf_csum_level(buffer, BPF_CSUM_LEVEL_QUERY) >= 0)
		return true;
	/* The interface that it leaves by would complete it (the kernel's CHECKSUM_PARTIAL): it is on the way from another network
	 * namespace of this machine, or a batch whose segments the kernel has verified before it merged them. Of datagrams that were
	 * changed on a wire, one of 65,536 looks like that, as many as have a right checksum. */
	pseudo = pseudo_header_sum(work);
	return pseudo >= 0 && udp_of(work->received, work->headers_bytes == IPV6_HEADER_AT)->checksum == folded(pseudo);
}

/* Whether the UDP checksum of a datagram is right, whose one payload is in its slot (RFC 768). */
__noinline bool has_right_udp_checksum(struct __sk_buff *buffer, struct work *work, struct slot *slot, __u32 length)
{
	struct udp *udp;
	__s64 pseudo, header;

	if (!work || !slot)
		return false;
	if (is_vouched_for(buffer, work))
		return true;
	udp = udp_of(work->received, work->headers_bytes == IPV6_HEADER_AT);
	pseudo = pseudo_header_sum(work);
	header = bpf_csum_diff(NULL, 0, (__be32 *)&work->header, HEADER_BYTES, 0);
	if (pseudo < 0 || header < 0)
		return false;
	return folded((__u64)pseudo + udp->from + udp->to + udp->length + udp->checksum + folded(header) +
		      folded(payload_sum(slot, length))) == 0xffff;
}
