/* The MPI functions that this library defines in front of the MPI's own: blocking broadcasts and
 * MPI_Finalize. */

#define _GNU_SOURCE

#include <stdlib.h>
#include <time.h>

#include "choice.h"
#include "communicator.h"
#include "history.h"
#include "intercept.h"
#include "request.h"
#include "settings.h"
#include "transfer.h"

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

enum outcome judge(MPI_Comm comm, int root, uint64_t bytes)
{
    int is_intercommunicator, size;

    if (!settings()->is_on || settings()->choice == CHOICE_NEVER || are_communicators_closed())
        return SWITCHED_OFF;
    if (!bytes)
        return NO_BYTES;
    /* The MPI says what is wrong with an invalid communicator or root. */
    if (comm == MPI_COMM_NULL || mpi.Comm_test_inter(comm, &is_intercommunicator) != MPI_SUCCESS || is_intercommunicator)
        return INTERCOMMUNICATOR;
    mpi.Comm_size(comm, &size);
    if (size == 1 || root < 0 || root >= size)
        return ONE_RANK;
    return TAKEN;
}

uint64_t bytes_of(MPI_Count count, MPI_Datatype type)
{
    MPI_Count size;

    /* The MPI says what is wrong with an invalid type. */
    return count > 0 && type != MPI_DATATYPE_NULL && mpi.Type_size_x(type, &size) == MPI_SUCCESS && size > 0 ? (uint64_t)count * (uint64_t)size : 0;
}

/* A broadcast of the program. */
struct call {
    MPI_Comm comm;
    int root;
    struct buffer buffer;
    uint64_t since_ns;
    /* The state of the communicator; NULL if the broadcast may not be taken at all. */
    struct communicator *communicator;
    /* TAKEN, or why it is passed on. */
    enum outcome outcome;
};

/* Whether a broadcast is taken on this communicator. All ranks get the same result. */
static enum outcome judge_in(struct communicator *communicator, const struct call *call)
{
    uint64_t bytes = call->buffer.bytes;
    enum outcome outcome;

    if (communicator->outcome != TAKEN)
        return communicator->outcome;
    if (bytes < communicator->bytes_min || bytes > communicator->bytes_max)
        return OTHER_BYTES;
    outcome = choose(&communicator->choice, call->root, bytes);
    if (outcome != TAKEN || settings()->choice == CHOICE_ALWAYS || is_tried(&communicator->choice, call->root, bytes))
        return outcome;
    return is_worth_groups(communicator, call->root) ? TAKEN : RARE_ROOT;
}

/* Carries out a broadcast by Treecast. If that is impossible, the call's outcome is not TAKEN.
 * Returns an MPI error code. */
static int carry_out(struct call *call)
{
    struct communicator *communicator = call->communicator;
    struct root_groups *groups = NULL;
    int error = set_up_communicator(communicator, call->comm);

    /* Now the bounds of rank 0 are known. */
    if (error == MPI_SUCCESS && communicator->outcome == TAKEN &&
        (call->buffer.bytes < communicator->bytes_min || call->buffer.bytes > communicator->bytes_max))
        call->outcome = OTHER_BYTES;
    else if (error == MPI_SUCCESS && communicator->outcome == TAKEN)
        error = find_root(communicator, call->root, &groups);
    if (error == MPI_SUCCESS && groups && communicator->outcome == TAKEN) {
        complete_requests(communicator, groups);
        error = call->root == communicator->rank ? send_buffer(communicator, groups, &call->buffer)
                                                 : receive_buffer(communicator, groups, &call->buffer);
    }
    if (communicator->outcome != TAKEN)
        call->outcome = communicator->outcome;
    else if (!groups && call->outcome == TAKEN)
        call->outcome = MANY_ROOTS;
    return error;
}

/* Carries out a broadcast, unless it is to be passed on: then the call's outcome is not TAKEN.
 * Returns an MPI error code. */
