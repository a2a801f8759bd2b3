#include "transfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "datatype.h"
#include "groups.h"
#include "treecast_library.h"

/* The longest message of Treecast. A longer broadcast is split into several messages. */
#define MESSAGE_BYTES_MAX (1ull << 32)

/* The buffer into which data that is not contiguous is packed. One element that is longer gets a
 * longer buffer. */
#define PACKED_BYTES (256 << 10)

/* If a message lies in another group of the root for this long while this rank waits, the rank has
 * passed a different byte count than the root. Otherwise the message that this rank waits for
 * would have come first: the root sent it first, and lost packets are retransmitted within this
 * time. */
enum { OTHER_GROUP_MS = 2000 };

static void begin_message(struct stream *stream)
{
    stream->message_bytes = stream->rest < MESSAGE_BYTES_MAX ? stream->rest : MESSAGE_BYTES_MAX;
    stream->message_rest = stream->message_bytes;
}

static void advance(struct stream *stream, size_t bytes)
{
    stream->next += bytes;
    stream->room -= bytes;
    stream->rest -= bytes;
    stream->message_rest -= bytes;
    if (!stream->message_rest)
        begin_message(stream);
}

/* The part of the next bytes that belongs to the current message. */
static size_t of_message(const struct stream *stream)
{
    return stream->room < stream->message_rest ? stream->room : (size_t)stream->message_rest;
}

struct stream begin_stream(struct communicator *communicator, struct root_groups *groups, uint64_t all, char *bytes)
{
    struct stream stream = {
        .communicator = communicator, .groups = groups, .kind = kind_of(all), .rest = all, .next = bytes, .room = all};

    begin_message(&stream);
    return stream;
}

static struct channel *channel_of(const struct stream *stream, enum kind kind)
{
    return &stream->groups->shared->channels[kind];
}

static struct port *port_of(const struct stream *stream, enum kind kind)
{
    return &stream->groups->ports[kind];
}

bool has_groups(const struct stream *stream)
{
    return is_open(channel_of(stream, stream->kind));
}

/* Ends with the last error of Treecast, which is this thread's. */
static enum step fail(struct stream *stream)
{
    snprintf(stream->failure, sizeof stream->failure, "%s", channel_error());
    return ENDED;
}

static pthread_once_t class_once = PTHREAD_ONCE_INIT;
static int error_class;

/* An error class of our own, because MPICH adds no text to error codes of predefined classes. */
static void add_class(void)
{
    mpi.Add_error_class(&error_class);
}

int error_of_call(struct communicator *communicator, const char *failure)
{
    char text[MPI_MAX_ERROR_STRING];
    int error;

    pthread_once(&class_once, add_class);
    if (mpi.Add_error_code(error_class, &error) != MPI_SUCCESS)
        error = MPI_ERR_OTHER;
    snprintf(text, sizeof text, "Treecast: %s", failure);
    mpi.Add_error_string(error, text);
    snprintf(communicator->report.why, sizeof communicator->report.why, "%s", failure);
    return error;
}

int error_by(struct communicator *communicator, struct root_groups *groups, const char *failure)
{
    if (groups->error == MPI_SUCCESS)
        groups->error = error_of_call(communicator, failure);
    return groups->error;
}

/* The address of a rank's node, which ends at a comma or with the text. */
static const char *address_of(const struct communicator *communicator, int rank, int *length)
{
    const char *address = communicator->members;

    while (rank-- > 0)
        address += strcspn(address, ",") + 1;
    *length = (int)strcspn(address, ",");
    return address;
}

/* As error_by() for an error of Treecast, which names other members but not the root. */
static int error_of_group(struct communicator *communicator, struct root_groups *groups, const char *failure)
{
    char text[300];
    int length;
    const char *address = address_of(communicator, groups->root, &length);

    if (groups->root == communicator->rank)
        return error_by(communicator, groups, failure);
    snprintf(text, sizeof text, "root %d at %.*s: %s", groups->root, length, address, failure);
    return error_by(communicator, groups, text);
}

