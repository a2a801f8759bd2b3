/* The owner of a group: acquiring it for one packet and releasing it, waking user space, and the timer. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "flow.h"
#include "maps.h"

#define CLOCK_MONOTONIC 1

/* The number of attempts to acquire a group that the program owns on another processor. */
#define ACQUIRE_ATTEMPTS_MAX 8192

static __always_inline void count(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

static long try_to_acquire(__u32 attempt, void *context)
{
	struct group *group = *(struct group **)context;
	__u32 owner = __sync_val_compare_and_swap(&group->owner, OWNER_NONE, OWNER_PROGRAM);

	if (owner == OWNER_PROGRAM)
		return 0;
	*(__u64 *)(context + 8) = owner == OWNER_NONE;
	return 1;
}

/* Acquires a group that has no owner; spins while the program owns it on another processor. User space may own it for long, so that it
 * is not waited for. */
static __always_inline bool acquire(struct group *group)
{
	struct {
		struct group *group;
		__u64 is_acquired;
	} context = { group, 0 };

	if (__sync_val_compare_and_swap(&group->owner, OWNER_NONE, OWNER_PROGRAM) == OWNER_NONE)
		return true;
	bpf_loop(ACQUIRE_ATTEMPTS_MAX, try_to_acquire, &context, 0);
	return context.is_acquired;
}

/* The next owner sees all that was written before: atomic operations that return a value are full barriers. */
static __always_inline void release(struct group *group)
{
	__sync_lock_test_and_set(&group->owner, OWNER_NONE);
}

static __always_inline void publish(__u32 *number, __u32 value)
{
	__sync_lock_test_and_set(number, value);
}

/* Wakes user space. If the ring buffer is full, user space has been woken and has not read it yet. */
static __always_inline void wake_node(__u32 group, __u32 reason)
{
	struct wakeup wakeup = { group, reason };

	bpf_ringbuf_output(&WAKEUPS, &wakeup, sizeof(wakeup), BPF_RB_FORCE_WAKEUP);
}

struct timer_search {
	struct group *group;
	__u64 earliest;
};

static long check_child_timer(__u32 index, void *context)
{
	struct timer_search *search = context;
	__u64 at;

	if (index >= CHILDREN_MAX)
		return 1;
	at = child_timer(search->group, &search->group->children[index].state);
	if (at < search->earliest)
		search->earliest = at;
	return 0;
}

/* Finds out whether the timer of a child has expired, which the slow path handles: acknowledgments postpone timers. */
static int timer_expired(void *map, __u32 *index, struct timer *timer)
{
	struct group *group = bpf_map_lookup_elem(&GROUPS, index);
	struct timer_search search = { group, ~0ULL };
	__u64 now = clock(), wait = 0;

	if (!group)
		return 0;
	/* User space knows the timers of a group that it owns. */
	if (!acquire(group))
		return 0;
	if (group->flow.timer_at <= now) {
		bpf_loop(group->child_count, check_child_timer, &search, 0);
		if (search.earliest > now)
			group->flow.timer_at = search.earliest;
	}
	if (group->flow.timer_at > now)
		wait = group->flow.timer_at - now;
	group->timer_set_for = now + (wait ? wait : group->min_rto);
	release(group);
	if (wait)
		bpf_timer_start(&timer->timer, wait, 0);
	else
		wake_node(*index, WAKE_FOR_TIMER);
	return 0;
}

/* Sets the timer of a group that has just sent packets. The caller owns the group. */
static __always_inline void set_timer(struct group *group, __u32 index, __u64 now)
{
	__u64 wait = group->flow.timer_at > now ? group->flow.timer_at - now : 1;
	struct timer *timer;

	if (!group->child_count || (group->timer_set_for > now && group->timer_set_for <= now + wait))
		return;
	timer = bpf_map_lookup_elem(&TIMERS, &index);
	if (!timer)
		return;
	if (!timer->is_initialized) {
		bpf_timer_init(&timer->timer, &TIMERS, CLOCK_MONOTONIC);
		bpf_timer_set_callback(&timer->timer, timer_expired);
		timer->is_initialized = 1;
	}
	group->timer_set_for = bpf_timer_start(&timer->timer, wait, 0) ? 0 : now + wait;
}
