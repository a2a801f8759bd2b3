/* MPI_Finalize with a bound of its time, for programs of several files. */

#ifndef TREECAST_MPI_TESTS_FINALIZE_H
#define TREECAST_MPI_TESTS_FINALIZE_H

void finalize(void);

#endif
