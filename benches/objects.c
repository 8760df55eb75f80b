/* objects KIND COUNT NUMBER: creates COUNT objects, and prints the time and the memory that each
 * takes: "KIND COUNT MICROSECONDS BYTES". The bytes are those of resident memory. The process keeps
 * the objects until its standard input ends. "cargo xtask bench --objects" runs it.
 *
 * Several processes with different NUMBERs from 0 share a large count. A process has 65,534 queue
 * pair numbers, and a descriptor for each connection that it has requested.
 *
 * mr:          memory regions of 4096 bytes, all of the same memory.
 * cq:          completion queues of 15 entries.
 * qp:          queue pairs with queues of 16 entries, in RESET.
 * connected:   the same, connected in pairs by ibv_modify_qp. Each counts.
 * connection:  connections of the connection manager, with both ends in this process: two
 *              identifiers and two queue pairs with queues of 16 entries.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define ENTRIES 16
/* Objects that are created first, so that what exists once does not count. */
#define FIRST 16
/* Connections that are in progress at the same time. */
#define BATCH 1000

static char memory[4096];
static struct ibv_context *context;
static struct ibv_pd *domain;
static struct ibv_cq *completions;
static union ibv_gid gid;

static void check(int is_good, const char *what)
{
	if (!is_good) {
		perror(what);
		exit(1);
	}
}

static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static double resident_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	unsigned long all, resident;

	check(file && fscanf(file, "%lu %lu", &all, &resident) == 2, "/proc/self/statm");
	fclose(file);
	return (double)resident * sysconf(_SC_PAGESIZE);
}

static struct ibv_qp_init_attr queues(struct ibv_cq *cq)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = ENTRIES, .max_recv_wr = ENTRIES,
			 .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
}

static struct ibv_qp *queue_pair(void)
{
	struct ibv_qp_init_attr init = queues(completions);
	struct ibv_qp *qp = ibv_create_qp(domain, &init);

	check(qp != NULL, "ibv_create_qp");
	return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			     IBV_QP_ACCESS_FLAGS), "INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = gid, .hop_limit = 1 } },
	};
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			     IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			     IBV_QP_MIN_RNR_TIMER), "RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

static void regions(int count)
{
	for (int i = 0; i < count; i++)
		check(ibv_reg_mr(domain, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE) != NULL,
		      "ibv_reg_mr");
}

static void completion_queues(int count)
{
	for (int i = 0; i < count; i++)
		check(ibv_create_cq(context, 15, NULL, NULL, 0) != NULL, "ibv_create_cq");
}

static void queue_pairs(int count)
{
	for (int i = 0; i < count; i++)
		queue_pair();
}

static void connected_queue_pairs(int count)
{
	for (int i = 0; i < count; i += 2) {
		struct ibv_qp *a = queue_pair(), *b = queue_pair();

		connect_to(a, b);
		connect_to(b, a);
	}
}

/* The two ends of the connections. */
static struct rdma_event_channel *listening, *connecting;
static struct sockaddr_in server = { .sin_family = AF_INET };
/* The address from which this process connects. Each has about 28,000 ports. */
static in_addr_t source;

static struct rdma_event_channel *channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();

	check(channel && !fcntl(channel->fd, F_SETFL, O_NONBLOCK), "rdma_create_event_channel");
	return channel;
}

static void create_qp(struct rdma_cm_id *id)
{
	/* Each device that an identifier may be bound to has a context of its own. */
	static struct ibv_context *verbs;
	static struct ibv_pd *pd;
	static struct ibv_cq *cq;
	struct ibv_qp_init_attr init;

	if (!pd) {
		verbs = id->verbs;
		pd = ibv_alloc_pd(verbs);
		cq = ibv_create_cq(verbs, ENTRIES, NULL, NULL, 0);
		check(pd && cq, "ibv_create_cq");
	}
	check(id->verbs == verbs, "all connections over one device");
	init = queues(cq);
	check(!rdma_create_qp(id, pd, &init), "rdma_create_qp");
}

