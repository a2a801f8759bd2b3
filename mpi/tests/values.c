/* Measures short collectives, of one long of each rank, by the MPI and by the shim:
 *
 *     TREECAST_MPI_CHOICE=always treecast lab 4 --on 0 --no-prefix -- treecast mpi --ranks 1 -- ./values
 *
 * All ranks begin together, after a barrier. The time of a collective is that of the slowest rank,
 * and of a reduce the mean of all ranks; medians in us. Both ways alternate in one run. */

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 400, SETTLING = 20, TURNS = 2 };

static double times[ROUNDS];
static int size;
static long own, *all;

static void mpi_allgather(void)
{
    PMPI_Allgather(&own, 1, MPI_LONG, all, 1, MPI_LONG, MPI_COMM_WORLD);
}

static void shim_allgather(void)
{
    MPI_Allgather(&own, 1, MPI_LONG, all, 1, MPI_LONG, MPI_COMM_WORLD);
}

static void mpi_reduce(void)
{
    PMPI_Reduce(&own, all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
}

static void shim_reduce(void)
{
    MPI_Reduce(&own, all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
}

static void mpi_allreduce(void)
{
    PMPI_Allreduce(&own, all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
}

static void shim_allreduce(void)
{
    MPI_Allreduce(&own, all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
}

static void mpi_barrier(void)
{
    PMPI_Barrier(MPI_COMM_WORLD);
}

static void shim_barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static const struct {
    const char *name;
    void (*by_mpi)(void), (*by_shim)(void);
    bool is_mean;
} COLLECTIVES[] = {
    {"all-gather", mpi_allgather, shim_allgather, false},
    {"reduce", mpi_reduce, shim_reduce, true},
    {"all-reduce", mpi_allreduce, shim_allreduce, false},
    {"barrier", mpi_barrier, shim_barrier, false},
};

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;

    return (a > b) - (a < b);
}

/* The median time of a collective. */
static double measure(void (*collective)(void), bool is_mean)
{
    int round;

    for (round = -SETTLING; round < ROUNDS; round++) {
        double since_us, own_us, all_us;

        PMPI_Barrier(MPI_COMM_WORLD);
        since_us = MPI_Wtime() * 1e6;
        collective();
        own_us = MPI_Wtime() * 1e6 - since_us;
        PMPI_Allreduce(&own_us, &all_us, 1, MPI_DOUBLE, is_mean ? MPI_SUM : MPI_MAX, MPI_COMM_WORLD);
        if (round >= 0)
            times[round] = is_mean ? all_us / size : all_us;
    }
    qsort(times, ROUNDS, sizeof *times, compare);
    return times[ROUNDS / 2];
}

int main(int count, char *arguments[])
{
    int rank, turn;
    size_t i;

    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    own = rank;
    all = malloc((size_t)size * sizeof *all);
    if (!rank)
        printf("\tMPI\tshim\n");
    for (turn = 0; turn < TURNS; turn++)
        for (i = 0; i < sizeof COLLECTIVES / sizeof *COLLECTIVES; i++) {
            double mpi_us = measure(COLLECTIVES[i].by_mpi, COLLECTIVES[i].is_mean);
            double shim_us = measure(COLLECTIVES[i].by_shim, COLLECTIVES[i].is_mean);

            if (!rank)
                printf("%s\t%.0f\t%.0f\n", COLLECTIVES[i].name, mpi_us, shim_us);
            fflush(stdout);
        }
    free(all);
    MPI_Finalize();
    return 0;
}
