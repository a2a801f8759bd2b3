/* Broadcasts of each root on a communicator, compared with the MPI's own: for programs whose main
 * function is not that of broadcasts.c. */

#ifndef COMPARED_H
#define COMPARED_H

#include <mpi.h>
#include <stdio.h>
#include <string.h>

static long broadcasts;

/* Broadcasts short and long messages, and ends the process if one is wrong. */
static void compare(MPI_Comm comm)
{
    enum { LENGTH = 100000 };
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
            MPI_Abort(comm, 1);
        }
    }
    MPI_Barrier(comm);
}

#endif
