/*
 * Threads that wait at objects that other threads destroy, as in programs that exit: a detached
 * thread waits for events, or requests the next one, after the channel is destroyed. Devices that
 * are closed before their objects. The argument selects the case.
 */
#include <arpa/inet.h>

#include <rdma/rdma_cma.h>
#include <sys/resource.h>

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

static void post_write(struct end *from, struct end *to, unsigned char value)
{
	struct ibv_sge element = sge(from, 0, 1);
	struct ibv_send_wr *bad, wr = {
		.sg_list = &element, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)to->data, .rkey = to->mr->rkey },
	};

	from->data[0] = value;
	MUST(!ibv_post_send(from->qp, &wr, &bad));
}

/* Makes an end whose memory can be unmapped. */
static struct end make_mapped_end(struct ibv_context *context)
{
	struct end end = make_end(context);

	MUST(!ibv_dereg_mr(end.mr));
	free(end.data);
	end.data = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(end.data != MAP_FAILED);
	MUST(end.mr = ibv_reg_mr(end.pd, end.data, SIZE, ALL | IBV_ACCESS_MW_BIND));
	return end;
}

/* Closing a device ends the objects that are left: the peer has no access to memory any more. */
static void device_first(void)
{
	struct ibv_context *context = open_loopback(), *closed = open_loopback();
	struct end a = make_end(context), b = make_mapped_end(closed);
	int command = closed->cmd_fd, events_fd = closed->async_fd;
	struct ibv_mw_bind bind = { .bind_info = { .mr = b.mr, .addr = (uintptr_t)b.data,
						   .length = 64,
						   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE },
				    .send_flags = IBV_SEND_SIGNALED };
	struct ibv_qp_init_attr attr = { .send_cq = b.cq, .recv_cq = b.cq, .qp_type = IBV_QPT_RC };
	struct ibv_mw *window;

	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	MUST(window = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1));
	MUST(!ibv_bind_mw(b.qp, window, &bind));
	CHECK(completion(&b).status == IBV_WC_SUCCESS);
	post_write(&a, &b, 1);
	CHECK(completion(&a).status == IBV_WC_SUCCESS);
	CHECK(b.data[0] == 1);

	FAILS(ibv_close_device(closed), 0);
	CHECK(fcntl(command, F_GETFD) == -1);
	CHECK(fcntl(events_fd, F_GETFD) == -1);
	MUST(!munmap(b.data, SIZE));
	post_write(&a, &b, 2);
	CHECK(completion(&a).status == IBV_WC_RETRY_EXC_ERR);

	NO_OBJECT(ibv_alloc_pd(closed), EBADF);
	NO_OBJECT(ibv_create_qp(b.pd, &attr), EBADF);
	NO_OBJECT(ibv_reg_mr(b.pd, a.data, SIZE, ALL), EBADF);
	FAILS(ibv_dealloc_mw(window), 0);
	b.data = NULL;
	free_end(&b);
	free_end(&a);
	FAILS(ibv_close_device(context), 0);
}

/* A program that never destroys its objects can open a device any number of times. */
static void device_only(void)
{
	struct rlimit few = { .rlim_cur = 64, .rlim_max = 64 };

	MUST(!setrlimit(RLIMIT_NOFILE, &few));
	for (int round = 0; round < 100; round++) {
		struct ibv_context *context = open_loopback();
		struct end end = { .pd = ibv_alloc_pd(context),
				   .cq = ibv_create_cq(context, 4, NULL, NULL, 0) };

		MUST(end.pd && end.cq);
		MUST(make_qp(context, &end));
		FAILS(ibv_close_device(context), 0);
	}
}

/* Objects end with the last of the contexts that share them. */
static void imported_device(void)
{
	struct ibv_context *context = open_loopback(), *imported;
	struct end a = make_end(context), b = make_end(context);

	MUST(imported = ibv_import_device(dup(context->cmd_fd)));
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	FAILS(ibv_close_device(context), 0);
	post_write(&a, &b, 1);
	CHECK(completion(&a).status == IBV_WC_SUCCESS);
	CHECK(b.data[0] == 1);
	FAILS(ibv_close_device(imported), 0);
	free_end(&a);
	free_end(&b);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "readers", readers },
		{ "sleepers", sleepers },
		{ "channel_first", channel_first },
		{ "device_first", device_first },
		{ "device_only", device_only },
		{ "imported_device", imported_device },
	};
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
