/* One process with a root and two members: listens, joins, sends, receives, closes, and makes each
 * error once. */

#define _GNU_SOURCE

#include "treecast.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

enum { MEMBERS = 3, TIMEOUT_MS = 20000 };

static void expect(tc_result found, tc_result expected, const char *what) {
    if (found != expected) {
        fprintf(stderr, "%s: %d and not %d: %s\n", what, (int)found, (int)expected, tc_error_message());
        exit(1);
    }
}

static void expect_message(const char *part) {
    if (strstr(tc_error_message(), part) == NULL) {
        fprintf(stderr, "the message is \"%s\", without \"%s\"\n", tc_error_message(), part);
        exit(1);
    }
}

static char root_address[64];

static int join(void *number) {
    tc_node *node;
    tc_group *group;
    uint32_t member;
    char buffer[8];
    size_t length;
    int64_t wanted = *(int64_t *)number;
    expect(tc_node_new("127.0.0.1:0", NULL, &node), TC_OK, "tc_node_new");
    expect(tc_group_join(node, root_address, "another token", wanted, TIMEOUT_MS, &group), TC_REFUSED, "another token");
    expect(tc_group_join(node, root_address, "secret", wanted, TIMEOUT_MS, &group), TC_OK, "tc_group_join");
    expect(tc_group_member(group, &member), TC_OK, "tc_group_member");
    assert((int64_t)member == (wanted < 0 ? 1 : wanted));
    expect(tc_group_receive(group, buffer, sizeof buffer, TIMEOUT_MS, &length), TC_OK, "tc_group_receive");
    assert(length == 5 && memcmp(buffer, "hello", 5) == 0);
    tc_group_free(group);
    tc_node_free(node);
    return 0;
}

/* The members find one another at the root. */
static void listen_and_join(void) {
    tc_node *node;
    tc_group *group;
    thrd_t others[MEMBERS - 1];
    int64_t wanted[MEMBERS - 1] = {-1, 2};
    char engine[8];
    /* A free port: that of a closed node. */
    expect(tc_node_new("127.0.0.1:0", NULL, &node), TC_OK, "tc_node_new");
    expect(tc_node_address(node, root_address, sizeof root_address), TC_OK, "tc_node_address");
    expect(tc_node_engine(node, engine, sizeof engine), TC_OK, "tc_node_engine");
    assert(!strcmp(engine, "user") || !strcmp(engine, "ebpf"));
    expect(tc_node_engine(node, engine, 4), TC_INVALID_ARGUMENT, "tc_node_engine without room");
    tc_node_free(node);

    expect(tc_node_new("0.0.0.0:0", "spin_us=20 peer_timeout_ms=400", &node), TC_OK, "tc_node_new");
    expect(tc_group_listen(node, root_address, MEMBERS, NULL, 1, &group), TC_TIMED_OUT, "missing members");
    expect_message("1 of 3 members have joined");
    expect(tc_group_join(node, root_address, NULL, -1, 1, &group), TC_TIMED_OUT, "no root");
    expect_message("cannot join the group");
    expect(tc_group_join(node, root_address, NULL, 1L << 32, 1, &group), TC_INVALID_ARGUMENT, "no number");
    expect(tc_group_listen(node, root_address, MEMBERS, "tcp_congestion=nonsense", 1, &group), TC_INVALID_ARGUMENT, "no algorithm");
    expect(tc_group_listen(node, "nowhere:port", MEMBERS, NULL, 1, &group), TC_INVALID_ARGUMENT, "no address");
    for (int other = 0; other < MEMBERS - 1; other++)
        assert(thrd_create(&others[other], join, &wanted[other]) == thrd_success);
    expect(tc_group_listen(node, root_address, MEMBERS, "token=secret tcp_congestion=reno", TIMEOUT_MS, &group), TC_OK, "tc_group_listen");
    expect(tc_group_wait_until_ready(group, TIMEOUT_MS), TC_OK, "tc_group_wait_until_ready");
    expect(tc_group_send(group, "hello", 5), TC_OK, "tc_group_send");
    for (int other = 0; other < MEMBERS - 1; other++) assert(thrd_join(others[other], NULL) == thrd_success);
    tc_group_free(group);
    tc_node_free(node);
}

