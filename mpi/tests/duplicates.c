/* Communicators of the same processes, which share groups. */

#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "broadcasts.h"

/* In MPICH's headers MPI_STATUSES_IGNORE is an array of no elements to the compiler. */
#pragma GCC diagnostic ignored "-Wstringop-overflow"

/* A rank's buffer: the root's numbers, which depend on the broadcast and the communicator. */
static void fill(unsigned char *bytes, int length, int is_root, int seed)
{
    int i;

    for (i = 0; i < length; i++)
        bytes[i] = (unsigned char)(is_root ? i * 7 + seed * 31 : GAP);
}

static void check(const unsigned char *bytes, int length, int seed)
{
    int i;

    for (i = 0; i < length; i++)
        expect(bytes[i] == (unsigned char)(i * 7 + seed * 31), "a broadcast on a duplicate");
}

/* Every second number is one of the broadcast, so that the shim packs them. */
static void broadcast_apart(MPI_Comm comm, int root, int length, int seed)
{
    unsigned char *bytes = calloc(2, (size_t)length), *numbers = malloc((size_t)length);
    MPI_Datatype type;
    int rank, i;

    MPI_Comm_rank(comm, &rank);
    MPI_Type_vector(length, 1, 2, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    fill(numbers, length, rank == root, seed);
    for (i = 0; i < length; i++)
        bytes[2 * i] = numbers[i];
    expect(MPI_Bcast(bytes, 1, type, root, comm) == MPI_SUCCESS, "MPI_Bcast");
    for (i = 0; i < length; i++)
        numbers[i] = bytes[2 * i];
    check(numbers, length, seed);
    MPI_Type_free(&type);
    free(bytes);
    free(numbers);
}

static void broadcast(MPI_Comm comm, int root, int length, int seed)
{
    unsigned char *bytes = malloc((size_t)length);
    int rank;

    MPI_Comm_rank(comm, &rank);
    fill(bytes, length, rank == root, seed);
    expect(MPI_Bcast(bytes, length, MPI_BYTE, root, comm) == MPI_SUCCESS, "MPI_Bcast");
    check(bytes, length, seed);
    free(bytes);
}

/* In turn on MPI_COMM_WORLD, duplicates and a communicator of the other order, one of which is
 * freed and made anew in each round. */
void duplicates(void)
{
    enum { COMMS = 5, ROUNDS = 60 };
    const int lengths[] = {1, 900, 5000, 100000, 4, 300000};
    MPI_Comm comms[COMMS] = {MPI_COMM_WORLD};
    int i, round;

    for (i = 1; i < COMMS - 1; i++)
        MPI_Comm_dup(comms[i - 1], &comms[i]);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &comms[COMMS - 1]);
    for (round = 0; round < ROUNDS; round++) {
        int changed = 1 + round % (COMMS - 2);

        for (i = 0; i < COMMS; i++) {
            int length = lengths[(round + i) % 6];

            (round % 3 ? broadcast : broadcast_apart)(comms[i], round % world_size, length, round * COMMS + i);
            broadcasts++;
            if (round % 8 == i)
                MPI_Barrier(comms[i]);
        }
        if (round % 4)
            continue;
        MPI_Comm_free(&comms[changed]);
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[changed]);
    }
    for (i = 1; i < COMMS; i++)
        MPI_Comm_free(&comms[i]);
}

/* A rank that passes another number of bytes gets an error, and those of the other communicators
 * and later ones are right. */
void duplicates_of_other_bytes(void)
{
    enum { COMMS = 2 };
    static unsigned char bytes[200000];
    const int sent[] = {200000, 1000, 10, 100000}, expected[] = {100, 10, 1000, 200000};
    MPI_Comm comms[COMMS];
    int i, round, class;

    broadcast(MPI_COMM_WORLD, 0, 100, 0);
    for (i = 0; i < COMMS; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
        MPI_Comm_set_errhandler(comms[i], MPI_ERRORS_RETURN);
    }
    for (round = 0; round < 8; round++) {
        int is_wrong = world_rank == world_size - 1, other = round / 4;

        MPI_Error_class(MPI_Bcast(bytes, is_wrong ? expected[round % 4] : sent[round % 4], MPI_BYTE, 0, comms[other]), &class);
        expect(class == (is_wrong ? MPI_ERR_TRUNCATE : MPI_SUCCESS), "a broadcast of other bytes");
        /* The rank may wait for the wrong group, and must not find a later message there. */
        PMPI_Barrier(MPI_COMM_WORLD);
        broadcast(MPI_COMM_WORLD, 0, 70000, round);
        for (i = 0; i < COMMS; i++)
            broadcast(comms[i], 0, 5000, round + i);
        broadcasts += 4;
    }
    for (i = 0; i < COMMS; i++)
        MPI_Comm_free(&comms[i]);
}

/* All at the same time. The later ones are freed first, and then the one that has made the
 * groups. */
