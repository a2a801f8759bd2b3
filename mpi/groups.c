#include "groups.h"

#include "clock.h"
#include "transfer.h"
#include "treecast_library.h"

/* The longest broadcasts by the trees for short and for middle messages. Short messages take least
 * time in a wide tree, whose root sends many copies. The longer they are, the more each copy takes
 * of the root's link, and the fewer children it may have; the longest go along a chain. */
#define SHORT_BYTES_MAX (16 << 10)
#define MIDDLE_BYTES_MAX (512 << 10)

/* How long a root that closes a group waits for the members' last acknowledgments, and a member
 * for the root's close. */
enum { CLOSE_TIMEOUT_MS = 5000 };

/* Waits until the root has closed the group. The root is in the same call, or will be. */
static void wait_for_close(const struct communicator *communicator, const tc_group *group)
{
    int64_t until = now_ms() + CLOSE_TIMEOUT_MS;
    uint64_t message_bytes;
    size_t received;

    while (treecast.group_receive_part(group, NULL, 0, 1, &message_bytes, &received) == TC_TIMED_OUT && now_ms() < until)
        make_progress(communicator);
}

/* Closes the group at the root, once every member has all messages. A member whose slots are full
 * reads them in its next broadcasts, before which it may wait for a message that this process's MPI
 * has not sent yet. */
static void close_with_progress(const struct communicator *communicator, tc_group *group)
{
    int64_t until = now_ms() + CLOSE_TIMEOUT_MS;
    int wait_ms = WAIT_MIN_MS;

    while (treecast.group_flush(group, wait_ms) == TC_TIMED_OUT && now_ms() < until) {
        make_progress(communicator);
        wait_ms = WAIT_MAX_MS;
    }
    treecast.group_close(group, now_ms() < until ? until - now_ms() : 0);
}

void leave_used(const struct communicator *communicator, struct used *used)
{
    struct shared_groups *groups = used->groups;
    int kind;

    used->groups = NULL;
    for (kind = 0; kind < KINDS && used->ports; kind++)
        remove_port(&groups->channels[kind], &used->ports[kind]);
    if (!leave_groups(groups))
        return;
    for (kind = 0; kind < KINDS; kind++) {
        tc_group *group = groups->channels[kind].group;

        if (group && groups->is_root)
            close_with_progress(communicator, group);
        if (group && !groups->is_root) {
            wait_for_close(communicator, group);
            treecast.group_free(group);
        }
    }
    free_groups(groups);
}

struct used used_for_broadcasts(struct root_groups *groups, unsigned kinds)
{
    return (struct used){.root = groups->root, .kinds = kinds, .may_be_shared = kinds == ALL_KINDS, .ports = groups->ports};
}

struct used used_for_values(const struct root_groups *groups)
{
    return (struct used){.root = groups->root, .kinds = 1u << SHORT};
}

void abort_groups(struct root_groups *groups)
{
    int kind;

    for (kind = 0; kind < KINDS; kind++)
        abort_channel(&groups->shared->channels[kind]);
}

static void close_all(const struct communicator *communicator, struct root_groups *groups)
{
    struct used shared = {.ports = groups->ports, .groups = groups->shared}, values = {.groups = groups->values};

    if (shared.groups)
        leave_used(communicator, &shared);
    if (values.groups)
        leave_used(communicator, &values);
    groups->shared = groups->values = NULL;
}

void close_as_root(const struct communicator *communicator, struct root_groups *groups)
{
    if (groups->root == communicator->rank)
        close_all(communicator, groups);
}

void close_as_member(const struct communicator *communicator, struct root_groups *groups)
{
    if (groups->root != communicator->rank)
        close_all(communicator, groups);
}

enum kind kind_of(uint64_t bytes)
{
    if (bytes > MIDDLE_BYTES_MAX)
        return LONG;
    return bytes > SHORT_BYTES_MAX ? MIDDLE : SHORT;
}
