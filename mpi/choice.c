#include "choice.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "history.h"
#include "settings.h"
#include "shared.h"

/* A broadcast of this length counts twice, because it takes about twice as long as a short one. */
#define BYTES_OF_WEIGHT (16 << 10)

/* The ranks first compare after this number of broadcasts, and then whenever it has doubled. A
 * comparison, an all-reduce of one or two kilobytes, takes as long as about two short broadcasts,
 * which is 0.4 % of them. */
enum { FIRST_COMPARISON = 512 };

/* A trial is one broadcast by Treecast, the first one in its groups, and then blocks of two by the
 * MPI and two by Treecast. Of each two, only the second is measured: nodes may still work on the
 * previous broadcast, by the other way, during the first. */
enum { BLOCK = 4, TRIAL_BROADCASTS = 1 + BLOCK * TRIAL_SAMPLES };

/* A trial is repeated when the time of its class has grown by this factor since the last one. */
#define REPEAT_FACTOR 4

/* The factor by which Treecast must be faster. */
#define MARGIN 1.05

/* The expected cost of making groups, until this process has measured it. With the kernel engine
 * the program is loaded first; without a setting it is used only if the daemon has loaded it. */
#define USER_SET_UP_US 30e3
#define KERNEL_SET_UP_US 300e3

/* The expected time to use the groups of another communicator. */
#define SHARED_SET_UP_US 2e3

/* The measured cost; 0: not measured. */
static _Atomic double last_set_up_us;

/* What ranks compare. The maximum of all ranks counts. */
struct comparison {
    double spent_us[CLASSES];
    double set_up_us;
    double trial_percent;
    /* Given by rank 0, in the first comparison. */
    double history_us[CLASSES][WAYS];
};

void begin_choice(struct choice *choice)
{
    memset(choice, 0, sizeof *choice);
    choice->next_comparison = FIRST_COMPARISON;
    choice->trial.class = -1;
}

bool is_tried(const struct choice *choice, int root, int class)
{
    return choice->trial.class == class && choice->trial.root == root && choice->trial.has_groups;
}

bool is_trial_waiting(const struct choice *choice)
{
    return choice->trial.class >= 0 && !choice->trial.has_groups;
}

static enum way way_in_trial(const struct trial *trial)
{
    return trial->broadcasts == 0 || (trial->broadcasts - 1) % BLOCK >= BLOCK / 2 ? BY_TREECAST : BY_MPI;
}

static enum way faster(const double us[WAYS])
{
    return us[BY_TREECAST] * MARGIN < us[BY_MPI] ? BY_TREECAST : BY_MPI;
}

enum outcome choose(const struct choice *choice, int root, int class)
{
    enum outcome outcome;

    if (settings()->choice != CHOICE_ALWAYS && is_tried(choice, root, class))
        return way_in_trial(&choice->trial) == BY_TREECAST ? TAKEN : IN_TRIAL;
    outcome = choose_nonblocking(choice, class);
    if (outcome != TAKEN && is_trial_waiting(choice) && choice->trial.class == class && choice->trial.root == root)
        return UNMADE;
    return outcome;
}

enum outcome choose_nonblocking(const struct choice *choice, int class)
{
    if (settings()->choice == CHOICE_ALWAYS || choice->classes[class].way == BY_TREECAST)
        return TAKEN;
    if (choice->classes[class].trial_us[BY_TREECAST] <= 0)
        return UNTRIED;
    return faster(choice->classes[class].trial_us) == BY_TREECAST ? UNPAID : SLOWER;
}

static int compare_double(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;

    return (a > b) - (a < b);
}

static double sum(const double *values, int count)
{
    double all = 0;
    int i;

    for (i = 0; i < count; i++)
        all += values[i];
    return all;
}

