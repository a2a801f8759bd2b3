/* The queues of nonblocking broadcasts: one for each root, whose broadcasts share its groups and
 * are therefore carried out in the order in which they were started.
 *
 * Bytes move in the program's calls that complete requests, and otherwise in a thread: the program
 * computes meanwhile, and a rank that waits in another function of the MPI must not stop the
 * others. Nothing here calls a function of the MPI, which may not allow that to the thread. A
 * broadcast that has ended stays here until a call of the program takes it (request.c). */

#ifndef TREECAST_MPI_QUEUES_H
#define TREECAST_MPI_QUEUES_H

#include <stdbool.h>

#include "communicator.h"
#include "packing.h"
#include "transfer.h"

struct request {
    struct stream stream;
    bool is_root;
    /* The whole data, where it is not contiguous in the user's buffer: packed at the start, or to
     * be unpacked at the end. Without bytes, there is none. */
    struct packing packing;
    /* What went wrong at the start, and then the result: an MPI error code. */
    int error;
    MPI_Request handle;
    /* The next one of the queue, or of those that have ended. */
    struct request *next;
};

/* Appends a request to the queue of its root, and starts it. */
void enqueue(struct request *request);

/* A request that has ended, and is the caller's from now on; NULL: none. */
struct request *take_ended(void);

/* Carries on with all queues. It does not wait. */
void progress_queues(void);

/* Carries on with the queue of a root for up to `wait_ms`, or waits that long for the thread that
 * does. The next time is longer, unless bytes have moved here. */
void progress_queue(struct root_groups *groups, int *wait_ms);

/* The same for the queue of these requests, after which its root may be gone. Returns false, and
 * does nothing, unless all of them are in one queue. */
bool progress_queue_of(const MPI_Request *handles, int count, int *wait_ms);

/* Ends the thread, and forgets all requests. */
void end_queues(void);

#endif
