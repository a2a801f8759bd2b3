/* Makes the groups of a root, in steps. In each step a rank does its own part, which may take
 * milliseconds to seconds, and then the ranks agree on how that went. In the background a thread
 * does the rank's part (task.h), and the program goes on; the ranks agree in later calls, when all
 * have done theirs.
 *
 * 1. The root offers groups that it has already, or numbers for new ones, and all ranks enter them.
 * 2. The root waits until the nodes of all ranks have answered. */

#ifndef TREECAST_MPI_MAKING_H
#define TREECAST_MPI_MAKING_H

#include <stdatomic.h>

#include "groups.h"
#include "task.h"

/* What the root tells the other ranks. */
struct offer {
    uint32_t numbers[KINDS];
    /* Whether the groups are those of another communicator, and this one's number in them. */
    uint32_t is_shared, number;
};

struct making {
    struct communicator *communicator;
    struct used used;
    bool is_in_background;
    struct offer offer;
    /* How many offers the root has made. */
    int tries;
    /* Whether the groups are entered and the root waits for the nodes. */
    bool is_waiting;
    /* This rank's part of the step, how it went, and why it failed. */
    struct task task;
    int result;
    char why[256];
    _Atomic bool is_cancelled;
    /* The time that the tasks of this rank have taken. */
    double us;
};

/* Begins to make the groups in `used`. All ranks have to be in this call. Returns an MPI error
 * code. */
int begin_making(struct making *making, struct communicator *communicator, struct used used, bool is_in_background);

/* Whether the ranks need not wait for each other's part of the present step. All ranks get the same
 * result. */
static inline bool is_at_once(const struct making *making)
{
    return !making->is_in_background || making->offer.is_shared;
}

/* The ranks agree on the present step and begin the next one, if all have done their parts.
 * `has_ended` is set after the last one: then the groups are made, or the communicator's `outcome`
 * tells why not. All ranks have to be in this call. Returns an MPI error code. */
int advance_making(struct making *making, bool *has_ended);

/* Ends it before the groups are made. All ranks do so between the same steps. */
void cancel_making(struct making *making);

/* Makes the groups for broadcasts of a root that has none, of the kinds in this set of bits, here
 * and now. If both are wanted, another communicator of the same processes may share them. All ranks
 * have to be in this call. Where they cannot be made, the communicator's `outcome` tells. Returns
 * an MPI error code. */
int make_groups(struct communicator *communicator, struct root_groups *groups, unsigned kinds);

/* The same for the group for values. */
int make_values_group(struct communicator *communicator, struct root_groups *groups);

#endif
