/* The groups of a root, which carry its broadcasts and other collectives. */

#ifndef TREECAST_MPI_GROUPS_H
#define TREECAST_MPI_GROUPS_H

#include "communicator.h"

/* The kind of group for broadcasts of this number of bytes. */
enum kind kind_of(uint64_t bytes);

/* Makes the groups of a root that has none, of the kinds in this set of bits. All ranks have to be
 * in this call. Where they cannot be made, the communicator's `outcome` tells. Returns an MPI error
 * code. */
int make_groups(struct communicator *communicator, struct root_groups *groups, unsigned kinds);

/* Frees the groups of a root which cannot send the rest of a message: the members, which wait for
 * it, learn that the groups have ended. */
void abort_groups(struct root_groups *groups);

#endif
