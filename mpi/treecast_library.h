/* Treecast's library, loaded when this process opens its node.
 *
 * The shim is preloaded into each process that a launcher or a job script starts, and most of them
 * open no node: shells, programs without MPI, and ranks that broadcast little. Loading the library
 * with them would take each about a millisecond. */

#ifndef TREECAST_MPI_TREECAST_LIBRARY_H
#define TREECAST_MPI_TREECAST_LIBRARY_H

#include <stdbool.h>

#include <treecast.h>

/* The functions that the shim calls, without their prefix. */
#define TREECAST_FUNCTIONS(DO)                                                                              \
    DO(error_message) DO(group_all_reduce) DO(group_check) DO(group_close) DO(group_flush) DO(group_free)   \
    DO(group_new) DO(group_offload_status) DO(group_packet_bytes) DO(group_receive_part)                    \
    DO(group_send_part) DO(group_wait_until_ready) DO(node_address) DO(node_engine) DO(node_free)           \
    DO(node_new)

struct treecast_library {
#define DECLARE(name) __typeof__(tc_##name) *name;
    TREECAST_FUNCTIONS(DECLARE)
#undef DECLARE
};

/* Its functions, after load_treecast(). */
extern struct treecast_library treecast;

/* Loads the library, unless it is loaded. False: it cannot be loaded, and then error_message says
 * why. Not called by two threads at a time. */
bool load_treecast(void);

#endif
