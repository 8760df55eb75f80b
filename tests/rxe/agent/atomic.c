/* Atomics: each one returns the result of the previous ones. */
#include "agent.h"

#include <string.h>

/* The operand of the n-th atomic. */
static uint64_t operand(const struct cell *cell, char requester, unsigned int n)
{
	return scramble(seed_of(cell->name) + requester + n);
}

/* The value of the word after n atomics of this requester. Every third comparison fails. */
static uint64_t value_after(const struct cell *cell, char requester, unsigned int n)
{
	uint64_t value = operand(cell, requester, ~0u);

	for (unsigned int i = 0; i < n; i++) {
		if (cell->op == OP_FADD)
			value += operand(cell, requester, i);
		else if (i % 3 != 2)
			value = operand(cell, requester, i);
	}
	return value;
}

static bool post_atomic(struct end *end, const struct cell *cell, const struct memory *results, unsigned int i)
{
	char role = end->side->role;
	uint64_t before = value_after(cell, role, i);
	struct ibv_sge sge = { (uintptr_t)results->data + 8 * i, 8, results->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED };

	wr.wr.atomic.remote_addr = end->theirs.addr;
	wr.wr.atomic.rkey = end->theirs.rkey;
	if (cell->op == OP_FADD) {
		wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr.wr.atomic.compare_add = operand(cell, role, i);
	} else {
		wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.compare_add = i % 3 == 2 ? ~before : before;
		wr.wr.atomic.swap = operand(cell, role, i);
	}
	return post_send(end, &wr);
}

static void request(struct end *end, const struct cell *cell, const struct memory *results)
{
	enum ibv_wc_opcode opcode = cell->op == OP_FADD ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP;
	double deadline = now() + cell->limit;
	unsigned int posted = 0, done = 0, empty = 0;

	while (done < cell->count) {
		struct ibv_wc wc;
		uint64_t returned;

		while (posted < cell->count && posted - done < cell->depth)
			if (!post_atomic(end, cell, results, posted++))
				return;
		if (ibv_poll_cq(end->cq, 1, &wc) != 1) {
			if (now() > deadline) {
				complain("timed out after %u atomics", done);
				return;
			}
			idle(&empty);
			continue;
		}
		empty = 0;
		if (wc.status != IBV_WC_SUCCESS) {
			complain("%s after %u atomics", ibv_wc_status_str(wc.status), done);
			return;
		}
		if (wc.opcode != opcode || wc.wr_id != done)
			complain("atomic %u: opcode %d, id %llu", done, wc.opcode, (unsigned long long)wc.wr_id);
		memcpy(&returned, results->data + 8 * done, 8);
		if (returned != value_after(cell, end->side->role, done))
			complain("atomic %u returned %#llx", done, (unsigned long long)returned);
		done++;
	}
}

void run_atomics(struct side *side, const struct cell *cell)
{
	char other = side->role == 'a' ? 'b' : 'a';
	bool requests = cell->requester != other, responds = cell->requester != side->role;
	struct tuning tuning = {
		.transport = IBV_QPT_RC,
		.depth = cell->depth,
		.mtu = cell->mtu,
		.access = ALL_ACCESS,
	};
	unsigned int bindable = cell->window && responds ? IBV_ACCESS_MW_BIND : 0;
	struct memory results = { 0 }, word = { 0 };
	struct ibv_mw *window = NULL;
	struct end end = { 0 };
	uint64_t value = value_after(cell, other, 0);

	if (memory_make(&results, side->pd, 8 * cell->count, ALL_ACCESS) &&
	    memory_make(&word, side->pd, 64, ALL_ACCESS | bindable) && end_make(&end, side, &tuning)) {
		memcpy(word.data, &value, 8);
		end.mine.addr = (uintptr_t)word.data;
		end.mine.rkey = word.mr->rkey;
		end.mine.psn = scramble(seed_of(cell->name) + side->role) & 0xffffff;
	}
	control_swap(side, &end.mine, &end.theirs, sizeof(end.mine));
	if (!problem[0])
		end_connect(&end, &tuning);
	control_meet(side);
	if (cell->window) {
		if (!problem[0] && responds)
			window = window_make(&end, cell->window, &word, IBV_ACCESS_REMOTE_ATOMIC, &end.mine.rkey);
		control_swap(side, &end.mine, &end.theirs, sizeof(end.mine));
	}
	if (!problem[0] && requests)
		request(&end, cell, &results);
	control_meet(side);
	if (!problem[0] && responds) {
		memcpy(&value, word.data, 8);
		if (value != value_after(cell, other, cell->count))
			complain("the word ended as %#llx", (unsigned long long)value);
	}
	window_free(window);
	end_free(&end);
	memory_free(&results);
	memory_free(&word);
}