/* A forked child cannot use its parent's groups, and what it frees stays the parent's. */
static void fork_with(tc_node *nodes[], tc_group *groups[]) {
    char buffer[8];
    size_t length;
    pid_t child = fork();
    if (child == 0) {
        expect(tc_group_send(groups[0], "child", 5), TC_INVALID_ARGUMENT, "tc_group_send of a child");
        expect_message("which was forked from it");
        expect(tc_group_receive(groups[1], buffer, sizeof buffer, 1, &length), TC_INVALID_ARGUMENT, "receive of a child");
        expect(tc_group_close(groups[0], 1), TC_INVALID_ARGUMENT, "close of a child");
        for (int member = 1; member < MEMBERS; member++) tc_group_free(groups[member]);
        for (int member = 0; member < MEMBERS; member++) tc_node_free(nodes[member]);
        _exit(0);
    }
    int status;
    assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    expect(tc_group_send(groups[0], "parent", 6), TC_OK, "tc_group_send of the parent");
    for (int member = 1; member < MEMBERS; member++) {
        expect(tc_group_receive(groups[member], buffer, sizeof buffer, TIMEOUT_MS, &length), TC_OK, "receive of the parent");
        assert(length == 6 && memcmp(buffer, "parent", 6) == 0);
    }
}

/* A message of more than 4 GiB is refused, and the group goes on. */
static void send_too_much(tc_group *group) {
    size_t length = ((size_t)1 << 32) + 1;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *message = mmap(NULL, length, PROT_READ, flags, -1, 0);
    assert(message != MAP_FAILED);
    expect(tc_group_send(group, message, length), TC_INVALID_ARGUMENT, "a message of more than 4 GiB");
    expect_message("the message has 4294967297 bytes, and a message has at most 4294967296");
    munmap(message, length);
}

/* A message goes in parts that are not packets, and comes in parts that are. */
static void send_and_receive_parts(tc_group *groups[], const char *message, size_t length, char *buffer) {
    size_t packet_bytes, sent, received, filled = 0;
    uint64_t message_bytes;
    expect(tc_group_packet_bytes(groups[0], &packet_bytes), TC_OK, "tc_group_packet_bytes");
    assert(packet_bytes > 1000);
    expect(tc_group_send_part(groups[0], message, packet_bytes - 1, length, TIMEOUT_MS, &sent), TC_OK, "less than a packet");
    assert(sent == 0);
    for (size_t from = 0; from < length; from += sent) {
        size_t part = length - from < 2 * packet_bytes + 1 ? length - from : 2 * packet_bytes + 1;
        expect(tc_group_send_part(groups[0], message + from, part, length, TIMEOUT_MS, &sent), TC_OK, "tc_group_send_part");
        assert(sent == (part == length - from ? part : 2 * packet_bytes));
    }
    expect(tc_group_send_part(groups[0], message, 2, 1, TIMEOUT_MS, &sent), TC_INVALID_ARGUMENT, "more than the message has");
    for (int member = 1; member < MEMBERS; member++) {
        expect(tc_group_receive_part(groups[member], buffer, packet_bytes - 1, TIMEOUT_MS, &message_bytes, &received),
               TC_BUFFER_TOO_SMALL, "less than a packet");
        for (filled = 0; filled < length; filled += received) {
            expect(tc_group_receive_part(groups[member], buffer + filled, 3 * packet_bytes, TIMEOUT_MS, &message_bytes, &received),
                   TC_OK, "tc_group_receive_part");
            assert(message_bytes == length && received > 0 && received <= 3 * packet_bytes);
        }
        assert(filled == length && memcmp(message, buffer, length) == 0);
        expect(tc_group_receive_part(groups[member], NULL, 0, 1, &message_bytes, &received), TC_TIMED_OUT, "nothing to receive");
        expect(tc_group_check(groups[member]), TC_OK, "tc_group_check at a member");
    }
    expect(tc_group_check(groups[0]), TC_OK, "tc_group_check");
}

