/*
 * Cancelled threads: calls that wait for an event are cancellation points, as in rdma-core; all others are
 * not. The argument selects the case.
 */
#include "cm.h"

#include <rdma/rsocket.h>

enum { ROUNDS = 200 };

static struct ibv_context *device;
static struct end a, b;
static struct rdma_event_channel *events;
static struct rdma_cm_id *id, *passive;

/* The number of a thread's calls that have returned, and whether its cleanup handler ran. */
static volatile int returned, cleaned;

static void note_cleanup(void *argument)
{
	(void)argument;
	cleaned++;
}

static int next_notification(void)
{
	struct ibv_cq *cq;
	void *context;
	return ibv_get_cq_event(a.channel, &cq, &context);
}

static int next_async_event(void)
{
	struct ibv_async_event event;
	int status = ibv_get_async_event(device, &event);
	if (!status)
		ibv_ack_async_event(&event);
	return status;
}

static int next_cm_event(void)
{
	struct rdma_cm_event *event;
	int status = rdma_get_cm_event(events, &event);
	if (!status)
		rdma_ack_cm_event(event);
	return status;
}

static int next_request(void)
{
	struct rdma_cm_id *request;
	return rdma_get_request(passive, &request);
}

static void setup(void)
{
	struct sockaddr_in loopback = { .sin_family = AF_INET,
					.sin_addr.s_addr = htonl(INADDR_LOOPBACK) };

	device = open_loopback();
	a = make_end(device);
	b = make_end(device);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	MUST(events = rdma_create_event_channel());
	MUST(!rdma_create_id(NULL, &passive, NULL, RDMA_PS_TCP));
	MUST(!rdma_bind_addr(passive, (struct sockaddr *)&loopback));
	MUST(!rdma_listen(passive, 1));
}

static void teardown(void)
{
	CHECK(!rdma_destroy_id(passive));
	rdma_destroy_event_channel(events);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(device), 0);
}

static void write_word(struct end *from, struct end *to, uint64_t value)
{
	struct ibv_sge element = sge(from, 0, sizeof(value));
	struct ibv_send_wr *bad, wr = {
		.sg_list = &element, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)to->data, .rkey = to->mr->rkey },
	};

	memcpy(from->data, &value, sizeof(value));
	MUST(!ibv_post_send(from->qp, &wr, &bad));
}

/* No thread calls the library until the WRITE is executed: the progress thread receives it. */
static void write_is_served(uint64_t value)
{
	write_word(&a, &b, value);
	while (*(volatile uint64_t *)b.data != value)
		usleep(100);
	CHECK(completion(&a).status == IBV_WC_SUCCESS);
}

/* Causes one event of each type. */
static void notify(void)
{
	MUST(!ibv_req_notify_cq(a.cq, 0));
	write_word(&a, &b, 1);
}

