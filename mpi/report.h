/* Statistics of the collectives of a communicator: numbers taken and passed on, and times. */

#ifndef TREECAST_MPI_REPORT_H
#define TREECAST_MPI_REPORT_H

#include <stdint.h>

#include "class.h"
#include "library.h"

/* Who carries out a collective. */
enum way { BY_MPI, BY_TREECAST, WAYS };

/* Whether a collective is taken, or why not. All ranks of a communicator come to the same
 * result. */
enum outcome {
    TAKEN,
    /* Passed on to the MPI, since */
    SWITCHED_OFF,
    ONE_RANK,
    INTERCOMMUNICATOR,
    NO_BYTES,
    UNTRIED,
    IN_TRIAL,
    SLOWER,
    UNPAID,
    RARE_ROOT,
    UNMADE,
    ONE_HOST,
    OTHER_BYTES,
    NO_NODE,
    NO_GROUP,
    MANY_ROOTS,
    NONBLOCKING,
    PERSISTENT,
    LONG_VALUES,
    ENCRYPTED,
    OTHER_VALUES,
    ROUNDED,
    OUTCOMES,
};

/* The times of calls from 1 ns to hours, in steps of an eighth of a power of two. */
enum { TIME_STEPS = 8 * 48 };

/* Those of one collective, without nonblocking and persistent ones. */
struct statistics {
    uint64_t outcomes[OUTCOMES];
    /* The least and the most bytes of one that was taken, and all. */
    uint64_t bytes_min, bytes_max, bytes;
    uint32_t times[TIME_STEPS];
};

struct report {
    char name[MPI_MAX_OBJECT_NAME];
    int ranks;
    /* The number of communicators of this name that it is about. */
    uint64_t communicators;
    struct statistics statistics[COLLECTIVES];
    /* The groups that were made, and how often one of another communicator was used instead. */
    uint64_t groups, shared, errors;
    /* How messages go in groups that it has made as the root; empty: it has made none. */
    char engine[16], offload[256];
    /* The nonblocking broadcasts that were taken, and all their bytes. */
    uint64_t nonblocking, nonblocking_bytes;
    /* The same of those that persistent requests have started. */
    uint64_t persistent, persistent_bytes;
    /* The error that prevented collectives from being taken. */
    char why[256];
    /* Results of trials: medians of the slowest rank. */
    double trial_us[CLASSES][WAYS];
    /* The way that each class went at last. */
    enum way way[CLASSES];
};

void begin_report(struct report *report, MPI_Comm comm);

/* Counts a collective that was taken. */
void count_taken(struct statistics *statistics, uint64_t bytes, uint64_t ns);

/* Counts a collective that was passed on, of no communicator that has a report. */
void count_passed(enum collective collective, enum outcome outcome);

/* Keeps the report of a communicator that ends. */
void keep_report(const struct report *report);

/* Prints the reports that were kept to standard error. */
void print_reports(void);

#endif