/* Members read a message in place. What one of them has seen and not consumed comes again. */
static void peek(tc_group *groups[], const char *message, size_t length) {
    expect(tc_group_send(groups[0], message, length), TC_OK, "tc_group_send");
    for (int member = 1; member < MEMBERS; member++) {
        const void *bytes;
        size_t part, filled = 0;
        uint64_t message_bytes;
        expect(tc_group_peek(groups[member], TIMEOUT_MS, &bytes, &part, &message_bytes), TC_OK, "tc_group_peek");
        for (; filled < length; filled += part) {
            expect(tc_group_peek(groups[member], TIMEOUT_MS, &bytes, &part, &message_bytes), TC_OK, "tc_group_peek");
            assert(message_bytes == length && part > 0 && part <= length - filled);
            assert(memcmp(message + filled, bytes, part) == 0);
            expect(tc_group_consume(groups[member]), TC_OK, "tc_group_consume");
        }
        expect(tc_group_consume(groups[member]), TC_OK, "tc_group_consume of nothing");
        expect(tc_group_peek(groups[member], 1, &bytes, &part, &message_bytes), TC_TIMED_OUT, "nothing to see");
        expect(tc_group_peek(groups[member], 1, NULL, &part, &message_bytes), TC_INVALID_ARGUMENT, "no output");
    }
}

/* A member that has gone is named. */
static void lose_a_member(tc_node *nodes[], const char *members) {
    tc_group *groups[MEMBERS];
    for (int member = 0; member < MEMBERS; member++)
        expect(tc_group_new(nodes[member], members, "group=11 token=secret", &groups[member]), TC_OK, "tc_group_new");
    expect(tc_group_wait_until_ready(groups[0], TIMEOUT_MS), TC_OK, "tc_group_wait_until_ready");
    tc_group_free(groups[2]);
    tc_result result = TC_OK;
    for (int check = 0; result == TC_OK && check < TIMEOUT_MS; check++) {
        struct timespec pause = {0, 1000000};
        thrd_sleep(&pause, NULL);
        result = tc_group_check(groups[0]);
    }
    expect(result, TC_MEMBERS_LOST, "tc_group_check");
    expect_message("left the group");
    tc_group_free(groups[0]);
    tc_group_free(groups[1]);
}

/* A chain from member 1 over member 0 to member 2, in the file of a plan. */
static void carry_out(const char *file, tc_node *nodes[], const char *members) {
    tc_group *groups[MEMBERS];
    char settings[512], buffer[8];
    size_t length;
    snprintf(settings, sizeof settings, "plan=%s group=9 token=secret root=0", file);
    expect(tc_group_new(nodes[0], members, settings, &groups[0]), TC_INVALID_ARGUMENT, "another root");
    expect_message("set root=1");
    expect(tc_group_new(nodes[0], members, "plan=/no/plan", &groups[0]), TC_INVALID_ARGUMENT, "no file");
    expect_message("/no/plan: could not be read");
    snprintf(settings, sizeof settings, "plan=%s group=9 token=secret", file);
    for (int member = 0; member < MEMBERS; member++)
        expect(tc_group_new(nodes[member], members, settings, &groups[member]), TC_OK, "tc_group_new with a plan");
    expect(tc_group_send(groups[1], "hello", 5), TC_OK, "tc_group_send by the root of a plan");
    for (int member = 0; member < MEMBERS; member += 2) {
        expect(tc_group_receive(groups[member], buffer, sizeof buffer, TIMEOUT_MS, &length), TC_OK, "receive by a plan");
        assert(length == 5 && memcmp(buffer, "hello", 5) == 0);
    }
    for (int member = 0; member < MEMBERS; member++) tc_group_free(groups[member]);
}

