/* connection CASE serve ADDRESS, connection CASE ask ADDRESS SERVER: connection management beyond existing
 * programs: private data of maximum length, parameters, and every rejection and disconnection.
 *
 * Each side checks its events, and prints the first difference. The client's identifier is bound to its
 * ADDRESS.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define PORT 7475
/* In seconds; longer than any case takes. */
#define CASE_TIMEOUT 80
/* The idle time in seconds: longer than the keep-alive timeout that the plan sets for urxe. */
#define IDLE 8
/* The maximum lengths of private data; requests have 36 bytes less, for the IP CM header. */
#define IN_REQ 56
#define IN_REP 196
#define IN_REJ 148
#define IN_SIDR_REQ 180
#define IN_SIDR_REP 136
#define MOST 196
/* Reasons in a REJ, and statuses in a SIDR_REP. */
#define CONSUMER_REJECT 28
#define SIDR_REJECT 2

#define CHECK(truth)                                                                          \
	do {                                                                                  \
		if (!(truth))                                                                 \
			die(#truth, __LINE__);                                                \
	} while (0)

static struct rdma_event_channel *channel;
static uint8_t private_data[MOST];
/* The receive buffer and the send buffer. */
static char message[2];
static struct ibv_mr *message_mr;

static void die(const char *what, int line)
{
	fprintf(stderr, "connection: line %d: not so: %s (%s)\n", line, what, strerror(errno));
	exit(1);
}

static struct sockaddr *address(const char *text, uint16_t port, struct sockaddr_storage *storage)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)storage;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)storage;

	memset(storage, 0, sizeof(*storage));
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
	} else {
		CHECK(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1);
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
	}
	return (struct sockaddr *)storage;
}

/* Returns the next event, which must have this type. */
static struct rdma_cm_event *next(enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != wanted) {
		fprintf(stderr, "connection: %s with status %d instead of %s\n",
			rdma_event_str(event->event), event->status, rdma_event_str(wanted));
		exit(1);
	}
	return event;
}

/* The same; returns its status. */
static void expect(enum rdma_cm_event_type wanted, int status)
{
	struct rdma_cm_event *event = next(wanted);

	if (event->status != status)
		fprintf(stderr, "connection: %s has status %d, not %d\n", rdma_event_str(wanted),
			event->status, status);
	CHECK(event->status == status);
	CHECK(!rdma_ack_cm_event(event));
}

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = id->ps == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC,
	};

	CHECK(!rdma_create_qp(id, NULL, &attr));
}

static struct rdma_conn_param with_data(size_t length)
{
	return (struct rdma_conn_param){
		.private_data = private_data,
		.private_data_len = length,
		.responder_resources = 1,
		.initiator_depth = 1,
		/* 7 retries without limit. */
		.retry_count = 3,
		.rnr_retry_count = 7,
	};
}

/* Posts a receive for a message of one byte. */
static void expect_message(struct rdma_cm_id *id)
{
	message_mr = rdma_reg_msgs(id, message, sizeof(message));
	CHECK(message_mr);
	CHECK(!rdma_post_recv(id, NULL, &message[0], 1, message_mr));
}

static void send_message(struct rdma_cm_id *id)
{
	if (!message_mr)
		message_mr = rdma_reg_msgs(id, message, sizeof(message));
	CHECK(message_mr);
	CHECK(!rdma_post_send(id, NULL, &message[1], 1, message_mr, IBV_SEND_SIGNALED));
}

/* Checks the status of the next completion. */
static void completes(struct ibv_cq *cq, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		usleep(1000);
	CHECK(n == 1);
	if (wc.status != status)
		fprintf(stderr, "connection: %s, not %s\n", ibv_wc_status_str(wc.status),
			ibv_wc_status_str(status));
	CHECK(wc.status == status);
}

static int is_quiet(void)
{
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 0;
}

static void accept_with(struct rdma_cm_id *id, size_t length)
{
	struct rdma_conn_param param = with_data(length);

	if (id->qp)
		param.qp_num = id->qp->qp_num;
	CHECK(!rdma_accept(id, &param));
}

static void connect_with(struct rdma_cm_id *id, size_t length)
{
	struct rdma_conn_param param = with_data(length);

	CHECK(!rdma_connect(id, &param));
}

static int is_private_data(const void *data, size_t have, size_t length)
{
	return have == length && !memcmp(data, private_data, length);
}

/* Establishes the client's connection. */
static void ask_for_connection(struct rdma_cm_id *id)
{
	make_qp(id);
	connect_with(id, 0);
	expect(RDMA_CM_EVENT_ESTABLISHED, 0);
}

