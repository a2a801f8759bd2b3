#include "request.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "datatype.h"
#include "queues.h"
#include "transfer.h"

_Atomic int outstanding_requests;

static void unpack_all(struct request *request)
{
    struct packing *packing = &request->packing;

    packing->filled = packing->buffer.bytes;
    while (request->error == MPI_SUCCESS && packing->next < packing->buffer.count)
        request->error = unpack_some(packing);
}

/* Does for a request that has ended what needs the MPI. Afterwards the communicator may be freed,
 * and then the request is the program's. */
static void complete(struct request *request)
{
    struct root_groups *groups = request->stream.groups;
    MPI_Request handle = request->handle;
    int error;

    /* Not every MPI passes the text of an error of such a request on. */
    if (*request->stream.failure && groups->error == MPI_SUCCESS)
        fprintf(stderr, "treecast: a nonblocking broadcast has failed: %s\n", request->stream.failure);
    error = error_of(&request->stream);
    if (request->error == MPI_SUCCESS)
        request->error = error;
    if (request->packing.bytes && !request->is_root) {
        unpack_all(request);
        mpi.Type_free(&request->packing.buffer.type);
    }
    free(request->packing.bytes);
    if (request->error != MPI_SUCCESS)
        __atomic_fetch_add(&request->stream.communicator->report.errors, 1, __ATOMIC_RELAXED);
    atomic_fetch_sub(&groups->outstanding, 1);
    atomic_fetch_sub(&outstanding_requests, 1);
    mpi.Grequest_complete(handle);
}

static void complete_ended(void)
{
    struct request *request;

    while ((request = take_ended()))
        complete(request);
}

static int query(void *state, MPI_Status *status)
{
    const struct request *request = state;

    mpi.Status_set_elements(status, MPI_BYTE, 0);
    mpi.Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_ANY_SOURCE;
    status->MPI_TAG = MPI_ANY_TAG;
    return request->error;
}

static int free_request(void *state)
{
    free(state);
    return MPI_SUCCESS;
}

/* MPI forbids to cancel a collective. */
static int cancel(void *state, int is_complete)
{
    (void)state;
    (void)is_complete;
    return MPI_SUCCESS;
}

/* Packs the root's data, or prepares memory for that of a member. The program may free the type
 * while the request is outstanding. */
static int prepare_packing(struct request *request, const struct buffer *buffer)
{
    struct packing *packing = &request->packing;
    int error = begin_packing(packing, buffer, request->stream.communicator->private, buffer->bytes);

    if (error == MPI_SUCCESS && !request->is_root)
        error = mpi.Type_dup(buffer->type, &packing->buffer.type);
    while (error == MPI_SUCCESS && request->is_root && packing->next < buffer->count)
        error = pack_some(packing);
    if (error != MPI_SUCCESS) {
        free(packing->bytes);
        packing->bytes = NULL;
    }
    return error;
}

int start_request(struct communicator *communicator, struct root_groups *groups, const struct buffer *buffer, MPI_Request *handle)
{
    struct request *request = calloc(1, sizeof *request);
    int error;

    if (!request)
        return MPI_ERR_NO_MEM;
    request->is_root = groups->root == communicator->rank;
    request->stream = begin_stream(communicator, groups, buffer->bytes, buffer->address);
    if (!is_dense(buffer->type)) {
        request->error = prepare_packing(request, buffer);
        request->stream.next = request->packing.bytes;
        /* If packing failed, the message is dropped as it is received. */
        request->stream.room = request->packing.bytes ? buffer->bytes : 0;
    }
    error = mpi.Grequest_start(query, free_request, cancel, request, &request->handle);
    if (error != MPI_SUCCESS) {
        free(request->packing.bytes);
        free(request);
        return error;
    }
    *handle = request->handle;
    atomic_fetch_add(&groups->outstanding, 1);
    atomic_fetch_add(&outstanding_requests, 1);
    enqueue(request);
    complete_ended();
    return MPI_SUCCESS;
}

void progress_requests(void)
{
    progress_queues();
    complete_ended();
}

void wait_for_requests(const MPI_Request *handles, int count, int *wait_ms)
{
    if (!progress_queue_of(handles, count, wait_ms))
        sched_yield();
}

void complete_requests(const struct communicator *communicator, struct root_groups *groups)
{
    int wait_ms = WAIT_MIN_MS;

    while (atomic_load(&groups->outstanding)) {
        progress_queue(groups, &wait_ms);
        complete_ended();
        make_progress(communicator);
    }
}

void end_requests(void)
{
    end_queues();
    atomic_store(&outstanding_requests, 0);
}
