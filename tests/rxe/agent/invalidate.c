/* SEND with invalidate: the responder's memory window is valid before, and invalid after it. */
#include "agent.h"

#include <string.h>

static bool wait_for(struct end *end, const struct cell *cell, struct ibv_wc *wc)
{
	double deadline = now() + cell->limit;
	unsigned int empty = 0;

	while (ibv_poll_cq(end->cq, 1, wc) != 1) {
		if (now() > deadline) {
			complain("timed out");
			return false;
		}
		idle(&empty);
	}
	return true;
}

static bool succeeds(struct end *end, const struct cell *cell, struct ibv_wc *wc, const char *what)
{
	if (!wait_for(end, cell, wc))
		return false;
	if (wc->status != IBV_WC_SUCCESS)
		complain("%s: %s", what, ibv_wc_status_str(wc->status));
	return wc->status == IBV_WC_SUCCESS;
}

static void request(struct end *end, const struct cell *cell, struct memory *memory)
{
	struct ibv_sge sge = { (uintptr_t)memory->data, cell->size, memory->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc;

	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = end->theirs.addr;
	wr.wr.rdma.rkey = end->theirs.window_key;
	if (!post_send(end, &wr) || !succeeds(end, cell, &wc, "write through the window"))
		return;
	wr.opcode = IBV_WR_SEND_WITH_INV;
	wr.invalidate_rkey = end->theirs.window_key;
	if (!post_send(end, &wr) || !succeeds(end, cell, &wc, "send with invalidate"))
		return;
	if (!cell->size)
		return;
	wr.opcode = IBV_WR_RDMA_WRITE;
	if (!post_send(end, &wr) || !wait_for(end, cell, &wc))
		return;
	if (wc.status != IBV_WC_REM_ACCESS_ERR)
		complain("a write through the invalidated window: %s", ibv_wc_status_str(wc.status));
}

static void respond(struct end *end, const struct cell *cell, unsigned int *flags)
{
	struct ibv_wc wc;

	if (!succeeds(end, cell, &wc, "receive"))
		return;
	if (wc.opcode != IBV_WC_RECV || wc.byte_len != cell->size)
		complain("opcode %d, %u bytes", wc.opcode, wc.byte_len);
	if (wc.invalidated_rkey != end->mine.window_key)
		complain("invalidated key %#x, not %#x", wc.invalidated_rkey, end->mine.window_key);
	*flags = wc.wc_flags;
}

void run_invalidate(struct side *side, const struct cell *cell)
{
	bool requests = cell->requester == side->role;
	struct tuning tuning = {
		.transport = IBV_QPT_RC,
		.depth = 4,
		.receives = 1,
		.mtu = cell->mtu,
		.access = ALL_ACCESS,
	};
	struct ibv_mw *window = NULL;
	struct memory memory = { 0 }, received = { 0 };
	struct end end = { 0 };
	unsigned int flags = 0;

	if (memory_make(&memory, side->pd, cell->size, ALL_ACCESS | (requests ? 0 : IBV_ACCESS_MW_BIND)) &&
	    memory_make(&received, side->pd, cell->size, ALL_ACCESS) && end_make(&end, side, &tuning)) {
		struct ibv_sge sge = { (uintptr_t)received.data, cell->size, received.mr->lkey };

		memset(memory.data, side->role, memory.length);
		if (!requests)
			post_receive(&end, 0, &sge, 1);
		end.mine.addr = (uintptr_t)memory.data;
		end.mine.psn = seed_of(cell->name) & 0xffffff;
	}
	control_swap(side, &end.mine, &end.theirs, sizeof(end.mine));
	if (!problem[0])
		end_connect(&end, &tuning);
	if (!problem[0] && !requests)
		window = window_make(&end, 2, &memory, IBV_ACCESS_REMOTE_WRITE, &end.mine.window_key);
	control_swap(side, &end.mine, &end.theirs, sizeof(end.mine));
	if (!problem[0] && requests)
		request(&end, cell, &memory);
	else if (!problem[0])
		respond(&end, cell, &flags);
	control_meet(side);
	if (!problem[0] && !requests && (memcmp(memory.data, received.data, cell->size) ||
					 (cell->size && received.data[0] == side->role)))
		complain("the data differs");
	/* The last check: only the first problem of a cell is reported. */
	if (!requests && !(flags & IBV_WC_WITH_INV))
		complain("the completion's flags are %#x, which do not say that a key was invalidated", flags);
	end_free(&end);
	window_free(window);
	memory_free(&memory);
	memory_free(&received);
}
