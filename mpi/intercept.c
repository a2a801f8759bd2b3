/* The MPI functions that this library defines in front of the MPI's own: blocking broadcasts and
 * MPI_Finalize. */

#define _GNU_SOURCE

#include <stdio.h>

#include "call.h"
#include "communicator.h"
#include "history.h"
#include "intercept.h"
#include "settings.h"
#include "transfer.h"

uint64_t bytes_of(MPI_Count count, MPI_Datatype type)
{
    MPI_Count size;

    /* The MPI says what is wrong with an invalid type. */
    return count > 0 && type != MPI_DATATYPE_NULL && mpi.Type_size_x(type, &size) == MPI_SUCCESS && size > 0 ? (uint64_t)count * (uint64_t)size : 0;
}

/* A broadcast of the program. */
struct broadcast {
    struct call call;
    struct buffer buffer;
};

static int carry_out(const struct call *call, struct root_groups *groups)
{
    const struct buffer *buffer = &((const struct broadcast *)call)->buffer;

    return call->root == call->communicator->rank ? send_buffer(call->communicator, groups, buffer)
                                                  : receive_buffer(call->communicator, groups, buffer);
}

typedef int bcast_function(void *address, int count, handle type, int root, handle comm);
typedef int bcast_c_function(void *address, MPI_Count count, handle type, int root, handle comm);
typedef int finalize_function(void);

bcast_function intercept_bcast INTERCEPT(MPI_Bcast);
bcast_c_function intercept_bcast_c INTERCEPT(MPI_Bcast_c);
int intercept_finalize(void) INTERCEPT(MPI_Finalize);

/* As begin_call(). */
static bool begin_broadcast(struct broadcast *broadcast, void *address, MPI_Count count, handle type, int root, handle comm)
{
    struct buffer *buffer = &broadcast->buffer;

    *broadcast = (struct broadcast){.call = {.collective = BROADCAST, .comm = (MPI_Comm)comm, .root = root, .carry_out = carry_out}};
    if (!mpi_find())
        return false;
    *buffer = (struct buffer){.address = address, .count = count, .type = (MPI_Datatype)type};
    broadcast->call.bytes = buffer->bytes = bytes_of(count, buffer->type);
    broadcast->call.outcome = judge(broadcast->call.comm, root, buffer->bytes);
    return begin_call(&broadcast->call);
}

int intercept_bcast(void *address, int count, handle type, int root, handle comm)
{
    struct broadcast broadcast;

    if (begin_broadcast(&broadcast, address, count, type, root, comm))
        return broadcast.call.error;
    return end_call(&broadcast.call, PASS_TO(bcast_function, "PMPI_Bcast")(address, count, type, root, comm));
}

int intercept_bcast_c(void *address, MPI_Count count, handle type, int root, handle comm)
{
    struct broadcast broadcast;

    if (begin_broadcast(&broadcast, address, count, type, root, comm))
        return broadcast.call.error;
    return end_call(&broadcast.call, PASS_LARGE(bcast_c_function, bcast_function, "Bcast", (address, count, type, root, comm),
                                                (address, small_count(count), type, root, comm)));
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

/* Whether an address is that of a variable of this name, as a Fortran compiler makes it. */
static bool is_variable(const void *address, const char *lower, const char *upper)
{
    static const char *const ends[] = {"_", "", "__"};
    char name[32];
    size_t i;

    for (i = 0; i < sizeof ends / sizeof *ends; i++) {
        snprintf(name, sizeof name, "%s%s", lower, ends[i]);
        if (address == mpi_symbol(name))
            return true;
    }
    return address == mpi_symbol(upper);
}

void *as_in_c(const void *address)
{
    if (address && is_variable(address, "mpi_fortran_bottom", "MPI_FORTRAN_BOTTOM"))
        return MPI_BOTTOM;
    if (address && is_variable(address, "mpi_fortran_in_place", "MPI_FORTRAN_IN_PLACE"))
        return MPI_IN_PLACE;
    return (void *)(uintptr_t)address;
}

typedef void bcast_of_fortran_function(void *address, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root,
                                       const MPI_Fint *comm, MPI_Fint *error);

static __attribute__((used)) void bcast_from_fortran(void *address, const MPI_Fint *count, const MPI_Fint *type, const MPI_Fint *root,
                                                     const MPI_Fint *comm, MPI_Fint *error)
{
    int result;

    if (!mpi_find()) {
        PASS_TO(bcast_of_fortran_function, "pmpi_bcast_")(address, count, type, root, comm, error);
        return;
    }
    result = intercept_bcast(as_in_c(address), (int)*count, TYPE_IN_C(*type), (int)*root, COMM_IN_C(*comm));

    if (error)
        *error = result;
}

FORTRAN_NAMES(bcast_from_fortran, bcast, BCAST)
FORTRAN_FINALIZE(mpi_finalize)
FORTRAN_FINALIZE(mpi_finalize_)
FORTRAN_FINALIZE(mpi_finalize__)
FORTRAN_FINALIZE(MPI_FINALIZE)
FORTRAN_FINALIZE(ompi_finalize_f)
#endif
