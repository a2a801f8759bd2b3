/* Preloaded beside the shim into programs of MPICH 4 and 5: their ranks poll UCX without a pause
 * while they wait for each other, and keep all processors busy. After some polls with nothing to
 * do, a poll here waits for a moment, or until something comes. */

#define _GNU_SOURCE

#include <stddef.h>
#include <sys/epoll.h>

enum { POLLS_BEFORE_WAIT = 32, WAIT_MS = 1 };

static __thread unsigned empty_polls;

int epoll_wait(int fd, struct epoll_event *events, int count, int timeout_ms)
{
    int ready = epoll_pwait(fd, events, count, timeout_ms, NULL);

    if (timeout_ms != 0)
        return ready;
    if (ready != 0)
        empty_polls = 0;
    else if (++empty_polls > POLLS_BEFORE_WAIT)
        ready = epoll_pwait(fd, events, count, WAIT_MS, NULL);
    return ready;
}
