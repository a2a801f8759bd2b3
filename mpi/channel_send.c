/* The root's side of a channel: the broadcasts of its communicators take turns, each from the first
 * byte to the last, and begin with a number where more than one communicator sends. */

#include "channel_use.h"

#include <string.h>

#include "clock.h"
#include "packing.h"

/* For how long after a broadcast its communicator lets others go first, if any wait. It is longer
 * than the pauses of the thread that carries on with nonblocking broadcasts (queues.c), so that its
 * broadcasts get a turn too. */
enum { TURN_MS = 8 };

static void set_wants_turn(struct channel *channel, struct port *port, bool wants_turn)
{
    channel->wanting += wants_turn - port->wants_turn;
    port->wants_turn = wants_turn;
}

/* Whether a communicator that has just sent lets others go first. A mutex alone would give it to
 * the same thread again and again. */
static bool lets_others_go(const struct channel *channel, const struct port *port)
{
    return channel->wanting > port->wants_turn && channel->last_number == port->number && !channel->owner &&
           now_ms() - channel->released_ms < TURN_MS;
}

static bool can_send(const struct channel *channel, const struct port *port)
{
    return !channel->is_busy && (!channel->owner || channel->owner == port) && !lets_others_go(channel, port);
}

/* Waits until this communicator may send, and the lock is not held. */
static tc_result take_turn(struct channel *channel, struct port *port, int wait_ms)
{
    bool has_time = wait_ms > 0;
    int64_t until_ms = 0;
    tc_result result = TC_OK;

    pthread_mutex_lock(&channel->lock);
    while (channel->group && !can_send(channel, port) && has_time) {
        set_wants_turn(channel, port, true);
        if (!until_ms)
            until_ms = now_ms() + wait_ms;
        has_time = wait_for_change(channel, until_ms);
    }
    if (!channel->group) {
        result = fail_in_channel("the groups have ended, because a broadcast could not be sent as a whole");
    } else if (!can_send(channel, port)) {
        set_wants_turn(channel, port, true);
        result = TC_TIMED_OUT;
    } else {
        set_wants_turn(channel, port, false);
        channel->owner = port;
        channel->is_busy = true;
    }
    pthread_mutex_unlock(&channel->lock);
    return result;
}

/* Sends the first packets of a message with a number. To copy them takes less time than another
 * call. */
static tc_result send_beginning(struct channel *channel, uint32_t number, const void *bytes, size_t length, uint64_t message_bytes,
                                int wait_ms, size_t *sent)
{
    size_t data_max = PACKET_BYTES_MAX / channel->packet_bytes * channel->packet_bytes - NUMBER_BYTES;
    size_t data = length < data_max ? length : data_max;
    tc_result result;

    memcpy(channel->packet, &number, NUMBER_BYTES);
    memcpy(channel->packet + NUMBER_BYTES, bytes, data);
    result = treecast.group_send_part(channel->group, channel->packet, NUMBER_BYTES + data, NUMBER_BYTES + message_bytes, wait_ms, sent);
    if (result == TC_OK)
        *sent -= *sent ? NUMBER_BYTES : 0;
    return result;
}

/* Sends the next bytes as this communicator, which has the turn. */
static tc_result send_part(struct channel *channel, uint32_t number, const void *bytes, size_t length, uint64_t message_bytes, int wait_ms,
                           size_t *sent)
{
    size_t number_bytes = channel->is_numbered ? NUMBER_BYTES : 0;
    tc_result result = TC_OK;

    if (number && !channel->is_numbered) {
        if (!has_packet_memory(channel))
            return fail_in_channel("no memory for a packet");
        result = treecast.group_send_part(channel->group, NULL, 0, 0, wait_ms, sent);
        if (result == TC_OK)
            result = begin_numbers(channel);
    }
    if (result != TC_OK)
        return result;
    if (channel->is_numbered && !channel->rest)
        result = send_beginning(channel, number, bytes, length, message_bytes, wait_ms, sent);
    else
        result = treecast.group_send_part(channel->group, bytes, length, message_bytes + number_bytes, wait_ms, sent);
    if (result == TC_OK && *sent)
        channel->rest = (channel->rest ? channel->rest : message_bytes) - *sent;
    return result;
}

tc_result send_to_channel(struct channel *channel, struct port *port, const void *bytes, size_t length, uint64_t message_bytes, bool ends,
                          int wait_ms, size_t *sent)
{
    tc_result result;

    forget_channel_error();
    result = take_turn(channel, port, wait_ms);
    if (result != TC_OK)
        return result;
    result = send_part(channel, port->number, bytes, length, message_bytes, wait_ms, sent);
    ends &= result == TC_OK && *sent == length;
    if (ends)
        result = treecast.group_check(channel->group);
    pthread_mutex_lock(&channel->lock);
    if (ends || (result != TC_OK && result != TC_TIMED_OUT)) {
        channel->owner = NULL;
        channel->last_number = port->number;
        if (channel->wanting)
            channel->released_ms = now_ms();
    }
    leave_group(channel);
    pthread_mutex_unlock(&channel->lock);
    return result;
}
