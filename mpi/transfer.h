/* How the bytes of a broadcast go from the root's buffer to those of the others. */

#ifndef TREECAST_MPI_TRANSFER_H
#define TREECAST_MPI_TRANSFER_H

#include "communicator.h"

/* A buffer of a broadcast. */
struct buffer {
    void *address;
    MPI_Count count;
    MPI_Datatype type;
    /* All bytes of data. */
    uint64_t bytes;
};

/* Sends the buffer from the root, or receives it. Returns an MPI error code: MPI_ERR_TRUNCATE,
 * if the root has sent another number of bytes, and the groups' error, if members were lost or a
 * group has ended. Where a group had to be made and cannot, the communicator's `outcome` tells. */
int send_buffer(struct communicator *communicator, struct root_groups *groups, const struct buffer *buffer);
int receive_buffer(struct communicator *communicator, struct root_groups *groups, const struct buffer *buffer);

#endif
