/* The node of this process, which all its communicators use. */

#ifndef TREECAST_MPI_NODE_H
#define TREECAST_MPI_NODE_H

#include <stdbool.h>
#include <stdint.h>

#include <treecast.h>

/* The most addresses of a process that are considered. */
enum { CANDIDATES_MAX = 8, ADDRESS_BYTES = 64, SECRET_BYTES = 33, WHY_BYTES = 256 };

/* An address of an interface, and its network. */
struct candidate {
    /* 4 or 6; 0: none. */
    uint8_t version;
    uint8_t prefix_bits;
    uint8_t bytes[16];
};

/* What a rank tells the others before they open nodes. */
struct introduction {
    /* The same for processes of one user on one host: in one network namespace of one running
     * kernel. */
    char host[64];
    /* Addresses at which its node may listen. */
    struct candidate candidates[CANDIDATES_MAX];
    /* The name under which its open node is shared; empty: it has none. */
    char share[SECRET_BYTES];
    /* Random. */
    char secret[SECRET_BYTES];
    /* The settings that all ranks of a communicator have to have in common. */
    uint64_t bytes_min, bytes_max;
    uint32_t roots;
    /* Whether the groups of which it is the root are encrypted. */
    uint32_t is_encrypted;
};

void introduce(struct introduction *introduction);

/* What a rank tells the others of its open node. */
struct endpoint {
    /* Empty: it has none. */
    char address[ADDRESS_BYTES];
};

/* The number of ranks that the launcher started on this host; 0: unknown. */
int local_ranks(void);

/* Opens this process's node, unless it is open, at one of its addresses: one in a network that
 * all ranks are in, as far as there is one. `all` are the introductions of the ranks of a
 * communicator, in which this process has the number `rank`. Writes where the node is; false
 * after an error, which is written to `why`. It calls no function of the MPI, and may take
 * seconds. */
bool open_node(const struct introduction *all, int size, int rank, struct endpoint *endpoint, char why[WHY_BYTES]);

/* The node, after open_node(). */
const tc_node *opened_node(void);

/* Closes it, once it has no groups. */
void close_node(void);

#endif
