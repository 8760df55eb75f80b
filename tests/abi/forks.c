/*
 * Forked children do not affect their parents' connections. The argument selects the case. Each case has
 * a network namespace of its own, in which no other process takes slots and ports.
 */
#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <rdma/rdma_cma.h>

#include "program.h"

static void write_word(struct end *from, struct end *to, uint64_t value)
{
	struct ibv_sge element = sge(from, 0, sizeof(value));
	struct ibv_send_wr *bad, wr = {
		.wr_id = value, .sg_list = &element, .num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)to->data, .rkey = to->mr->rkey },
	};

	memcpy(from->data, &value, sizeof(value));
	MUST(!ibv_post_send(from->qp, &wr, &bad));
	CHECK(completion(from).status == IBV_WC_SUCCESS);
	CHECK(!memcmp(to->data, &value, sizeof(value)));
}

static void connect_both(struct end *a, struct end *b)
{
	connect_to(a->qp, b->qp->qp_num);
	connect_to(b->qp, a->qp->qp_num);
}

static void free_both(struct ibv_context *context, struct end *a, struct end *b)
{
	free_end(a);
	free_end(b);
	FAILS(ibv_close_device(context), 0);
}

static void ends_well(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Whether a process has the slot. */
static int is_taken(uint32_t slot)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	int length = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "urxe/slot/%u", slot);
	int fd = socket(AF_UNIX, SOCK_DGRAM, 0), taken;

	MUST(fd >= 0);
	taken = !connect(fd, (struct sockaddr *)&name,
			 offsetof(struct sockaddr_un, sun_path) + 1 + length);
	close(fd);
	return taken;
}

/* Whether a process has port 4791 of the loopback address, exclusively or shared. */
static int port_is_taken(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(4791),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0), taken;

	MUST(fd >= 0);
	taken = bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0;
	close(fd);
	return taken;
}

/* An idle child that outlives its parent keeps neither its slot nor its port. */
static void outlives(void)
{
	int told[2], status;
	uint32_t qp_num;
	pid_t parent, child;

	MUST(!pipe(told));
	fflush(stdout);
	MUST((parent = fork()) >= 0);
	if (parent == 0) {
		struct ibv_context *context = open_loopback();
		struct end a = make_end(context), b = make_end(context);

		connect_both(&a, &b);
		write_word(&a, &b, 1);
		MUST(write(told[1], &a.qp->qp_num, sizeof(qp_num)) == sizeof(qp_num));
		MUST((child = fork()) >= 0);
		if (child == 0) {
			child = getpid();
			MUST(write(told[1], &child, sizeof(child)) == sizeof(child));
		}
		pause();
		_exit(0);
	}
	MUST(read(told[0], &qp_num, sizeof(qp_num)) == sizeof(qp_num));
	MUST(read(told[0], &child, sizeof(child)) == sizeof(child));
	CHECK(is_taken(qp_num >> 16) && port_is_taken());
	MUST(!kill(parent, SIGKILL));
	MUST(waitpid(parent, &status, 0) == parent);
	CHECK(!kill(child, 0));
	CHECK(!is_taken(qp_num >> 16) && !port_is_taken());
	MUST(!kill(child, SIGKILL));
}

/* Children that exit at once, with and without exit handlers, do not affect the parent. */
static void idle(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	pid_t child;

	connect_both(&a, &b);
	for (uint64_t round = 1; round <= 20; round++) {
		fflush(stdout);
		MUST((child = fork()) >= 0);
		if (child == 0) {
			if (round % 2)
				exit(0);
			_exit(0);
		}
		write_word(&a, &b, 2 * round);
		ends_well(child);
		write_word(&a, &b, 2 * round + 1);
		CHECK(is_taken(a.qp->qp_num >> 16));
	}
	free_both(context, &a, &b);
}

/* exec inherits none of the library's descriptors. */
static void execs(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	pid_t child;

	struct rdma_event_channel *events = rdma_create_event_channel();
	struct ibv_qp_init_attr raw = { .send_cq = a.cq, .recv_cq = a.cq,
					.cap = { .max_send_wr = 1, .max_recv_wr = 1,
						 .max_send_sge = 1, .max_recv_sge = 1 },
					.qp_type = IBV_QPT_RAW_PACKET };
	struct ibv_qp *frames = ibv_create_qp(a.pd, &raw);

	MUST(events);
	/* Packet sockets need CAP_NET_RAW. */
	MUST(frames || errno == EPERM);
	connect_both(&a, &b);
	write_word(&a, &b, 1);
	MUST((child = fork()) >= 0);
	if (child == 0) {
		execl("/bin/sh", "sh", "-c", "! ls -l /proc/self/fd | grep -E 'socket|anon_inode|memfd'",
		      NULL);
		_exit(2);
	}
	ends_well(child);
	write_word(&a, &b, 2);
	if (frames)
		FAILS(ibv_destroy_qp(frames), 0);
	rdma_destroy_event_channel(events);
	free_both(context, &a, &b);
}

