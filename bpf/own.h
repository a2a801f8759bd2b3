/* Whose a group is: taking it for a packet and giving it back, waking user space, and the timer. */
#pragma once

#define CLOCK_MONOTONIC 1

#define SPINS_MAX 8192

static __always_inline void count(__u64 *counter)
{
	__sync_fetch_and_add(counter, 1);
}

static long try_to_own(__u32 turn, void *context)
{
	struct group *group = *(struct group **)context;
	__u32 owner = __sync_val_compare_and_swap(&group->owner, OWNER_NOBODY, OWNER_PROGRAM);

	if (owner == OWNER_PROGRAM)
		return 0;
	*(__u64 *)(context + 8) = owner == OWNER_NOBODY;
	return 1;
}

/* Takes a group that nobody has; waits while another processor has it. User space may keep it for long, and is not waited for. */
static __always_inline bool own(struct group *group)
{
	struct {
		struct group *group;
		__u64 is_own;
	} context = { group, 0 };

	if (__sync_val_compare_and_swap(&group->owner, OWNER_NOBODY, OWNER_PROGRAM) == OWNER_NOBODY)
		return true;
	bpf_loop(SPINS_MAX, try_to_own, &context, 0);
	return context.is_own;
}

/* Everything done before is seen by whoever owns it next: atomic operations that give back a value order all others. */
static __always_inline void disown(struct group *group)
{
	__sync_lock_test_and_set(&group->owner, OWNER_NOBODY);
}

static __always_inline void publish(__u32 *number, __u32 value)
{
	__sync_lock_test_and_set(number, value);
}

/* Wakes the user-space half. A full bell has been rung. */
static __always_inline void ring(__u32 group, __u32 woken_by)
{
	struct ring note = { group, woken_by };

	bpf_ringbuf_output(&BELL, &note, sizeof(note), BPF_RB_FORCE_WAKEUP);
}

struct look {
	struct group *group;
	__u64 first;
};

static long look_after(__u32 place, void *context)
{
	struct look *look = context;
	__u64 at;

	if (place >= CHILDREN_MAX)
		return 1;
	at = deadline(look->group, &look->group->children[place]);
	if (at < look->first)
		look->first = at;
	return 0;
}

/* Looks whether a child is to be looked after, which user space does: deadlines move on while acknowledgments come. */
static int time_is_over(void *map, __u32 *place, struct timer *timer)
{
	struct group *group = bpf_map_lookup_elem(&GROUPS, place);
	struct look look = { group, ~0ULL };
	__u64 now = clock(), wait = 0;

	if (!group)
		return 0;
	/* User space knows what is awaited. */
	if (!own(group))
		return 0;
	if (group->look_at <= now) {
		bpf_loop(group->child_count, look_after, &look, 0);
		if (look.first > now)
			group->look_at = look.first;
	}
	if (group->look_at > now)
		wait = group->look_at - now;
	group->timed_at = now + (wait ? wait : group->min_rto);
	disown(group);
	if (wait)
		bpf_timer_start(&timer->timer, wait, 0);
	else
		ring(*place, WOKEN_BY_TIME);
	return 0;
}

/* Sees to it that the timer rings in time for a group which has just sent something. The caller owns the group. */
static __always_inline void set_timer(struct group *group, __u32 place, __u64 now)
{
	__u64 wait = group->look_at > now ? group->look_at - now : 1;
	struct timer *timer;

	if (!group->child_count || (group->timed_at > now && group->timed_at <= now + wait))
		return;
	timer = bpf_map_lookup_elem(&TIMERS, &place);
	if (!timer)
		return;
	if (!timer->is_made) {
		bpf_timer_init(&timer->timer, &TIMERS, CLOCK_MONOTONIC);
		bpf_timer_set_callback(&timer->timer, time_is_over);
		timer->is_made = 1;
	}
	group->timed_at = bpf_timer_start(&timer->timer, wait, 0) ? 0 : now + wait;
}
