/* Verbs objects: memory, queue pairs and work requests. */
#include "agent.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* About 67 ms; see the table of the local ACK timeout in IBA 9.7.6.1.3. */
#define TIMEOUT 14
#define RETRIES 7
/* 0.64 ms, in the table of the RNR NAK timer field (IBA 9.7.5.2.8). */
#define MIN_RNR_TIMER 12
#define READS_IN_FLIGHT 8

void idle(unsigned int *empty)
{
	const unsigned int spins = 500;

	/* Many agents may share a guest with two processors. */
	if (++*empty < spins)
		sched_yield();
	else
		usleep(100);
}

double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

/* The finalizer of splitmix64: neighbouring numbers give unrelated ones. */
uint64_t scramble(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
	return x ^ (x >> 31);
}

uint64_t seed_of(const char *name)
{
	uint64_t seed = 0;

	while (*name)
		seed = scramble(seed + (uint8_t)*name++);
	return seed;
}

bool memory_make(struct memory *memory, struct ibv_pd *pd, size_t length, unsigned int access)
{
	memory->length = length ? length : 1;
	memory->mr = NULL;
	memory->data = mmap(NULL, memory->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory->data == MAP_FAILED) {
		memory->data = NULL;
		complain("no memory for %zu bytes", length);
		return false;
	}
	memory->mr = ibv_reg_mr(pd, memory->data, memory->length, access);
	if (!memory->mr) {
		complain("ibv_reg_mr of %zu bytes: %s", length, strerror(errno));
		return false;
	}
	return true;
}

void memory_free(struct memory *memory)
{
	if (memory->mr && ibv_dereg_mr(memory->mr))
		complain("ibv_dereg_mr failed");
	if (memory->data)
		munmap(memory->data, memory->length);
}

static enum ibv_mtu mtu_code(unsigned int bytes)
{
	enum ibv_mtu mtu = IBV_MTU_256;

	while (mtu < IBV_MTU_4096 && (256u << (mtu - IBV_MTU_256)) < bytes)
		mtu++;
	return mtu;
}

bool end_make(struct end *end, struct side *side, const struct tuning *tuning)
{
	struct ibv_qp_init_attr init = { .qp_type = tuning->transport };
	struct ibv_srq_init_attr shared = {
		.attr = { .max_wr = tuning->receives + 2, .max_sge = tuning->sges ? tuning->sges : 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };

	memset(end, 0, sizeof(*end));
	end->side = side;
	end->cq = ibv_create_cq(side->context, tuning->depth + tuning->receives + 8, NULL, NULL, 0);
	if (!end->cq) {
		complain("ibv_create_cq: %s", strerror(errno));
		return false;
	}
	if (tuning->shared_receives) {
		end->srq = ibv_create_srq(side->pd, &shared);
		if (!end->srq) {
			complain("ibv_create_srq: %s", strerror(errno));
			return false;
		}
	}
	init.send_cq = init.recv_cq = end->cq;
	init.srq = end->srq;
	init.cap.max_send_wr = tuning->depth + 2;
	init.cap.max_recv_wr = tuning->receives + 2;
	init.cap.max_send_sge = init.cap.max_recv_sge = tuning->sges ? tuning->sges : 1;
	init.cap.max_inline_data = tuning->inline_size;
	end->qp = ibv_create_qp(side->pd, &init);
	if (!end->qp) {
		complain("ibv_create_qp: %s", strerror(errno));
		return false;
	}
	attr.qp_access_flags = tuning->access;
	attr.qkey = QKEY;
	if (ibv_modify_qp(end->qp, &attr,
			  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				  (tuning->transport == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS))) {
		complain("modify to INIT: %s", strerror(errno));
		return false;
	}
	if (ibv_query_gid(side->context, 1, side->gid_index, &end->mine.gid)) {
		complain("no GID at index %d", side->gid_index);
		return false;
	}
	end->mine.qpn = end->qp->qp_num;
	return true;
}

bool end_connect(struct end *end, const struct tuning *tuning)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = mtu_code(tuning->mtu),
		.dest_qp_num = end->theirs.qpn,
		.rq_psn = end->theirs.psn,
		.max_dest_rd_atomic = READS_IN_FLIGHT,
		.min_rnr_timer = MIN_RNR_TIMER,
		.ah_attr = {
			.is_global = 1,
			.port_num = 1,
			.grh = {
				.dgid = end->theirs.gid,
				.sgid_index = end->side->gid_index,
				.hop_limit = 64,
			},
		},
	};

	bool reliable = tuning->transport == IBV_QPT_RC, datagrams = tuning->transport == IBV_QPT_UD;
	int to_rtr = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	int to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (reliable) {
		to_rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		to_rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	if (datagrams)
		to_rtr = IBV_QP_STATE;
	if (!end->theirs.qpn) {
		complain("the other side is not ready");
		return false;
	}
	if (ibv_modify_qp(end->qp, &attr, to_rtr)) {
		complain("modify to RTR: %s", strerror(errno));
		return false;
	}
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = tuning->timeout ? tuning->timeout : TIMEOUT;
	attr.retry_cnt = tuning->retries ? tuning->retries : RETRIES;
	attr.rnr_retry = tuning->rnr_retries ? tuning->rnr_retries : 7;
	attr.sq_psn = end->mine.psn;
	attr.max_rd_atomic = READS_IN_FLIGHT;
	if (ibv_modify_qp(end->qp, &attr, to_rts)) {
		complain("modify to RTS: %s", strerror(errno));
		return false;
	}
	return true;
}

void end_free(struct end *end)
{
	if (end->qp && ibv_destroy_qp(end->qp))
		complain("ibv_destroy_qp failed");
	if (end->srq && ibv_destroy_srq(end->srq))
		complain("ibv_destroy_srq failed");
	if (end->cq && ibv_destroy_cq(end->cq))
		complain("ibv_destroy_cq failed");
}

bool post_receive(struct end *end, uint64_t id, struct ibv_sge *sges, int count)
{
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = sges, .num_sge = count };
	struct ibv_recv_wr *bad;
	int error = end->srq ? ibv_post_srq_recv(end->srq, &wr, &bad) : ibv_post_recv(end->qp, &wr, &bad);

	if (error)
		complain("ibv_post_recv: %s", strerror(error));
	return !error;
}

bool post_send(struct end *end, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int error = ibv_post_send(end->qp, wr, &bad);

	if (error)
		complain("ibv_post_send: %s", strerror(error));
	return !error;
}
