/* grant ADDRESS [read-only]: a target for `urxe fuzz`.
 *
 * It accepts every connection to PORT, grants remote access to memory, and keeps receives posted.
 * The private data of its reply describes the memory. With `read-only` it refuses the WRITEs and
 * atomics that the private data promises.
 *
 * It prints `listening` when it listens, and runs until it is killed. It exits with status 1 only
 * if a call fails or a byte outside of the granted memory has changed.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/rdma_cma.h>

#define PORT 7471
#define GRANTED 4096
/* The granted memory has guard areas of the same size on both sides. */
#define GUARD 4096
#define GUARD_BYTE 0xa5
#define RECEIVES 64
#define RECEIVE 1024
#define REMOTE (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)

#define CHECK(truth)                                                                          \
	do {                                                                                  \
		if (!(truth)) {                                                               \
			fprintf(stderr, "grant: line %d: failed: %s (%s)\n", __LINE__, #truth, \
				strerror(errno));                                             \
			exit(1);                                                              \
		}                                                                             \
	} while (0)

struct grant {
	char urxe[4];
	uint64_t addr;
	uint32_t rkey, len, receive;
} __attribute__((packed));

static int granted_access = IBV_ACCESS_LOCAL_WRITE | REMOTE;
static struct rdma_event_channel *channel;
static struct ibv_pd *pd;
static struct ibv_mr *granted, *receives;
static uint8_t memory[GUARD + GRANTED + GUARD] __attribute__((aligned(4096)));
static uint8_t received[RECEIVES * RECEIVE];

static void check_guards(void)
{
	for (int i = 0; i < GUARD; i++)
		CHECK(memory[i] == GUARD_BYTE && memory[GUARD + GRANTED + i] == GUARD_BYTE);
}

static void prepare(struct ibv_context *context)
{
	if (pd)
		return;
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((granted = ibv_reg_mr(pd, memory + GUARD, GRANTED, granted_access)));
	CHECK((receives = ibv_reg_mr(pd, received, sizeof(received), IBV_ACCESS_LOCAL_WRITE)));
}

static void post(struct ibv_qp *qp, uint64_t slot)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)(received + slot * RECEIVE),
		.length = RECEIVE,
		.lkey = receives->lkey,
	};
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = &sge, .num_sge = 1 }, *bad;

	/* In the error state the receive is flushed. */
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void serve(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct grant grant = { .urxe = "urxe" };
	struct rdma_conn_param param = {
		.private_data = &grant,
		.private_data_len = sizeof(grant),
		.responder_resources = 4,
		.initiator_depth = 1,
		.rnr_retry_count = 7,
	};

	prepare(id->verbs);
	CHECK((init.recv_cq = ibv_create_cq(id->verbs, RECEIVES + 1, NULL, NULL, 0)));
	init.send_cq = init.recv_cq;
	CHECK(!rdma_create_qp(id, pd, &init));
	for (int slot = 0; slot < RECEIVES; slot++)
		post(id->qp, slot);
	id->context = init.recv_cq;
	grant.addr = htobe64((uintptr_t)granted->addr);
	grant.rkey = htobe32(granted->rkey);
	grant.len = htobe32(GRANTED);
	grant.receive = htobe32(RECEIVE);
	CHECK(!rdma_accept(id, &param));
}

static void take_down(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = id->context;

	rdma_destroy_qp(id);
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!rdma_destroy_id(id));
	check_guards();
}

/* The present connections: a peer has one at a time, and may open the next one before the last has ended. */
#define MAX_CONNECTIONS 64
static struct rdma_cm_id *connected[MAX_CONNECTIONS];

static void replace(struct rdma_cm_id *old, struct rdma_cm_id *new)
{
	for (int i = 0; i < MAX_CONNECTIONS; i++) {
		if (connected[i] == old) {
			connected[i] = new;
			return;
		}
	}
	CHECK(!"room for one more connection");
}

static void handle(struct rdma_cm_event *event)
{
	struct rdma_cm_id *id = event->id;
	enum rdma_cm_event_type type = event->event;

	CHECK(!rdma_ack_cm_event(event));
	switch (type) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		serve(id);
		replace(NULL, id);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		rdma_disconnect(id);
		/* fall through */
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
		replace(id, NULL);
		take_down(id);
		break;
	default:
		break;
	}
}

/* Posts completed receives again. */
static void repost(struct rdma_cm_id *id)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(id->context, 1, &wc) > 0) {
		if (wc.status == IBV_WC_SUCCESS)
			post(id->qp, wc.wr_id);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(PORT) };
	struct sockaddr *address = (struct sockaddr *)&v4;
	struct rdma_cm_event *event;
	struct rdma_cm_id *listener;

	CHECK(argc == 2 || (argc == 3 && !strcmp(argv[2], "read-only")));
	if (argc == 3)
		granted_access = IBV_ACCESS_REMOTE_READ;
	if (inet_pton(AF_INET, argv[1], &v4.sin_addr) != 1) {
		CHECK(inet_pton(AF_INET6, argv[1], &v6.sin6_addr) == 1);
		address = (struct sockaddr *)&v6;
	}
	memset(memory, GUARD_BYTE, sizeof(memory));
	CHECK((channel = rdma_create_event_channel()));
	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, address));
	CHECK(!rdma_listen(listener, 16));
	CHECK(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	printf("listening\n");
	fflush(stdout);
	for (;;) {
		struct pollfd fd = { .fd = channel->fd, .events = POLLIN };

		poll(&fd, 1, 1);
		if (!rdma_get_cm_event(channel, &event))
			handle(event);
		for (int i = 0; i < MAX_CONNECTIONS; i++) {
			if (connected[i])
				repost(connected[i]);
		}
	}
}
