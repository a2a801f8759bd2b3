/* The functions of MPI that a program calls and that this library has before the MPI's: broadcasts, and the end. */

#define _GNU_SOURCE

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "choice.h"
#include "communicator.h"
#include "library.h"
#include "report.h"
#include "settings.h"
#include "transfer.h"

/* A function under a name of MPI. Its C name differs, since mpi.h declares that with the types of one interface. */
#define INTERCEPT(name) __asm__(#name) __attribute__((visibility("default")))

/* A handle of any interface: a pointer in some, an int in others. Where the process's MPI has another interface than this shim, handles have to
 * be passed on as they are; both are passed in a register, of which an int is the lower half. */
typedef uintptr_t handle;

/* The MPI's own function under its profiling name, to which a call is passed on. Ends the process if the MPI has none: a program can only call it
 * because this library has it. */
#define PASS_TO(type, name)                                                    \
    __extension__({                                                            \
        static _Atomic(type *) found;                                          \
        type *function = atomic_load_explicit(&found, memory_order_relaxed);   \
                                                                               \
        if (!function) {                                                       \
            function = (type *)mpi_required(name);                             \
            atomic_store_explicit(&found, function, memory_order_relaxed);     \
        }                                                                      \
        function;                                                              \
    })

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Whether broadcasts of a communicator may be taken at all. Each rank can say that by itself, and all say the same. */
static enum outcome judge(MPI_Comm comm, int root, uint64_t bytes)
{
    int is_intercommunicator, size;

    if (!settings()->is_on || are_communicators_closed())
        return SWITCHED_OFF;
    if (!bytes)
        return NO_BYTES;
    /* The MPI says what is wrong with an invalid communicator or root. */
    if (comm == MPI_COMM_NULL || mpi.Comm_test_inter(comm, &is_intercommunicator) != MPI_SUCCESS || is_intercommunicator)
        return INTERCOMMUNICATOR;
    mpi.Comm_size(comm, &size);
    if (size == 1 || root < 0 || root >= size)
        return ONE_RANK;
    return may_be_faster(bytes) ? TAKEN : SLOWER;
}

static uint64_t bytes_of(MPI_Count count, MPI_Datatype type)
{
    MPI_Count size;

    /* The MPI says what is wrong with an invalid type. */
    return count > 0 && type != MPI_DATATYPE_NULL && mpi.Type_size_x(type, &size) == MPI_SUCCESS && size > 0 ? (uint64_t)count * (uint64_t)size : 0;
}

/* Carries out a broadcast, unless `outcome` says that it is to be passed on. Returns an MPI error code. */
static int take(const struct buffer *buffer, int root, MPI_Comm comm, enum outcome *outcome)
{
    struct communicator *communicator;
    struct root_groups *groups = NULL;
    uint64_t since = now_ns();
    int error;

    *outcome = judge(comm, root, buffer->bytes);
    if (*outcome != TAKEN) {
        count_passed(*outcome);
        return MPI_SUCCESS;
    }
    error = find_communicator(comm, &communicator);
    if (error != MPI_SUCCESS)
        return error;
    if (communicator->outcome == TAKEN && (buffer->bytes < communicator->bytes_min || buffer->bytes > communicator->bytes_max))
        *outcome = OTHER_BYTES;
    else if (communicator->outcome == TAKEN && !is_faster(communicator->engine, buffer->bytes))
        *outcome = SLOWER;
    else if (communicator->outcome == TAKEN)
        error = find_root(communicator, root, is_long(buffer->bytes), &groups);
    if (error == MPI_SUCCESS && *outcome == TAKEN && communicator->outcome == TAKEN && !groups)
        *outcome = MANY_ROOTS;
    if (error == MPI_SUCCESS && groups && communicator->outcome == TAKEN)
        error = root == communicator->rank ? send_buffer(communicator, groups, buffer) : receive_buffer(communicator, groups, buffer);
    if (communicator->outcome != TAKEN)
        *outcome = communicator->outcome;
    if (*outcome != TAKEN && error == MPI_SUCCESS) {
        communicator->report.outcomes[*outcome]++;
        return MPI_SUCCESS;
    }
    communicator->report.errors += error != MPI_SUCCESS;
    count_taken(&communicator->report, buffer->bytes, now_ns() - since);
    return error;
}

typedef int bcast_function(void *address, int count, handle type, int root, handle comm);
typedef int bcast_c_function(void *address, MPI_Count count, handle type, int root, handle comm);
typedef int ibcast_function(void *address, int count, handle type, int root, handle comm, void *request);
typedef int ibcast_c_function(void *address, MPI_Count count, handle type, int root, handle comm, void *request);
typedef int bcast_init_function(void *address, int count, handle type, int root, handle comm, handle info, void *request);
typedef int finalize_function(void);
typedef int bcast_init_c_function(void *address, MPI_Count count, handle type, int root, handle comm, handle info, void *request);

bcast_function intercept_bcast INTERCEPT(MPI_Bcast);
bcast_c_function intercept_bcast_c INTERCEPT(MPI_Bcast_c);
ibcast_function intercept_ibcast INTERCEPT(MPI_Ibcast);
ibcast_c_function intercept_ibcast_c INTERCEPT(MPI_Ibcast_c);
bcast_init_function intercept_bcast_init INTERCEPT(MPI_Bcast_init);
bcast_init_c_function intercept_bcast_init_c INTERCEPT(MPI_Bcast_init_c);
int intercept_finalize(void) INTERCEPT(MPI_Finalize);