static int take(struct call *call)
{
    int error;

    call->outcome = judge(call->comm, call->root, call->buffer.bytes);
    if (call->outcome != TAKEN) {
        count_passed(call->outcome);
        return MPI_SUCCESS;
    }
    error = find_communicator(call->comm, &call->communicator);
    if (error != MPI_SUCCESS)
        return error;
    call->outcome = judge_in(call->communicator, call);
    return call->outcome == TAKEN ? carry_out(call) : MPI_SUCCESS;
}

/* Counts and measures a broadcast that has ended. Returns its error code, or that of a
 * comparison between ranks. */
static int end_call(struct call *call, int error)
{
    struct communicator *communicator = call->communicator;
    uint64_t ns = now_ns() - call->since_ns;
    bool is_given_up = false;
    int note_error = MPI_SUCCESS;

    if (!communicator)
        return error;
    if (call->outcome == TAKEN) {
        communicator->report.errors += error != MPI_SUCCESS;
        count_taken(&communicator->report, call->buffer.bytes, ns);
    } else {
        communicator->report.outcomes[call->outcome]++;
    }
    if (communicator->outcome == TAKEN)
        note_error = note_broadcast(&communicator->choice, call->comm, call->root, call->buffer.bytes,
                                    call->outcome == TAKEN ? BY_TREECAST : BY_MPI, (double)ns / 1e3, &is_given_up);
    if (is_given_up)
        close_groups(communicator);
    return error != MPI_SUCCESS ? error : note_error;
}

typedef int bcast_function(void *address, int count, handle type, int root, handle comm);
typedef int bcast_c_function(void *address, MPI_Count count, handle type, int root, handle comm);
typedef int finalize_function(void);

bcast_function intercept_bcast INTERCEPT(MPI_Bcast);
bcast_c_function intercept_bcast_c INTERCEPT(MPI_Bcast_c);
int intercept_finalize(void) INTERCEPT(MPI_Finalize);

/* Carries out a broadcast and returns its error code, or sets `is_passed_on`. */
static int begin_call(struct call *call, void *address, MPI_Count count, handle type, int root, handle comm, bool *is_passed_on)
{
    int error;

    *call = (struct call){.comm = (MPI_Comm)comm, .root = root};
    *is_passed_on = true;
    if (!mpi_find())
        return MPI_SUCCESS;
    call->buffer = (struct buffer){.address = address, .count = count, .type = (MPI_Datatype)type};
    call->buffer.bytes = bytes_of(count, call->buffer.type);
    call->since_ns = now_ns();
    error = make_wanted_groups(call->comm);
    if (error == MPI_SUCCESS)
        error = take(call);
    *is_passed_on = error == MPI_SUCCESS && call->outcome != TAKEN;
    if (*is_passed_on)
        return MPI_SUCCESS;
    error = end_call(call, error);
    /* An error goes to the communicator's error handler, as those of the MPI itself do. */
    if (error != MPI_SUCCESS)
        mpi.Comm_call_errhandler(call->comm, error);
    return error;
}

int intercept_bcast(void *address, int count, handle type, int root, handle comm)
{
    struct call call;
    bool is_passed_on;
    int error = begin_call(&call, address, count, type, root, comm, &is_passed_on);

    if (!is_passed_on)
        return error;
    return end_call(&call, PASS_TO(bcast_function, "PMPI_Bcast")(address, count, type, root, comm));
}

int intercept_bcast_c(void *address, MPI_Count count, handle type, int root, handle comm)
{
    struct call call;
    bool is_passed_on;
    int error = begin_call(&call, address, count, type, root, comm, &is_passed_on);

    if (!is_passed_on)
        return error;
    return end_call(&call, PASS_TO(bcast_c_function, "PMPI_Bcast_c")(address, count, type, root, comm));
}

int intercept_finalize(void)
{
    int rank = -1;

    if (mpi_find() && settings()->is_on) {
        mpi.Comm_rank(MPI_COMM_WORLD, &rank);
        close_communicators();
        save_history();
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
/* The module mpi_f08 of MPICH calls PMPI_Finalize; its other functions of Fortran call those of
 * C. */
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

/* The names that Fortran compilers make of a function, and that by which the module mpi_f08
 * calls it. */
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
