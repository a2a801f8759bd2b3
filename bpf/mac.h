/* Message authentication codes: SipHash-2-4 (Aumasson and Bernstein, 2012), for payloads of their NH hashes. */
#pragma once

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "group.h"
#include "packet.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words are read with their first byte lowest");

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

/* The code of a contribution's payload, which is a multiple of 4 bytes. */
__noinline __u64 contribution_mac(struct mac_key *key, struct kept_contribution *kept)
{
	__u64 *words, rest = 0;
	struct sip sip;
	__u32 index;

	if (!key || !kept)
		return 0;
	words = (__u64 *)kept->payload;
	sip = sip_start(key);
	for (index = 0; index < sizeof(kept->payload) / 8; index++) {
		if (8 * (index + 1) > kept->length) {
			rest = words[index];
			break;
		}
		sip_word(&sip, words[index]);
	}
	return bpf_cpu_to_be64(sip_end(&sip, rest | kept->length << 56));
}

struct hashing {
	struct slot *slot;
	struct payload_key *key;
	struct sip sip;
};

/* Adds eight bytes of a block to its two hashes, which have the same key two words apart (NH with the Toeplitz construction, RFC 4418). */
static __always_inline void nh_words(__u64 *hashes, const __u32 *words, const __u32 *key)
{
	hashes[0] += (__u64)(words[0] + key[0]) * (words[1] + key[1]);
	hashes[1] += (__u64)(words[0] + key[2]) * (words[1] + key[3]);
	/* Keeps the compiler from loading all words of a block first, which do not fit its registers. */
	asm volatile("" : "+r"(hashes[0]), "+r"(hashes[1]) : : "memory");
}

static long hash_block(__u32 index, void *context)
{
	struct hashing *hashing = context;
	struct sip sip;
	const __u32 *words, *key = hashing->key->hash;
	__u32 at = index * NH_BLOCK_BYTES, word;
	__u64 hashes[2] = { 0 };

	asm volatile("" : "+r"(at));
	if (at > SLOT_BYTES - NH_BLOCK_BYTES)
		return 1;
	words = (__u32 *)(hashing->slot->payload + at);
#pragma unroll
	for (word = 0; word < NH_BLOCK_BYTES / 4; word += 2)
		nh_words(hashes, words + word, key + word);
	sip = hashing->sip;
	sip_word(&sip, hashes[0]);
	sip_word(&sip, hashes[1]);
	hashing->sip = sip;
	return 0;
}

/* The code of the payload of a packet, which is padded with zeros in its slot: SipHash of the packet's number, the length and the hashes
 * of each block (docs/wire.md). */
__noinline __u64 payload_mac(struct payload_key *key, struct slot *slot, __u32 packet, __u32 length)
{
	struct hashing hashing = { .slot = slot, .key = key };
	__u32 at = length & ~(NH_BLOCK_BYTES - 1), blocks = length / NH_BLOCK_BYTES, index;
	__u64 hashes[2] = { 0 };

	if (!key || !slot || length > SLOT_BYTES)
		return 0;
	hashing.sip = sip_start(&key->code);
	sip_word(&hashing.sip, packet | (__u64)length << 32);
	bpf_loop(blocks, hash_block, &hashing, 0);
	if (at == length)
		return sip_end(&hashing.sip, (__u64)(8 + 16 * blocks) << 56);
	for (index = 0; index < NH_BLOCK_BYTES / 8; index++, at += 8) {
		__u32 word = at;

		/* The value that is checked is the value that is used: the barrier keeps the compiler from deriving another one. */
		asm volatile("" : "+r"(word));
		if (word >= length || word > SLOT_BYTES - 8)
			break;
		nh_words(hashes, (__u32 *)(slot->payload + word), key->hash + 2 * index);
	}
	sip_word(&hashing.sip, hashes[0]);
	sip_word(&hashing.sip, hashes[1]);
	return sip_end(&hashing.sip, (__u64)(8 + 16 * (blocks + 1)) << 56);
}