int error_of(const struct stream *stream)
{
    if (*stream->failure)
        return error_of_group(stream->communicator, stream->groups, stream->failure);
    return stream->error;
}

/* Sends whole packets. Less than a packet stays, unless it is the end of the broadcast. */
enum step send_some(struct stream *stream, int wait_ms)
{
    size_t sent = 0;

    if (stream->room) {
        switch (send_to_channel(channel_of(stream, stream->kind), port_of(stream, stream->kind), stream->next, of_message(stream),
                                stream->message_bytes, of_message(stream) == stream->rest, wait_ms, &sent)) {
        case TC_OK:
            break;
        case TC_TIMED_OUT:
            return WAITS;
        default:
            return fail(stream);
        }
    }
    advance(stream, sent);
    return sent && stream->room ? MOVED : ENDED;
}

static enum step drop_some(struct stream *stream, int wait_ms)
{
    char *nowhere = malloc(PACKET_BYTES_MAX);
    tc_result result = TC_ENDED;
    size_t received = 0;

    if (nowhere)
        result = receive_from_channel(channel_of(stream, stream->dropped_kind), port_of(stream, stream->dropped_kind), nowhere,
                                      PACKET_BYTES_MAX, wait_ms, &stream->dropped_bytes, &received);
    else
        stream->error = MPI_ERR_NO_MEM;
    free(nowhere);
    if (result == TC_TIMED_OUT)
        return WAITS;
    stream->dropped += received;
    return result == TC_OK && stream->dropped < stream->dropped_bytes ? MOVED : ENDED;
}

/* Goes on by receiving and dropping the rest of a message of unexpected length, UINT64_MAX if it
 * is unknown yet, of which `received` bytes have been received. */
static enum step drop_message(struct stream *stream, enum kind kind, uint64_t message_bytes, size_t received)
{
    stream->error = MPI_ERR_TRUNCATE;
    stream->drops = true;
    stream->dropped_kind = kind;
    stream->dropped_bytes = message_bytes;
    stream->dropped = received;
    return received < message_bytes ? MOVED : ENDED;
}

static bool has_message(const struct stream *stream, enum kind kind)
{
    uint64_t message_bytes;
    size_t received;

    return is_open(channel_of(stream, kind)) &&
           receive_from_channel(channel_of(stream, kind), port_of(stream, kind), NULL, 0, 0, &message_bytes, &received) ==
               TC_BUFFER_TOO_SMALL;
}

/* Another group of the root that has a message; KINDS: none has. */
static enum kind find_message(const struct stream *stream)
{
    int kind = 0;

    while (kind < KINDS && (kind == (int)stream->kind || !has_message(stream, (enum kind)kind)))
        kind++;
    return (enum kind)kind;
}

/* No data was received. The time with a message in another group counts from its arrival, except
 * while this process is stopped, or messages of other communicators come first. */
static enum step check_others(struct stream *stream)
{
    int64_t now = now_ms(), passed = now - stream->checked_ms;
    enum kind other = find_message(stream);

    if (other != KINDS && stream->other_ms > OTHER_GROUP_MS)
        return drop_message(stream, other, UINT64_MAX, 0);
    if (other == KINDS)
        stream->other_ms = 0;
    else if (!is_held_up(channel_of(stream, stream->kind), port_of(stream, stream->kind)))
        stream->other_ms += passed < WAIT_MAX_MS ? passed : WAIT_MAX_MS;
    stream->checked_ms = now;
    return WAITS;
}

/* The room must hold a packet or the rest. */
enum step receive_some(struct stream *stream, int wait_ms)
{
    uint64_t message_bytes = 0;
    size_t received = 0;