/* Establishes the server's connection. */
static void grant_connection(struct rdma_cm_id *id)
{
	make_qp(id);
	accept_with(id, 0);
	expect(RDMA_CM_EVENT_ESTABLISHED, 0);
}

static void end(struct rdma_cm_id *id)
{
	CHECK(!rdma_disconnect(id));
	expect(RDMA_CM_EVENT_DISCONNECTED, 0);
}

static void be_ended(struct rdma_cm_id *id)
{
	expect(RDMA_CM_EVENT_DISCONNECTED, 0);
	CHECK(!rdma_disconnect(id));
}

/* private-data: REQ and REP with private data of maximum length. */

static void ask_private_data(struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;

	make_qp(id);
	connect_with(id, IN_REQ);
	event = next(RDMA_CM_EVENT_ESTABLISHED);
	CHECK(is_private_data(event->param.conn.private_data, event->param.conn.private_data_len, IN_REP));
	CHECK(!rdma_ack_cm_event(event));
	end(id);
}

static void serve_private_data(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	const struct rdma_conn_param *param = &request->param.conn;

	CHECK(is_private_data(param->private_data, param->private_data_len, IN_REQ));
	make_qp(id);
	accept_with(id, IN_REP);
	expect(RDMA_CM_EVENT_ESTABLISHED, 0);
	be_ended(id);
}

/* parameters: the negotiated parameters in the events and in the queue pairs. */

static void check_qp(struct rdma_cm_id *id, int responder, int initiator, int retry, int rnr_retry)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	CHECK(!ibv_query_qp(id->qp, &attr,
			    IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_RETRY_CNT |
				    IBV_QP_RNR_RETRY,
			    &init));
	CHECK(attr.max_dest_rd_atomic == responder);
	CHECK(attr.max_rd_atomic == initiator);
	CHECK(attr.retry_cnt == retry);
	CHECK(attr.rnr_retry == rnr_retry);
}

static void ask_parameters(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = with_data(0);
	struct rdma_cm_event *event;

	make_qp(id);
	param.responder_resources = 8;
	param.initiator_depth = 16;
	param.retry_count = 6;
	param.rnr_retry_count = 5;
	CHECK(!rdma_connect(id, &param));
	event = next(RDMA_CM_EVENT_ESTABLISHED);
	param = event->param.conn;
	CHECK(param.responder_resources == 2 && param.initiator_depth == 4);
	CHECK(param.rnr_retry_count == 3);
	CHECK(!rdma_ack_cm_event(event));
	check_qp(id, 2, 4, 6, 3);
	end(id);
}

static void serve_parameters(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	struct rdma_conn_param param = request->param.conn;

	CHECK(param.responder_resources == 16 && param.initiator_depth == 8);
	CHECK(param.retry_count == 6 && param.rnr_retry_count == 5);
	make_qp(id);
	param = with_data(0);
	param.responder_resources = 4;
	param.initiator_depth = 2;
	param.rnr_retry_count = 3;
	CHECK(!rdma_accept(id, &param));
	expect(RDMA_CM_EVENT_ESTABLISHED, 0);
	check_qp(id, 4, 2, 6, 5);
	be_ended(id);
}

/* rejected: the server rejects with private data. */

static void ask_rejected(struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;

	make_qp(id);
	connect_with(id, 0);
	event = next(RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == CONSUMER_REJECT);
	CHECK(is_private_data(event->param.conn.private_data, event->param.conn.private_data_len, IN_REJ));
	CHECK(!rdma_ack_cm_event(event));
}

static void serve_rejected(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	(void)request;
	CHECK(!rdma_reject(id, private_data, IN_REJ));
}

/* reply-rejected: the client has its own queue pair, and rejects the REP. */

