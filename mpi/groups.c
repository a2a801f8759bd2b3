/* The groups of a communicator's roots: which roots have some, and how they are made. */

#define _GNU_SOURCE

#include <stdio.h>
#include <sys/random.h>

#include "communicator.h"
#include "node.h"

/* Longer broadcasts use a tree for long messages. The tree for short ones would send several
 * copies over the first links. */
#define LONG_BYTES (64 << 10)

/* The message lengths for which the two trees are built. */
#define SHORT_MESSAGE_BYTES (1 << 10)
#define LONG_MESSAGE_BYTES (1 << 20)

/* How often a group number is drawn again if another group of a node has it. */
enum { NUMBER_TRIES = 4 };

/* A root loses its groups to another root if it has not broadcast for this number of broadcasts
 * times the number of roots with groups. If more roots broadcast in turn than can have groups,
 * they must not close each other's groups at each broadcast, which takes longer than a broadcast
 * by the MPI. */
enum { UNUSED_BROADCASTS_PER_ROOT = 8 };

/* The number of broadcasts by the MPI before another root than that of the trial gets groups. */
enum { BROADCASTS_WITHOUT_GROUPS = 16 };

/* How long a root that makes a group waits for the nodes of all ranks. A firewall may drop their
 * datagrams. */
enum { READY_TIMEOUT_MS = 3000 };

/* A rank's result of making a group. The minimum of all ranks counts. */
enum { UNREACHABLE = -1, REFUSED = 0, MADE = 1 };

bool is_worth_groups(struct communicator *communicator, int root)
{
    int i;

    for (i = 0; i < communicator->roots_max; i++)
        if (communicator->roots[i].used_at && communicator->roots[i].root == root)
            return true;
    return ++communicator->without_groups[root] > BROADCASTS_WITHOUT_GROUPS;
}

/* Finds a place for another root: an empty one, or that of the least recently used root, whose
 * groups are closed. NULL: all roots were used recently. */
static struct root_groups *find_place(struct communicator *communicator)
{
    struct root_groups *oldest = &communicator->roots[0];
    int i;

    for (i = 0; i < communicator->roots_max; i++) {
        if (!communicator->roots[i].used_at)
            return &communicator->roots[i];
        if (communicator->roots[i].used_at < oldest->used_at)
            oldest = &communicator->roots[i];
    }
    if (communicator->broadcasts - oldest->used_at <= (uint64_t)communicator->roots_max * UNUSED_BROADCASTS_PER_ROOT)
        return NULL;
    close_root(communicator, oldest);
    return oldest;
}

/* What the root tells the members of a group that is to be made. */
struct proposal {
    uint32_t number;
    uint32_t is_for_long;
};

static tc_result enter_group(const struct communicator *communicator, int root, const struct proposal *proposal, tc_group **group)
{
    char text[sizeof settings()->group + 256];
    unsigned long long message_bytes = proposal->is_for_long ? LONG_MESSAGE_BYTES : SHORT_MESSAGE_BYTES;

    snprintf(text, sizeof text, "message_bytes=%llu %sgroup=%u root=%d member=%d token=%s", message_bytes, settings()->group,
             proposal->number, root, communicator->rank, communicator->token);
    return tc_group_new(opened_node(), communicator->members, text, group);
}

/* Enters a group; the root waits until it is ready. */
static int try_group(struct communicator *communicator, int root, const struct proposal *proposal, tc_group **group)
{
    int result = MADE;

    *group = NULL;
    if (enter_group(communicator, root, proposal, group) != TC_OK)
        result = REFUSED;
    else if (root == communicator->rank && tc_group_wait_until_ready(*group, READY_TIMEOUT_MS) != TC_OK)
        result = UNREACHABLE;
    if (result != MADE)
        snprintf(communicator->report.why, sizeof communicator->report.why, "%s", tc_error_message());
    return result;
}

/* The ranks try numbers that the root draws, until no other group of their nodes has that
 * number. */
int make_group(struct communicator *communicator, struct root_groups *groups, bool is_for_long)
{
    int tries, own, all = REFUSED, error = MPI_SUCCESS;
    struct proposal proposal = {0};
    tc_group *group = NULL;

    for (tries = 0; all == REFUSED && tries < NUMBER_TRIES; tries++) {
        proposal.is_for_long = is_for_long;
        while (getrandom(&proposal.number, sizeof proposal.number, 0) != sizeof proposal.number)
            continue;
        error = mpi.Bcast(&proposal, sizeof proposal, MPI_BYTE, groups->root, communicator->private);
        if (error != MPI_SUCCESS)
            return error;
        own = try_group(communicator, groups->root, &proposal, &group);
        error = mpi.Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, communicator->private);
        if (all == MADE) {
            groups->by_length[proposal.is_for_long != 0] = group;
            groups->is_made[proposal.is_for_long != 0] = true;
            *communicator->report.why = '\0';
        } else {
            tc_group_free(group);
        }
        if (error != MPI_SUCCESS)
            return error;
    }
    if (all != MADE) {
        communicator->outcome = NO_GROUP;
        if (!*communicator->report.why)
            snprintf(communicator->report.why, sizeof communicator->report.why, "another rank cannot make the group");
    }
    communicator->report.groups += all == MADE;
    return MPI_SUCCESS;
}

bool is_long(uint64_t bytes)
{
    return bytes > LONG_BYTES;
}

int find_root(struct communicator *communicator, int root, bool is_for_long, struct root_groups **found)
{
    struct root_groups *groups;
    int i;

    communicator->broadcasts++;
    for (i = 0; i < communicator->roots_max; i++) {
        groups = &communicator->roots[i];
        if (groups->used_at && groups->root == root) {
            groups->used_at = communicator->broadcasts;
            *found = groups;
            return MPI_SUCCESS;
        }
    }
    *found = groups = find_place(communicator);
    if (!groups)
        return MPI_SUCCESS;
    *groups = (struct root_groups){.root = root, .used_at = communicator->broadcasts, .error = MPI_SUCCESS};
    return make_group(communicator, groups, is_for_long);
}
