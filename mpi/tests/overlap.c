/* Measures how much of a nonblocking broadcast goes on while the ranks do something else:
 *
 *     treecast lab 4 --on 0 --no-prefix -- treecast mpi --ranks 1 -- ./overlap
 *
 * For each length, medians in us at the slowest rank: the time of MPI_Ibcast and MPI_Wait, and the
 * time of both calls with as long a pause between them, without the pause. The ranks sleep in the
 * pause and do not compute, because those of a lab share the processors that their nodes need. The
 * overlap is the part of the first time that the pause hides, as the OSU benchmarks define it. */

#define _GNU_SOURCE

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { ROUNDS = 101, SETTLING = 3 };

static double times[ROUNDS];

static int compare(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;

    return (a > b) - (a < b);
}

/* The time of the slowest rank in the median round, without the pause. */
static double measure(char *bytes, int length, double pause_us)
{
    int round;

    for (round = -SETTLING; round < ROUNDS; round++) {
        double since_us, paused_us = 0, own_us, all_us;
        MPI_Request request;

        MPI_Barrier(MPI_COMM_WORLD);
        since_us = MPI_Wtime() * 1e6;
        MPI_Ibcast(bytes, length, MPI_BYTE, 0, MPI_COMM_WORLD, &request);
        if (pause_us > 0) {
            paused_us = -MPI_Wtime() * 1e6;
            usleep((useconds_t)pause_us);
            paused_us += MPI_Wtime() * 1e6;
        }
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        own_us = MPI_Wtime() * 1e6 - since_us - paused_us;
        MPI_Allreduce(&own_us, &all_us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (round >= 0)
            times[round] = all_us;
    }
    qsort(times, ROUNDS, sizeof *times, compare);
    return times[ROUNDS / 2];
}

int main(int count, char *arguments[])
{
    int length, rank;

    /* Sleeps are not to be 50 us longer than they are asked to be. */
    prctl(PR_SET_TIMERSLACK, 1);
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (!rank)
        printf("bytes\talone\twithout the pause\toverlap\n");
    for (length = 16 << 10; length <= 1 << 20; length *= 4) {
        char *bytes = malloc((size_t)length);
        double alone_us, with_us;

        memset(bytes, rank, (size_t)length);
        alone_us = measure(bytes, length, 0);
        with_us = measure(bytes, length, alone_us);
        if (!rank)
            printf("%d\t%.0f\t%.0f\t%.0f %%\n", length, alone_us, with_us,
                   with_us < alone_us ? 100 * (1 - with_us / alone_us) : 0);
        fflush(stdout);
        free(bytes);
    }
    MPI_Finalize();
    return 0;
}
