/* Packs and unpacks the elements of a buffer by the MPI. */

#ifndef TREECAST_MPI_PACKING_H
#define TREECAST_MPI_PACKING_H

#include <stddef.h>
#include <stdint.h>

#include "library.h"

/* The longest packet. */
#define PACKET_BYTES_MAX (64 << 10)

/* A buffer of a broadcast. */
struct buffer {
    void *address;
    MPI_Count count;
    MPI_Datatype type;
    /* All bytes of data. */
    uint64_t bytes;
};

/* The state of packing or unpacking elements piece by piece. */
struct packing {
    struct buffer buffer;
    /* The communicator that MPI_Pack() and MPI_Unpack() ask for. */
    MPI_Comm comm;
    /* The data bytes of an element, and the distance from one element to the next. */
    MPI_Count size, extent;
    /* The index of the next element. */
    MPI_Count next;
    /* Packed bytes that are not sent or unpacked yet. */
    char *bytes;
    size_t capacity, filled;
};

/* Begins with space for at least `least` packed bytes, one element, and a packet more; `bytes` is
 * to be freed. Returns an MPI error code, as the others do. */
int begin_packing(struct packing *packing, const struct buffer *buffer, MPI_Comm comm, uint64_t least);

/* Packs as many of the next elements as there is room for. */
int pack_some(struct packing *packing);

/* Unpacks the whole elements among the packed bytes. */
int unpack_some(struct packing *packing);

#endif
