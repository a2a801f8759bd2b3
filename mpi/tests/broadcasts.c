/* A program that broadcasts in many ways, and compares what comes with what the MPI's own broadcast gives. Run it with the shim preloaded:
 *
 *     mpirun -n 4 broadcasts [PART...]
 *
 * Prints `PART: N broadcasts` for each part that was right, and ends with status 1 at the first wrong byte. */

#define _GNU_SOURCE

#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "broadcasts.h"

int world_rank, world_size;
long broadcasts;
enum { MARGIN = 64 };

static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", world_rank, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

void expect(bool is_right, const char *what)
{
    if (!is_right)
        fail(what);
}

void pause_us(long us)
{
    struct timespec span = {us / 1000000, us % 1000000 * 1000};

    nanosleep(&span, NULL);
}

struct memory allocate_memory(MPI_Datatype type, int count)
{
    MPI_Aint lower, extent, true_lower, true_extent, low, high, last;
    struct memory memory;

    MPI_Type_get_extent(type, &lower, &extent);
    MPI_Type_get_true_extent(type, &true_lower, &true_extent);
    last = count > 0 ? (count - 1) * extent : 0;
    low = true_lower + (last < 0 ? last : 0);
    high = true_lower + true_extent + (last > 0 ? last : 0);
    memory.length = (size_t)(high - low) + 2 * MARGIN;
    memory.bytes = malloc(memory.length);
    expect(memory.bytes != NULL, "no memory");
    memory.origin = memory.bytes + MARGIN - low;
    return memory;
}

void fill_memory(struct memory memory, int root, int rank, unsigned seed)
{
    size_t i;

    for (i = 0; i < memory.length; i++)
        memory.bytes[i] = rank == root ? (char)(i * 2654435761u + seed + (unsigned)root * 31) >> 1 : (char)GAP;
}

/* Broadcasts `count` elements of a type, in another way at the root and elsewhere if the types differ. */
static void compare(MPI_Datatype at_root, int root_count, MPI_Datatype elsewhere, int count, int root, MPI_Comm comm)
{
    int rank;
    struct memory ours, theirs;
    MPI_Datatype type;

    MPI_Comm_rank(comm, &rank);
    type = rank == root ? at_root : elsewhere;
    count = rank == root ? root_count : count;
    ours = allocate_memory(type, count);
    theirs = allocate_memory(type, count);
    fill_memory(ours, root, rank, (unsigned)broadcasts);
    fill_memory(theirs, root, rank, (unsigned)broadcasts);
    expect(MPI_Bcast(ours.origin, count, type, root, comm) == MPI_SUCCESS, "MPI_Bcast");
    expect(PMPI_Bcast(theirs.origin, count, type, root, comm) == MPI_SUCCESS, "PMPI_Bcast");
    if (memcmp(ours.bytes, theirs.bytes, ours.length) != 0) {
        size_t i = 0;

        while (ours.bytes[i] == theirs.bytes[i])
            i++;
        fprintf(stderr, "rank %d: byte %zu of %zu differs: %d and not %d (root %d, %d elements)\n", world_rank, i, ours.length,
                ours.bytes[i], theirs.bytes[i], root, count);
        fail("the broadcasts differ");
    }
    free(ours.bytes);
    free(theirs.bytes);
    broadcasts++;
}

static void compare_all_roots(MPI_Datatype type, int count, MPI_Comm comm)
{
    int size, root;

    MPI_Comm_size(comm, &size);
    for (root = 0; root < size; root++)
        compare(type, count, type, count, root, comm);
}

