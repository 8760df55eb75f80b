/* Deliberate errors: three requests, of which the middle one is invalid. The completions and events of both
 * sides are the outcome, which the caller compares with that of rxe to rxe. */
#include "agent.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define REQUESTS 3
#define WRONG 1
#define STRANGE_KEY 0x00a5a5a5
/* The distance of the words or messages of two requests in their region. */
#define PITCH(cell) (((cell)->size + 15) & ~(size_t)7)
/* Time for packets in flight to arrive, and for the peer's end to be detected. */
#define SETTLE_US 200000

struct fault {
	struct side *side;
	const struct cell *cell;
	struct end end;
	struct memory here, there;
	struct ibv_pd *other_pd;
	struct ibv_mw *window;
	bool requests;
};

static bool is(const struct fault *fault, const char *error)
{
	return !strcmp(fault->cell->error, error);
}

static bool takes_receive(const struct cell *cell)
{
	return cell->op == OP_SEND || cell->op == OP_SEND_IMM || cell->op == OP_WRITE_IMM;
}

static bool is_atomic(const struct cell *cell)
{
	return cell->op == OP_CAS || cell->op == OP_FADD;
}

/* The access rights of the responder's region, or of the window over it. */
static unsigned int region_access(const struct fault *fault)
{
	if (fault->cell->window)
		return ALL_ACCESS | IBV_ACCESS_MW_BIND;
	if (is(fault, "no-permission"))
		return IBV_ACCESS_LOCAL_WRITE;
	return ALL_ACCESS;
}

/* Half of the region is outside of the window. */
static void offer_window(struct fault *fault)
{
	struct memory half = fault->there;
	struct ibv_send_wr invalidate = {
		.opcode = IBV_WR_LOCAL_INV,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_wc wc;
	unsigned int empty = 0;

	half.length /= 2;
	fault->window = window_make(&fault->end, fault->cell->window, &half,
				    is(fault, "no-permission") ? 0 : ALL_ACCESS & ~IBV_ACCESS_LOCAL_WRITE,
				    &fault->end.mine.rkey);
	if (!is(fault, "invalidated") || problem[0])
		return;
	invalidate.invalidate_rkey = fault->end.mine.rkey;
	if (!post_send(&fault->end, &invalidate))
		return;
	while (!ibv_poll_cq(fault->end.cq, 1, &wc))
		idle(&empty);
	if (wc.status != IBV_WC_SUCCESS || wc.opcode != IBV_WC_LOCAL_INV)
		complain("invalidate: %s, opcode %d", ibv_wc_status_str(wc.status), wc.opcode);
}

static bool post_one_receive(struct fault *fault, unsigned int i)
{
	const struct cell *cell = fault->cell;
	struct ibv_sge sge = {
		(uintptr_t)fault->there.data + i * PITCH(cell), cell->size, fault->there.mr->lkey,
	};

	if (i == WRONG && is(fault, "short-receive"))
		sge.length--;
	if (i == WRONG && is(fault, "bad-receive-key"))
		sge.lkey ^= STRANGE_KEY;
	return post_receive(&fault->end, i, &sge, cell->op == OP_WRITE_IMM ? 0 : 1);
}

static void post_receives(struct fault *fault)
{
	unsigned int n = is(fault, "no-receive") || is(fault, "late-receive") ? WRONG : REQUESTS;

	for (unsigned int i = 0; i < n; i++)
		if (!post_one_receive(fault, i))
			return;
}

/* Posts a request. Returns whether the provider accepted it. */
static bool post_request(struct fault *fault, unsigned int i)
{
	struct ibv_send_wr *bad;
	static const enum ibv_wr_opcode opcodes[] = {
		[OP_SEND] = IBV_WR_SEND,
		[OP_SEND_IMM] = IBV_WR_SEND_WITH_IMM,
		[OP_WRITE] = IBV_WR_RDMA_WRITE,
		[OP_WRITE_IMM] = IBV_WR_RDMA_WRITE_WITH_IMM,
		[OP_READ] = IBV_WR_RDMA_READ,
		[OP_CAS] = IBV_WR_ATOMIC_CMP_AND_SWP,
		[OP_FADD] = IBV_WR_ATOMIC_FETCH_AND_ADD,
	};
	const struct cell *cell = fault->cell;
	const struct hello *theirs = &fault->end.theirs;
	struct ibv_sge sge = {
		(uintptr_t)fault->here.data + i * PITCH(cell),
		is_atomic(cell) ? 8 : cell->size,
		fault->here.mr->lkey,
	};
	struct ibv_send_wr wr = {
		.wr_id = i,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcodes[cell->op],
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htonl(i),
	};
	uint64_t addr = theirs->addr + i * PITCH(cell);
	uint32_t rkey = theirs->rkey;

	if (i == WRONG) {
		if (is(fault, "bad-rkey") || is(fault, "bad-rkey-empty"))
			rkey ^= STRANGE_KEY;
		if (is(fault, "out-of-bounds"))
			addr = theirs->addr + REQUESTS * PITCH(cell) - (is_atomic(cell) ? 0 : cell->size - 1);
		if (is(fault, "misaligned"))
			addr += 4;
		if (is(fault, "bad-lkey"))
			sge.lkey ^= STRANGE_KEY;
		if (is(fault, "local-out-of-bounds"))
			sge.addr = (uintptr_t)fault->here.data + fault->here.length - sge.length + 1;
		if (is(fault, "bad-rkey-empty"))
			sge.length = 0;
	}
	if (is_atomic(cell)) {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 0;
		wr.wr.atomic.swap = 1 + i;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = rkey;
	}
	return !ibv_post_send(fault->end.qp, &wr, &bad);
}

static void append(char *outcome, size_t size, const char *format, unsigned int value)
{
	size_t used = strlen(outcome);

	snprintf(outcome + used, size - used, format, value);
}

/* Adds each completion's status to the outcome, until there were `wanted` or time is up. */
static void collect(struct fault *fault, unsigned int wanted, double deadline, char *outcome, size_t size)
{
	/* The number of requests that complete before a peer exits varies. */
	bool by_chance = is(fault, "destroyed-in-flight");
	enum ibv_wc_status last = IBV_WC_SUCCESS;
	unsigned int done = 0, empty = 0;

	while (done < wanted && now() < deadline) {
		struct ibv_wc wc;

		if (ibv_poll_cq(fault->end.cq, 1, &wc) == 1) {
			done++;
			if (wc.status != last || !by_chance)
				append(outcome, size, "%u ", wc.status);
			last = wc.status;
		} else {
			idle(&empty);
		}
	}
	if (now() >= deadline && wanted < ~0u)
		append(outcome, size, "(only %u completions) ", done);
}

static void add_state(struct fault *fault, char *outcome, size_t size)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	if (!fault->end.qp) {
		append(outcome, size, "destroyed", 0);
		return;
	}
	if (ibv_query_qp(fault->end.qp, &attr, IBV_QP_STATE, &init))
		complain("ibv_query_qp failed");
	append(outcome, size, "state %u", attr.qp_state);
}

