/* Treecast: reliable multicast for clusters.
 *
 * Nodes and groups are opaque. A function that can fail returns a tc_result and writes its outputs, which come last, only
 * if that is TC_OK; tc_error_message has the error message. Nodes and groups are thread-safe. Times are in milliseconds; a
 * negative timeout means no timeout.
 *
 * This file is generated from crates/capi. */

#ifndef TREECAST_H
#define TREECAST_H

#include <stddef.h>
#include <stdint.h>

/*
 The result of a call.
 */
typedef enum {
  /*
   Success.
   */
  TC_OK = 0,
  /*
   The root has closed the group, and all messages have been received.
   */
  TC_CLOSED = 1,
  /*
   The timeout has expired.
   */
  TC_TIMED_OUT = 2,
  /*
   The message is longer than the buffer. It can still be received.
   */
  TC_BUFFER_TOO_SMALL = 3,
  /*
   Members have been lost; tc_error_message names them. All other members have all messages.
   */
  TC_MEMBERS_LOST = 4,
  /*
   An argument is invalid, or does not apply to this member.
   */
  TC_INVALID_ARGUMENT = 5,
  /*
   The group has ended without being closed: it was aborted, the root is unreachable, or this
   member has left or was evicted.
   */
  TC_ENDED = 6,
  /*
   A system call has failed.
   */
  TC_SYSTEM_ERROR = 7,
  /*
   The root refuses this member, or the daemon this user: because of another token, a policy or
   a limit.
   */
  TC_REFUSED = 8,
} tc_result;

/*
 The type of the values of an all-reduce.
 */
typedef enum {
  /*
   int32_t
   */
  TC_I32 = 0,
  /*
   int64_t
   */
  TC_I64 = 1,
  /*
   uint32_t
   */
  TC_U32 = 2,
  /*
   uint64_t
   */
  TC_U64 = 3,
  /*
   float
   */
  TC_F32 = 4,
  /*
   double
   */
  TC_F64 = 5,
} tc_element;

/*
 How an all-reduce combines two values.
 */
typedef enum {
  /*
   The sum; that of integers wraps around.
   */
  TC_SUM = 0,
  /*
   The product; that of integers wraps around.
   */
  TC_PRODUCT = 1,
  /*
   The less of both; of a number and a NaN, the number.
   */
  TC_MIN = 2,
  /*
   The greater of both; of a number and a NaN, the number.
   */
  TC_MAX = 3,
  /*
   The bits that are set in both, of integers.
   */
  TC_AND = 4,
  /*
   The bits that are set in one or both, of integers.
   */
  TC_OR = 5,
  /*
   The bits that are set in one, of integers.
   */
  TC_XOR = 6,
} tc_operation;

/*
 A group at one of its members.
 */
typedef struct tc_group tc_group;

/*
 A running node within this process.
 */
typedef struct tc_node tc_node;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The error message of this thread's last call that did not return TC_OK. It is valid until this
 thread's next such call. In handlers of atexit(3) it is empty.
 */
const char *tc_error_message(void);

/*
 Opens a node at a UDP address such as "192.0.2.1:7000"; with port 0 the system chooses a port.
 `settings` are those of a node, separated by spaces, such as "spin_us=20 peer_timeout_ms=400",
 or NULL.

 # Safety
 `bind` is a zero-terminated string, and so is `settings` unless it is NULL; `node` is valid for
 writing a pointer.
 */
tc_result tc_node_new(const char *bind, const char *settings, tc_node **node);

/*
 Closes a node. The call waits, for some seconds at most, until closed groups have sent what
 other members still need. The node's groups must be freed before. NULL is allowed. In a forked
 process the call does nothing.

 # Safety
 `node` is NULL, or comes from `tc_node_new` and is not used afterwards.
 */
void tc_node_free(tc_node *node);

/*
 Writes the node's UDP address as a zero-terminated string to `address`, a buffer of `capacity`
 bytes; 64 are sufficient.

 # Safety
 `node` comes from `tc_node_new`; `address` is valid for writing `capacity` bytes.
 */
tc_result tc_node_address(const tc_node *node, char *address, size_t capacity);

/*
 Writes the engine of the node, "user" or "ebpf", as a zero-terminated string to `engine`, a
 buffer of `capacity` bytes; 8 are sufficient. The engine of the daemon's node, or of a shared
 one, is named in the same way.

 # Safety
 `node` comes from `tc_node_new`; `engine` is valid for writing `capacity` bytes.
 */
tc_result tc_node_engine(const tc_node *node, char *engine, size_t capacity);

