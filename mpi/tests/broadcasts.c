/* A program that broadcasts in many ways, and compares the data with those of the MPI's own
 * broadcast. Run it with the shim preloaded:
 *
 *     mpirun -n 4 broadcasts [PART...]
 *
 * Prints `PART: N broadcasts` for each part that was right, and ends with status 1 at the first
 * wrong byte. */

#define _GNU_SOURCE

#include <mpi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "broadcasts.h"
#include "finalize.h"

int world_rank, world_size;
long broadcasts;

void expect(bool is_right, const char *what)
{
    if (is_right)
        return;
    fprintf(stderr, "rank %d: %s\n", world_rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

void pause_us(long us)
{
    struct timespec span = {us / 1000000, us % 1000000 * 1000};

    nanosleep(&span, NULL);
}

/* Broadcasts of a sum over the ranks of a communicator: no rank can have it by itself. */
static void agree(MPI_Comm comm, int root)
{
    long own, all, received = -1;
    int rank;

    MPI_Comm_rank(comm, &rank);
    own = rank + broadcasts % 1000 * 7919;
    MPI_Allreduce(&own, &all, 1, MPI_LONG, MPI_SUM, comm);
    if (rank == root)
        received = all;
    expect(MPI_Bcast(&received, 1, MPI_LONG, root, comm) == MPI_SUCCESS && received == all, "a broadcast of a sum");
    broadcasts++;
}

static void communicators(void)
{
    /* Each round has groups of each rank on three communicators. */
    const int rounds = world_size > 8 ? 4 : 12;
    MPI_Comm half, reversed, duplicate, both;
    int round, size, root;

    for (round = 0; round < rounds; round++) {
        /* Halves that overlap differently each round, and the opposite order of ranks. */
        MPI_Comm_split(MPI_COMM_WORLD, world_rank / (1 + round % 2) % 2, world_rank, &half);
        MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &reversed);
        MPI_Comm_dup(reversed, &duplicate);
        MPI_Comm_size(half, &size);
        for (root = 0; root < size; root++)
            agree(half, root);
        for (root = 0; root < world_size; root++) {
            agree(reversed, root);
            agree(duplicate, world_size - 1 - root);
            agree(half, root % size);
        }
        MPI_Comm_free(&half);
        MPI_Comm_free(&duplicate);
        MPI_Comm_disconnect(&reversed);
    }
    /* Intercommunicators are the MPI's. */
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &half);
    if (world_size > 1) {
        int value = world_rank == 0 ? 42 : 0, is_first = world_rank % 2 == 0;

        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, is_first ? 1 : 0, 7, &both);
        MPI_Bcast(&value, 1, MPI_INT, is_first ? (world_rank == 0 ? MPI_ROOT : MPI_PROC_NULL) : 0, both);
        expect(value == (is_first && world_rank ? 0 : 42), "a broadcast over an intercommunicator");
        broadcasts++;
        MPI_Comm_free(&both);
    }
    MPI_Comm_free(&half);
}

/* More communicators than a process can have descriptors or groups at a time. */
static void many_communicators(void)
{
    MPI_Comm comm;
    int i;

    for (i = 0; i < 1000; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        agree(comm, i % world_size);
        MPI_Comm_free(&comm);
    }
}

/* Nothing but the broadcasts themselves keeps the ranks together. */
static void back_to_back(void)
{
    enum { ROUNDS = 3000, MAX = 40000 };
    static unsigned char bytes[MAX];
    unsigned state = 1;
    int round;

    for (round = 0; round < ROUNDS; round++) {
        int root, length, i;

        state = state * 1664525 + 1013904223;
        root = round / 100 % world_size;
        length = (state >> 8) % 16 ? 1 + (int)((state >> 12) % 300) : 1 + (int)((state >> 12) % MAX);
        memset(bytes, world_rank == root ? round & 0xff : GAP, (size_t)length);
        MPI_Bcast(bytes, length, MPI_BYTE, root, MPI_COMM_WORLD);
        for (i = 0; i < length; i++)
            expect(bytes[i] == (round & 0xff), "a broadcast among many");
        broadcasts++;
    }
}

/* The root broadcasts only once it has a long message, whose sender is already in the broadcast: it
 * has to go on sending from there. */