static void add_events(struct fault *fault, char *outcome, size_t size)
{
	struct pollfd readable = { .fd = fault->side->context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	while (poll(&readable, 1, 0) == 1 && !ibv_get_async_event(fault->side->context, &event)) {
		/* Events of the port do not belong to this cell. */
		if (event.event_type <= IBV_EVENT_PATH_MIG_ERR)
			append(outcome, size, " event %u", event.event_type);
		ibv_ack_async_event(&event);
	}
}

static bool is_written(const uint8_t *from, const uint8_t *to)
{
	while (from < to)
		if (*from++)
			return true;
	return false;
}

/* Whether the invalid request changed the responder's memory, in its place or outside of the window. */
static void add_memory(struct fault *fault, char *outcome, size_t size)
{
	const uint8_t *data = fault->there.data, *end = data + fault->there.length;
	const uint8_t *place = data + WRONG * PITCH(fault->cell), *beyond = data + REQUESTS * PITCH(fault->cell);
	bool written = is_written(place, place + PITCH(fault->cell)) || is_written(beyond, end);

	append(outcome, size, written ? " written" : " untouched", 0);
}

static void respond(struct fault *fault, char *outcome, size_t size)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (is(fault, "peer-gone") || is(fault, "peer-in-error")) {
		if (is(fault, "peer-gone")) {
			ibv_destroy_qp(fault->end.qp);
			fault->end.qp = NULL;
		} else if (ibv_modify_qp(fault->end.qp, &attr, IBV_QP_STATE)) {
			complain("modify to ERR failed");
		}
	}
	control_meet(fault->side);
	if (is(fault, "destroyed-in-flight")) {
		/* The transfer takes longer than this on any link of a guest. */
		usleep(50000);
		ibv_destroy_qp(fault->end.qp);
		fault->end.qp = NULL;
	}
	if (is(fault, "late-receive")) {
		usleep(SETTLE_US);
		for (unsigned int i = WRONG; i < REQUESTS; i++)
			post_one_receive(fault, i);
	}
	/* The requester has polled all completions. */
	control_meet(fault->side);
	collect(fault, ~0u, now() + SETTLE_US * 1e-6, outcome, size);
	add_state(fault, outcome, size);
	add_events(fault, outcome, size);
	if (!takes_receive(fault->cell) || fault->cell->op == OP_WRITE_IMM)
		add_memory(fault, outcome, size);
}

