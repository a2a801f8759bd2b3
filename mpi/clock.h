/* The clock by which the shim measures times and bounds its waits. */

#ifndef TREECAST_MPI_CLOCK_H
#define TREECAST_MPI_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline double now_us(void)
{
    return (double)now_ns() / 1e3;
}

static inline int64_t now_ms(void)
{
    return now_ns() / 1000000;
}

#endif
