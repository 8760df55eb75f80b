/*
 * Many connections at once: a thousand that leave nothing behind, and clients of many processes that all
 * come to one listener in the same moment.
 */
#include "cm.h"

#include <dirent.h>
#include <malloc.h>
#include <sys/resource.h>

enum { THOUSAND = 1000, PROCESSES = 5, CLIENTS = 100, MESSAGE = 32 };

/* Each bound identifier holds a descriptor, and the usual limit is near to a thousand. */
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

/* What the process has: descriptors, threads, and bytes of the heap. */
struct held {
	int descriptors, threads;
	size_t heap;
};

static struct held held(void)
{
	return (struct held){ entries("/proc/self/fd"), entries("/proc/self/task"),
			      mallinfo2().uordblks };
}

/* A queue pair whose completions go to a queue that all share: what is counted are connections. */
static void give_qp(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = small_qp(IBV_QPT_RC);

	attr.send_cq = attr.recv_cq = cq;
	attr.sq_sig_all = 0;
	MUST(!rdma_create_qp(id, NULL, &attr));
}

/* What has become of the connections of one side. */
struct side {
	struct rdma_cm_id *ids[THOUSAND];
	int established, disconnected, timewait;
};

struct crowd {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *local;
	struct ibv_cq *cq;
	struct side clients, peers;
	int asked, received;
	char in[MESSAGE], out[MESSAGE];
	struct ibv_mr *mr_in, *mr_out;
};

static void send_message(struct crowd *crowd, struct rdma_cm_id *id)
{
	struct ibv_sge sge = { (uintptr_t)crowd->out, MESSAGE, crowd->mr_out->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	MUST(!ibv_post_send(id->qp, &wr, &bad));
}

static void take_event(struct crowd *crowd)
{
	static struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct side *side;

	MUST(!rdma_get_cm_event(crowd->channel, &event));
	id = event->id;
	side = id->context == crowd ? &crowd->peers : &crowd->clients;
	MUST(!event->status);
	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		MUST(!rdma_resolve_route(id, 2000));
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		give_qp(id, crowd->cq);
		MUST(!rdma_connect(id, &param));
		break;
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		give_qp(id, crowd->cq);
		MUST(!rdma_post_recv(id, NULL, crowd->in, MESSAGE, crowd->mr_in));
		MUST(!rdma_accept(id, &param));
		crowd->peers.ids[crowd->asked++] = id;
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		side->established++;
		if (side == &crowd->clients)
			send_message(crowd, id);
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

static void take_completions(struct crowd *crowd)
{
	struct ibv_wc wc[16];
	int count = ibv_poll_cq(crowd->cq, 16, wc);

	MUST(count >= 0);
	for (int i = 0; i < count; i++)
		if (wc[i].status == IBV_WC_SUCCESS) {
			MUST(wc[i].opcode == IBV_WC_RECV && wc[i].byte_len == MESSAGE);
			crowd->received++;
		}
}

/* A thousand connections that are all there together, carry a message each, and end. */
static void round_of(struct crowd *crowd, int count)
{
	struct rdma_cm_id *id;

	memset(&crowd->clients, 0, sizeof(crowd->clients));
	memset(&crowd->peers, 0, sizeof(crowd->peers));
	crowd->asked = crowd->received = 0;
	for (int i = 0; i < count; i++) {
		crowd->clients.ids[i] = id = new_id(crowd->channel, RDMA_PS_TCP);
		MUST(!rdma_resolve_addr(id, NULL,
			address("127.0.0.1", ntohs(rdma_get_src_port(crowd->listener))), 2000));
	}
	while (crowd->clients.established < count || crowd->peers.established < count)
		take_event(crowd);
	while (crowd->received < count)
		take_completions(crowd);
	CHECK(crowd->asked == count);
	for (int i = 0; i < count; i++)
		MUST(!rdma_disconnect(crowd->clients.ids[i]));
	while (crowd->peers.disconnected < count)
		take_event(crowd);
	for (int i = 0; i < count; i++)
		MUST(!rdma_disconnect(crowd->peers.ids[i]));
	/* Until the last of them nobody knows whether packets are under way, which takes memory. */
	while (crowd->clients.timewait < count || crowd->peers.timewait < count)
		take_event(crowd);
	CHECK(crowd->clients.disconnected == count);
	for (int i = 0; i < count; i++) {
		rdma_destroy_ep(crowd->clients.ids[i]);
		rdma_destroy_ep(crowd->peers.ids[i]);
	}
	take_completions(crowd);
}

/* Begins again with a heap that keeps nothing for later, where what was freed would count as held. */
static void count_exactly(void)
{
	static char name[] = "crowd", this_case[] = "thousand";
	char *arguments[] = { name, this_case, NULL };

	if (getenv("GLIBC_TUNABLES"))
		return;
	MUST(!setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0", 1));
	execv("/proc/self/exe", arguments);
	MUST(!"execv");
}

static void thousand(void)
{
	struct crowd *crowd = calloc(1, sizeof(*crowd));
	struct held before, after;
	size_t least = SIZE_MAX / 2;

	count_exactly();
	own_network();
	allow_descriptors(4096);
	MUST(crowd);
	MUST(crowd->channel = rdma_create_event_channel());
	crowd->listener = new_id(crowd->channel, RDMA_PS_TCP);
	crowd->listener->context = crowd;
	MUST(!rdma_bind_addr(crowd->listener, address("127.0.0.1", 0)));
	MUST(!rdma_listen(crowd->listener, 0));
	/* The listener has no device. */
	crowd->local = with_device(crowd->channel);
	MUST(crowd->cq = ibv_create_cq(crowd->local->verbs, 16384, NULL, NULL, 0));
	MUST(crowd->mr_in = rdma_reg_msgs(crowd->local, crowd->in, MESSAGE));
	MUST(crowd->mr_out = rdma_reg_msgs(crowd->local, crowd->out, MESSAGE));

	/*
	 * The first round leaves tables at the size that they need, and a later one makes them larger if
	 * more happens in the same moment. What is left behind adds up in every round.
	 */
	round_of(crowd, THOUSAND);
	before = held();
	for (int i = 0; i < 3; i++) {
		round_of(crowd, THOUSAND);
		after = held();
		printf("%d descriptors, %d threads, %zu bytes; before %d, %d, %zu\n", after.descriptors,
		       after.threads, after.heap, before.descriptors, before.threads, before.heap);
		CHECK(after.descriptors == before.descriptors);
		CHECK(after.threads == before.threads);
		if (after.heap < before.heap + least)
			least = after.heap > before.heap ? after.heap - before.heap : 0;
		before = after;
	}
	/* The smallest piece of the heap has 32 bytes. */
	CHECK(least < 16 * THOUSAND);

	CHECK(!rdma_dereg_mr(crowd->mr_in) && !rdma_dereg_mr(crowd->mr_out));
	CHECK(!ibv_destroy_cq(crowd->cq));
	CHECK(!rdma_destroy_id(crowd->local));
	CHECK(!rdma_destroy_id(crowd->listener));
	rdma_destroy_event_channel(crowd->channel);
	free(crowd);
}

/* The clients of one process: they connect when the pipe is closed, and end when their peers do. */
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
	/* Where a process ends before, what it says last may be lost, and nobody repeats it. */
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

/* All clients come at once to a listener with this backlog, which takes requests up as it comes to them. */
static void serve_all(int backlog)
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
		/* Not where the client's word that it is ready is lost, and its last word comes. */
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
	serve_all(0);
}

static void small_backlog(void)
{
	serve_all(100);
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
