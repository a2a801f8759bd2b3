/* Ranks that stop, compute for long, abort, fork, and are killed. */

#define _GNU_SOURCE

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broadcasts.h"
#include "finalize.h"

/* This rank stops, as by a debugger, until a process that it forks continues it. */
static void stop(int seconds)
{
    pid_t self = getpid();

    if (fork() == 0) {
        sleep((unsigned)seconds);
        kill(self, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
}

/* Computes, and calls no function of the MPI but its clock. */
static void compute(int seconds)
{
    double until_s = MPI_Wtime() + seconds;

    while (MPI_Wtime() < until_s)
        continue;
}

/* First a member, then the root is away for these seconds. Nothing is lost. */
static void broadcast_around(void (*go_away)(int seconds), int seconds)
{
    enum { ROUNDS = 400 };
    char bytes[3000];
    int round;

    /* A rank that is away while groups are made only makes the others pass on to the MPI. */
    MPI_Barrier(MPI_COMM_WORLD);
    for (round = 0; round < ROUNDS; round++) {
        if (round == 200)
            MPI_Barrier(MPI_COMM_WORLD);
        if ((round == 100 && world_rank == 1) || (round == 300 && world_rank == 0))
            go_away(seconds);
        memset(bytes, world_rank ? 0 : round, sizeof bytes);
        MPI_Bcast(bytes, sizeof bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
        expect(bytes[0] == (char)round && bytes[sizeof bytes - 1] == (char)round, "a broadcast around a pause");
    }
    broadcasts += ROUNDS;
}

void stopped(void)
{
    broadcast_around(stop, 3);
}

void stopped_for_a_minute(void)
{
    broadcast_around(stop, 60);
}

void computing_for_a_minute(void)
{
    broadcast_around(compute, 60);
}

/* A rank is stopped before it has the last broadcasts, while the root frees the communicator. */
void stopped_at_the_end(void)
{
    enum { ROUNDS = 20 };
    int round, value;
    MPI_Comm comm;

    MPI_Comm_split(MPI_COMM_WORLD, 0, world_rank, &comm);
    for (round = 0; round < ROUNDS; round++) {
        value = world_rank ? -1 : round;
        if (round == ROUNDS / 2 && world_rank == 1)
            stop(10);
        MPI_Bcast(&value, 1, MPI_INT, 0, comm);
        expect(value == round, "a broadcast before its communicator is freed");
    }
    MPI_Comm_free(&comm);
    broadcasts += ROUNDS;
}

/* A rank ends the program while the others broadcast. */
void aborts(void)
{
    int round, value = 0;

    for (round = 0; round < 1000000; round++) {
        if (round == 100 && world_rank == world_size - 1)
            MPI_Abort(MPI_COMM_WORLD, 7);
        MPI_Bcast(&value, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
}

/* A communicator whose groups are the parent's. */
static MPI_Comm of_parent;

/* What destructors of a program do. */
static void free_of_parent(void)
{
    MPI_Comm_free(&of_parent);
}

/* Starts a process that ends in one of several ways, all of which have to end with status 0. */
static pid_t start_child(int round)
{
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child != 0)
        return child;
    alarm(20);
    switch (round % 4) {
    case 0:
        exit(0);
    case 1:
        _exit(0);
    case 2:
        execlp("sh", "sh", "-c", "exit 0", (char *)NULL);
        _exit(1);
    default:
        atexit(free_of_parent);
        exit(0);
    }
}

/* All ranks fork again and again, in the middle of broadcasts, reduces and barriers. */
void forks(void)
{
    enum { ROUNDS = 80 };
    long value, sum;
    pid_t late;
    int round, status;

    MPI_Comm_dup(MPI_COMM_WORLD, &of_parent);
    fflush(NULL);
    /* Outlives the broadcasts, and ends as the program does: by exit(). */
    late = fork();
    if (late == 0) {
        sleep(3);
        exit(0);
    }
    for (round = 0; round < ROUNDS; round++) {
        int root = round % world_size;
        pid_t child;

        value = world_rank == root ? round : -1;
        MPI_Bcast(&value, 1, MPI_LONG, root, round % 2 ? of_parent : MPI_COMM_WORLD);
        expect(value == round, "a broadcast before a fork");
        child = start_child(round / world_size);
        MPI_Allreduce(&value, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        expect(sum == (long)round * world_size, "a reduce after a fork");
        expect(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child");
        if (round % 10 == 0)
            expect(system("exit 3") == 3 << 8, "system()");
        broadcasts++;
    }
    expect(waitpid(late, &status, 0) == late && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the last child");
    value = world_rank ? -1 : 1;
    MPI_Bcast(&value, 1, MPI_LONG, 0, of_parent);
    expect(value == 1, "a broadcast after all forks");
    MPI_Comm_free(&of_parent);
}

/* The last rank is killed, and the launcher goes on: each of the others has an error. */
static void kill_last_rank(int (*call)(int *value))
{
    enum { ROUNDS = 100 };
    int round, root, length, value = 1, error = MPI_SUCCESS;
    char text[MPI_MAX_ERROR_STRING];
    double since_s;

    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (root = 0; root < world_size; root++)
        MPI_Bcast(&value, 1, MPI_INT, root, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (world_rank == world_size - 1)
        raise(SIGKILL);
    since_s = MPI_Wtime();
    for (round = 0; round < ROUNDS && error == MPI_SUCCESS; round++) {
        pause_us(100000);
        error = call(&value);
    }
    MPI_Error_string(error, text, &length);
    fprintf(stderr, "rank %d: a call has failed after %.1f s: %s\n", world_rank, MPI_Wtime() - since_s, text);
    pause_us(4000000);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Only the roots call these, and do not wait for each other. */
static int broadcast_own(int *value)
{
    return MPI_Bcast(value, 1, MPI_INT, world_rank, MPI_COMM_WORLD);
}

static int broadcast_of_killed(int *value)
{
    return MPI_Bcast(value, 1, MPI_INT, world_size - 1, MPI_COMM_WORLD);
}

static int reduce(int *value)
{
    int sum;

    return MPI_Allreduce(value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

void killed_without_end(void)
{
    kill_last_rank(broadcast_own);
}

void killed_root(void)
{
    kill_last_rank(broadcast_of_killed);
}

void killed_in_reduces(void)
{
    kill_last_rank(reduce);
}

/* A rank is killed, and the launcher ends the program. */
void killed_at_once(void)
{
    int round, value = 0;

    for (round = 0; round < 1000000; round++) {
        if (round == 100 && world_rank == world_size - 1)
            raise(SIGKILL);
        MPI_Bcast(&value, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
}

/* Destructors of a program call MPI_Finalize, when the variables of the thread are gone. */
void finalize_at_exit(void)
{
    long value = world_rank ? -1 : 1;

    MPI_Bcast(&value, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    expect(value == 1, "a broadcast before the end");
    if (!world_rank)
        printf("finalize-at-exit: 1 broadcasts\n");
    atexit(finalize);
    exit(0);
}
