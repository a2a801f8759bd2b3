/* What trials have measured, kept in a file for later runs of the same MPI, ranks and engine (TREECAST_MPI_HISTORY). */

#ifndef TREECAST_MPI_HISTORY_H
#define TREECAST_MPI_HISTORY_H

#include "library.h"
#include "report.h"

/* Reads the times of earlier runs on communicators of as many ranks; 0 where there are none. */
void find_history(MPI_Comm comm, double us[CLASSES][WAYS]);

/* Keeps the times of a class, for save_history(). */
void keep_history(MPI_Comm comm, int class, const double us[WAYS]);

/* Adds what this process has kept to the file, which is replaced as a whole. */
void save_history(void);

#endif
