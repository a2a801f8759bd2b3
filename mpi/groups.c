#define _GNU_SOURCE

#include "groups.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "node.h"
#include "transfer.h"

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

/* How long a root that closes a group waits for the members' last acknowledgments, and a member
 * for the root's close. */
enum { CLOSE_TIMEOUT_MS = 5000 };

/* A rank's result of making groups. The minimum of all ranks counts. */
enum { UNREACHABLE = -1, REFUSED = 0, MADE = 1 };

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static tc_result enter_group(const struct communicator *communicator, int root, int kind, uint32_t number, tc_group **group)
{
    char text[sizeof settings()->group + 256];
    unsigned long long message_bytes = kind == LONG ? LONG_MESSAGE_BYTES : SHORT_MESSAGE_BYTES;

    snprintf(text, sizeof text, "message_bytes=%llu %sgroup=%u root=%d member=%d token=%s", message_bytes, settings()->group, number, root,
             communicator->rank, communicator->token);
    return tc_group_new(opened_node(), communicator->members, text, group);
}

static int note_failure(struct communicator *communicator, int result)
{
    snprintf(communicator->report.why, sizeof communicator->report.why, "%s", tc_error_message());
    return result;
}

/* Enters the groups of these kinds. */
static int enter_groups(struct communicator *communicator, int root, unsigned kinds, struct shared_groups *made)
{
    int kind;

    for (kind = 0; kind < KINDS; kind++)
        if (kinds & 1u << kind && enter_group(communicator, root, kind, made->numbers[kind], &made->channels[kind].group) != TC_OK)
            return note_failure(communicator, REFUSED);
    return MADE;
}

/* As tc_group_wait_until_ready(): another rank may be waiting for a message that the MPI has not
 * sent yet. */
static tc_result wait_for_nodes(const struct communicator *communicator, const tc_group *group)
{
    int64_t until = now_ms() + READY_TIMEOUT_MS;
    int wait_ms = WAIT_MIN_MS;
    tc_result result;

    while ((result = tc_group_wait_until_ready(group, wait_ms)) == TC_TIMED_OUT && now_ms() < until) {
        make_progress(communicator);
        wait_ms = WAIT_MAX_MS;
    }
    return result;
}

/* Waits at the root until the nodes of all ranks have answered. All ranks have entered the groups:
 * one that comes late, or is stopped, does not count as unreachable. */
static int wait_until_ready(struct communicator *communicator, unsigned kinds, const struct shared_groups *made)
{
    int kind;

    for (kind = 0; kind < KINDS && made->is_root; kind++)
        if (kinds & 1u << kind && wait_for_nodes(communicator, made->channels[kind].group) != TC_OK)
            return note_failure(communicator, UNREACHABLE);
    return MADE;
}

/* What the root tells the other ranks. */
struct offer {
    uint32_t numbers[KINDS];
    /* Whether the groups are those of another communicator, and this one's number in them. */
    uint32_t is_shared, number;
};

/* The root offers groups that it has, if they can be shared, or numbers for new ones. */
static struct shared_groups *make_offer(const struct communicator *communicator, bool may_share, struct offer *offer)
{
    struct shared_groups *own = NULL;

    *offer = (struct offer){0};
    if (may_share)
        own = use_own_groups(communicator->private, &offer->number);
    offer->is_shared = own != NULL;
    if (own)
        memcpy(offer->numbers, own->numbers, sizeof offer->numbers);
    while (!own && getrandom(offer->numbers, sizeof offer->numbers, 0) != sizeof offer->numbers)
        continue;
    return own;
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

/* Closes the group at the root, once every member has all messages. A member whose slots are full
 * reads them in its next broadcasts, before which it may wait for a message that this process's MPI
 * has not sent yet. */
static void close_with_progress(const struct communicator *communicator, tc_group *group)
{
    int64_t until = now_ms() + CLOSE_TIMEOUT_MS;
    int wait_ms = WAIT_MIN_MS;

    while (tc_group_flush(group, wait_ms) == TC_TIMED_OUT && now_ms() < until) {
        make_progress(communicator);
        wait_ms = WAIT_MAX_MS;
    }
    tc_group_close(group, now_ms() < until ? until - now_ms() : 0);
}

/* Groups as a communicator uses them, in one of its roots. */
struct used {
    int root;
    unsigned kinds;
    /* Whether other communicators may use them too. */
    bool may_be_shared;
    struct port *ports;
    struct shared_groups *groups;
};

static void enter_ports(struct used *used, uint32_t number)
{
    int kind;

    for (kind = 0; kind < KINDS && used->ports; kind++)
        add_port(&used->groups->channels[kind], &used->ports[kind], number);
}

/* Leaves groups, and closes those that no other communicator uses. */
static void leave(const struct communicator *communicator, struct used *used)
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
            tc_group_free(group);
        }
    }
    free_groups(groups);
}