    if (stream->drops)
        return drop_some(stream, wait_ms);
    switch (receive_from_channel(channel_of(stream, stream->kind), port_of(stream, stream->kind), stream->next, of_message(stream), wait_ms,
                                 &message_bytes, &received)) {
    case TC_OK:
        if (message_bytes != stream->message_bytes)
            return drop_message(stream, stream->kind, message_bytes, received);
        stream->other_ms = 0;
        advance(stream, received);
        return stream->rest ? MOVED : ENDED;
    case TC_TIMED_OUT:
        return check_others(stream);
    case TC_BUFFER_TOO_SMALL:
        /* The message is longer than this rank expects. */
        return drop_message(stream, stream->kind, UINT64_MAX, 0);
    default:
        return fail(stream);
    }
}

/* Lets the MPI make progress, and waits longer the next time. */
static void wait_once(const struct communicator *communicator, int *wait_ms)
{
    make_progress(communicator);
    if (*wait_ms < WAIT_MAX_MS)
        *wait_ms *= 2;
}

/* Repeats a step until it does something. */
static enum step wait_for(struct stream *stream, enum step (*some)(struct stream *stream, int wait_ms))
{
    int wait_ms = WAIT_MIN_MS;
    enum step step;

    while ((step = some(stream, wait_ms)) == WAITS)
        wait_once(stream->communicator, &wait_ms);
    return step;
}

/* Repeats a step until the broadcast has ended, or the memory at `next` has been sent. */
static enum step finish(struct stream *stream, enum step (*some)(struct stream *stream, int wait_ms))
{
    enum step step;

    while ((step = wait_for(stream, some)) == MOVED)
        continue;
    return step;
}

static bool has_ended_wrong(const struct stream *stream)
{
    return stream->error != MPI_SUCCESS || *stream->failure;
}

void end_stream(struct stream *stream)
{
    if (!has_ended_wrong(stream))
        return;
    abandon_message(channel_of(stream, stream->kind), port_of(stream, stream->kind));
    if (stream->drops)
        abandon_message(channel_of(stream, stream->dropped_kind), port_of(stream, stream->dropped_kind));
}

static void send_packed(struct stream *stream, const struct buffer *buffer)
{
    struct packing packing;

    stream->error = begin_packing(&packing, buffer, stream->communicator->private, PACKED_BYTES);
    while (!has_ended_wrong(stream) && stream->rest) {
        stream->error = pack_some(&packing);
        if (stream->error != MPI_SUCCESS)
            break;
        stream->next = packing.bytes;
        stream->room = packing.filled;
        finish(stream, send_some);
        memmove(packing.bytes, stream->next, stream->room);
        packing.filled = stream->room;
    }
    free(packing.bytes);
    if (stream->error != MPI_SUCCESS && stream->groups->error == MPI_SUCCESS) {
        abort_groups(stream->groups);
        stream->groups->error = stream->error;
    }
}

/* Receives until the broadcast has ended, or some bytes are received. */
static void receive_next(struct stream *stream)
{
    size_t before = stream->room;
    enum step step;

    do
        step = wait_for(stream, receive_some);
    while (step == MOVED && stream->room == before);
}

static void receive_packed(struct stream *stream, const struct buffer *buffer)
{
    struct packing packing;
    int error = begin_packing(&packing, buffer, stream->communicator->private, PACKED_BYTES);

    if (error != MPI_SUCCESS) {
        drop_message(stream, stream->kind, UINT64_MAX, 0);
        finish(stream, receive_some);
        stream->error = error;
        return;
    }
    while (!has_ended_wrong(stream) && stream->rest) {
        size_t room = packing.capacity - packing.filled;

        stream->next = packing.bytes + packing.filled;
        stream->room = room;
        receive_next(stream);
        packing.filled += room - stream->room;
        if (stream->room < room && !has_ended_wrong(stream))
            stream->error = unpack_some(&packing);
    }
    free(packing.bytes);
}

