/* Broadcasts among processes that MPI_Comm_spawn starts, and with their parents: what comes is
 * compared with what the MPI's own broadcast gives. */

#include <mpi.h>
#include <stdio.h>

#include "compared.h"

enum { CHILDREN = 2 };

int main(int count, char *arguments[])
{
    MPI_Comm parents, children, all;
    int rank, is_child;

    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_get_parent(&parents);
    is_child = parents != MPI_COMM_NULL;
    /* The parents have broadcast before, so that they have nodes already. */
    compare(MPI_COMM_WORLD);
    if (is_child)
        children = parents;
    else
        MPI_Comm_spawn(arguments[0], MPI_ARGV_NULL, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD,
                       &children, MPI_ERRCODES_IGNORE);
    MPI_Intercomm_merge(children, is_child, &all);
    compare(all);
    MPI_Comm_free(&all);
    MPI_Comm_disconnect(&children);
    compare(MPI_COMM_WORLD);
    if (!rank && !is_child)
        printf("spawn: %ld broadcasts\n", broadcasts);
    fflush(stdout);
    MPI_Finalize();
    return 0;
}
