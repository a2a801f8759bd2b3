/* Statistics of the broadcasts of a communicator: numbers taken and passed on, and times. */

#ifndef TREECAST_MPI_REPORT_H
#define TREECAST_MPI_REPORT_H

#include <stdint.h>

#include "library.h"

/* Who carries out a broadcast. */
enum way { BY_MPI, BY_TREECAST, WAYS };

/* Classes of lengths: those with the same highest bit. */
enum { CLASSES = 40 };

/* Whether a broadcast is taken, or why not. All ranks of a communicator come to the same result. */
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
    RARE_ROOT,
    ONE_HOST,
    OTHER_BYTES,
    NO_NODE,
    NO_GROUP,
    MANY_ROOTS,
    NONBLOCKING,
    PERSISTENT,
    OUTCOMES,
};

/* The times of calls from 1 ns to hours, in steps of an eighth of a power of two. */
enum { TIME_STEPS = 8 * 48 };

struct report {
    char name[MPI_MAX_OBJECT_NAME];
    int ranks;
    /* The number of communicators of this name that it is about. */
    uint64_t communicators;
    uint64_t outcomes[OUTCOMES];
    /* The least and the most bytes of a broadcast that was taken, and all. */
    uint64_t bytes_min, bytes_max, bytes;
    uint64_t groups, errors;
    /* The nonblocking broadcasts that were taken, and all their bytes. */
    uint64_t nonblocking, nonblocking_bytes;
    /* The same of those that persistent requests have started. */
    uint64_t persistent, persistent_bytes;
    /* The error that prevented broadcasts from being taken. */
    char why[256];
    uint32_t times[TIME_STEPS];
    /* Results of trials: medians of the slowest rank. */
    double trial_us[CLASSES][WAYS];
};

void begin_report(struct report *report, MPI_Comm comm);

/* Counts a broadcast that was taken. */
void count_taken(struct report *report, uint64_t bytes, uint64_t ns);

/* Counts a broadcast that was passed on, of no communicator that has a report. */
void count_passed(enum outcome outcome);

/* Keeps the report of a communicator that ends. */
void keep_report(const struct report *report);

/* Prints the reports that were kept to standard error. */
void print_reports(void);

#endif
