/* The member's side of a channel: a message goes to its communicator's buffer, or is kept until
 * that asks for it. */

#include "channel_use.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "packing.h"

/* Once this much is kept, the next message of another communicator stays in the group until its
 * thread takes it, so that the root cannot run ahead of a slow thread without bounds. But it stays
 * for this long at most: the message that this thread waits for is behind it, and this thread may
 * be the one that takes the other one later. */
enum { KEPT_BYTES_MAX = 32 << 20, LEFT_MAX_MS = 100 };

struct kept_message {
    uint64_t bytes, filled, taken;
    struct kept_message *next;
    char data[];
};

/* What a call of receive_from_channel() is given and returns. */
struct part {
    void *buffer;
    size_t capacity;
    uint64_t message_bytes;
    size_t received;
    tc_result result;
    /* The next message was left to the thread that waits for it. */
    bool is_left;
};

static void free_kept(struct channel *channel, struct kept_message *kept)
{
    channel->kept_bytes -= kept->bytes;
    free(kept);
}

static size_t bytes_of_beginning(const struct channel *channel)
{
    return channel->beginning.filled - channel->beginning.taken;
}

bool is_held_up(struct channel *channel, const struct port *port)
{
    bool is;

    pthread_mutex_lock(&channel->lock);
    is = channel->is_busy || channel->keeping || channel->unwanted_bytes || channel->left_ms ||
         (bytes_of_beginning(channel) && channel->beginning.number != port->number) || (channel->owner && channel->owner != port);
    pthread_mutex_unlock(&channel->lock);
    return is;
}

void set_waited_for(struct channel *channel, struct port *port, bool is_waited_for)
{
    pthread_mutex_lock(&channel->lock);
    port->is_waited_for = is_waited_for;
    pthread_cond_broadcast(&channel->change);
    pthread_mutex_unlock(&channel->lock);
}

/* What a port lacks of a message is to be dropped. The lock is held. */
static void drop_rest(struct channel *channel, struct port *port)
{
    if (channel->owner != port)
        return;
    channel->owner = NULL;
    channel->unwanted_bytes = channel->rest - bytes_of_beginning(channel);
    channel->beginning = (struct beginning){0};
    channel->rest = 0;
}

void abandon_message(struct channel *channel, struct port *port)
{
    pthread_mutex_lock(&channel->lock);
    wait_while_busy(channel);
    drop_rest(channel, port);
    pthread_cond_broadcast(&channel->change);
    pthread_mutex_unlock(&channel->lock);
}

void drop_messages(struct channel *channel, struct port *port)
{
    struct kept_message *kept;

    drop_rest(channel, port);
    while ((kept = port->first)) {
        port->first = kept->next;
        if (kept == channel->keeping) {
            channel->unwanted_bytes = kept->bytes - kept->filled;
            channel->keeping = NULL;
        }
        free_kept(channel, kept);
    }
}

static struct port *find_port(const struct channel *channel, uint32_t number)
{
    struct port *port = channel->ports;

    while (port && port->number != number)
        port = port->next;
    return port;
}

/* Whether to leave the next message in the group for now. The lock is held. */
static bool is_to_be_left(struct channel *channel, const struct port *port)
{
    int64_t now;

    if (!port || channel->kept_bytes < KEPT_BYTES_MAX)
        return port && port->is_waited_for;
    now = now_ms();
    if (!channel->left_ms)
        channel->left_ms = now;
    return port->is_waited_for || now - channel->left_ms < LEFT_MAX_MS;
}

/* Keeps the message that has begun for its communicator. Without memory it is dropped, and the
 * communicator's broadcasts fail from then on. The lock is held. */
static void keep_message(struct channel *channel, struct port *port)
{
    const struct beginning *beginning = &channel->beginning;
    uint64_t bytes = beginning->message_bytes;
    size_t received = bytes_of_beginning(channel);
    struct kept_message *kept = port ? malloc(sizeof *kept + bytes) : NULL;

    if (kept) {
        *kept = (struct kept_message){.bytes = bytes, .filled = received};
        memcpy(kept->data, channel->packet + beginning->taken, received);
        channel->kept_bytes += bytes;
        if (port->first)
            port->last->next = kept;
        else
            port->first = kept;
        port->last = kept;
        channel->keeping = received < bytes ? kept : NULL;
    } else {
        if (port)
            port->has_lost_message = true;
        channel->unwanted_bytes = bytes - received;
    }
    channel->beginning = (struct beginning){0};
    channel->left_ms = 0;
}

