/* Which way ranks choose, in simulated time: threads are ranks, and a broadcast takes as long as
 * a scenario says. Prints what does not hold, and then ends with status 1. */

#define _GNU_SOURCE

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../choice.h"
#include "../history.h"
#include "../settings.h"
#include "../shared.h"

enum { RANKS = 4, SHORT_BYTES = 700, LONG_BYTES = 100000, SET_UP_US = 20000, UNMADE_BROADCASTS = 40, BROADCASTS_MAX = 2000000 };

struct scenario {
    const char *name;
    int broadcasts;
    /* How long a short and a long broadcast take by Treecast, where they take 100 us and 1 ms by
     * the MPI; and the number of the broadcast from which on they take three times as long by
     * Treecast. */
    double short_us, long_us;
    int slower_from;
    double trial_percent;
    bool has_history;
    /* Whether Treecast cannot carry out broadcasts, at all ranks. */
    bool is_refused;
    /* Whether another communicator of the same processes has groups, which are used in a tenth of
     * the time. */
    bool has_offered_groups;
    /* Whether the last short and the last long one is to be by Treecast. */
    bool is_short_taken, is_long_taken;
};

static const struct scenario scenarios[] = {
    {"few broadcasts", 3000, 1, 1, 0, 1, false, false, false, false, false},
    {"few broadcasts, and groups of another communicator", 3000, 1, 1, 0, 1, false, false, true, true, false},
    {"slower", 200000, 300, 3000, 0, 1, false, false, false, false, false},
    {"faster", 200000, 50, 500, 0, 1, false, false, false, true, true},
    {"faster where long", 200000, 200, 500, 0, 1, false, false, false, false, true},
    {"a little faster", 200000, 97, 970, 0, 1, false, false, false, false, false},
    {"slower after a while", BROADCASTS_MAX, 50, 500, 300000, 1, false, false, false, false, false},
    {"no trials", 100000, 50, 500, 0, 0, false, false, false, false, false},
    {"no trials, but faster in an earlier run", 100000, 50, 500, 0, 0, true, false, false, true, true},
    {"faster, but refused", 200000, 50, 500, 0, 1, false, true, false, false, false},
};

struct mpi_library mpi;

static const struct scenario *scenario;
static struct settings values;
static pthread_barrier_t barrier;
static __thread int own_rank;
static const double *reduced[RANKS];
static int reduced_count[RANKS];
/* Each rank's ways. */
static unsigned char ways[RANKS][BROADCASTS_MAX];
static int failures;

const struct settings *settings(void)
{
    return &values;
}

void find_history(MPI_Comm comm, double us[CLASSES][WAYS])
{
    (void)comm;
    if (!scenario->has_history)
        return;
    us[class_of(BROADCAST, SHORT_BYTES)][BY_MPI] = 100, us[class_of(BROADCAST, SHORT_BYTES)][BY_TREECAST] = scenario->short_us;
    us[class_of(BROADCAST, LONG_BYTES)][BY_MPI] = 1000, us[class_of(BROADCAST, LONG_BYTES)][BY_TREECAST] = scenario->long_us;
}

bool are_groups_offered(MPI_Comm comm)
{
    (void)comm;
    return scenario->has_offered_groups;
}

void keep_history(MPI_Comm comm, int class, const double us[WAYS])
{
    (void)comm, (void)class, (void)us;
}

static int comm_rank(MPI_Comm comm, int *rank)
{
    (void)comm;
    *rank = own_rank;
    return MPI_SUCCESS;
}

static void expect(bool holds, const char *format, ...)
{
    va_list arguments;

    if (holds)
        return;
    failures++;
    va_start(arguments, format);
    printf("%s: ", scenario->name);
    vprintf(format, arguments);
    putchar('\n');
    va_end(arguments);
}

/* The maximum of doubles, which is all that a choice asks for; all ranks have to ask for the
 * same number of them. */
static int all_reduce(const void *own, void *all, int count, MPI_Datatype type, MPI_Op operation, MPI_Comm comm)
{
    double *to = all;
    int rank, i;

    (void)type, (void)operation, (void)comm;
    reduced[own_rank] = own;
    reduced_count[own_rank] = count;
    pthread_barrier_wait(&barrier);
    for (i = 0; i < count; i++)
        for (rank = 0, to[i] = reduced[0][i]; rank < RANKS; rank++)
            to[i] = reduced[rank][i] > to[i] ? reduced[rank][i] : to[i];
    expect(reduced_count[own_rank] == reduced_count[0], "ranks compare different numbers of values");
    pthread_barrier_wait(&barrier);
    return MPI_SUCCESS;
}

