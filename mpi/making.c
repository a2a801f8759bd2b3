#define _GNU_SOURCE

#include "making.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "clock.h"
#include "node.h"
#include "transfer.h"
#include "treecast_library.h"

/* The message lengths for which the trees are built. */
static const unsigned message_bytes_of[KINDS] = {[SHORT] = 1 << 10, [MIDDLE] = 128 << 10, [LONG] = 1 << 20};

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

    snprintf(text, sizeof text, "message_bytes=%u %sgroup=%u root=%d member=%d token=%s", message_bytes_of[kind], settings()->group, number, root,
             communicator->rank, communicator->token);
    return treecast.group_new(opened_node(), communicator->members, text, group);
}

static void note_failure(struct making *making, int result)
{
    snprintf(making->why, sizeof making->why, "%s", treecast.error_message());
    making->result = result;
}

/* The first task: enters the groups. */
static void enter_groups(void *argument)
{
    struct making *making = argument;
    const struct used *used = &making->used;
    int kind;

    making->result = MADE;
    for (kind = 0; kind < KINDS && making->result == MADE; kind++)
        if (used->kinds & 1u << kind && enter_group(making->communicator, used->root, kind, used->groups->numbers[kind],
                                                    &used->groups->channels[kind].group) != TC_OK)
            note_failure(making, REFUSED);
}

/* As tc_group_wait_until_ready(): in the foreground, another rank may be waiting for a message that
 * the MPI has not sent yet. */
static tc_result wait_for_nodes(const struct making *making, const tc_group *group)
{
    int64_t until = now_ms() + READY_TIMEOUT_MS;
    int wait_ms = WAIT_MIN_MS;
    tc_result result;

    while ((result = treecast.group_wait_until_ready(group, wait_ms)) == TC_TIMED_OUT && now_ms() < until && !making->is_cancelled) {
        if (!making->is_in_background)
            make_progress(making->communicator);
        wait_ms = WAIT_MAX_MS;
    }
    return result;
}

/* The second task, of the root. All ranks have entered the groups: one that comes late, or is
 * stopped, does not count as unreachable. */
static void wait_until_ready(void *argument)
{
    struct making *making = argument;
    const struct used *used = &making->used;
    int kind;

    making->result = MADE;
    for (kind = 0; kind < KINDS && making->result == MADE && used->groups->is_root; kind++)
        if (used->kinds & 1u << kind && wait_for_nodes(making, used->groups->channels[kind].group) != TC_OK)
            note_failure(making, UNREACHABLE);
}

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

static void enter_ports(const struct used *used, uint32_t number)
{
    int kind;

    for (kind = 0; kind < KINDS && used->ports; kind++)
        add_port(&used->groups->channels[kind], &used->ports[kind], number);
}

/* The root makes an offer, and each rank starts to enter its groups, or finds them. */
static int begin_try(struct making *making)
{
    struct used *used = &making->used;
    struct offer *offer = &making->offer;
    int error;

    used->groups = used->root == making->communicator->rank
                       ? make_offer(making->communicator, used->may_be_shared && !making->tries, offer)
                       : NULL;
    making->tries++;
    making->is_waiting = false;
    making->result = REFUSED;
    error = mpi.Bcast(offer, sizeof *offer, MPI_BYTE, used->root, making->communicator->private);
    if (error != MPI_SUCCESS)
        return error;
    if (offer->is_shared && !used->groups)
        used->groups = use_groups(offer->numbers);
    else if (!offer->is_shared)
        used->groups = new_groups(offer->numbers, used->root == making->communicator->rank);
    atomic_store(&making->task.is_done, true);
    if (!used->groups)
        return MPI_SUCCESS;
    /* Before the others send: another thread may receive what they send. */
    enter_ports(used, offer->number);
    making->result = MADE;
    if (!offer->is_shared)
        start_task(&making->task, making->is_in_background, enter_groups, making);
    return MPI_SUCCESS;
}

