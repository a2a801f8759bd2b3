#include "packing.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

int begin_packing(struct packing *packing, const struct buffer *buffer, MPI_Comm comm, uint64_t least)
{
    MPI_Count lower;

    *packing = (struct packing){.buffer = *buffer, .comm = comm};
    mpi.Type_get_extent_x(buffer->type, &lower, &packing->extent);
    packing->size = (MPI_Count)(buffer->bytes / (uint64_t)buffer->count);
    if (packing->size > INT_MAX)
        return MPI_ERR_COUNT;
    packing->capacity = (size_t)((uint64_t)packing->size > least ? (uint64_t)packing->size : least) + PACKET_BYTES_MAX;
    packing->bytes = malloc(packing->capacity);
    return packing->bytes ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

static char *next_element(const struct packing *packing)
{
    return (char *)packing->buffer.address + packing->next * packing->extent;
}

static int min_int(MPI_Count one, MPI_Count other)
{
    MPI_Count min = one < other ? one : other;

    return min < INT_MAX ? (int)min : INT_MAX;
}

/* The next elements of which `bytes` bytes have room for all packed bytes. */
static int elements_in(const struct packing *packing, size_t bytes)
{
    return min_int(min_int((MPI_Count)bytes, INT_MAX) / packing->size, packing->buffer.count - packing->next);
}

int pack_some(struct packing *packing)
{
    size_t space = packing->capacity - packing->filled;
    int elements = elements_in(packing, space), end = 0;
    int error = mpi.Pack(next_element(packing), elements, packing->buffer.type, packing->bytes + packing->filled,
                         min_int((MPI_Count)space, INT_MAX), &end, packing->comm);

    if (error == MPI_SUCCESS && end != elements * (int)packing->size)
        error = MPI_ERR_INTERN;
    packing->filled += (size_t)end;
    packing->next += elements;
    return error;
}

int unpack_some(struct packing *packing)
{
    int elements = elements_in(packing, packing->filled), end = 0;
    int bytes = elements * (int)packing->size;
    int error = mpi.Unpack(packing->bytes, bytes, &end, next_element(packing), elements, packing->buffer.type, packing->comm);

    packing->filled -= (size_t)bytes;
    packing->next += elements;
    memmove(packing->bytes, packing->bytes + bytes, packing->filled);
    return error;
}
