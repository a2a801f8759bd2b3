/* Reduces, to one rank and to all, and barriers, compared with those of the MPI. */

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "broadcasts.h"

enum { BYTES_MAX = 1024 };

static bool is_fraction(MPI_Datatype type)
{
    return type == MPI_FLOAT || type == MPI_DOUBLE;
}

/* Small numbers, whose sums and products are exact in each order. */
static void set(void *values, MPI_Datatype type, int count)
{
    int bytes, i;

    MPI_Type_size(type, &bytes);
    for (i = 0; i < count; i++) {
        int number = (int)(((unsigned)(world_rank * 31 + i * 7) + (unsigned)broadcasts) % 8) - 3;

        if (type == MPI_FLOAT)
            ((float *)values)[i] = (float)number / 2;
        else if (type == MPI_DOUBLE)
            ((double *)values)[i] = number / 2.0;
        else if (bytes == 8)
            ((int64_t *)values)[i] = number * (1ll << 40 | 1);
        else if (bytes == 4)
            ((int32_t *)values)[i] = number * 77777777;
        else
            memset((char *)values + i * bytes, number, (size_t)bytes);
    }
}

/* The root of a reduce to all ranks. */
enum { ALL = -1 };

static void reduce_in(const void *from, void *to, MPI_Datatype type, int count, MPI_Op op, int root, MPI_Comm comm)
{
#if MPI_VERSION >= 4
    if (broadcasts % 2) {
        if (root == ALL)
            expect(MPI_Allreduce_c(from, to, count, type, op, comm) == MPI_SUCCESS, "MPI_Allreduce_c");
        else
            expect(MPI_Reduce_c(from, to, count, type, op, root, comm) == MPI_SUCCESS, "MPI_Reduce_c");
        return;
    }
#endif
    if (root == ALL)
        expect(MPI_Allreduce(from, to, count, type, op, comm) == MPI_SUCCESS, "MPI_Allreduce");
    else
        expect(MPI_Reduce(from, to, count, type, op, root, comm) == MPI_SUCCESS, "MPI_Reduce");
}

/* Reduces by the shim and by the MPI. Only the results of the root, or of all, may be written. */
static void compare_in(MPI_Datatype type, int count, MPI_Op op, int root, bool is_in_place, MPI_Comm comm)
{
    int64_t from[BYTES_MAX / 8], ours[BYTES_MAX / 8], theirs[BYTES_MAX / 8], untouched[BYTES_MAX / 8];
    char name[MPI_MAX_OBJECT_NAME];
    const void *given = from;
    int rank, length;

    MPI_Comm_rank(comm, &rank);
    memset(from, GAP, sizeof from);
    memset(ours, GAP, sizeof ours);
    memset(untouched, GAP, sizeof untouched);
    set(from, type, count);
    if (is_in_place && (root == ALL || rank == root)) {
        memcpy(ours, from, sizeof ours);
        given = MPI_IN_PLACE;
    }
    memcpy(theirs, ours, sizeof theirs);
    reduce_in(given, ours, type, count, op, root, comm);
    if (root == ALL)
        expect(PMPI_Allreduce(given, theirs, count, type, op, comm) == MPI_SUCCESS, "PMPI_Allreduce");
    else
        expect(PMPI_Reduce(given, theirs, count, type, op, root, comm) == MPI_SUCCESS, "PMPI_Reduce");
    if (memcmp(ours, root == ALL || rank == root ? theirs : untouched, sizeof ours) != 0) {
        MPI_Type_get_name(type, name, &length);
        fprintf(stderr, "%d of %s, reduce %ld: %llx and not %llx\n", count, name, broadcasts, (long long)*ours, (long long)*theirs);
        expect(false, "the reduces differ");
    }
    broadcasts++;
}

static void compare(MPI_Datatype type, int count, MPI_Op op, int root, MPI_Comm comm)
{
    compare_in(type, count, op, root, false, comm);
    compare_in(type, count, op, root, true, comm);
    compare_in(type, count, op, ALL, broadcasts / 2 % 2, comm);
}

static void basic_types(void)
{
    const MPI_Datatype types[] = {MPI_INT,     MPI_UNSIGNED, MPI_LONG,  MPI_LONG_LONG, MPI_UNSIGNED_LONG, MPI_INT32_T,
                                  MPI_INT64_T, MPI_UINT32_T, MPI_FLOAT, MPI_DOUBLE,    MPI_SIGNED_CHAR,   MPI_SHORT};
    const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_LAND, MPI_BAND, MPI_BOR, MPI_BXOR};
    const int counts[] = {0, 1, 5, 63, 64, 126, 127};
    size_t type, op, count;
    int bytes;

    for (type = 0; type < sizeof types / sizeof *types; type++) {
        MPI_Type_size(types[type], &bytes);
        for (op = 0; op < sizeof ops / sizeof *ops; op++)
            for (count = 0; count < sizeof counts / sizeof *counts; count++)
                /* Logic and bits are of integers. */
                if (counts[count] * bytes <= BYTES_MAX && (op < 4 || !is_fraction(types[type])))
                    compare(types[type], counts[count], ops[op], (int)count % 2, MPI_COMM_WORLD);
    }
}

