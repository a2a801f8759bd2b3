#include "persistents.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "groups.h"
#include "making.h"
#include "request.h"
#include "roots.h"

/* The persistent broadcasts of a communicator that have groups at a time. */
enum { PERSISTENT_MAX = 32 };

struct persistent {
    struct communicator *communicator;
    /* The program's handle; MPI_REQUEST_NULL: none, and another request may have the place. */
    MPI_Request request;
    /* The broadcast under way; MPI_REQUEST_NULL: inactive. */
    MPI_Request started;
    /* Its type is a duplicate, since the program may free its own. */
    struct buffer buffer;
    /* One of the two is made, for the length. It stays when the request is freed. */
    struct root_groups groups;
};

/* The places of a communicator: the same request has the same place at all ranks. */
struct persistents {
    struct persistent places[PERSISTENT_MAX];
    /* Places from here on never had a request. */
    int used;
    struct persistents *next;
};

/* Held while the list or the handles in it are looked at or change. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct persistents *all;

/* The persistent broadcasts that are taken and not freed, and those of them that are active. */
static _Atomic int kept, active;

static void set_request(struct persistent *persistent, MPI_Request request)
{
    struct persistents *list = persistent->communicator->persistents;
    int place = (int)(persistent - list->places);

    pthread_mutex_lock(&lock);
    persistent->request = request;
    if (list->used <= place)
        list->used = place + 1;
    pthread_mutex_unlock(&lock);
}

/* The persistent broadcast with this handle; NULL: none is taken. The lock is held. */
static struct persistent *find_locked(MPI_Request request)
{
    struct persistents *list;
    int i;

    for (list = request == MPI_REQUEST_NULL ? NULL : all; list; list = list->next)
        for (i = 0; i < list->used; i++)
            if (list->places[i].request == request)
                return &list->places[i];
    return NULL;
}

struct persistent *find_persistent(MPI_Request request)
{
    struct persistent *found;

    if (!atomic_load_explicit(&kept, memory_order_relaxed))
        return NULL;
    pthread_mutex_lock(&lock);
    found = find_locked(request);
    pthread_mutex_unlock(&lock);
    return found;
}

/* Returns false if there is no memory for them. */
static bool has_places(struct communicator *communicator)
{
    struct persistents *list = communicator->persistents;
    int i;

    if (list)
        return true;
    list = calloc(1, sizeof *list);
    if (!list)
        return false;
    for (i = 0; i < PERSISTENT_MAX; i++) {
        list->places[i].communicator = communicator;
        list->places[i].request = list->places[i].started = MPI_REQUEST_NULL;
        list->places[i].groups.error = MPI_SUCCESS;
    }
    communicator->persistents = list;
    pthread_mutex_lock(&lock);
    list->next = all;
    all = list;
    pthread_mutex_unlock(&lock);
    return true;
}

/* What the ranks compare before one of them takes a persistent broadcast. The minimum of each
 * number counts, so that `-minus_kind` is the maximum of all kinds. */
struct state {
    int kind, minus_kind, has_places;
    int is_free[PERSISTENT_MAX];
};

static int compare_states(struct communicator *communicator, uint64_t bytes, struct state *state)
{
    struct state own = {.kind = (int)kind_of(bytes), .minus_kind = -(int)kind_of(bytes), .has_places = has_places(communicator)};
    int i;

    for (i = 0; i < PERSISTENT_MAX && own.has_places; i++) {
        const struct persistent *persistent = &communicator->persistents->places[i];

        own.is_free[i] = persistent->request == MPI_REQUEST_NULL && persistent->groups.error == MPI_SUCCESS;
    }
    return mpi.Allreduce(&own, state, sizeof own / sizeof(int), MPI_INT, MPI_MIN, communicator->private);
}

/* How well a free place suits a request: 3, it has the group; 2, it has none; 1, it has another. */
static int suits(const struct persistent *persistent, int root, enum kind kind)
{
    const struct root_groups *groups = &persistent->groups;

    if (!groups->shared)
        return 2;
    return groups->root == root && is_open(&groups->shared->channels[kind]) ? 3 : 1;
}

int find_free_place(struct communicator *communicator, int root, uint64_t bytes, struct persistent **found)
{
    struct persistent *place = NULL;
    struct state state;
    int i, suited = 0, error = compare_states(communicator, bytes, &state);

    if (error != MPI_SUCCESS || !state.has_places || state.kind != -state.minus_kind)
        return error;
    for (i = 0; i < PERSISTENT_MAX; i++) {
        struct persistent *other = &communicator->persistents->places[i];

        if (state.is_free[i] && suits(other, root, kind_of(bytes)) > suited) {
            place = other;
            suited = suits(place, root, kind_of(bytes));
        }
    }
    if (suited == 1)
        close_root(communicator, &place->groups);
    if (suited == 1 || suited == 2) {
        place->groups = (struct root_groups){.root = root, .error = MPI_SUCCESS};
        error = make_groups(communicator, &place->groups, 1u << kind_of(bytes));
    }
    if (place && place->groups.shared && is_open(&place->groups.shared->channels[kind_of(bytes)]))
        *found = place;
    return error;
}

