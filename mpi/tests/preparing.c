/* Broadcasts while groups are made in the background, compared with the MPI's own:
 *
 *     TREECAST_MPI_TRIAL_PERCENT=100 treecast mpi -- mpirun -n 4 ./preparing freed
 *
 * The first argument is the part to run. The root comes late to each broadcast, so that the others
 * spend enough time in broadcasts for a trial after the first 512, and the groups are made from
 * then on. Each part ends with MPI_Finalize, after whatever it has left under way. */

#define _GNU_SOURCE

#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "finalize.h"

enum { BEFORE_TRIAL = 512, LATE_US = 300, BYTES = 700 };

static int world_rank, world_size;

/* How long this program's ranks take to open a node. */
static useconds_t opening_us;

typedef void *load(const char *file, int mode);

/* In front of the loader's own: the shim loads Treecast's library when it opens a node. */
void *dlopen(const char *file, int mode)
{
    load *next = (load *)dlsym(RTLD_NEXT, "dlopen");
    char path[4096];
    Dl_info shim;

    if (!file || strncmp(file, "libtreecast.so", 14) != 0 || !dladdr(__builtin_return_address(0), &shim))
        return next(file, mode);
    usleep(opening_us);
    /* The loader searches for it in the directory of the library that calls it. */
    snprintf(path, sizeof path, "%.*s/%s", (int)(strrchr(shim.dli_fname, '/') - shim.dli_fname), shim.dli_fname, file);
    return next(path, mode);
}

