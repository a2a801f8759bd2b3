#define _GNU_SOURCE

#include "groups.h"

#include <stdio.h>
#include <sys/random.h>

#include "node.h"

/* Longer broadcasts use a tree for long messages. The tree for short ones would send several
 * copies over the first links. */
#define LONG_BYTES (64 << 10)

/* The message lengths for which the two trees are built. */
#define SHORT_MESSAGE_BYTES (1 << 10)
#define LONG_MESSAGE_BYTES (1 << 20)

/* How often a group number is drawn again if another group of a node has it. */
enum { NUMBER_TRIES = 4 };

/* How long a root that makes groups waits for the nodes of all ranks. A firewall may drop their
 * datagrams. */
enum { READY_TIMEOUT_MS = 3000 };

/* A rank's result of making groups. The minimum of all ranks counts. */
enum { UNREACHABLE = -1, REFUSED = 0, MADE = 1 };

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
