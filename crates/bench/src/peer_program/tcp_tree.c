/* A broadcast as a program may have it that uses no library: down a tree of blocking TCP
 * connections. Each host receives a piece into its buffer and sends it to its children. Nothing
 * else: no recovery, no authentication, no late processes.
 *
 * Arguments: the length of a message in bytes, the number of messages, the number of messages
 * before the first measurement, "barrier" or "stream", and the fan-out of the tree, where 1 is a
 * chain. Each process of the lab writes a JSON object. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 7411, CHILDREN_MAX = 4096, PIECE_BYTES = 65536 };

static int64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void fail(const char *why)
{
	perror(why);
	exit(1);
}

static void *allocate(size_t bytes)
{
	void *memory = malloc(bytes ? bytes : 1);

	if (!memory)
		fail("no memory");
	return memory;
}

static void write_all(int to, const char *bytes, size_t count)
{
	while (count) {
		ssize_t sent = send(to, bytes, count, MSG_NOSIGNAL);

		if (sent <= 0)
			fail("send");
		bytes += sent;
		count -= sent;
	}
}

static void read_all(int from, char *bytes, size_t count)
{
	while (count) {
		ssize_t received = recv(from, bytes, count, 0);

		if (received <= 0)
			fail("recv");
		bytes += received;
		count -= received;
	}
}

static struct sockaddr_in address_of(int host)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	char *addresses = strdup(getenv("TREECAST_LAB_ADDRESSES")), *rest = addresses, *text = NULL;

	for (int index = 0; index <= host; index++)
		text = strsep(&rest, ",");
	if (!text || inet_pton(AF_INET, text, &address.sin_addr) != 1)
		fail("an address of the lab");
	free(addresses);
	return address;
}

/* The parent may not listen yet. */
static int connect_to(int host)
{
	struct sockaddr_in address = address_of(host);

	for (int attempt = 0; attempt < 1000; attempt++) {
		int connection = socket(AF_INET, SOCK_STREAM, 0);

		if (!connect(connection, (struct sockaddr *)&address, sizeof(address)))
			return connection;
		close(connection);
		usleep(10000);
	}
	fail("connect");
	return -1;
}

static int listen_at(int host)
{
	struct sockaddr_in address = address_of(host);
	int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, CHILDREN_MAX))
		fail("listen");
	return listener;
}

static void set_no_delay(int connection)
{
	int on = 1;

	setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static int parent = -1, children[CHILDREN_MAX], child_count;

/* All processes have come here: the children say so upwards. The root waits some time more, in
 * which the others fall asleep. */
static void wait_for_all(void)
{
	char byte = 0;

	for (int child = 0; child < child_count; child++)
		read_all(children[child], &byte, 1);
	if (parent >= 0)
		write_all(parent, &byte, 1);
	else
		usleep(300);
}

static void broadcast(char *message, size_t bytes)
{
	for (size_t done = 0; done < bytes;) {
		size_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;

		if (parent >= 0) {
			ssize_t received = recv(parent, message + done, piece, 0);

			if (received <= 0)
				fail("recv");
			piece = received;
		}
		for (int child = 0; child < child_count; child++)
			write_all(children[child], message + done, piece);
		done += piece;
	}
}

static void write_times(const char *name, const int64_t *times, int count)
{
	printf("\"%s\":[", name);
	for (int index = 0; index < count; index++)
		printf("%s%" PRId64, index ? "," : "", times[index]);
	printf("],");
}

int main(int count, char **arguments)
{
	if (count != 6)
		fail("expected BYTES MESSAGES WARM_UP_MESSAGES barrier|stream FAN_OUT");
	size_t bytes = strtoull(arguments[1], NULL, 10);
	int messages = atoi(arguments[2]), warm_up = atoi(arguments[3]), fan_out = atoi(arguments[5]);
	int is_stream = !strcmp(arguments[4], "stream");
	int host = atoi(getenv("TREECAST_LAB_HOST")), hosts = atoi(getenv("TREECAST_LAB_HOSTS"));
	int listener = listen_at(host);

	if (host > 0) {
		parent = connect_to((host - 1) / fan_out);
		set_no_delay(parent);
	}
	for (int child = host * fan_out + 1; child <= host * fan_out + fan_out && child < hosts; child++) {
		children[child_count] = accept(listener, NULL, NULL);
		if (children[child_count] < 0)
			fail("accept");
		set_no_delay(children[child_count++]);
	}

	char *message = allocate(bytes);
	/* When a message was sent or received, how long the call took, and the CPU time of that. */
	int64_t *at = allocate(3 * sizeof(int64_t) * messages), *span = at + messages, *cpu = span + messages;
	int64_t all_cpu = 0;

	/* So that its pages are mapped. */
	memset(message, 0xff, bytes);
	for (int number = -warm_up; number < messages; number++) {
		if (!is_stream || number <= 0)
			wait_for_all();
		if (!host && bytes >= sizeof(number))
			memcpy(message, &number, sizeof(number));
		int64_t cpu_before = clock_ns(CLOCK_PROCESS_CPUTIME_ID), start = clock_ns(CLOCK_MONOTONIC);
		broadcast(message, bytes);
		int64_t end = clock_ns(CLOCK_MONOTONIC);

		if (bytes >= sizeof(number) && memcmp(message, &number, sizeof(number)))
			fail("another message than the root has sent");
		if (number < 0)
			continue;
		at[number] = host ? end : start;
		span[number] = end - start;
		cpu[number] = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_before;
		all_cpu += cpu[number];
	}
	/* No connection ends before all have come here. */
	wait_for_all();
	printf("{");
	write_times("at_ns", at, messages);
	write_times("span_ns", span, messages);
	write_times("call_cpu_ns", cpu, is_stream ? 0 : messages);
	printf("\"cpu_ns\":%" PRId64 "}\n", all_cpu);
	return 0;
}
