#include "report.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The most names of communicators that are told apart. */
enum { REPORTS_MAX = 64 };

static const char *const REASONS[OUTCOMES] = {
    [SWITCHED_OFF] = "switched off",
    [ONE_RANK] = "a single rank",
    [INTERCOMMUNICATOR] = "an intercommunicator",
    [NO_BYTES] = "no bytes",
    [UNTRIED] = "too few to try Treecast (TREECAST_MPI_CHOICE=always takes them)",
    [IN_TRIAL] = "to compare both",
    [SLOWER] = "it was as fast or faster",
    [UNPAID] = "Treecast was faster in an earlier run, but would not have saved the time to make groups yet",
    [RARE_ROOT] = "of roots that broadcast seldom",
    [UNMADE] = "while groups were made",
    [ONE_HOST] = "all ranks on one host",
    [OTHER_BYTES] = "shorter or longer than set",
    [NO_NODE] = "a rank has no node",
    [NO_GROUP] = "a rank cannot make the group",
    [MANY_ROOTS] = "more roots in turn than have groups (TREECAST_MPI_ROOTS)",
    [NONBLOCKING] = "nonblocking",
    [PERSISTENT] = "persistent",
    [LONG_VALUES] = "of more than 504 bytes in all",
    [ENCRYPTED] = "groups are encrypted",
    [OTHER_VALUES] = "of other types or operations",
    [ROUNDED] = "of fractions (TREECAST_MPI_CHOICE=always takes them)",
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct report *reports[REPORTS_MAX];
static uint64_t passed[COLLECTIVES][OUTCOMES];

void begin_report(struct report *report, MPI_Comm comm)
{
    int length;

    mpi.Comm_size(comm, &report->ranks);
    if (mpi.Comm_get_name(comm, report->name, &length) != MPI_SUCCESS || !*report->name)
        snprintf(report->name, sizeof report->name, "(unnamed)");
    report->communicators = 1;
}

static unsigned step_of(uint64_t ns)
{
    unsigned octave, step;

    if (ns < 8)
        return (unsigned)ns;
    octave = 63 - (unsigned)__builtin_clzll(ns);
    step = 8 * (octave - 2) + (unsigned)(ns >> (octave - 3) & 7);
    return step < TIME_STEPS ? step : TIME_STEPS - 1;
}

/* The middle of a step, in us. */
static double middle_us(unsigned step)
{
    unsigned octave = step / 8 + 2;

    return step < 8 ? step / 1e3 : ((double)((uint64_t)(8 + step % 8) << (octave - 3)) + (double)(1ull << (octave - 3)) / 2) / 1e3;
}

static double quantile_us(const struct statistics *statistics, double part)
{
    uint64_t before = 0;
    unsigned step;

    for (step = 0; step < TIME_STEPS - 1; step++) {
        before += statistics->times[step];
        if ((double)before >= part * (double)statistics->outcomes[TAKEN])
            break;
    }
    return middle_us(step);
}

void count_taken(struct statistics *statistics, uint64_t bytes, uint64_t ns)
{
    if (!statistics->outcomes[TAKEN] || bytes < statistics->bytes_min)
        statistics->bytes_min = bytes;
    if (bytes > statistics->bytes_max)
        statistics->bytes_max = bytes;
    statistics->bytes += bytes;
    statistics->outcomes[TAKEN]++;
    statistics->times[step_of(ns)]++;
}

void count_passed(enum collective collective, enum outcome outcome)
{
    __atomic_fetch_add(&passed[collective][outcome], 1, __ATOMIC_RELAXED);
}

static void add_statistics(struct statistics *all, const struct statistics *one)
{
    int i;

    if (one->outcomes[TAKEN] && (!all->outcomes[TAKEN] || one->bytes_min < all->bytes_min))
        all->bytes_min = one->bytes_min;
    if (one->bytes_max > all->bytes_max)
        all->bytes_max = one->bytes_max;
    all->bytes += one->bytes;
    for (i = 0; i < OUTCOMES; i++)
        all->outcomes[i] += one->outcomes[i];
    for (i = 0; i < TIME_STEPS; i++)
        all->times[i] += one->times[i];
}

static void add(struct report *all, const struct report *one)
{
    int i;

    for (i = 0; i < COLLECTIVES; i++)
        add_statistics(&all->statistics[i], &one->statistics[i]);
    if (one->ranks > all->ranks)
        all->ranks = one->ranks;
    if (!*all->why)
        memcpy(all->why, one->why, sizeof all->why);
    if (!*all->offload) {
        memcpy(all->engine, one->engine, sizeof all->engine);
        memcpy(all->offload, one->offload, sizeof all->offload);
    }
    all->communicators += one->communicators;
    all->groups += one->groups;
    all->shared += one->shared;
    all->errors += one->errors;
    all->nonblocking += one->nonblocking;
    all->nonblocking_bytes += one->nonblocking_bytes;
    all->persistent += one->persistent;
    all->persistent_bytes += one->persistent_bytes;
    for (i = 0; i < CLASSES; i++)
        if (one->trial_us[i][BY_TREECAST] > 0) {
            memcpy(all->trial_us[i], one->trial_us[i], sizeof all->trial_us[i]);
            all->way[i] = one->way[i];
        }
}

/* The report of all communicators of a name; the last one is of all others. */
void keep_report(const struct report *report)
{
    int i = 0;

    pthread_mutex_lock(&lock);
    while (i < REPORTS_MAX - 1 && reports[i] && strcmp(reports[i]->name, report->name) != 0)
        i++;
    if (reports[i]) {
        add(reports[i], report);
    } else if ((reports[i] = malloc(sizeof *report))) {
        *reports[i] = *report;
        if (i == REPORTS_MAX - 1)
            snprintf(reports[i]->name, sizeof reports[i]->name, "(others)");
    }
    pthread_mutex_unlock(&lock);
}

/* What lines that are not about broadcasts begin with. */
static const char *const PREFIXES[COLLECTIVES] = {
    [BROADCAST] = "", [ALLGATHER] = "allgathers: ", [REDUCE] = "reduces: ", [ALLREDUCE] = "allreduces: ", [BARRIER] = "barriers: "};

/* Whose time in the call is compared. */
static const char *const COMPARED[COLLECTIVES] = {[BROADCAST] = "slowest rank",
                                                  [ALLGATHER] = "last rank to come",
                                                  [REDUCE] = "mean of the ranks",
                                                  [ALLREDUCE] = "last rank to come",
                                                  [BARRIER] = "last rank to come"};

static void print_passed(FILE *to, enum collective collective, const uint64_t outcomes[OUTCOMES], const char *why)
{
    int i;

    for (i = TAKEN + 1; i < OUTCOMES; i++)
        if (outcomes[i])
            fprintf(to, "treecast:     %s%llu passed on to the MPI: %s%s%s\n", PREFIXES[collective],
                    (unsigned long long)outcomes[i], REASONS[i], (i == NO_NODE || i == NO_GROUP) && *why ? ": " : "",
                    i == NO_NODE || i == NO_GROUP ? why : "");
}

/* The times of the ways that were compared. */
static void print_trials(FILE *to, const struct report *report)
{
    int i;

    for (i = 0; i < CLASSES; i++) {
        const double *us = report->trial_us[i];

        if (us[BY_TREECAST] <= 0)
            continue;
        fprintf(to, "treecast:     %s", PREFIXES[collective_of(i)]);
        if (collective_of(i) != BARRIER)
            fprintf(to, "from %llu bytes: ", bytes_from(i));
        fprintf(to, "%s %.1f us by the MPI, %.1f us by Treecast (medians): goes by %s\n", COMPARED[collective_of(i)],
                us[BY_MPI], us[BY_TREECAST], report->way[i] == BY_TREECAST ? "Treecast" : "the MPI");
    }
}

static bool is_any_passed(void)
{
    bool is_any = false;
    int i, collective;

    for (collective = 0; collective < COLLECTIVES; collective++)
        for (i = TAKEN + 1; i < OUTCOMES; i++)
            is_any |= passed[collective][i] != 0;
    return is_any;
}

/* The blocking ones that were taken. */
static void print_taken(FILE *to, const struct report *report, enum collective collective)
{
    const struct statistics *statistics = &report->statistics[collective];

    if (!statistics->outcomes[TAKEN])
        return;
    fprintf(to, "treecast:     %s%llu taken", PREFIXES[collective], (unsigned long long)statistics->outcomes[TAKEN]);
    if (statistics->bytes)
        fprintf(to, ", %llu to %llu bytes, %.1f MB", (unsigned long long)statistics->bytes_min,
                (unsigned long long)statistics->bytes_max, (double)statistics->bytes / 1e6);
    fprintf(to, "; in the call %.1f us (median), %.1f us (99 %%)\n", quantile_us(statistics, 0.5), quantile_us(statistics, 0.99));
}

static void print_all(FILE *to)
{
    int i, collective;

    fprintf(to, "treecast: collectives at rank 0\n");
    for (i = 0; i < REPORTS_MAX && reports[i]; i++) {
        const struct report *report = reports[i];

        fprintf(to, "treecast:   %s", report->name);
        if (report->communicators > 1)
            fprintf(to, ", %llu communicators", (unsigned long long)report->communicators);
        fprintf(to, ", %s%d ranks", report->communicators > 1 ? "up to " : "", report->ranks);
        if (report->groups)
            fprintf(to, ", %llu groups", (unsigned long long)report->groups);
        if (report->shared)
            fprintf(to, ", %llu shared with other communicators", (unsigned long long)report->shared);
        fputc('\n', to);
        if (*report->offload)
            fprintf(to, "treecast:     engine %s, %s\n", report->engine, report->offload);
        for (collective = 0; collective < COLLECTIVES; collective++)
            print_taken(to, report, (enum collective)collective);
        if (report->nonblocking)
            fprintf(to, "treecast:     %llu taken, nonblocking, %.1f MB\n", (unsigned long long)report->nonblocking,
                    (double)report->nonblocking_bytes / 1e6);
        if (report->persistent)
            fprintf(to, "treecast:     %llu taken, persistent, %.1f MB\n", (unsigned long long)report->persistent,
                    (double)report->persistent_bytes / 1e6);
        for (collective = 0; collective < COLLECTIVES; collective++)
            print_passed(to, (enum collective)collective, report->statistics[collective].outcomes, report->why);
        print_trials(to, report);
        if (report->errors)
            fprintf(to, "treecast:     %llu failed: %s\n", (unsigned long long)report->errors, report->why);
    }
    if (is_any_passed())
        fprintf(to, "treecast:   all communicators\n");
    for (collective = 0; collective < COLLECTIVES; collective++)
        print_passed(to, (enum collective)collective, passed[collective], "");
}

void print_reports(void)
{
    char *text = NULL;
    size_t length = 0;
    FILE *to = open_memstream(&text, &length);

    if (!to)
        return;
    print_all(to);
    /* Standard error is unbuffered: without this, output of other ranks would split lines. */
    if (!fclose(to))
        fwrite(text, 1, length, stderr);
    free(text);
}
