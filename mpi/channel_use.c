#include "channel_use.h"

#include <errno.h>
#include <stdlib.h>

#include "packing.h"

/* The error of this thread's last call; NULL: that of Treecast. */
static __thread const char *failure;

const char *channel_error(void)
{
    return failure ? failure : treecast.error_message();
}

tc_result fail_in_channel(const char *what)
{
    failure = what;
    return TC_ENDED;
}

void forget_channel_error(void)
{
    failure = NULL;
}

bool wait_for_change(struct channel *channel, int64_t until_ms)
{
    struct timespec until = {until_ms / 1000, until_ms % 1000 * 1000000};

    return pthread_cond_timedwait(&channel->change, &channel->lock, &until) != ETIMEDOUT;
}

void wait_while_busy(struct channel *channel)
{
    while (channel->is_busy)
        pthread_cond_wait(&channel->change, &channel->lock);
}

void leave_group(struct channel *channel)
{
    channel->is_busy = false;
    pthread_cond_broadcast(&channel->change);
}

bool has_packet_memory(struct channel *channel)
{
    if (!channel->packet)
        channel->packet = malloc(PACKET_BYTES_MAX);
    return channel->packet != NULL;
}

tc_result begin_numbers(struct channel *channel)
{
    channel->is_numbered = true;
    return treecast.group_packet_bytes(channel->group, &channel->packet_bytes);
}
