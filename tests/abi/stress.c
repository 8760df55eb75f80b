/*
 * Every verb from any thread: threads use shared objects, and destroy unused ones, concurrently. The first
 * argument selects the case, the second the number of rounds, for longer runs under a race detector.
 */
#include <sched.h>

#include "program.h"

static int rounds = 30;

/* The objects that all threads share. */
static struct {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	unsigned char data[SIZE];
	int events;
} shared;

static struct ibv_qp *simple_pair(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .sq_sig_all = 1,
					 .cap = { DEPTH, DEPTH, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	return ibv_create_qp(shared.pd, &attr);
}

/* Polls `count` completions; those of the shared queue may belong to any thread. */
static int drain(struct ibv_cq *cq, int count)
{
	struct ibv_wc wc[4];
	int good = 0;

	while (count > 0) {
		int got = ibv_poll_cq(cq, 4, wc);
		MUST(got >= 0);
		count -= got;
		for (int i = 0; i < got; i++)
			good += wc[i].status == IBV_WC_SUCCESS;
	}
	return good;
}

/* Connects, writes and destroys in a loop, with regions and queues of its own. */
static void *connections(void *argument)
{
	(void)argument;
	for (int round = 0; round < rounds; round++) {
		struct ibv_cq *cq;
		struct ibv_qp *from, *to;
		struct ibv_mr *mr;
		unsigned char *data = calloc(1, SIZE);

		MUST(data && (cq = ibv_create_cq(shared.context, 16, NULL, NULL, 0)));
		MUST((from = simple_pair(cq)) && (to = simple_pair(cq)));
		MUST(mr = ibv_reg_mr(shared.pd, data, SIZE, ALL));
		connect_to(from, to->qp_num);
		connect_to(to, from->qp_num);
		for (int i = 0; i < 8; i++) {
			struct ibv_sge element = { (uintptr_t)data, SIZE / 2, mr->lkey };
			struct ibv_send_wr *bad, wr = {
				.sg_list = &element, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				.wr.rdma = { .remote_addr = (uintptr_t)data + SIZE / 2,
					     .rkey = mr->rkey },
			};
			data[i] = (unsigned char)i;
			MUST(!ibv_post_send(from, &wr, &bad));
			CHECK(drain(cq, 1) == 1 && data[SIZE / 2 + i] == i);
			if (i == 4)
				FAILS(ibv_resize_cq(cq, 16 + round), 0);
		}
		FAILS(ibv_destroy_qp(from), 0);
		FAILS(ibv_dereg_mr(mr), 0);
		FAILS(ibv_destroy_qp(to), 0);
		FAILS(ibv_destroy_cq(cq), 0);
		free(data);
	}
	return NULL;
}

/* Moves queue pairs to the error state while they send; all requests complete in the shared queue,
 * which another thread polls. */
static void *failures_under_way(void *argument)
{
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	int *posted = argument;
	struct ibv_mr *mr;

	MUST(mr = ibv_reg_mr(shared.pd, shared.data, SIZE, ALL));
	for (int round = 0; round < rounds; round++) {
		struct ibv_sge element = { (uintptr_t)shared.data, SIZE, mr->lkey };
		struct ibv_send_wr *bad, wr = { .sg_list = &element, .num_sge = 1,
						.opcode = IBV_WR_RDMA_WRITE,
						.wr.rdma = { .remote_addr = (uintptr_t)shared.data,
							     .rkey = mr->rkey } };
		struct ibv_qp *from, *to;

		MUST((from = simple_pair(shared.cq)) && (to = simple_pair(shared.cq)));
		connect_to(from, to->qp_num);
		connect_to(to, from->qp_num);
		for (int i = 0; i < DEPTH; i++)
			MUST(!ibv_post_send(from, &wr, &bad));
		__atomic_add_fetch(posted, DEPTH, __ATOMIC_SEQ_CST);
		MUST(!ibv_modify_qp(round % 2 ? from : to, &error, IBV_QP_STATE));
		MUST(!ibv_modify_qp(from, &error, IBV_QP_STATE));
		/* Destruction removes completions that are not polled, so wait for them. */
		while (__atomic_load_n(posted, __ATOMIC_SEQ_CST))
			sched_yield();
		FAILS(ibv_destroy_qp(from), 0);
		FAILS(ibv_destroy_qp(to), 0);
	}
	FAILS(ibv_dereg_mr(mr), 0);
	return NULL;
}

/* Waits for events of the shared queue, and polls it. */
static void *events(void *argument)
{
	int *posted = argument;
	struct ibv_wc wc[4];

	while (!__atomic_load_n(&shared.events, __ATOMIC_SEQ_CST)) {
		struct pollfd fd = { .fd = shared.channel->fd, .events = POLLIN };
		struct ibv_cq *cq;
		void *context;
		int got;

		FAILS(ibv_req_notify_cq(shared.cq, 0), 0);
		while ((got = ibv_poll_cq(shared.cq, 4, wc)) > 0)
			__atomic_sub_fetch(posted, got, __ATOMIC_SEQ_CST);
		MUST(got == 0);
		if (poll(&fd, 1, 1) > 0) {
			FAILS(ibv_get_cq_event(shared.channel, &cq, &context), 0);
			CHECK(cq == shared.cq);
			ibv_ack_cq_events(cq, 1);
		}
	}
	return NULL;
}

/* Calls every query, and registers memory that other threads use. */
static void *questions(void *argument)
{
	(void)argument;
	for (int round = 0; round < 10 * rounds; round++) {
		struct ibv_device_attr_ex device;
		struct ibv_port_attr port;
		struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
		struct ibv_device **list;
		struct ibv_context *again;
		struct ibv_mr *mr;
		struct ibv_ah *ah;
		struct ibv_mw *mw;

		FAILS(ibv_query_device_ex(shared.context, NULL, &device), 0);
		FAILS(ibv_query_port(shared.context, 1, &port), 0);
		FAILS(ibv_query_gid(shared.context, 1, 0, &attr.grh.dgid), 0);
		MUST(ah = ibv_create_ah(shared.pd, &attr));
		MUST(mr = ibv_reg_mr(shared.pd, shared.data, SIZE, IBV_ACCESS_MW_BIND | ALL));
		MUST(mw = ibv_alloc_mw(shared.pd, IBV_MW_TYPE_1));
		FAILS(ibv_dealloc_mw(mw), 0);
		FAILS(ibv_dereg_mr(mr), 0);
		FAILS(ibv_destroy_ah(ah), 0);
		MUST(list = ibv_get_device_list(NULL));
		MUST(again = ibv_open_device(list[0]));
		ibv_free_device_list(list);
		FAILS(ibv_close_device(again), 0);
	}
	return NULL;
}

static void all_at_once(void)
{
	void *(*const kinds[])(void *) = { connections, connections, failures_under_way, questions };
	enum { KINDS = sizeof(kinds) / sizeof(*kinds) };
	pthread_t threads[KINDS], waiter;
	int posted = 0;

	shared.context = open_loopback();
	MUST(shared.pd = ibv_alloc_pd(shared.context));
	MUST(shared.channel = ibv_create_comp_channel(shared.context));
	MUST(shared.cq = ibv_create_cq(shared.context, 64, NULL, shared.channel, 0));
	MUST(!pthread_create(&waiter, NULL, events, &posted));
	for (int i = 0; i < KINDS; i++)
		MUST(!pthread_create(&threads[i], NULL, kinds[i], &posted));
	for (int i = 0; i < KINDS; i++)
		MUST(!pthread_join(threads[i], NULL));
	__atomic_store_n(&shared.events, 1, __ATOMIC_SEQ_CST);
	MUST(!pthread_join(waiter, NULL));
	FAILS(ibv_destroy_cq(shared.cq), 0);
	FAILS(ibv_destroy_comp_channel(shared.channel), 0);
	FAILS(ibv_dealloc_pd(shared.pd), 0);
	FAILS(ibv_close_device(shared.context), 0);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = { { "all_at_once", all_at_once } };
	if (argc == 3)
		rounds = atoi(argv[2]);
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc > 2 ? 2 : argc, argv);
}
