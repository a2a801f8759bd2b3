#define _GNU_SOURCE

#include "settings.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static struct settings values = {.is_on = true, .trial_percent = 1, .bytes_max = UINT64_MAX, .roots = 32};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

/* All ranks have the same variables, so only the first rank, by the launcher's variables, reports
 * an invalid one. */
static bool is_first_rank(void)
{
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    size_t i = 0;

    while (i < sizeof ranks / sizeof *ranks && !variable(ranks[i]))
        i++;
    return i == sizeof ranks / sizeof *ranks || !strcmp(variable(ranks[i]), "0");
}

static void invalid(const char *name, const char *value, const char *expected)
{
    if (!is_first_rank())
        return;
    fprintf(stderr, "treecast: %s=%s is ignored: %s is expected\n", name, value, expected);
}

static void read_switch(const char *name, bool *setting)
{
    static const char *const on[] = {"1", "on", "yes", "true"}, *const off[] = {"0", "off", "no", "false"};
    const char *value = variable(name);
    size_t i;

    for (i = 0; value && i < sizeof on / sizeof *on; i++) {
        if (!strcasecmp(value, on[i])) {
            *setting = true;
            return;
        }
        if (!strcasecmp(value, off[i])) {
            *setting = false;
            return;
        }
    }
    if (value)
        invalid(name, value, "on or off");
}

static void read_choice(void)
{
    static const char *const names[] = {[CHOICE_MEASURE] = "measure", [CHOICE_ALWAYS] = "always", [CHOICE_NEVER] = "never"};
    const char *value = variable("TREECAST_MPI_CHOICE");
    size_t i;

    for (i = 0; value && i < sizeof names / sizeof *names; i++) {
        if (!strcasecmp(value, names[i])) {
            values.choice = (enum choice_setting)i;
            return;
        }
    }
    if (value)
        invalid("TREECAST_MPI_CHOICE", value, "measure, always or never");
}

static void read_trial_percent(void)
{
    const char *value = variable("TREECAST_MPI_TRIAL_PERCENT");
    double percent;
    char *end;

    if (!value)
        return;
    percent = strtod(value, &end);
    if (end == value || *end || !(percent >= 0 && percent <= 100))
        invalid("TREECAST_MPI_TRIAL_PERCENT", value, "a number from 0 to 100");
    else
        values.trial_percent = percent;
}

/* The file of the variable, or else one in the user's cache directory; none with `off`. */
static void read_history(void)
{
    const char *value = variable("TREECAST_MPI_HISTORY"), *cache = variable("XDG_CACHE_HOME"), *home = variable("HOME");
    size_t capacity = sizeof values.history;
    int length = 0;

    if (value && strcasecmp(value, "off") != 0)
        length = snprintf(values.history, capacity, "%s", value);
    else if (!value && cache)
        length = snprintf(values.history, capacity, "%s/treecast/mpi.tsv", cache);
    else if (!value && home)
        length = snprintf(values.history, capacity, "%s/.cache/treecast/mpi.tsv", home);
    if ((size_t)length >= capacity)
        values.history[0] = '\0';
}

/* A number with the suffix K, M or G, of powers of 1024. */
static void read_bytes(const char *name, uint64_t *setting)
{
    static const char suffixes[] = "KMG";
    const char *value = variable(name), *suffix;
    unsigned long long number;
    unsigned shift = 0;
    char *end;

    if (!value)
        return;
    errno = 0;
    number = strtoull(value, &end, 10);
    suffix = isalpha((unsigned char)*end) ? strchr(suffixes, toupper((unsigned char)*end)) : NULL;
    if (suffix) {
        shift = 10 * (unsigned)(suffix - suffixes + 1);
        end++;
    }
    if (errno || *value == '-' || end == value || *end || number > UINT64_MAX >> shift)
        invalid(name, value, "a number of bytes, such as 512 or 64K,");
    else
        *setting = number << shift;
}

static void read_roots(void)
{
    const char *value = variable("TREECAST_MPI_ROOTS");
    long roots;
    char *end;

    if (!value)
        return;
    roots = strtol(value, &end, 10);
    if (end == value || *end || roots < 1 || roots > ROOTS_MAX)
        invalid("TREECAST_MPI_ROOTS", value, "a number from 1 to 64");
    else
        values.roots = (int)roots;
}

/* Appends `key=value ` for a variable that is set. */
static void add(char *text, size_t capacity, const char *key, const char *name, const char *unset)
{
    const char *value = variable(name);
    size_t length = strlen(text);

    if (!value)
        value = unset;
    if (!value)
        return;
    if ((size_t)snprintf(text + length, capacity - length, "%s%s ", key, value) >= capacity - length) {
        text[length] = '\0';
        invalid(name, value, "a shorter text");
    }
}

/* A forked process has none of the threads, and communicators, nodes and groups that it inherits
 * are its parent's: destructors that free communicators, or finalize MPI, have no effect on
 * them. */
static void switch_off(void)
{
    values.is_on = false;
}

static void read_all(void)
{
    pthread_atfork(NULL, NULL, switch_off);
    read_switch("TREECAST_MPI", &values.is_on);
    read_switch("TREECAST_MPI_REPORT", &values.reports);
    read_choice();
    read_trial_percent();
    read_history();
    read_bytes("TREECAST_MPI_MIN_BYTES", &values.bytes_min);
    read_bytes("TREECAST_MPI_MAX_BYTES", &values.bytes_max);
    read_roots();
    values.interface = variable("TREECAST_MPI_INTERFACE");
    add(values.node, sizeof values.node, "engine=", "TREECAST_MPI_ENGINE", NULL);
    add(values.node, sizeof values.node, "spin_us=", "TREECAST_MPI_SPIN_US", "auto");
    /* A lost node ends the program. A silent rank need not be dead under MPI: a debugger may
     * have stopped it, and the launcher notices a dead rank at once. */
    add(values.node, sizeof values.node, "peer_timeout_ms=", "TREECAST_MPI_PEER_TIMEOUT_MS", "120000");
    add(values.node, sizeof values.node, "", "TREECAST_MPI_NODE", NULL);
    add(values.group, sizeof values.group, "scheme=", "TREECAST_MPI_SCHEME", NULL);
    add(values.group, sizeof values.group, "offload=", "TREECAST_MPI_OFFLOAD", NULL);
    add(values.group, sizeof values.group, "", "TREECAST_MPI_GROUP", NULL);
}

const struct settings *settings(void)
{
    pthread_once(&once, read_all);
    return &values;
}
