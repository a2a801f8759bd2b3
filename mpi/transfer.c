#include "transfer.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datatype.h"

/* The longest message of Treecast. A longer broadcast is split into several messages. */
#define MESSAGE_BYTES_MAX (1ull << 32)

/* The buffer into which data that is not contiguous is packed. One element that is longer gets a
 * longer buffer. */
#define PACKED_BYTES (256 << 10)

/* The longest packet. */
#define PACKET_BYTES_MAX (64 << 10)

/* How often a waiting rank lets its MPI make progress. The interval is short at first, because
 * another rank may wait for a message of this one. */
enum { WAIT_MIN_MS = 1, WAIT_MAX_MS = 8 };

/* If a message lies in the root's other group for this long while this rank waits, the rank has
 * passed a different byte count than the root. Otherwise the message that this rank waits for
 * would have come first: the root sent it first, and lost packets are retransmitted within this
 * time. */
enum { OTHER_GROUP_MS = 2000 };

/* A broadcast as messages of MESSAGE_BYTES_MAX bytes and a last one with the rest. */
struct stream {
    struct communicator *communicator;
    struct root_groups *groups;
    /* The group that carries this broadcast, and whether it is the one for long messages. */
    tc_group *group;
    bool is_for_long;
    /* Bytes still to be transferred, of the broadcast and of its current message; the length of
     * the current message. */
    uint64_t rest, message_rest, message_bytes;
};

static void begin_message(struct stream *stream)
{
    stream->message_bytes = stream->rest < MESSAGE_BYTES_MAX ? stream->rest : MESSAGE_BYTES_MAX;
    stream->message_rest = stream->message_bytes;
}

static void advance(struct stream *stream, size_t bytes)
{
    stream->rest -= bytes;
    stream->message_rest -= bytes;
    if (!stream->message_rest)
        begin_message(stream);
}

/* The part of the next `bytes` bytes that belongs to the current message. */
static size_t of_message(const struct stream *stream, size_t bytes)
{
    return bytes < stream->message_rest ? bytes : (size_t)stream->message_rest;
}

static void wait_once(const struct stream *stream, int *wait_ms)
{
    make_progress(stream->communicator);
    if (*wait_ms < WAIT_MAX_MS)
        *wait_ms *= 2;
}

static pthread_once_t class_once = PTHREAD_ONCE_INIT;
static int error_class;

/* An error class of our own, because MPICH adds no text to error codes of predefined classes. */
static void add_class(void)
{
    mpi.Add_error_class(&error_class);
}

/* Turns the last error of Treecast into an MPI error code, which every later broadcast of this
 * root returns too. */
static int fail(struct communicator *communicator, struct root_groups *groups)
{
    char text[MPI_MAX_ERROR_STRING];

    if (groups->error != MPI_SUCCESS)
        return groups->error;
    pthread_once(&class_once, add_class);
    if (mpi.Add_error_code(error_class, &groups->error) != MPI_SUCCESS)
        groups->error = MPI_ERR_OTHER;
    snprintf(text, sizeof text, "Treecast: %s", tc_error_message());
    mpi.Add_error_string(groups->error, text);
    snprintf(communicator->report.why, sizeof communicator->report.why, "%s", tc_error_message());
    return groups->error;
}

/* Sends all whole packets of the data. `all_sent` is set to the number of bytes sent; the rest,
 * less than a packet, stays. */
static int send_bytes(struct stream *stream, const char *bytes, size_t length, size_t *all_sent)
{
    int wait_ms = WAIT_MIN_MS;
    size_t sent;

    for (*all_sent = 0; *all_sent < length; *all_sent += sent) {
        size_t part = of_message(stream, length - *all_sent);
        tc_result result =
            tc_group_send_part(stream->group, bytes + *all_sent, part, stream->message_bytes, wait_ms, &sent);

        if (result == TC_TIMED_OUT) {
            sent = 0;
            wait_once(stream, &wait_ms);
            continue;
        }
        if (result != TC_OK)
            return fail(stream->communicator, stream->groups);
        if (!sent)
            break;
        wait_ms = WAIT_MIN_MS;
        advance(stream, sent);
    }
    return MPI_SUCCESS;
}

/* Receives and drops the rest of a message of unexpected length, of which `received` bytes have
 * been received. */
static int discard_message(const struct stream *stream, const tc_group *group, uint64_t message_bytes, size_t received)
{
    char *nowhere = malloc(PACKET_BYTES_MAX);
    uint64_t all = received;
    int wait_ms = WAIT_MIN_MS;
    tc_result result = TC_OK;

    while (nowhere && all < message_bytes && (result == TC_OK || result == TC_TIMED_OUT)) {
        result = tc_group_receive_part(group, nowhere, PACKET_BYTES_MAX, wait_ms, &message_bytes, &received);
        if (result == TC_OK)
            all += received;
        else
            wait_once(stream, &wait_ms);
    }
    free(nowhere);
    return nowhere ? MPI_ERR_TRUNCATE : MPI_ERR_NO_MEM;
}

