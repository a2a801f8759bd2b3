#define _GNU_SOURCE

#include "queues.h"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "groups.h"
#include "task.h"

/* Longer arrays of requests are not searched for their root: that takes longer than it saves. */
enum { LOOKED_UP_MAX = 32 };

/* How often the thread carries on with broadcasts. The interval doubles while no bytes move. */
enum { THREAD_WAIT_MIN_US = 100, THREAD_WAIT_MAX_US = 6400 };

/* The root leaves broadcasts of at least this length to the thread, which starts at once, so that
 * the program computes while they are written to connections. Those that are shorter take no longer
 * to send than it takes to wake a thread. */
enum { LEFT_TO_THREAD_BYTES_MIN = 8 << 10 };

/* Held while the following and the roots' queues are looked at, and never during a call of the
 * MPI, which may call functions of this library with locks of its own. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The roots with requests that have not ended. */
static struct root_groups *active;
/* Requests that have ended and are to be completed. */
static struct request *ended;

static pthread_once_t thread_once = PTHREAD_ONCE_INIT;
static pthread_cond_t is_active, is_idle;
static pthread_t thread;
static bool has_thread, is_thread_ending;
/* Whether a broadcast was left to the thread. */
static bool is_urgent;

/* Carries on with the first request of a root. Returns whether it has ended. */
static bool go_on(struct request *request, int wait_ms, bool *has_moved)
{
    struct stream *stream = &request->stream;
    enum step step;

    if (request->is_root && request->error != MPI_SUCCESS) {
        abort_groups(stream->groups);
        if (stream->groups->error == MPI_SUCCESS)
            stream->groups->error = request->error;
        return true;
    }
    /* An earlier broadcast of this root could not be sent. */
    if (stream->groups->error != MPI_SUCCESS && !has_groups(stream)) {
        request->error = stream->groups->error;
        return true;
    }
    while ((step = request->is_root ? send_some(stream, wait_ms) : receive_some(stream, wait_ms)) == MOVED) {
        *has_moved = true;
        wait_ms = 0;
    }
    if (step == ENDED && !request->is_root)
        end_stream(stream);
    return step != WAITS;
}

static void deactivate(struct root_groups *groups)
{
    struct root_groups **place = &active;

    while (*place != groups)
        place = &(*place)->next_active;
    *place = groups->next_active;
}

/* Carries on with the requests of a root, unless another thread does. The lock is held, but not
 * while bytes move. Returns whether any have. */
static bool progress_root(struct root_groups *groups, int wait_ms)
{
    bool has_moved = false, has_ended = true;

    if (groups->is_busy || !groups->first)
        return false;
    groups->is_busy = true;
    while (has_ended && groups->first) {
        struct request *request = groups->first;

        pthread_mutex_unlock(&lock);
        has_ended = go_on(request, wait_ms, &has_moved);
        pthread_mutex_lock(&lock);
        if (!has_ended)
            break;
        has_moved = true;
        wait_ms = 0;
        groups->first = request->next;
        request->next = ended;
        ended = request;
    }
    groups->is_busy = false;
    pthread_cond_broadcast(&is_idle);
    if (!groups->first)
        deactivate(groups);
    return has_moved;
}

/* The lock is held, as above. */
static bool progress_all(void)
{
    struct root_groups *groups;
    bool has_moved = false;

    /* The next root is read after this one's turn, in which the lock is released and the list may
     * change. A root that was removed from the list still points to the one behind it. */
    for (groups = active; groups; groups = groups->next_active)
        has_moved |= progress_root(groups, 0);
    return has_moved;
}

/* The lock is held, but not while this waits. */
static void wait_for(pthread_cond_t *change, int wait_us)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += wait_us * 1000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(change, &lock, &until);
}

/* While broadcasts of one root alone are under way, the thread waits in its group, so that bytes go
 * to the program's buffer as they come. */
static bool progress_in_thread(void)
{
    return active && !active->next_active ? progress_root(active, WAIT_MIN_MS) : progress_all();
}

