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

/* The payload's part of a packet's checksum. */
static __noinline __u32 payload_checksum(struct slot *slot, __u32 length)
{
	__u32 crc = ~0u;
	__u32 words = length / 8;
	__u32 place;

	for (place = 0; place < SLOT_BYTES / 8; place++) {
		if (place >= words)
			break;
		crc = crc_word(crc, ((__u64 *)slot->payload)[place]);
	}
	words *= 8;
	for (place = 0; place < 7; place++) {
		__u32 at = words + place;

		if (at >= length || at >= SLOT_BYTES)
			break;
		crc = CRC_TABLES[0][(crc ^ slot->payload[at]) & 0xff] ^ crc >> 8;
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
