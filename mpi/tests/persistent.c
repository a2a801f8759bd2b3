/* Persistent broadcasts: what comes is compared with what the MPI's own broadcasts give. */

#define _GNU_SOURCE

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broadcasts.h"

#ifdef OPEN_MPI
#include <mpi-ext.h>
#if OMPI_MAJOR_VERSION < 5
#define MPI_Bcast_init MPIX_Bcast_init
#define PMPI_Bcast_init PMPIX_Bcast_init
#endif
#endif

/* In MPICH's headers MPI_STATUSES_IGNORE is an array of no elements to the compiler. */
#pragma GCC diagnostic ignored "-Wstringop-overflow"

/* How requests are completed. */
enum way { WAIT_BACKWARDS, WAITALL, WAITANY, WAITSOME, TEST, TESTALL, TESTANY, TESTSOME, GET_STATUS, WAYS };

enum { REQUESTS_MAX = 16 };

/* Completes those that are active, of which `left` are no broadcasts and end too. */
static void complete(MPI_Request *requests, int count, int left, enum way way)
{
    int i, index, flag = 0, completed, indices[REQUESTS_MAX];
    MPI_Status statuses[REQUESTS_MAX];

    switch (way) {
    case WAITALL:
        expect(MPI_Waitall(count, requests, statuses) == MPI_SUCCESS, "MPI_Waitall");
        return;
    case TESTALL:
        while (!flag)
            expect(MPI_Testall(count, requests, &flag, statuses) == MPI_SUCCESS, "MPI_Testall");
        return;
    case WAITANY:
    case TESTANY:
        for (; left; left -= flag) {
            flag = 1;
            if (way == WAITANY)
                expect(MPI_Waitany(count, requests, &index, statuses) == MPI_SUCCESS, "MPI_Waitany");
            else
                expect(MPI_Testany(count, requests, &index, &flag, statuses) == MPI_SUCCESS, "MPI_Testany");
            expect(!flag || (index >= 0 && index < count), "the index of a request");
        }
        MPI_Testany(count, requests, &index, &flag, statuses);
        expect(flag && index == MPI_UNDEFINED, "none is active");
        return;
    case WAITSOME:
    case TESTSOME:
        for (; left; left -= completed)
            expect((way == WAITSOME ? MPI_Waitsome : MPI_Testsome)(count, requests, &completed, indices, statuses) == MPI_SUCCESS &&
                       completed != MPI_UNDEFINED,
                   "MPI_Waitsome or MPI_Testsome");
        MPI_Waitsome(count, requests, &completed, indices, statuses);
        expect(completed == MPI_UNDEFINED, "none is active");
        return;
    default:
        for (i = count - 1; i >= 0; i--) {
            for (flag = way == WAIT_BACKWARDS; !flag;)
                if (way == TEST)
                    MPI_Test(&requests[i], &flag, statuses);
                else
                    MPI_Request_get_status(requests[i], &flag, statuses);
            expect(way == TEST || MPI_Wait(&requests[i], statuses) == MPI_SUCCESS, "MPI_Wait");
        }
    }
}

/* All are inactive: waiting for them returns at once, with empty statuses. */
static void expect_inactive(MPI_Request *requests, int count)
{
    int i, flag, elements;
    MPI_Status status;

    for (i = 0; i < count; i++) {
        expect(requests[i] != MPI_REQUEST_NULL, "a persistent request stays");
        expect(MPI_Wait(&requests[i], &status) == MPI_SUCCESS, "MPI_Wait for an inactive request");
        MPI_Get_count(&status, MPI_BYTE, &elements);
        expect(status.MPI_SOURCE == MPI_ANY_SOURCE && status.MPI_TAG == MPI_ANY_TAG && elements == 0, "an empty status");
        MPI_Request_get_status(requests[i], &flag, &status);
        expect(flag, "the status of an inactive request");
    }
}

enum { KINDS = 5 };

/* Of the kinds of broadcasts: the elements, and their extent in bytes. */
static const struct {
    int is_of_last_root, is_vector, count, bytes;
} kinds[KINDS] = {{0, 0, 100, 100}, {0, 0, 300000, 300000}, {0, 1, 500, 500 * 100}, {1, 0, 65536, 65536}, {1, 1, 3000, 3000 * 100}};

static int root_of(int kind)
{
    return kinds[kind].is_of_last_root ? world_size - 1 : 0;
}

static void fill(char *bytes, int kind, int round)
{
    int i;

    for (i = 0; i < kinds[kind].bytes; i++)
        bytes[i] = (char)(world_rank == root_of(kind) ? ((unsigned)i * 2654435761u + (unsigned)round * 97) >> 3 : 0xa5);
}

static void init(char *bytes, int kind, MPI_Datatype vector, MPI_Comm comm, MPI_Request *request)
{
    MPI_Datatype type;

    MPI_Type_dup(kinds[kind].is_vector ? vector : MPI_BYTE, &type);
    expect(MPI_Bcast_init(bytes, kinds[kind].count, type, root_of(kind), comm, MPI_INFO_NULL, request) == MPI_SUCCESS, "MPI_Bcast_init");
    MPI_Type_free(&type);
}

