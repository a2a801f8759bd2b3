/* The settings, by environment variables (docs/mpi.md). */

#ifndef TREECAST_MPI_SETTINGS_H
#define TREECAST_MPI_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

/* The most roots of one communicator that have groups at a time, whatever TREECAST_MPI_ROOTS
 * says. */
enum { ROOTS_MAX = 64 };

/* Which broadcasts are taken: those that are faster by measurement (choice.h), all, or none. */
enum choice_setting { CHOICE_MEASURE, CHOICE_ALWAYS, CHOICE_NEVER };

struct settings {
    /* Never in processes that a rank has forked. */
    bool is_on;
    enum choice_setting choice;
    /* The share of the time in broadcasts that trials may take, in percent. */
    double trial_percent;
    /* The file for results of trials; empty: none. */
    char history[4096];
    /* Whether rank 0 prints a report at MPI_Finalize. */
    bool reports;
    /* The least and the most bytes of a broadcast that is taken. */
    uint64_t bytes_min, bytes_max;
    /* The roots of a communicator whose groups are kept open. */
    int roots;
    /* The interface of a node, or a prefix of its addresses such as 10.1.0.0/16; NULL: found. */
    const char *interface;
    /* Settings of nodes and of groups, as treecast.h has them; the latter end with a space. */
    char node[256], group[512];
};

/* Those of this process. A value that is invalid is said on standard error, and does not count. */
const struct settings *settings(void);

#endif
