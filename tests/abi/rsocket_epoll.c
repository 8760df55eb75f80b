/*
 * epoll of rsockets and other descriptors.
 */
#include "rsockets.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>

/* Not in older headers. */
int repoll_create(int flags);
int repoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int repoll_wait(int epfd, struct epoll_event *events, int maxevents, int timeout);

static void epolling(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 42 }, events[4];
	char data[8];
	int epoll, pair[2], ends[2];
	pthread_t thread;

	make_pair(pair);
	MUST(!pipe(ends));
	MUST((epoll = repoll_create(0)) >= 0);
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event));
	MINUS_ONE(repoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event), EEXIST);
	MINUS_ONE(repoll_ctl(epoll, EPOLL_CTL_MOD, pair[1], &event), ENOENT);
	MINUS_ONE(repoll_ctl(epoll, 99, pair[0], &event), EINVAL);
	event.data.u64 = 43;
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
	CHECK(repoll_wait(epoll, events, 4, 0) == 0);
	MUST(!pthread_create(&thread, NULL, say_later, &pair[1]));
	CHECK(repoll_wait(epoll, events, 4, 30000) == 1);
	CHECK(events[0].data.u64 == 42 && events[0].events == EPOLLIN);
	MUST(!pthread_join(thread, NULL));
	MUST(write(ends[1], "x", 1) == 1);
	CHECK(repoll_wait(epoll, events, 4, -1) == 2);
	CHECK(repoll_wait(epoll, events, 1, -1) == 1);
	CHECK(rrecv(pair[0], data, sizeof(data), 0) == 1);
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_DEL, ends[0], NULL));
	CHECK(repoll_wait(epoll, events, 4, 0) == 0);
	/* One event. */
	event = (struct epoll_event){ .events = EPOLLOUT | EPOLLONESHOT };
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_MOD, pair[0], &event));
	CHECK(repoll_wait(epoll, events, 4, -1) == 1 && events[0].events == EPOLLOUT);
	CHECK(repoll_wait(epoll, events, 4, 0) == 0);
	CHECK(!rclose(epoll));
	MINUS_ONE(repoll_wait(epoll, events, 4, 0), EBADF);
	close_pair(pair);
	close(ends[0]), close(ends[1]);
}

/* The kernel removes a closed descriptor from its epoll instances, and so does urxe an rsocket. */
static void closing(void)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 1 }, events[4];
	int epoll, pair[2], ends[2], again[2];

	make_pair(pair);
	MUST(!pipe(ends));
	MUST((epoll = repoll_create(0)) >= 0);
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
	MUST(write(ends[1], "x", 1) == 1);
	CHECK(repoll_wait(epoll, events, 4, 30000) == 1 && events[0].data.u64 == 1);
	close(ends[0]), close(ends[1]);
	CHECK(repoll_wait(epoll, events, 4, 0) == 0);
	/* Another descriptor with the number of the closed one. */
	MUST(!pipe(again));
	MUST(again[0] == ends[0]);
	MUST(write(again[1], "x", 1) == 1);
	CHECK(repoll_wait(epoll, events, 4, 0) == 0);
	event.data.u64 = 2;
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, again[0], &event));
	CHECK(repoll_wait(epoll, events, 4, 0) == 1 && events[0].data.u64 == 2);
	/* Once for each arrival of data. */
	event.events |= EPOLLET;
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_MOD, again[0], &event));
	CHECK(repoll_wait(epoll, events, 4, 0) == 1);
	CHECK(repoll_wait(epoll, events, 4, 0) == 0);
	close(again[0]), close(again[1]);

	event = (struct epoll_event){ .events = EPOLLOUT };
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, pair[0], &event));
	CHECK(repoll_wait(epoll, events, 4, 0) == 1);
	close_pair(pair);
	CHECK(repoll_wait(epoll, events, 4, 0) == 0);
	MINUS_ONE(repoll_ctl(epoll, EPOLL_CTL_DEL, pair[0], NULL), EBADF);
	CHECK(!rclose(epoll));
}

/* No ready descriptor waits for the others for ever, of either kind. */
static void turns(void)
{
	struct epoll_event event = { .events = EPOLLOUT };
	int epoll, pair[2], ends[2], seen[3] = { 0 };

	make_pair(pair);
	MUST(!pipe(ends));
	MUST(write(ends[1], "x", 1) == 1);
	MUST((epoll = repoll_create(0)) >= 0);
	for (int i = 0; i < 2; i++) {
		event.data.u64 = i;
		CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, pair[i], &event));
	}
	event = (struct epoll_event){ .events = EPOLLIN, .data.u64 = 2 };
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
	for (int i = 0; i < 8; i++) {
		CHECK(repoll_wait(epoll, &event, 1, 30000) == 1);
		seen[event.data.u64]++;
	}
	CHECK(seen[0] == 2 && seen[1] == 2 && seen[2] == 4);
	CHECK(!rclose(epoll));
	close(ends[0]), close(ends[1]);
	close_pair(pair);
}

