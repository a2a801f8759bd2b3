#define _GNU_SOURCE

#include "prepare.h"

#include <stdlib.h>

#include "clock.h"
#include "making.h"
#include "settings.h"

/* The number of broadcasts, as `weight` counts them, after which the ranks first agree; it doubles
 * with each agreement, up to the greatest. An agreement takes as long as a short broadcast or two,
 * which is about 1 % of the greatest. */
enum { FIRST_DISTANCE = 8, DISTANCE_MAX = 128 };

enum phase { IDLE, WANTED, OPENING, MAKING };

struct preparation {
    enum phase phase;
    /* Whose groups, and what for; and whether the trial waits for them. */
    int root;
    enum use use;
    bool is_for_trial;
    struct root_groups *groups;
    struct making making;
    /* The `weight` of the communicator's choice at which the ranks agree next, and how far that is
     * from their last agreement. */
    uint64_t agreement, distance;
    /* The time in prepare() at this rank, and that of its threads before the groups. */
    double calls_us, opening_us;
};

struct preparation *new_preparation(void)
{
    return calloc(1, sizeof(struct preparation));
}

static void want_groups(struct communicator *communicator, int root, enum use use, bool is_for_trial)
{
    *communicator->preparation = (struct preparation){.phase = WANTED, .root = root, .use = use, .is_for_trial = is_for_trial};
}

enum outcome judge_groups(struct communicator *communicator, int root, enum use use)
{
    if (has_groups_of(communicator, root, use))
        return TAKEN;
    if (communicator->preparation->phase == IDLE) {
        if (!may_have_groups(communicator, root)) {
            communicator->broadcasts++;
            return MANY_ROOTS;
        }
        want_groups(communicator, root, use, false);
    }
    return UNMADE;
}

/* A root whose groups nonblocking broadcasts lacked, and then no longer; below 0: none. */
static int next_wanted(struct communicator *communicator)
{
    int root;

    for (root = 0; communicator->is_any_wanted && root < communicator->size; root++)
        if (communicator->is_wanted[root]) {
            communicator->is_wanted[root] = false;
            return root;
        }
    communicator->is_any_wanted = false;
    return -1;
}

/* Wants the groups of the trial, and then those that nonblocking broadcasts lacked. */
static void find_wish(struct communicator *communicator)
{
    struct trial *trial = &communicator->choice.trial;
    int root;

    if (is_trial_waiting(&communicator->choice)) {
        if (has_groups_of(communicator, trial->root, use_of(collective_of(trial->class))))
            start_trial(&communicator->choice, 0);
        else if (may_have_groups(communicator, trial->root))
            want_groups(communicator, trial->root, use_of(collective_of(trial->class)), true);
        else
            drop_trial(&communicator->choice);
    }
    if (communicator->preparation->phase != IDLE || (root = next_wanted(communicator)) < 0)
        return;
    if (!has_groups_of(communicator, root, FOR_BROADCASTS) && may_have_groups(communicator, root))
        want_groups(communicator, root, FOR_BROADCASTS, false);
}

static void set_agreement(struct communicator *communicator, uint64_t distance)
{
    struct preparation *preparation = communicator->preparation;

    preparation->distance = distance < DISTANCE_MAX ? distance : DISTANCE_MAX;
    preparation->agreement = communicator->choice.weight + preparation->distance;
}

/* All ranks have exchanged their addresses: they begin to make the groups. */
static int begin_groups(struct communicator *communicator)
{
    struct preparation *preparation = communicator->preparation;
    struct used used;

    preparation->groups = take_place(communicator, preparation->root);
    if (!preparation->groups) {
        preparation->phase = IDLE;
        return MPI_SUCCESS;
    }
    preparation->groups->used_at = ++communicator->broadcasts;
    used = preparation->use == FOR_BROADCASTS ? used_for_broadcasts(preparation->groups, ALL_KINDS) : used_for_values(preparation->groups);
    preparation->phase = MAKING;
    set_agreement(communicator, FIRST_DISTANCE);
    return begin_making(&preparation->making, communicator, used, true);
}

/* All ranks have opened their nodes, or failed to. */
static int end_set_up(struct communicator *communicator, MPI_Comm comm)
{
    int error = set_up_communicator(communicator, comm);

    communicator->preparation->opening_us += communicator->opening.task.us;
    communicator->opening.task.us = 0;
    return error == MPI_SUCCESS && communicator->outcome == TAKEN ? begin_groups(communicator) : error;
}