static void write_file(const char *file, const char *text) {
    FILE *written = fopen(file, "w");
    assert(written != NULL && fputs(text, written) >= 0 && fclose(written) == 0);
}

/* The root makes the plan on the racks in a file. */
static void follow_racks(const char *path, tc_node *nodes[], const char *members) {
    tc_group *groups[MEMBERS];
    char file[256], settings[512], buffer[8];
    size_t length;
    snprintf(file, sizeof file, "%s.inventory", path);
    write_file(file, "127.0.0.1 rack1\n");
    expect(tc_group_new(nodes[0], members, "fabric=star:3", &groups[0]), TC_INVALID_ARGUMENT, "unknown hosts");
    expect_message("member 0: the fabric has no host '127.0.0.1': known are h0, h1, h2");
    snprintf(settings, sizeof settings, "fabric=%s group=10 token=secret", file);
    for (int member = 0; member < MEMBERS; member++)
        expect(tc_group_new(nodes[member], members, settings, &groups[member]), TC_OK, "tc_group_new with a fabric");
    expect(tc_group_send(groups[0], "hello", 5), TC_OK, "tc_group_send on a fabric");
    for (int member = 1; member < MEMBERS; member++) {
        expect(tc_group_receive(groups[member], buffer, sizeof buffer, TIMEOUT_MS, &length), TC_OK, "receive on a fabric");
        assert(length == 5 && memcmp(buffer, "hello", 5) == 0);
    }
    for (int member = 0; member < MEMBERS; member++) tc_group_free(groups[member]);
}

/* The root chooses the tree by the costs of the network in a file. */
static void follow_costs(const char *path, tc_node *nodes[], const char *members) {
    tc_group *groups[MEMBERS];
    char file[256], settings[512], expected[512], buffer[8];
    size_t length;
    snprintf(file, sizeof file, "%s.network.toml", path);
    snprintf(settings, sizeof settings, "network=%s group=12 token=secret", file);
    snprintf(expected, sizeof expected, "network: %s: could not be read: No such file or directory", file);
    remove(file);
    expect(tc_group_new(nodes[0], members, settings, &groups[0]), TC_INVALID_ARGUMENT, "no file of a network");
    expect_message(expected);
    write_file(file, "format = 'treecast-network-1'\n[way]\n");
    snprintf(expected, sizeof expected, "network: %s: line 2: ", file);
    expect(tc_group_new(nodes[0], members, settings, &groups[0]), TC_INVALID_ARGUMENT, "a malformed network");
    expect_message(expected);
    write_file(file, "format = 'treecast-network-1'\n"
                     "[[way]]\nengine = 'user'\noffload = 'nic'\ntransport = 'stream'\n");
    for (int member = 0; member < MEMBERS; member++)
        expect(tc_group_new(nodes[member], members, settings, &groups[member]), TC_OK, "tc_group_new with a network");
    expect(tc_group_send(groups[0], "hello", 5), TC_OK, "tc_group_send with a network");
    for (int member = 1; member < MEMBERS; member++) {
        expect(tc_group_receive(groups[member], buffer, sizeof buffer, TIMEOUT_MS, &length), TC_OK, "receive with a network");
        assert(length == 5 && memcmp(buffer, "hello", 5) == 0);
    }
    for (int member = 0; member < MEMBERS; member++) tc_group_free(groups[member]);
}

struct reducing {
    tc_group *group;
    int member;
    pthread_t thread;
};

