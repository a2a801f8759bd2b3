/* Measures MPI_Bcast, MPI_Allreduce and MPI_Barrier as `treecast bench` measures its own
 * operations.
 *
 * Arguments: the length of a message in bytes, the number of messages, the number of messages
 * before the first measurement, "barrier", "stream" or "period", and the operation: "broadcast",
 * "all-reduce" of doubles, or "barrier". Calls of an all-reduce or a barrier follow each other at
 * once. With "period" one message is sent per period, whose length in ns is the next argument; the
 * last one is a file with how late each rank enters each call, in ns: 64-bit numbers, rank by rank.
 * Late ranks sleep. Rank 0 writes one JSON array to standard output, with an object for each
 * rank. */
#define _GNU_SOURCE

#include <inttypes.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#ifdef MPICH_NUMVERSION
/* MPICH's ranks poll their connections without a pause while they wait, and the hosts of a lab
 * share processors: here they yield, as those of Open MPI do by an option. */
int epoll_wait(int fd, struct epoll_event *events, int count, int timeout_ms)
{
	int ready = epoll_pwait(fd, events, count, timeout_ms, NULL);

	if (!ready && !timeout_ms)
		sched_yield();
	return ready;
}
#endif

static int64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void fail(const char *why)
{
	fprintf(stderr, "%s\n", why);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *allocate(size_t bytes)
{
	void *memory = malloc(bytes ? bytes : 1);

	if (!memory)
		fail("no memory");
	return memory;
}

/* How long it takes at most until all ranks know when the first period begins. */
static const int64_t first_period_ns = 50000000;

/* Reads how late this rank enters each call. */
static void read_delays(const char *path, int rank, int64_t *delays, int count)
{
	FILE *file = fopen(path, "rb");

	if (!file || fseek(file, (long)sizeof(int64_t) * rank * count, SEEK_SET) ||
	    fread(delays, sizeof(int64_t), count, file) != (size_t)count)
		fail("cannot read the delays");
	fclose(file);
}

static void sleep_until(int64_t ns)
{
	struct timespec until = { ns / INT64_C(1000000000), ns % INT64_C(1000000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL))
		;
}

/* Writes a field of the object of a rank. */
static void write_times(const char *name, const int64_t *times, int count)
{
	printf("\"%s\":[", name);
	for (int index = 0; index < count; index++)
		printf("%s%" PRId64, index ? "," : "", times[index]);
	printf("],");
}

#if defined MPICH_NUMVERSION && MPICH_NUMVERSION < 40200000
/* Debian's MPICH 4.0 often hangs in MPI_Finalize (docs/mpi.md), so ranks end without it. The
 * barrier is the MPI's own: behind one of the shim, a rank could end before its node has passed the
 * result on. Hydra ends all ranks where one has not said that it finalizes. */
static void end_without_finalize(void)
{
	static const char finalize[] = "cmd=finalize\n";
	const char *pmi = getenv("PMI_FD");
	char answer[64];

	fflush(stdout);
	PMPI_Barrier(MPI_COMM_WORLD);
	if (pmi && (write(atoi(pmi), finalize, sizeof(finalize) - 1) < 0 || read(atoi(pmi), answer, sizeof(answer)) < 0))
		_exit(1);
	_exit(0);
}
#endif

int main(int count, char **arguments)
{
	int rank, ranks;

	MPI_Init(&count, &arguments);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	int is_scheduled = count > 4 && !strcmp(arguments[4], "period");
	if (count != (is_scheduled ? 8 : 6))
		fail("expected BYTES MESSAGES WARM_UP_MESSAGES barrier|stream|period OPERATION [PERIOD_NS DELAYS]");
	int bytes = atoi(arguments[1]), messages = atoi(arguments[2]), warm_up = atoi(arguments[3]);
	int is_stream = !strcmp(arguments[4], "stream");
	int is_broadcast = !strcmp(arguments[5], "broadcast"), is_barrier = !strcmp(arguments[5], "barrier");
	char *message = allocate(bytes);
	int values = bytes / (int)sizeof(double);
	double *sums = (double *)message, factors = ranks * (ranks + 1.0) / 2;
	/* When a message was sent or received, how long the call took, and the CPU time of its thread. */
	int64_t *at = allocate(3 * sizeof(int64_t) * messages), *span = at + messages, *cpu = span + messages;
	int64_t all_cpu = 0, first = 0, period = is_scheduled ? atoll(arguments[6]) : 0, run_cpu = 0;
	int64_t *delays = allocate(sizeof(int64_t) * messages);

	if (is_scheduled)
		read_delays(arguments[7], rank, delays, messages);

	/* So that its pages are mapped. */
	memset(message, 0xff, bytes);
	for (int number = -warm_up; number < messages; number++) {
		int is_in_period = is_scheduled && number >= 0;

		if (is_in_period && !number) {
			MPI_Barrier(MPI_COMM_WORLD);
			first = clock_ns(CLOCK_MONOTONIC) + first_period_ns;
			MPI_Bcast(&first, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
			run_cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
		}
		if (is_in_period)
			sleep_until(first + number * period + delays[number]);
		else if (is_broadcast && (!is_stream || number <= 0))
			PMPI_Barrier(MPI_COMM_WORLD);
		for (int index = 0; !is_broadcast && index < values; index++)
			sums[index] = (number + index) * (rank + 1.0);
		if (is_broadcast && !rank && bytes >= (int)sizeof(number))
			memcpy(message, &number, sizeof(number));
		int64_t cpu_before = clock_ns(CLOCK_PROCESS_CPUTIME_ID), thread_before = clock_ns(CLOCK_THREAD_CPUTIME_ID), start = clock_ns(CLOCK_MONOTONIC);
		if (is_broadcast)
			MPI_Bcast(message, bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
		else if (is_barrier)
			MPI_Barrier(MPI_COMM_WORLD);
		else
			MPI_Allreduce(MPI_IN_PLACE, sums, values, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		int64_t end = clock_ns(CLOCK_MONOTONIC);

		for (int index = 0; !is_broadcast && index < values; index++)
			if (sums[index] != (number + index) * factors)
				fail("another sum than that of all values");
		if (is_broadcast && bytes >= (int)sizeof(number) && memcmp(message, &number, sizeof(number)))
			fail("another message than the root has sent");
		if (number < 0)
			continue;
		at[number] = rank ? end : start;
		span[number] = end - start;
		cpu[number] = clock_ns(CLOCK_THREAD_CPUTIME_ID) - thread_before;
		all_cpu += clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_before;
	}
	/* The node of the shim also works while its rank sleeps. */
	if (is_scheduled)
		all_cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - run_cpu;

	int numbers = 3 * messages + 1;
	int64_t *own = allocate(sizeof(int64_t) * numbers), *all = rank ? NULL : allocate(sizeof(int64_t) * numbers * ranks);

	memcpy(own, at, 3 * sizeof(int64_t) * messages);
	own[numbers - 1] = all_cpu;
	MPI_Gather(own, numbers, MPI_INT64_T, all, numbers, MPI_INT64_T, 0, MPI_COMM_WORLD);
	for (int of = 0; !rank && of < ranks; of++) {
		const int64_t *measured = all + (size_t)of * numbers;

		printf("%c{", of ? ',' : '[');
		write_times("at_ns", measured, messages);
		write_times("span_ns", measured + messages, messages);
		write_times("call_cpu_ns", measured + 2 * messages, is_stream ? 0 : messages);
		printf("\"cpu_ns\":%" PRId64 "}", measured[numbers - 1]);
	}
	if (!rank)
		printf("]\n");
#if defined MPICH_NUMVERSION && MPICH_NUMVERSION < 40200000
	end_without_finalize();
#endif
	MPI_Finalize();
	return 0;
}
