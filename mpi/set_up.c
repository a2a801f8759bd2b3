#define _GNU_SOURCE

#include "set_up.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "communicator.h"

/* Creates a communicator of the same processes for the shim's own use, without the attributes of
 * the program's. */
static int create_private(MPI_Comm comm, MPI_Comm *private)
{
    MPI_Group group;
    int error = mpi.Comm_group(comm, &group);

    if (error == MPI_SUCCESS) {
        error = mpi.Comm_create(comm, group, private);
        mpi.Group_free(&group);
    }
    return error == MPI_SUCCESS ? mpi.Comm_set_errhandler(*private, MPI_ERRORS_RETURN) : error;
}

static bool is_one_host(const struct introduction *all, int size)
{
    int rank = 1;

    while (rank < size && !strcmp(all[rank].host, all[0].host))
        rank++;
    return rank == size;
}

/* Whether the groups of any root are. */
static bool is_encrypted(const struct introduction *all, int size)
{
    int rank = 0;

    while (rank < size && !all[rank].is_encrypted)
        rank++;
    return rank < size;
}

/* Joins the addresses by commas. Returns false if a rank has none. */
static bool join_addresses(struct communicator *communicator, const struct endpoint *endpoints)
{
    char *end = communicator->members = malloc((size_t)communicator->size * (ADDRESS_BYTES + 1));
    bool are_all = end != NULL;
    int rank;

    for (rank = 0; are_all && rank < communicator->size; rank++) {
        are_all = *endpoints[rank].address != '\0';
        end += sprintf(end, "%s%s", rank ? "," : "", endpoints[rank].address);
    }
    return are_all;
}

/* The task of an opening. */
static void open_own(void *argument)
{
    struct opening *opening = argument;

    if (!open_node(opening->introductions, opening->size, opening->rank, &opening->endpoint, opening->why))
        opening->endpoint = (struct endpoint){0};
}

static int introduce_ranks(struct communicator *communicator, bool is_in_background)
{
    struct introduction own, *all = calloc((size_t)communicator->size, sizeof *all);
    int error = MPI_ERR_NO_MEM;

    if (!all)
        return error;
    introduce(&own);
    error = mpi.Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, communicator->private);
    if (error == MPI_SUCCESS) {
        communicator->bytes_min = all[0].bytes_min;
        communicator->bytes_max = all[0].bytes_max;
        communicator->roots_max = (int)all[0].roots;
        communicator->is_encrypted = is_encrypted(all, communicator->size);
        memcpy(communicator->token, all[0].secret, sizeof communicator->token);
        if (!is_one_host(all, communicator->size)) {
            communicator->opening = (struct opening){.introductions = all, .rank = communicator->rank, .size = communicator->size};
            start_task(&communicator->opening.task, is_in_background, open_own, &communicator->opening);
            return MPI_SUCCESS;
        }
        communicator->outcome = ONE_HOST;
    }
    free(all);
    return error;
}

static int begin(struct communicator *communicator, MPI_Comm comm, bool is_in_background)
{
    int error;

    if (communicator->has_begun_set_up)
        return MPI_SUCCESS;
    communicator->has_begun_set_up = true;
    error = create_private(comm, &communicator->private);
    return error == MPI_SUCCESS ? introduce_ranks(communicator, is_in_background) : error;
}

int begin_set_up(struct communicator *communicator, MPI_Comm comm)
{
    return begin(communicator, comm, true);
}

/* Exchanges the addresses of all nodes. If a node is missing, all ranks pass their broadcasts
 * on. */
static int exchange_endpoints(struct communicator *communicator)
{
    const struct opening *opening = &communicator->opening;
    struct endpoint *endpoints = calloc((size_t)communicator->size, sizeof *endpoints);
    int error;

    if (!endpoints)
        return MPI_ERR_NO_MEM;
    error = mpi.Allgather(&opening->endpoint, sizeof *endpoints, MPI_BYTE, endpoints, sizeof *endpoints, MPI_BYTE, communicator->private);
    if (error == MPI_SUCCESS && !join_addresses(communicator, endpoints)) {
        communicator->outcome = NO_NODE;
        snprintf(communicator->report.why, sizeof communicator->report.why, "%s", *opening->why ? opening->why : "another rank has no node");
    }
    free(endpoints);
    return error;
}

int set_up_communicator(struct communicator *communicator, MPI_Comm comm)
{
    int error;

    if (communicator->is_set_up)
        return MPI_SUCCESS;
    communicator->is_set_up = true;
    error = begin(communicator, comm, false);
    end_task(&communicator->opening.task);
    if (error == MPI_SUCCESS && communicator->outcome == TAKEN)
        error = exchange_endpoints(communicator);
    free(communicator->opening.introductions);
    communicator->opening.introductions = NULL;
    /* MPIs limit the number of communicators, and the program may need all of them. */
    if (error == MPI_SUCCESS && communicator->outcome != TAKEN)
        mpi.Comm_free(&communicator->private);
    return error;
}

void cancel_set_up(struct communicator *communicator)
{
    end_task(&communicator->opening.task);
    free(communicator->opening.introductions);
    communicator->opening.introductions = NULL;
}
