/* The clock by which the shim bounds its waits. */

#ifndef TREECAST_MPI_CLOCK_H
#define TREECAST_MPI_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif
