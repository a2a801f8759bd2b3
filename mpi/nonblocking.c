/* Nonblocking broadcasts. */

#include "call.h"
#include "choice.h"
#include "communicator.h"
#include "intercept.h"
#include "request.h"
#include "roots.h"
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

ibcast_function intercept_ibcast INTERCEPT(MPI_Ibcast);
ibcast_c_function intercept_ibcast_c INTERCEPT(MPI_Ibcast_c);

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
    return PASS_LARGE(ibcast_c_function, ibcast_function, "Ibcast", (address, count, type, root, comm, request),
                      (address, small_count(count), type, root, comm, request));
}

#ifdef OPEN_MPI
typedef void ibcast_of_fortran_function(void *address, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root,
                                        const MPI_Fint *comm, MPI_Fint *request, MPI_Fint *error);

static __attribute__((used)) void ibcast_from_fortran(void *address, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root,
                                                      const MPI_Fint *comm, MPI_Fint *request, MPI_Fint *error)
{
    MPI_Request started;
    int result;

    if (!mpi_find()) {
        PASS_TO(ibcast_of_fortran_function, "pmpi_ibcast_")(address, count, type, root, comm, request, error);
        return;
    }
    result = intercept_ibcast(as_in_c(address), (int)*count, TYPE_IN_C(*type), (int)*root, COMM_IN_C(*comm), &started);
    if (result == MPI_SUCCESS)
        *request = REQUEST_IN_FORTRAN(started);
    if (error)
        *error = result;
}

FORTRAN_NAMES(ibcast_from_fortran, ibcast, IBCAST)
#endif