/*
 Creates a group from a list of members. `members` are the addresses of all members, as
 host:port, separated by commas, the same at every member. The root is the first, unless
 `settings` says otherwise. `settings` is NULL, or key=value separated by spaces, such as "root=2
 scheme=binomial offload=nic token=secret message_bytes=16384". With "plan=FILE" the root carries
 out the plan in a JSON file, as `treecast plan --format json` writes it, whose root is that of
 the group. With "fabric=FILE" the root makes the plan on the racks and switches in a file, such
 as Slurm's topology.conf or an inventory of hosts and racks, whose hosts have the names in
 `members`, or those of the hosts that join. With "network=FILE" and without a scheme or a plan
 the root takes the tree that is best by the measured costs in a file that `treecast tune` has
 written.

 # Safety
 `node` comes from `tc_node_new`; the strings are zero-terminated; `group` is valid for writing a
 pointer.
 */
tc_result tc_group_new(const tc_node *node, const char *members, const char *settings, tc_group **group);

/*
 Listens until all members have joined, and takes part in their group as its root. `listen` is
 the TCP address, such as "0.0.0.0:7000", at which the others call tc_group_join; `members` is
 their number, this node included. `settings` are as for tc_group_new, and hold for all members.
 TC_TIMED_OUT, if not all have joined; tc_error_message names them.

 # Safety
 `node` comes from `tc_node_new`; the strings are zero-terminated; `group` is valid for writing a
 pointer.
 */
tc_result tc_group_listen(const tc_node *node,
                          const char *listen,
                          uint32_t members,
                          const char *settings,
                          int64_t timeout_ms,
                          tc_group **group);

/*
 Joins the group of a root that listens, or will listen before the timeout: `root` is its
 address, and `token` the token of its settings, or NULL if all members are on one host. `member`
 is the number that this node requests; below 0, any. TC_TIMED_OUT, if the root or other members
 are missing; TC_INVALID_ARGUMENT, if the root rejects this node.

 # Safety
 `node` comes from `tc_node_new`; the strings are zero-terminated; `group` is valid for writing a
 pointer.
 */
tc_result tc_group_join(const tc_node *node,
                        const char *root,
                        const char *token,
                        int64_t member,
                        int64_t timeout_ms,
                        tc_group **group);

/*
 Writes this member's number, from 0. TC_INVALID_ARGUMENT, if it has no number yet.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join; `member` is valid for writing
 a number.
 */
tc_result tc_group_member(const tc_group *group, uint32_t *member);

/*
 Writes a sentence as a zero-terminated string to `text`, a buffer of `capacity` bytes; 256 are
 sufficient: where packets are forwarded, why that was chosen with "offload=auto", and how many
 of the root's children multicast reaches, which is known some milliseconds after the group is
 ready. TC_INVALID_ARGUMENT at other members than the root.

 # Safety
 `group` comes from tc_group_new or tc_group_listen; `text` is valid for writing `capacity`
 bytes.
 */
tc_result tc_group_offload_status(const tc_group *group, char *text, size_t capacity);

/*
 Waits until every member has its position in the tree: TC_MEMBERS_LOST, if some are lost; the
 others can still use the group. After TC_TIMED_OUT, tc_error_message names the missing members.
 Sending and receiving do not require this call.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join.
 */
tc_result tc_group_wait_until_ready(const tc_group *group, int64_t timeout_ms);

/*
 At the root: sends a message to all other members. The call returns when the message has been
 copied, and its buffer can be reused.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join; `message` is valid for
 reading `length` bytes, or NULL if `length` is 0.
 */
tc_result tc_group_send(const tc_group *group, const void *message, size_t length);

/*
 At the root: sends the next bytes of a message of `message_bytes`, and writes how many of
 `length` it has taken. For programs that cannot wait as long as tc_group_send may, or do not
 have the whole message in memory: they call it with what follows until the message is complete,
 and before they send another one. It takes whole packets (tc_group_packet_bytes), so that bytes
 that fill none are taken only if they complete the message. A message of no bytes is sent by one
 call. TC_TIMED_OUT if no slot became free in time. TC_INVALID_ARGUMENT if `message_bytes` is not
 the length of the message that is partly sent, or if `length` is more than that message lacks.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join; `part` is valid for reading
 `length` bytes, or NULL if `length` is 0; `sent` is valid for writing a number.
 */
tc_result tc_group_send_part(const tc_group *group,
                             const void *part,
                             size_t length,
                             uint64_t message_bytes,
                             int64_t timeout_ms,
                             size_t *sent);

/*
 Writes the number of bytes of a message of which calls for parts take whole multiples.
 TC_INVALID_ARGUMENT at other members than the root before the first call that receives.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join; `packet_bytes` is valid for
 writing a number.
 */