static void basic_types(void)
{
    const MPI_Datatype types[] = {
        MPI_CHAR, MPI_SIGNED_CHAR, MPI_UNSIGNED_CHAR, MPI_BYTE, MPI_WCHAR, MPI_SHORT, MPI_UNSIGNED_SHORT, MPI_INT, MPI_UNSIGNED,
        MPI_LONG, MPI_UNSIGNED_LONG, MPI_LONG_LONG, MPI_UNSIGNED_LONG_LONG, MPI_FLOAT, MPI_DOUBLE, MPI_LONG_DOUBLE, MPI_C_BOOL,
        MPI_INT8_T, MPI_INT16_T, MPI_INT32_T, MPI_INT64_T, MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T, MPI_AINT, MPI_COUNT,
        MPI_OFFSET, MPI_C_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_C_LONG_DOUBLE_COMPLEX, MPI_FLOAT_INT, MPI_DOUBLE_INT, MPI_LONG_INT,
        MPI_2INT, MPI_SHORT_INT, MPI_LONG_DOUBLE_INT, MPI_PACKED,
    };
    const int counts[] = {0, 1, 3, 1000};
    size_t type, count;

    for (type = 0; type < sizeof types / sizeof *types; type++)
        for (count = 0; count < sizeof counts / sizeof *counts; count++)
            compare_all_roots(types[type], counts[count], MPI_COMM_WORLD);
}

/* A derived type is freed after its use. */
static void compare_derived(MPI_Datatype type, int count)
{
    MPI_Type_commit(&type);
    compare_all_roots(type, count, MPI_COMM_WORLD);
    MPI_Type_free(&type);
}

static void derived_types(void)
{
    const int counts[] = {1, 7, 3000};
    size_t i;

    for (i = 0; i < sizeof counts / sizeof *counts; i++) {
        int count = counts[i];
        int lengths[] = {2, 1, 3}, places[] = {9, 0, 4}, reversed[] = {3, 2, 1, 0};
        int sizes[] = {6, 8}, parts[] = {3, 4}, starts[] = {2, 1};
        MPI_Aint offsets[] = {40, 0, 8};
        MPI_Datatype members[] = {MPI_INT, MPI_DOUBLE, MPI_CHAR}, type, inner;

        MPI_Type_contiguous(5, MPI_INT, &type);
        compare_derived(type, count);
        MPI_Type_contiguous(0, MPI_INT, &type);
        compare_derived(type, count);
        MPI_Type_vector(4, 3, 7, MPI_SHORT, &type);
        compare_derived(type, count);
        MPI_Type_vector(4, 3, 3, MPI_SHORT, &type);
        compare_derived(type, count);
        MPI_Type_create_hvector(5, 2, -32, MPI_INT, &type);
        compare_derived(type, count);
        MPI_Type_indexed(3, lengths, places, MPI_INT, &type);
        compare_derived(type, count);
        /* As long as four integers, but in another order. */
        MPI_Type_create_indexed_block(4, 1, reversed, MPI_INT, &type);
        compare_derived(type, count);
        MPI_Type_create_struct(3, lengths, offsets, members, &type);
        compare_derived(type, count);
        MPI_Type_create_resized(MPI_INT, 0, 12, &type);
        compare_derived(type, count);
        MPI_Type_create_resized(MPI_INT, 0, -8, &type);
        compare_derived(type, count);
        MPI_Type_create_resized(MPI_INT, -4, 16, &type);
        compare_derived(type, count);
        MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_FLOAT, &type);
        compare_derived(type, count);
        MPI_Type_dup(MPI_DOUBLE, &type);
        compare_derived(type, count);
#if MPI_VERSION >= 4
        /* Constructors for large counts: MPI_Type_get_envelope refuses what they make. */
        MPI_Type_contiguous_c(5, MPI_INT, &type);
        compare_derived(type, count);
        MPI_Type_contiguous_c(2, MPI_INT, &inner);
        MPI_Type_contiguous_c(3, inner, &type);
        MPI_Type_free(&inner);
        compare_derived(type, count);
        MPI_Type_vector_c(4, 3, 3, MPI_SHORT, &type);
        compare_derived(type, count);
#endif
        MPI_Type_vector(2, 1, 3, MPI_INT, &inner);
        MPI_Type_contiguous(3, inner, &type);
        compare_derived(type, count);
        MPI_Type_free(&inner);
    }
    {
        /* One element that is longer than what is packed at once. */
        MPI_Datatype type;

        MPI_Type_vector(300000, 1, 2, MPI_INT, &type);
        compare_derived(type, 2);
    }
}