/* The following functions receive from the group while no other thread does. They return false if
 * they have received something, but nothing for the caller's communicator. */

static bool ends_with(struct part *part, tc_result result)
{
    part->result = result;
    return true;
}

static bool go_on_keeping(struct channel *channel, struct part *part, int wait_ms)
{
    struct kept_message *kept = channel->keeping;
    uint64_t message_bytes;
    size_t received;
    tc_result result = treecast.group_receive_part(channel->group, kept->data + kept->filled, kept->bytes - kept->filled, wait_ms,
                                             &message_bytes, &received);

    if (result != TC_OK)
        return ends_with(part, result);
    kept->filled += received;
    if (kept->filled < kept->bytes)
        return false;
    /* The thread that takes it does not wait until this one has left the group. */
    pthread_mutex_lock(&channel->lock);
    channel->keeping = NULL;
    pthread_mutex_unlock(&channel->lock);
    return false;
}

/* Receives the next bytes of a message into the channel's own memory. */
static tc_result receive_packet(struct channel *channel, int wait_ms, uint64_t *message_bytes, size_t *received)
{
    size_t capacity = channel->is_numbered ? channel->packet_bytes : PACKET_BYTES_MAX;

    if (!has_packet_memory(channel))
        return fail_in_channel("no memory for a message of another communicator");
    return treecast.group_receive_part(channel->group, channel->packet, capacity, wait_ms, message_bytes, received);
}

static bool go_on_dropping(struct channel *channel, struct part *part, int wait_ms)
{
    uint64_t message_bytes;
    size_t received;
    tc_result result = receive_packet(channel, wait_ms, &message_bytes, &received);

    if (result != TC_OK)
        return ends_with(part, result);
    channel->unwanted_bytes -= received;
    return false;
}

/* Ends with the next bytes of the caller's message, in its buffer. */
static bool end_in_place(struct channel *channel, struct port *port, struct part *part, tc_result result)
{
    size_t number_bytes = channel->is_numbered ? NUMBER_BYTES : 0;

    if (result != TC_OK)
        return ends_with(part, result);
    part->message_bytes -= number_bytes;
    if (channel->owner != port)
        channel->rest = part->message_bytes;
    channel->rest -= part->received;
    channel->owner = channel->rest ? port : NULL;
    return ends_with(part, TC_OK);
}

/* Receives in the caller's buffer: the message is its own, or announces numbers. */
static bool receive_in_place(struct channel *channel, struct port *port, struct part *part, int wait_ms)
{
    tc_result result =
        treecast.group_receive_part(channel->group, part->buffer, part->capacity, wait_ms, &part->message_bytes, &part->received);

    if (result != TC_OK || part->message_bytes)
        return end_in_place(channel, port, part, result);
    result = begin_numbers(channel);
    return result != TC_OK && ends_with(part, result);
}

/* Receives the beginning of a message of whatever communicator. */
static bool receive_beginning(struct channel *channel, struct part *part, int wait_ms)
{
    struct beginning beginning = {0};
    tc_result result = receive_packet(channel, wait_ms, &beginning.message_bytes, &beginning.filled);

    if (result == TC_OK && !beginning.message_bytes) {
        result = begin_numbers(channel);
    } else if (result == TC_OK && channel->is_numbered) {
        memcpy(&beginning.number, channel->packet, NUMBER_BYTES);
        beginning.taken = NUMBER_BYTES;
        beginning.message_bytes -= NUMBER_BYTES;
    }
    if (result != TC_OK)
        return ends_with(part, result);
    pthread_mutex_lock(&channel->lock);
    channel->beginning = beginning;
    pthread_mutex_unlock(&channel->lock);
    return false;
}

