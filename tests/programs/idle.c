/*
 * The two ends of an idle connection: `idle ADDRESS` listens, `idle ADDRESS connect` connects to it. Each prints
 * "connected", waits for the end of the connection, and prints "ended" with the status of its posted receive.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define MUST(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: %s: %m\n", __LINE__, #condition); \
			exit(2); \
		} \
	} while (0)

static struct rdma_event_channel *channel;

static struct rdma_cm_id *wait_for(enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;

	MUST(!rdma_get_cm_event(channel, &event));
	if (event->event != kind) {
		printf("%s, status %d, in place of %s\n", rdma_event_str(event->event),
		       event->status, rdma_event_str(kind));
		exit(2);
	}
	id = event->id;
	MUST(!rdma_ack_cm_event(event));
	return id;
}

static void make_qp(struct rdma_cm_id *id, char *buffer)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_mr *mr;

	MUST(!rdma_create_qp(id, NULL, &attr));
	MUST((mr = rdma_reg_msgs(id, buffer, 1)));
	MUST(!rdma_post_recv(id, NULL, buffer, 1, mr));
}

int main(int argc, char **argv)
{
	struct addrinfo *address, hints = { .ai_flags = AI_NUMERICHOST };
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *id;
	struct ibv_wc wc;
	static char buffer[1];

	MUST(argc >= 2 && !getaddrinfo(argv[1], "7777", &hints, &address));
	MUST((channel = rdma_create_event_channel()));
	MUST(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	if (argc == 2) {
		MUST(!rdma_bind_addr(id, address->ai_addr) && !rdma_listen(id, 1));
		id = wait_for(RDMA_CM_EVENT_CONNECT_REQUEST);
		make_qp(id, buffer);
		MUST(!rdma_accept(id, &param));
	} else {
		MUST(!rdma_resolve_addr(id, NULL, address->ai_addr, 2000));
		wait_for(RDMA_CM_EVENT_ADDR_RESOLVED);
		MUST(!rdma_resolve_route(id, 2000));
		wait_for(RDMA_CM_EVENT_ROUTE_RESOLVED);
		make_qp(id, buffer);
		MUST(!rdma_connect(id, &param));
	}
	wait_for(RDMA_CM_EVENT_ESTABLISHED);
	puts("connected");
	fflush(stdout);
	wait_for(RDMA_CM_EVENT_DISCONNECTED);
	/* The receive completes without an action of the program. */
	MUST(rdma_get_recv_comp(id, &wc) == 1);
	printf("ended, %s\n", ibv_wc_status_str(wc.status));
	return 0;
}
