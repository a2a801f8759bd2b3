/* Chooses for each class of message lengths of a communicator whether the MPI or Treecast
 * carries out its broadcasts, by measurement. What is said of broadcasts is true of the other
 * collectives too.
 *
 * The first broadcasts are by the MPI. At certain counts of broadcasts, which are the same at
 * all ranks, the ranks compare the time that they have spent in broadcasts. If a trial costs at
 * most a given share of it (TREECAST_MPI_TRIAL_PERCENT), groups are made in the background
 * (prepare.h). Then the broadcasts of the most expensive class alternate between both ways, and
 * the ranks agree on the faster way. The trial
 * is repeated whenever the class has taken four times as long as before, within the same share.
 *
 * The time of a broadcast is the longest call of all ranks, because a program whose ranks go on
 * together waits for that; that of a reduce is the mean of the ranks, and that of the others the
 * shortest call, of the rank that came last. The time of a way is the median of its broadcasts.
 * Treecast must be faster by a margin, which stands for the work of its nodes between the calls. */

#ifndef TREECAST_MPI_CHOICE_H
#define TREECAST_MPI_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "class.h"
#include "library.h"
#include "report.h"

/* The measured broadcasts of a trial, by each way. */
enum { TRIAL_SAMPLES = 6 };

/* The times of a trial at one rank, or of all ranks. */
struct trial_times {
    double samples_us[WAYS][TRIAL_SAMPLES];
    /* The first broadcast, which is not compared. */
    double first_us;
};

struct trial {
    /* The broadcasts of this class and root are tried. Class -1: no trial. */
    int class, root;
    /* Whether the root has its groups; before, the MPI carries them out. */
    bool has_groups;
    /* Broadcasts since the trial began, and whether the ranks have compared their times since. */
    int broadcasts;
    bool is_old;
    /* Whether the communicator is expected to share the groups of another one. */
    bool is_shared;
    struct trial_times times;
};

struct class {
    uint64_t broadcasts;
    /* The root of the last one. */
    int root;
    /* This rank's time in calls. */
    double spent_us;
    /* The way of the next broadcasts. Of the last trial: the time of each way, 0 without a
     * trial, and `spent_us` at that time. */
    enum way way;
    double trial_us[WAYS];
    double spent_at_trial_us;
};

struct choice {
    /* The number of broadcasts, in which long ones count several times, and the number at which
     * ranks compare next. */
    uint64_t weight, next_comparison;
    bool has_history;
    /* The time that trials have cost. */
    double trials_us;
    struct trial trial;
    struct class classes[CLASSES];
};

void begin_choice(struct choice *choice);

/* TAKEN if a broadcast is by Treecast, or else the reason. All ranks get the same result. */
enum outcome choose(const struct choice *choice, int root, int class);

/* The same for a nonblocking broadcast, as the blocking ones of its class have turned out. It is
 * not part of trials, because its calls do not show how long it takes. */
enum outcome choose_nonblocking(const struct choice *choice, int class);

/* Whether a trial waits for the groups of its root: then start_trial() or drop_trial() follows, at
 * all ranks after the same broadcast. `us` is what the groups have cost, the same at all ranks. */
bool is_trial_waiting(const struct choice *choice);
void start_trial(struct choice *choice, double us);
void drop_trial(struct choice *choice);

/* Whether the next broadcast is part of a trial that has started. */
bool is_tried(const struct choice *choice, int root, int class);

/* Records the duration of a broadcast of a class at this rank. At some counts all ranks of the
 * communicator compare their times, by collectives of the MPI on `comm`. `is_given_up` is set if a
 * trial has ended and no class is by Treecast, so that the groups can be closed. Returns an MPI
 * error code. */
int note_call(struct choice *choice, MPI_Comm comm, int root, int class, uint64_t bytes, enum way way, double us, bool *is_given_up);

#endif