static void first_wins(void *from, void *to, int *count, MPI_Datatype *type)
{
    (void)type;
    memcpy(to, from, (size_t)*count * sizeof(int));
}

/* What is the MPI's: operations of the program, pairs of a value and a place, other
 * communicators. */
static void others(void)
{
    bool is_first = world_rank % 2 == 0;
    int own = world_rank, greatest = -1;
    MPI_Comm half, both;
    MPI_Op op;

    MPI_Op_create(first_wins, 0, &op);
    compare(MPI_INT, 3, op, 0, MPI_COMM_WORLD);
    MPI_Op_free(&op);
    compare(MPI_2INT, 3, MPI_MINLOC, 0, MPI_COMM_WORLD);
    compare(MPI_INT, 3, MPI_SUM, 0, MPI_COMM_SELF);
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, -world_rank, &half);
    compare(MPI_INT, 3, MPI_SUM, 0, half);
    MPI_Comm_free(&half);
    MPI_Comm_split(MPI_COMM_WORLD, is_first ? 0 : 1, world_rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, is_first ? 1 : 0, 7, &both);
    MPI_Reduce(&own, &greatest, 1, MPI_INT, MPI_MAX, !is_first ? 0 : world_rank == 0 ? MPI_ROOT : MPI_PROC_NULL, both);
    expect(greatest == (world_rank == 0 ? world_size - 1 - world_size % 2 : -1), "an intercommunicator");
    MPI_Allreduce(&own, &greatest, 1, MPI_INT, MPI_MAX, both);
    expect(greatest == (is_first ? world_size / 2 * 2 - 1 : (world_size - 1) / 2 * 2), "all of an intercommunicator");
    MPI_Barrier(both);
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
}

/* By a clock that all hosts of a lab share; that of MPI_Wtime() begins at each rank's start. */
static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Nobody leaves a barrier before the last rank, which is late, is in it. */
static void barriers(void)
{
    enum { ROUNDS = 40 };
    int round;

    for (round = 0; round < ROUNDS; round++) {
        double last_s, entered_s, left_s;

        if (world_rank == round % world_size)
            usleep(2000);
        entered_s = now_s();
        expect(MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS, "MPI_Barrier");
        left_s = now_s();
        PMPI_Allreduce(&entered_s, &last_s, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        expect(left_s >= last_s, "a rank has left a barrier too early");
    }
    expect(MPI_Barrier(MPI_COMM_SELF) == MPI_SUCCESS, "a barrier of one rank");
    broadcasts += ROUNDS;
}

/* Beside the broadcasts and all-gathers of the same roots; nothing else keeps the ranks
 * together. */
static void among_others(void)
{
    enum { ROUNDS = 1000 };
    int round, sum, sum_at_all, *all = malloc((size_t)world_size * sizeof *all);

    for (round = 0; round < ROUNDS; round++) {
        int root = round / 10 % 2, own = world_rank + round;

        sum = -1;
        MPI_Reduce(&own, &sum, 1, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
        expect(sum == (world_rank == root ? world_size * (world_size - 1) / 2 + world_size * round : -1), "a sum among many");
        if (round % 3 == 0)
            MPI_Bcast(&sum, 1, MPI_INT, root, MPI_COMM_WORLD);
        if (round % 5 == 0) {
            MPI_Allreduce(&own, &sum_at_all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
            expect(sum_at_all == world_size * (world_size - 1) / 2 + world_size * round, "a sum at all ranks among many");
        }
        if (round % 11 == 0)
            MPI_Barrier(MPI_COMM_WORLD);
        if (round % 7 == 0)
            MPI_Allgather(&own, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
        expect(round % 7 || all[world_size - 1] == world_size - 1 + round, "a block among reduces");
    }
    broadcasts += ROUNDS;
    free(all);
}

void reduces(void)
{
    basic_types();
    others();
    barriers();
    among_others();
}

/* A rank ends in the middle, as in killed_rank(). */
void killed_in_values(void)
{
    int round, own = 1, sum, *all = malloc((size_t)world_size * sizeof *all);

    for (round = 0; round < 1000000; round++) {
        if (round == 100 && world_rank == world_size - 1)
            _exit(0);
        MPI_Allgather(&own, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
        MPI_Reduce(&own, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
        expect(world_rank || sum == world_size, "a sum without the values of a rank that has ended");
        MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        expect(sum == world_size, "a sum at all ranks without the values of a rank that has ended");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(all);
}