/* Numbers from 0 to 1, the same in each run. */
static double draw(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) / (double)(1 << 24);
}

static double duration_us(uint64_t bytes, enum way way, int number, unsigned *noise)
{
    bool is_slower = scenario->slower_from && number >= scenario->slower_from;
    double us = bytes == SHORT_BYTES ? 100 : 1000;

    if (way == BY_TREECAST)
        us = (bytes == SHORT_BYTES ? scenario->short_us : scenario->long_us) * (is_slower ? 6 : 1);
    return us * (0.98 + 0.02 * draw(noise));
}

static void *run_rank(void *argument)
{
    struct choice choice;
    unsigned noise = 1 + (unsigned)(own_rank = *(const int *)argument);
    double spent_us = 0, by_mpi_us = 0, set_up_us = scenario->has_offered_groups ? SET_UP_US / 10 : SET_UP_US;
    bool has_groups = false, is_chosen, is_given_up;
    int waiting = 0;
    bool is_taken[2] = {false}, was_unpaid = false;
    int number;

    begin_choice(&choice);
    for (number = 0; number < scenario->broadcasts; number++) {
        uint64_t bytes = number % 10 == 0 ? LONG_BYTES : SHORT_BYTES;
        double mpi_us = bytes == SHORT_BYTES ? 100 : 1000, us;
        int root = number % 100 == 57;
        enum outcome outcome;
        enum way way;

        outcome = choose(&choice, root, class_of(BROADCAST, bytes));
        is_chosen = outcome == TAKEN;
        was_unpaid |= outcome == UNPAID;
        expect(outcome != SLOWER || scenario->slower_from || scenario->short_us >= 97, "%d is said to be slower", number);
        way = is_chosen && !scenario->is_refused ? BY_TREECAST : BY_MPI;
        ways[own_rank][number] = (unsigned char)way;
        us = duration_us(bytes, way, number, &noise);
        if (way == BY_TREECAST && !has_groups)
            us += set_up_us;
        expect(way != BY_TREECAST || has_groups || scenario->has_history, "%d is tried before its groups are made", number);
        expect(outcome != UNMADE || is_trial_waiting(&choice), "%d is said to wait for groups", number);
        has_groups |= way == BY_TREECAST;
        spent_us += us;
        by_mpi_us += mpi_us;
        is_taken[bytes == LONG_BYTES] = is_chosen;
        if (note_call(&choice, MPI_COMM_WORLD, root, class_of(BROADCAST, bytes), bytes, way, us, &is_given_up) != MPI_SUCCESS)
            expect(false, "a comparison failed");
        has_groups &= !is_given_up;
        /* The groups are made meanwhile. */
        waiting = is_trial_waiting(&choice) ? waiting + 1 : 0;
        if (waiting > UNMADE_BROADCASTS) {
            spent_us += has_groups ? 0 : set_up_us;
            start_trial(&choice, has_groups ? 0 : set_up_us);
            has_groups = true;
        }
        if (!scenario->slower_from && !scenario->has_history)
            expect(spent_us <= 1.01 * by_mpi_us, "%d broadcasts took %.0f us, and by the MPI %.0f us", number, spent_us, by_mpi_us);
    }
    expect(was_unpaid == scenario->has_history, "what earlier runs have measured %s", was_unpaid ? "counts" : "does not count");
    expect(is_taken[0] == scenario->is_short_taken, "the last short broadcast was by %s", is_taken[0] ? "Treecast" : "the MPI");
    expect(is_taken[1] == scenario->is_long_taken, "the last long broadcast was by %s", is_taken[1] ? "Treecast" : "the MPI");
    return NULL;
}

int main(void)
{
    static const int ranks[RANKS] = {0, 1, 2, 3};
    pthread_t threads[RANKS];
    size_t i;
    int rank;

    mpi.Comm_rank = comm_rank;
    mpi.Allreduce = all_reduce;
    pthread_barrier_init(&barrier, NULL, RANKS);
    for (i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        scenario = &scenarios[i];
        values = (struct settings){.choice = CHOICE_MEASURE, .trial_percent = scenario->trial_percent, .node = "engine=user "};
        for (rank = 0; rank < RANKS; rank++)
            pthread_create(&threads[rank], NULL, run_rank, (void *)&ranks[rank]);
        for (rank = 0; rank < RANKS; rank++)
            pthread_join(threads[rank], NULL);
        for (rank = 1; rank < RANKS; rank++)
            expect(!memcmp(ways[rank], ways[0], (size_t)scenario->broadcasts), "rank %d chooses other ways", rank);
        printf("%s: %d failures\n", scenario->name, failures);
        if (failures)
            return 1;
    }
    return 0;
}
