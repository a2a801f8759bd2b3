/* Who carries out the broadcasts of a communicator, the MPI or Treecast: measured for each class of lengths.
 *
 * Broadcasts begin by the MPI. Now and then, at numbers of broadcasts that are the same at all ranks, the ranks compare what
 * they have spent in broadcasts. If a trial costs at most a share of that (TREECAST_MPI_TRIAL_PERCENT), the next broadcasts of
 * the class that took the most time go by both ways in turn, and the ranks agree on the faster one. Later the trial is
 * repeated, after four times the time each, so that all trials together stay within the share.
 *
 * A way is as fast as its slowest rank: of each broadcast of a trial the longest call of all ranks counts, which is what a
 * program waits for whose ranks go on together; of these, the median. Treecast has to be faster by a margin, for work that
 * its nodes do between the calls. */

#ifndef TREECAST_MPI_CHOICE_H
#define TREECAST_MPI_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "library.h"
#include "report.h"

/* Broadcasts of a trial by each way that count. */
enum { TRIAL_SAMPLES = 6 };

/* Its times at a rank, or the longest of all ranks. */
struct trial_times {
    double samples_us[WAYS][TRIAL_SAMPLES];
    /* The first broadcast, for which the groups are made. */
    double set_up_us;
};

struct trial {
    /* The class that is tried, and the root whose broadcasts are; class -1: none. */
    int class, root;
    /* The broadcasts since the trial began, and whether the ranks have compared since. */
    int broadcasts;
    bool is_old;
    struct trial_times times;
};

struct class {
    uint64_t broadcasts;
    /* The root of the last one. */
    int root;
    /* This rank's time in calls. */
    double spent_us;
    /* The way of the next broadcasts; the medians of the last trial, 0 without one; and what the class had taken then. */
    enum way way;
    double trial_us[WAYS];
    double spent_at_trial_us;
};

struct choice {
    /* The broadcasts so far, a long one being several, and at how many the ranks compare next. */
    uint64_t weight, next_comparison;
    bool has_history;
    /* What trials have taken. */
    double trials_us;
    struct trial trial;
    struct class classes[CLASSES];
};

void begin_choice(struct choice *choice);

/* The class of a length: that of its highest bit. */
int class_of(uint64_t bytes);

/* Whether a broadcast is by Treecast, TAKEN, or why it is not. All ranks come to the same result. */
enum outcome choose(const struct choice *choice, int root, uint64_t bytes);

/* Whether the next broadcast is part of a trial. */
bool is_tried(const struct choice *choice, int root, uint64_t bytes);

/* Notes how long a broadcast took at this rank. At some numbers of broadcasts all ranks of the communicator compare, by
 * collectives of the MPI on it; `is_given_up` tells whether a trial has ended after which no broadcast is by Treecast, so that
 * its groups serve no more. Returns an MPI error code. */
int note_broadcast(struct choice *choice, MPI_Comm comm, int root, uint64_t bytes, enum way way, double us, bool *is_given_up);

#endif
