/* What the two sides of a channel share, and the rest of the shim does not see: the use of its
 * group by one thread at a time, and the numbers before messages. */

#ifndef TREECAST_MPI_CHANNEL_USE_H
#define TREECAST_MPI_CHANNEL_USE_H

#include "channel.h"
#include "treecast_library.h"

/* The number of a message's communicator, before its data. */
enum { NUMBER_BYTES = sizeof(uint32_t) };

/* Returns TC_ENDED, with this as the thread's error. */
tc_result fail_in_channel(const char *what);

/* What channel_error() returns from now on is Treecast's error, at the start of a call. */
void forget_channel_error(void);

/* Waits for a change until a time, which returns false when it has passed. The lock is held, but
 * not meanwhile. */
bool wait_for_change(struct channel *channel, int64_t until_ms);

/* Waits until no thread is in a function of the group. The lock is held, but not meanwhile. */
void wait_while_busy(struct channel *channel);

/* Ends a thread's use of the group, which it began by setting `is_busy`. The lock is held again. */
void leave_group(struct channel *channel);

/* Allocates the memory for a packet, unless it has been before. Returns false without memory. */
bool has_packet_memory(struct channel *channel);

/* Messages begin with numbers from now on. */
tc_result begin_numbers(struct channel *channel);

/* At a member: drops what was received for a port that is removed, and what it lacks of its
 * message. The lock is held, and the channel is not busy. */
void drop_messages(struct channel *channel, struct port *port);

#endif
