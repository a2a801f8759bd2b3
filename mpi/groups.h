/* The groups of a root, which carry its broadcasts and other collectives. */

#ifndef TREECAST_MPI_GROUPS_H
#define TREECAST_MPI_GROUPS_H

#include "communicator.h"

/* The kind of group for broadcasts of this number of bytes. */
enum kind kind_of(uint64_t bytes);

/* Groups as a communicator uses them, in one of its roots. */
struct used {
    int root;
    unsigned kinds;
    /* Whether other communicators may use them too. */
    bool may_be_shared;
    struct port *ports;
    /* NULL: not made. */
    struct shared_groups *groups;
};

/* The groups for broadcasts of a root that has none, of the kinds in this set of bits, and that for
 * values, as they are to be made (making.h). */
struct used used_for_broadcasts(struct root_groups *groups, unsigned kinds);
struct used used_for_values(const struct root_groups *groups);

/* Leaves groups, and closes those that no other communicator uses. */
void leave_used(const struct communicator *communicator, struct used *used);

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