/* The events of one wait, 0 if there is none. */
static uint32_t event_within(int epoll, int timeout)
{
	struct epoll_event event;
	int found = repoll_wait(epoll, &event, 1, timeout);

	CHECK(found == 0 || found == 1);
	return found == 1 ? event.events : 0;
}

/* For a check that there is none: of a quarter of a second. */
static uint32_t next_event(int epoll)
{
	return event_within(epoll, 250);
}

/* For a check that there is one, however busy the machine is. */
static uint32_t awaited_event(int epoll)
{
	return event_within(epoll, 20000);
}

static void add(int epoll, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.fd = fd };
	MUST(!repoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
}

/* The processor time of this process in milliseconds. */
static long processor_time(void)
{
	struct timespec time;

	MUST(!clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time));
	return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* With EPOLLET, a wait that finds nothing new sleeps, whatever is ready. */
static void edges(void)
{
	uint32_t both = EPOLLIN | EPOLLOUT, in = EPOLLIN | EPOLLRDHUP;
	struct epoll_event event = { .events = both | EPOLLET };
	static char data[1 << 16];
	long before;
	int epoll, pair[2];

	make_pair(pair);
	nonblocking(pair[0]);
	nonblocking(pair[1]);
	MUST((epoll = repoll_create(0)) >= 0);
	add(epoll, pair[0], both | EPOLLRDHUP | EPOLLET);
	CHECK(awaited_event(epoll) == EPOLLOUT);
	CHECK(next_event(epoll) == 0);

	/* Each arrival of data is an event, also before the data is read. */
	for (int i = 0; i < 3; i++) {
		CHECK(rsend(pair[1], "a", 1, 0) == 1);
		CHECK(awaited_event(epoll) == both);
	}
	before = processor_time();
	for (int i = 0; i < 4; i++)
		CHECK(next_event(epoll) == 0);
	CHECK(processor_time() - before < 500);
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_MOD, pair[0], &event));
	CHECK(awaited_event(epoll) == both);
	CHECK(rrecv(pair[0], data, sizeof(data), 0) == 3);
	CHECK(next_event(epoll) == 0);

	/* Room becomes free. */
	do {
		while (rsend(pair[0], data, sizeof(data), 0) > 0)
			;
	} while (next_event(epoll));
	CHECK(polled(pair[1], POLLIN, 20000) == POLLIN);
	while (rrecv(pair[1], data, sizeof(data), 0) > 0)
		;
	CHECK(awaited_event(epoll) == EPOLLOUT);
	while (next_event(epoll))
		;

	/* The peer shuts down one direction, and then closes. */
	event.events = in | EPOLLET;
	CHECK(!repoll_ctl(epoll, EPOLL_CTL_MOD, pair[0], &event));
	CHECK(next_event(epoll) == 0);
	CHECK(!rshutdown(pair[1], SHUT_WR));
	CHECK(awaited_event(epoll) == in);
	CHECK(next_event(epoll) == 0);
	CHECK(!rclose(pair[1]));
	CHECK(awaited_event(epoll) & EPOLLHUP);
	CHECK(next_event(epoll) == 0);
	CHECK(!rclose(pair[0]) && !rclose(epoll));

	/* The end of a connection is reported when the data before it has been read. */
	make_pair(pair);
	nonblocking(pair[0]);
	MUST((epoll = repoll_create(0)) >= 0);
	CHECK(rsend(pair[1], "last", 4, 0) == 4);
	CHECK(!rclose(pair[1]));
	CHECK(polled(pair[0], 0, 20000) == POLLHUP);
	add(epoll, pair[0], EPOLLIN | EPOLLET);
	CHECK(awaited_event(epoll) == EPOLLIN);
	CHECK(rrecv(pair[0], data, sizeof(data), 0) == 4);
	CHECK(awaited_event(epoll) & EPOLLHUP);
	CHECK(next_event(epoll) == 0);
	CHECK(!rclose(pair[0]) && !rclose(epoll));
}

