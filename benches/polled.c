/* polled empty|send|receive|events COUNT PORT [SERVER]: COUNT operations over a reliable
 * connection,
 * one at a time, each completed by polling, except for "events". "cargo xtask bench --instructions"
 * counts the instructions of the client inside the functions whose names begin with "measured".
 *
 * empty:    the client polls an empty completion queue.
 * send:     the client sends a message of 64 bytes.
 * receive:  the server does.
 * events:   the client sends a message and the server answers; both wait for an event before each
 *           completion. An answer acknowledges its message in a packet of its own: the library
 *           delays an acknowledgement only for programs that answer before they poll in vain, and
 *           these poll before each send.
 *
 * A TCP connection keeps the two in step, so that the number of polls depends little on timing.
 * Usually one poll of each send and receive finds nothing: the one that sends what the library has
 * deferred. The client prints the number of such polls, so that their cost can be subtracted.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define SIZE 64
#define DEPTH 16
/* Polls after each operation: so many that the library takes the client for a program that polls all the time. */
#define MORE_POLLS 8

static char buffer[SIZE];
static struct ibv_mr *region;
static unsigned long empty_polls;

static void check(int is_good, const char *what)
{
	if (!is_good) {
		perror(what);
		exit(1);
	}
}

/* Opens the control connection; the server returns when the client has connected. */
static int control_socket(const char *server, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0), listener = fd, one = 1;

	if (server) {
		check(inet_pton(AF_INET, server, &address.sin_addr) == 1, "address");
		check(!connect(fd, (struct sockaddr *)&address, sizeof(address)), "connect");
		return fd;
	}
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	check(!bind(fd, (struct sockaddr *)&address, sizeof(address)), "bind");
	check(!listen(fd, 1), "listen");
	fd = accept(listener, NULL, NULL);
	check(fd >= 0, "accept");
	close(listener);
	return fd;
}

static void notify(int control)
{
	check(write(control, "", 1) == 1, "write");
}

static void await(int control)
{
	char byte;

	check(read(control, &byte, 1) == 1, "read");
}

static struct rdma_cm_id *endpoint(const char *server, const char *port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = server ? 0 : RAI_PASSIVE }, *address;
	struct ibv_qp_init_attr attributes = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;

	check(!rdma_getaddrinfo((char *)server, (char *)port, &hints, &address), "rdma_getaddrinfo");
	check(!rdma_create_ep(&id, address, NULL, &attributes), "rdma_create_ep");
	rdma_freeaddrinfo(address);
	return id;
}