int keep_persistent(struct persistent *persistent, const struct buffer *buffer, MPI_Request *request)
{
    const struct communicator *communicator = persistent->communicator;
    int error;

    persistent->buffer = *buffer;
    error = mpi.Type_dup(buffer->type, &persistent->buffer.type);
    if (error == MPI_SUCCESS)
        error = mpi.Send_init(NULL, 0, MPI_BYTE, communicator->rank, 0, communicator->private, request);
    if (error == MPI_SUCCESS) {
        set_request(persistent, *request);
        atomic_fetch_add(&kept, 1);
    }
    return error;
}

int start_persistent(struct persistent *persistent)
{
    struct communicator *communicator = persistent->communicator;
    int error = MPI_ERR_REQUEST;

    if (persistent->started == MPI_REQUEST_NULL)
        error = start_request(communicator, &persistent->groups, &persistent->buffer, &persistent->started);
    if (error != MPI_SUCCESS) {
        mpi.Comm_call_errhandler(MPI_COMM_WORLD, error);
        return error;
    }
    atomic_fetch_add(&active, 1);
    communicator->report.persistent++;
    communicator->report.persistent_bytes += persistent->buffer.bytes;
    return MPI_SUCCESS;
}

/* The request that a persistent broadcast has made is no longer its own. */
static void deactivate(struct persistent *persistent)
{
    persistent->started = MPI_REQUEST_NULL;
    atomic_fetch_sub(&active, 1);
}

bool are_persistents_kept(void)
{
    return atomic_load_explicit(&kept, memory_order_relaxed) != 0;
}

void drop_persistent(struct persistent *persistent)
{
    /* An active one is an error of the program, which the MPI may not notice. */
    if (persistent->started != MPI_REQUEST_NULL) {
        mpi.Request_free(&persistent->started);
        deactivate(persistent);
    }
    mpi.Type_free(&persistent->buffer.type);
    set_request(persistent, MPI_REQUEST_NULL);
    atomic_fetch_sub(&kept, 1);
}

/* The lock is held. */
static MPI_Request see_locked(MPI_Request request)
{
    const struct persistent *persistent = find_locked(request);

    return persistent && persistent->started != MPI_REQUEST_NULL ? persistent->started : request;
}

handle seen_by_mpi(handle request)
{
    if (!atomic_load_explicit(&active, memory_order_relaxed))
        return request;
    pthread_mutex_lock(&lock);
    request = (handle)see_locked((MPI_Request)request);
    pthread_mutex_unlock(&lock);
    return request;
}

bool begin_view(struct view *view, int count, void *requests)
{
    int i;

    *view = (struct view){.handles = requests, .given = requests, .count = count};
    if (!atomic_load_explicit(&active, memory_order_relaxed) || count < 1 || !requests)
        return true;
    view->handles = count == 1 ? &view->one : malloc((size_t)count * sizeof *view->handles);
    pthread_mutex_lock(&lock);
    for (i = 0; i < count && view->handles; i++)
        view->handles[i] = see_locked(view->given[i]);
    pthread_mutex_unlock(&lock);
    return view->handles != NULL;
}

int end_view(struct view *view, int error)
{
    int i;

    if (view->handles == view->given)
        return error;
    for (i = 0; i < view->count; i++) {
        struct persistent *persistent;

        if (view->handles[i] == view->given[i])
            continue;
        persistent = find_persistent(view->given[i]);
        if (!persistent)
            view->given[i] = view->handles[i];
        else if (view->handles[i] == MPI_REQUEST_NULL)
            deactivate(persistent);
    }
    if (view->handles != &view->one)
        free(view->handles);
    return error;
}

void each_persistent(const struct communicator *communicator,
                     void (*call)(const struct communicator *communicator, struct root_groups *groups))
{
    int i;

    for (i = 0; i < PERSISTENT_MAX && communicator->persistents; i++)
        call(communicator, &communicator->persistents->places[i].groups);
}

bool close_persistents(struct communicator *communicator)
{
    struct persistents *list = communicator->persistents, **place = &all;
    int i, own = true, are_free = true;

    if (!list)
        return true;
    for (i = 0; i < PERSISTENT_MAX; i++)
        own &= list->places[i].request == MPI_REQUEST_NULL;
    if (mpi.Allreduce(&own, &are_free, 1, MPI_INT, MPI_MIN, communicator->private) != MPI_SUCCESS || !are_free)
        return false;
    for (i = 0; i < PERSISTENT_MAX; i++)
        close_root(communicator, &list->places[i].groups);
    pthread_mutex_lock(&lock);
    while (*place != list)
        place = &(*place)->next;
    *place = list->next;
    pthread_mutex_unlock(&lock);
    free(list);
    communicator->persistents = NULL;
    return true;
}
