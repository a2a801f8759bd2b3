/* Nonblocking broadcasts that are under way.
 *
 * To the program each is a generalized request of its MPI. Those of one root are carried out in the
 * order in which they were started, because they share the root's groups. They go on in the
 * program's calls that complete requests (complete.c), and otherwise in a thread: the program
 * computes meanwhile, and a rank that waits in another function of the MPI must not stop the
 * others. That thread calls no function of the MPI, which may not allow it; so what needs the MPI is
 * done in the program's calls. */

#ifndef TREECAST_MPI_REQUEST_H
#define TREECAST_MPI_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>

#include "communicator.h"
#include "packing.h"

/* The number of requests that are not complete. */
extern _Atomic int outstanding_requests;

static inline bool are_requests_outstanding(void)
{
    return atomic_load_explicit(&outstanding_requests, memory_order_relaxed) != 0;
}

/* Starts a broadcast by groups that are made. Returns an MPI error code. */
int start_request(struct communicator *communicator, struct root_groups *groups, const struct buffer *buffer, MPI_Request *handle);

/* Carries on with all requests, and completes those that have ended. It does not wait. */
void progress_requests(void);

static inline void progress_if_any(void)
{
    if (are_requests_outstanding())
        progress_requests();
}

/* Waits for some milliseconds at most if all of these requests are broadcasts of one root, and
 * otherwise lets other threads run. `wait_ms` is the time, which grows; it is WAIT_MIN_MS at first. */
void wait_for_requests(const MPI_Request *handles, int count, int *wait_ms);

/* Completes all requests of a root, which all ranks have started or will start before they wait
 * for this one. */
void complete_requests(const struct communicator *communicator, struct root_groups *groups);

/* Ends the thread and drops what is not complete, which is an error of the program. */
void end_requests(void);

#endif