void many_duplicates(void)
{
    enum { COMMS = 200 };
    MPI_Comm comms[COMMS];
    int i, round;

    for (i = 0; i < COMMS; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (round = 0; round < 3; round++)
        for (i = 0; i < COMMS; i++, broadcasts++)
            broadcast(comms[i], 0, i % 50 ? 100 : 70000, round + i);
    for (i = COMMS - 1; i >= 0; i--)
        MPI_Comm_free(&comms[i]);
}

struct work {
    MPI_Comm comm;
    int seed, pause_us;
};

enum { THREAD_ROUNDS = 120 };

static void *broadcast_for_a_while(void *argument)
{
    const struct work *work = argument;
    int round;

    for (round = 0; round < THREAD_ROUNDS; round++) {
        if (work->pause_us && round % 10 == 0)
            pause_us(work->pause_us);
        broadcast(work->comm, round / 30 % world_size, round % 7 ? 64 + round : 200000, work->seed + round);
    }
    return NULL;
}

static void start(pthread_t *thread, struct work *work)
{
    expect(pthread_create(thread, NULL, broadcast_for_a_while, work) == 0, "no thread");
}

/* Threads on two communicators, of which another one is late at each rank. Then the root has two
 * threads, and the others one, which goes first to the communicator whose messages come last. */
void duplicates_of_threads(void)
{
    enum { LENGTH = 9 << 20, MESSAGES = 5 };
    struct work work[2];
    pthread_t threads[2];
    MPI_Comm comms[2];
    int i, provided;

    MPI_Query_thread(&provided);
    if (provided < MPI_THREAD_MULTIPLE)
        return;
    for (i = 0; i < 2; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
    for (i = 0; i < 2; i++)
        work[i] = (struct work){comms[i], 1000 * i, world_rank % 2 == i ? 3000 : 0};
    for (i = 0; i < 2; i++)
        start(&threads[i], &work[i]);
    for (i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    broadcasts += 2 * THREAD_ROUNDS;
    /* More than the shim keeps at once. */
    if (world_rank) {
        broadcast_for_a_while(&work[1]);
        for (i = 0; i < MESSAGES; i++)
            broadcast(comms[0], 0, LENGTH, i);
    } else {
        start(&threads[1], &work[1]);
        for (i = 0; i < MESSAGES; i++)
            broadcast(comms[0], 0, LENGTH, i);
        pthread_join(threads[1], NULL);
    }
    broadcasts += THREAD_ROUNDS + MESSAGES;
    for (i = 0; i < 2; i++)
        MPI_Comm_free(&comms[i]);
}

/* Nonblocking broadcasts that each rank starts in another order, and of which it first waits for
 * another one. */
void duplicates_of_requests(void)
{
    enum { COMMS = 3, ROUNDS = 40, LENGTH = 150000 };
    static unsigned char bytes[COMMS][LENGTH];
    MPI_Comm comms[COMMS];
    MPI_Request requests[COMMS];
    int i, round;

    for (i = 0; i < COMMS; i++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
        broadcast(comms[i], 0, 10, i);
        broadcast(comms[i], world_size - 1, 10, i);
    }
    for (round = 0; round < ROUNDS; round++) {
        int root = round / 10 % 2 ? world_size - 1 : 0, length = round % 3 ? 500 : LENGTH;

        for (i = 0; i < COMMS; i++) {
            int other = (i + world_rank * (1 + round % 2)) % COMMS;

            fill(bytes[other], length, world_rank == root, round + other);
            MPI_Ibcast(bytes[other], length, MPI_BYTE, root, comms[other], &requests[other]);
            /* A blocking one may come before those of other communicators that have begun. */
            if (i == 1 && round % 4 == 0)
                broadcast(MPI_COMM_WORLD, root, 300, round);
        }
        for (i = 0; i < COMMS; i++) {
            int other = (COMMS - i + world_rank) % COMMS;

            MPI_Wait(&requests[other], MPI_STATUS_IGNORE);
            check(bytes[other], length, round + other);
            broadcasts++;
        }
    }
    for (i = 0; i < COMMS; i++)
        MPI_Comm_free(&comms[i]);
}

enum { PENDING = 4 };

/* Duplicates are under way beside messages of the same communicator, and one call completes
 * both. */
static void compare_pending(MPI_Comm comm)
{
    MPI_Request *requests;
    MPI_Comm duplicates[PENDING];
    int sent[PENDING], received[PENDING], rank, size, count = 0, i, to;

    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    requests = malloc(PENDING * (size_t)(size + 1) * sizeof *requests);
    for (i = 0; i < PENDING; i++) {
        sent[i] = received[i] = rank ? -1 : 100 + i;
        for (to = 1; !rank && to < size; to++)
            MPI_Isend(&sent[i], 1, MPI_INT, to, 0, comm, &requests[count++]);
        MPI_Comm_idup(comm, &duplicates[i], &requests[count++]);
        if (rank)
            MPI_Irecv(&received[i], 1, MPI_INT, 0, 0, comm, &requests[count++]);
    }
    MPI_Waitall(count, requests, MPI_STATUSES_IGNORE);
    free(requests);
    for (i = 0; i < PENDING; i++) {
        int all = 0;

        expect(received[i] == 100 + i, "a message beside a duplicate");
        broadcast(duplicates[i], i % size, 1 + 700 * i, i);
        MPI_Allreduce(&rank, &all, 1, MPI_INT, MPI_SUM, duplicates[i]);
        expect(all == size * (size - 1) / 2, "an all-reduce on a duplicate");
        MPI_Barrier(duplicates[i]);
        MPI_Comm_free(&duplicates[i]);
        broadcasts++;
    }
}

void pending_duplicates(void)
{
    int round;

    for (round = 0; round < 2; round++) {
        const int colors[] = {0, world_rank % 2, world_rank > 0, 0}, keys[] = {-world_rank, 0, -world_rank, world_rank % 3};
        size_t i;

        compare_pending(MPI_COMM_WORLD);
        for (i = 0; i < sizeof colors / sizeof *colors; i++) {
            MPI_Comm comm;

            MPI_Comm_split(MPI_COMM_WORLD, colors[i], keys[i], &comm);
            compare_pending(comm);
            MPI_Comm_free(&comm);
        }
    }
}
