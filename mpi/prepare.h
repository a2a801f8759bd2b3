/* Makes groups in the background, while the MPI carries out the broadcasts.
 *
 * A communicator prepares the groups of one root at a time: a trial needs them, or a root has
 * broadcast often enough. What may take long, to open the node and to make the groups, is done in
 * threads (set_up.h, making.h). At certain counts of broadcasts, which are the same at all ranks,
 * the ranks agree on whether all have done their parts, and begin the next step. Only when the
 * groups are made at all ranks is a broadcast taken. */

#ifndef TREECAST_MPI_PREPARE_H
#define TREECAST_MPI_PREPARE_H

#include "communicator.h"
#include "report.h"
#include "roots.h"

/* What is under way on a communicator, at first nothing. NULL: no memory. */
struct preparation *new_preparation(void);

/* TAKEN if a root has the groups for a collective, or else the reason: its groups are wanted. All
 * ranks call it at the same collectives, and get the same result. */
enum outcome judge_groups(struct communicator *communicator, int root, enum use use);

/* Carries on after a collective. All ranks have to be in this call. Returns an MPI error code. */
int prepare(struct communicator *communicator, MPI_Comm comm);

/* Ends what is under way. All ranks do so after the same collective. */
void cancel_preparation(struct communicator *communicator);

#endif
