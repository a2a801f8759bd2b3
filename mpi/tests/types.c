/* Broadcasts of all datatypes and of many lengths, compared with the MPI's own, also in the bytes
 * that they must not write. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broadcasts.h"

enum { MARGIN = 64 };

struct memory allocate_memory(MPI_Datatype type, int count)
{
    MPI_Aint lower, extent, true_lower, true_extent, low, high, last;
    struct memory memory;

    MPI_Type_get_extent(type, &lower, &extent);
    MPI_Type_get_true_extent(type, &true_lower, &true_extent);
    last = count > 0 ? (count - 1) * extent : 0;
    low = true_lower + (last < 0 ? last : 0);
    high = true_lower + true_extent + (last > 0 ? last : 0);
    memory.length = (size_t)(high - low) + 2 * MARGIN;
    memory.bytes = malloc(memory.length);
    expect(memory.bytes != NULL, "no memory");
    memory.origin = memory.bytes + MARGIN - low;
    return memory;
}

void fill_memory(struct memory memory, int root, int rank, unsigned seed)
{
    size_t i;

    for (i = 0; i < memory.length; i++)
        memory.bytes[i] = rank == root ? (char)(i * 2654435761u + seed + (unsigned)root * 31) >> 1 : (char)GAP;
}

/* Broadcasts `root_count` elements of one type, which the other ranks receive as `count` elements
 * of another. */
static void compare(MPI_Datatype at_root, int root_count, MPI_Datatype elsewhere, int count, int root, MPI_Comm comm)
{
    int rank;
    struct memory ours, theirs;
    MPI_Datatype type;

    MPI_Comm_rank(comm, &rank);
    type = rank == root ? at_root : elsewhere;
    count = rank == root ? root_count : count;
    ours = allocate_memory(type, count);
    theirs = allocate_memory(type, count);
    fill_memory(ours, root, rank, (unsigned)broadcasts);
    fill_memory(theirs, root, rank, (unsigned)broadcasts);
    expect(MPI_Bcast(ours.origin, count, type, root, comm) == MPI_SUCCESS, "MPI_Bcast");
    expect(PMPI_Bcast(theirs.origin, count, type, root, comm) == MPI_SUCCESS, "PMPI_Bcast");
    if (memcmp(ours.bytes, theirs.bytes, ours.length) != 0) {
        size_t i = 0;

        while (ours.bytes[i] == theirs.bytes[i])
            i++;
        fprintf(stderr, "rank %d: byte %zu of %zu differs: %d and not %d (root %d, %d elements)\n", world_rank, i, ours.length,
                ours.bytes[i], theirs.bytes[i], root, count);
        expect(false, "the broadcasts differ");
    }
    free(ours.bytes);
    free(theirs.bytes);
    broadcasts++;
}

static void compare_all_roots(MPI_Datatype type, int count, MPI_Comm comm)
{
    int size, root;

    MPI_Comm_size(comm, &size);
    for (root = 0; root < size; root++)
        compare(type, count, type, count, root, comm);
}

void broadcasts_of_basic_types(void)
{
    const MPI_Datatype types[] = {
        MPI_CHAR, MPI_SIGNED_CHAR, MPI_UNSIGNED_CHAR, MPI_BYTE, MPI_WCHAR, MPI_SHORT, MPI_UNSIGNED_SHORT, MPI_INT, MPI_UNSIGNED,
        MPI_LONG, MPI_UNSIGNED_LONG, MPI_LONG_LONG, MPI_UNSIGNED_LONG_LONG, MPI_FLOAT, MPI_DOUBLE, MPI_LONG_DOUBLE, MPI_C_BOOL,
        MPI_INT8_T, MPI_INT16_T, MPI_INT32_T, MPI_INT64_T, MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T, MPI_AINT, MPI_COUNT,
        MPI_OFFSET, MPI_C_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_C_LONG_DOUBLE_COMPLEX, MPI_FLOAT_INT, MPI_DOUBLE_INT, MPI_LONG_INT,
        MPI_2INT, MPI_SHORT_INT, MPI_LONG_DOUBLE_INT, MPI_PACKED,
    };
    const int counts[] = {0, 1, 3, 1000};
    size_t type, count;

    for (type = 0; type < sizeof types / sizeof *types; type++)
        for (count = 0; count < sizeof counts / sizeof *counts; count++)
            compare_all_roots(types[type], counts[count], MPI_COMM_WORLD);
}

/* A derived type is freed after its use. */
static void compare_derived(MPI_Datatype type, int count)
{
    MPI_Type_commit(&type);
    compare_all_roots(type, count, MPI_COMM_WORLD);
    MPI_Type_free(&type);
}