static MPI_Datatype gapped(void)
{
    MPI_Datatype vector, resized;

    MPI_Type_vector(4, 2, 6, MPI_INT, &vector);
    MPI_Type_create_resized(vector, 0, 100, &resized);
    MPI_Type_commit(&resized);
    MPI_Type_free(&vector);
    return resized;
}

/* Broadcasts of the same requests again and again, which each rank starts in an order of its own,
 * beside messages and a blocking broadcast. */
void persistent(void)
{
    enum { ROUNDS = 2 * WAYS };
    MPI_Request requests[KINDS + 2];
    char *ours[KINDS], *theirs[KINDS];
    MPI_Datatype vector = gapped();
    int round, kind, i, from, to, next = (world_rank + 1) % world_size, previous = (world_rank + world_size - 1) % world_size;

    for (kind = 0; kind < KINDS; kind++) {
        ours[kind] = malloc((size_t)kinds[kind].bytes);
        theirs[kind] = malloc((size_t)kinds[kind].bytes);
        init(ours[kind], kind, vector, MPI_COMM_WORLD, &requests[kind]);
    }
    MPI_Send_init(&to, 1, MPI_INT, next, 9, MPI_COMM_WORLD, &requests[KINDS]);
    MPI_Recv_init(&from, 1, MPI_INT, previous, 9, MPI_COMM_WORLD, &requests[KINDS + 1]);
    for (round = 0; round < ROUNDS; round++) {
        int value = world_rank == 0 ? round : -1, left = KINDS + 2;

        from = -1;
        to = world_rank * 100 + round;
        for (kind = 0; kind < KINDS; kind++) {
            fill(ours[kind], kind, round);
            fill(theirs[kind], kind, round);
        }
        if (world_rank % 2)
            MPI_Bcast(&value, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (round % 3 == 0) {
            MPI_Startall(KINDS + 2, requests);
        } else if (round % 3 == 1) {
            for (i = 0; i < KINDS + 2; i++)
                MPI_Start(&requests[(i + world_rank) % (KINDS + 2)]);
        } else {
            /* The first and the last one stay inactive. */
            left = KINDS - 1;
            MPI_Startall(left, requests + 1);
        }
        if (world_rank % 2 == 0)
            MPI_Bcast(&value, 1, MPI_INT, 0, MPI_COMM_WORLD);
        expect(value == round, "a blocking broadcast beside persistent ones");
        complete(requests, KINDS + 2, left, (enum way)(round % WAYS));
        expect_inactive(requests, KINDS + 2);
        for (kind = 0; kind < KINDS; kind++) {
            bool is_started = round % 3 != 2 || kind;

            if (is_started)
                PMPI_Bcast(theirs[kind], kinds[kind].count, kinds[kind].is_vector ? vector : MPI_BYTE, root_of(kind), MPI_COMM_WORLD);
            expect(memcmp(ours[kind], theirs[kind], (size_t)kinds[kind].bytes) == 0, "persistent broadcasts");
            broadcasts += is_started;
        }
        expect(round % 3 == 2 || from == previous * 100 + round, "a message beside broadcasts");
    }
    for (i = 0; i < KINDS + 2; i++) {
        expect(MPI_Request_free(&requests[i]) == MPI_SUCCESS && requests[i] == MPI_REQUEST_NULL, "MPI_Request_free");
        if (i < KINDS) {
            free(ours[i]);
            free(theirs[i]);
        }
    }
    MPI_Type_free(&vector);
}

static void broadcast_once(MPI_Request *request, int *value, int root, int round)
{
    *value = world_rank == root ? round : -1;
    MPI_Start(request);
    MPI_Wait(request, MPI_STATUS_IGNORE);
    expect(*value == round, "a persistent broadcast");
    broadcasts++;
}

/* Requests are freed and made again, more than have groups at a time, and outlive communicators. */
void persistent_ends(void)
{
    enum { MANY = 40, COMMUNICATORS = 3 };
    MPI_Request requests[MANY], left[COMMUNICATORS];
    int values[MANY], left_values[COMMUNICATORS], round, i;
    MPI_Comm comm;

    for (round = 0; round < COMMUNICATORS; round++) {
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        for (i = 0; i < MANY; i++)
            MPI_Bcast_init(&values[i], 1, MPI_INT, i % world_size, comm, MPI_INFO_NULL, &requests[i]);
        for (i = 0; i < MANY; i++)
            broadcast_once(&requests[i], &values[i], i % world_size, round * 7);
        /* Each rank frees others first. */
        for (i = 0; i < MANY; i++)
            MPI_Request_free(&requests[(i + world_rank) % MANY]);
        MPI_Bcast_init(&left_values[round], 1, MPI_INT, world_size - 1, comm, MPI_INFO_NULL, &left[round]);
        broadcast_once(&left[round], &left_values[round], world_size - 1, round);
        if (round == 1)
            MPI_Request_free(&left[round]);
        MPI_Comm_free(&comm);
        for (i = 0; i < 20 && round != 1; i++)
            broadcast_once(&left[round], &left_values[round], world_size - 1, i);
    }
    MPI_Request_free(&left[0]);
    MPI_Request_free(&left[2]);
}