/* Frees groups that could not be made at all ranks. */
static void free_made(struct used *used)
{
    int kind;

    for (kind = 0; kind < KINDS; kind++)
        tc_group_free(used->groups->channels[kind].group);
    free_groups(used->groups);
    used->groups = NULL;
}

/* Makes the groups of an offer, or finds them, and agrees with the other ranks on how that went. If
 * it went wrong at any, there are no groups. */
static int take_offer(struct communicator *communicator, struct used *used, const struct offer *offer, int *all)
{
    int own = REFUSED, error;

    if (offer->is_shared && !used->groups)
        used->groups = use_groups(offer->numbers);
    else if (!offer->is_shared)
        used->groups = new_groups(offer->numbers, used->root == communicator->rank);
    if (used->groups)
        own = offer->is_shared ? MADE : enter_groups(communicator, used->root, used->kinds, used->groups);
    /* Before the others send: another thread may receive what they send. */
    if (used->groups)
        enter_ports(used, offer->number);
    error = mpi.Allreduce(&own, all, 1, MPI_INT, MPI_MIN, communicator->private);
    if (error == MPI_SUCCESS && *all == MADE && !offer->is_shared) {
        *all = wait_until_ready(communicator, used->kinds, used->groups);
        error = mpi.Bcast(all, 1, MPI_INT, used->root, communicator->private);
    }
    if (*all != MADE && used->groups && offer->is_shared)
        leave(communicator, used);
    else if (*all != MADE && used->groups)
        free_made(used);
    return error;
}

/* The ranks try groups that the root has already, and then numbers that the root draws, until no
 * other groups of their nodes have them. */
static int find_groups(struct communicator *communicator, struct used *used)
{
    int tries, all = REFUSED, error = MPI_SUCCESS;
    struct offer offer;

    for (tries = 0; all == REFUSED && tries < NUMBER_TRIES; tries++) {
        used->groups = used->root == communicator->rank ? make_offer(communicator, used->may_be_shared && !tries, &offer) : NULL;
        error = mpi.Bcast(&offer, sizeof offer, MPI_BYTE, used->root, communicator->private);
        if (error == MPI_SUCCESS)
            error = take_offer(communicator, used, &offer, &all);
        if (error != MPI_SUCCESS)
            return error;
    }
    if (all == MADE) {
        *communicator->report.why = '\0';
        *(offer.is_shared ? &communicator->report.shared : &communicator->report.groups) += (uint64_t)__builtin_popcount(used->kinds);
        if (used->may_be_shared && !offer.is_shared)
            offer_groups(used->groups, communicator->private);
        return MPI_SUCCESS;
    }
    communicator->outcome = NO_GROUP;
    if (!*communicator->report.why)
        snprintf(communicator->report.why, sizeof communicator->report.why, "another rank cannot make the groups");
    return MPI_SUCCESS;
}

int make_groups(struct communicator *communicator, struct root_groups *groups, unsigned kinds)
{
    struct used used = {.root = groups->root, .kinds = kinds, .may_be_shared = kinds == BOTH_KINDS, .ports = groups->ports};
    int error = find_groups(communicator, &used);

    groups->shared = used.groups;
    return error;
}

int make_values_group(struct communicator *communicator, struct root_groups *groups)
{
    struct used used = {.root = groups->root, .kinds = 1u << SHORT};
    int error = find_groups(communicator, &used);

    groups->values = used.groups;
    return error;
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
        leave(communicator, &shared);
    if (values.groups)
        leave(communicator, &values);
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
    return bytes > LONG_BYTES ? LONG : SHORT;
}
