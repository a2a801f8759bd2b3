/* Checksums of payloads: CRC-32C (RFC 9260, appendix A), eight bytes at a time, or a code (mac.h). */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "group.h"
#include "mac.h"
#include "maps.h"

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
	for (index = 0; index < 7; index++, at++) {
		__u32 byte = at;

		asm volatile("" : "+r"(byte));
		if (byte >= length || byte >= SLOT_BYTES)
			break;
		crc = CRC_TABLES[0][(crc ^ slot->payload[byte]) & 0xff] ^ crc >> 8;
	}
	return ~crc;
}

/* The checksum of a payload of data. */
static __always_inline __u64 payload_checksum(struct group *group, struct slot *slot, __u32 length)
{
	return group->authenticates_payload ? payload_mac(&group->payload_key, slot, length) : payload_crc(slot, length);
}
