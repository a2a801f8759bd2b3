/* Groups that communicators of the same processes share.
 *
 * A communicator finds those of another one when it makes groups for a root. Since other threads
 * may do the same for other communicators, or free them, in another order at each rank, no rank
 * concludes from its own state what the others do: the root offers groups that it has, and they are
 * used if all ranks have them too (groups.c). Each communicator that uses them, and each that has
 * failed to, leaves them at all ranks, so that they end at all. */

#ifndef TREECAST_MPI_SHARED_H
#define TREECAST_MPI_SHARED_H

#include "channel.h"
#include "library.h"

/* The kinds of groups: with trees for messages of different lengths. */
enum kind { SHORT, MIDDLE, LONG, KINDS };

struct shared_groups {
    struct channel channels[KINDS];
    /* The groups' numbers, by which all ranks know them. */
    uint32_t numbers[KINDS];
    /* Whether this process is the root. */
    bool is_root;
    /* How many communicators use them. At the root, the number of the last one: the first has 0. */
    int users;
    uint32_t last_number;
    /* Once they are offered to other communicators: their processes, and the next ones. */
    bool is_offered;
    MPI_Group processes;
    struct shared_groups *next;
};

/* Groups that are not made yet, with one communicator. NULL: no memory. */
struct shared_groups *new_groups(const uint32_t numbers[KINDS], bool is_root);

/* Offers groups to other communicators of the same processes. */
void offer_groups(struct shared_groups *shared, MPI_Comm comm);

/* Uses groups of which this process is the root, and which have the processes of a communicator;
 * NULL: there are none. Writes the communicator's number in them. */
struct shared_groups *use_own_groups(MPI_Comm comm, uint32_t *number);

/* Uses the groups with these numbers; NULL: there are none. */
struct shared_groups *use_groups(const uint32_t numbers[KINDS]);

/* Whether there are groups with the processes of a communicator, of whatever root. */
bool are_groups_offered(MPI_Comm comm);

/* A communicator no longer uses them. Returns whether it was the last one: then the caller closes
 * and frees them. */
bool leave_groups(struct shared_groups *shared);

void free_groups(struct shared_groups *shared);

#endif
