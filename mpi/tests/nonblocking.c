/* Nonblocking broadcasts: what comes is compared with what the MPI's own give. */

#define _GNU_SOURCE

#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broadcasts.h"

/* In MPICH's headers MPI_STATUSES_IGNORE is an array of no elements to the compiler. */
#pragma GCC diagnostic ignored "-Wstringop-overflow"

/* How requests are completed. */
enum way { WAIT_BACKWARDS, WAITALL, WAITANY, WAITSOME, TEST, TESTALL, TESTANY, TESTSOME, GET_STATUS, WAYS };

enum { REQUESTS_MAX = 64 };

static void complete_each(MPI_Request *requests, int count, enum way way)
{
    int i, flag;

    for (i = count - 1; i >= 0; i--) {
        MPI_Status status;

        flag = way == WAIT_BACKWARDS;
        while (!flag) {
            if (way == TEST)
                MPI_Test(&requests[i], &flag, &status);
            else
                MPI_Request_get_status(requests[i], &flag, &status);
        }
        if (way != TEST)
            expect(MPI_Wait(&requests[i], MPI_STATUS_IGNORE) == MPI_SUCCESS, "MPI_Wait");
    }
}

static void complete_any(MPI_Request *requests, int count, enum way way)
{
    int index, flag, left = count;
    MPI_Status status;

    while (left) {
        flag = 1;
        if (way == WAITANY)
            expect(MPI_Waitany(count, requests, &index, &status) == MPI_SUCCESS, "MPI_Waitany");
        else
            expect(MPI_Testany(count, requests, &index, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS, "MPI_Testany");
        expect(!flag || (index >= 0 && index < count && requests[index] == MPI_REQUEST_NULL), "the index of a request");
        left -= flag;
    }
}

static void complete_some(MPI_Request *requests, int count, enum way way)
{
    int indices[REQUESTS_MAX], completed, left = count;
    MPI_Status statuses[REQUESTS_MAX];

    while (left) {
        if (way == WAITSOME)
            expect(MPI_Waitsome(count, requests, &completed, indices, statuses) == MPI_SUCCESS && completed > 0, "MPI_Waitsome");
        else
            expect(MPI_Testsome(count, requests, &completed, indices, MPI_STATUSES_IGNORE) == MPI_SUCCESS, "MPI_Testsome");
        left -= completed;
    }
    MPI_Waitsome(count, requests, &completed, indices, statuses);
    expect(completed == MPI_UNDEFINED, "no more requests");
}

static void complete(MPI_Request *requests, int count, enum way way)
{
    MPI_Status statuses[REQUESTS_MAX];
    int i, flag = 0;

    if (way == WAITALL)
        expect(MPI_Waitall(count, requests, statuses) == MPI_SUCCESS, "MPI_Waitall");
    else if (way == WAITANY || way == TESTANY)
        complete_any(requests, count, way);
    else if (way == WAITSOME || way == TESTSOME)
        complete_some(requests, count, way);
    else if (way != TESTALL)
        complete_each(requests, count, way);
    while (way == TESTALL && !flag)
        expect(MPI_Testall(count, requests, &flag, MPI_STATUSES_IGNORE) == MPI_SUCCESS, "MPI_Testall");
    for (i = 0; i < count; i++)
        expect(requests[i] == MPI_REQUEST_NULL, "a completed request");
}

/* Groups for nonblocking broadcasts are made in collectives that follow the first of a root. */
static void make_groups(MPI_Comm comm)
{
    int round, root, size, value = 0, all;

    MPI_Comm_size(comm, &size);
    for (round = 0; round < 2; round++) {
        for (root = 0; root < size; root++) {
            MPI_Request request;

            MPI_Ibcast(&value, 1, MPI_INT, root, comm, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
        if (round)
            MPI_Barrier(comm);
        else
            MPI_Allreduce(&value, &all, 1, MPI_INT, MPI_SUM, comm);
    }
}

static char *allocate(size_t bytes, int seed, int root)
{
    char *memory = malloc(bytes + 1);
    size_t i;

    expect(memory != NULL, "no memory");
    for (i = 0; i < bytes; i++)
        memory[i] = (char)(world_rank == root ? (i * 2654435761u + (unsigned)seed * 97) >> 2 : 0xa5);
    return memory;
}

/* Broadcasts of several roots and lengths at a time, by this library and by the MPI, and messages
 * between ranks, all completed together. */
void completions(void)
{
    enum { COUNT = 12 };
    static const int lengths[] = {1, 100, 3000, 40000, 65536, 65537, 300000, 3000000};
    char *ours[COUNT], *theirs[COUNT];
    int way, i, from, to;

    make_groups(MPI_COMM_WORLD);
    for (way = 0; way < 2 * WAYS; way++) {
        MPI_Request requests[REQUESTS_MAX];
        int count = 0, next = (world_rank + 1) % world_size, previous = (world_rank + world_size - 1) % world_size;

        from = -1;
        to = world_rank * 100 + way;
        MPI_Irecv(&from, 1, MPI_INT, previous, 9, MPI_COMM_WORLD, &requests[count++]);
        for (i = 0; i < COUNT; i++) {
            int root = (i / 2 + way) % world_size, length = lengths[(i + way) % 8];

            ours[i] = allocate((size_t)length, i + way, root);
            theirs[i] = allocate((size_t)length, i + way, root);
            MPI_Ibcast(ours[i], length, MPI_BYTE, root, MPI_COMM_WORLD, &requests[count++]);
            /* In every second round there are only requests of this library. */
            if (way < WAYS)
                PMPI_Ibcast(theirs[i], length, MPI_BYTE, root, MPI_COMM_WORLD, &requests[count++]);
            else
                PMPI_Bcast(theirs[i], length, MPI_BYTE, root, MPI_COMM_WORLD);
        }
        MPI_Isend(&to, 1, MPI_INT, next, 9, MPI_COMM_WORLD, &requests[count++]);
        if (way >= WAYS) {
            MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
            MPI_Wait(&requests[count - 1], MPI_STATUS_IGNORE);
            complete(requests + 1, count - 2, (enum way)(way - WAYS));
        } else {
            complete(requests, count, (enum way)way);
        }
        expect(from == previous * 100 + way, "a message beside broadcasts");
        for (i = 0; i < COUNT; i++) {
            expect(memcmp(ours[i], theirs[i], (size_t)lengths[(i + way) % 8]) == 0, "nonblocking broadcasts");
            free(ours[i]);
            free(theirs[i]);
            broadcasts++;
        }
    }
}

/* Starts a broadcast of elements, of one type at the root and of another elsewhere, which is freed
 * at once. */
static void compare_shape(MPI_Datatype at_root, int root_count, MPI_Datatype elsewhere, int count, int root)
{
    MPI_Datatype type, freed;
    MPI_Request requests[2];
    MPI_Aint lower, extent;
    char *ours, *theirs;
    size_t bytes;

    count = world_rank == root ? root_count : count;
    type = world_rank == root ? at_root : elsewhere;
    MPI_Type_get_true_extent(type, &lower, &extent);
    bytes = (size_t)extent;
    MPI_Type_get_extent(type, &lower, &extent);
    bytes += (size_t)extent * (size_t)(count ? count - 1 : 0);
    ours = allocate(bytes, count, root);
    theirs = allocate(bytes, count, root);
    MPI_Type_dup(type, &freed);
    MPI_Ibcast(ours, count, freed, root, MPI_COMM_WORLD, &requests[0]);
    MPI_Type_free(&freed);
    PMPI_Ibcast(theirs, count, type, root, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    expect(memcmp(ours, theirs, bytes) == 0, "nonblocking broadcasts of a type");
    free(ours);
    free(theirs);
    broadcasts++;
}

void shapes(void)
{
    const int reversed[] = {3, 2, 1, 0};
    MPI_Datatype vector, backwards, gap;
    int root;

    MPI_Type_vector(4, 3, 7, MPI_INT, &vector);
    MPI_Type_commit(&vector);
    MPI_Type_create_indexed_block(4, 1, reversed, MPI_INT, &backwards);
    MPI_Type_commit(&backwards);
    MPI_Type_create_resized(MPI_INT, 0, 12, &gap);
    MPI_Type_commit(&gap);
    make_groups(MPI_COMM_WORLD);
    for (root = 0; root < world_size; root++) {
        compare_shape(MPI_INT, 12 * 1000, vector, 1000, root);
        compare_shape(vector, 1000, MPI_INT, 12 * 1000, root);
        compare_shape(vector, 30000, vector, 30000, root);
        compare_shape(backwards, 3000, MPI_INT, 4 * 3000, root);
        compare_shape(gap, 1, MPI_FLOAT, 1, root);
        compare_shape(gap, 0, vector, 0, root);
        compare_shape(MPI_DOUBLE, 5000, MPI_DOUBLE, 5000, root);
    }
    MPI_Type_free(&vector);
    MPI_Type_free(&backwards);
    MPI_Type_free(&gap);
}

/* Blocking broadcasts and the end of a communicator while others are under way. */
void pending(void)
{
    enum { LENGTH = 2 << 20 };
    char *bytes = malloc(LENGTH);
    MPI_Request requests[3];
    int round, value, few[100];
    MPI_Comm comm;

    for (round = 0; round < 2 * world_size; round++) {
        int root = round % world_size, other = (round + 1) % world_size;

        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        make_groups(comm);
        memset(bytes, world_rank == root ? round : 0xa5, LENGTH);
        value = world_rank == root ? round : -1;
        memset(few, world_rank == root ? round : 0xa5, sizeof few);
        MPI_Ibcast(bytes, LENGTH, MPI_BYTE, root, comm, &requests[0]);
        MPI_Ibcast(few, sizeof few, MPI_BYTE, root, comm, &requests[1]);
        if (round % 2 == 0) {
            MPI_Bcast(&value, 1, MPI_INT, root, comm);
            expect(value == round, "a blocking broadcast after others");
        }
        value = world_rank == other ? round + 1 : -1;
        MPI_Bcast(&value, 1, MPI_INT, other, comm);
        expect(value == round + 1, "a blocking broadcast of another root");
        MPI_Ibcast(&value, 1, MPI_INT, root, comm, &requests[2]);
        MPI_Comm_free(&comm);
        MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
        expect(bytes[0] == round && bytes[LENGTH - 1] == round, "a broadcast of a communicator that is freed");
        expect(((char *)few)[0] == round && ((char *)few)[sizeof few - 1] == round, "a short broadcast after a long one");
        broadcasts += 4;
    }
    free(bytes);
}

/* A rank that expects another number of bytes gets an error, and the next broadcast is right. */
void other_lengths(void)
{
    static char bytes[300000];
    const int sent[] = {200000, 1000, 10, 100000}, expected[] = {100, 10, 1000, 200000};
    MPI_Request request;
    MPI_Comm comm;
    size_t i;
    int class, error, value;

    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    make_groups(comm);
    for (i = 0; i < sizeof sent / sizeof *sent; i++) {
        bool is_wrong = world_rank == world_size - 1 && world_size > 1;

        MPI_Ibcast(bytes, is_wrong ? expected[i] : sent[i], MPI_BYTE, 0, comm, &request);
        error = MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Error_class(error, &class);
        expect(class == (is_wrong ? MPI_ERR_TRUNCATE : MPI_SUCCESS), "a nonblocking broadcast of other bytes");
        /* The rank does not take the next broadcast for the one that it waits for. */
        MPI_Barrier(comm);
        value = world_rank == 0 ? (int)i : -1;
        MPI_Ibcast(&value, 1, MPI_INT, 0, comm, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        expect(value == (int)i, "a broadcast after a wrong one");
        broadcasts += 2;
    }
    MPI_Comm_free(&comm);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* The others complete a long broadcast while a rank, and then the root, waits in another function
 * of the MPI. */
void waits_elsewhere(void)
{
    enum { LENGTH = 8 << 20 };
    char *bytes = malloc(LENGTH);
    MPI_Request request;
    int round, value;

    make_groups(MPI_COMM_WORLD);
    for (round = 0; round < 6 && world_size > 1; round++) {
        int late = round % 2 ? 0 : world_size - 1, sender = world_size - 1 - late;

        memset(bytes, world_rank ? 0xa5 : round, LENGTH);
        MPI_Ibcast(bytes, LENGTH, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
        if (world_rank == late)
            MPI_Recv(&value, 1, MPI_INT, sender, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (world_rank == sender)
            MPI_Send(&round, 1, MPI_INT, late, 3, MPI_COMM_WORLD);
        expect(bytes[0] == round && bytes[LENGTH - 1] == round, "a broadcast while a rank waits elsewhere");
        broadcasts++;
    }
    free(bytes);
}

/* A rank ends while broadcasts are under way: the others do not hang. */
void killed_in_nonblocking(void)
{
    MPI_Request requests[2];
    int round, values[2] = {0, 0};

    make_groups(MPI_COMM_WORLD);
    for (round = 0; round < 1000000; round++) {
        if (round == 100 && world_rank == world_size - 1)
            _exit(0);
        MPI_Ibcast(&values[0], 1, MPI_INT, 0, MPI_COMM_WORLD, &requests[0]);
        MPI_Ibcast(&values[1], 1, MPI_INT, 0, MPI_COMM_WORLD, &requests[1]);
        MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
        MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
    }
}

static void *broadcast_alone(void *argument)
{
    MPI_Comm comm = *(MPI_Comm *)argument;
    static const int lengths[] = {4, 4000, 100000};
    int round, rank;

    make_groups(comm);
    MPI_Comm_rank(comm, &rank);
    for (round = 0; round < 60; round++) {
        MPI_Request requests[3];
        char *bytes[3];
        int i;

        for (i = 0; i < 3; i++) {
            int root = (round + i) % world_size;

            bytes[i] = malloc((size_t)lengths[i]);
            memset(bytes[i], rank == root ? round : 0xa5, (size_t)lengths[i]);
            MPI_Ibcast(bytes[i], lengths[i], MPI_BYTE, root, comm, &requests[i]);
        }
        complete(requests, 3, (enum way)(round % WAYS));
        for (i = 0; i < 3; i++) {
            expect(bytes[i][0] == round && bytes[i][lengths[i] - 1] == round, "a nonblocking broadcast of a thread");
            free(bytes[i]);
        }
    }
    return NULL;
}

void nonblocking_threads(void)
{
    enum { THREADS = 2 };
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
    broadcasts += THREADS * 60 * 3;
}

/* Nonblocking broadcasts between blocking ones, completed in another order. */
void nonblocking(void)
{
    enum { COUNT = 8 };
    int round, i, values[COUNT], blocking;
    MPI_Request requests[COUNT];

    for (round = 0; round < 50; round++) {
        int root = round % world_size;

        for (i = 0; i < COUNT; i++) {
            values[i] = world_rank == root ? round * COUNT + i : -1;
            MPI_Ibcast(&values[i], 1, MPI_INT, root, MPI_COMM_WORLD, &requests[i]);
            blocking = world_rank == root ? round + i : -1;
            MPI_Bcast(&blocking, 1, MPI_INT, root, MPI_COMM_WORLD);
            expect(blocking == round + i, "a blocking broadcast between others");
            broadcasts += 2;
        }
        for (i = COUNT - 1; i >= 0; i--)
            MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
        for (i = 0; i < COUNT; i++)
            expect(values[i] == round * COUNT + i, "a nonblocking broadcast");
    }
}