int begin_making(struct making *making, struct communicator *communicator, struct used used, bool is_in_background)
{
    *making = (struct making){.communicator = communicator, .used = used, .is_in_background = is_in_background};
    return begin_try(making);
}

/* Gives up groups that are not made at all ranks. */
static void drop_groups(struct making *making)
{
    struct used *used = &making->used;
    int kind;

    if (!used->groups)
        return;
    if (making->offer.is_shared) {
        leave_used(making->communicator, used);
        return;
    }
    for (kind = 0; kind < KINDS; kind++)
        treecast.group_free(used->groups->channels[kind].group);
    free_groups(used->groups);
    used->groups = NULL;
}

/* The root notes how messages go in its groups. */
static void describe_groups(const struct making *making)
{
    struct report *report = &making->communicator->report;
    const struct used *used = &making->used;
    int kind = __builtin_ctz(used->kinds);

    treecast.node_engine(opened_node(), report->engine, sizeof report->engine);
    treecast.group_offload_status(used->groups->channels[kind].group, report->offload, sizeof report->offload);
}

/* The groups are made at all ranks. */
static void keep_groups(struct making *making)
{
    struct communicator *communicator = making->communicator;
    const struct used *used = &making->used;
    bool is_shared = making->offer.is_shared;

    *communicator->report.why = '\0';
    *(is_shared ? &communicator->report.shared : &communicator->report.groups) += (uint64_t)__builtin_popcount(used->kinds);
    if (used->groups->is_root && !is_shared)
        describe_groups(making);
    if (used->may_be_shared && !is_shared)
        offer_groups(used->groups, communicator->private);
}

static void give_up(struct making *making)
{
    struct communicator *communicator = making->communicator;

    communicator->outcome = NO_GROUP;
    snprintf(communicator->report.why, sizeof communicator->report.why, "%s",
             *making->why ? making->why : "another rank cannot make the groups");
}

/* Begins what follows a step with this result of all ranks. */
static int end_step(struct making *making, int result, bool *has_ended)
{
    *has_ended = false;
    if (result == MADE && !making->offer.is_shared && !making->is_waiting) {
        making->is_waiting = true;
        start_task(&making->task, making->is_in_background && making->used.groups->is_root, wait_until_ready, making);
        return MPI_SUCCESS;
    }
    if (result != MADE)
        drop_groups(making);
    if (result == REFUSED && making->tries < NUMBER_TRIES)
        return begin_try(making);
    *has_ended = true;
    if (result == MADE)
        keep_groups(making);
    else
        give_up(making);
    return MPI_SUCCESS;
}

int advance_making(struct making *making, bool *has_ended)
{
    bool is_done = is_task_done(&making->task);
    int own[] = {is_done, is_done ? making->result : MADE}, all[] = {0, 0}, error;

    *has_ended = false;
    error = mpi.Allreduce(own, all, 2, MPI_INT, MPI_MIN, making->communicator->private);
    if (error != MPI_SUCCESS || !all[0])
        return error;
    end_task(&making->task);
    making->us += making->task.us;
    making->task.us = 0;
    return end_step(making, all[1], has_ended);
}

void cancel_making(struct making *making)
{
    making->is_cancelled = true;
    end_task(&making->task);
    drop_groups(making);
}

/* Makes groups here and now. */
static int make_used(struct communicator *communicator, struct used *used)
{
    struct making making;
    bool has_ended = false;
    int error = begin_making(&making, communicator, *used, false);

    while (error == MPI_SUCCESS && !has_ended)
        error = advance_making(&making, &has_ended);
    used->groups = making.used.groups;
    return error;
}

int make_groups(struct communicator *communicator, struct root_groups *groups, unsigned kinds)
{
    struct used used = used_for_broadcasts(groups, kinds);
    int error = make_used(communicator, &used);

    groups->shared = used.groups;
    return error;
}

int make_values_group(struct communicator *communicator, struct root_groups *groups)
{
    struct used used = used_for_values(groups);
    int error = make_used(communicator, &used);

    groups->values = used.groups;
    return error;
}
