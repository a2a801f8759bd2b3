/* The state of a communicator: its groups, and statistics of its broadcasts. */

#ifndef TREECAST_MPI_COMMUNICATOR_H
#define TREECAST_MPI_COMMUNICATOR_H

#include <pthread.h>

#include <treecast.h>

#include "choice.h"
#include "library.h"
#include "report.h"
#include "settings.h"

/* The groups of a communicator for the broadcasts of one root: one whose tree is for short messages, and one whose tree is for long ones.
 *
 * Which of them a broadcast uses follows from its bytes. A rank that passes a different byte count than the root, which is an error of the
 * program, may wait at the other group. It must get that error, and not wait for ever. So the root alone decides: the first group is of the
 * kind that the root says. Before the root makes the other one, it sends an empty message by the first, and the members make it when
 * that comes. And a member that waits for long looks whether a message has come by the other group. */
struct root_groups {
    int root;
    /* The number of the communicator's last broadcast of this root. */
    uint64_t used_at;
    /* By whether the messages are long; NULL: not made. */
    tc_group *by_length[2];
    /* The error code that each further broadcast returns; MPI_SUCCESS: none. */
    int error;
};

struct communicator {
    int rank, size;
    /* How many broadcasts are by Treecast, and whether the ranks have exchanged what that needs. */
    struct choice choice;
    bool is_set_up;
    /* Ranks, tags and collectives of the shim's own, of the same processes, once it is set up. */
    MPI_Comm private;
    /* Why its broadcasts are passed on to the MPI; TAKEN: they are not. */
    enum outcome outcome;
    /* The addresses of its ranks' nodes, as tc_group_new() takes them, and the groups' token. */
    char *members;
    char token[33];
    /* The settings that its ranks have in common: those of rank 0. */
    uint64_t bytes_min, bytes_max;
    int roots_max;
    struct root_groups roots[ROOTS_MAX];
    uint64_t broadcasts;
    /* Those of each root that has no groups. */
    uint32_t *without_groups;
    struct report report;
    struct communicator *next, *previous;
};

/* The state of a communicator with several ranks, which is no intercommunicator. Returns an MPI error code. */
int find_communicator(MPI_Comm comm, struct communicator **found);

/* Exchanges addresses, unless that was done: all ranks have to be in this call. Returns an MPI error code. */
int set_up_communicator(struct communicator *communicator, MPI_Comm comm);

/* Whether a root has groups, or has broadcast so often that they pay. All ranks call it for each of its broadcasts. */
bool is_worth_groups(struct communicator *communicator, int root);

/* Closes the groups of all roots. All ranks have to be in this call. */
void close_groups(struct communicator *communicator);

/* Whether broadcasts of this number of bytes use the group for long messages. */
bool is_long(uint64_t bytes);

/* The groups of a root; NULL, if too many other roots have groups. The first time, all ranks have to be in this call, and the group for
 * messages as the root's is made. Where that cannot be made, the communicator's `outcome` tells. Returns an MPI error code. */
int find_root(struct communicator *communicator, int root, bool is_for_long, struct root_groups **found);

/* Makes a group of a root, of the kind that the root says. All ranks have to be in this call. Returns an MPI error code. */
int make_group(struct communicator *communicator, struct root_groups *groups, bool is_for_long);

/* Lets the MPI library move messages for which another rank may be waiting. */
void make_progress(const struct communicator *communicator);

/* Whether close_communicators() was called: MPI_Finalize still calls functions of the program, which may broadcast. */
bool are_communicators_closed(void);

/* Closes the groups of all communicators, and then the node. No MPI function may be called for communicators of the shim afterwards. */
void close_communicators(void);

#endif