/* A listener is signalled once for each connection. */
static void arrivals(void)
{
	struct sockaddr_in address;
	int epoll, fd = listener(&address), ends[2];
	long before;

	nonblocking(fd);
	MUST((epoll = repoll_create(0)) >= 0);
	add(epoll, fd, EPOLLIN | EPOLLET);
	CHECK(next_event(epoll) == 0);
	for (int i = 0; i < 2; i++) {
		MUST((ends[i] = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
		MUST(!rconnect(ends[i], (struct sockaddr *)&address, sizeof(address)));
		CHECK(awaited_event(epoll) == EPOLLIN);
		before = processor_time();
		CHECK(next_event(epoll) == 0);
		CHECK(next_event(epoll) == 0);
		CHECK(processor_time() - before < 300);
	}
	for (int i = 0; i < 2; i++) {
		int accepted = raccept(fd, NULL, NULL);
		CHECK(accepted >= 0 && !rclose(accepted) && !rclose(ends[i]));
	}
	CHECK(next_event(epoll) == 0);
	CHECK(!rclose(epoll) && !rclose(fd));
}

enum { WAITERS = 4 };

static int waited_for;
static int found_events;

static void *wait_once(void *timeout)
{
	struct epoll_event event;
	int found = repoll_wait(waited_for, &event, 1, *(int *)timeout);

	MUST(found >= 0);
	__sync_fetch_and_add(&found_events, found);
	return NULL;
}

/* Runs a change while threads wait. Returns the number of events that they found. */
static int found_by_waiters(int epoll, int timeout, void (*change)(int, int), int fd)
{
	pthread_t threads[WAITERS];

	waited_for = epoll;
	found_events = 0;
	for (int i = 0; i < WAITERS; i++)
		MUST(!pthread_create(&threads[i], NULL, wait_once, &timeout));
	usleep(20000);
	change(epoll, fd);
	for (int i = 0; i < WAITERS; i++)
		MUST(!pthread_join(threads[i], NULL));
	return found_events;
}

static void add_writable(int epoll, int fd)
{
	add(epoll, fd, EPOLLOUT);
}

static void say(int epoll, int fd)
{
	(void)epoll;
	MUST(rsend(fd, "x", 1, 0) == 1);
}

/* All waiting threads find a change; one of them takes an event with EPOLLONESHOT or EPOLLET. */
static void waiters(void)
{
	static const uint32_t once[] = { EPOLLONESHOT, EPOLLET };
	struct epoll_event event = { .events = 0 };
	char data[8];
	int epoll, pair[2];

	make_pair(pair);
	MUST((epoll = repoll_create(0)) >= 0);
	for (int i = 0; i < 20; i++) {
		CHECK(found_by_waiters(epoll, 20000, add_writable, pair[0]) == WAITERS);
		CHECK(!repoll_ctl(epoll, EPOLL_CTL_DEL, pair[0], NULL));
	}
	add(epoll, pair[0], EPOLLOUT);
	for (int i = 0; i < 4; i++) {
		event.events = EPOLLIN | once[i % 2];
		CHECK(!repoll_ctl(epoll, EPOLL_CTL_MOD, pair[0], &event));
		CHECK(found_by_waiters(epoll, 2000, say, pair[1]) == 1);
		CHECK(rrecv(pair[0], data, sizeof(data), 0) == 1);
	}
	CHECK(!rclose(epoll));
	close_pair(pair);
}

/* A thread's waits use one descriptor, which it keeps: they work without a free one. */
static void reuse(void)
{
	struct rlimit limit = { 64, 64 };
	struct epoll_event event;
	int epoll, pair[2];

	make_pair(pair);
	MUST((epoll = repoll_create(0)) >= 0);
	add(epoll, pair[0], EPOLLIN);
	CHECK(repoll_wait(epoll, &event, 1, 10) == 0);
	MUST(!setrlimit(RLIMIT_NOFILE, &limit));
	while (dup(STDOUT_FILENO) >= 0)
		;
	for (int i = 0; i < 3; i++) {
		CHECK(repoll_wait(epoll, &event, 1, 10) == 0);
		CHECK(polled(pair[0], POLLIN, 10) == 0);
	}
	CHECK(rsend(pair[1], "x", 1, 0) == 1);
	CHECK(repoll_wait(epoll, &event, 1, 20000) == 1);
	CHECK(!rclose(epoll));
	close_pair(pair);
}

static void *add_later(void *argument)
{
	int *numbers = argument;

	usleep(100000);
	add(numbers[0], numbers[1], EPOLLOUT);
	return NULL;
}

/* An instance in another one, and in rpoll and rselect, is readable while it has events. */
static void nesting(void)
{
	struct epoll_event event = { .events = EPOLLIN }, found;
	int outer, inner, pair[2], ends[2], later[2];
	fd_set reads;
	char data[4];
	long before;
	struct timeval none = { 0, 0 };
	pthread_t thread;

	make_pair(pair);
	MUST(!pipe(ends));
	MUST((outer = repoll_create(0)) >= 0 && (inner = repoll_create(0)) >= 0);
	MINUS_ONE(repoll_ctl(outer, EPOLL_CTL_ADD, outer, &event), EINVAL);
	add(outer, inner, EPOLLIN);
	MINUS_ONE(repoll_ctl(inner, EPOLL_CTL_ADD, outer, &event), ELOOP);
	CHECK(repoll_wait(outer, &found, 1, 0) == 0);

	/* The list of the inner one changes while a thread waits for the outer one. */
	later[0] = inner, later[1] = pair[0];
	MUST(!pthread_create(&thread, NULL, add_later, later));
	CHECK(repoll_wait(outer, &found, 1, 20000) == 1 && found.data.fd == inner);
	MUST(!pthread_join(thread, NULL));
	CHECK(found.events == EPOLLIN);
	CHECK(repoll_wait(inner, &found, 1, 0) == 1 && found.data.fd == pair[0]);
	CHECK(polled(inner, POLLIN, 20000) == POLLIN);
	FD_ZERO(&reads);
	FD_SET(inner, &reads);
	CHECK(rselect(inner + 1, &reads, NULL, NULL, NULL) == 1 && FD_ISSET(inner, &reads));

	/* An rsocket that becomes readable, and a kernel descriptor. */
	event.events = EPOLLIN;
	CHECK(!repoll_ctl(inner, EPOLL_CTL_MOD, pair[0], &event));
	CHECK(polled(inner, POLLIN, 50) == 0);
	CHECK(rselect(inner + 1, &reads, NULL, NULL, &none) == 0);
	MUST(!pthread_create(&thread, NULL, say_later, &pair[1]));
	CHECK(repoll_wait(outer, &found, 1, 20000) == 1 && found.data.fd == inner);
	MUST(!pthread_join(thread, NULL));
	CHECK(rrecv(pair[0], data, sizeof(data), 0) == 1);
	CHECK(repoll_wait(outer, &found, 1, 0) == 0);
	add(inner, ends[0], EPOLLIN);
	MUST(write(ends[1], "x", 1) == 1);
	CHECK(repoll_wait(outer, &found, 1, 20000) == 1 && found.data.fd == inner);
	CHECK(polled(inner, POLLIN, 20000) == POLLIN);

	/* A thread that does not ask for its events sleeps. */
	before = processor_time();
	CHECK(polled(inner, POLLOUT, 500) == 0);
	event.events = 0;
	event.data.fd = inner;
	CHECK(!repoll_ctl(outer, EPOLL_CTL_MOD, inner, &event));
	CHECK(repoll_wait(outer, &found, 1, 500) == 0);
	CHECK(processor_time() - before < 500);

	/* A closed instance is removed from the others. */
	CHECK(!rclose(inner));
	CHECK(repoll_wait(outer, &found, 1, 0) == 0);
	CHECK(!rclose(outer));
	close_pair(pair);
	close(ends[0]), close(ends[1]);
}

/* A child has none of its parent's rsockets. Its calls with their numbers affect the child only. */
static void forking(void)
{
	struct epoll_event event;
	struct pollfd poll;
	char data[8];
	int epoll, outer, inner, pair[2], ends[2], status;
	pid_t child;

	make_pair(pair);
	MUST((epoll = repoll_create(0)) >= 0);
	add(epoll, pair[0], EPOLLIN | EPOLLOUT);
	MUST(!pipe(ends));
	MUST((outer = repoll_create(0)) >= 0 && (inner = repoll_create(0)) >= 0);
	add(outer, inner, EPOLLIN);
	add(inner, ends[0], EPOLLIN);
	MUST((child = fork()) >= 0);
	if (!child) {
		MINUS_ONE(rsend(pair[0], "x", 1, 0), EBADF);
		poll = (struct pollfd){ pair[0], POLLIN | POLLOUT, 0 };
		CHECK(rpoll(&poll, 1, 0) == 1 && poll.revents == POLLNVAL);
		CHECK(repoll_wait(epoll, &event, 1, 50) == 0);
		/* An instance in the instance still has its kernel descriptors. */
		MUST(write(ends[1], "x", 1) == 1);
		CHECK(repoll_wait(outer, &event, 1, 20000) == 1 && event.data.fd == inner);
		CHECK(!repoll_ctl(epoll, EPOLL_CTL_DEL, pair[0], NULL));
		CHECK(!rshutdown(pair[0], SHUT_RDWR));
		CHECK(!rclose(pair[0]) && !rclose(epoll));
		_exit(!!failures);
	}
	MUST(waitpid(child, &status, 0) == child);
	CHECK(!status);
	CHECK(repoll_wait(epoll, &event, 1, 20000) == 1 && event.events == EPOLLOUT);
	CHECK(rsend(pair[1], "later", 5, 0) == 5);
	CHECK(rrecv(pair[0], data, sizeof(data), MSG_WAITALL | MSG_PEEK) == 5);
	CHECK(!rclose(epoll) && !rclose(outer) && !rclose(inner));
	close(ends[0]), close(ends[1]);
	close_pair(pair);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "epolling", epolling }, { "closing", closing }, { "turns", turns },
		{ "edges", edges }, { "arrivals", arrivals }, { "waiters", waiters },
		{ "reuse", reuse }, { "nesting", nesting }, { "forking", forking },
	};
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
