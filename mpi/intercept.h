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

/* The same for a function for large counts, which the MPI may lack although the program has found
 * that of this library and calls it, as mpi4py does. Then the function for small counts is
 * called. */
#define PASS_LARGE(large, small, name, large_arguments, small_arguments) \
    (HAS("PMPI_" name "_c") ? PASS_TO(large, "PMPI_" name "_c") large_arguments : PASS_TO(small, "PMPI_" name) small_arguments)
#define HAS(name)                                                              \
    __extension__({                                                            \
        static _Atomic int has;                                                \
        int known = atomic_load_explicit(&has, memory_order_relaxed);          \
                                                                               \
        if (!known) {                                                          \
            known = mpi_symbol(name) ? 1 : -1;                                 \
            atomic_store_explicit(&has, known, memory_order_relaxed);          \
        }                                                                      \
        known > 0;                                                             \
    })

/* A count for that function. The MPI refuses -1 by the communicator's error handler. */
static inline int small_count(MPI_Count count)
{
    return count == (int)count ? (int)count : -1;
}

/* Whether a broadcast that is in no trial is taken, as far as its groups do not decide, and the
 * state of its communicator. All ranks get the same result. */
enum outcome judge_untried(MPI_Comm comm, int root, uint64_t bytes, struct communicator **found);

/* The bytes of data; 0 also if an argument is invalid. */
uint64_t bytes_of(MPI_Count count, MPI_Datatype type);

#ifdef OPEN_MPI
/* What functions of Fortran are given. MPI_BOTTOM and MPI_IN_PLACE are variables there. */
typedef void *of_fortran_function(MPI_Fint number);
#define TYPE_IN_C(number) ((handle)PASS_TO(of_fortran_function, "PMPI_Type_f2c")(number))
#define OP_IN_C(number) ((handle)PASS_TO(of_fortran_function, "PMPI_Op_f2c")(number))
#define COMM_IN_C(number) ((handle)PASS_TO(of_fortran_function, "PMPI_Comm_f2c")(number))
#define INFO_IN_C(number) ((handle)PASS_TO(of_fortran_function, "PMPI_Info_f2c")(number))
#define REQUEST_IN_C(number) ((handle)PASS_TO(of_fortran_function, "PMPI_Request_f2c")(number))
void *as_in_c(const void *address);

/* Handles that functions of Fortran return. */
typedef MPI_Fint in_fortran_function(MPI_Request request);
#define REQUEST_IN_FORTRAN(request) PASS_TO(in_fortran_function, "PMPI_Request_c2f")(request)

/* The names that Fortran compilers make of a function, and that by which the module mpi_f08
 * calls it. */
#define FORTRAN_NAME(function, name) \
    extern __typeof__(function) fortran_##name __asm__(#name) __attribute__((alias(#function), visibility("default")));
#define FORTRAN_NAMES(function, lower, UPPER)                                                                        \
    FORTRAN_NAME(function, mpi_##lower)                                                                              \
    FORTRAN_NAME(function, mpi_##lower##_)                                                                           \
    FORTRAN_NAME(function, mpi_##lower##__)                                                                          \
    FORTRAN_NAME(function, MPI_##UPPER)                                                                              \
    FORTRAN_NAME(function, ompi_##lower##_f)
#endif

#endif
