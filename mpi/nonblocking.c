/* Nonblocking broadcasts, and the collectives in which groups for them are made. */

#include "call.h"
#include "choice.h"
#include "communicator.h"
#include "intercept.h"
#include "request.h"
#include "settings.h"

enum outcome judge_untried(MPI_Comm comm, int root, uint64_t bytes, struct communicator **found)
{
    struct communicator *communicator;
    enum outcome outcome = judge(comm, root, bytes);

    if (outcome != TAKEN)
        return outcome;
    if (find_communicator(comm, found) != MPI_SUCCESS)
        return NONBLOCKING;
    communicator = *found;
    if (communicator->outcome != TAKEN)
        return communicator->outcome;
    if (bytes < communicator->bytes_min || bytes > communicator->bytes_max)
        return OTHER_BYTES;
    return choose_nonblocking(&communicator->choice, class_of(BROADCAST, bytes));
}

/* Whether a nonblocking broadcast is taken, and then by which groups. All ranks get the same
 * result, without a word between them: what they look at changes only in collectives. */
static enum outcome judge_nonblocking(MPI_Comm comm, int root, uint64_t bytes, struct communicator **found, struct root_groups **groups)
{
    enum outcome outcome = judge_untried(comm, root, bytes, found);

    if (outcome != TAKEN)
        return outcome;
    if (settings()->choice != CHOICE_ALWAYS && !is_worth_groups(*found, root))
        return RARE_ROOT;
    *groups = find_made(*found, root);
    return *groups ? TAKEN : NONBLOCKING;
}

/* Starts a broadcast and returns an error code, or sets `is_passed_on`. */
static int begin(void *address, MPI_Count count, handle type, int root, handle comm, void *request, bool *is_passed_on)
{
    struct buffer buffer = {.address = address, .count = count, .type = (MPI_Datatype)type};
    struct communicator *communicator;
    struct root_groups *groups;
    int error;

    *is_passed_on = true;
    if (!mpi_find() || !request)
        return MPI_SUCCESS;
    buffer.bytes = bytes_of(count, buffer.type);
    *is_passed_on = judge_nonblocking((MPI_Comm)comm, root, buffer.bytes, &communicator, &groups) != TAKEN;
    if (*is_passed_on)
        return MPI_SUCCESS;
    communicator->report.nonblocking++;
    communicator->report.nonblocking_bytes += buffer.bytes;
    error = start_request(communicator, groups, &buffer, request);
    if (error != MPI_SUCCESS)
        mpi.Comm_call_errhandler((MPI_Comm)comm, error);
    return error;
}

typedef int ibcast_function(void *address, int count, handle type, int root, handle comm, void *request);
typedef int ibcast_c_function(void *address, MPI_Count count, handle type, int root, handle comm, void *request);
typedef int barrier_function(handle comm);
typedef int allreduce_function(const void *from, void *to, int count, handle type, handle op, handle comm);
typedef int allreduce_c_function(const void *from, void *to, MPI_Count count, handle type, handle op, handle comm);

ibcast_function intercept_ibcast INTERCEPT(MPI_Ibcast);
ibcast_c_function intercept_ibcast_c INTERCEPT(MPI_Ibcast_c);
barrier_function intercept_barrier INTERCEPT(MPI_Barrier);
allreduce_function intercept_allreduce INTERCEPT(MPI_Allreduce);
allreduce_c_function intercept_allreduce_c INTERCEPT(MPI_Allreduce_c);

int intercept_ibcast(void *address, int count, handle type, int root, handle comm, void *request)
{
    bool is_passed_on;
    int error = begin(address, count, type, root, comm, request, &is_passed_on);

    if (!is_passed_on)
        return error;
    count_passed(BROADCAST, NONBLOCKING);
    return PASS_TO(ibcast_function, "PMPI_Ibcast")(address, count, type, root, comm, request);
}

int intercept_ibcast_c(void *address, MPI_Count count, handle type, int root, handle comm, void *request)
{
    bool is_passed_on;
    int error = begin(address, count, type, root, comm, request, &is_passed_on);

    if (!is_passed_on)
        return error;
    count_passed(BROADCAST, NONBLOCKING);
    return PASS_TO(ibcast_c_function, "PMPI_Ibcast_c")(address, count, type, root, comm, request);
}

/* Makes the groups that are wanted, in a collective of the program that may wait for all ranks. */
static int make_groups_in(handle comm)
{
    int error = mpi_find() ? make_wanted_groups((MPI_Comm)comm) : MPI_SUCCESS;

    if (error != MPI_SUCCESS)
        mpi.Comm_call_errhandler((MPI_Comm)comm, error);
    return error;
}

int intercept_barrier(handle comm)
{
    int error = make_groups_in(comm);

    return error != MPI_SUCCESS ? error : PASS_TO(barrier_function, "PMPI_Barrier")(comm);
}

int intercept_allreduce(const void *from, void *to, int count, handle type, handle op, handle comm)
{
    int error = make_groups_in(comm);

    return error != MPI_SUCCESS ? error : PASS_TO(allreduce_function, "PMPI_Allreduce")(from, to, count, type, op, comm);
}

int intercept_allreduce_c(const void *from, void *to, MPI_Count count, handle type, handle op, handle comm)
{
    int error = make_groups_in(comm);

    return error != MPI_SUCCESS ? error : PASS_TO(allreduce_c_function, "PMPI_Allreduce_c")(from, to, count, type, op, comm);
}

#ifdef OPEN_MPI
/* Fortran's functions call those of C by their profiling names in Open MPI. A collective in which
 * some ranks are in Fortran code is one for all of them. */

typedef void barrier_of_fortran_function(const MPI_Fint *comm, MPI_Fint *error);
typedef void allreduce_of_fortran_function(const void *from, void *to, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *op,
                                           const MPI_Fint *comm, MPI_Fint *error);

/* Returns whether the collective can go on; otherwise the error is set. */
static bool make_groups_from_fortran(const MPI_Fint *comm, MPI_Fint *error)
{
    int result = make_groups_in(COMM_IN_C(*comm));

    if (result != MPI_SUCCESS && error)
        *error = result;
    return result == MPI_SUCCESS;
}

static __attribute__((used)) void barrier_from_fortran(const MPI_Fint *comm, MPI_Fint *error)
{
    if (make_groups_from_fortran(comm, error))
        PASS_TO(barrier_of_fortran_function, "pmpi_barrier_")(comm, error);
}

static __attribute__((used)) void allreduce_from_fortran(const void *from, void *to, const MPI_Fint *count, const MPI_Fint *type,
                                                         const MPI_Fint *op, const MPI_Fint *comm, MPI_Fint *error)
{
    if (make_groups_from_fortran(comm, error))
        PASS_TO(allreduce_of_fortran_function, "pmpi_allreduce_")(from, to, count, type, op, comm, error);
}

FORTRAN_NAMES(barrier_from_fortran, barrier, BARRIER)
FORTRAN_NAMES(allreduce_from_fortran, allreduce, ALLREDUCE)
#endif
