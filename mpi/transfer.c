#include "transfer.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datatype.h"

/* The longest message of Treecast: a longer broadcast is several. */
#define MESSAGE_BYTES_MAX (1ull << 32)

/* Data that is not contiguous is packed into a buffer of this many bytes, or of one element if that has more. */
#define PACKED_BYTES (256 << 10)

/* Room for any packet. */
#define PACKET_BYTES_MAX (64 << 10)

/* The intervals at which a rank that waits lets its MPI make progress: short at first, for a rank that waits for a message of this one. */
enum { WAIT_MIN_MS = 1, WAIT_MAX_MS = 8 };

/* A rank that has waited for this time while a message lay in the root's other group has passed a different byte count than the root:
 * what the root sends by one group before a message of the other arrives earlier, except for lost packets, which are retransmitted soon. */
enum { OTHER_GROUP_MS = 2000 };

/* The bytes of a broadcast: messages of MESSAGE_BYTES_MAX, and a last one of the rest. */
struct stream {
    struct communicator *communicator;
    struct root_groups *groups;
    /* The group of this broadcast, and which of the two it is. */
    tc_group *group;
    bool is_for_long;
    /* The bytes that the broadcast and its current message lack, and the length of that. */
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

/* How many of `bytes` bytes belong to the current message. */
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

/* A class of its own: MPICH adds no text to codes of other classes. */
static void add_class(void)
{
    mpi.Add_error_class(&error_class);
}

/* Returns an MPI error code for the last error of Treecast. Every later broadcast of this root returns it too. */
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

/* Sends bytes until less than a packet is left; `all_sent` is the number of bytes that were sent. */
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

/* Receives and drops the rest of a message whose length differs from the expected one; `received` bytes of it were received. */
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

/* The root has said, by an empty message, that it makes the other one of the two groups: that is the way of its broadcast. */
static int make_told_group(struct stream *stream, bool is_for_long)
{
    int error = make_group(stream->communicator, stream->groups, is_for_long);

    if (error != MPI_SUCCESS || stream->communicator->outcome != TAKEN)
        return error;
    /* This rank expects a number of bytes for the first one. */
    if (is_for_long != stream->is_for_long)
        return discard_message(stream, other_group(stream), UINT64_MAX, 0);
    stream->group = stream->groups->by_length[is_for_long];
    return MPI_SUCCESS;
}

/* Whether a message has come by the other group. */
static bool has_other_message(const struct stream *stream)
{
    uint64_t message_bytes;
    size_t received;

    return other_group(stream) &&
           tc_group_receive_part(other_group(stream), NULL, 0, 0, &message_bytes, &received) == TC_BUFFER_TOO_SMALL;
}

/* Receives at most `capacity` bytes, which is room for a packet or for the rest; says how many. */
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
            /* Counted from when the other message is there, and looked at after this group. */
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

/* At a member: makes the group of this broadcast, once the root says by the other one that it does. */
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
            /* The root sends its broadcast by this group. */
            return discard_message(stream, other_group(stream), UINT64_MAX, 0);
        default:
            return fail(stream->communicator, stream->groups);
        }
    }
}

/* Elements that are packed or unpacked piece by piece. */
struct packing {
    const struct buffer *buffer;
    /* The bytes of data of an element, and its distance to the next one. */
    MPI_Count size, extent;
    /* The next element. */
    MPI_Count next;
    /* The packed bytes that are not sent, or not unpacked. */
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

        /* The others wait for the rest: they learn that the groups have ended. */
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

/* At the root: says by the other group, with an empty message, that it makes the group of this broadcast. Not where a member is lost, which
 * would not come. */
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