static void *run_thread(void *unused)
{
    const struct sched_param parameters = {0};
    int wait_us = THREAD_WAIT_MIN_US;

    /* On a processor that it shares with the program, this thread must not preempt the call that
     * wakes it. */
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &parameters);
    pthread_mutex_lock(&lock);
    while (!is_thread_ending) {
        if (!active) {
            pthread_cond_wait(&is_active, &lock);
            wait_us = THREAD_WAIT_MIN_US;
            continue;
        }
        if (!is_urgent)
            wait_for(&is_active, wait_us);
        is_urgent = false;
        if (progress_in_thread())
            wait_us = THREAD_WAIT_MIN_US;
        else if (wait_us < THREAD_WAIT_MAX_US)
            wait_us *= 2;
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

static void start_queues(void)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&is_active, &attributes);
    pthread_cond_init(&is_idle, &attributes);
    pthread_condattr_destroy(&attributes);
    has_thread = start_thread(&thread, run_thread, NULL);
}

static bool is_left_to_thread(const struct request *request)
{
    return has_thread && request->is_root && request->stream.rest >= LEFT_TO_THREAD_BYTES_MIN;
}

void enqueue(struct request *request)
{
    struct root_groups *groups = request->stream.groups;
    bool is_left, is_first = false;

    pthread_once(&thread_once, start_queues);
    is_left = is_left_to_thread(request);
    pthread_mutex_lock(&lock);
    if (groups->first) {
        groups->last->next = request;
    } else {
        groups->first = request;
        groups->next_active = active;
        active = groups;
        is_first = true;
    }
    groups->last = request;
    is_urgent |= is_left;
    if (is_left || is_first)
        pthread_cond_signal(&is_active);
    if (!is_left)
        progress_root(groups, 0);
    pthread_mutex_unlock(&lock);
}

struct request *take_ended(void)
{
    struct request *request;

    pthread_mutex_lock(&lock);
    request = ended;
    if (request)
        ended = request->next;
    pthread_mutex_unlock(&lock);
    return request;
}

void progress_queues(void)
{
    pthread_mutex_lock(&lock);
    progress_all();
    pthread_mutex_unlock(&lock);
}

/* Carries on with the requests of a root for up to `wait_ms`, or waits that long for the thread
 * that does. The lock is held, but not while bytes move or this waits. */
static void progress_or_wait(struct root_groups *groups, int *wait_ms)
{
    bool has_moved = false;

    if (groups->is_busy)
        wait_for(&is_idle, *wait_ms * 1000);
    else
        has_moved = progress_root(groups, *wait_ms);
    if (has_moved)
        *wait_ms = WAIT_MIN_MS;
    else if (*wait_ms < WAIT_MAX_MS)
        *wait_ms *= 2;
}

void progress_queue(struct root_groups *groups, int *wait_ms)
{
    pthread_mutex_lock(&lock);
    progress_or_wait(groups, wait_ms);
    pthread_mutex_unlock(&lock);
}

/* The root whose request a handle is; NULL: none, or the request has ended. The lock is held. */
static struct root_groups *root_of(MPI_Request handle)
{
    struct root_groups *groups;
    struct request *request;

    for (groups = active; groups; groups = groups->next_active)
        for (request = groups->first; request; request = request->next)
            if (request->handle == handle)
                return groups;
    return NULL;
}

/* The root of these requests, if all are of one, so that a thread can wait in its group. */
static struct root_groups *root_of_all(const MPI_Request *handles, int count)
{
    struct root_groups *found = NULL, *groups;
    int i;

    if (count > LOOKED_UP_MAX)
        return NULL;
    for (i = 0; i < count; i++) {
        if (handles[i] == MPI_REQUEST_NULL)
            continue;
        groups = root_of(handles[i]);
        if (!groups || (found && groups != found))
            return NULL;
        found = groups;
    }
    return found;
}

bool progress_queue_of(const MPI_Request *handles, int count, int *wait_ms)
{
    struct root_groups *groups;

    pthread_mutex_lock(&lock);
    groups = root_of_all(handles, count);
    if (groups)
        progress_or_wait(groups, wait_ms);
    pthread_mutex_unlock(&lock);
    return groups != NULL;
}

void end_queues(void)
{
    if (has_thread) {
        pthread_mutex_lock(&lock);
        is_thread_ending = true;
        pthread_cond_signal(&is_active);
        pthread_mutex_unlock(&lock);
        pthread_join(thread, NULL);
        has_thread = false;
    }
    active = NULL;
    ended = NULL;
}
