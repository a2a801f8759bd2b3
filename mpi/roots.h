/* The roots of a communicator that have groups. */

#ifndef TREECAST_MPI_ROOTS_H
#define TREECAST_MPI_ROOTS_H

#include <stdbool.h>

#include "class.h"
#include "communicator.h"

/* Whether a root has groups, or has broadcast often enough to get some. All ranks call it once
 * for each of its broadcasts. */
bool is_worth_groups(struct communicator *communicator, int root);

/* What the groups of a root are used for. */
enum use { FOR_BROADCASTS, FOR_VALUES };

static inline enum use use_of(enum collective collective)
{
    return collective == BROADCAST ? FOR_BROADCASTS : FOR_VALUES;
}

/* Whether a root has the groups for a use. */
bool has_groups_of(struct communicator *communicator, int root, enum use use);

/* Whether a root has a place for groups, or take_place() finds one. */
bool may_have_groups(struct communicator *communicator, int root);

/* The place of a root, which may close the groups of another root; NULL, if too many other roots
 * have groups. All ranks have to be in this call. */
struct root_groups *take_place(struct communicator *communicator, int root);

/* The groups of a root; NULL, if too many other roots have groups. At the first use of each kind
 * all ranks have to be in this call, and the groups for it are made. Where they cannot be made, the
 * communicator's `outcome` tells. Returns an MPI error code. */
int find_root(struct communicator *communicator, int root, enum use use, struct root_groups **found);

/* Closes the groups of all roots. All ranks have to be in this call. */
void close_groups(struct communicator *communicator);

/* Completes the nonblocking broadcasts of a root and closes its groups. All ranks have to be in
 * this call. */
void close_root(struct communicator *communicator, struct root_groups *groups);

#endif
