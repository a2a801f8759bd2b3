/* The functions of MPI that make, start and free persistent broadcasts. */

#include "communicator.h"
#include "intercept.h"
#include "persistents.h"

/* Prepares a persistent broadcast, or sets `is_passed_on`. This is decided once, here, where all
 * ranks are: if each start decided, ranks that start in a different order could decide differently.
 * Returns an MPI error code. */
static int prepare(const struct buffer *buffer, int root, MPI_Comm comm, MPI_Request *request, bool *is_passed_on)
{
    struct persistent *persistent = NULL;
    struct communicator *communicator;
    int error;

    *is_passed_on = true;
    if (judge_untried(comm, root, buffer->bytes, &communicator) != TAKEN)
        return MPI_SUCCESS;
    error = set_up_communicator(communicator, comm);
    /* Now the bounds of rank 0 are known. */
    if (error == MPI_SUCCESS && judge_untried(comm, root, buffer->bytes, &communicator) == TAKEN)
        error = find_free_place(communicator, root, buffer->bytes, &persistent);
    *is_passed_on = error == MPI_SUCCESS && !persistent;
    return persistent ? keep_persistent(persistent, buffer, request) : error;
}

typedef int bcast_init_function(void *address, int count, handle type, int root, handle comm, handle info, void *request);
typedef int bcast_init_c_function(void *address, MPI_Count count, handle type, int root, handle comm, handle info, void *request);
typedef int start_function(void *request);
typedef int startall_function(int count, void *requests);

bcast_init_function intercept_bcast_init INTERCEPT(MPI_Bcast_init);
bcast_init_c_function intercept_bcast_init_c INTERCEPT(MPI_Bcast_init_c);
start_function intercept_start INTERCEPT(MPI_Start);
startall_function intercept_startall INTERCEPT(MPI_Startall);
start_function intercept_request_free INTERCEPT(MPI_Request_free);

/* Open MPI 4.1 has it as an extension under another name. */
static bcast_init_function *mpi_bcast_init(void)
{
    void *function = mpi_symbol("PMPI_Bcast_init");

    if (!function)
        function = mpi_symbol("PMPIX_Bcast_init");
    return (bcast_init_function *)(function ? function : mpi_required("PMPI_Bcast_init"));
}

/* Prepares a broadcast and returns its error code, or sets `is_passed_on`. */
static int begin_init(void *address, MPI_Count count, handle type, int root, handle comm, void *request, bool *is_passed_on)
{
    struct buffer buffer = {.address = address, .count = count, .type = (MPI_Datatype)type};
    int error = MPI_SUCCESS;

    *is_passed_on = true;
    if (mpi_find() && request) {
        buffer.bytes = bytes_of(count, buffer.type);
        error = prepare(&buffer, root, (MPI_Comm)comm, request, is_passed_on);
        if (error != MPI_SUCCESS)
            mpi.Comm_call_errhandler((MPI_Comm)comm, error);
    }
    if (*is_passed_on)
        count_passed(BROADCAST, PERSISTENT);
    return error;
}

int intercept_bcast_init(void *address, int count, handle type, int root, handle comm, handle info, void *request)
{
    bool is_passed_on;
    int error = begin_init(address, count, type, root, comm, request, &is_passed_on);

    return is_passed_on ? mpi_bcast_init()(address, count, type, root, comm, info, request) : error;
}

int intercept_bcast_init_c(void *address, MPI_Count count, handle type, int root, handle comm, handle info, void *request)
{
    bool is_passed_on;
    int error = begin_init(address, count, type, root, comm, request, &is_passed_on);

    if (!is_passed_on)
        return error;
    if (!HAS("PMPI_Bcast_init_c"))
        return mpi_bcast_init()(address, small_count(count), type, root, comm, info, request);
    return PASS_TO(bcast_init_c_function, "PMPI_Bcast_init_c")(address, count, type, root, comm, info, request);
}

#ifdef OPEN_MPI
extern __typeof__(intercept_bcast_init) intercept_bcast_init_x __asm__("MPIX_Bcast_init")
    __attribute__((alias("MPI_Bcast_init"), visibility("default")));
#endif