/* A child makes its own connections after its parent has exited, as a daemon does. */
static void daemonizes(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	uint32_t parent = a.qp->qp_num >> 16;
	int told[2], ended[2];
	pid_t starter, child;
	char byte = 0;

	connect_both(&a, &b);
	write_word(&a, &b, 1);
	MUST(!pipe(told) && !pipe(ended));
	fflush(stdout);
	MUST((starter = fork()) >= 0);
	if (starter == 0) {
		struct ibv_context *own = open_loopback();
		struct end c = make_end(own), d = make_end(own);
		uint32_t mine = c.qp->qp_num >> 16;

		connect_both(&c, &d);
		CHECK(mine != parent);
		fflush(stdout);
		MUST((child = fork()) >= 0);
		if (child)
			_exit(failures != 0);
		/* While its parent runs, it gets another slot. */
		MUST(read(ended[0], &byte, 1) == 1);
		own = open_loopback();
		c = make_end(own);
		d = make_end(own);
		CHECK(c.qp->qp_num >> 16 == mine);
		connect_both(&c, &d);
		for (uint64_t value = 1; value < 100; value++)
			write_word(&c, &d, value);
		byte = failures != 0;
		MUST(write(told[1], &byte, 1) == 1);
		_exit(0);
	}
	ends_well(starter);
	MUST(write(ended[1], &byte, 1) == 1);
	MUST(read(told[0], &byte, 1) == 1);
	CHECK(byte == 0);
	write_word(&a, &b, 2);
	free_both(context, &a, &b);
}

/* ibv_fork_init() succeeds; fork safety needs no action. */
static void safety(void)
{
	FAILS(ibv_fork_init(), 0);
	CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	MUST(!setenv("RDMAV_FORK_SAFE", "1", 1) && !setenv("IBV_FORK_SAFE", "1", 1));
	MUST(!setenv("RDMAV_HUGEPAGES_SAFE", "1", 1));

	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	pid_t child;

	FAILS(ibv_fork_init(), 0);
	CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	connect_both(&a, &b);
	/* The child's writes to its copy of the regions and the parent's later ones are independent. */
	fflush(stdout);
	MUST((child = fork()) >= 0);
	if (child == 0) {
		memset(a.data, 0xff, SIZE);
		memset(b.data, 0xff, SIZE);
		_exit(0);
	}
	for (uint64_t value = 1; value < 100; value++)
		write_word(&a, &b, value);
	ends_well(child);
	write_word(&a, &b, 100);
	free_both(context, &a, &b);
}

static volatile int has_ended;

static void *list_and_make(void *argument)
{
	struct ibv_context *context = argument;

	while (!has_ended) {
		struct ibv_device **list = ibv_get_device_list(NULL);
		struct ibv_comp_channel *channel = ibv_create_comp_channel(context);

		ibv_free_device_list(list);
		ibv_destroy_comp_channel(channel);
	}
	return NULL;
}

/* Children use the library while threads of the parent do; locks held at fork() do not block them. */
static void busy_parents(void)
{
	enum { THREADS = 4, CHILDREN = 300 };
	struct ibv_context *context = open_loopback();
	pthread_t threads[THREADS];
	pid_t child;

	for (int i = 0; i < THREADS; i++)
		MUST(!pthread_create(&threads[i], NULL, list_and_make, context));
	for (int i = 0; i < CHILDREN; i++) {
		fflush(stdout);
		MUST((child = fork()) >= 0);
		if (child == 0) {
			struct ibv_context *own;

			alarm(20);
			own = open_loopback();
			MUST(ibv_create_comp_channel(own));
			_exit(0);
		}
		ends_well(child);
		if (failures)
			exit(1);
	}
	has_ended = 1;
	for (int i = 0; i < THREADS; i++)
		MUST(!pthread_join(threads[i], NULL));
	FAILS(ibv_close_device(context), 0);
}

static void *fail(void *argument)
{
	/* The message does not fit in the pipe. */
	ibv_dealloc_pd(NULL);
	return argument;
}

/* A child writes messages while a thread of its parent is blocked in writing one. */
static void messages(void)
{
	char filler[4096] = { 0 }, byte;
	int ends[2];
	pthread_t thread;
	pid_t child;

	MUST(!setenv("URXE_LOG", "trace", 1));
	MUST(!pipe(ends) && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
	ibv_free_device_list(ibv_get_device_list(NULL));
	MUST(!fcntl(ends[1], F_SETFL, O_NONBLOCK));
	while (write(ends[1], filler, sizeof(filler)) > 0 || write(ends[1], filler, 1) > 0)
		;
	MUST(!fcntl(ends[1], F_SETFL, 0));
	MUST(!pthread_create(&thread, NULL, fail, NULL));
	/* Long enough for the thread to block in write(2). */
	usleep(200000);
	MUST((child = fork()) >= 0);
	if (child == 0) {
		int null = open("/dev/null", O_WRONLY);

		alarm(20);
		MUST(dup2(null, STDERR_FILENO) == STDERR_FILENO);
		MUST(ibv_dealloc_pd(NULL) == EINVAL);
		_exit(0);
	}
	ends_well(child);
	/* The thread ends when its message is read. */
	MUST(!fcntl(ends[0], F_SETFL, O_NONBLOCK));
	close(ends[1]);
	while (pthread_tryjoin_np(thread, NULL))
		(void)!read(ends[0], &byte, 1);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		{ "outlives", outlives }, { "idle", idle },	{ "execs", execs },
		{ "daemonizes", daemonizes }, { "safety", safety },
		{ "busy_parents", busy_parents }, { "messages", messages },
	};
	own_network();
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
