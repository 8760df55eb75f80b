/*
 * Threads that wait at objects that other threads destroy, as in programs that exit: a detached thread
 * waits for events, or requests the next one, after the channel is destroyed. The argument selects the case.
 */
#include <arpa/inet.h>

#include <rdma/rdma_cma.h>

#include "program.h"

enum { READERS = 4, ROUNDS = 200 };

/* Fails with EBADF, the only error that a reader may get. */
#define GONE(call) CHECK((call) == -1 && errno == EBADF)

static void do_not_block(int fd)
{
	MUST(!fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
}

/* The objects at which threads wait. */
static struct rdma_event_channel *events;
static struct ibv_comp_channel *notifications;
static struct ibv_context *device;

static int next_event(void)
{
	struct rdma_cm_event *event;
	return rdma_get_cm_event(events, &event);
}

static int next_notification(void)
{
	struct ibv_cq *cq;
	void *context;
	return ibv_get_cq_event(notifications, &cq, &context);
}

static int next_async_event(void)
{
	struct ibv_async_event event;
	return ibv_get_async_event(device, &event);
}

/* Requests events until EBADF. Returns the number of other failures. */
static void *ask_to_the_end(void *argument)
{
	int (*next)(void) = *(int (**)(void))argument;
	uintptr_t wrong = 0;

	while (next() == -1 && errno != EBADF)
		wrong += errno != EAGAIN;
	return (void *)wrong;
}

static void *wait_for_ever(void *argument)
{
	int (*next)(void) = *(int (**)(void))argument;

	next();
	printf("an event came, or the wait ended\n");
	return NULL;
}

static void let_them_begin(void)
{
	usleep(20000);
}

/* Destroys each of the three objects while readers poll it. */
static void readers(void)
{
	int (*calls[])(void) = { next_event, next_notification, next_async_event };
	pthread_t threads[3][READERS];

	for (int round = 0; round < ROUNDS; round++) {
		MUST(events = rdma_create_event_channel());
		device = open_loopback();
		MUST(notifications = ibv_create_comp_channel(device));
		do_not_block(events->fd);
		do_not_block(notifications->fd);
		do_not_block(device->async_fd);
		for (int call = 0; call < 3; call++)
			for (int i = 0; i < READERS; i++)
				MUST(!pthread_create(&threads[call][i], NULL, ask_to_the_end,
						     &calls[call]));
		rdma_destroy_event_channel(events);
		FAILS(ibv_destroy_comp_channel(notifications), 0);
		FAILS(ibv_close_device(device), 0);
		for (int call = 0; call < 3; call++)
			for (int i = 0; i < READERS; i++) {
				void *wrong;
				MUST(!pthread_join(threads[call][i], &wrong));
				CHECK(!wrong);
			}
	}
}

/* Sleeping readers continue to sleep until the program exits. */
static void sleepers(void)
{
	int (*calls[])(void) = { next_event, next_notification, next_async_event };
	pthread_t thread;

	MUST(events = rdma_create_event_channel());
	device = open_loopback();
	MUST(notifications = ibv_create_comp_channel(device));
	for (int call = 0; call < 3; call++)
		MUST(!pthread_create(&thread, NULL, wait_for_ever, &calls[call]));
	let_them_begin();
	rdma_destroy_event_channel(events);
	FAILS(ibv_destroy_comp_channel(notifications), 0);
	FAILS(ibv_close_device(device), 0);
	GONE(next_event());
	GONE(next_notification());
	GONE(next_async_event());
	let_them_begin();
}

/* An identifier, and an event that was returned, outlive their channel. */
static void channel_first(void)
{
	struct sockaddr_in loopback = { .sin_family = AF_INET };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id, *other;

	loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	MUST(events = rdma_create_event_channel());
	MUST(!rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	MUST(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&loopback, 1000));
	MUST(!rdma_get_cm_event(events, &event));
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	rdma_destroy_event_channel(events);
	GONE(next_event());
	GONE(rdma_create_id(events, &other, NULL, RDMA_PS_TCP));
	/* Its events have no channel. */
	CHECK(!rdma_resolve_route(id, 1000));
	CHECK(event->id == id);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_destroy_id(id));
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "readers", readers },
		{ "sleepers", sleepers },
		{ "channel_first", channel_first },
	};
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