/* Copies the received bytes of the caller's message into its buffer. */
static bool take_beginning(struct channel *channel, struct port *port, struct part *part)
{
    struct beginning *beginning = &channel->beginning;
    size_t bytes = bytes_of_beginning(channel);

    if (!part->capacity)
        return ends_with(part, TC_BUFFER_TOO_SMALL);
    if (channel->owner != port)
        channel->rest = beginning->message_bytes;
    part->message_bytes = beginning->message_bytes;
    part->received = part->capacity < bytes ? part->capacity : bytes;
    memcpy(part->buffer, channel->packet + beginning->taken, part->received);
    beginning->taken += part->received;
    channel->left_ms = 0;
    channel->rest -= part->received;
    channel->owner = channel->rest ? port : NULL;
    return ends_with(part, TC_OK);
}

/* Keeps a message of another communicator, or leaves it. */
static bool pass_beginning(struct channel *channel, struct part *part)
{
    struct port *port;

    pthread_mutex_lock(&channel->lock);
    port = find_port(channel, channel->beginning.number);
    part->is_left = is_to_be_left(channel, port);
    if (!part->is_left)
        keep_message(channel, port);
    pthread_mutex_unlock(&channel->lock);
    return part->is_left && ends_with(part, TC_TIMED_OUT);
}

static bool receive_next(struct channel *channel, struct port *port, struct part *part, int wait_ms)
{
    if (channel->keeping)
        return go_on_keeping(channel, part, wait_ms);
    if (channel->unwanted_bytes)
        return go_on_dropping(channel, part, wait_ms);
    if (bytes_of_beginning(channel))
        return channel->beginning.number == port->number ? take_beginning(channel, port, part) : pass_beginning(channel, part);
    if (channel->owner == port || (!channel->is_numbered && !port->number))
        return receive_in_place(channel, port, part, wait_ms);
    return receive_beginning(channel, part, wait_ms);
}

static bool has_kept(const struct channel *channel, const struct port *port)
{
    return port->first && port->first != channel->keeping;
}

/* Takes the next bytes of a message that was kept. */
static tc_result take_kept(struct channel *channel, struct port *port, struct part *part)
{
    struct kept_message *kept = port->first;
    uint64_t rest = kept->bytes - kept->taken;

    part->message_bytes = kept->bytes;
    part->received = part->capacity < rest ? part->capacity : (size_t)rest;
    if (!part->received)
        return TC_BUFFER_TOO_SMALL;
    memcpy(part->buffer, kept->data + kept->taken, part->received);
    kept->taken += part->received;
    if (kept->taken == kept->bytes) {
        port->first = kept->next;
        free_kept(channel, kept);
    }
    return TC_OK;
}

/* One turn of receiving. Returns false if another thread receives, or has received. */
static bool take_part(struct channel *channel, struct port *port, struct part *part, int wait_ms)
{
    bool has_ended;

    if (!channel->group)
        return ends_with(part, fail_in_channel("the groups have ended"));
    if (has_kept(channel, port))
        return ends_with(part, take_kept(channel, port, part));
    if (port->has_lost_message)
        return ends_with(part, fail_in_channel("no memory to keep a message until its broadcast"));
    if (channel->is_busy || (channel->owner && channel->owner != port)) {
        part->is_left = true;
        return false;
    }
    channel->is_busy = true;
    pthread_mutex_unlock(&channel->lock);
    part->is_left = false;
    has_ended = receive_next(channel, port, part, wait_ms);
    pthread_mutex_lock(&channel->lock);
    leave_group(channel);
    return has_ended && !part->is_left;
}

tc_result receive_from_channel(struct channel *channel, struct port *port, void *buffer, size_t capacity, int wait_ms,
                               uint64_t *message_bytes, size_t *received)
{
    struct part part = {.buffer = buffer, .capacity = capacity};
    int64_t until_ms = 0, rest_ms = wait_ms;

    forget_channel_error();
    pthread_mutex_lock(&channel->lock);
    /* The clock is read only where the first turn was not enough. */
    while (!take_part(channel, port, &part, (int)rest_ms)) {
        part.result = TC_TIMED_OUT;
        if (wait_ms && !until_ms)
            until_ms = now_ms() + wait_ms;
        if (part.is_left && !(wait_ms && wait_for_change(channel, until_ms)))
            break;
        rest_ms = wait_ms ? until_ms - now_ms() : 0;
        rest_ms = rest_ms > 0 ? rest_ms : 0;
    }
    pthread_mutex_unlock(&channel->lock);
    *message_bytes = part.message_bytes;
    *received = part.received;
    return part.result;
}
