/* The groups of a root, which carry its broadcasts and other collectives. */

#ifndef TREECAST_MPI_GROUPS_H
#define TREECAST_MPI_GROUPS_H

#include "communicator.h"

/* The kind of group for broadcasts of this number of bytes. */
enum kind kind_of(uint64_t bytes);

/* Makes the groups for broadcasts of a root that has none, of the kinds in this set of bits. If both
 * are wanted, another communicator of the same processes may share them. All ranks have to be in
 * this call. Where they cannot be made, the communicator's `outcome` tells. Returns an MPI error
 * code. */
int make_groups(struct communicator *communicator, struct root_groups *groups, unsigned kinds);

/* The same for the group for values. */
int make_values_group(struct communicator *communicator, struct root_groups *groups);

/* Frees the groups for broadcasts of a root which cannot send the rest of a message: the members,
 * which wait for it, learn that the groups have ended. So they have for all communicators that
 * share them. */
void abort_groups(struct root_groups *groups);

/* Close the groups of a root, in two halves: at the root, and at the members. Groups that other
 * communicators use stay open. Roots close first. That needs only the members' nodes and not their
 * ranks, so no two ranks wait for each other. */
void close_as_root(const struct communicator *communicator, struct root_groups *groups);
void close_as_member(const struct communicator *communicator, struct root_groups *groups);

#endif
