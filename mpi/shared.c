#include "shared.h"

#include <stdlib.h>
#include <string.h>

/* Held while the list, or who uses the groups in it, is looked at or changes. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shared_groups *offered;

struct shared_groups *new_groups(const uint32_t numbers[KINDS], bool is_root)
{
    struct shared_groups *shared = calloc(1, sizeof *shared);
    int kind;

    if (!shared)
        return NULL;
    for (kind = 0; kind < KINDS; kind++)
        begin_channel(&shared->channels[kind]);
    memcpy(shared->numbers, numbers, sizeof shared->numbers);
    shared->is_root = is_root;
    shared->users = 1;
    return shared;
}

void offer_groups(struct shared_groups *shared, MPI_Comm comm)
{
    if (mpi.Comm_group(comm, &shared->processes) != MPI_SUCCESS)
        return;
    pthread_mutex_lock(&lock);
    shared->is_offered = true;
    shared->next = offered;
    offered = shared;
    pthread_mutex_unlock(&lock);
}

/* Groups that a root has aborted are of no use. */
static bool are_open(struct shared_groups *shared)
{
    int kind = 0;

    while (kind < KINDS && is_open(&shared->channels[kind]))
        kind++;
    return kind == KINDS;
}

/* In whatever order: the members of a group are processes, whose ranks do not matter once it is
 * made. */
static bool are_same(MPI_Group one, MPI_Group other)
{
    int result;

    return mpi.Group_compare(one, other, &result) == MPI_SUCCESS && (result == MPI_IDENT || result == MPI_SIMILAR);
}

/* The first groups with the processes of a communicator, of this process as root or of any. The
 * lock is held. */
static struct shared_groups *find_offered(MPI_Comm comm, bool is_root)
{
    struct shared_groups *shared;
    MPI_Group processes;

    if (!offered || mpi.Comm_group(comm, &processes) != MPI_SUCCESS)
        return NULL;
    for (shared = offered; shared; shared = shared->next)
        if ((shared->is_root || !is_root) && are_open(shared) && are_same(shared->processes, processes))
            break;
    mpi.Group_free(&processes);
    return shared;
}

bool are_groups_offered(MPI_Comm comm)
{
    bool are;

    pthread_mutex_lock(&lock);
    are = find_offered(comm, false) != NULL;
    pthread_mutex_unlock(&lock);
    return are;
}

struct shared_groups *use_own_groups(MPI_Comm comm, uint32_t *number)
{
    struct shared_groups *shared;

    pthread_mutex_lock(&lock);
    shared = find_offered(comm, true);
    if (shared) {
        shared->users++;
        *number = ++shared->last_number;
    }
    pthread_mutex_unlock(&lock);
    return shared;
}

struct shared_groups *use_groups(const uint32_t numbers[KINDS])
{
    struct shared_groups *shared;

    pthread_mutex_lock(&lock);
    for (shared = offered; shared && memcmp(shared->numbers, numbers, sizeof shared->numbers) != 0; shared = shared->next)
        continue;
    if (shared)
        shared->users++;
    pthread_mutex_unlock(&lock);
    return shared;
}

bool leave_groups(struct shared_groups *shared)
{
    struct shared_groups **place = &offered;
    bool is_last;

    pthread_mutex_lock(&lock);
    is_last = !--shared->users;
    while (is_last && shared->is_offered && *place != shared)
        place = &(*place)->next;
    if (is_last && shared->is_offered)
        *place = shared->next;
    pthread_mutex_unlock(&lock);
    return is_last;
}

void free_groups(struct shared_groups *shared)
{
    int kind;

    for (kind = 0; kind < KINDS; kind++)
        end_channel(&shared->channels[kind]);
    if (shared->is_offered)
        mpi.Group_free(&shared->processes);
    free(shared);
}
