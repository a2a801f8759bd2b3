/* Work of Treecast that runs in a thread of its own while the program goes on. It calls no function
 * of the MPI, which may not allow that to other threads than the program's. */

#ifndef TREECAST_MPI_TASK_H
#define TREECAST_MPI_TASK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct task {
    void (*run)(void *argument);
    void *argument;
    pthread_t thread;
    bool has_thread;
    _Atomic bool is_done;
    /* How long it has taken. */
    double us;
};

/* Starts a thread that gets no signals: the handlers of the program expect threads of the program.
 * Returns false if there is none. */
bool start_thread(pthread_t *thread, void *(*run)(void *argument), void *argument);

/* Starts a task in the background, or else carries it out at once. */
void start_task(struct task *task, bool is_in_background, void (*run)(void *argument), void *argument);

/* Whether a task that was started has ended. */
bool is_task_done(const struct task *task);

/* Waits until a task has ended, if one was started. */
void end_task(struct task *task);

#endif
