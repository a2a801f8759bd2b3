#include "channel_use.h"

#include <stdlib.h>

void begin_channel(struct channel *channel)
{
    pthread_condattr_t attributes;

    *channel = (struct channel){0};
    pthread_mutex_init(&channel->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&channel->change, &attributes);
    pthread_condattr_destroy(&attributes);
}

void end_channel(struct channel *channel)
{
    free(channel->packet);
    pthread_cond_destroy(&channel->change);
    pthread_mutex_destroy(&channel->lock);
}

void add_port(struct channel *channel, struct port *port, uint32_t number)
{
    pthread_mutex_lock(&channel->lock);
    *port = (struct port){.number = number, .next = channel->ports};
    channel->ports = port;
    pthread_mutex_unlock(&channel->lock);
}

void remove_port(struct channel *channel, struct port *port)
{
    struct port **place = &channel->ports;

    pthread_mutex_lock(&channel->lock);
    wait_while_busy(channel);
    drop_messages(channel, port);
    channel->wanting -= port->wants_turn;
    while (*place != port)
        place = &(*place)->next;
    *place = port->next;
    *port = (struct port){0};
    pthread_cond_broadcast(&channel->change);
    pthread_mutex_unlock(&channel->lock);
}

bool is_open(struct channel *channel)
{
    bool is;

    pthread_mutex_lock(&channel->lock);
    is = channel->group != NULL;
    pthread_mutex_unlock(&channel->lock);
    return is;
}

void abort_channel(struct channel *channel)
{
    pthread_mutex_lock(&channel->lock);
    wait_while_busy(channel);
    treecast.group_free(channel->group);
    channel->group = NULL;
    channel->owner = NULL;
    pthread_cond_broadcast(&channel->change);
    pthread_mutex_unlock(&channel->lock);
}
