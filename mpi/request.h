/* Nonblocking broadcasts that are under way, as requests of the program.
 *
 * To the program each is a generalized request of its MPI. The queues of the roots (queues.h) move
 * its bytes, also in a thread, which calls no function of the MPI. So all that needs the MPI is
 * done here, in the program's calls that start and complete requests (complete.c): packing,
 * unpacking, and reporting the result. */

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
 * otherwise lets other threads run. `wait_ms` is the time, which grows; it is WAIT_MIN_MS at
 * first. */
void wait_for_requests(const MPI_Request *handles, int count, int *wait_ms);

/* Completes all requests of a root, which all ranks have started or will start before they wait
 * for this one. */
void complete_requests(const struct communicator *communicator, struct root_groups *groups);

/* Ends the thread and drops what is not complete, which is an error of the program. */
void end_requests(void);

#endif