int send_buffer(struct communicator *communicator, struct root_groups *groups, const struct buffer *buffer)
{
    struct stream stream = begin_stream(communicator, groups, buffer->bytes, buffer->address);

    if (groups->error != MPI_SUCCESS && !has_groups(&stream))
        return groups->error;
    if (is_dense(buffer->type))
        finish(&stream, send_some);
    else
        send_packed(&stream, buffer);
    return error_of(&stream);
}

int receive_buffer(struct communicator *communicator, struct root_groups *groups, const struct buffer *buffer)
{
    struct stream stream = begin_stream(communicator, groups, buffer->bytes, buffer->address);

    if (groups->error != MPI_SUCCESS && !has_groups(&stream))
        return groups->error;
    set_waited_for(channel_of(&stream, stream.kind), port_of(&stream, stream.kind), true);
    if (!is_dense(buffer->type))
        receive_packed(&stream, buffer);
    while (!has_ended_wrong(&stream) && stream.rest)
        receive_next(&stream);
    set_waited_for(channel_of(&stream, stream.kind), port_of(&stream, stream.kind), false);
    end_stream(&stream);
    return error_of(&stream);
}

/* How long the ranks that are left take to find out which ones are lost. */
enum { NAMING_MS = 2000 };

static bool has_part(const uint64_t *marks, int rank)
{
    return marks[rank / 64] >> rank % 64 & 1;
}

/* Names the ranks without a mark, as far as there is room. */
static void name_ranks(const struct communicator *communicator, const uint64_t *marks, char *text, size_t bytes)
{
    const char *address;
    size_t used = 0;
    int rank, length;

    for (rank = 0; rank < communicator->size; rank++) {
        if (has_part(marks, rank))
            continue;
        address = address_of(communicator, rank, &length);
        length = snprintf(text + used, bytes - used, "rank %d at %.*s is lost, ", rank, length, address);
        if (length < 0 || (size_t)length >= bytes - used)
            break;
        used += (size_t)length;
    }
    text[used] = '\0';
}

/* All ranks that are left learn in the same call that some have no part in its result. They combine
 * a bit of each. */
static void name_missing(const struct communicator *communicator, tc_group *group, char *text, size_t bytes)
{
    uint64_t marks[VALUES_BYTES_MAX / sizeof(uint64_t)] = {0};
    size_t words = ((size_t)communicator->size + 63) / 64;
    int64_t until = now_ms() + NAMING_MS;
    uint32_t ranks;
    tc_result result;

    *text = '\0';
    if (words > sizeof marks / sizeof *marks)
        return;
    marks[communicator->rank / 64] = UINT64_C(1) << communicator->rank % 64;
    while ((result = treecast.group_all_reduce(group, marks, words, TC_U64, TC_OR, WAIT_MIN_MS, &ranks)) == TC_TIMED_OUT && now_ms() < until)
        make_progress(communicator);
    if (result == TC_OK)
        name_ranks(communicator, marks, text, bytes);
}

int combine_values(struct communicator *communicator, struct root_groups *groups, void *values, size_t count, tc_element element,
                   tc_operation operation)
{
    tc_group *group = groups->values->channels[SHORT].group;
    uint32_t ranks = 0, size = (uint32_t)communicator->size;
    char failure[240], names[160];
    tc_result result;

    /* Ranks wait long in barriers, often for messages of the MPI that go on only here. */
    while ((result = treecast.group_all_reduce(group, values, count, (int)element, (int)operation, WAIT_MIN_MS, &ranks)) == TC_TIMED_OUT)
        make_progress(communicator);
    if (result == TC_OK && ranks != (size < UINT16_MAX ? size : UINT16_MAX)) {
        name_missing(communicator, group, names, sizeof names);
        snprintf(failure, sizeof failure, "%sonly %u of %d ranks have a part in the result", names, ranks, communicator->size);
        return error_by(communicator, groups, failure);
    }
    /* A rank may be lost after its part: the root knows which. */
    if (result == TC_OK)
        result = treecast.group_check(group);
    return result == TC_OK ? MPI_SUCCESS : error_of_group(communicator, groups, treecast.error_message());
}
