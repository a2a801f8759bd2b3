/* The collectives that are taken, and the classes of lengths that are measured apart. */

#ifndef TREECAST_MPI_CLASS_H
#define TREECAST_MPI_CLASS_H

#include <stdint.h>

enum collective { BROADCAST, ALLGATHER, REDUCE, ALLREDUCE, BARRIER, COLLECTIVES };

/* A class has the lengths with the same highest bit, of one collective. Those of broadcasts come
 * first. The other collectives are taken up to VALUES_BYTES_MAX (transfer.h). */
enum { BROADCAST_CLASSES = 40, SHORT_CLASSES = 9, CLASSES = BROADCAST_CLASSES + (COLLECTIVES - 1) * SHORT_CLASSES };

static inline int class_of(enum collective collective, uint64_t bytes)
{
    int bit = 63 - __builtin_clzll(bytes | 1), count = collective == BROADCAST ? BROADCAST_CLASSES : SHORT_CLASSES;
    int first = collective == BROADCAST ? 0 : BROADCAST_CLASSES + ((int)collective - 1) * SHORT_CLASSES;

    return first + (bit < count ? bit : count - 1);
}

static inline enum collective collective_of(int class)
{
    return class < BROADCAST_CLASSES ? BROADCAST : (enum collective)(1 + (class - BROADCAST_CLASSES) / SHORT_CLASSES);
}

/* The least bytes of a class. */
static inline unsigned long long bytes_from(int class)
{
    return 1ull << (class < BROADCAST_CLASSES ? class : (class - BROADCAST_CLASSES) % SHORT_CLASSES);
}

/* The name of one. */
static inline const char *name_of(enum collective collective)
{
    static const char *const names[COLLECTIVES] = {
        [BROADCAST] = "broadcast", [ALLGATHER] = "allgather", [REDUCE] = "reduce", [ALLREDUCE] = "allreduce", [BARRIER] = "barrier"};

    return names[collective];
}

#endif
