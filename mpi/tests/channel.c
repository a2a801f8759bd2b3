/* Channels by themselves, with groups in the memory of this process: the root and the members
 * are threads, and each has threads of its own. Prints what does not hold, and then ends with
 * status 1. */

#define _GNU_SOURCE

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../channel.h"
#include "../treecast_library.h"

enum { PACKET_BYTES = 1000, SLOTS = 8, MEMBERS = 3, PORTS = 4, LENGTH_MAX = 3 << 20 };

struct packet {
    uint64_t message_bytes;
    size_t length;
    char bytes[PACKET_BYTES];
};

/* What the root of a group has sent, and how many packets each member has received. What the
 * root and the members lack of a message. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change;
static struct packet slots[SLOTS];
static uint64_t written, received[MEMBERS], message_rest, rest[MEMBERS];
/* All of a scenario. */
static uint64_t messages, bytes_sent;
static bool has_ended;

/* The root, or a member. */
struct tc_group {
    int member;
};

static struct tc_group groups[1 + MEMBERS] = {{-1}, {0}, {1}, {2}};
static struct channel channels[1 + MEMBERS];
static struct port ports[1 + MEMBERS][PORTS];

static void expect(bool is_right, const char *what)
{
    if (is_right)
        return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* Waits for a change once. Returns false if the time is over. */
static bool wait_once(int64_t timeout_ms)
{
    struct timespec until;

    if (!timeout_ms)
        return false;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += timeout_ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return pthread_cond_timedwait(&change, &lock, &until) == 0;
}

static bool is_full(void)
{
    int member;

    for (member = 0; member < MEMBERS; member++)
        if (written - received[member] == SLOTS)
            return true;
    return false;
}

static tc_result send_part(const tc_group *group, const void *part, size_t length, uint64_t message_bytes, int64_t timeout_ms,
                             size_t *sent)
{
    uint64_t own_rest, before;
    tc_result result;

    expect(group->member < 0, "a member sends");
    pthread_mutex_lock(&lock);
    before = written;
    while (is_full())
        if (!wait_once(timeout_ms))
            break;
    *sent = 0;
    own_rest = message_rest ? message_rest : message_bytes;
    messages += !message_rest && !is_full();
    while (!is_full()) {
        size_t bytes = own_rest < PACKET_BYTES ? (size_t)own_rest : PACKET_BYTES;
        struct packet *packet = &slots[written % SLOTS];

        if (bytes > length - *sent)
            break;
        *packet = (struct packet){.message_bytes = message_bytes, .length = bytes};
        if (bytes)
            memcpy(packet->bytes, (const char *)part + *sent, bytes);
        *sent += bytes;
        own_rest -= bytes;
        written++;
        if (!own_rest)
            break;
    }
    bytes_sent += *sent;
    if (*sent || (!message_bytes && !is_full()))
        message_rest = own_rest;
    /* A message of no bytes is a packet too. */
    result = written != before ? TC_OK : TC_TIMED_OUT;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
    return result;
}

static tc_result receive_part(const tc_group *group, void *buffer, size_t capacity, int64_t timeout_ms, uint64_t *message_bytes,
                                size_t *received_bytes)
{
    uint64_t *position = &received[group->member];
    tc_result result = TC_TIMED_OUT;
    bool is_last = false;

    pthread_mutex_lock(&lock);
    while (*position == written && !has_ended)
        if (!wait_once(timeout_ms))
            break;
    *received_bytes = 0;
    while (*position < written && !is_last) {
        const struct packet *packet = &slots[*position % SLOTS];
        if (packet->length > capacity - *received_bytes) {
            result = *received_bytes ? TC_OK : TC_BUFFER_TOO_SMALL;
            break;
        }
        if (!rest[group->member])
            rest[group->member] = packet->message_bytes;
        if (packet->length)
            memcpy((char *)buffer + *received_bytes, packet->bytes, packet->length);
        *received_bytes += packet->length;
        *message_bytes = packet->message_bytes;
        rest[group->member] -= packet->length;
        is_last = !rest[group->member];
        result = TC_OK;
        ++*position;
    }
    if (result == TC_TIMED_OUT && has_ended)
        result = TC_ENDED;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
    return result;
}

static tc_result packet_bytes_of(const tc_group *group, size_t *packet_bytes)
{
    (void)group;
    *packet_bytes = PACKET_BYTES;
    return TC_OK;
}

static tc_result check(const tc_group *group)
{
    (void)group;
    return TC_OK;
}

static void free_group(tc_group *group)
{
    pthread_mutex_lock(&lock);
    has_ended |= group->member < 0;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}

static const char *error_message(void)
{
    return "";
}

struct treecast_library treecast = {.error_message = error_message,
                                    .group_check = check,
                                    .group_free = free_group,
                                    .group_packet_bytes = packet_bytes_of,
                                    .group_receive_part = receive_part,
                                    .group_send_part = send_part};

struct scenario {
    const char *name;
    int ports, broadcasts, length_max;
    /* At the root, and at members: whether each communicator has a thread; else one thread does
     * one communicator after the other, the last one first. Whether they poll. */
    bool has_root_threads, has_member_threads, polls;
};

static const struct scenario scenarios[] = {
    {"one communicator", 1, 3000, 5000, false, false, false},
    {"one communicator of long messages", 1, 30, LENGTH_MAX, false, false, false},
    {"threads", PORTS, 3000, 5000, true, true, false},
    {"threads that poll", PORTS, 500, 5000, true, true, true},
    {"threads with long messages", PORTS, 10, LENGTH_MAX, true, true, false},
    {"one thread at the members", PORTS, 1000, 5000, true, false, false},
    {"one thread at the members, which polls", PORTS, 200, 5000, true, false, true},
    {"one thread at the members, and more than is kept", 2, 45, LENGTH_MAX, true, false, false},
};

static const struct scenario *scenario;

/* The length and the bytes of a broadcast are the same at all ranks. */
static size_t length_of(int port, int number)
{
    unsigned drawn = (unsigned)(port * 7919 + number) * 2654435761u;

    return 1 + (drawn >> 7) % (unsigned)(drawn % 4 ? scenario->length_max : 300);
}

static char byte_of(int port, int number, size_t i)
{
    return (char)(i * 7 + (size_t)port * 31 + (size_t)number * 13);
}

/* As the thread for nonblocking broadcasts does. */
static void sleep_if_polling(tc_result result)
{
    struct timespec span = {.tv_nsec = 200000};

    if (scenario->polls && result == TC_TIMED_OUT)
        nanosleep(&span, NULL);
}

static void send_one(struct channel *channel, struct port *port, char *bytes, size_t length)
{
    size_t done = 0;

    while (done < length) {
        size_t sent = 0;
        tc_result result = send_to_channel(channel, port, bytes + done, length - done, length, true, scenario->polls ? 0 : 2, &sent);

        expect(result == TC_OK || result == TC_TIMED_OUT, "a send fails");
        done += result == TC_OK ? sent : 0;
        sleep_if_polling(result);
    }
}

static void receive_one(struct channel *channel, struct port *port, char *bytes, size_t length)
{
    size_t done = 0;

    set_waited_for(channel, port, !scenario->polls);
    while (done < length) {
        uint64_t message_bytes;
        size_t part = 0;
        tc_result result =
            receive_from_channel(channel, port, bytes + done, length - done, scenario->polls ? 0 : 2, &message_bytes, &part);

        expect(result == TC_OK || result == TC_TIMED_OUT, "a receive fails");
        expect(result != TC_OK || message_bytes == length, "a message of another length");
        done += result == TC_OK ? part : 0;
        sleep_if_polling(result);
    }
    set_waited_for(channel, port, false);
}

static void broadcast_all(int rank, int port)
{
    char *bytes = malloc(LENGTH_MAX + 1);
    int number;
    size_t i;

    for (number = 0; number < scenario->broadcasts; number++) {
        size_t length = length_of(port, number);

        for (i = 0; i < length; i++)
            bytes[i] = rank ? 0x55 : byte_of(port, number, i);
        bytes[length] = 0x55;
        (rank ? receive_one : send_one)(&channels[rank], &ports[rank][port], bytes, length);
        for (i = 0; i < length; i++)
            expect(bytes[i] == byte_of(port, number, i), "another byte");
        expect(bytes[length] == 0x55, "a byte after the message");
    }
    free(bytes);
}

/* A number is that of a rank and a port. */
static void *run_port(void *number)
{
    broadcast_all((int)(intptr_t)number / PORTS, (int)(intptr_t)number % PORTS);
    return NULL;
}

static void *run_rank(void *number)
{
    int rank = (int)(intptr_t)number, port;
    pthread_t threads[PORTS];

    if (!(rank ? scenario->has_member_threads : scenario->has_root_threads)) {
        for (port = scenario->ports - 1; port >= 0; port--)
            broadcast_all(rank, port);
        return NULL;
    }
    for (port = 0; port < scenario->ports; port++)
        pthread_create(&threads[port], NULL, run_port, (void *)(intptr_t)(rank * PORTS + port));
    for (port = 0; port < scenario->ports; port++)
        pthread_join(threads[port], NULL);
    return NULL;
}

static void begin_ranks(void)
{
    int rank, port;

    written = messages = bytes_sent = message_rest = 0;
    has_ended = false;
    memset(received, 0, sizeof received);
    memset(rest, 0, sizeof rest);
    for (rank = 0; rank <= MEMBERS; rank++) {
        begin_channel(&channels[rank]);
        channels[rank].group = &groups[rank];
        for (port = 0; port < scenario->ports; port++)
            add_port(&channels[rank], &ports[rank][port], (uint32_t)port);
    }
}

static void end_ranks(void)
{
    int rank, port;

    for (rank = 0; rank <= MEMBERS; rank++) {
        for (port = 0; port < scenario->ports; port++)
            remove_port(&channels[rank], &ports[rank][port]);
        expect(!channels[rank].kept_bytes && !channels[rank].wanting, "something is left");
        end_channel(&channels[rank]);
    }
}

static uint64_t all_bytes(void)
{
    uint64_t bytes = 0;
    int number;

    for (number = 0; number < scenario->broadcasts; number++)
        bytes += length_of(0, number);
    return bytes;
}

static void run_scenario(void)
{
    pthread_t threads[1 + MEMBERS];
    int rank;

    begin_ranks();
    for (rank = 0; rank <= MEMBERS; rank++)
        pthread_create(&threads[rank], NULL, run_rank, (void *)(intptr_t)rank);
    for (rank = 0; rank <= MEMBERS; rank++)
        pthread_join(threads[rank], NULL);
    if (scenario->ports == 1)
        expect(messages == (uint64_t)scenario->broadcasts && bytes_sent == all_bytes(), "one communicator sends more than its data");
    end_ranks();
    printf("%s\n", scenario->name);
}

/* A member gives up a message in the middle, and a communicator is removed before its messages
 * are received. Then the root aborts. */
static void run_ends(void)
{
    static const struct scenario ends = {"ends", 2, 1, 5000, false, false, false};
    static char bytes[5000], expected[5000];
    uint64_t message_bytes;
    size_t part;

    scenario = &ends;
    begin_ranks();
    memset(expected, 1, sizeof expected);
    send_one(&channels[0], &ports[0][1], expected, 5000);
    expect(receive_from_channel(&channels[1], &ports[1][1], bytes, 2500, 2, &message_bytes, &part) == TC_OK && part < 5000, "no part");
    abandon_message(&channels[1], &ports[1][1]);
    receive_one(&channels[2], &ports[2][1], bytes, 5000);
    expect(receive_from_channel(&channels[3], &ports[3][0], bytes, 100, 2, &message_bytes, &part) == TC_TIMED_OUT, "not kept");
    expect(channels[3].kept_bytes == 5000, "not kept as a whole");
    remove_port(&channels[3], &ports[3][1]);
    expect(receive_from_channel(&channels[1], &ports[1][0], bytes, 100, 2, &message_bytes, &part) == TC_TIMED_OUT, "not dropped");
    send_one(&channels[0], &ports[0][0], expected, 300);
    receive_one(&channels[1], &ports[1][0], bytes, 300);
    receive_one(&channels[3], &ports[3][0], bytes, 300);
    expect(receive_from_channel(&channels[2], &ports[2][0], NULL, 0, 2, &message_bytes, &part) == TC_BUFFER_TOO_SMALL, "nothing there");
    receive_one(&channels[2], &ports[2][0], bytes, 300);
    expect(!memcmp(bytes, expected, 300), "another byte");
    abort_channel(&channels[0]);
    expect(send_to_channel(&channels[0], &ports[0][0], bytes, 10, 10, true, 2, &part) == TC_ENDED && !is_open(&channels[0]), "not aborted");
    expect(receive_from_channel(&channels[1], &ports[1][0], bytes, 10, 2, &message_bytes, &part) == TC_ENDED, "not ended");
    add_port(&channels[3], &ports[3][1], 1);
    end_ranks();
    printf("ends\n");
}

int main(void)
{
    pthread_condattr_t attributes;
    size_t i;

    setvbuf(stdout, NULL, _IOLBF, 0);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&change, &attributes);
    for (i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        scenario = &scenarios[i];
        run_scenario();
    }
    run_ends();
    return 0;
}