/* Whether a broadcast was carried out, or its error reported; then `error` is the result. */
static bool is_done(void *address, MPI_Count count, handle type, int root, handle comm, int *error)
{
    struct buffer buffer = {.address = address, .count = count, .type = (MPI_Datatype)type};
    enum outcome outcome;

    if (!mpi_find())
        return false;
    buffer.bytes = bytes_of(count, buffer.type);
    *error = take(&buffer, root, (MPI_Comm)comm, &outcome);
    /* An error goes to the communicator's error handler, as those of the MPI itself do. */
    if (*error != MPI_SUCCESS)
        mpi.Comm_call_errhandler((MPI_Comm)comm, *error);
    return *error != MPI_SUCCESS || outcome == TAKEN;
}

int intercept_bcast(void *address, int count, handle type, int root, handle comm)
{
    int error;

    if (is_done(address, count, type, root, comm, &error))
        return error;
    return PASS_TO(bcast_function, "PMPI_Bcast")(address, count, type, root, comm);
}

int intercept_bcast_c(void *address, MPI_Count count, handle type, int root, handle comm)
{
    int error;

    if (is_done(address, count, type, root, comm, &error))
        return error;
    return PASS_TO(bcast_c_function, "PMPI_Bcast_c")(address, count, type, root, comm);
}

/* A request is completed by the MPI's own functions, so that it has to be one of the MPI. */
int intercept_ibcast(void *address, int count, handle type, int root, handle comm, void *request)
{
    count_passed(NONBLOCKING);
    return PASS_TO(ibcast_function, "PMPI_Ibcast")(address, count, type, root, comm, request);
}

int intercept_ibcast_c(void *address, MPI_Count count, handle type, int root, handle comm, void *request)
{
    count_passed(NONBLOCKING);
    return PASS_TO(ibcast_c_function, "PMPI_Ibcast_c")(address, count, type, root, comm, request);
}

int intercept_bcast_init(void *address, int count, handle type, int root, handle comm, handle info, void *request)
{
    count_passed(PERSISTENT);
    return PASS_TO(bcast_init_function, "PMPI_Bcast_init")(address, count, type, root, comm, info, request);
}

int intercept_bcast_init_c(void *address, MPI_Count count, handle type, int root, handle comm, handle info, void *request)
{
    count_passed(PERSISTENT);
    return PASS_TO(bcast_init_c_function, "PMPI_Bcast_init_c")(address, count, type, root, comm, info, request);
}

int intercept_finalize(void)
{
    int rank = -1;

    if (mpi_find() && settings()->is_on) {
        mpi.Comm_rank(MPI_COMM_WORLD, &rank);
        close_communicators();
        if (!rank && settings()->reports)
            print_reports();
    }
    return PASS_TO(finalize_function, "PMPI_Finalize")();
}

static void finalize_from_fortran(MPI_Fint *error)
{
    int result = intercept_finalize();

    if (error)
        *error = result;
}

#define FORTRAN_FINALIZE(name)                             \
    void fortran_##name(MPI_Fint *error) INTERCEPT(name);  \
    void fortran_##name(MPI_Fint *error)                   \
    {                                                      \
        finalize_from_fortran(error);                      \
    }

#ifndef OPEN_MPI
/* The module mpi_f08 of MPICH calls PMPI_Finalize; its other functions of Fortran call those of C. */
FORTRAN_FINALIZE(mpi_finalize_f08_)
#endif

#ifdef OPEN_MPI
/* Fortran's functions call PMPI_Bcast in Open MPI, but MPI_Bcast in others. */

static void *as_in_c(void *address)
{
    static const char *const names[] = {"mpi_fortran_bottom_", "mpi_fortran_bottom", "mpi_fortran_bottom__", "MPI_FORTRAN_BOTTOM"};
    size_t i;

    for (i = 0; i < sizeof names / sizeof *names; i++)
        if (address && address == mpi_symbol(names[i]))
            return MPI_BOTTOM;
    return address;
}

typedef void *of_fortran_function(MPI_Fint number);
typedef void bcast_of_fortran_function(void *address, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root,
                                       const MPI_Fint *comm, MPI_Fint *error);

static void bcast_from_fortran(void *address, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root, const MPI_Fint *comm,
                               MPI_Fint *error)
{
    handle c_type, c_comm;
    int result;

    if (!mpi_find()) {
        PASS_TO(bcast_of_fortran_function, "pmpi_bcast_")(address, count, type, root, comm, error);
        return;
    }
    c_type = (handle)PASS_TO(of_fortran_function, "PMPI_Type_f2c")(*type);
    c_comm = (handle)PASS_TO(of_fortran_function, "PMPI_Comm_f2c")(*comm);
    result = intercept_bcast(as_in_c(address), (int)*count, c_type, (int)*root, c_comm);

    if (error)
        *error = result;
}

/* The names that Fortran compilers make of a function, and that by which the module mpi_f08 calls it. */
#define FORTRAN_BCAST(name)                                                                                        \
    void fortran_##name(void *address, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root,          \
                        const MPI_Fint *comm, MPI_Fint *error) INTERCEPT(name);                                    \
    void fortran_##name(void *address, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root,          \
                        const MPI_Fint *comm, MPI_Fint *error)                                                     \
    {                                                                                                              \
        bcast_from_fortran(address, count, type, root, comm, error);                                               \
    }
FORTRAN_BCAST(mpi_bcast)
FORTRAN_BCAST(mpi_bcast_)
FORTRAN_BCAST(mpi_bcast__)
FORTRAN_BCAST(MPI_BCAST)
FORTRAN_BCAST(ompi_bcast_f)
FORTRAN_FINALIZE(mpi_finalize)
FORTRAN_FINALIZE(mpi_finalize_)
FORTRAN_FINALIZE(mpi_finalize__)
FORTRAN_FINALIZE(MPI_FINALIZE)
FORTRAN_FINALIZE(ompi_finalize_f)
#endif
