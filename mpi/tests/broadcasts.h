/* What the parts of the program have in common. */

#ifndef TREECAST_MPI_TESTS_BROADCASTS_H
#define TREECAST_MPI_TESTS_BROADCASTS_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

extern int world_rank, world_size;
/* The broadcasts of the part that runs. */
extern long broadcasts;

/* Ends the program if something is wrong. */
void expect(bool is_right, const char *what);

void pause_us(long us);

/* The bytes that no broadcast may write. */
enum { GAP = 0xa5 };

/* The memory that `count` elements of a type cover, with a margin. */
struct memory {
    char *bytes, *origin;
    size_t length;
};

struct memory allocate_memory(MPI_Datatype type, int count);

/* Fills it with numbers at the root, and with gaps elsewhere. */
void fill_memory(struct memory memory, int root, int rank, unsigned seed);

/* The parts of types.c. */
void broadcasts_of_basic_types(void);
void broadcasts_of_derived_types(void);
void broadcasts_of_mixed_types(void);
void broadcasts_of_all_sizes(void);

/* The parts of nonblocking.c. */
void nonblocking(void);
void completions(void);
void shapes(void);
void pending(void);
void other_lengths(void);
void waits_elsewhere(void);
void nonblocking_threads(void);
void killed_in_nonblocking(void);

/* The parts of duplicates.c. */
void duplicates(void);
void many_duplicates(void);
void duplicates_of_other_bytes(void);
void duplicates_of_threads(void);
void duplicates_of_requests(void);
void pending_duplicates(void);

/* The parts of persistent.c. */
void persistent(void);
void persistent_ends(void);

/* The parts of gathers.c. */
void gathers(void);
void wrong_blocks(void);

/* The parts of reduces.c. */
void reduces(void);
void killed_in_values(void);

/* The parts of processes.c. */
void stopped(void);
void stopped_at_the_end(void);
void stopped_for_a_minute(void);
void computing_for_a_minute(void);
void aborts(void);
void forks(void);
void killed_at_once(void);
void killed_without_end(void);
void killed_root(void);
void killed_in_reduces(void);
void finalize_at_exit(void);

#endif
