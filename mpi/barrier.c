/* Barriers: an all-reduce without values, by the groups of rank 0. */

#include "call.h"
#include "intercept.h"
#include "transfer.h"

static int carry_out(const struct call *call, struct root_groups *groups)
{
    return combine_values(call->communicator, groups, NULL, 0, TC_U32, TC_OR);
}

typedef int barrier_function(handle comm);

barrier_function intercept_barrier INTERCEPT(MPI_Barrier);

int intercept_barrier(handle comm)
{
    struct call call = {.collective = BARRIER, .comm = (MPI_Comm)comm, .carry_out = carry_out};

    if (mpi_find()) {
        /* It is taken although it has no bytes. */
        call.outcome = judge(call.comm, call.root, 1);
        if (begin_call(&call))
            return call.error;
    }
    return end_call(&call, PASS_TO(barrier_function, "PMPI_Barrier")(comm));
}

#ifdef OPEN_MPI
typedef void barrier_of_fortran_function(const MPI_Fint *comm, MPI_Fint *error);

static __attribute__((used)) void barrier_from_fortran(const MPI_Fint *comm, MPI_Fint *error)
{
    int result;

    if (!mpi_find()) {
        PASS_TO(barrier_of_fortran_function, "pmpi_barrier_")(comm, error);
        return;
    }
    result = intercept_barrier(COMM_IN_C(*comm));
    if (error)
        *error = result;
}

FORTRAN_NAMES(barrier_from_fortran, barrier, BARRIER)
#endif
