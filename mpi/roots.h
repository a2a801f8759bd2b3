/* The roots of a communicator that have groups. */

#ifndef TREECAST_MPI_ROOTS_H
#define TREECAST_MPI_ROOTS_H

#include <stdbool.h>

#include "communicator.h"

/* Whether a root has groups, or has broadcast often enough to get some. All ranks call it once
 * for each of its broadcasts. */
bool is_worth_groups(struct communicator *communicator, int root);

/* The groups of a root; NULL, if too many other roots have groups. The first time, all ranks
 * have to be in this call, and both groups are made. Where they cannot be made, the
 * communicator's `outcome` tells. Returns an MPI error code. */
int find_root(struct communicator *communicator, int root, struct root_groups **found);

/* Closes the groups of all roots. All ranks have to be in this call. */
void close_groups(struct communicator *communicator);

/* Completes the nonblocking broadcasts of a root and closes its groups. All ranks have to be in
 * this call. */
void close_root(struct communicator *communicator, struct root_groups *groups);

/* The two halves of that, for several roots. Roots close first. That needs only the members' nodes
 * and not their ranks, so no two ranks wait for each other. */
void close_as_root(const struct communicator *communicator, struct root_groups *groups);
void close_as_member(const struct communicator *communicator, struct root_groups *groups);

#endif
