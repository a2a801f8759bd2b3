/* CRC-32C (RFC 9260, appendix A), eight bytes at a time. */
#pragma once

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read with their first byte lowest");

static __always_inline __u32 crc_word(__u32 crc, __u64 word)
{
	word ^= crc;
	return CRC_TABLES[7][word & 0xff] ^ CRC_TABLES[6][word >> 8 & 0xff] ^ CRC_TABLES[5][word >> 16 & 0xff] ^
	       CRC_TABLES[4][word >> 24 & 0xff] ^ CRC_TABLES[3][word >> 32 & 0xff] ^ CRC_TABLES[2][word >> 40 & 0xff] ^
	       CRC_TABLES[1][word >> 48 & 0xff] ^ CRC_TABLES[0][word >> 56];
}

/* So many bytes at a time are one step of a loop, which the verifier looks at once. */
#define BLOCK_BYTES 64

struct summing {
	struct slot *slot;
	__u32 crc;
	__u32 reserved;
};

static long crc_block(__u32 place, void *context)
{
	struct summing *summing = context;
	__u32 at = place * BLOCK_BYTES, word;

	asm volatile("" : "+r"(at));
	if (at > SLOT_BYTES - BLOCK_BYTES)
		return 1;
#pragma unroll
	for (word = 0; word < BLOCK_BYTES / 8; word++)
		summing->crc = crc_word(summing->crc, *(__u64 *)(summing->slot->payload + at + 8 * word));
	return 0;
}

/* The payload's part of a packet's checksum. */
static __noinline __u32 payload_checksum(struct slot *slot, __u32 length)
{
	struct summing summing = { slot, ~0u, 0 };
	__u32 at = length & ~(BLOCK_BYTES - 1), place;
	__u32 crc;

	bpf_loop(length / BLOCK_BYTES, crc_block, &summing, 0);
	crc = summing.crc;
	for (place = 0; place < BLOCK_BYTES / 8 - 1; place++, at += 8) {
		__u32 word = at;

		/* What is checked is what is used, and not something that the compiler has made of it. */
		asm volatile("" : "+r"(word));
		if (word + 8 > length || word > SLOT_BYTES - 8)
			break;
		crc = crc_word(crc, *(__u64 *)(slot->payload + word));
	}
	for (place = 0; place < 7; place++, at++) {
		__u32 byte = at;

		asm volatile("" : "+r"(byte));
		if (byte >= length || byte >= SLOT_BYTES)
			break;
		crc = CRC_TABLES[0][(crc ^ slot->payload[byte]) & 0xff] ^ crc >> 8;
	}
	return ~crc;
}

/* The checksum of a packet whose header says 0 there, from its payload's part. */
static __noinline __u32 packet_checksum(struct header *header, __u32 payload)
{
	__u32 crc = ~payload;
	__u32 place;

	for (place = 0; place < HEADER_BYTES / 8; place++)
		crc = crc_word(crc, ((__u64 *)header)[place]);
	return ~crc;
}
