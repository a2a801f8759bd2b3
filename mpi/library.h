/* The MPI library of the process, found at run time.
 *
 * The shim is preloaded into each process that a launcher starts, also into shells and Python,
 * which have no MPI or load it later. So it links with no MPI library and refers to none of its
 * symbols: it looks them up in the library that the process has loaded by the time that the
 * process calls MPI. The headers of an MPI say only what its functions and constants look like. */

#ifndef TREECAST_MPI_LIBRARY_H
#define TREECAST_MPI_LIBRARY_H

#include <stdbool.h>

#include <mpi.h>

/* The header of the standard ABI lacks Fortran's integer. */
#ifdef MPI_ABI_VERSION
typedef int MPI_Fint;
#endif

/* The functions that the shim calls, all by their profiling names (PMPI_). */
#define MPI_FUNCTIONS(DO)                                                                                       \
    DO(Add_error_class) DO(Add_error_code) DO(Add_error_string) DO(Allgather) DO(Allreduce)                    \
    DO(Barrier) DO(Bcast) DO(Comm_call_errhandler) DO(Comm_create) DO(Comm_create_keyval)                      \
    DO(Comm_free) DO(Comm_get_attr) DO(Comm_get_name) DO(Comm_group) DO(Comm_rank) DO(Comm_set_attr)           \
    DO(Comm_set_errhandler) DO(Comm_size) DO(Comm_test_inter) DO(Get_library_version) DO(Grequest_complete)              \
    DO(Grequest_start) DO(Group_compare) DO(Group_free) DO(Iprobe) DO(Pack) DO(Request_free) DO(Send_init) DO(Status_set_cancelled) DO(Status_set_elements)     \
    DO(Type_dup) DO(Type_free) DO(Type_get_contents) DO(Type_get_envelope) DO(Type_get_extent_x)                            \
    DO(Type_get_true_extent_x) DO(Type_size_x) DO(Unpack)

/* Those of version 4.0 of the standard, which an MPI that the shim runs with may lack: NULL
 * then. */
#if MPI_VERSION >= 4
#define MPI_FUNCTIONS_OF_4(DO) DO(Type_get_contents_c) DO(Type_get_envelope_c)
#else
#define MPI_FUNCTIONS_OF_4(DO)
#endif

/* Open MPI's constants are the addresses of variables. */
#ifdef OPEN_MPI
#define MPI_VARIABLES(DO)                                                                                           \
    DO(ompi_mpi_comm_null) DO(ompi_mpi_comm_world) DO(ompi_mpi_errors_return) DO(ompi_request_null)                 \
    DO(ompi_mpi_datatype_null) DO(ompi_mpi_byte) DO(ompi_mpi_int) DO(ompi_mpi_long) DO(ompi_mpi_long_long_int)      \
    DO(ompi_mpi_int32_t) DO(ompi_mpi_int64_t) DO(ompi_mpi_aint) DO(ompi_mpi_count) DO(ompi_mpi_offset)              \
    DO(ompi_mpi_integer) DO(ompi_mpi_integer4) DO(ompi_mpi_integer8) DO(ompi_mpi_unsigned)                          \
    DO(ompi_mpi_unsigned_long) DO(ompi_mpi_unsigned_long_long) DO(ompi_mpi_uint32_t) DO(ompi_mpi_uint64_t)          \
    DO(ompi_mpi_float) DO(ompi_mpi_double) DO(ompi_mpi_real) DO(ompi_mpi_real4) DO(ompi_mpi_real8)                  \
    DO(ompi_mpi_dblprec) DO(ompi_mpi_op_sum) DO(ompi_mpi_op_prod) DO(ompi_mpi_op_min) DO(ompi_mpi_op_max)           \
    DO(ompi_mpi_op_band) DO(ompi_mpi_op_bor) DO(ompi_mpi_op_bxor)
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, global) ((type)mpi.global)
#else
#define MPI_VARIABLES(DO)
#endif

struct mpi_library {
#define DECLARE(name) __typeof__(MPI_##name) *name;
    MPI_FUNCTIONS(DECLARE)
    MPI_FUNCTIONS_OF_4(DECLARE)
#undef DECLARE
#define DECLARE(name) void *name;
    MPI_VARIABLES(DECLARE)
#undef DECLARE
};

/* Valid once mpi_find() has returned true. */
extern struct mpi_library mpi;

/* Finds the functions; false where the process's MPI has another binary interface than this shim
 * was compiled for. Then nothing but mpi_symbol() and mpi_required() work. Ends the process
 * where it has no MPI library. */
bool mpi_find(void);

/* A function of the process's MPI library, of whatever interface, by its name. */
void *mpi_symbol(const char *name);

/* The function of this name that this library hides from the program. */
void *mpi_next(const char *name);

/* The same as mpi_symbol(), but ends the process with a message where the library has no such
 * function. */
void *mpi_required(const char *name);

#endif
