/* Measures what communicators of the same processes cost:
 *
 *     treecast lab 4 --on 0 --no-prefix -- treecast mpi --ranks 1 -- ./sharing
 *
 * Prints the time of the first broadcast on MPI_COMM_WORLD and on each of three duplicates, and
 * then that of a broadcast on one of them alone, and on two in turn. All are medians in us, at the
 * slowest rank; those of first broadcasts are of rounds with new duplicates. */

#define _GNU_SOURCE

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { DUPLICATES = 3, ROUNDS = 21, BROADCASTS = 401, SETTLING = 10 };

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;

    return (a > b) - (a < b);
}

static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, compare);
    return times[count / 2];
}

/* The time of the slowest rank. The barrier is the MPI's own, and makes no groups. */
static double time_broadcast(MPI_Comm comm, char *bytes, int length)
{
    double since_us, own_us, all_us;

    PMPI_Barrier(MPI_COMM_WORLD);
    since_us = MPI_Wtime() * 1e6;
    MPI_Bcast(bytes, length, MPI_BYTE, 0, comm);
    own_us = MPI_Wtime() * 1e6 - since_us;
    PMPI_Allreduce(&own_us, &all_us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all_us;
}

/* Broadcasts on these communicators in turn. */
static double measure(const MPI_Comm *comms, int count, char *bytes, int length)
{
    static double times[BROADCASTS];
    int i;

    for (i = -SETTLING; i < BROADCASTS; i++) {
        double us = time_broadcast(comms[(i + SETTLING) % count], bytes, length);

        if (i >= 0)
            times[i] = us;
    }
    return median(times, BROADCASTS);
}

int main(int count, char *arguments[])
{
    static char bytes[1 << 20];
    const int lengths[] = {64, 16 << 10, 256 << 10};
    double firsts[DUPLICATES][ROUNDS], world_us;
    MPI_Comm comms[DUPLICATES];
    int i, round, rank;

    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    world_us = time_broadcast(MPI_COMM_WORLD, bytes, 64);
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < DUPLICATES; i++) {
            MPI_Comm_dup(MPI_COMM_WORLD, &comms[i]);
            firsts[i][round] = time_broadcast(comms[i], bytes, 64);
        }
        for (i = 0; i < DUPLICATES && round < ROUNDS - 1; i++)
            MPI_Comm_free(&comms[i]);
    }
    if (!rank)
        printf("first broadcasts\t%.0f", world_us);
    for (i = 0; i < DUPLICATES && !rank; i++)
        printf("\t%.0f", median(firsts[i], ROUNDS));
    if (!rank)
        printf("\nbytes\tone\ttwo in turn\n");
    for (i = 0; i < 3; i++) {
        double one_us = measure(comms, 1, bytes, lengths[i]);
        double two_us = measure(comms, 2, bytes, lengths[i]);

        if (!rank)
            printf("%d\t%.0f\t%.0f\n", lengths[i], one_us, two_us);
    }
    fflush(stdout);
    for (i = 0; i < DUPLICATES; i++)
        MPI_Comm_free(&comms[i]);
    MPI_Finalize();
    return 0;
}