static double median(const double *values, int count)
{
    double sorted[TRIAL_SAMPLES];

    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_double);
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static double expected_set_up_us(MPI_Comm comm)
{
    double last_us = atomic_load(&last_set_up_us);

    if (are_groups_offered(comm))
        return SHARED_SET_UP_US;
    if (last_us > 0)
        return last_us;
    return strstr(settings()->node, "engine=ebpf") ? KERNEL_SET_UP_US : USER_SET_UP_US;
}

static bool is_any_by_treecast(const struct choice *choice)
{
    int i;

    for (i = 0; i < CLASSES && choice->classes[i].way != BY_TREECAST; i++)
        continue;
    return i < CLASSES;
}

/* How the times of the ranks in a call make one. Of a broadcast that of the slowest rank. A reduce
 * is compared by the mean, since by the MPI most ranks return before the root. In the others all
 * ranks wait for the last one to come, and its time shows how long they take. */
static MPI_Op operation_of(enum collective collective)
{
    return collective == BROADCAST ? MPI_MAX : collective == REDUCE ? MPI_SUM : MPI_MIN;
}

void start_trial(struct choice *choice, double us)
{
    choice->trial.has_groups = true;
    choice->trials_us += us;
    if (us > 0 && !choice->trial.is_shared)
        atomic_store(&last_set_up_us, us);
}

void drop_trial(struct choice *choice)
{
    choice->trial.class = -1;
}

/* The times of a trial, of all ranks. */
static int compare_times(const struct trial *trial, struct trial_times *all, MPI_Comm comm)
{
    enum { NUMBERS = sizeof *all / sizeof(double) };
    enum collective collective = collective_of(trial->class);
    double own[NUMBERS], times[NUMBERS];
    int i, size = 1, error;

    memcpy(own, &trial->times, sizeof own);
    if (collective == REDUCE)
        mpi.Comm_size(comm, &size);
    for (i = 0; i < NUMBERS; i++)
        own[i] /= size;
    error = mpi.Allreduce(own, times, NUMBERS, MPI_DOUBLE, operation_of(collective), comm);
    memcpy(all, times, sizeof times);
    return error;
}

/* The ranks agree on how long the broadcasts of the trial took, and so on the faster way. */
static int end_trial(struct choice *choice, MPI_Comm comm, bool *is_given_up)
{
    struct trial *trial = &choice->trial;
    struct class *class = &choice->classes[trial->class];
    struct trial_times all;
    double extra_us;
    int way, rank, error = compare_times(trial, &all, comm);

    if (error == MPI_SUCCESS) {
        for (way = 0; way < WAYS; way++)
            class->trial_us[way] = median(all.samples_us[way], TRIAL_SAMPLES);
        class->way = faster(class->trial_us);
        extra_us = sum(all.samples_us[!class->way], TRIAL_SAMPLES) - sum(all.samples_us[class->way], TRIAL_SAMPLES);
        /* Only every second broadcast was measured. */
        choice->trials_us += all.first_us + 2 * extra_us;
        mpi.Comm_rank(comm, &rank);
        if (!rank)
            keep_history(comm, trial->class, class->trial_us);
    }
    trial->class = -1;
    *is_given_up = !is_any_by_treecast(choice);
    return error;
}

/* Times of earlier runs count as a trial. */
static void use_history(struct choice *choice, const struct comparison *all)
{
    int i;

    for (i = 0; i < CLASSES; i++) {
        struct class *class = &choice->classes[i];

        if (all->history_us[i][BY_MPI] <= 0 || all->history_us[i][BY_TREECAST] <= 0)
            continue;
        memcpy(class->trial_us, all->history_us[i], sizeof class->trial_us);
        class->spent_at_trial_us = REPEAT_FACTOR * all->spent_us[i];
    }
}

/* Chooses Treecast where it was faster in earlier runs, once the time it would have saved
 * exceeds that of making groups. */
static void use_what_pays(struct choice *choice, const struct comparison *all)
{
    int i;

    for (i = 0; i < CLASSES; i++) {
        struct class *class = &choice->classes[i];

        if (class->trial_us[BY_MPI] > 0 && faster(class->trial_us) == BY_TREECAST &&
            all->spent_us[i] * (1 - class->trial_us[BY_TREECAST] / class->trial_us[BY_MPI]) > all->set_up_us)
            class->way = BY_TREECAST;
    }
}

