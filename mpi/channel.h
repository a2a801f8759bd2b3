/* A group whose messages may belong to several communicators.
 *
 * As long as only the communicator that has made the group sends, a message has its data and
 * nothing else. A message of no bytes, which no broadcast has, precedes the first one of another
 * communicator. From then on each message begins with the number of its communicator. A receiver
 * copies its first packet once more, and the root its first packets; all others still go straight
 * from and to the buffers of the program.
 *
 * Order. MPI requires that all ranks start the broadcasts of one communicator in the same order,
 * and those of one root are carried out in that order (queues.h). It does not order the
 * broadcasts of two communicators: with two threads, or nonblocking broadcasts, a member may
 * start them in a different order than the root. All members get the messages in the root's
 * order, and a member keeps a message in memory if it comes before the one that the member waits
 * for. So a member reaches its own message whatever the root sent before, and needs no other
 * call of the program for that.
 *
 * At the root a broadcast waits until that of another communicator has been sent. It is sent as
 * soon as each member is in a broadcast of any communicator of the group, since the member then
 * takes the messages of all. The broadcast that waits is such a broadcast itself. So the root
 * waits for nothing but that all ranks start the broadcast that it is in, as MPI allows: any
 * broadcast may synchronize the ranks. */

#ifndef TREECAST_MPI_CHANNEL_H
#define TREECAST_MPI_CHANNEL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <treecast.h>

/* A message that was received before its communicator has asked for it. */
struct kept_message;

/* The end of a channel for one communicator. */
struct port {
    /* The number of the communicator; 0: it has made the group. */
    uint32_t number;
    /* Messages that were received for it, in order. The last one may be incomplete. */
    struct kept_message *first, *last;
    /* Whether a message for it was dropped, because there was no memory to keep it. */
    bool has_lost_message;
    /* Whether a thread waits for its next message: other threads leave it to that one. */
    bool is_waited_for;
    /* At the root: whether a broadcast waits for the end of another communicator's. */
    bool wants_turn;
    struct port *next;
};

/* The first bytes of a message: its communicator, the length of its data, and which part of the
 * memory is data that was not taken. */
struct beginning {
    uint32_t number;
    uint64_t message_bytes;
    size_t taken, filled;
};

struct channel {
    /* NULL: not made, or it has ended. */
    tc_group *group;
    /* Protects the rest, which changes only while no thread is in a function of the group, or in
     * that thread. */
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool is_busy;
    struct port *ports;
    /* Whose message has been received in part, or whose broadcast has been sent in part. */
    struct port *owner;
    /* Whether messages begin with numbers; and then the bytes of a packet. */
    bool is_numbered;
    size_t packet_bytes;
    /* The bytes of data that the owner's message lacks. */
    uint64_t rest;
    /* The beginning of a message, in `packet`, that no communicator has taken yet. */
    struct beginning beginning;
    /* The message that is being kept; NULL: none. All bytes that are kept. */
    struct kept_message *keeping;
    uint64_t kept_bytes;
    /* The bytes that are still to be dropped of a message. */
    uint64_t unwanted_bytes;
    /* Since when a message was left to its communicator, because too many bytes are kept; 0: it
     * was not. */
    int64_t left_ms;
    /* At the root: how many ports want a turn, and when the last broadcast ended. */
    int wanting;
    int64_t released_ms;
    uint32_t last_number;
    /* Memory for a packet of the longest. */
    char *packet;
};

void begin_channel(struct channel *channel);

/* Frees what it has. The group is closed, and it has no ports. */
void end_channel(struct channel *channel);

/* Enters and removes a communicator. What was received for it is dropped. */
void add_port(struct channel *channel, struct port *port, uint32_t number);
void remove_port(struct channel *channel, struct port *port);

bool is_open(struct channel *channel);

/* Frees the group at once, also for other communicators, whose next calls fail. */
void abort_channel(struct channel *channel);

/* As tc_group_send_part(). `ends` says that the broadcast ends with these bytes: then the result
 * is also TC_MEMBERS_LOST, and another communicator may send. */
tc_result send_to_channel(struct channel *channel, struct port *port, const void *bytes, size_t length, uint64_t message_bytes, bool ends,
                          int wait_ms, size_t *sent);

/* As tc_group_receive_part(), for messages of this communicator alone. */
tc_result receive_from_channel(struct channel *channel, struct port *port, void *buffer, size_t capacity, int wait_ms,
                               uint64_t *message_bytes, size_t *received);

/* Whether messages of other communicators may lie in front of this one's next message, or another
 * thread receives. */
bool is_held_up(struct channel *channel, const struct port *port);

/* Whether this thread waits for the next messages of a port until it says otherwise. */
void set_waited_for(struct channel *channel, struct port *port, bool is_waited_for);

/* A receiver does not take the rest of a message, which is dropped. */
void abandon_message(struct channel *channel, struct port *port);

/* The error of this thread's last call that has failed. */
const char *channel_error(void);

#endif
