#include "roots.h"

#include "groups.h"
#include "making.h"
#include "request.h"

/* A root loses its groups to another root if it has not broadcast for this number of broadcasts
 * times the number of roots with groups. If more roots broadcast in turn than can have groups,
 * they must not close each other's groups at each broadcast, which takes longer than a broadcast
 * by the MPI. */
enum { UNUSED_BROADCASTS_PER_ROOT = 8 };

/* The number of broadcasts by the MPI before another root than that of the trial gets groups. */
enum { BROADCASTS_WITHOUT_GROUPS = 16 };

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

/* The place that a root has; NULL: none. */
static struct root_groups *place_of(struct communicator *communicator, int root)
{
    int i;

    for (i = 0; i < communicator->roots_max; i++)
        if (communicator->roots[i].used_at && communicator->roots[i].root == root)
            return &communicator->roots[i];
    return NULL;
}

bool has_groups_of(struct communicator *communicator, int root, enum use use)
{
    const struct root_groups *groups = place_of(communicator, root);

    return groups && (use == FOR_BROADCASTS ? groups->shared : groups->values);
}

bool is_worth_groups(struct communicator *communicator, int root)
{
    return place_of(communicator, root) || ++communicator->without_groups[root] > BROADCASTS_WITHOUT_GROUPS;
}

/* Finds a place for another root: an empty one, or that of the least recently used root. NULL: all
 * roots were used recently. */
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
    return oldest;
}

bool may_have_groups(struct communicator *communicator, int root)
{
    return !communicator->is_set_up || place_of(communicator, root) || find_place(communicator);
}

struct root_groups *take_place(struct communicator *communicator, int root)
{
    struct root_groups *groups = place_of(communicator, root);

    if (groups)
        return groups;
    groups = find_place(communicator);
    if (groups && groups->used_at)
        close_root(communicator, groups);
    if (groups)
        *groups = (struct root_groups){.root = root, .error = MPI_SUCCESS};
    return groups;
}

int find_root(struct communicator *communicator, int root, enum use use, struct root_groups **found)
{
    struct root_groups *groups;

    communicator->broadcasts++;
    *found = groups = take_place(communicator, root);
    if (!groups)
        return MPI_SUCCESS;
    groups->used_at = communicator->broadcasts;
    if (use == FOR_BROADCASTS && !groups->shared)
        return make_groups(communicator, groups, ALL_KINDS);
    return use == FOR_VALUES && !groups->values ? make_values_group(communicator, groups) : MPI_SUCCESS;
}
