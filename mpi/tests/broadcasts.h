/* What the parts of the program have in common. */

#ifndef TREECAST_MPI_TESTS_BROADCASTS_H
#define TREECAST_MPI_TESTS_BROADCASTS_H

#include <stdbool.h>

extern int world_rank, world_size;
/* The broadcasts of the part that runs. */
extern long broadcasts;

/* Ends the program if something is wrong. */
void expect(bool is_right, const char *what);

void pause_us(long us);

/* The parts of nonblocking.c. */
void nonblocking(void);
void completions(void);
void shapes(void);
void pending(void);
void other_lengths(void);
void waits_elsewhere(void);
void nonblocking_threads(void);
void killed_in_nonblocking(void);

/* The parts of persistent.c. */
void persistent(void);
void persistent_ends(void);

#endif
