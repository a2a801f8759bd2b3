/* Broadcasts of sessions (MPI 4), without MPI_Init: what comes is compared with what the MPI's own broadcast gives. The argument is
 * the number of sessions, one after the other. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 100000 };

static long broadcasts;

static int differ(MPI_Comm comm)
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
        if (memcmp(bytes, expected, (size_t)length) != 0)
            return 1;
    }
    MPI_Barrier(comm);
    return 0;
}

int main(int count, char *arguments[])
{
    int round, rank = 0, sessions = count > 1 ? atoi(arguments[1]) : 1;

    for (round = 0; round < sessions; round++) {
        MPI_Session session;
        MPI_Group group;
        MPI_Comm comm;

        MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
        MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
        MPI_Comm_create_from_group(group, "treecast", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &comm);
        MPI_Comm_rank(comm, &rank);
        if (differ(comm)) {
            fprintf(stderr, "rank %d: a broadcast of a session\n", rank);
            return 1;
        }
        MPI_Comm_free(&comm);
        MPI_Group_free(&group);
        MPI_Session_finalize(&session);
    }
    if (!rank)
        printf("sessions: %ld broadcasts\n", broadcasts);
    return 0;
}