tc_result tc_group_packet_bytes(const tc_group *group, size_t *packet_bytes);

/*
 At the root: TC_MEMBERS_LOST, if members have been lost so far; tc_error_message names them.
 TC_OK at other members. It does not wait.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join.
 */
tc_result tc_group_check(const tc_group *group);

/*
 At the root: waits until every member that is not lost has all messages sent so far.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join.
 */
tc_result tc_group_flush(const tc_group *group, int64_t timeout_ms);

/*
 At other members: receives the next message into `buffer`, which has `capacity` bytes, and
 writes its length. TC_CLOSED, if the root has closed the group and all messages have been
 received. What follows the message in the buffer may have changed.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join; `buffer` is valid for writing
 `capacity` bytes; `length` is valid for writing a number.
 */
tc_result tc_group_receive(const tc_group *group,
                           void *buffer,
                           size_t capacity,
                           int64_t timeout_ms,
                           size_t *length);

/*
 At other members: receives the next bytes of a message into `buffer`, which has `capacity`
 bytes, and writes the length of the whole message and how many bytes were received. For programs
 that cannot wait as long as tc_group_receive may, whose timeout is for the beginning of a
 message, or that do not keep the whole message in memory. It receives whole packets:
 TC_BUFFER_TOO_SMALL, if the buffer has no room for the next one; 65536 bytes, or those that the
 message lacks, are sufficient. TC_CLOSED, if the root has closed the group and all messages have
 been received. What follows the received bytes in the buffer may have changed.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join; `buffer` is valid for writing
 `capacity` bytes, or NULL if that is 0; `message_bytes` and `received` are valid for writing a
 number.
 */
tc_result tc_group_receive_part(const tc_group *group,
                                void *buffer,
                                size_t capacity,
                                int64_t timeout_ms,
                                uint64_t *message_bytes,
                                size_t *received);

/*
 At other members: waits for a message, and shows its next bytes where the node has stored them,
 without a copy: writes where they are, how many there are, and the length of the whole message.
 They stay there until the next call of this thread or another one that receives from the group,
 or that closes or frees it. tc_group_consume receives them; without that the next call begins
 with the same bytes. They are at least one packet of the message, and all of a message that
 waits in consecutive slots. TC_CLOSED, if the root has closed the group and all
 messages have been received.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join; `bytes` is valid for writing
 a pointer; `length` and `message_bytes` are valid for writing a number.
 */
tc_result tc_group_peek(const tc_group *group,
                        int64_t timeout_ms,
                        const void **bytes,
                        size_t *length,
                        uint64_t *message_bytes);

/*
 At other members: receives the bytes that tc_group_peek has shown last. Without them it does
 nothing. TC_GROUP_ENDED if a daemon has taken the memory back meanwhile: what was read there may
 be zeros.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join.
 */
tc_result tc_group_consume(const tc_group *group);

/*
 A file descriptor that becomes readable when the group's state changes, or -1. Then read its
 eight bytes, and receive with a timeout of 0 until TC_TIMED_OUT. The group owns it.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join.
 */
int tc_group_descriptor(const tc_group *group);

/*
 At the root: waits until every member has all messages, and closes the group: TC_MEMBERS_LOST,
 if some have been lost. At another member: leaves the group. The group is freed, whatever the
 result is.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join, and is not used afterwards.
 */
tc_result tc_group_close(tc_group *group, int64_t timeout_ms);

/*
 Frees a group. If it is not closed, the root aborts it, and another member leaves it. NULL is
 allowed.

 # Safety
 `group` is NULL, or comes from tc_group_new, tc_group_listen or tc_group_join, and is not used
 afterwards.
 */
void tc_group_free(tc_group *group);

/*
 Waits until all members are in this call, which each makes after the same message. After
 TC_TIMED_OUT it can be made again.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join.
 */
tc_result tc_group_barrier(const tc_group *group, int64_t timeout_ms);

/*
 Replaces `count` values, at all members, by those that the operation makes of the values of all
 members. All members make this call after the same message, with the same operation, type and
 number of values; at most 504 bytes. The result is the same at all members, bit by bit.
 `element` is a tc_element, and `operation` a tc_operation. `*processes` is the number of
 processes that have a part in the result, at most 65,535: without those that were lost before.
 After TC_TIMED_OUT the same call can be made again.

 # Safety
 `group` comes from tc_group_new, tc_group_listen or tc_group_join; `values` is valid for reading
 and writing `count` values of the type; `processes` is valid for writing, or NULL.
 */
tc_result tc_group_all_reduce(const tc_group *group,
                              void *values,
                              size_t count,
                              int element,
                              int operation,
                              int64_t timeout_ms,
                              uint32_t *processes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TREECAST_H */