static void compare(MPI_Comm comm, int root, int number)
{
    unsigned char bytes[BYTES], expected[BYTES];
    int rank;

    MPI_Comm_rank(comm, &rank);
    if (rank == root)
        usleep(LATE_US);
    memset(bytes, rank == root ? number : ~number, BYTES);
    memset(expected, number, BYTES);
    MPI_Bcast(bytes, BYTES, MPI_BYTE, root, comm);
    if (memcmp(bytes, expected, BYTES) != 0) {
        fprintf(stderr, "rank %d: broadcast %d of root %d\n", rank, number, root);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void compare_all(MPI_Comm comm, int root, int count)
{
    int i;

    for (i = 0; i < count; i++)
        compare(comm, root, i);
}

/* Until Treecast has carried out some. */
static void whole(void)
{
    compare_all(MPI_COMM_WORLD, 0, 2500);
}

static void slow_node(void)
{
    opening_us = 1000000;
    compare_all(MPI_COMM_WORLD, 0, 12000);
}

/* Communicators that are freed in each step. */
static void freed(void)
{
    const int after[] = {0, 1, 7, 8, 9, 15, 16, 17, 23, 24, 25, 30, 49, 50, 51, 120, 400};
    size_t i;

    for (i = 0; i < sizeof after / sizeof *after; i++) {
        MPI_Comm comm;

        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        compare_all(comm, (int)i % world_size, BEFORE_TRIAL + after[i]);
        MPI_Comm_free(&comm);
    }
    whole();
}

/* As long as the node is opened, the communicator's and that of the program end. */
static void freed_with_node(void)
{
    MPI_Comm comm;

    opening_us = 300000;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    compare_all(comm, 0, BEFORE_TRIAL + 3);
    MPI_Comm_free(&comm);
    whole();
}

static void finalized_with_node(void)
{
    opening_us = 300000;
    compare_all(MPI_COMM_WORLD, 0, BEFORE_TRIAL + 3);
}

static void finalized_with_groups(void)
{
    MPI_Comm comm;

    whole();
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    compare_all(comm, world_size - 1, BEFORE_TRIAL + 12);
}

/* A rank stops, as by a debugger, for longer than members of groups have to answer, until a process
 * that it forks continues it. */
static void stop(int rank)
{
    enum { STOP_S = 12 };
    pid_t self = getpid();

    if (world_rank != rank)
        return;
    if (fork() == 0) {
        sleep(STOP_S);
        kill(self, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
}

static void stopped_with_node(void)
{
    opening_us = 300000;
    compare_all(MPI_COMM_WORLD, 0, BEFORE_TRIAL + 3);
    stop(world_size - 1);
    compare_all(MPI_COMM_WORLD, 0, 1000);
}

/* One communicator has its groups then, the ranks enter those of another, and the nodes of the
 * third answer its root. */
static void stopped_with_groups(void)
{
    const int root = world_size - 1;
    MPI_Comm entered, answered;

    whole();
    MPI_Comm_dup(MPI_COMM_WORLD, &entered);
    MPI_Comm_dup(MPI_COMM_WORLD, &answered);
    compare_all(answered, root, BEFORE_TRIAL + 17);
    compare_all(entered, root, BEFORE_TRIAL + 9);
    stop(0);
    compare_all(MPI_COMM_WORLD, 0, 1000);
    compare_all(entered, root, 1000);
    compare_all(answered, root, 1000);
    MPI_Comm_free(&entered);
    MPI_Comm_free(&answered);
}

/* The settings are read at the first broadcast. */
static void no_node(void)
{
    if (world_rank == world_size - 1)
        setenv("TREECAST_MPI_NODE", "nonsense=1", 1);
    whole();
}

static void no_interface(void)
{
    if (world_rank == world_size - 1)
        setenv("TREECAST_MPI_INTERFACE", "nonsense", 1);
    whole();
}

/* Other roots get groups after some broadcasts. */
static void roots(void)
{
    int i;

    whole();
    for (i = 0; i < 4000; i++)
        compare(MPI_COMM_WORLD, i % world_size, i);
}

/* Nonblocking broadcasts lack groups, which are then made for them. */
static void nonblocking(void)
{
    static unsigned char bytes[BYTES];
    int i;

    whole();
    for (i = 0; i < 2000; i++) {
        MPI_Request request;

        memset(bytes, world_rank == 1 ? i : ~i, BYTES);
        MPI_Ibcast(bytes, BYTES, MPI_BYTE, 1, MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (bytes[BYTES - 1] != (unsigned char)i)
            MPI_Abort(MPI_COMM_WORLD, 1);
        compare(MPI_COMM_WORLD, 0, i);
    }
}

enum { THREADS = 3 };

static MPI_Comm thread_comms[THREADS];

static void *run_thread(void *argument)
{
    MPI_Comm *comm = argument;
    int number = (int)(comm - thread_comms);

    compare_all(*comm, number % world_size, BEFORE_TRIAL + 5 + 6 * number);
    compare_all(*comm, number % world_size, number ? 1200 : 1);
    MPI_Comm_free(comm);
    return NULL;
}

static void threads(void)
{
    pthread_t started[THREADS];
    int i;

    for (i = 0; i < THREADS; i++)
        MPI_Comm_dup(MPI_COMM_WORLD, &thread_comms[i]);
    for (i = 0; i < THREADS; i++)
        pthread_create(&started[i], NULL, run_thread, &thread_comms[i]);
    for (i = 0; i < THREADS; i++)
        pthread_join(started[i], NULL);
}

static const struct {
    const char *name;
    void (*run)(void);
} parts[] = {
    {"whole", whole},
    {"slow-node", slow_node},
    {"freed", freed},
    {"freed-with-node", freed_with_node},
    {"finalized-with-node", finalized_with_node},
    {"finalized-with-groups", finalized_with_groups},
    {"stopped-with-node", stopped_with_node},
    {"stopped-with-groups", stopped_with_groups},
    {"no-node", no_node},
    {"no-interface", no_interface},
    {"roots", roots},
    {"nonblocking", nonblocking},
    {"threads", threads},
};

int main(int count, char *arguments[])
{
    int provided;
    size_t i;

    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    for (i = 0; i < sizeof parts / sizeof *parts; i++)
        if (count > 1 && !strcmp(parts[i].name, arguments[1]))
            parts[i].run();
    if (!world_rank)
        printf("%s: right\n", arguments[1]);
    fflush(stdout);
    finalize();
    return 0;
}
