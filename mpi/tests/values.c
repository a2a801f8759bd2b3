/* Measures short all-gathers and reduces, of one long of each rank, by the MPI and by the shim:
 *
 *     TREECAST_MPI_CHOICE=always treecast lab 4 --on 0 --no-prefix -- treecast mpi --ranks 1 -- ./values
 *
 * The time of an all-gather is that of the slowest rank, and of a reduce the mean of all ranks, as the
 * shim compares them; medians in us. Both ways alternate in one run. */

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 400, SETTLING = 20, TURNS = 2 };

typedef int allgather_function(const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
typedef int reduce_function(const void *, void *, int, MPI_Datatype, MPI_Op, int, MPI_Comm);

static double times[ROUNDS];
static int size;
static long *all;

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;

    return (a > b) - (a < b);
}

/* The median time of one of them; the other is NULL. */
static double measure(allgather_function *allgather, reduce_function *reduce)
{
    long own = size;
    int round;

    for (round = -SETTLING; round < ROUNDS; round++) {
        double since_us, own_us, all_us;

        PMPI_Barrier(MPI_COMM_WORLD);
        since_us = MPI_Wtime() * 1e6;
        if (allgather)
            allgather(&own, 1, MPI_LONG, all, 1, MPI_LONG, MPI_COMM_WORLD);
        else
            reduce(&own, all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
        own_us = MPI_Wtime() * 1e6 - since_us;
        PMPI_Allreduce(&own_us, &all_us, 1, MPI_DOUBLE, allgather ? MPI_MAX : MPI_SUM, MPI_COMM_WORLD);
        if (round >= 0)
            times[round] = allgather ? all_us : all_us / size;
    }
    qsort(times, ROUNDS, sizeof *times, compare);
    return times[ROUNDS / 2];
}

int main(int count, char *arguments[])
{
    int rank, turn;

    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    all = malloc((size_t)size * sizeof *all);
    if (!rank)
        printf("\tMPI\tshim\n");
    for (turn = 0; turn < 2 * TURNS; turn++) {
        bool is_reduce = turn % 2;
        double mpi_us = is_reduce ? measure(NULL, PMPI_Reduce) : measure(PMPI_Allgather, NULL);
        double shim_us = is_reduce ? measure(NULL, MPI_Reduce) : measure(MPI_Allgather, NULL);

        if (!rank)
            printf("%s\t%.0f\t%.0f\n", is_reduce ? "reduce" : "all-gather", mpi_us, shim_us);
        fflush(stdout);
    }
    free(all);
    MPI_Finalize();
    return 0;
}