/* Begins a trial of the most expensive class whose trial is within the share. */
static void begin_trial(struct choice *choice, const struct comparison *all)
{
    double budget_us = sum(all->spent_us, CLASSES) * all->trial_percent / 100 - choice->trials_us, most_us = 0;
    int i, best = -1;

    for (i = 0; i < CLASSES; i++) {
        const struct class *class = &choice->classes[i];
        double mean_us = class->broadcasts ? all->spent_us[i] / (double)class->broadcasts : 0;
        /* A broadcast by Treecast may take three times as long. */
        double cost_us = all->set_up_us + 2 * (BLOCK / 2) * TRIAL_SAMPLES * mean_us;

        if (all->spent_us[i] <= most_us || cost_us > budget_us || all->spent_us[i] < REPEAT_FACTOR * class->spent_at_trial_us)
            continue;
        most_us = all->spent_us[i];
        best = i;
    }
    if (best < 0)
        return;
    choice->classes[best].spent_at_trial_us = all->spent_us[best];
    choice->trial = (struct trial){
        .class = best, .root = choice->classes[best].root, .is_shared = all->set_up_us <= SHARED_SET_UP_US};
}

/* The ranks agree on the time spent in broadcasts, and so on the next trial. */
static int compare_ranks(struct choice *choice, MPI_Comm comm)
{
    struct comparison own = {.set_up_us = expected_set_up_us(comm), .trial_percent = settings()->trial_percent};
    struct comparison all = {0};
    bool is_first = !choice->has_history;
    size_t bytes;
    int i, rank, error;

    for (i = 0; i < CLASSES; i++)
        own.spent_us[i] = choice->classes[i].spent_us;
    mpi.Comm_rank(comm, &rank);
    if (is_first && !rank)
        find_history(comm, own.history_us);
    bytes = is_first ? sizeof own : offsetof(struct comparison, history_us);
    error = mpi.Allreduce(&own, &all, (int)(bytes / sizeof(double)), MPI_DOUBLE, MPI_MAX, comm);
    if (error != MPI_SUCCESS)
        return error;
    choice->has_history = true;
    if (is_first)
        use_history(choice, &all);
    use_what_pays(choice, &all);
    /* A trial whose broadcasts have become rare must not block others. */
    if (choice->trial.is_old)
        drop_trial(choice);
    if (choice->trial.class >= 0)
        choice->trial.is_old = choice->trial.has_groups;
    else
        begin_trial(choice, &all);
    return MPI_SUCCESS;
}

int note_call(struct choice *choice, MPI_Comm comm, int root, int class, uint64_t bytes, enum way way, double us, bool *is_given_up)
{
    struct class *noted = &choice->classes[class];
    struct trial *trial = &choice->trial;

    *is_given_up = false;
    if (settings()->choice != CHOICE_MEASURE)
        return MPI_SUCCESS;
    noted->broadcasts++;
    noted->spent_us += us;
    noted->root = root;
    choice->weight += 1 + bytes / BYTES_OF_WEIGHT;
    /* Treecast was to carry it out and could not, for a reason that all ranks know: there is
     * nothing to compare. */
    if (is_tried(choice, root, class) && way != way_in_trial(trial))
        drop_trial(choice);
    if (is_tried(choice, root, class)) {
        int number = trial->broadcasts++ - 1;

        if (number < 0)
            trial->times.first_us = us;
        else
            trial->times.samples_us[way][number / BLOCK] = us;
        if (trial->broadcasts == TRIAL_BROADCASTS)
            return end_trial(choice, comm, is_given_up);
    }
    if (choice->weight < choice->next_comparison)
        return MPI_SUCCESS;
    choice->next_comparison = 2 * choice->weight;
    return compare_ranks(choice, comm);
}
