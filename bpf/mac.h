/* Message authentication codes: SipHash-2-4 (Aumasson and Bernstein, 2012). */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "group.h"
#include "packet.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read with their first byte lowest");

/* The bytes of one iteration of a loop, whose body the verifier examines once. */
#define BLOCK_BYTES 64

/* The state of a hash. */
struct sip {
	__u64 a, b, c, d;
};

static __always_inline __u64 rotated(__u64 word, __u32 bits)
{
	return word << bits | word >> (64 - bits);
}

static __always_inline void sip_round(struct sip *sip)
{
	sip->a += sip->b;
	sip->c += sip->d;
	sip->b = rotated(sip->b, 13) ^ sip->a;
	sip->d = rotated(sip->d, 16) ^ sip->c;
	sip->a = rotated(sip->a, 32) + sip->d;
	sip->c += sip->b;
	sip->d = rotated(sip->d, 21) ^ sip->a;
	sip->b = rotated(sip->b, 17) ^ sip->c;
	sip->c = rotated(sip->c, 32);
}

static __always_inline struct sip sip_start(struct mac_key *key)
{
	struct sip sip = {
		.a = key->words[0] ^ 0x736f6d6570736575ULL,
		.b = key->words[1] ^ 0x646f72616e646f6dULL,
		.c = key->words[0] ^ 0x6c7967656e657261ULL,
		.d = key->words[1] ^ 0x7465646279746573ULL,
	};

	return sip;
}

static __always_inline void sip_word(struct sip *sip, __u64 word)
{
	sip->d ^= word;
	sip_round(sip);
	sip_round(sip);
	sip->a ^= word;
}

/* The hash; the last word has the length in its highest byte. */
static __always_inline __u64 sip_end(struct sip *sip, __u64 last)
{
	sip_word(sip, last);
	sip->c ^= 0xff;
	sip_round(sip);
	sip_round(sip);
	sip_round(sip);
	sip_round(sip);
	return sip->a ^ sip->b ^ sip->c ^ sip->d;
}

/* The code of a header, as it stands there. The verifier examines a function that is not static once, and not again for each call with
 * the state of its caller; it does not know then that the pointers are valid. */
__noinline __u64 header_mac(struct mac_key *key, struct header *header)
{
	struct sip sip;
	__u32 index;

	if (!key || !header)
		return 0;
	sip = sip_start(key);
#pragma unroll
	for (index = 0; index < AUTHENTIC_BYTES / 8; index++)
		sip_word(&sip, ((__u64 *)header)[index]);
	return bpf_cpu_to_be64(sip_end(&sip, (__u64)AUTHENTIC_BYTES << 56));
}

struct hashing {
	struct slot *slot;
	struct sip sip;
};

static long hash_block(__u32 index, void *context)
{
	struct hashing *hashing = context;
	struct sip sip = hashing->sip;
	__u32 at = index * BLOCK_BYTES, word;

	asm volatile("" : "+r"(at));
	if (at > SLOT_BYTES - BLOCK_BYTES)
		return 1;
#pragma unroll
	for (word = 0; word < BLOCK_BYTES / 8; word++)
		sip_word(&sip, *(__u64 *)(hashing->slot->payload + at + 8 * word));
	hashing->sip = sip;
	return 0;
}

/* The code of a payload, which is padded with zeros in its slot. */
__noinline __u64 payload_mac(struct mac_key *key, struct slot *slot, __u32 length)
{
	struct hashing hashing = { .slot = slot };
	__u32 at = length & ~(BLOCK_BYTES - 1), index;
	__u64 last = (__u64)length << 56;

	if (!key || !slot || length > SLOT_BYTES)
		return 0;
	hashing.sip = sip_start(key);
	bpf_loop(length / BLOCK_BYTES, hash_block, &hashing, 0);
	for (index = 0; index < BLOCK_BYTES / 8; index++, at += 8) {
		__u32 word = at;

		/* The value that is checked is the value that is used: the barrier keeps the compiler from deriving another one. */
		asm volatile("" : "+r"(word));
		if (word >= length || word > SLOT_BYTES - 8)
			break;
		if (word + 8 > length) {
			last |= *(__u64 *)(slot->payload + word);
			break;
		}
		sip_word(&hashing.sip, *(__u64 *)(slot->payload + word));
	}
	return sip_end(&hashing.sip, last);
}
