/* Short all-gathers: the ranks' blocks lie one after another in a vector of zeros, and the vectors
 * of all ranks are combined by or. */

#include <stdio.h>

#include "call.h"
#include "intercept.h"
#include "transfer.h"

struct allgather {
    struct call call;
    /* This rank's block, and those of all ranks. */
    struct buffer from, to;
};

/* The blocks of all ranks, and then a bit of each rank that has given one. */
union vector {
    uint64_t words[VALUES_BYTES_MAX / sizeof(uint64_t)];
    char bytes[VALUES_BYTES_MAX];
};

/* The bytes of a vector with blocks of this length in all. */
static uint64_t bytes_of_vector(uint64_t blocks, int size)
{
    return blocks + ((uint64_t)size + 7) / 8;
}

static void mark(char *marks, int rank)
{
    marks[rank / 8] = (char)(marks[rank / 8] | 1 << rank % 8);
}

/* The least rank that has given no block; `size`: all have. */
static int find_missing(const char *marks, int size)
{
    int rank = 0;

    while (rank < size && marks[rank / 8] >> rank % 8 & 1)
        rank++;
    return rank;
}

/* A rank with a wrong block takes part too: the other ranks wait for it. */
static int carry_out(const struct call *call, struct root_groups *groups)
{
    const struct buffer *from = &((const struct allgather *)call)->from, *to = &((const struct allgather *)call)->to;
    struct communicator *communicator = call->communicator;
    int size = communicator->size, rank = communicator->rank, place = 0;
    int block = (int)(to->bytes / (uint64_t)size), error = MPI_ERR_TRUNCATE, common_error;
    size_t words = (bytes_of_vector(to->bytes, size) + sizeof(uint64_t) - 1) / sizeof(uint64_t);
    union vector vector = {{0}};
    char *marks = vector.bytes + to->bytes, failure[64];

    if (from->bytes == (uint64_t)block)
        error = mpi.Pack(from->address, (int)from->count, from->type, vector.bytes + rank * block, block, &place, communicator->private);
    if (error == MPI_SUCCESS && place != block)
        error = MPI_ERR_INTERN;
    if (error == MPI_SUCCESS)
        mark(marks, rank);
    common_error = combine_values(communicator, groups, vector.words, words, TC_U64, TC_OR);
    if (error != MPI_SUCCESS || common_error != MPI_SUCCESS)
        return error != MPI_SUCCESS ? error : common_error;
    rank = find_missing(marks, size);
    if (rank < size) {
        snprintf(failure, sizeof failure, "rank %d has given no block", rank);
        return error_of_call(communicator, failure);
    }
    place = 0;
    return mpi.Unpack(vector.bytes, (int)to->bytes, &place, to->address, (int)to->count, to->type, communicator->private);
}

/* Sets the buffers, and returns whether the all-gather may be taken. */
static enum outcome judge_blocks(struct allgather *allgather)
{
    struct buffer *from = &allgather->from, *to = &allgather->to;
    enum outcome outcome = judge(allgather->call.comm, allgather->call.root, to->bytes);
    MPI_Count lower, extent;
    int size, rank;

    if (outcome != TAKEN)
        return outcome;
    mpi.Comm_size(allgather->call.comm, &size);
    mpi.Comm_rank(allgather->call.comm, &rank);
    outcome = judge_values(to->bytes);
    if (outcome == TAKEN)
        outcome = judge_values(bytes_of_vector(to->bytes * (uint64_t)size, size));
    if (from->address == MPI_IN_PLACE && outcome == TAKEN) {
        *from = *to;
        mpi.Type_get_extent_x(to->type, &lower, &extent);
        from->address = (char *)to->address + rank * to->count * extent;
    }
    to->count *= size;
    to->bytes *= (uint64_t)size;
    return outcome;
}

/* As begin_call(). */
static bool begin(struct allgather *allgather, const void *from, MPI_Count from_count, handle from_type, void *to, MPI_Count to_count,
                  handle to_type, handle comm)
{
    *allgather = (struct allgather){.call = {.collective = ALLGATHER, .comm = (MPI_Comm)comm, .carry_out = carry_out}};
    if (!mpi_find())
        return false;
    allgather->from = (struct buffer){(void *)(uintptr_t)from, from_count, (MPI_Datatype)from_type, 0};
    allgather->to = (struct buffer){to, to_count, (MPI_Datatype)to_type, bytes_of(to_count, (MPI_Datatype)to_type)};
    if (from != MPI_IN_PLACE)
        allgather->from.bytes = bytes_of(from_count, allgather->from.type);
    allgather->call.outcome = judge_blocks(allgather);
    allgather->call.bytes = allgather->to.bytes;
    return begin_call(&allgather->call);
}

typedef int allgather_function(const void *from, int from_count, handle from_type, void *to, int to_count, handle to_type, handle comm);
typedef int allgather_c_function(const void *from, MPI_Count from_count, handle from_type, void *to, MPI_Count to_count, handle to_type,
                                 handle comm);

allgather_function intercept_allgather INTERCEPT(MPI_Allgather);
allgather_c_function intercept_allgather_c INTERCEPT(MPI_Allgather_c);

int intercept_allgather(const void *from, int from_count, handle from_type, void *to, int to_count, handle to_type, handle comm)
{
    struct allgather allgather;

    if (begin(&allgather, from, from_count, from_type, to, to_count, to_type, comm))
        return allgather.call.error;
    return end_call(&allgather.call, PASS_TO(allgather_function, "PMPI_Allgather")(from, from_count, from_type, to, to_count, to_type, comm));
}

int intercept_allgather_c(const void *from, MPI_Count from_count, handle from_type, void *to, MPI_Count to_count, handle to_type, handle comm)
{
    struct allgather allgather;

    if (begin(&allgather, from, from_count, from_type, to, to_count, to_type, comm))
        return allgather.call.error;
    return end_call(&allgather.call, PASS_LARGE(allgather_c_function, allgather_function, "Allgather",
                                                (from, from_count, from_type, to, to_count, to_type, comm),
                                                (from, small_count(from_count), from_type, to, small_count(to_count), to_type, comm)));
}

#ifdef OPEN_MPI
typedef void allgather_of_fortran_function(const void *from, const MPI_Fint *from_count, const MPI_Fint *from_type, void *to,
                                           const MPI_Fint *to_count, const MPI_Fint *to_type, const MPI_Fint *comm, MPI_Fint *error);

static __attribute__((used)) void allgather_from_fortran(const void *from, const MPI_Fint *from_count, const MPI_Fint *from_type, void *to,
                                                         const MPI_Fint *to_count, const MPI_Fint *to_type, const MPI_Fint *comm,
                                                         MPI_Fint *error)
{
    int result;

    if (!mpi_find()) {
        PASS_TO(allgather_of_fortran_function, "pmpi_allgather_")(from, from_count, from_type, to, to_count, to_type, comm, error);
        return;
    }
    result = intercept_allgather(as_in_c(from), (int)*from_count, TYPE_IN_C(*from_type), as_in_c(to), (int)*to_count, TYPE_IN_C(*to_type),
                                 COMM_IN_C(*comm));
    if (error)
        *error = result;
}

FORTRAN_NAMES(allgather_from_fortran, allgather, ALLGATHER)
#endif