static tc_group *other_group(const struct stream *stream)
{
    return stream->groups->by_length[!stream->is_for_long];
}

/* The root has announced, by an empty message, that it makes its other group and sends this
 * broadcast by it. */
static int make_told_group(struct stream *stream, bool is_for_long)
{
    int error = make_group(stream->communicator, stream->groups, is_for_long);

    if (error != MPI_SUCCESS || stream->communicator->outcome != TAKEN)
        return error;
    /* This rank's byte count belongs to the first group: it differs from the root's. */
    if (is_for_long != stream->is_for_long)
        return discard_message(stream, other_group(stream), UINT64_MAX, 0);
    stream->group = stream->groups->by_length[is_for_long];
    return MPI_SUCCESS;
}

/* Whether the other group has a message. */
static bool has_other_message(const struct stream *stream)
{
    uint64_t message_bytes;
    size_t received;

    return other_group(stream) &&
           tc_group_receive_part(other_group(stream), NULL, 0, 0, &message_bytes, &received) == TC_BUFFER_TOO_SMALL;
}

/* Receives at most `capacity` bytes, which must hold a packet or the rest. `received` is set to
 * their number. */
static int receive_bytes(struct stream *stream, char *bytes, size_t capacity, size_t *received)
{
    int wait_ms = WAIT_MIN_MS, other_ms = 0;
    uint64_t message_bytes;

    for (;;) {
        *received = 0;
        switch (tc_group_receive_part(stream->group, bytes, of_message(stream, capacity), wait_ms, &message_bytes, received)) {
        case TC_OK:
            if (!message_bytes)
                return make_told_group(stream, !stream->is_for_long);
            if (message_bytes != stream->message_bytes)
                return discard_message(stream, stream->group, message_bytes, *received);
            advance(stream, *received);
            return MPI_SUCCESS;
        case TC_TIMED_OUT:
            /* The time counts from the arrival of the other message, and this group is looked at
             * first. */
            if (other_ms > OTHER_GROUP_MS)
                return discard_message(stream, other_group(stream), UINT64_MAX, 0);
            other_ms = has_other_message(stream) ? other_ms + wait_ms : 0;
            wait_once(stream, &wait_ms);
            break;
        case TC_BUFFER_TOO_SMALL:
            /* The message is longer than this rank expects. */
            return discard_message(stream, stream->group, UINT64_MAX, 0);
        default:
            return fail(stream->communicator, stream->groups);
        }
    }
}

/* At a member: waits for the root's announcement in the other group, and makes the group of this
 * broadcast. */
static int await_group(struct stream *stream)
{
    int wait_ms = WAIT_MIN_MS;
    uint64_t message_bytes;
    size_t received;

    for (;;) {
        switch (tc_group_receive_part(other_group(stream), NULL, 0, wait_ms, &message_bytes, &received)) {
        case TC_OK:
            return make_told_group(stream, stream->is_for_long);
        case TC_TIMED_OUT:
            wait_once(stream, &wait_ms);
            break;
        case TC_BUFFER_TOO_SMALL:
            /* The root sends its broadcast by the other group. */
            return discard_message(stream, other_group(stream), UINT64_MAX, 0);
        default:
            return fail(stream->communicator, stream->groups);
        }
    }
}

/* The state of packing or unpacking elements piece by piece. */
struct packing {
    const struct buffer *buffer;
    /* The data bytes of an element, and the distance from one element to the next. */
    MPI_Count size, extent;
    /* The index of the next element. */
    MPI_Count next;
    /* Packed bytes that are not sent or unpacked yet. */
    char *bytes;
    size_t capacity, filled;
};