int intercept_start(void *request)
{
    struct persistent *persistent = request ? find_persistent(*(MPI_Request *)request) : NULL;

    return persistent ? start_persistent(persistent) : PASS_TO(start_function, "PMPI_Start")(request);
}

int intercept_startall(int count, void *requests)
{
    int i, error = MPI_SUCCESS;

    if (!are_persistents_kept() || !requests)
        return PASS_TO(startall_function, "PMPI_Startall")(count, requests);
    for (i = 0; i < count && error == MPI_SUCCESS; i++)
        error = intercept_start((MPI_Request *)requests + i);
    return error;
}

int intercept_request_free(void *request)
{
    struct persistent *persistent = request ? find_persistent(*(MPI_Request *)request) : NULL;

    if (persistent)
        drop_persistent(persistent);
    return PASS_TO(start_function, "PMPI_Request_free")(request);
}

#ifdef OPEN_MPI
typedef void bcast_init_of_fortran_function(void *address, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root,
                                            const MPI_Fint *comm, const MPI_Fint *info, MPI_Fint *request, MPI_Fint *error);
typedef void start_of_fortran_function(MPI_Fint *request, MPI_Fint *error);
typedef void startall_of_fortran_function(const MPI_Fint *count, MPI_Fint *requests, MPI_Fint *error);

static __attribute__((used)) void bcast_init_from_fortran(void *address, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root,
                                                          const MPI_Fint *comm, const MPI_Fint *info, MPI_Fint *request, MPI_Fint *error)
{
    MPI_Request made;
    int result;

    if (!mpi_find()) {
        PASS_TO(bcast_init_of_fortran_function, "pmpi_bcast_init_")(address, count, type, root, comm, info, request, error);
        return;
    }
    result = intercept_bcast_init(as_in_c(address), (int)*count, TYPE_IN_C(*type), (int)*root, COMM_IN_C(*comm), INFO_IN_C(*info), &made);
    if (result == MPI_SUCCESS)
        *request = REQUEST_IN_FORTRAN(made);
    if (error)
        *error = result;
}

/* Calls a function of C that may change the request. */
static void call_in_c(start_function *call, MPI_Fint *request, MPI_Fint *error)
{
    MPI_Request in_c = (MPI_Request)REQUEST_IN_C(*request);
    int result = call(&in_c);

    if (result == MPI_SUCCESS)
        *request = REQUEST_IN_FORTRAN(in_c);
    if (error)
        *error = result;
}

static __attribute__((used)) void start_from_fortran(MPI_Fint *request, MPI_Fint *error)
{
    if (are_persistents_kept())
        call_in_c(intercept_start, request, error);
    else
        PASS_TO(start_of_fortran_function, "pmpi_start_")(request, error);
}

static __attribute__((used)) void startall_from_fortran(const MPI_Fint *count, MPI_Fint *requests, MPI_Fint *error)
{
    MPI_Fint i, result = MPI_SUCCESS;

    if (!are_persistents_kept()) {
        PASS_TO(startall_of_fortran_function, "pmpi_startall_")(count, requests, error);
        return;
    }
    for (i = 0; i < *count && result == MPI_SUCCESS; i++)
        call_in_c(intercept_start, &requests[i], &result);
    if (error)
        *error = result;
}

static __attribute__((used)) void request_free_from_fortran(MPI_Fint *request, MPI_Fint *error)
{
    if (are_persistents_kept())
        call_in_c(intercept_request_free, request, error);
    else
        PASS_TO(start_of_fortran_function, "pmpi_request_free_")(request, error);
}

FORTRAN_NAMES(bcast_init_from_fortran, bcast_init, BCAST_INIT)
FORTRAN_NAME(bcast_init_from_fortran, mpix_bcast_init)
FORTRAN_NAME(bcast_init_from_fortran, mpix_bcast_init_)
FORTRAN_NAME(bcast_init_from_fortran, mpix_bcast_init__)
FORTRAN_NAME(bcast_init_from_fortran, MPIX_BCAST_INIT)
FORTRAN_NAME(bcast_init_from_fortran, ompix_bcast_init_f)
FORTRAN_NAMES(start_from_fortran, start, START)
FORTRAN_NAMES(startall_from_fortran, startall, STARTALL)
FORTRAN_NAMES(request_free_from_fortran, request_free, REQUEST_FREE)
#endif
