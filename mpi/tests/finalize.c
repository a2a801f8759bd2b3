/* MPI_Finalize with a bound of its time. Each rank prints `rank N: the shim has ended` between the
 * shim's part and the MPI's. */

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "finalize.h"

static void end(int signal)
{
    static const char line[] = "MPI_Finalize does not return\n";

    (void)signal;
    (void)!write(STDOUT_FILENO, line, sizeof line - 1);
    _exit(3);
}

/* MPI_Finalize deletes the attributes of MPI_COMM_SELF first: what comes later is the MPI's, and
 * nothing of the shim. */
static int shim_has_ended(MPI_Comm comm, int key, void *value, void *state)
{
    int rank;

    (void)comm, (void)key, (void)value, (void)state;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    printf("rank %d: the shim has ended\n", rank);
    fflush(stdout);
#if defined(MPICH_NUMVERSION) && MPICH_NUMVERSION < 50000000
    alarm(2);
#else
    /* Ranks poll until all have come, on processors that other tests use too. */
    alarm(40);
#endif
    return MPI_SUCCESS;
}

void finalize(void)
{
    int key;

    MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, shim_has_ended, &key, NULL);
    MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL);
    signal(SIGALRM, end);
    alarm(60);
    MPI_Finalize();
}