static void happen(void)
{
	struct ibv_qp_attr drain = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_qp_attr back = { .qp_state = IBV_QPS_RTS };

	MUST(!ibv_modify_qp(a.qp, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	MUST(!ibv_modify_qp(a.qp, &back, IBV_QP_STATE));
}

static void tell(void)
{
	id = new_id(events, RDMA_PS_TCP);
	MUST(!rdma_resolve_addr(id, NULL, address("127.0.0.1", 1), 2000));
}

static const struct kind {
	int (*next)(void);
	void (*happen)(void);
} kinds[] = { { next_notification, notify }, { next_async_event, happen }, { next_cm_event, tell } };
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

/* Cleans up after an event. */
static void settle(const struct kind *kind)
{
	if (kind->next == next_notification) {
		CHECK(completion(&a).status == IBV_WC_SUCCESS);
		ibv_ack_cq_events(a.cq, 1);
	} else if (kind->next == next_cm_event) {
		CHECK(!rdma_destroy_id(id));
	}
}

static void *call_for_ever(void *argument)
{
	int (*next)(void) = *(int (**)(void))argument;

	pthread_cleanup_push(note_cleanup, NULL);
	while (!next())
		returned++;
	pthread_cleanup_pop(0);
	return NULL;
}

static pthread_t start(int (*const *next)(void))
{
	pthread_t thread;

	returned = cleaned = 0;
	MUST(!pthread_create(&thread, NULL, call_for_ever, (void *)next));
	return thread;
}

static void is_cancelled(pthread_t thread)
{
	void *result;

	MUST(!pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED);
	CHECK(cleaned == 1);
}

/* A blocked thread is cancelled; afterwards another one waits at the same object. */
static void blocked(void)
{
	int (*const request)(void) = next_request;

	setup();
	for (int kind = 0; kind < KINDS; kind++) {
		for (int round = 0; round < 20; round++) {
			pthread_t thread = start(&kinds[kind].next);
			if (round % 2)
				usleep(2000);
			MUST(!pthread_cancel(thread));
			is_cancelled(thread);
			CHECK(!returned);
		}
		kinds[kind].happen();
		CHECK(!kinds[kind].next());
		settle(&kinds[kind]);
		write_is_served(100 + kind);
	}
	pthread_t thread = start(&request);
	usleep(2000);
	MUST(!pthread_cancel(thread));
	is_cancelled(thread);
	teardown();
}

/* An event that is raised while a thread is cancelled is returned or stays queued. */
static void races(void)
{
	setup();
	for (int kind = 0; kind < KINDS; kind++)
		for (int round = 0; round < ROUNDS; round++) {
			pthread_t thread = start(&kinds[kind].next);
			if (round % 2)
				usleep(round);
			kinds[kind].happen();
			MUST(!pthread_cancel(thread));
			is_cancelled(thread);
			CHECK(returned <= 1);
			if (!returned)
				CHECK(!kinds[kind].next());
			settle(&kinds[kind]);
		}
	write_is_served(7);
	teardown();
}

static void *disabled_thread(void *argument)
{
	const struct kind *kind = argument;
	int state;

	pthread_cleanup_push(note_cleanup, NULL);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	returned = 1;
	CHECK(!kind->next());
	returned = 2;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	CHECK(state == PTHREAD_CANCEL_DISABLE);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	pthread_testcancel();
	pthread_cleanup_pop(0);
	return NULL;
}

/* A thread that has disabled cancellation continues to wait, and keeps its cancellation state. */
static void disabled(void)
{
	setup();
	for (int kind = 0; kind < KINDS; kind++) {
		pthread_t thread;

		returned = cleaned = 0;
		MUST(!pthread_create(&thread, NULL, disabled_thread, (void *)&kinds[kind]));
		while (!returned)
			usleep(100);
		MUST(!pthread_cancel(thread));
		usleep(2000);
		kinds[kind].happen();
		is_cancelled(thread);
		CHECK(returned == 2);
		settle(&kinds[kind]);
	}
	teardown();
}

static void do_not_block(int fd)
{
	MUST(!fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
}

static void *cancelled_before(void *argument)
{
	int (*next)(void) = *(int (**)(void))argument;

	pthread_cleanup_push(note_cleanup, NULL);
	pthread_cancel(pthread_self());
	next();
	returned++;
	pthread_cleanup_pop(0);
	return NULL;
}

/* A pending cancellation is acted on where the call would not block, and leaves the event. */
static void does_not_block(void)
{
	setup();
	do_not_block(a.channel->fd);
	do_not_block(device->async_fd);
	do_not_block(events->fd);
	for (int kind = 0; kind < KINDS; kind++)
		for (int has_event = 0; has_event < 2; has_event++) {
			pthread_t thread;

			if (has_event)
				kinds[kind].happen();
			returned = cleaned = 0;
			MUST(!pthread_create(&thread, NULL, cancelled_before,
					     (void *)&kinds[kind].next));
			is_cancelled(thread);
			CHECK(!returned);
			if (has_event) {
				while (kinds[kind].next() && errno == EAGAIN)
					;
				settle(&kinds[kind]);
			}
			MINUS_ONE(kinds[kind].next(), EAGAIN);
		}
	teardown();
}

static void use_verbs(void)
{
	struct ibv_context *context = open_loopback();
	struct end c = make_end(context), d = make_end(context);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_device_attr device_attr;
	struct ibv_port_attr port_attr;
	struct ibv_qp_init_attr init_attr;
	struct ibv_qp_attr attr;
	struct ibv_srq *srq;
	struct ibv_mw *mw;
	uint64_t value = 5;

	CHECK(!ibv_query_device(context, &device_attr) && !ibv_query_port(context, 1, &port_attr));
	connect_to(c.qp, d.qp->qp_num);
	connect_to(d.qp, c.qp->qp_num);
	CHECK(!ibv_query_qp(c.qp, &attr, IBV_QP_STATE, &init_attr));
	post_recv(&d, 1, 0);
	for (; value < 30; value++) {
		write_word(&c, &d, value);
		CHECK(completion(&c).status == IBV_WC_SUCCESS);
	}
	CHECK(!ibv_req_notify_cq(c.cq, 0));
	write_word(&c, &d, value);
	/* Longer than the flush timeout of deferred sends and the interval of the progress thread. */
	for (int i = 0; i < 10; i++)
		CHECK(ibv_start_poll(d.cq_ex, &poll_attr) == ENOENT);
	while (ibv_start_poll(c.cq_ex, &poll_attr))
		;
	CHECK(c.cq_ex->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(c.cq_ex) == IBV_WC_RDMA_WRITE);
	ibv_end_poll(c.cq_ex);

	struct ibv_qp_ex *extended = ibv_qp_to_qp_ex(c.qp);
	ibv_wr_start(extended);
	extended->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(extended, d.mr->rkey, (uintptr_t)d.data);
	ibv_wr_set_sge(extended, c.mr->lkey, (uintptr_t)c.data, 8);
	CHECK(!ibv_wr_complete(extended));
	CHECK(completion(&c).status == IBV_WC_SUCCESS);

	MUST(srq = ibv_create_srq(c.pd, &srq_attr));
	FAILS(ibv_destroy_srq(srq), 0);
	MUST(mw = ibv_alloc_mw(c.pd, IBV_MW_TYPE_2));
	FAILS(ibv_dealloc_mw(mw), 0);
	FAILS(ibv_resize_cq(c.cq, 128), 0);
	CHECK(!ibv_alloc_pd(NULL));
	free_end(&c);
	free_end(&d);
	FAILS(ibv_close_device(context), 0);
}

static void use_connections(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct pollfd readable = { .events = POLLIN };
	struct rdma_cm_id *one, *endpoint;
	char port[8];

	MUST(channel);
	readable.fd = channel->fd;
	one = new_id(channel, RDMA_PS_TCP);
	CHECK(!rdma_resolve_addr(one, NULL, address("127.0.0.1", 1), 1000));
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	while (poll(&readable, 1, -1) != 1)
		;
	CHECK(event_is(channel, one, RDMA_CM_EVENT_ADDR_RESOLVED));
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	CHECK(!rdma_resolve_route(one, 1000));
	CHECK(!rdma_destroy_id(one));
	rdma_destroy_event_channel(channel);

	/* Synchronous calls wait for their own events. */
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(passive)));
	CHECK(!rdma_getaddrinfo("127.0.0.1", port, &hints, &found));
	CHECK(!rdma_create_ep(&endpoint, found, NULL, NULL));
	rdma_destroy_ep(endpoint);
	rdma_freeaddrinfo(found);
}

static void use_sockets(void)
{
	struct sockaddr_in here = { .sin_family = AF_INET,
				    .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = rsocket(AF_INET, SOCK_STREAM, 0);
	struct pollfd readable = { .fd = fd, .events = POLLIN };

	MUST(fd >= 0);
	CHECK(!rbind(fd, (struct sockaddr *)&here, sizeof(here)) && !rlisten(fd, 1));
	CHECK(rpoll(&readable, 1, 5) == 0);
	CHECK(!rclose(fd));
}

static void *use_all(void *argument)
{
	(void)argument;
	pthread_cleanup_push(note_cleanup, NULL);
	pthread_cancel(pthread_self());
	use_verbs();
	returned = 1;
	use_connections();
	returned = 2;
	use_sockets();
	returned = 3;
	pthread_testcancel();
	returned = 4;
	pthread_cleanup_pop(0);
	return NULL;
}

/* A thread with a pending cancellation returns from every other call. */
static void other_calls(void)
{
	pthread_t thread;

	setup();
	returned = cleaned = 0;
	MUST(!pthread_create(&thread, NULL, use_all, NULL));
	is_cancelled(thread);
	CHECK(returned == 3);
	write_is_served(9);
	teardown();
}

static void *fork_and_exit(void *argument)
{
	pid_t child;
	int status;

	(void)argument;
	pthread_cancel(pthread_self());
	MUST((child = fork()) >= 0);
	if (child == 0)
		_exit(7);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	MUST(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	exit(failures != 0);
}

/* A thread with a pending cancellation forks, and exits the process in an orderly way. */
static void ends(void)
{
	pthread_t thread;

	setup();
	write_is_served(3);
	MUST(!pthread_create(&thread, NULL, fork_and_exit, NULL));
	MUST(!pthread_join(thread, NULL));
	printf("the thread was cancelled\n");
	failures++;
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "blocked", blocked },
		{ "races", races },
		{ "disabled", disabled },
		{ "does_not_block", does_not_block },
		{ "other_calls", other_calls },
		{ "ends", ends },
	};
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
