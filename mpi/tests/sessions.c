/* Broadcasts of sessions (MPI 4), without MPI_Init. The argument is the number of sessions, one
 * after the other. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "compared.h"

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
        compare(comm);
        MPI_Comm_free(&comm);
        MPI_Group_free(&group);
        MPI_Session_finalize(&session);
    }
    if (!rank)
        printf("sessions: %ld broadcasts\n", broadcasts);
    return 0;
}
