/*
 * Many connections at once: a thousand that leave no resources behind, and clients of many processes that
 * connect to one listener at the same time.
 */
#include "cm.h"

#include <dirent.h>
#include <malloc.h>
#include <sys/resource.h>

enum { THOUSAND = 1000, PROCESSES = 5, CLIENTS = 100, MESSAGE = 32 };

/* Each bound identifier has a descriptor, and the default limit is 1024. */
static void allow_descriptors(rlim_t wanted)
{
	struct rlimit limit;

	MUST(!getrlimit(RLIMIT_NOFILE, &limit));
	if (limit.rlim_max < wanted) {
		printf("needs %d file descriptors (ulimit -Hn says %d)\n", (int)wanted,
		       (int)limit.rlim_max);
		exit(77);
	}
	limit.rlim_cur = wanted;
	MUST(!setrlimit(RLIMIT_NOFILE, &limit));
}

static int entries(const char *path)
{
	DIR *directory = opendir(path);
	int count = 0;

	MUST(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* The resources of the process: descriptors, threads, and bytes of the heap. */
struct resources {
	int descriptors, threads;
	size_t heap;
};

static struct resources resources(void)
{
	return (struct resources){ entries("/proc/self/fd"), entries("/proc/self/task"),
			      mallinfo2().uordblks };
}

/* Creates a queue pair that completes to a shared queue, so that only connections are counted. */
static void give_qp(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);

	attr.send_cq = attr.recv_cq = cq;
	attr.sq_sig_all = 0;
	MUST(!rdma_create_qp(id, NULL, &attr));
}

/* The connections of one side, by state. */
struct side {
	struct rdma_cm_id *ids[THOUSAND];
	int established, disconnected, timewait;
};

struct state {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *local;
	struct ibv_cq *cq;
	struct side clients, peers;
	int requests, received;
	char in[MESSAGE], out[MESSAGE];
	struct ibv_mr *mr_in, *mr_out;
};

static void send_message(struct state *state, struct rdma_cm_id *id)
{
	struct ibv_sge sge = { (uintptr_t)state->out, MESSAGE, state->mr_out->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	MUST(!ibv_post_send(id->qp, &wr, &bad));
}

static void take_event(struct state *state)
{
	static struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct side *side;

	MUST(!rdma_get_cm_event(state->channel, &event));
	id = event->id;
	side = id->context == state ? &state->peers : &state->clients;
	MUST(!event->status);
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		MUST(!rdma_resolve_route(id, 2000));
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		give_qp(id, state->cq);
		MUST(!rdma_connect(id, &param));
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		give_qp(id, state->cq);
		MUST(!rdma_post_recv(id, NULL, state->in, MESSAGE, state->mr_in));
		MUST(!rdma_accept(id, &param));
		state->peers.ids[state->requests++] = id;
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		side->established++;
		if (side == &state->clients)
			send_message(state, id);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		side->disconnected++;
		break;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
		side->timewait++;
		break;
	default:
		printf("%s\n", rdma_event_str(event->event));
		exit(2);
	}
	MUST(!rdma_ack_cm_event(event));
}

static void take_completions(struct state *state)
{
	struct ibv_wc wc[16];
	int count = ibv_poll_cq(state->cq, 16, wc);

	MUST(count >= 0);
	for (int i = 0; i < count; i++)
		if (wc[i].status == IBV_WC_SUCCESS) {
			MUST(wc[i].opcode == IBV_WC_RECV && wc[i].byte_len == MESSAGE);
			state->received++;
		}
}

/* Establishes a thousand connections, sends a message over each, and disconnects them. */
static void run_round(struct state *state, int count)
{
	struct rdma_cm_id *id;

	memset(&state->clients, 0, sizeof(state->clients));
	memset(&state->peers, 0, sizeof(state->peers));
	state->requests = state->received = 0;
	for (int i = 0; i < count; i++) {
		state->clients.ids[i] = id = new_id(state->channel, RDMA_PS_TCP);
		MUST(!rdma_resolve_addr(id, NULL,
			address("127.0.0.1", ntohs(rdma_get_src_port(state->listener))), 2000));
	}
	while (state->clients.established < count || state->peers.established < count)
		take_event(state);
	while (state->received < count)
		take_completions(state);
	CHECK(state->requests == count);
	for (int i = 0; i < count; i++)
		MUST(!rdma_disconnect(state->clients.ids[i]));
	while (state->peers.disconnected < count)
		take_event(state);
	for (int i = 0; i < count; i++)
		MUST(!rdma_disconnect(state->peers.ids[i]));
	/* Until TimeWait ends, packets may be in flight, and the connection has memory. */
	while (state->clients.timewait < count || state->peers.timewait < count)
		take_event(state);
	CHECK(state->clients.disconnected == count);
	for (int i = 0; i < count; i++) {
		rdma_destroy_ep(state->clients.ids[i]);
		rdma_destroy_ep(state->peers.ids[i]);
	}
	take_completions(state);
}

/* Starts the program again without malloc's caches, which count freed memory as allocated. */
static void count_exactly(void)
{
	static char name[] = "many_connections", this_case[] = "thousand";
	char *arguments[] = { name, this_case, NULL };

	if (getenv("GLIBC_TUNABLES"))
		return;
	MUST(!setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0", 1));
	execv("/proc/self/exe", arguments);
	MUST(!"execv");
}

static void thousand(void)
{
	struct state *state = calloc(1, sizeof(*state));
	struct resources before, after;
	size_t least = SIZE_MAX / 2;

	count_exactly();
	own_network();
	allow_descriptors(4096);
	MUST(state);
	MUST(state->channel = rdma_create_event_channel());
	state->listener = new_id(state->channel, RDMA_PS_TCP);
	state->listener->context = state;
	MUST(!rdma_bind_addr(state->listener, address("127.0.0.1", 0)));
	MUST(!rdma_listen(state->listener, 0));
	/* The listener has no device. */
	state->local = with_device(state->channel);
	MUST(state->cq = ibv_create_cq(state->local->verbs, 16384, NULL, NULL, 0));
	MUST(state->mr_in = rdma_reg_msgs(state->local, state->in, MESSAGE));
	MUST(state->mr_out = rdma_reg_msgs(state->local, state->out, MESSAGE));

	/*
	 * Tables grow in the first round, and in later ones if more events are pending at once. A leak grows
	 * in every round.
	 */
	run_round(state, THOUSAND);
	before = resources();
	for (int i = 0; i < 6; i++) {
		run_round(state, THOUSAND);
		after = resources();
		printf("%d descriptors, %d threads, %zu bytes; before %d, %d, %zu\n", after.descriptors,
		       after.threads, after.heap, before.descriptors, before.threads, before.heap);
		CHECK(after.descriptors == before.descriptors);
		CHECK(after.threads == before.threads);
		if (after.heap < before.heap + least)
			least = after.heap > before.heap ? after.heap - before.heap : 0;
		before = after;
	}
	/* The smallest allocation of the heap is 32 bytes. */
	CHECK(least < 16 * THOUSAND);

	CHECK(!rdma_dereg_mr(state->mr_in) && !rdma_dereg_mr(state->mr_out));
	CHECK(!ibv_destroy_cq(state->cq));
	CHECK(!rdma_destroy_id(state->local));
	CHECK(!rdma_destroy_id(state->listener));
	rdma_destroy_event_channel(state->channel);
	free(state);
}

/* The clients of one process: they connect when the pipe is closed, and disconnect. */
static int clients(int begin, __be16 port)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *ids[CLIENTS];
	struct rdma_cm_event *event;
	struct ibv_cq *cq;
	char byte;

	MUST(channel);
	for (int i = 0; i < CLIENTS; i++)
		ids[i] = on_the_way(channel, RDMA_PS_TCP, port);
	MUST(cq = ibv_create_cq(ids[0]->verbs, 4096, NULL, NULL, 0));
	for (int i = 0; i < CLIENTS; i++)
		give_qp(ids[i], cq);
	MUST(read(begin, &byte, 1) == 0);
	for (int i = 0; i < CLIENTS; i++)
		MUST(!rdma_connect(ids[i], &param));
	for (int i = 0; i < CLIENTS; i++) {
		event = next(channel, RDMA_CM_EVENT_ESTABLISHED);
		MUST(!rdma_ack_cm_event(event));
	}
	for (int i = 0; i < CLIENTS; i++)
		MUST(!rdma_disconnect(ids[i]));
	/* If the process exited earlier, its last messages could be lost without retransmission. */
	for (int i = 0; i < CLIENTS;) {
		MUST(!rdma_get_cm_event(channel, &event));
		i += event->event == RDMA_CM_EVENT_DISCONNECTED;
		MUST(!rdma_ack_cm_event(event));
	}
	for (int i = 0; i < CLIENTS; i++)
		rdma_destroy_ep(ids[i]);
	MUST(!ibv_destroy_cq(cq));
	rdma_destroy_event_channel(channel);
	return 0;
}

/* All clients connect at once to a listener with this backlog, which handles requests one by one. */
static void serve_clients(int backlog)
{
	struct rdma_event_channel *channel;
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	int begin[2], port[2], accepted = 0, disconnected = 0, status;
	struct rdma_cm_id *listener, *local, *id;
	enum rdma_cm_event_type kind;
	struct rdma_cm_event *event;
	struct ibv_cq *cq;
	uint16_t number;

	own_network();
	allow_descriptors(4096);
	MUST(!pipe(begin) && !pipe(port));
	for (int i = 0; i < PROCESSES; i++) {
		pid_t child = fork();

		MUST(child >= 0);
		if (!child) {
			close(begin[1]);
			MUST(read(port[0], &number, sizeof(number)) == sizeof(number));
			_exit(clients(begin[0], number));
		}
	}
	MUST(channel = rdma_create_event_channel());
	listener = new_id(channel, RDMA_PS_TCP);
	MUST(!rdma_bind_addr(listener, address("127.0.0.1", 0)));
	MUST(!rdma_listen(listener, backlog));
	local = with_device(channel);
	MUST(cq = ibv_create_cq(local->verbs, 4096, NULL, NULL, 0));
	number = rdma_get_src_port(listener);
	for (int i = 0; i < PROCESSES; i++)
		MUST(write(port[1], &number, sizeof(number)) == sizeof(number));
	close(begin[1]);
	while (disconnected < PROCESSES * CLIENTS) {
		MUST(!rdma_get_cm_event(channel, &event));
		id = event->id;
		kind = event->event;
		switch (kind) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			give_qp(id, cq);
			MUST(!rdma_accept(id, &param));
			accepted++;
			break;
		/* Missing if the client's RTU is lost and its DREQ arrives. */
		case RDMA_CM_EVENT_ESTABLISHED:
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			MUST(!rdma_disconnect(id));
			disconnected++;
			break;
		default:
			printf("%s, status %d\n", rdma_event_str(event->event), event->status);
			exit(2);
		}
		MUST(!rdma_ack_cm_event(event));
		if (kind == RDMA_CM_EVENT_DISCONNECTED)
			rdma_destroy_ep(id);
	}
	CHECK(accepted == PROCESSES * CLIENTS);
	for (int i = 0; i < PROCESSES; i++) {
		MUST(wait(&status) > 0);
		CHECK(WIFEXITED(status) && !WEXITSTATUS(status));
	}
	CHECK(!ibv_destroy_cq(cq));
	CHECK(!rdma_destroy_id(local));
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
}

static void room_for_all(void)
{
	serve_clients(0);
}

static void small_backlog(void)
{
	serve_clients(100);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "thousand", thousand },
		{ "room_for_all", room_for_all },
		{ "small_backlog", small_backlog },
	};

	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
