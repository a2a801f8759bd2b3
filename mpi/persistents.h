/* Persistent broadcasts by Treecast.
 *
 * A generalized request ends when it completes, so it cannot be the program's handle of a
 * persistent broadcast. That handle is a persistent send of the MPI, which is never started: to the
 * MPI it is inactive, and is freed as any other. (MPICH 4.0 waits for ever for a persistent
 * broadcast that was never started.) Each start makes a generalized request (request.c), and the
 * functions that complete requests show that one to the MPI instead of the program's handle.
 *
 * The ranks of a communicator may start their persistent broadcasts in different orders, also
 * relative to other broadcasts. So each has a group of its own, in which the broadcasts of one
 * request are in order. MPI_Request_free is local and a group ends at all ranks, so the group stays
 * for a later request, or until the communicator is freed. */

#ifndef TREECAST_MPI_PERSISTENTS_H
#define TREECAST_MPI_PERSISTENTS_H

#include <stdbool.h>

#include "communicator.h"
#include "intercept.h"
#include "packing.h"

struct persistent;

/* Finds a place for a request and makes its group. `found` stays NULL if all places are taken, the
 * ranks' byte counts differ, or the group cannot be made. All ranks have to be in this call, and
 * get the same result. Returns an MPI error code. */
int find_free_place(struct communicator *communicator, int root, uint64_t bytes, struct persistent **found);

/* Makes the program's handle and keeps the arguments. Returns an MPI error code. */
int keep_persistent(struct persistent *persistent, const struct buffer *buffer, MPI_Request *request);

/* Whether any persistent broadcast is taken. */
bool are_persistents_kept(void);

/* The persistent broadcast with this handle; NULL: none is taken. */
struct persistent *find_persistent(MPI_Request request);

/* Starts a broadcast that is inactive. Returns an MPI error code. */
int start_persistent(struct persistent *persistent);

/* The program frees the handle. */
void drop_persistent(struct persistent *persistent);

/* An array of requests as the MPI is to see it. */
struct view {
    MPI_Request *handles, *given;
    int count;
    /* An array of one. */
    MPI_Request one;
};

/* Begins a view of the program's array; false: no memory. */
bool begin_view(struct view *view, int count, void *requests);

/* Ends it after a call that may have completed requests, whose error code it returns. */
int end_view(struct view *view, int error);

/* The same for a single request that the call does not complete. */
handle seen_by_mpi(handle request);

/* Calls a function for the groups of each persistent broadcast of a communicator. */
void each_persistent(const struct communicator *communicator,
                     void (*call)(const struct communicator *communicator, struct root_groups *groups));

/* Closes the groups of a communicator's persistent broadcasts, unless a rank still has such a
 * request, which it may start: then it returns false. All ranks have to be in this call. */
bool close_persistents(struct communicator *communicator);

#endif
