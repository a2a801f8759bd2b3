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

/* How long a root that makes groups waits for the nodes of all ranks. A firewall may drop their
 * datagrams. */
enum { READY_TIMEOUT_MS = 3000 };

/* A rank's result of making groups. The minimum of all ranks counts. */
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

static tc_result enter_group(const struct communicator *communicator, int root, int kind, uint32_t number, tc_group **group)
{
    char text[sizeof settings()->group + 256];
    unsigned long long message_bytes = kind == LONG ? LONG_MESSAGE_BYTES : SHORT_MESSAGE_BYTES;

    snprintf(text, sizeof text, "message_bytes=%llu %sgroup=%u root=%d member=%d token=%s", message_bytes, settings()->group, number, root,
             communicator->rank, communicator->token);
    return tc_group_new(opened_node(), communicator->members, text, group);
}

/* Enters the groups of these kinds; the root waits until they are ready. */
static int try_groups(struct communicator *communicator, struct root_groups *groups, unsigned kinds, const uint32_t numbers[KINDS])
{
    bool is_root = groups->root == communicator->rank;
    int kind, result = MADE;

    for (kind = 0; kind < KINDS; kind++)
        if (kinds & 1u << kind && enter_group(communicator, groups->root, kind, numbers[kind], &groups->by_length[kind]) != TC_OK)
            result = REFUSED;
    for (kind = 0; kind < KINDS && is_root && result == MADE; kind++)
        if (kinds & 1u << kind && tc_group_wait_until_ready(groups->by_length[kind], READY_TIMEOUT_MS) != TC_OK)
            result = UNREACHABLE;
    if (result != MADE)
        snprintf(communicator->report.why, sizeof communicator->report.why, "%s", tc_error_message());
    return result;
}

/* The ranks try numbers that the root draws, until no other groups of their nodes have them. */
int make_groups(struct communicator *communicator, struct root_groups *groups, unsigned kinds)
{
    int tries, own, all = REFUSED, error = MPI_SUCCESS;
    uint32_t numbers[KINDS];

    for (tries = 0; all == REFUSED && tries < NUMBER_TRIES; tries++) {
        while (getrandom(numbers, sizeof numbers, 0) != sizeof numbers)
            continue;
        error = mpi.Bcast(numbers, sizeof numbers, MPI_BYTE, groups->root, communicator->private);
        if (error != MPI_SUCCESS)
            return error;
        own = try_groups(communicator, groups, kinds, numbers);
        error = mpi.Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, communicator->private);
        if (all != MADE)
            abort_groups(groups);
        if (error != MPI_SUCCESS)
            return error;
    }
    if (all == MADE) {
        *communicator->report.why = '\0';
        communicator->report.groups += (uint64_t)__builtin_popcount(kinds);
        return MPI_SUCCESS;
    }
    communicator->outcome = NO_GROUP;
    if (!*communicator->report.why)
        snprintf(communicator->report.why, sizeof communicator->report.why, "another rank cannot make the groups");
    return MPI_SUCCESS;
}

void abort_groups(struct root_groups *groups)
{
    int kind;

    for (kind = 0; kind < KINDS; kind++) {
        tc_group_free(groups->by_length[kind]);
        groups->by_length[kind] = NULL;
    }
}

enum kind kind_of(uint64_t bytes)
{
    return bytes > LONG_BYTES ? LONG : SHORT;
}

int find_root(struct communicator *communicator, int root, struct root_groups **found)
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
    return make_groups(communicator, groups, BOTH_KINDS);
}