/* The ranks agree on what the groups have cost. Of the calls the shortest times count, those of the
 * rank for which the others wait, and of the threads the longest: they may have had the processor
 * that the program needs. */
static int agree_on_cost(const struct communicator *communicator, double *us)
{
    const struct preparation *preparation = communicator->preparation;
    double own[] = {preparation->calls_us, -(preparation->opening_us + preparation->making.us)}, all[] = {0, 0};
    int error = mpi.Allreduce(own, all, 2, MPI_DOUBLE, MPI_MIN, communicator->private);

    *us = all[0] - all[1];
    return error;
}

/* The groups are made, unless the communicator's `outcome` tells why not. */
static int end_preparation(struct communicator *communicator)
{
    struct preparation *preparation = communicator->preparation;
    double us = 0;
    int error = MPI_SUCCESS;

    preparation->phase = IDLE;
    if (communicator->outcome != TAKEN)
        return MPI_SUCCESS;
    if (preparation->use == FOR_BROADCASTS)
        preparation->groups->shared = preparation->making.used.groups;
    else
        preparation->groups->values = preparation->making.used.groups;
    if (preparation->is_for_trial)
        error = agree_on_cost(communicator, &us);
    if (preparation->is_for_trial && is_trial_waiting(&communicator->choice))
        start_trial(&communicator->choice, us);
    return error;
}

static int agree_on_groups(struct communicator *communicator)
{
    struct preparation *preparation = communicator->preparation;
    const struct making *making = &preparation->making;
    bool was_waiting = making->is_waiting, has_ended;
    int tries = making->tries, error = advance_making(&preparation->making, &has_ended);

    if (error == MPI_SUCCESS && has_ended)
        return end_preparation(communicator);
    set_agreement(communicator, was_waiting != making->is_waiting || tries != making->tries ? FIRST_DISTANCE : 2 * preparation->distance);
    return error;
}

static int agree_on_nodes(struct communicator *communicator, MPI_Comm comm)
{
    int own = is_task_done(&communicator->opening.task), all = 0, error = MPI_SUCCESS;

    /* A persistent broadcast may have set the communicator up. */
    if (!communicator->is_set_up)
        error = mpi.Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, communicator->private);
    if (error != MPI_SUCCESS)
        return error;
    if (communicator->is_set_up || all)
        return end_set_up(communicator, comm);
    set_agreement(communicator, 2 * communicator->preparation->distance);
    return MPI_SUCCESS;
}

static int begin_preparation(struct communicator *communicator, MPI_Comm comm)
{
    int error;

    communicator->preparation->phase = OPENING;
    set_agreement(communicator, FIRST_DISTANCE);
    error = begin_set_up(communicator, comm);
    /* Nothing is opened if all ranks are on one host. */
    if (error == MPI_SUCCESS && (communicator->outcome != TAKEN || communicator->is_set_up))
        error = end_set_up(communicator, comm);
    return error;
}

static int carry_on(struct communicator *communicator, MPI_Comm comm)
{
    struct preparation *preparation = communicator->preparation;
    int error = MPI_SUCCESS;

    if (preparation->phase == WANTED)
        error = begin_preparation(communicator, comm);
    else if (communicator->choice.weight >= preparation->agreement)
        error = preparation->phase == OPENING ? agree_on_nodes(communicator, comm) : agree_on_groups(communicator);
    while (error == MPI_SUCCESS && communicator->outcome == TAKEN && preparation->phase == MAKING && is_at_once(&preparation->making))
        error = agree_on_groups(communicator);
    return error;
}

int prepare(struct communicator *communicator, MPI_Comm comm)
{
    struct preparation *preparation = communicator->preparation;
    double since_us;
    int error;

    if (settings()->choice != CHOICE_MEASURE || communicator->outcome != TAKEN)
        return MPI_SUCCESS;
    if (preparation->phase == IDLE)
        find_wish(communicator);
    if (preparation->phase == IDLE)
        return MPI_SUCCESS;
    since_us = now_us();
    error = carry_on(communicator, comm);
    preparation->calls_us += now_us() - since_us;
    return error;
}

void cancel_preparation(struct communicator *communicator)
{
    struct preparation *preparation = communicator->preparation;

    if (preparation->phase == MAKING)
        cancel_making(&preparation->making);
    preparation->phase = IDLE;
    cancel_set_up(communicator);
}
