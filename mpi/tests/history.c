/* The file of what was measured, which the processes of a program write at the same time. Prints
 * what does not hold, and then ends with status 1. */

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
    if (rmdir(directory) != 0)
        printf("more files than the history are left in %s\n", directory);
    printf("%d lines of %d are lost\n", lost, ROUNDS * PROCESSES);
    return lost != 0;
}
