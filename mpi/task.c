#define _GNU_SOURCE

#include "task.h"

#include <signal.h>

#include "clock.h"

bool start_thread(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
    sigset_t all, before;
    bool is_started;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    is_started = pthread_create(thread, NULL, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return is_started;
}

static void *carry_out(void *argument)
{
    struct task *task = argument;
    double since_us = now_us();

    task->run(task->argument);
    task->us = now_us() - since_us;
    atomic_store_explicit(&task->is_done, true, memory_order_release);
    return NULL;
}

void start_task(struct task *task, bool is_in_background, void (*run)(void *argument), void *argument)
{
    task->run = run;
    task->argument = argument;
    atomic_store(&task->is_done, false);
    task->has_thread = is_in_background && start_thread(&task->thread, carry_out, task);
    if (!task->has_thread)
        carry_out(task);
}

bool is_task_done(const struct task *task)
{
    return atomic_load_explicit(&task->is_done, memory_order_acquire);
}

void end_task(struct task *task)
{
    if (task->has_thread)
        pthread_join(task->thread, NULL);
    task->has_thread = false;
}
