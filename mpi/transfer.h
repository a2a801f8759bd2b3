/* How the bytes of a broadcast go from the root's buffer to those of the others, and the values of
 * all ranks are combined. */

#ifndef TREECAST_MPI_TRANSFER_H
#define TREECAST_MPI_TRANSFER_H

#include <stdbool.h>

#include "communicator.h"
#include "packing.h"

/* How often a waiting rank lets its MPI make progress. The interval is short at first, because
 * another rank may wait for a message of this one. */
enum { WAIT_MIN_MS = 1, WAIT_MAX_MS = 8 };

/* A broadcast under way, as messages of up to 4 GiB: its state between calls. */
struct stream {
    struct communicator *communicator;
    struct root_groups *groups;
    /* The groups that carry this broadcast. */
    enum kind kind;
    /* Bytes still to be transferred, of the broadcast and of its current message; the length of
     * the current message. */
    uint64_t rest, message_rest, message_bytes;
    /* The memory that the next bytes are sent from or received into, and its length. */
    char *next;
    size_t room;
    /* Whether a message of unexpected length is received and dropped, and which groups have it. The
     * length of that message, and what has come of it. */
    bool drops;
    enum kind dropped_kind;
    uint64_t dropped_bytes, dropped;
    /* For how long another group of the root has had a message while this one had none, and when
     * that was last checked. */
    int64_t other_ms, checked_ms;
    /* How it has ended: an MPI error code, or Treecast's error message; empty: none. */
    int error;
    char failure[240];
};

/* What a step of a broadcast has done: transferred bytes, nothing yet, or it has ended. */
enum step { MOVED, WAITS, ENDED };

/* Sends or receives the next bytes, into or from `next`, and waits for at most `wait_ms`. They
 * call no function of the MPI. */
enum step send_some(struct stream *stream, int wait_ms);
enum step receive_some(struct stream *stream, int wait_ms);

/* Begins a broadcast whose group is made, and whose bytes are in one piece of memory at `bytes`. */
struct stream begin_stream(struct communicator *communicator, struct root_groups *groups, uint64_t all, char *bytes);

/* Whether the groups of a broadcast are there, or have ended. */
bool has_groups(const struct stream *stream);

/* Ends a broadcast, so that the next one can begin, also if this has failed. It calls no
 * function of the MPI. */
void end_stream(struct stream *stream);

/* The MPI error code of a broadcast that has ended. */
int error_of(const struct stream *stream);

/* Sends the buffer from the root, or receives it. Returns an MPI error code: MPI_ERR_TRUNCATE,
 * if the root has sent another number of bytes, and the groups' error, if members were lost or a
 * group has ended. */
int send_buffer(struct communicator *communicator, struct root_groups *groups, const struct buffer *buffer);
int receive_buffer(struct communicator *communicator, struct root_groups *groups, const struct buffer *buffer);

/* The most bytes that tc_group_all_reduce() takes. */
enum { VALUES_BYTES_MAX = 504 };

/* Replaces these values by those of all ranks, combined. All ranks have to be in this call. Returns
 * an MPI error code. If a rank is lost, this call fails at all ranks, or the next one. */
int combine_values(struct communicator *communicator, struct root_groups *groups, void *values, size_t count, tc_element element,
                   tc_operation operation);

/* The MPI error code of a call that has failed though its groups go on. */
int error_of_call(struct communicator *communicator, const char *failure);

/* Makes an MPI error code of an error, which every later broadcast of this root returns too. */
int error_by(struct communicator *communicator, struct root_groups *groups, const char *failure);

#endif