static int begin_packing(struct packing *packing, const struct buffer *buffer)
{
    MPI_Count lower;

    *packing = (struct packing){.buffer = buffer};
    mpi.Type_get_extent_x(buffer->type, &lower, &packing->extent);
    packing->size = (MPI_Count)(buffer->bytes / (uint64_t)buffer->count);
    if (packing->size > INT_MAX)
        return MPI_ERR_COUNT;
    packing->capacity = (size_t)(packing->size > PACKED_BYTES ? packing->size : PACKED_BYTES) + PACKET_BYTES_MAX;
    packing->bytes = malloc(packing->capacity);
    return packing->bytes ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

static char *next_element(const struct packing *packing)
{
    return (char *)packing->buffer->address + packing->next * packing->extent;
}

static int min_int(MPI_Count one, MPI_Count other)
{
    MPI_Count min = one < other ? one : other;

    return min < INT_MAX ? (int)min : INT_MAX;
}

static int pack_some(struct packing *packing, const struct communicator *communicator)
{
    MPI_Count room = (MPI_Count)(packing->capacity - packing->filled);
    int elements = min_int(room / packing->size, packing->buffer->count - packing->next), end = 0;
    int error = mpi.Pack(next_element(packing), elements, packing->buffer->type, packing->bytes + packing->filled,
                         min_int(room, INT_MAX), &end, communicator->private);

    if (error == MPI_SUCCESS && end != elements * (int)packing->size)
        error = MPI_ERR_INTERN;
    packing->filled += (size_t)end;
    packing->next += elements;
    return error;
}

static int unpack_some(struct packing *packing, const struct communicator *communicator)
{
    int elements = min_int((MPI_Count)packing->filled / packing->size, packing->buffer->count - packing->next), end = 0;
    int bytes = elements * (int)packing->size;
    int error = mpi.Unpack(packing->bytes, bytes, &end, next_element(packing), elements, packing->buffer->type, communicator->private);

    packing->filled -= (size_t)bytes;
    packing->next += elements;
    memmove(packing->bytes, packing->bytes + bytes, packing->filled);
    return error;
}

static int send_packed(struct stream *stream, const struct buffer *buffer)
{
    struct packing packing;
    int error = begin_packing(&packing, buffer);
    size_t sent;

    while (error == MPI_SUCCESS && stream->rest) {
        error = pack_some(&packing, stream->communicator);
        if (error != MPI_SUCCESS)
            break;
        error = send_bytes(stream, packing.bytes, packing.filled, &sent);
        packing.filled -= sent;
        memmove(packing.bytes, packing.bytes + sent, packing.filled);
    }
    free(packing.bytes);
    if (error != MPI_SUCCESS && stream->groups->error == MPI_SUCCESS) {
        int kind;

        /* The members wait for the rest of the message. They learn that the groups have ended. */
        for (kind = 0; kind < 2; kind++) {
            tc_group_free(stream->groups->by_length[kind]);
            stream->groups->by_length[kind] = NULL;
        }
        stream->groups->error = error;
    }
    return error;
}

static int receive_packed(struct stream *stream, const struct buffer *buffer)
{
    struct packing packing;
    int error = begin_packing(&packing, buffer);
    size_t received;

    if (error != MPI_SUCCESS) {
        discard_message(stream, stream->group, UINT64_MAX, 0);
        return error;
    }
    while (error == MPI_SUCCESS && stream->rest) {
        error = receive_bytes(stream, packing.bytes + packing.filled, packing.capacity - packing.filled, &received);
        if (error != MPI_SUCCESS || !received)
            break;
        packing.filled += received;
        error = unpack_some(&packing, stream->communicator);
    }
    free(packing.bytes);
    return error;
}

/* At the root: announces, by an empty message in the other group, that it makes the group of
 * this broadcast. If a member is lost, nothing is announced, since that member could not take
 * part. */
static int announce_group(const struct stream *stream)
{
    int wait_ms = WAIT_MIN_MS;
    tc_result result;
    size_t sent;

    do {
        result = tc_group_check(other_group(stream));
        if (result == TC_OK)
            result = tc_group_send_part(other_group(stream), NULL, 0, 0, wait_ms, &sent);
        if (result == TC_TIMED_OUT)
            wait_once(stream, &wait_ms);
    } while (result == TC_TIMED_OUT);
    return result == TC_OK ? MPI_SUCCESS : fail(stream->communicator, stream->groups);
}

static struct stream begin_stream(struct communicator *communicator, struct root_groups *groups, const struct buffer *buffer)
{
    struct stream stream = {.communicator = communicator, .groups = groups, .is_for_long = is_long(buffer->bytes), .rest = buffer->bytes};

    stream.group = groups->by_length[stream.is_for_long];
    begin_message(&stream);
    return stream;
}

int send_buffer(struct communicator *communicator, struct root_groups *groups, const struct buffer *buffer)
{
    struct stream stream = begin_stream(communicator, groups, buffer);
    int error = MPI_SUCCESS;
    size_t sent;

    if (!stream.group && !other_group(&stream))
        return groups->error;
    if (!stream.group) {
        error = announce_group(&stream);
        if (error == MPI_SUCCESS)
            error = make_told_group(&stream, stream.is_for_long);
    }
    if (error != MPI_SUCCESS || communicator->outcome != TAKEN)
        return error;
    error = is_dense(buffer->type) ? send_bytes(&stream, buffer->address, buffer->bytes, &sent) : send_packed(&stream, buffer);
    if (error == MPI_SUCCESS && tc_group_check(stream.group) != TC_OK)
        error = fail(communicator, groups);
    return error;
}

int receive_buffer(struct communicator *communicator, struct root_groups *groups, const struct buffer *buffer)
{
    struct stream stream = begin_stream(communicator, groups, buffer);
    char *bytes = buffer->address;
    int error = MPI_SUCCESS;
    size_t received;

    if (!stream.group)
        error = await_group(&stream);
    if (error != MPI_SUCCESS || communicator->outcome != TAKEN)
        return error;
    if (!is_dense(buffer->type))
        return receive_packed(&stream, buffer);
    while (error == MPI_SUCCESS && stream.rest) {
        error = receive_bytes(&stream, bytes, stream.rest, &received);
        bytes += received;
        if (communicator->outcome != TAKEN)
            break;
    }
    return error;
}