static void ask_reply_rejected(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = with_data(0);

	param.qp_num = 0x1234;
	CHECK(!rdma_connect(id, &param));
	expect(RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
	CHECK(!rdma_reject(id, private_data, IN_REJ));
}

static void serve_reply_rejected(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	struct rdma_cm_event *event;

	CHECK(request->param.conn.qp_num == 0x1234);
	make_qp(id);
	accept_with(id, 0);
	event = next(RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == CONSUMER_REJECT);
	CHECK(is_private_data(event->param.conn.private_data, event->param.conn.private_data_len, IN_REJ));
	CHECK(!rdma_ack_cm_event(event));
}

/* given-up: the client destroys its identifier before it gets a reply. */

static void ask_given_up(struct rdma_cm_id *id)
{
	make_qp(id);
	connect_with(id, 0);
	sleep(2);
}

static void serve_given_up(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	struct rdma_conn_param param = with_data(0);

	(void)request;
	make_qp(id);
	sleep(6);
	CHECK(rdma_accept(id, &param) == -1);
}

/* server-ends, both-end. */

static void serve_and_end(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	(void)request;
	grant_connection(id);
	end(id);
}

static void ask_and_be_ended(struct rdma_cm_id *id)
{
	ask_for_connection(id);
	be_ended(id);
}

static void ask_and_end(struct rdma_cm_id *id)
{
	ask_for_connection(id);
	end(id);
}

/* exited, killed: the client's process ends without disconnecting. */

static void ask_and_exit(struct rdma_cm_id *id)
{
	ask_for_connection(id);
	exit(0);
}

static void ask_and_be_killed(struct rdma_cm_id *id)
{
	ask_for_connection(id);
	raise(SIGKILL);
}

static void serve_and_be_ended(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	(void)request;
	grant_connection(id);
	be_ended(id);
}

/* server-killed: the same for the server's process. */

static void serve_and_be_killed(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	(void)request;
	grant_connection(id);
	raise(SIGKILL);
}

/* killed-silently, server-killed-silently: no DREQ is sent for a killed urxe process. A peer without
 * keep-alive probes detects the end when it sends. */

static void find_out(struct rdma_cm_id *id)
{
	sleep(IDLE);
	CHECK(is_quiet());
	send_message(id);
	completes(id->send_cq, IBV_WC_RETRY_EXC_ERR);
}

static void ask_and_find_out(struct rdma_cm_id *id)
{
	ask_for_connection(id);
	find_out(id);
}

static void serve_and_find_out(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	(void)request;
	grant_connection(id);
	find_out(id);
}

/* idle: the connection is idle for longer than urxe's keep-alive timeout, then carries a message in each
 * direction. */

static void idle(struct rdma_cm_id *id)
{
	sleep(IDLE);
	CHECK(is_quiet());
	send_message(id);
	completes(id->send_cq, IBV_WC_SUCCESS);
	completes(id->recv_cq, IBV_WC_SUCCESS);
}

static void ask_idle(struct rdma_cm_id *id)
{
	make_qp(id);
	expect_message(id);
	connect_with(id, 0);
	expect(RDMA_CM_EVENT_ESTABLISHED, 0);
	idle(id);
	end(id);
}

static void serve_idle(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	(void)request;
	make_qp(id);
	expect_message(id);
	accept_with(id, 0);
	expect(RDMA_CM_EVENT_ESTABLISHED, 0);
	idle(id);
	be_ended(id);
}

/* vanished, server-vanished: packets from rxe's host are dropped while urxe waits for a message. urxe probes,
 * ends the connection, and sends a DREQ, which rxe's host receives. */

static void vanish(struct rdma_cm_id *id)
{
	CHECK(!system("tc qdisc add dev va root netem loss 100%"));
	be_ended(id);
}

static void miss(struct rdma_cm_id *id)
{
	expect(RDMA_CM_EVENT_DISCONNECTED, 0);
	completes(id->recv_cq, IBV_WC_WR_FLUSH_ERR);
	/* The DREQ is sent before the process exits. */
	CHECK(!rdma_disconnect(id));
}

static void ask_and_vanish(struct rdma_cm_id *id)
{
	ask_for_connection(id);
	vanish(id);
}

static void serve_and_vanish(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	(void)request;
	grant_connection(id);
	vanish(id);
}

static void ask_and_miss(struct rdma_cm_id *id)
{
	make_qp(id);
	expect_message(id);
	connect_with(id, 0);
	expect(RDMA_CM_EVENT_ESTABLISHED, 0);
	miss(id);
}

static void serve_and_miss(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	(void)request;
	make_qp(id);
	expect_message(id);
	accept_with(id, 0);
	expect(RDMA_CM_EVENT_ESTABLISHED, 0);
	miss(id);
}

/* resolution, resolution-rejected: datagram services. */

static void ask_resolution(struct rdma_cm_id *id)
{
	struct rdma_ud_param *param;
	struct rdma_cm_event *event;
	uint32_t qpn;

	make_qp(id);
	connect_with(id, IN_SIDR_REQ);
	event = next(RDMA_CM_EVENT_ESTABLISHED);
	param = &event->param.ud;
	CHECK(param->qkey == RDMA_UDP_QKEY);
	CHECK(param->private_data_len == IN_SIDR_REP);
	memcpy(&qpn, param->private_data, sizeof(qpn));
	CHECK(param->qp_num == ntohl(qpn));
	CHECK(!memcmp((uint8_t *)param->private_data + 4, private_data + 4, IN_SIDR_REP - 4));
	CHECK(!rdma_ack_cm_event(event));
}

static void serve_resolution(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	const struct rdma_ud_param *param = &request->param.ud;
	uint32_t qpn;

	CHECK(is_private_data(param->private_data, param->private_data_len, IN_SIDR_REQ));
	make_qp(id);
	qpn = htonl(id->qp->qp_num);
	memcpy(private_data, &qpn, sizeof(qpn));
	accept_with(id, IN_SIDR_REP);
	/* The kernel does not report the completion of its side. */
	sleep(1);
}

static void ask_resolution_rejected(struct rdma_cm_id *id)
{
	make_qp(id);
	connect_with(id, 0);
	expect(RDMA_CM_EVENT_UNREACHABLE, SIDR_REJECT);
}

static void serve_resolution_rejected(struct rdma_cm_id *id, const struct rdma_cm_event *request)
{
	(void)request;
	CHECK(!rdma_reject(id, private_data, IN_SIDR_REP));
}

static const struct test {
	const char *name;
	enum rdma_port_space space;
	void (*ask)(struct rdma_cm_id *id);
	void (*serve)(struct rdma_cm_id *id, const struct rdma_cm_event *request);
} tests[] = {
	{ "private-data", RDMA_PS_TCP, ask_private_data, serve_private_data },
	{ "parameters", RDMA_PS_TCP, ask_parameters, serve_parameters },
	{ "rejected", RDMA_PS_TCP, ask_rejected, serve_rejected },
	{ "reply-rejected", RDMA_PS_TCP, ask_reply_rejected, serve_reply_rejected },
	{ "given-up", RDMA_PS_TCP, ask_given_up, serve_given_up },
	{ "server-ends", RDMA_PS_TCP, ask_and_be_ended, serve_and_end },
	{ "both-end", RDMA_PS_TCP, ask_and_end, serve_and_end },
	{ "exited", RDMA_PS_TCP, ask_and_exit, serve_and_be_ended },
	{ "killed", RDMA_PS_TCP, ask_and_be_killed, serve_and_be_ended },
	{ "server-killed", RDMA_PS_TCP, ask_and_be_ended, serve_and_be_killed },
	{ "killed-silently", RDMA_PS_TCP, ask_and_be_killed, serve_and_find_out },
	{ "server-killed-silently", RDMA_PS_TCP, ask_and_find_out, serve_and_be_killed },
	{ "idle", RDMA_PS_TCP, ask_idle, serve_idle },
	{ "vanished", RDMA_PS_TCP, ask_and_vanish, serve_and_miss },
	{ "server-vanished", RDMA_PS_TCP, ask_and_miss, serve_and_vanish },
	{ "resolution", RDMA_PS_UDP, ask_resolution, serve_resolution },
	{ "resolution-rejected", RDMA_PS_UDP, ask_resolution_rejected, serve_resolution_rejected },
};

static void ask(const struct test *test, const char *from, const char *to)
{
	struct sockaddr_storage mine, theirs;
	struct rdma_cm_id *id;

	CHECK(!rdma_create_id(channel, &id, NULL, test->space));
	CHECK(!rdma_resolve_addr(id, address(from, 0, &mine), address(to, PORT, &theirs), 5000));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
	CHECK(!rdma_resolve_route(id, 5000));
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
	test->ask(id);
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

static void serve(const struct test *test, const char *at)
{
	struct rdma_cm_id *listener, *id;
	struct sockaddr_storage mine;
	struct rdma_cm_event *request;

	CHECK(!rdma_create_id(channel, &listener, NULL, test->space));
	CHECK(!rdma_bind_addr(listener, address(at, PORT, &mine)));
	CHECK(!rdma_listen(listener, 8));
	request = next(RDMA_CM_EVENT_CONNECT_REQUEST);
	id = request->id;
	test->serve(id, request);
	CHECK(!rdma_ack_cm_event(request));
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
	CHECK(!rdma_destroy_id(listener));
}

int main(int argc, char **argv)
{
	const struct test *test = tests;
	size_t at;

	alarm(CASE_TIMEOUT);
	for (at = 0; at < sizeof(private_data); at++)
		private_data[at] = (at * 7 + 1) & 0xff;
	for (at = 0; argc > 1 && at < sizeof(tests) / sizeof(*tests); at++, test++)
		if (!strcmp(test->name, argv[1]))
			break;
	if (argc < 4 || at == sizeof(tests) / sizeof(*tests)) {
		fprintf(stderr, "usage: connection CASE serve ADDRESS | ask ADDRESS SERVER\n");
		return 2;
	}
	channel = rdma_create_event_channel();
	CHECK(channel);
	if (!strcmp(argv[2], "serve"))
		serve(test, argv[3]);
	else if (argc > 4)
		ask(test, argv[3], argv[4]);
	rdma_destroy_event_channel(channel);
	return 0;
}
