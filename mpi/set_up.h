/* Sets up a communicator: its ranks open their nodes and exchange the addresses. */

#ifndef TREECAST_MPI_SET_UP_H
#define TREECAST_MPI_SET_UP_H

#include "library.h"
#include "node.h"
#include "task.h"

struct communicator;

/* The node of this rank as it is opened. */
struct opening {
    /* Of all ranks. */
    struct introduction *introductions;
    int rank, size;
    struct task task;
    struct endpoint endpoint;
    /* Why there is none; empty: it is open. */
    char why[WHY_BYTES];
};

/* Introduces the ranks to each other and starts to open this rank's node in the background, unless
 * that was done. All ranks have to be in this call. Returns an MPI error code. */
int begin_set_up(struct communicator *communicator, MPI_Comm comm);

/* Sets a communicator up, unless it is: waits for this rank's node and exchanges the addresses. If
 * a rank has no node, or all are on one host, the communicator's `outcome` tells. All ranks have to
 * be in this call. Returns an MPI error code. */
int set_up_communicator(struct communicator *communicator, MPI_Comm comm);

/* Ends a set-up that was begun. */
void cancel_set_up(struct communicator *communicator);

#endif
