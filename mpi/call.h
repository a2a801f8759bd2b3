/* A blocking collective of the program: whether it is taken, and how it is counted and measured. */

#ifndef TREECAST_MPI_CALL_H
#define TREECAST_MPI_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "communicator.h"
#include "library.h"
#include "report.h"

struct call {
    enum collective collective;
    MPI_Comm comm;
    /* The root whose groups carry it out. */
    int root;
    /* All its bytes of data, by which its way is chosen. */
    uint64_t bytes;
    /* Set by judge() or judge_values() before begin_call(). Afterwards: TAKEN, or why the MPI
     * carries it out. */
    enum outcome outcome;
    /* Carries it out by the groups of the root, which are made. Returns an MPI error code. */
    int (*carry_out)(const struct call *call, struct root_groups *groups);
    /* The rest is begin_call()'s. The state of the communicator is NULL if the collective may not
     * be taken at all. */
    struct communicator *communicator;
    int64_t since_ns;
    /* The MPI error code of one that is not passed on. */
    int error;
};

/* Whether a collective may be taken at all. Each rank decides that by itself, and all get the
 * same result. */
enum outcome judge(MPI_Comm comm, int root, uint64_t bytes);

/* The same for collectives with values, which go up the tree, after judge() has returned TAKEN. */
enum outcome judge_values(uint64_t bytes);

/* Carries out a collective and returns true, or returns false if it is to be passed on to the MPI:
 * then end_call() follows. */
bool begin_call(struct call *call);

/* Counts and measures a collective that has ended. Returns its error code, or that of a
 * comparison between ranks. */
int end_call(struct call *call, int error);

#endif