static void *reduce(void *argument) {
    const struct reducing *reducing = argument;
    int32_t values[2] = {reducing->member, -reducing->member};
    double sum = 0.5;
    uint32_t processes = 0;

    expect(tc_group_all_reduce(reducing->group, values, 2, TC_I32, TC_MAX, TIMEOUT_MS, &processes), TC_OK, "tc_group_all_reduce");
    assert(values[0] == MEMBERS - 1 && values[1] == 0 && processes == MEMBERS);
    expect(tc_group_all_reduce(reducing->group, &sum, 1, TC_F64, TC_SUM, TIMEOUT_MS, NULL), TC_OK, "a sum");
    assert(sum == 0.5 * MEMBERS);
    expect(tc_group_barrier(reducing->group, TIMEOUT_MS), TC_OK, "tc_group_barrier");
    return NULL;
}

static void *wait_at_barrier(void *argument) {
    const struct reducing *reducing = argument;

    expect(tc_group_barrier(reducing->group, TIMEOUT_MS), TC_OK, "tc_group_barrier again");
    return NULL;
}

static void all_reduce(tc_group *groups[]) {
    struct reducing all[MEMBERS];
    float fraction = 1;

    for (int member = 0; member < MEMBERS; member++) {
        all[member] = (struct reducing){.group = groups[member], .member = member};
        assert(!pthread_create(&all[member].thread, NULL, reduce, &all[member]));
    }
    for (int member = 0; member < MEMBERS; member++) pthread_join(all[member].thread, NULL);
    expect(tc_group_barrier(groups[1], 1), TC_TIMED_OUT, "a barrier of one");
    for (int member = 0; member < MEMBERS; member++) {
        all[member] = (struct reducing){.group = groups[member], .member = member};
        assert(!pthread_create(&all[member].thread, NULL, wait_at_barrier, &all[member]));
    }
    for (int member = 0; member < MEMBERS; member++) pthread_join(all[member].thread, NULL);
    expect(tc_group_all_reduce(groups[0], &fraction, 1, TC_F32, TC_AND, 1, NULL), TC_INVALID_ARGUMENT, "bits of fractions");
    expect_message("4 bytes of f32 cannot be combined by and");
    expect(tc_group_all_reduce(groups[0], &fraction, 1, 9, TC_SUM, 1, NULL), TC_INVALID_ARGUMENT, "no such type");
    expect(tc_group_all_reduce(groups[0], &fraction, 1, TC_F32, 7, 1, NULL), TC_INVALID_ARGUMENT, "no such operation");
    expect(tc_group_all_reduce(groups[0], NULL, 1, TC_F32, TC_SUM, 1, NULL), TC_INVALID_ARGUMENT, "no values");
}

/* After the destructors of the thread's variables. */
static void fail_at_exit(void) {
    tc_node *node;
    expect(tc_node_new("nowhere", NULL, &node), TC_INVALID_ARGUMENT, "tc_node_new at exit");
    expect_message("");
}