/* Types and counts of the same bytes in other words. */
static void mixed_types(void)
{
    const int reversed[] = {3, 2, 1, 0};
    MPI_Datatype vector, numbers, backwards;
    int root;

    MPI_Type_vector(4, 3, 7, MPI_INT, &vector);
    MPI_Type_commit(&vector);
    MPI_Type_contiguous(12, MPI_INT, &numbers);
    MPI_Type_commit(&numbers);
    /* As long as its four integers, but not in their order. */
    MPI_Type_create_indexed_block(4, 1, reversed, MPI_INT, &backwards);
    MPI_Type_commit(&backwards);
    for (root = 0; root < world_size; root++) {
        compare(MPI_INT, 12 * 1000, vector, 1000, root, MPI_COMM_WORLD);
        compare(vector, 1000, MPI_INT, 12 * 1000, root, MPI_COMM_WORLD);
        compare(vector, 500, numbers, 500, root, MPI_COMM_WORLD);
        compare(backwards, 3000, MPI_INT, 4 * 3000, root, MPI_COMM_WORLD);
    }
    MPI_Type_free(&vector);
    MPI_Type_free(&backwards);
    MPI_Type_free(&numbers);
}

static void sizes(void)
{
    int bytes;

    for (bytes = 1; bytes <= 64 << 20; bytes *= 4)
        compare(MPI_BYTE, bytes + 1, MPI_BYTE, bytes + 1, bytes % world_size, MPI_COMM_WORLD);
    compare(MPI_BYTE, 64 << 20, MPI_BYTE, 64 << 20, world_size - 1, MPI_COMM_WORLD);
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
    MPI_Comm half, reversed, duplicate, both;
    int round, size, root;

    for (round = 0; round < 12; round++) {
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

/* The root broadcasts only once it has a long message, whose sender is already in the broadcast: it has to go on sending from there. */
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

/* Ranks that come late, also the root, to short messages and to one that is longer than all slots. */
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
    static char bytes[300000];
    const int sent[] = {200000, 1000, 10, 100000}, expected[] = {100, 10, 1000, 200000};
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

/* A rank ends in the middle: the others do not hang. The launcher ends them, or their error handler does. */
static void killed_rank(void)
{
    int round, value = 0;

    for (round = 0; round < 1000000; round++) {
        if (round == 100 && world_rank == world_size - 1)
            _exit(0);
        MPI_Bcast(&value, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
}

/* A program that goes on for a while: short broadcasts of one root, longer ones of another, few of the others. */
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

/* The same, but only rank 0 has a bound. It has to be the first part: the settings are read at the first broadcast. */
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
    {"basic", basic_types},       {"derived", derived_types},        {"mixed", mixed_types},
    {"sizes", sizes},             {"communicators", communicators},  {"many", many_communicators},
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
    {"duplicates-bytes", duplicates_of_other_bytes},
    {"reduces", reduces},         {"killed-values", killed_in_values},
    {"stopped-minute", stopped_for_a_minute}, {"computing-minute", computing_for_a_minute},
    {"aborts", aborts},           {"forks", forks},                  {"killed-at-once", killed_at_once},
    {"killed-without-end", killed_without_end}, {"killed-root", killed_root},
    {"killed-in-reduces", killed_in_reduces}, {"finalize-at-exit", finalize_at_exit},
};

static void end(int signal)
{
    static const char line[] = "MPI_Finalize does not return\n";

    (void)signal;
    (void)!write(STDOUT_FILENO, line, sizeof line - 1);
    _exit(3);
}

/* MPI_Finalize deletes the attributes of MPI_COMM_SELF first: what comes later is the MPI's, and nothing of the shim. */
static int shim_has_ended(MPI_Comm comm, int key, void *value, void *state)
{
    (void)comm, (void)key, (void)value, (void)state;
    printf("rank %d: the shim has ended\n", world_rank);
    fflush(stdout);
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 50000000
    alarm(2);
#else
    /* Ranks poll until all have come, on processors that other tests use too. */
    alarm(10);
#endif
    return MPI_SUCCESS;
}

void finalize(void)
{
    int key;

    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, shim_has_ended, &key, NULL);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
    signal(SIGALRM, end);
    alarm(20);
    MPI_Finalize();
}

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
