/* Keeps the results of trials in a file, for later runs with the same MPI, number of ranks and
 * settings (TREECAST_MPI_HISTORY). */

#ifndef TREECAST_MPI_HISTORY_H
#define TREECAST_MPI_HISTORY_H

#include "class.h"
#include "library.h"
#include "report.h"

/* Reads the times of earlier runs on communicators with the same number of ranks; 0 if there are
 * none. */
void find_history(MPI_Comm comm, double us[CLASSES][WAYS]);

/* Keeps the times of a class until save_history(). */
void keep_history(MPI_Comm comm, int class, const double us[WAYS]);

/* Adds the kept times to the file, which is replaced as a whole. */
void save_history(void);

#endif