int main(int count, char *arguments[]) {
    assert(count == 2);
    atexit(fail_at_exit);
    listen_and_join();
    tc_node *nodes[MEMBERS];
    tc_group *groups[MEMBERS];
    char members[256] = "";
    for (int member = 0; member < MEMBERS; member++) {
        char address[64];
        expect(tc_node_new("127.0.0.1:0", NULL, &nodes[member]), TC_OK, "tc_node_new");
        expect(tc_node_address(nodes[member], address, sizeof address), TC_OK, "tc_node_address");
        if (member > 0) strcat(members, ",");
        strcat(members, address);
    }
    for (int member = 0; member < MEMBERS; member++)
        expect(tc_group_new(nodes[member], members, "scheme=binomial token=secret", &groups[member]), TC_OK, "tc_group_new");
    expect(tc_group_wait_until_ready(groups[0], TIMEOUT_MS), TC_OK, "tc_group_wait_until_ready");

    char message[100000], buffer[sizeof message];
    for (size_t place = 0; place < sizeof message; place++) message[place] = (char)(place * 31);
    expect(tc_group_send(groups[0], message, sizeof message), TC_OK, "tc_group_send");
    expect(tc_group_send(groups[0], NULL, 0), TC_OK, "tc_group_send of nothing");
    expect(tc_group_flush(groups[0], TIMEOUT_MS), TC_OK, "tc_group_flush");
    for (int member = 1; member < MEMBERS; member++) {
        size_t length = 1;
        expect(tc_group_receive(groups[member], buffer, 10, TIMEOUT_MS, &length), TC_BUFFER_TOO_SMALL, "a small buffer");
        expect_message("the message has 100000 bytes, and the buffer 10");
        expect(tc_group_receive(groups[member], buffer, sizeof buffer, TIMEOUT_MS, &length), TC_OK, "tc_group_receive");
        assert(length == sizeof message && memcmp(message, buffer, length) == 0);
        expect(tc_group_receive(groups[member], buffer, sizeof buffer, TIMEOUT_MS, &length), TC_OK, "tc_group_receive");
        assert(length == 0);
        expect(tc_group_receive(groups[member], buffer, sizeof buffer, 1, &length), TC_TIMED_OUT, "nothing to receive");
        assert(tc_group_descriptor(groups[member]) >= 0);
    }

    send_and_receive_parts(groups, message, sizeof message, buffer);
    peek(groups, message, sizeof message);
    all_reduce(groups);
    lose_a_member(nodes, members);
    carry_out(arguments[1], nodes, members);
    follow_racks(arguments[1], nodes, members);
    follow_costs(arguments[1], nodes, members);
    send_too_much(groups[0]);
    fork_with(nodes, groups);

    tc_node *none;
    tc_group *no_group;
    expect(tc_node_new("nowhere", NULL, &none), TC_INVALID_ARGUMENT, "no address");
    expect_message("cannot resolve host nowhere");
    expect(tc_node_new("127.0.0.1:0", "spin_us=never", &none), TC_INVALID_ARGUMENT, "a setting");
    expect_message("invalid value spin_us=never");
    expect(tc_node_new(NULL, NULL, &none), TC_INVALID_ARGUMENT, "NULL");
    expect(tc_node_new("127.0.0.1:0", NULL, NULL), TC_INVALID_ARGUMENT, "no output");
    expect(tc_group_new(nodes[0], "127.0.0.1:1", NULL, &no_group), TC_INVALID_ARGUMENT, "not a member");
    expect(tc_group_new(nodes[0], members, "colour=red", &no_group), TC_INVALID_ARGUMENT, "no such key");
    expect_message("colour");
    expect(tc_group_new(NULL, members, NULL, &no_group), TC_INVALID_ARGUMENT, "no node");
    expect(tc_group_send(groups[1], message, 1), TC_INVALID_ARGUMENT, "not the root");
    expect(tc_group_send(groups[0], NULL, 1), TC_INVALID_ARGUMENT, "no message");
    expect(tc_group_close(NULL, 0), TC_INVALID_ARGUMENT, "no group");
    tc_group_free(NULL);
    tc_node_free(NULL);

    expect(tc_group_close(groups[2], TIMEOUT_MS), TC_OK, "leave");
    expect(tc_group_send(groups[0], "last", 4), TC_OK, "tc_group_send");
    expect(tc_group_close(groups[0], TIMEOUT_MS), TC_MEMBERS_LOST, "close");
    expect_message("left the group");
    size_t length;
    expect(tc_group_receive(groups[1], buffer, sizeof buffer, TIMEOUT_MS, &length), TC_OK, "the last message");
    assert(length == 4 && memcmp(buffer, "last", 4) == 0);
    expect(tc_group_receive(groups[1], buffer, sizeof buffer, TIMEOUT_MS, &length), TC_CLOSED, "the end");
    tc_group_free(groups[1]);
    for (int member = 0; member < MEMBERS; member++) tc_node_free(nodes[member]);
    puts("done");
    return 0;
}
