/* Broadcasts among processes that MPI_Comm_spawn starts, and with their parents: what comes is
 * compared with what the MPI's own broadcast gives. */

#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { LENGTH = 100000, CHILDREN = 2 };

static long broadcasts;

static void compare(MPI_Comm comm)
{
    static unsigned char bytes[LENGTH], expected[LENGTH];
    int rank, size, root, i;

    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    for (root = 0; root < size; root++) {
        int length = root % 2 ? LENGTH : 300;

        for (i = 0; i < length; i++)
            bytes[i] = expected[i] = (unsigned char)(rank == root ? i + root : 0);
        MPI_Bcast(bytes, length, MPI_BYTE, root, comm);
        PMPI_Bcast(expected, length, MPI_BYTE, root, comm);
        broadcasts++;
        if (memcmp(bytes, expected, (size_t)length) != 0) {
            fprintf(stderr, "rank %d of %d: a broadcast of root %d\n", rank, size, root);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    MPI_Barrier(comm);
}

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
        MPI_Comm_spawn(arguments[0], MPI_ARGV_NULL, CHILDREN, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &children, MPI_ERRCODES_IGNORE);
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