/* Takes the events of a channel. Returns how many were ESTABLISHED. */
static int take_events(struct rdma_event_channel *channel)
{
	struct rdma_conn_param parameters = { .responder_resources = 1, .initiator_depth = 1,
					      .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;
	int established = 0;

	while (!rdma_get_cm_event(channel, &event)) {
		struct rdma_cm_id *id = event->id;
		enum rdma_cm_event_type type = event->event;

		check(!rdma_ack_cm_event(event), "rdma_ack_cm_event");
		switch (type) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			check(!rdma_resolve_route(id, 2000), "rdma_resolve_route");
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			create_qp(id);
			check(!rdma_connect(id, &parameters), "rdma_connect");
			break;
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			create_qp(id);
			check(!rdma_accept(id, &parameters), "rdma_accept");
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			established++;
			break;
		default:
			fprintf(stderr, "%s\n", rdma_event_str(type));
			exit(1);
		}
	}
	check(errno == EAGAIN, "rdma_get_cm_event");
	return established;
}

static void connections(int count)
{
	if (!listening) {
		struct rdma_cm_id *listener;

		listening = channel();
		connecting = channel();
		check(!rdma_create_id(listening, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
		check(!rdma_bind_addr(listener, (struct sockaddr *)&server), "rdma_bind_addr");
		check(!rdma_listen(listener, BATCH), "rdma_listen");
		server.sin_port = rdma_get_src_port(listener);
		server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	}
	while (count > 0) {
		int batch = count < BATCH ? count : BATCH, established = 0;

		for (int i = 0; i < batch; i++) {
			struct sockaddr_in from = { .sin_family = AF_INET };
			struct rdma_cm_id *id;

			from.sin_addr.s_addr = source;
			check(!rdma_create_id(connecting, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
			check(!rdma_resolve_addr(id, (struct sockaddr *)&from,
						 (struct sockaddr *)&server, 2000),
			      "rdma_resolve_addr");
		}
		while (established < 2 * batch) {
			struct pollfd ready[] = { { listening->fd, POLLIN, 0 },
						  { connecting->fd, POLLIN, 0 } };

			check(poll(ready, 2, 30000) > 0, "no event for 30 seconds");
			established += take_events(listening) + take_events(connecting);
		}
		count -= batch;
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*create)(int count);
	} kinds[] = {
		{ "mr", regions },
		{ "cq", completion_queues },
		{ "qp", queue_pairs },
		{ "connected", connected_queue_pairs },
		{ "connection", connections },
	};
	int count = argc == 4 ? atoi(argv[2]) : 0;
	struct rlimit descriptors;

	for (size_t i = 0; count > 0 && i < sizeof(kinds) / sizeof(*kinds); i++) {
		struct ibv_device **devices;
		double bytes, start;

		if (strcmp(argv[1], kinds[i].name))
			continue;
		source = htonl(INADDR_LOOPBACK + atoi(argv[3]));
		check(!getrlimit(RLIMIT_NOFILE, &descriptors), "getrlimit");
		descriptors.rlim_cur = descriptors.rlim_max;
		check(!setrlimit(RLIMIT_NOFILE, &descriptors), "setrlimit");
		devices = ibv_get_device_list(NULL);
		check(devices && devices[0], "no device");
		context = ibv_open_device(devices[0]);
		check(context && !ibv_query_gid(context, 1, 0, &gid), "ibv_open_device");
		domain = ibv_alloc_pd(context);
		completions = ibv_create_cq(context, ENTRIES, NULL, NULL, 0);
		check(domain && completions, "ibv_create_cq");
		kinds[i].create(FIRST);
		bytes = resident_bytes();
		start = seconds();
		kinds[i].create(count);
		printf("%s %d %.2f %.0f\n", argv[1], count, (seconds() - start) / count * 1e6,
		       (resident_bytes() - bytes) / count);
		fflush(stdout);
		while (getchar() != EOF)
			;
		return 0;
	}
	fprintf(stderr, "usage: objects mr|cq|qp|connected|connection COUNT NUMBER\n");
	return 2;
}
