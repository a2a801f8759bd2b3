/* Which broadcasts are taken: those of lengths that were faster than the MPI's with the engine at hand. */

#ifndef TREECAST_MPI_CHOICE_H
#define TREECAST_MPI_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

/* The engines of a communicator's nodes. */
enum engine { ENGINE_USER, ENGINE_EBPF, ENGINES };

/* Whether a broadcast of `bytes` was faster with this engine. */
bool is_faster(enum engine engine, uint64_t bytes);

/* Whether it was faster with any engine that a node of this process may have. A communicator whose broadcasts were not
 * needs no node. */
bool may_be_faster(uint64_t bytes);

#endif