static __attribute__((noinline)) void measured_send(struct rdma_cm_id *id)
{
	struct ibv_sge element = { .addr = (uintptr_t)buffer, .length = SIZE, .lkey = region->lkey };
	struct ibv_send_wr work = { .sg_list = &element, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	check(!ibv_post_send(id->qp, &work, &bad), "ibv_post_send");
}

static __attribute__((noinline)) void measured_receive(struct rdma_cm_id *id)
{
	struct ibv_sge element = { .addr = (uintptr_t)buffer, .length = SIZE, .lkey = region->lkey };
	struct ibv_recv_wr work = { .sg_list = &element, .num_sge = 1 }, *bad;

	check(!ibv_post_recv(id->qp, &work, &bad), "ibv_post_recv");
}

static __attribute__((noinline)) int measured_poll(struct ibv_cq *queue, struct ibv_wc *completion)
{
	return ibv_poll_cq(queue, 1, completion);
}

static void prepare(struct rdma_cm_id *id, int events)
{
	region = rdma_reg_msgs(id, buffer, SIZE);
	check(region != NULL, "rdma_reg_msgs");
	for (int i = 0; i < DEPTH; i++)
		check(!rdma_post_recv(id, NULL, buffer, SIZE, region), "rdma_post_recv");
	if (events) {
		check(!ibv_req_notify_cq(id->send_cq, 0), "ibv_req_notify_cq");
		check(!ibv_req_notify_cq(id->recv_cq, 0), "ibv_req_notify_cq");
	}
}

/* Waits for the event of a queue, requests the next one, and takes the completion. */
static __attribute__((noinline)) void measured_wait(struct ibv_comp_channel *channel)
{
	struct ibv_wc completion;
	struct ibv_cq *queue;
	void *context;

	check(!ibv_get_cq_event(channel, &queue, &context), "ibv_get_cq_event");
	ibv_ack_cq_events(queue, 1);
	check(!ibv_req_notify_cq(queue, 0), "ibv_req_notify_cq");
	check(ibv_poll_cq(queue, 1, &completion) == 1 && completion.status == IBV_WC_SUCCESS,
	      "completion");
}

/* Polls an empty queue. A poll right after a completion receives nothing, and does not count. */
static void poll_in_vain(struct ibv_cq *queue)
{
	struct ibv_wc completion;

	for (int polls = 0; polls < 2; polls++)
		check(!ibv_poll_cq(queue, 1, &completion), "ibv_poll_cq");
}

/* Polls once. Returns the number of completions, and counts the polls that find none. */
static int poll_once(struct ibv_cq *queue)
{
	struct ibv_wc completion;
	int count = measured_poll(queue, &completion);

	check(count >= 0, "ibv_poll_cq");
	check(!count || completion.status == IBV_WC_SUCCESS, "completion");
	empty_polls += !count;
	return count;
}

static void serve(struct rdma_cm_id *id, int control, const char *mode, long count)
{
	int done = 0;

	for (long i = 0; i < count; i++) {
		if (!strcmp(mode, "send")) {
			while (!poll_once(id->recv_cq))
				;
			measured_receive(id);
			/* Sends the acknowledgement. */
			poll_once(id->recv_cq);
			notify(control);
		} else if (!strcmp(mode, "events")) {
			measured_wait(id->recv_cq_channel);
			measured_receive(id);
			poll_in_vain(id->recv_cq);
			await(control);
			measured_send(id);
			measured_wait(id->send_cq_channel);
		} else if (!strcmp(mode, "receive")) {
			await(control);
			measured_send(id);
			/* Sends the message. */
			done = poll_once(id->send_cq);
			notify(control);
			while (!done)
				done = poll_once(id->send_cq);
		}
	}
	/* The client is done. */
	await(control);
}

static void use(struct rdma_cm_id *id, int control, const char *mode, long count)
{
	int polls_all_the_time = !strcmp(mode, "send") || !strcmp(mode, "receive");
	struct ibv_wc completion;
	int done;

	for (long i = 0; i < count; i++) {
		if (!strcmp(mode, "send")) {
			measured_send(id);
			done = poll_once(id->send_cq);
			await(control);
			while (!done)
				done = poll_once(id->send_cq);
		} else if (!strcmp(mode, "receive")) {
			notify(control);
			await(control);
			while (!poll_once(id->recv_cq))
				;
			measured_receive(id);
			poll_once(id->recv_cq);
		} else if (!strcmp(mode, "events")) {
			measured_send(id);
			measured_wait(id->send_cq_channel);
			notify(control);
			measured_wait(id->recv_cq_channel);
			measured_receive(id);
			poll_in_vain(id->recv_cq);
		} else {
			poll_once(id->send_cq);
		}
		for (int polls = 0; polls < MORE_POLLS && polls_all_the_time; polls++)
			check(ibv_poll_cq(id->send_cq, 1, &completion) == 0, "ibv_poll_cq");
	}
	notify(control);
	printf("empty %lu\n", polls_all_the_time ? empty_polls : 0);
}

int main(int argc, char **argv)
{
	const char *server = argc > 4 ? argv[4] : NULL;
	struct rdma_cm_id *id, *listener;
	long count;
	int control;

	if (argc < 4) {
		fprintf(stderr, "usage: polled empty|send|receive|events COUNT PORT [SERVER]\n");
		return 2;
	}
	count = atol(argv[2]);
	if (server) {
		control = control_socket(server, atoi(argv[3]));
		id = endpoint(server, argv[3]);
		prepare(id, !strcmp(argv[1], "events"));
		check(!rdma_connect(id, NULL), "rdma_connect");
		use(id, control, argv[1], count);
	} else {
		listener = endpoint(NULL, argv[3]);
		check(!rdma_listen(listener, 1), "rdma_listen");
		control = control_socket(NULL, atoi(argv[3]));
		check(!rdma_get_request(listener, &id), "rdma_get_request");
		prepare(id, !strcmp(argv[1], "events"));
		check(!rdma_accept(id, NULL), "rdma_accept");
		serve(id, control, argv[1], count);
	}
	rdma_disconnect(id);
	return 0;
}
