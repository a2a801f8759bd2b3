#define _GNU_SOURCE

#include "communicator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "groups.h"
#include "node.h"
#include "persistents.h"
#include "prepare.h"
#include "request.h"
#include "roots.h"

/* All communicators, for MPI_Finalize. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct communicator *communicators;
static bool are_closed;

/* The number of communicators that lack groups for nonblocking broadcasts, other than those that
 * prepare() makes. */
static _Atomic int wanting;

static pthread_once_t keyval_once = PTHREAD_ONCE_INIT;
static int keyval;

static void link_communicator(struct communicator *communicator)
{
    pthread_mutex_lock(&lock);
    communicator->next = communicators;
    if (communicators)
        communicators->previous = communicator;
    communicators = communicator;
    pthread_mutex_unlock(&lock);
}

static void unlink_communicator(struct communicator *communicator)
{
    if (communicator->next)
        communicator->next->previous = communicator->previous;
    if (communicator->previous)
        communicator->previous->next = communicator->next;
    else
        communicators = communicator->next;
}

static void keep_statistics(struct communicator *communicator)
{
    int i;

    for (i = 0; i < CLASSES; i++) {
        communicator->report.way[i] = communicator->choice.classes[i].way;
        memcpy(communicator->report.trial_us[i], communicator->choice.classes[i].trial_us, sizeof communicator->report.trial_us[i]);
    }
    keep_report(&communicator->report);
}

static void free_communicator(struct communicator *communicator)
{
    free(communicator->members);
    free(communicator->without_groups);
    free(communicator->is_wanted);
    free(communicator->preparation);
    free(communicator);
}

/* Called when the communicator is freed or disconnected; in MPI_Finalize after
 * close_communicators(). */
static int on_comm_free(MPI_Comm comm, int key, void *attribute, void *extra)
{
    struct communicator *communicator = attribute;

    (void)comm;
    (void)key;
    (void)extra;
    if (!settings()->is_on)
        return MPI_SUCCESS;
    pthread_mutex_lock(&lock);
    if (are_closed) {
        pthread_mutex_unlock(&lock);
        return MPI_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    cancel_preparation(communicator);
    close_groups(communicator);
    if (communicator->is_any_wanted && settings()->choice != CHOICE_MEASURE)
        atomic_fetch_sub(&wanting, 1);
    communicator->is_any_wanted = false;
    /* The program may still start persistent broadcasts, until close_communicators(). */
    if (!close_persistents(communicator))
        return MPI_SUCCESS;
    pthread_mutex_lock(&lock);
    unlink_communicator(communicator);
    pthread_mutex_unlock(&lock);
    keep_statistics(communicator);
    if (communicator->private != MPI_COMM_NULL)
        mpi.Comm_free(&communicator->private);
    free_communicator(communicator);
    return MPI_SUCCESS;
}

/* A duplicate gets a state of its own, at its first broadcast. */
static int on_comm_dup(MPI_Comm comm, int key, void *extra, void *attribute, void *copy, int *is_copied)
{
    (void)comm;
    (void)key;
    (void)extra;
    (void)attribute;
    (void)copy;
    *is_copied = 0;
    return MPI_SUCCESS;
}

static void create_keyval(void)
{
    mpi.Comm_create_keyval(on_comm_dup, on_comm_free, &keyval, NULL);
}

int find_communicator(MPI_Comm comm, struct communicator **found)
{
    struct communicator *communicator;
    int is_there, error;

    pthread_once(&keyval_once, create_keyval);
    error = mpi.Comm_get_attr(comm, keyval, found, &is_there);
    if (error != MPI_SUCCESS || is_there)
        return error;
    communicator = calloc(1, sizeof *communicator);
    if (!communicator)
        return MPI_ERR_NO_MEM;
    communicator->private = MPI_COMM_NULL;
    communicator->bytes_max = UINT64_MAX;
    mpi.Comm_rank(comm, &communicator->rank);
    mpi.Comm_size(comm, &communicator->size);
    begin_report(&communicator->report, comm);
    begin_choice(&communicator->choice);
    communicator->without_groups = calloc((size_t)communicator->size, sizeof *communicator->without_groups);
    communicator->is_wanted = calloc((size_t)communicator->size, sizeof *communicator->is_wanted);
    communicator->preparation = new_preparation();
    error = communicator->without_groups && communicator->is_wanted && communicator->preparation ? mpi.Comm_set_attr(comm, keyval, communicator) : MPI_ERR_NO_MEM;
    if (error != MPI_SUCCESS) {
        free_communicator(communicator);
        return error;
    }
    link_communicator(communicator);
    *found = communicator;
    return MPI_SUCCESS;
}

struct root_groups *find_made(struct communicator *communicator, int root)
{
    int i;

    for (i = 0; i < communicator->roots_max; i++) {
        struct root_groups *groups = &communicator->roots[i];

        if (groups->used_at && groups->root == root && groups->shared) {
            groups->used_at = ++communicator->broadcasts;
            return groups;
        }
    }
    communicator->is_wanted[root] = true;
    if (!communicator->is_any_wanted && settings()->choice != CHOICE_MEASURE)
        atomic_fetch_add(&wanting, 1);
    communicator->is_any_wanted = true;
    return NULL;
}

int make_wanted_groups(MPI_Comm comm)
{
    struct communicator *communicator;
    struct root_groups *groups;
    int root, is_there, error;
    bool was_set_up;

    if (!atomic_load_explicit(&wanting, memory_order_relaxed) || comm == MPI_COMM_NULL || are_communicators_closed())
        return MPI_SUCCESS;
    error = mpi.Comm_get_attr(comm, keyval, &communicator, &is_there);
    if (error != MPI_SUCCESS || !is_there || !communicator->is_any_wanted)
        return error;
    communicator->is_any_wanted = false;
    atomic_fetch_sub(&wanting, 1);
    was_set_up = communicator->is_set_up;
    error = set_up_communicator(communicator, comm);
    for (root = 0; root < communicator->size; root++) {
        /* Until it was set up, the bounds of lengths were not known. */
        if (communicator->is_wanted[root] && was_set_up && error == MPI_SUCCESS && communicator->outcome == TAKEN)
            error = find_root(communicator, root, FOR_BROADCASTS, &groups);
        communicator->is_wanted[root] = false;
    }
    return error;
}

bool are_communicators_closed(void)
{
    bool are;

    pthread_mutex_lock(&lock);
    are = are_closed;
    pthread_mutex_unlock(&lock);
    return are;
}

void close_communicators(void)
{
    struct communicator *communicator;
    int i;

    end_requests();
    for (communicator = communicators; communicator; communicator = communicator->next)
        cancel_preparation(communicator);
    for (communicator = communicators; communicator; communicator = communicator->next) {
        for (i = 0; i < ROOTS_MAX; i++)
            close_as_root(communicator, &communicator->roots[i]);
        each_persistent(communicator, close_as_root);
    }
    for (communicator = communicators; communicator; communicator = communicator->next) {
        for (i = 0; i < ROOTS_MAX; i++)
            close_as_member(communicator, &communicator->roots[i]);
        each_persistent(communicator, close_as_member);
        keep_statistics(communicator);
    }
    pthread_mutex_lock(&lock);
    are_closed = true;
    pthread_mutex_unlock(&lock);
    /* A process whose node is shared must not end before the other processes of its host are
     * done. */
    mpi.Barrier(MPI_COMM_WORLD);
    close_node();
}
