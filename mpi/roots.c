#include "roots.h"

#include <time.h>

#include "groups.h"
#include "request.h"
#include "transfer.h"

/* A root loses its groups to another root if it has not broadcast for this number of broadcasts
 * times the number of roots with groups. If more roots broadcast in turn than can have groups,
 * they must not close each other's groups at each broadcast, which takes longer than a broadcast
 * by the MPI. */
enum { UNUSED_BROADCASTS_PER_ROOT = 8 };

/* The number of broadcasts by the MPI before another root than that of the trial gets groups. */
enum { BROADCASTS_WITHOUT_GROUPS = 16 };

/* How long a root that closes a group waits for the members' last acknowledgments, and a member
 * for the root's close. */
enum { CLOSE_TIMEOUT_MS = 5000 };

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Waits until the root has closed the group. The root is in the same call, or will be. */
static void wait_for_close(const struct communicator *communicator, const tc_group *group)
{
    int64_t until = now_ms() + CLOSE_TIMEOUT_MS;
    uint64_t message_bytes;
    size_t received;

    while (tc_group_receive_part(group, NULL, 0, 1, &message_bytes, &received) == TC_TIMED_OUT && now_ms() < until)
        make_progress(communicator);
}

void close_as_root(const struct communicator *communicator, struct root_groups *groups)
{
    int kind;

    for (kind = 0; kind < KINDS && groups->root == communicator->rank; kind++) {
        if (groups->by_length[kind])
            tc_group_close(groups->by_length[kind], CLOSE_TIMEOUT_MS);
        groups->by_length[kind] = NULL;
    }
}

void close_as_member(const struct communicator *communicator, struct root_groups *groups)
{
    int kind;

    for (kind = 0; kind < KINDS; kind++) {
        if (groups->by_length[kind])
            wait_for_close(communicator, groups->by_length[kind]);
        tc_group_free(groups->by_length[kind]);
        groups->by_length[kind] = NULL;
    }
}

void close_groups(struct communicator *communicator)
{
    int i;

    for (i = 0; i < ROOTS_MAX; i++)
        complete_requests(communicator, &communicator->roots[i]);
    for (i = 0; i < ROOTS_MAX; i++)
        close_as_root(communicator, &communicator->roots[i]);
    for (i = 0; i < ROOTS_MAX; i++) {
        close_as_member(communicator, &communicator->roots[i]);
        communicator->roots[i] = (struct root_groups){0};
    }
}

void close_root(struct communicator *communicator, struct root_groups *groups)
{
    complete_requests(communicator, groups);
    close_as_root(communicator, groups);
    close_as_member(communicator, groups);
}

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
