#include "choice.h"

#include <stddef.h>

#include "settings.h"

/* Lengths from `min` to `max` bytes. */
struct lengths {
    uint64_t min, max;
};

enum { RANGES_MAX = 2 };

/* Where the median of the last delivery was earlier than with Open MPI 4.1 over TCP: docs/mpi.md, "Figures". */
static const struct lengths FASTER[ENGINES][RANGES_MAX] = {
    [ENGINE_USER] = {{32 << 10, 64 << 10}},
    [ENGINE_EBPF] = {{1, 256}, {32 << 10, 64 << 10}},
};

bool is_faster(enum engine engine, uint64_t bytes)
{
    size_t i;

    for (i = 0; i < RANGES_MAX; i++)
        if (bytes >= FASTER[engine][i].min && bytes <= FASTER[engine][i].max)
            return true;
    return settings()->takes_all_lengths;
}

bool may_be_faster(uint64_t bytes)
{
    return is_faster(ENGINE_USER, bytes) || is_faster(ENGINE_EBPF, bytes);
}
