/* All-gathers, compared with those of the MPI. */

#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "broadcasts.h"

/* Gathers blocks of one type as blocks of another. */
static void compare(MPI_Datatype from_type, int from_count, MPI_Datatype type, int count, bool is_in_place, MPI_Comm comm)
{
    struct memory from = allocate_memory(from_type, from_count), ours, theirs;
    const void *given = is_in_place ? MPI_IN_PLACE : from.origin;
    int rank, size;

    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    ours = allocate_memory(type, count * size);
    theirs = allocate_memory(type, count * size);
    fill_memory(from, rank, rank, (unsigned)broadcasts);
    /* In place, this rank's block is among the bytes. */
    fill_memory(ours, is_in_place ? rank : -1, rank, (unsigned)broadcasts);
    memcpy(theirs.bytes, ours.bytes, ours.length);
    expect(MPI_Allgather(given, from_count, from_type, ours.origin, count, type, comm) == MPI_SUCCESS, "MPI_Allgather");
    expect(PMPI_Allgather(given, from_count, from_type, theirs.origin, count, type, comm) == MPI_SUCCESS, "PMPI_Allgather");
    expect(!memcmp(ours.bytes, theirs.bytes, ours.length), "the all-gathers differ");
#if MPI_VERSION >= 4
    fill_memory(ours, is_in_place ? rank : -1, rank, (unsigned)broadcasts);
    expect(MPI_Allgather_c(given, from_count, from_type, ours.origin, count, type, comm) == MPI_SUCCESS, "MPI_Allgather_c");
    expect(!memcmp(ours.bytes, theirs.bytes, ours.length), "the all-gathers for large counts differ");
#endif
    free(from.bytes);
    free(ours.bytes);
    free(theirs.bytes);
    broadcasts++;
}

static void compare_both(MPI_Datatype type, int count, MPI_Comm comm)
{
    compare(type, count, type, count, false, comm);
    compare(type, count, type, count, true, comm);
}

static void basic_types(void)
{
    const MPI_Datatype types[] = {MPI_CHAR, MPI_BYTE, MPI_SHORT, MPI_INT, MPI_LONG, MPI_FLOAT, MPI_DOUBLE, MPI_LONG_DOUBLE,
                                  MPI_C_BOOL, MPI_C_DOUBLE_COMPLEX, MPI_DOUBLE_INT, MPI_SHORT_INT, MPI_2INT};
    const int counts[] = {0, 1, 3, 7, 40};
    size_t type, count;

    for (type = 0; type < sizeof types / sizeof *types; type++)
        for (count = 0; count < sizeof counts / sizeof *counts; count++)
            compare_both(types[type], counts[count], MPI_COMM_WORLD);
}

/* Every length around the most that fits. */
static void lengths(void)
{
    int bytes;

    for (bytes = 480 / world_size; bytes <= 520 / world_size; bytes++)
        compare_both(MPI_BYTE, bytes, MPI_COMM_WORLD);
}

/* A derived type of six integers, as such and as six integers; it is freed. */
static void compare_derived(MPI_Datatype type)
{
    MPI_Type_commit(&type);
    compare_both(type, 1, MPI_COMM_WORLD);
    compare_both(type, 2, MPI_COMM_WORLD);
    compare(type, 1, MPI_INT, 6, false, MPI_COMM_WORLD);
    compare(MPI_INT, 12, type, 2, false, MPI_COMM_WORLD);
    MPI_Type_free(&type);
}

static void derived_types(void)
{
    int lengths[] = {2, 1, 3}, places[] = {9, 0, 4}, reversed[] = {5, 4, 3, 2, 1, 0};
    MPI_Datatype type, inner;

    MPI_Type_contiguous(6, MPI_INT, &type);
    compare_derived(type);
    MPI_Type_vector(2, 3, 7, MPI_INT, &type);
    compare_derived(type);
    MPI_Type_create_hvector(3, 2, -32, MPI_INT, &type);
    compare_derived(type);
    MPI_Type_indexed(3, lengths, places, MPI_INT, &type);
    compare_derived(type);
    MPI_Type_create_indexed_block(6, 1, reversed, MPI_INT, &type);
    compare_derived(type);
    MPI_Type_contiguous(6, MPI_INT, &inner);
    MPI_Type_create_resized(inner, -4, 40, &type);
    MPI_Type_free(&inner);
    compare_derived(type);
}

static void communicators(void)
{
    MPI_Comm half, reversed, both;

    compare_both(MPI_INT, 2, MPI_COMM_SELF);
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &half);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &reversed);
    compare_both(MPI_INT, 2, half);
    compare_both(MPI_INT, 2, reversed);
    if (world_size > 2 && world_size % 2 == 0) {
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - world_rank % 2, 7, &both);
        compare(MPI_INT, 2, MPI_INT, 2, false, both);
        MPI_Comm_free(&both);
    }
    MPI_Comm_free(&half);
    MPI_Comm_free(&reversed);
}

/* Beside broadcasts of the same root, also nonblocking ones, and nothing but these keeps the ranks
 * together. */
static void among_broadcasts(void)
{
    enum { ROUNDS = 1000 };
    int round, rank, *all = malloc((size_t)world_size * sizeof *all);

    for (round = 0; round < ROUNDS; round++) {
        int own = round * world_size + world_rank, first = own, second = own;
        MPI_Request request;

        MPI_Ibcast(&first, 1, MPI_INT, 0, MPI_COMM_WORLD, &request);
        expect(MPI_Allgather(&own, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD) == MPI_SUCCESS, "an all-gather of many");
        MPI_Bcast(&second, 1, MPI_INT, round % 3 ? 0 : world_size - 1, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        for (rank = 0; rank < world_size; rank++)
            expect(all[rank] == round * world_size + rank, "a block among many");
        expect(first == all[0] && second == all[round % 3 ? 0 : world_size - 1], "a broadcast among all-gathers");
    }
    broadcasts += ROUNDS;
    free(all);
}

void gathers(void)
{
    basic_types();
    lengths();
    derived_types();
    communicators();
    among_broadcasts();
}

/* A block of a different length is an error at all ranks, and no rank hangs. The groups go on. */
void wrong_blocks(void)
{
    int own[2] = {world_rank, world_rank}, *all = malloc((size_t)world_size * sizeof *all), error, class;
    MPI_Comm comm;

    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    error = MPI_Allgather(own, world_rank == 1 ? 2 : 1, MPI_INT, all, 1, MPI_INT, comm);
    MPI_Error_class(error, &class);
    expect(world_rank == 1 ? class == MPI_ERR_TRUNCATE : error != MPI_SUCCESS, "a block of a different length");
    expect(MPI_Allgather(own, 1, MPI_INT, all, 1, MPI_INT, comm) == MPI_SUCCESS && all[1] == 1, "a right block afterwards");
    expect(MPI_Bcast(all, 2, MPI_INT, 0, comm) == MPI_SUCCESS, "a broadcast afterwards");
    MPI_Comm_free(&comm);
    free(all);
    broadcasts++;
}
