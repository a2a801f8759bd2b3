/* Treecast: one message to many receivers.
 *
 * Nodes and groups are opaque. A function that can fail answers with a tc_result and writes its outputs, which come last, only
 * if that is TC_OK; tc_error_message says more. Nodes and groups may be used by several threads. Times are in milliseconds; a
 * negative timeout waits for ever.
 *
 * This file is generated from crates/capi. */

#ifndef TREECAST_H
#define TREECAST_H

#include <stddef.h>
#include <stdint.h>

/*
 What came of a call.
 */
typedef enum {
  /*
   It is done.
   */
  TC_OK = 0,
  /*
   The root has closed the group, and everything has been received.
   */
  TC_CLOSED = 1,
  /*
   The time is over.
   */
  TC_TIMED_OUT = 2,
  /*
   The message is longer than the room for it. It can still be received.
   */
  TC_BUFFER_TOO_SMALL = 3,
  /*
   Members have been lost, which tc_error_message names; all others have everything.
   */
  TC_MEMBERS_LOST = 4,
  /*
   What was given makes no sense.
   */
  TC_INVALID_ARGUMENT = 5,
  /*
   The group is over in another way than by being closed.
   */
  TC_ENDED = 6,
  /*
   The system refuses something.
   */
  TC_SYSTEM_ERROR = 7,
} tc_result;

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
 What went wrong in this thread's last call that did not answer TC_OK. It stays until this thread's next such call.
 */
const char *tc_error_message(void);

/*
 Opens a node that listens at an address such as "192.0.2.1:7000"; port 0 lets the system choose one. `settings` are those of a
 node, such as "spin_us=20 peer_timeout_ms=400", or NULL.

 # Safety
 `bind` ends with a zero, and `settings` unless it is NULL; `node` is a place for a pointer.
 */
tc_result tc_node_new(const char *bind,
                      const char *settings,
                      tc_node **node);

/*
 Closes a node. It waits, for some seconds at most, until groups that are closed have said what others still need. Its groups
 have to be freed before. NULL is allowed.

 # Safety
 `node` is NULL, or comes from `tc_node_new` and is not used any more.
 */
void tc_node_free(tc_node *node);

/*
 Writes where the node listens, as text that ends with a zero, into `room` bytes at `address`; 64 are enough.

 # Safety
 `node` comes from `tc_node_new`; `address` has room for so many bytes.
 */
tc_result tc_node_address(const tc_node *node, char *address, size_t room);

/*
 Takes part in a group. `members` are the addresses of all members, as host:port, separated by commas, the same at every member.
 The root is the first, unless `settings` says otherwise. `settings` are NULL, or key=value separated by spaces, as "root=2 scheme=binomial
 offload=nic token=secret message_bytes=16384".

 # Safety
 `node` comes from `tc_node_new`; the texts end with zeroes; `group` is a place for a pointer.
 */
tc_result tc_group_new(const tc_node *node,
                       const char *members,
                       const char *settings,
                       tc_group **group);

/*
 Listens until all members have joined, and takes part in their group as its root. `listen` is the TCP address, such as
 "0.0.0.0:7000", at which the others call tc_group_join; `members` is their number, this node included. `settings` are as for
 tc_group_new, and hold for all members. TC_TIMED_OUT, if not all have joined; tc_error_message names them.

 # Safety
 `node` comes from `tc_node_new`; the texts end with zeroes; `group` is a place for a pointer.
 */
tc_result tc_group_listen(const tc_node *node,
                          const char *listen,
                          uint32_t members,
                          const char *settings,
                          int64_t timeout_ms,
                          tc_group **group);

/*
 Joins the group of a root that listens, or will listen before the timeout: `root` is its address, and `token` the token of
 its settings, or NULL. `member` is the number that this node requests; below 0, any. TC_TIMED_OUT, if the root or other members are
 missing; TC_INVALID_ARGUMENT, if the root rejects this node.

 # Safety
 `node` comes from `tc_node_new`; the texts end with zeroes; `group` is a place for a pointer.
 */
tc_result tc_group_join(const tc_node *node,
                        const char *root,
                        const char *token,
                        int64_t member,
                        int64_t timeout_ms,
                        tc_group **group);

/*
 Writes this member's number.

 # Safety
 `group` comes from `tc_group_new` or the like; `member` is a place for a number.
 */
tc_result tc_group_member(const tc_group *group, uint32_t *member);

/*
 Waits until every member has its place in the tree: TC_MEMBERS_LOST, if some are lost, which does not keep the others. TC_TIMED_OUT
 names who has not answered yet. Sending and receiving do not need it.

 # Safety
 `group` comes from `tc_group_new`.
 */
tc_result tc_group_wait_until_ready(const tc_group *group,
                                    int64_t timeout_ms);

/*
 At the root: sends a message to all other members. It answers when the message is on its way, and its bytes may be used for
 something else.

 # Safety
 `group` comes from `tc_group_new`; `message` has so many bytes, or is NULL where there are none.
 */
tc_result tc_group_send(const tc_group *group,
                        const void *message,
                        size_t length);

/*
 At the root: waits until every member that is not lost has all that has been sent.

 # Safety
 `group` comes from `tc_group_new`.
 */
tc_result tc_group_flush(const tc_group *group, int64_t timeout_ms);

/*
 At other members: receives the next message into `room` bytes at `buffer`, and writes how long it is. TC_CLOSED, if the root
 has closed the group and everything has been received.

 # Safety
 `group` comes from `tc_group_new`; `buffer` has room for so many bytes; `length` is a place for a number.
 */
tc_result tc_group_receive(const tc_group *group,
                           void *buffer,
                           size_t room,
                           int64_t timeout_ms,
                           size_t *length);

/*
 A file descriptor that becomes readable when there is something new to see, or -1. Whoever watches it reads its eight bytes,
 and then receives with a timeout of 0 until nothing is there. It belongs to the group.

 # Safety
 `group` comes from `tc_group_new`.
 */
int tc_group_descriptor(const tc_group *group);

/*
 Closes a group at its root, when every member has everything: TC_MEMBERS_LOST, if some have been lost. At another member: leaves it.
 The group is freed, whatever the answer is.

 # Safety
 `group` comes from `tc_group_new`, and is not used any more.
 */
tc_result tc_group_close(tc_group *group,
                         int64_t timeout_ms);

/*
 Frees a group. A root that has not closed it gives it up, and another member leaves it if it is not closed. NULL is allowed.

 # Safety
 `group` is NULL, or comes from `tc_group_new` and is not used any more.
 */
void tc_group_free(tc_group *group);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TREECAST_H */