void broadcasts_of_derived_types(void)
{
    const int counts[] = {1, 7, 3000};
    size_t i;

    for (i = 0; i < sizeof counts / sizeof *counts; i++) {
        int count = counts[i];
        int lengths[] = {2, 1, 3}, places[] = {9, 0, 4}, reversed[] = {3, 2, 1, 0};
        int sizes[] = {6, 8}, parts[] = {3, 4}, starts[] = {2, 1};
        MPI_Aint offsets[] = {40, 0, 8};
        MPI_Datatype members[] = {MPI_INT, MPI_DOUBLE, MPI_CHAR}, type, inner;

        MPI_Type_contiguous(5, MPI_INT, &type);
        compare_derived(type, count);
        MPI_Type_contiguous(0, MPI_INT, &type);
        compare_derived(type, count);
        MPI_Type_vector(4, 3, 7, MPI_SHORT, &type);
        compare_derived(type, count);
        MPI_Type_vector(4, 3, 3, MPI_SHORT, &type);
        compare_derived(type, count);
        MPI_Type_create_hvector(5, 2, -32, MPI_INT, &type);
        compare_derived(type, count);
        MPI_Type_indexed(3, lengths, places, MPI_INT, &type);
        compare_derived(type, count);
        /* As long as four integers, but in another order. */
        MPI_Type_create_indexed_block(4, 1, reversed, MPI_INT, &type);
        compare_derived(type, count);
        MPI_Type_create_struct(3, lengths, offsets, members, &type);
        compare_derived(type, count);
        MPI_Type_create_resized(MPI_INT, 0, 12, &type);
        compare_derived(type, count);
        MPI_Type_create_resized(MPI_INT, 0, -8, &type);
        compare_derived(type, count);
        MPI_Type_create_resized(MPI_INT, -4, 16, &type);
        compare_derived(type, count);
        MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_FLOAT, &type);
        compare_derived(type, count);
        MPI_Type_dup(MPI_DOUBLE, &type);
        compare_derived(type, count);
#if MPI_VERSION >= 4
        /* Constructors for large counts: MPI_Type_get_envelope refuses what they make. */
        MPI_Type_contiguous_c(5, MPI_INT, &type);
        compare_derived(type, count);
        MPI_Type_contiguous_c(2, MPI_INT, &inner);
        MPI_Type_contiguous_c(3, inner, &type);
        MPI_Type_free(&inner);
        compare_derived(type, count);
        MPI_Type_vector_c(4, 3, 3, MPI_SHORT, &type);
        compare_derived(type, count);
#endif
        MPI_Type_vector(2, 1, 3, MPI_INT, &inner);
        MPI_Type_contiguous(3, inner, &type);
        compare_derived(type, count);
        MPI_Type_free(&inner);
    }
    {
        /* One element that is longer than what is packed at once. */
        MPI_Datatype type;

        MPI_Type_vector(300000, 1, 2, MPI_INT, &type);
        compare_derived(type, 2);
    }
}

/* The root and the other ranks describe the same bytes by different types and counts. */
void broadcasts_of_mixed_types(void)
{
    const int reversed[] = {3, 2, 1, 0};
    MPI_Datatype vector, numbers, backwards;
    int root;

    MPI_Type_vector(4, 3, 7, MPI_INT, &vector);
    MPI_Type_commit(&vector);
    MPI_Type_contiguous(12, MPI_INT, &numbers);
    MPI_Type_commit(&numbers);
    /* As long as its four integers, but not in their order. */
    MPI_Type_create_indexed_block(4, 1, reversed, MPI_INT, &backwards);
    MPI_Type_commit(&backwards);
    for (root = 0; root < world_size; root++) {
        compare(MPI_INT, 12 * 1000, vector, 1000, root, MPI_COMM_WORLD);
        compare(vector, 1000, MPI_INT, 12 * 1000, root, MPI_COMM_WORLD);
        compare(vector, 500, numbers, 500, root, MPI_COMM_WORLD);
        compare(backwards, 3000, MPI_INT, 4 * 3000, root, MPI_COMM_WORLD);
    }
    MPI_Type_free(&vector);
    MPI_Type_free(&backwards);
    MPI_Type_free(&numbers);
}

void broadcasts_of_all_sizes(void)
{
    int bytes;

    for (bytes = 1; bytes <= 64 << 20; bytes *= 4)
        compare(MPI_BYTE, bytes + 1, MPI_BYTE, bytes + 1, bytes % world_size, MPI_COMM_WORLD);
    compare(MPI_BYTE, 64 << 20, MPI_BYTE, 64 << 20, world_size - 1, MPI_COMM_WORLD);
}
