/* How the elements of a datatype lie in memory. */

#ifndef TREECAST_MPI_DATATYPE_H
#define TREECAST_MPI_DATATYPE_H

#include <stdbool.h>

#include "library.h"

/* Whether elements of a type lie in memory as MPI packs them, one after another: a basic type
 * without gaps, or copies of one. A type of the right size may still have its parts in a
 * different order. */
bool is_dense(MPI_Datatype type);

#endif
