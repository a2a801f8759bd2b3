/* Packets as crates/wire writes them, behind Ethernet, IP and UDP. docs/wire.md has the table; a test holds this to it. */
#pragma once

#define VERSION 1
/* What the kernel wakes a process with is no packet. */
#define VERSION_OF_WAKING 0

#define KIND_DATA 1
#define KIND_ACKNOWLEDGMENT 2
#define KIND_NAK 3

#define FLAG_ACK_REQUESTED 1

#define MESSAGE_BYTES_MAX (1ULL << 32)

/* Network byte order throughout. */
struct header {
	__u8 version;
	__u8 kind;
	__be16 flags;
	__be32 checksum;
	__be64 cookie;
	__be32 group;
	__be32 epoch;
	__be32 sender;
	__be32 sequence;
	__be64 timestamp;
	union {
		struct {
			__be32 message;
			__be32 length;
			__be64 offset;
			__be64 message_length;
		} data;
		struct {
			__be32 stable;
			__be32 window;
			__be32 missing_first;
			__be32 reserved;
			__be64 missing;
		} acknowledgment;
	};
};

#define HEADER_BYTES sizeof(struct header)

_Static_assert(HEADER_BYTES == 64, "docs/wire.md");

/* Where the parts of a frame begin, in bytes: no options, no fragments. */
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
