/* The part in C of crossing.F90: requests that one language starts and the other completes. */

#include <mpi.h>

static int value_in_c;

/* Starts a broadcast in C, whose request Fortran gets. */
void start_in_c_(const MPI_Fint *comm, const MPI_Fint *value, MPI_Fint *request)
{
    MPI_Request started;

    value_in_c = *value;
    MPI_Ibcast(&value_in_c, 1, MPI_INT, 0, MPI_Comm_f2c(*comm), &started);
    *request = MPI_Request_c2f(started);
}

void value_of_c_(MPI_Fint *value)
{
    *value = value_in_c;
}

/* Completes a request of Fortran in C. */
void complete_in_c_(MPI_Fint *request)
{
    MPI_Request started = MPI_Request_f2c(*request);

    MPI_Wait(&started, MPI_STATUS_IGNORE);
    *request = MPI_Request_c2f(started);
}
