#include "choice.h"

#include <stddef.h>

#include "settings.h"

/* Lengths from `min` to `max` bytes. */
struct lengths {
    uint64_t min, max;
};

/* The lengths whose median last delivery was earlier than Open MPI 4.1's over TCP: docs/mpi.md, "Figures".
 * The user engine has none: an empty range. */
static const struct lengths FASTER[ENGINES] = {
    [ENGINE_USER] = {1, 0},
    [ENGINE_EBPF] = {16 << 10, 64 << 10},
};

bool is_faster(enum engine engine, uint64_t bytes)
{
    return (bytes >= FASTER[engine].min && bytes <= FASTER[engine].max) || settings()->takes_all_lengths;
}

bool may_be_faster(uint64_t bytes)
{
    return is_faster(ENGINE_USER, bytes) || is_faster(ENGINE_EBPF, bytes);
}