static void progress(void)
{
    enum { LENGTH = 8 << 20 };
    char *bytes = malloc(LENGTH);
    MPI_Request request = MPI_REQUEST_NULL;
    int value = 0, round;

    for (round = 0; round < 3 && world_size > 1; round++) {
        if (world_rank == 1) {
            memset(bytes, round, LENGTH);
            MPI_Isend(bytes, LENGTH, MPI_BYTE, 0, 5, MPI_COMM_WORLD, &request);
        } else if (world_rank == 0) {
            pause_us(20000);
            MPI_Recv(bytes, LENGTH, MPI_BYTE, 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            expect(bytes[LENGTH - 1] == round, "a long message");
            value = round + 1;
        }
        MPI_Bcast(&value, 1, MPI_INT, 0, MPI_COMM_WORLD);
        expect(value == round + 1, "a broadcast after a long message");
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        broadcasts++;
    }
    free(bytes);
}

/* A rank receives a long message of the root before its broadcasts, of which more are under way
 * than its slots hold. While the root closes the group, its MPI has to send that message. */
static void closing(void)
{
    enum { LENGTH = 16 << 20, COUNT = 600, BYTES = 1400 };
    char *bytes = calloc(1, LENGTH), values[BYTES] = {0};
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Comm comm;
    double since_s;
    int i;

    MPI_Comm_split(MPI_COMM_WORLD, 0, world_rank, &comm);
    MPI_Bcast(values, BYTES, MPI_BYTE, 0, comm);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == 0 && world_size > 1)
        MPI_Isend(bytes, LENGTH, MPI_BYTE, 1, 6, MPI_COMM_WORLD, &request);
    if (world_rank == 1)
        MPI_Recv(bytes, LENGTH, MPI_BYTE, 0, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (i = 0; i < COUNT; i++) {
        memset(values, world_rank ? 0 : i % 100, BYTES);
        MPI_Bcast(values, BYTES, MPI_BYTE, 0, comm);
        expect(values[0] == i % 100 && values[BYTES - 1] == i % 100, "a broadcast before its group is closed");
        broadcasts++;
    }
    since_s = MPI_Wtime();
    MPI_Comm_free(&comm);
    expect(world_rank || MPI_Wtime() - since_s < 4, "the root waits for seconds until its group is closed");
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    free(bytes);
}

/* Ranks that come late, also the root, to short messages and to one that is longer than all
 * slots. */
static void late_ranks(void)
{
    enum { LENGTH = 6 << 20 };
    char *bytes = malloc(LENGTH);
    int round;

    for (round = 0; round < 2 * world_size; round++) {
        int root = round / 2 % world_size, length = round % 2 ? LENGTH : 100;

        memset(bytes, world_rank == root ? round : GAP, (size_t)length);
        if (world_rank == (root + round) % world_size)
            pause_us(50000);
        MPI_Bcast(bytes, length, MPI_BYTE, root, MPI_COMM_WORLD);
        expect(bytes[0] == round && bytes[length - 1] == round, "a broadcast to late ranks");
        broadcasts++;
    }
    free(bytes);
}

/* A rank that expects another number of bytes gets an error, and the next broadcast is right. */
static void truncation(void)
{
    static char bytes[700000];
    const int sent[] = {200000, 1000, 10, 600000, 100}, expected[] = {100, 10, 1000, 200000, 600000};
    MPI_Comm comm;
    size_t i;
    int class;

    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    for (i = 0; i < sizeof sent / sizeof *sent; i++) {
        int is_wrong = world_rank == world_size - 1 && world_size > 1;
        int error = MPI_Bcast(bytes, is_wrong ? expected[i] : sent[i], MPI_BYTE, 0, comm);

        MPI_Error_class(error, &class);
        expect(class == (is_wrong ? MPI_ERR_TRUNCATE : MPI_SUCCESS), "a broadcast of other bytes");
        agree(comm, 0);
    }
    MPI_Comm_free(&comm);
}

static void *broadcast_alone(void *argument)
{
    MPI_Comm comm = *(MPI_Comm *)argument;
    int round, value, rank;

    MPI_Comm_rank(comm, &rank);
    for (round = 0; round < 300; round++) {
        int root = round / 50 % world_size;

        value = rank == root ? round : -1;
        MPI_Bcast(&value, 1, MPI_INT, root, comm);
        expect(value == round, "a broadcast of a thread");
    }
    return NULL;
}

static void threads(void)
{
    enum { THREADS = 4 };
    MPI_Comm comms[THREADS];
    pthread_t running[THREADS];
    int provided, i;

    MPI_Query_thread(&provided);
    if (provided < MPI_THREAD_MULTIPLE)
        return;
    for (i = 0; i < THREADS; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (i = 0; i < THREADS; i++)
        pthread_create(&running[i], NULL, broadcast_alone, &comms[i]);
    for (i = 0; i < THREADS; i++)
        pthread_join(running[i], NULL);
    for (i = 0; i < THREADS; i++)
        MPI_Comm_free(&comms[i]);
    broadcasts += THREADS * 300;
}

/* A rank ends in the middle: the others do not hang. The launcher ends them, or their error handler
 * does. */
static void killed_rank(void)
{
    int round, value = 0;

    for (round = 0; round < 1000000; round++) {
        if (round == 100 && world_rank == world_size - 1)
            _exit(0);
        MPI_Bcast(&value, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
}

/* A program that goes on for a while: short broadcasts of one root, longer ones of another, few of
 * the others. */
static void iterations(void)
{
    enum { ROUNDS = 1500, LONG = 48000 };
    static unsigned char bytes[LONG];
    int round;

    for (round = 0; round < ROUNDS; round++) {
        int root = round % 100 == 99 ? round / 100 % world_size : round % 3 == 0 ? world_size - 1 : 0;
        int length = round % 3 == 0 ? LONG : 700;

        memset(bytes, world_rank == root ? round : ~round, (size_t)length);
        MPI_Bcast(bytes, length, MPI_BYTE, root, MPI_COMM_WORLD);
        expect(bytes[0] == (unsigned char)round && bytes[length - 1] == (unsigned char)round, "a broadcast of many");
        if (round % 50 == 0)
            MPI_Barrier(MPI_COMM_WORLD);
    }
    broadcasts += ROUNDS;
}

/* The same, but only rank 0 has a bound. It has to be the first part: the settings are read at the
 * first broadcast. */
static void bounds(void)
{
    if (!world_rank)
        setenv("TREECAST_MPI_MIN_BYTES", "1000", 1);
    iterations();
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"basic", broadcasts_of_basic_types}, {"derived", broadcasts_of_derived_types},
    {"mixed", broadcasts_of_mixed_types}, {"sizes", broadcasts_of_all_sizes},
    {"communicators", communicators},  {"many", many_communicators},
    {"back-to-back", back_to_back}, {"nonblocking", nonblocking},    {"progress", progress},
    {"closing", closing},
    {"late", late_ranks},         {"truncation", truncation},        {"threads", threads},
    {"killed", killed_rank},      {"stopped", stopped},           {"stopped-at-the-end", stopped_at_the_end},
    {"iterations", iterations},   {"bounds", bounds},                {"completions", completions},
    {"shapes", shapes},           {"pending", pending},              {"other-lengths", other_lengths},
    {"waits-elsewhere", waits_elsewhere}, {"nonblocking-threads", nonblocking_threads},
    {"killed-nonblocking", killed_in_nonblocking}, {"persistent", persistent},
    {"persistent-ends", persistent_ends}, {"gathers", gathers},      {"wrong-blocks", wrong_blocks},
    {"duplicates", duplicates},   {"many-duplicates", many_duplicates},
    {"duplicates-threads", duplicates_of_threads}, {"duplicates-requests", duplicates_of_requests},
    {"duplicates-bytes", duplicates_of_other_bytes}, {"duplicates-pending", pending_duplicates},
    {"reduces", reduces},         {"killed-values", killed_in_values},
    {"stopped-minute", stopped_for_a_minute}, {"computing-minute", computing_for_a_minute},
    {"aborts", aborts},           {"forks", forks},                  {"killed-at-once", killed_at_once},
    {"killed-without-end", killed_without_end}, {"killed-root", killed_root},
    {"killed-in-reduces", killed_in_reduces}, {"finalize-at-exit", finalize_at_exit},
};

int main(int count, char *arguments[])
{
    int provided, argument;
    size_t part;

    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    for (argument = 1; argument < count; argument++) {
        for (part = 0; part < sizeof parts / sizeof *parts; part++) {
            if (strcmp(parts[part].name, arguments[argument]) != 0)
                continue;
            broadcasts = 0;
            parts[part].run();
            MPI_Barrier(MPI_COMM_WORLD);
            if (!world_rank)
                printf("%s: %ld broadcasts\n", parts[part].name, broadcasts);
            fflush(stdout);
        }
    }
    finalize();
    return 0;
}
