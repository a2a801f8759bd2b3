/* The file of what was measured, which the processes of a program write at the same time. Prints
 * what does not hold, and then ends with status 1. Damaged lines do not count. */

#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../history.h"
#include "../node.h"
#include "../settings.h"

enum { PROCESSES = 8, ROUNDS = 20 };

struct mpi_library mpi;

static struct settings values = {.reports = true};

const struct settings *settings(void)
{
    return &values;
}

int local_ranks(void)
{
    return 1;
}

static int version(char *text, int *length)
{
    *length = snprintf(text, 16, "An MPI");
    return MPI_SUCCESS;
}

static int size(MPI_Comm comm, int *ranks)
{
    (void)comm;
    *ranks = 4;
    return MPI_SUCCESS;
}

/* Each process keeps the times of another class. */
static void write_all(void)
{
    int process;

    for (process = 0; process < PROCESSES; process++) {
        const double us[WAYS] = {process + 1, process + 2};

        if (fork())
            continue;
        keep_history(MPI_COMM_WORLD, class_of(BROADCAST, 1ull << process), us);
        save_history();
        _exit(0);
    }
    while (wait(NULL) > 0)
        continue;
}

/* Whether lines that were damaged count. */
static bool are_damaged_lines_read(void)
{
    static const char *const times[] = {"nan\t5", "5\tinf", "5", "five\tsix", ""};
    char line[512] = "";
    bool are_read = false;
    size_t i;
    FILE *file;

    write_all();
    file = fopen(values.history, "r");
    while (file && fgets(line, sizeof line, file) && (*line == '#' || !strstr(line, "\t1\t1\t2\n")))
        continue;
    if (file)
        fclose(file);
    for (i = 0; i < sizeof times / sizeof *times; i++) {
        double found[CLASSES][WAYS] = {{0}};

        file = fopen(values.history, "w");
        fprintf(file, "%.*s%s\n", (int)(strlen(line) - strlen("1\t2\n")), line, times[i]);
        fclose(file);
        find_history(MPI_COMM_WORLD, found);
        are_read |= memcmp(found[class_of(BROADCAST, 1)], (double[WAYS]){0}, sizeof(double[WAYS])) != 0;
    }
    unlink(values.history);
    return are_read || !*line;
}

int main(void)
{
    char directory[] = "/tmp/treecast-history-XXXXXX";
    int round, process, lost = 0;

    mpi.Get_library_version = version;
    mpi.Comm_size = size;
    if (!mkdtemp(directory))
        return 1;
    snprintf(values.history, sizeof values.history, "%s/mpi.tsv", directory);
    for (round = 0; round < ROUNDS; round++) {
        double us[CLASSES][WAYS] = {{0}};

        write_all();
        find_history(MPI_COMM_WORLD, us);
        for (process = 0; process < PROCESSES; process++)
            lost += us[class_of(BROADCAST, 1ull << process)][BY_TREECAST] != process + 2;
        unlink(values.history);
    }
    if (are_damaged_lines_read()) {
        printf("damaged lines are read\n");
        lost++;
    }
    if (rmdir(directory) != 0)
        printf("more files than the history are left in %s\n", directory);
    printf("%d lines of %d are lost\n", lost, ROUNDS * PROCESSES);
    return lost != 0;
}
