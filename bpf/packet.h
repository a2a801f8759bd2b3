/* Packets as crates/wire writes them, behind Ethernet, IP and UDP (docs/wire.md; a test compares the two). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <linux/types.h>

#define VERSION 2
/* The version of the datagram that wakes a reader, which is no packet of the protocol. */
#define WAKE_VERSION 0

#define KIND_DATA 1
#define KIND_ACKNOWLEDGMENT 2
#define KIND_NAK 3
#define KIND_CONTROL 5

/* The operation of a control message that is a contribution to an all-reduce. */
#define OPERATION_CONTRIBUTION 9

/* Flags of data. */
#define FLAG_ACK_REQUESTED 1
/* The root has sent the packet to the multicast address, and this is that copy. */
#define FLAGS_MULTICAST (8 | 16)

/* The flag of acknowledgments and NAKs: multicast reaches the sender. */
#define FLAG_REACHED 1

/* The flag of the contribution of this node's application, on its way from user space to the
 * program. No packet of the protocol has it. */
#define FLAG_OWN 0x8000

#define MESSAGE_BYTES_MAX (1ULL << 32)

/* The longest values of a contribution that the program combines, in bytes. */
#define VALUES_BYTES_MAX 64

/* In network byte order. The body begins at a multiple of 4 bytes, so that its fields of 8 bytes are at multiples of 8. */
struct header {
	__u8 version;
	__u8 kind;
	__be16 flags;
	__be32 group;
	__be64 timestamp;
	__be32 epoch;
	__be32 sender;
	__be32 sequence;
	union {
		struct {
			__be32 message;
			__be64 checksum;
			__be32 length;
			__be32 offset;
			__be64 message_length;
		} __attribute__((packed, aligned(4))) data;
		struct {
			__be32 stable;
			__be64 echo;
			__be32 receive_window;
			__be32 missing_first;
			__be64 missing;
		} __attribute__((packed, aligned(4))) acknowledgment;
		struct {
			__be32 operation;
			__be64 checksum;
			__be32 length;
			__be32 reserved;
			__be64 nonce;
		} __attribute__((packed, aligned(4))) control;
	};
	__be64 mac;
};

#define HEADER_BYTES sizeof(struct header)

/* The number of bytes, from the first on, that the code of a header covers. */
#define AUTHENTIC_BYTES offsetof(struct header, mac)

_Static_assert(HEADER_BYTES == 64 && AUTHENTIC_BYTES == 56, "docs/wire.md");

/* The payload of a contribution. Its values are in the host's byte order. */
struct contribution {
	__be32 packet;
	__u8 operation;
	__u8 element;
	__be16 processes;
	__u8 values[VALUES_BYTES_MAX];
};

/* The length of a contribution without values, in bytes. */
#define CONTRIBUTION_BYTES offsetof(struct contribution, values)

/* How two values are combined. */
#define OPERATION_SUM 1
#define OPERATION_PRODUCT 2
#define OPERATION_MIN 3
#define OPERATION_MAX 4
#define OPERATION_AND 5
#define OPERATION_OR 6
#define OPERATION_XOR 7

/* The types of values that are integers. */
#define ELEMENT_I32 0
#define ELEMENT_I64 1
#define ELEMENT_U32 2
#define ELEMENT_U64 3

/* The lengths of headers without options, in bytes. */
#define ETHERNET_BYTES 14
#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define UDP_BYTES 8
#define FRAME_BYTES_MAX (ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES)

struct ethernet {
	__u8 to[6];
	__u8 from[6];
	__be16 protocol;
};

struct ipv4 {
	__u8 version_and_length;
	__u8 service;
	__be16 length;
	__be16 identification;
	__be16 fragment;
	__u8 time_to_live;
	__u8 protocol;
	__be16 checksum;
	__be32 from;
	__be32 to;
};

struct ipv6 {
	__be32 version_and_flow;
	__be16 length;
	__u8 protocol;
	__u8 hop_limit;
	__be32 from[4];
	__be32 to[4];
};

struct udp {
	__be16 from;
	__be16 to;
	__be16 length;
	__be16 checksum;
};

/* The offsets of headers in a frame, in bytes. */
#define IP_AT ETHERNET_BYTES
#define IPV4_UDP_AT (ETHERNET_BYTES + IPV4_BYTES)
#define IPV6_UDP_AT (ETHERNET_BYTES + IPV6_BYTES)
#define IPV4_HEADER_AT (IPV4_UDP_AT + UDP_BYTES)
#define IPV6_HEADER_AT (IPV6_UDP_AT + UDP_BYTES)

static __always_inline struct udp *udp_of(__u8 *frame, bool is_v6)
{
	return (struct udp *)(is_v6 ? frame + IPV6_UDP_AT : frame + IPV4_UDP_AT);
}
