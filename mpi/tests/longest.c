/* Measures the longest broadcasts of a run, which show what set-up costs:
 *
 *     treecast lab 4 --on 0 --no-prefix -- treecast mpi --ranks 2 -- ./longest 10
 *
 * Broadcasts a kilobyte from rank 0 for this number of seconds. Prints the number of broadcasts,
 * their median and the five longest, of those of all ranks, in us. */

#define _GNU_SOURCE

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { BROADCASTS_MAX = 1 << 20, BYTES = 1 << 10, LONGEST = 5 };

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;

    return (a > b) - (a < b);
}

/* Broadcasts until the time is over at rank 0, which all ranks learn with the broadcast. */
static int measure(double seconds, int rank, double *times)
{
    static double bytes[BYTES / sizeof(double)];
    double start = MPI_Wtime();
    int count = 0;

    do {
        double since;

        /* The MPI's own, so that the shim does not take it. */
        PMPI_Barrier(MPI_COMM_WORLD);
        since = MPI_Wtime();
        bytes[0] = rank ? 0 : since - start < seconds && count < BROADCASTS_MAX - 1;
        MPI_Bcast(bytes, BYTES, MPI_BYTE, 0, MPI_COMM_WORLD);
        times[count++] = 1e6 * (MPI_Wtime() - since);
    } while (bytes[0] > 0);
    return count;
}

int main(int argument_count, char *arguments[])
{
    static double own[BROADCASTS_MAX], all[BROADCASTS_MAX];
    int rank, count, i;

    MPI_Init(&argument_count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    count = measure(argument_count > 1 ? atof(arguments[1]) : 10, rank, own);
    PMPI_Reduce(own, all, count, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (!rank) {
        qsort(all, (size_t)count, sizeof *all, compare);
        printf("%d broadcasts, median %.0f, longest", count, all[count / 2]);
        for (i = 1; i <= LONGEST && i <= count; i++)
            printf(" %.0f", all[count - i]);
        printf("\n");
    }
    MPI_Finalize();
    return 0;
}
