/* What the files that define functions of MPI have in common. */

#ifndef TREECAST_MPI_INTERCEPT_H
#define TREECAST_MPI_INTERCEPT_H

#include <stdatomic.h>
#include <stdint.h>

#include "communicator.h"
#include "library.h"
#include "report.h"

/* A function under a name of MPI. Its C name differs, since mpi.h declares that with the types
 * of one interface. */
#define INTERCEPT(name) __asm__(#name) __attribute__((visibility("default")))

/* A handle of any MPI: a pointer in some interfaces, an int in others. If the process's MPI has
 * a different interface than this shim, handles are passed on unchanged; both kinds are passed
 * in a register, of which an int is the lower half. */
typedef uintptr_t handle;

/* The MPI's own function, by its profiling name. If the MPI lacks it, the process ends: the
 * program could call it only because this library defines it. */
#define PASS_TO(type, name) FOUND_ONCE(type, mpi_required(name))
#define FOUND_ONCE(type, find)                                                 \
    __extension__({                                                            \
        static _Atomic(type *) found;                                          \
        type *function = atomic_load_explicit(&found, memory_order_relaxed);   \
                                                                               \
        if (!function) {                                                       \
            function = (type *)(find);                                         \
            atomic_store_explicit(&found, function, memory_order_relaxed);     \
        }                                                                      \
        function;                                                              \
    })

/* Whether a broadcast may be taken at all. Each rank decides that by itself, and all get the
 * same result. */
enum outcome judge(MPI_Comm comm, int root, uint64_t bytes);

/* Whether a broadcast that is in no trial is taken, as far as its groups do not decide, and the
 * state of its communicator. All ranks get the same result. */
enum outcome judge_untried(MPI_Comm comm, int root, uint64_t bytes, struct communicator **found);

/* The bytes of data; 0 also if an argument is invalid. */
uint64_t bytes_of(MPI_Count count, MPI_Datatype type);

#endif
