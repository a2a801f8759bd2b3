/* The state of a communicator: its groups, and statistics of its broadcasts. */

#ifndef TREECAST_MPI_COMMUNICATOR_H
#define TREECAST_MPI_COMMUNICATOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include <treecast.h>

#include "choice.h"
#include "library.h"
#include "report.h"
#include "set_up.h"
#include "settings.h"
#include "shared.h"

#define ALL_KINDS ((1u << KINDS) - 1)

/* The groups of a communicator for the collectives of one root. Those for broadcasts, one of each
 * kind, may be those of another communicator.
 *
 * The values of reduces and the like have a group of their own, which is not shared: all ranks have
 * to combine them after the same message, and the broadcasts of another communicator may come
 * earlier at one rank than at another.
 *
 * The byte count of a broadcast decides which of them it uses. If a rank passes a different byte
 * count than the root, which is an error of the program, the rank may wait for the wrong group.
 * It must get the error and not wait for ever: a member that waits for long checks the other
 * groups for messages. */
struct root_groups {
    int root;
    /* The number of the communicator's last broadcast of this root. */
    uint64_t used_at;
    /* The groups for broadcasts, with the communicator's ends of them, and the group for values,
     * which is of kind SHORT; NULL: not made. */
    struct shared_groups *shared, *values;
    struct port ports[KINDS];
    /* The error code of each further broadcast; MPI_SUCCESS: none. */
    int error;
    /* The nonblocking broadcasts under way (queues.c): those that have not ended, in order;
     * whether a thread carries on with them; the next root with some; and the number of those
     * that are not complete. */
    struct request *first, *last;
    bool is_busy;
    struct root_groups *next_active;
    _Atomic int outstanding;
};

struct communicator {
    int rank, size;
    /* Which broadcasts are by Treecast; and whether the ranks have begun to exchange their
     * addresses for that, and have ended. */
    struct choice choice;
    bool has_begun_set_up, is_set_up;
    struct opening opening;
    /* The groups that are made in the background (prepare.c). */
    struct preparation *preparation;
    /* The same processes with ranks, tags and collectives of the shim's own, once its set-up has
     * begun. */
    MPI_Comm private;
    /* TAKEN, or why all its broadcasts are passed on to the MPI. */
    enum outcome outcome;
    /* The addresses of its ranks' nodes, as tc_group_new() takes them, and the groups' token. */
    char *members;
    char token[33];
    /* The settings that its ranks have in common: those of rank 0. Until it is set up, all
     * lengths are within the bounds, since the ranks' own bounds may differ. */
    uint64_t bytes_min, bytes_max;
    int roots_max;
    /* Whether the groups of some root are encrypted: then values, which are not, stay with the
     * MPI. */
    bool is_encrypted;
    struct root_groups roots[ROOTS_MAX];
    /* Its persistent broadcasts (persistents.c); NULL: none yet. */
    struct persistents *persistents;
    uint64_t broadcasts;
    /* By root: the number of its broadcasts while it had no groups. */
    uint32_t *without_groups;
    /* By root: whether a nonblocking broadcast would have used groups that were not made; and
     * whether any would. */
    bool *is_wanted, is_any_wanted;
    struct report report;
    struct communicator *next, *previous;
};

/* The state of a communicator with several ranks, and not an intercommunicator. Returns an MPI
 * error code. */
int find_communicator(MPI_Comm comm, struct communicator **found);

/* Lets the MPI library move messages for which another rank may be waiting. */
static inline void make_progress(const struct communicator *communicator)
{
    int is_there;

    mpi.Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator->private, &is_there, MPI_STATUS_IGNORE);
}

/* The groups of a root for a nonblocking broadcast, which makes none: NULL if there are none. Then
 * the next call of make_wanted_groups() or of prepare() makes them. All ranks get the same
 * result. */
struct root_groups *find_made(struct communicator *communicator, int root);

/* Makes the groups that nonblocking broadcasts on this communicator lacked, unless prepare() makes
 * them. All ranks have to be in this call, and the communicator may be any. Returns an MPI error
 * code. */
int make_wanted_groups(MPI_Comm comm);

/* Whether close_communicators() was called: MPI_Finalize still calls functions of the program,
 * which may broadcast. */
bool are_communicators_closed(void);

/* Closes the groups of all communicators, and then the node. No MPI function may be called for
 * communicators of the shim afterwards. */
void close_communicators(void);

#endif