static void request(struct fault *fault, char *outcome, size_t size)
{
	unsigned int taken = 0;

	control_meet(fault->side);
	while (taken < REQUESTS && post_request(fault, taken))
		taken++;
	if (taken < REQUESTS)
		append(outcome, size, "request %u was refused ", taken);
	collect(fault, taken, now() + fault->cell->limit, outcome, size);
	add_state(fault, outcome, size);
	add_events(fault, outcome, size);
	control_meet(fault->side);
}

static bool prepare(struct fault *fault, const struct tuning *tuning)
{
	struct side *side = fault->side;
	size_t length = REQUESTS * PITCH(fault->cell);
	struct ibv_pd *pd = side->pd;

	if (is(fault, "wrong-pd") && !fault->requests) {
		fault->other_pd = ibv_alloc_pd(side->context);
		pd = fault->other_pd;
	}
	if (!memory_make(&fault->here, side->pd, length, is(fault, "local-no-write") ? 0 : ALL_ACCESS) ||
	    !memory_make(&fault->there, pd, fault->cell->window ? 2 * length : length, region_access(fault)) ||
	    !end_make(&fault->end, side, tuning))
		return false;
	memset(fault->here.data, 0x5a, length);
	memset(fault->there.data, 0, length);
	fault->end.mine.addr = (uintptr_t)fault->there.data;
	fault->end.mine.rkey = fault->there.mr->rkey;
	fault->end.mine.psn = seed_of(fault->cell->name) & 0xffffff;
	return true;
}

void run_error(struct side *side, const struct cell *cell, char *outcome, size_t size)
{
	struct fault fault = {
		.side = side,
		.cell = cell,
		.requests = cell->requester == side->role,
	};
	bool unanswered = is(&fault, "peer-gone") || is(&fault, "peer-in-error") || is(&fault, "destroyed-in-flight");
	struct tuning tuning = {
		.transport = cell->transport,
		.depth = REQUESTS,
		.receives = REQUESTS,
		.mtu = cell->mtu,
		.access = is(&fault, "qp-no-permission") ? 0 : ALL_ACCESS,
		/* 17 ms; or 0.5 s, which even a busy guest meets, where the peer responds. */
		.timeout = unanswered ? 12 : 17,
		.retries = unanswered ? 3 : 0,
		.rnr_retries = is(&fault, "no-receive") ? 2 : 0,
	};
	struct ibv_async_event event;
	struct pollfd readable = { .fd = side->context->async_fd, .events = POLLIN };

	while (poll(&readable, 1, 0) == 1 && !ibv_get_async_event(side->context, &event))
		ibv_ack_async_event(&event);
	if (prepare(&fault, &tuning) && !fault.requests && takes_receive(cell))
		post_receives(&fault);
	control_swap(side, &fault.end.mine, &fault.end.theirs, sizeof(fault.end.mine));
	if (!problem[0])
		end_connect(&fault.end, &tuning);
	control_meet(side);
	if (cell->window) {
		if (!problem[0] && !fault.requests)
			offer_window(&fault);
		control_swap(side, &fault.end.mine, &fault.end.theirs, sizeof(fault.end.mine));
	}
	if (problem[0]) {
		/* The other side passes the same barriers. */
		control_meet(side);
		control_meet(side);
	} else if (fault.requests) {
		request(&fault, outcome, size);
	} else {
		respond(&fault, outcome, size);
	}
	window_free(fault.window);
	end_free(&fault.end);
	memory_free(&fault.here);
	memory_free(&fault.there);
	if (fault.other_pd)
		ibv_dealloc_pd(fault.other_pd);
}
