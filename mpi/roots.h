/* The roots of a communicator that have groups. */

#ifndef TREECAST_MPI_ROOTS_H
#define TREECAST_MPI_ROOTS_H

#include <stdbool.h>

#include "communicator.h"

/* Whether a root has groups, or has broadcast often enough to get some. All ranks call it once
 * for each of its broadcasts. */
bool is_worth_groups(struct communicator *communicator, int root);

/* What the groups of a root are used for. */
enum use { FOR_BROADCASTS, FOR_VALUES };

/* The groups of a root; NULL, if too many other roots have groups. At the first use of each kind all
 * ranks have to be in this call, and the groups for it are made. Where they cannot be made, the
 * communicator's `outcome` tells. Returns an MPI error code. */
int find_root(struct communicator *communicator, int root, enum use use, struct root_groups **found);

/* Closes the groups of all roots. All ranks have to be in this call. */
void close_groups(struct communicator *communicator);

/* Completes the nonblocking broadcasts of a root and closes its groups. All ranks have to be in
 * this call. */
void close_root(struct communicator *communicator, struct root_groups *groups);

#endif
