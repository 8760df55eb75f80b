/* Messages of every operation that transfers data, verified byte for byte. */
#include "agent.h"

#include <arpa/inet.h>
#include <string.h>
#include <unistd.h>

/* The guard bytes around each message in the receiving memory, which must not change. */
#define GUARD 64
#define GUARD_BYTE 0xa5
#define MAX_SGES 8
/* Time for packets in flight to arrive. */
#define SETTLE_SECONDS 5

struct transfer {
	const struct cell *cell;
	struct end end;
	struct memory from;	/* source of SENDs and WRITEs, and of the peer's READs */
	struct memory to;	/* destination of receives and READs */
	struct ibv_mw *window;	/* over the memory that the peer writes or reads */
	size_t stride;
	bool requests, responds, takes_receives;
	unsigned int posted, sent, received;
};

/* Odd, so that messages have every alignment. */
static size_t stride_of(const struct cell *cell)
{
	return (cell->size + 2 * GUARD) | 1;
}

static uint8_t *slot(const struct memory *memory, const struct transfer *t, unsigned int i)
{
	return memory->data + i * t->stride + GUARD;
}

/* The content of a message depends on the cell, the direction and its number. */
static uint64_t content_seed(const struct transfer *t, char origin, unsigned int i)
{
	return seed_of(t->cell->name) ^ scramble(((uint64_t)origin << 32) | i);
}

static void content(uint64_t seed, uint8_t *data, size_t size)
{
	uint64_t x = seed;

	for (size_t at = 0; at < size; at += 8) {
		uint64_t word = x ^ (x >> 29);

		memcpy(data + at, &word, size - at < 8 ? size - at : 8);
		x = x * 0x5851f42d4c957f2d + 0x14057b7ef767814f;
	}
}

static bool content_is(uint64_t seed, const uint8_t *data, size_t size, size_t *wrong)
{
	uint64_t x = seed;

	for (size_t at = 0; at < size; at += 8) {
		uint64_t word = x ^ (x >> 29);

		if (memcmp(data + at, &word, size - at < 8 ? size - at : 8)) {
			*wrong = at;
			return false;
		}
		x = x * 0x5851f42d4c957f2d + 0x14057b7ef767814f;
	}
	return true;
}

static bool all_guards(const uint8_t *data, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (data[i] != GUARD_BYTE)
			return false;
	return true;
}

static void check_data(struct transfer *t, char origin)
{
	for (unsigned int i = 0; i < t->cell->count; i++) {
		const uint8_t *data = slot(&t->to, t, i);
		const uint8_t *after = data + t->cell->size;
		const uint8_t *next = t->to.data + (i + 1) * t->stride;
		size_t wrong;

		if (!content_is(content_seed(t, origin, i), data, t->cell->size, &wrong)) {
			/* After a lost packet, the rest of the message is not placed. */
			lost = t->cell->transport == IBV_QPT_UC && all_guards(data + wrong, t->cell->size - wrong);
			complain("message %u %s near byte %zu", i, lost ? "ends" : "differs", wrong);
		}
		if (!all_guards(data - GUARD, GUARD) || !all_guards(after, next - after))
			complain("memory beside message %u was changed", i);
	}
}

/* On an unreliable connection the peer's completion means only that the packets were sent. */
static void await_data(const struct transfer *t, char origin)
{
	double deadline = now() + SETTLE_SECONDS;
	unsigned int arrived = 0;

	while (arrived < t->cell->count && now() < deadline) {
		size_t wrong;

		if (content_is(content_seed(t, origin, arrived), slot(&t->to, t, arrived), t->cell->size, &wrong))
			arrived++;
		else
			usleep(1000);
	}
}

/* Splits a message into elements, each a third of the rest. */
static int pieces(const struct transfer *t, const struct memory *memory, unsigned int i, struct ibv_sge *sges)
{
	uint64_t at = (uintptr_t)slot(memory, t, i);
	size_t left = t->cell->size;
	int n = 0;

	while (n + 1 < (int)t->cell->sges && left > 2) {
		sges[n] = (struct ibv_sge){ at, left / 3, memory->mr->lkey };
		at += left / 3;
		left -= left / 3;
		n++;
	}
	sges[n++] = (struct ibv_sge){ at, left, memory->mr->lkey };
	return n;
}

static uint32_t immediate(unsigned int i)
{
	return htonl(0xcafe0000 + i);
}

static bool post_next(struct transfer *t)
{
	const struct cell *cell = t->cell;
	unsigned int i = t->posted++;
	struct ibv_sge sges[MAX_SGES];
	struct ibv_send_wr wr = { .wr_id = i, .sg_list = sges, .send_flags = IBV_SEND_SIGNALED };

	if (cell->inlined)
		wr.send_flags |= IBV_SEND_INLINE;
	wr.num_sge = pieces(t, cell->op == OP_READ ? &t->to : &t->from, i, sges);
	wr.wr.rdma.remote_addr = t->end.theirs.addr + i * t->stride + GUARD;
	wr.wr.rdma.rkey = t->end.theirs.rkey;
	wr.imm_data = immediate(i);
	switch (cell->op) {
	case OP_SEND:
		wr.opcode = IBV_WR_SEND;
		break;
	case OP_SEND_IMM:
		wr.opcode = IBV_WR_SEND_WITH_IMM;
		break;
	case OP_WRITE:
		wr.opcode = IBV_WR_RDMA_WRITE;
		break;
	case OP_WRITE_IMM:
		wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		break;
	default:
		wr.opcode = IBV_WR_RDMA_READ;
	}
	return post_send(&t->end, &wr);
}

static void check_receive(struct transfer *t, const struct ibv_wc *wc)
{
	const struct cell *cell = t->cell;
	bool immediate_expected = cell->op != OP_SEND;
	enum ibv_wc_opcode opcode = cell->op == OP_WRITE_IMM ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;

	if (wc->wr_id != t->received)
		complain("receive %u completed as %llu", t->received, (unsigned long long)wc->wr_id);
	if (wc->opcode != opcode)
		complain("receive %u has opcode %d, not %d", t->received, wc->opcode, opcode);
	if (wc->byte_len != cell->size)
		complain("receive %u has %u bytes, not %zu", t->received, wc->byte_len, cell->size);
	if (!(wc->wc_flags & IBV_WC_WITH_IMM) == immediate_expected)
		complain("receive %u has flags %#x", t->received, wc->wc_flags);
	if (immediate_expected && wc->imm_data != immediate(t->received))
		complain("receive %u has immediate %#x", t->received, ntohl(wc->imm_data));
	t->received++;
}

static void check_send(struct transfer *t, const struct ibv_wc *wc)
{
	static const enum ibv_wc_opcode opcodes[] = {
		[OP_SEND] = IBV_WC_SEND,
		[OP_SEND_IMM] = IBV_WC_SEND,
		[OP_WRITE] = IBV_WC_RDMA_WRITE,
		[OP_WRITE_IMM] = IBV_WC_RDMA_WRITE,
		[OP_READ] = IBV_WC_RDMA_READ,
	};

	if (wc->wr_id != t->sent)
		complain("request %u completed as %llu", t->sent, (unsigned long long)wc->wr_id);
	if (wc->opcode != opcodes[t->cell->op])
		complain("request %u has opcode %d", t->sent, wc->opcode);
	t->sent++;
}

static void move(struct transfer *t)
{
	const struct cell *cell = t->cell;
	unsigned int to_send = t->requests ? cell->count : 0;
	unsigned int to_receive = t->responds && t->takes_receives ? cell->count : 0;
	double deadline = now() + cell->limit, last = now();
	unsigned int empty = 0;

	while (t->sent < to_send || t->received < to_receive) {
		struct ibv_wc wc[16];
		int n;

		while (t->posted < to_send && t->posted - t->sent < cell->depth)
			if (!post_next(t))
				return;
		n = ibv_poll_cq(t->end.cq, 16, wc);
		if (n < 0) {
			complain("ibv_poll_cq failed");
			return;
		}
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS) {
				complain("%s after %u sent, %u received", ibv_wc_status_str(wc[i].status),
					 t->sent, t->received);
				return;
			}
			if (wc[i].opcode & IBV_WC_RECV)
				check_receive(t, &wc[i]);
			else
				check_send(t, &wc[i]);
		}
		if (n == 0) {
			bool given_up = now() > last + SETTLE_SECONDS && control_other_failed(t->end.side);

			if (now() > deadline || given_up) {
				lost = cell->transport == IBV_QPT_UC;
				complain("%s: %u of %u sent, %u of %u received",
					 given_up ? "the other side has failed" : "timed out", t->sent, to_send,
					 t->received, to_receive);
				return;
			}
			idle(&empty);
		} else {
			empty = 0;
			last = now();
		}
	}
}

/* Returns the memory that the peer writes or reads. */
static const struct memory *offered(const struct transfer *t)
{
	return t->cell->op == OP_READ ? &t->from : &t->to;
}

/* A bind needs a connected queue pair, so the key is exchanged afterwards. */
static void offer_window(struct transfer *t)
{
	if (t->responds && !problem[0])
		t->window = window_make(&t->end, t->cell->window, offered(t),
					IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, &t->end.mine.rkey);
	control_swap(t->end.side, &t->end.mine, &t->end.theirs, sizeof(t->end.mine));
}

static bool prepare(struct transfer *t, const struct tuning *tuning)
{
	const struct cell *cell = t->cell;
	struct side *side = t->end.side;
	bool reads = cell->op == OP_READ;
	size_t length = cell->count * t->stride;

	unsigned int access = ALL_ACCESS | (cell->window && t->responds ? IBV_ACCESS_MW_BIND : 0);

	if (!memory_make(&t->from, side->pd, length, access) || !memory_make(&t->to, side->pd, length, access))
		return false;
	if (!end_make(&t->end, side, tuning))
		return false;
	if (reads ? t->responds : t->requests)
		for (unsigned int i = 0; i < cell->count; i++)
			content(content_seed(t, side->role, i), slot(&t->from, t, i), cell->size);
	memset(t->to.data, GUARD_BYTE, t->to.length);
	if (t->responds && t->takes_receives)
		for (unsigned int i = 0; i < cell->count; i++) {
			struct ibv_sge sges[MAX_SGES];
			int n = cell->op == OP_WRITE_IMM ? 0 : pieces(t, &t->to, i, sges);

			if (!post_receive(&t->end, i, sges, n))
				return false;
		}
	t->end.mine.addr = (uintptr_t)offered(t)->data;
	t->end.mine.rkey = offered(t)->mr->rkey;
	/* For half of the connections the PSN wraps early. */
	t->end.mine.psn = scramble(seed_of(cell->name) + side->role) & 0xffffff;
	if (t->end.mine.psn & 1)
		t->end.mine.psn |= 0xfffff0;
	return true;
}

void run_transfer(struct side *side, const struct cell *cell)
{
	char other = side->role == 'a' ? 'b' : 'a';
	struct transfer t = {
		.cell = cell,
		.end.side = side,
		.stride = stride_of(cell),
		.requests = cell->requester != other,
		.responds = cell->requester != side->role,
		.takes_receives = cell->op != OP_WRITE && cell->op != OP_READ,
	};
	struct tuning tuning = {
		.transport = cell->transport,
		.depth = cell->depth,
		.receives = t.takes_receives ? cell->count : 0,
		.shared_receives = cell->shared_receives,
		.sges = cell->sges,
		.inline_size = cell->inlined ? cell->size : 0,
		.mtu = cell->mtu,
		.access = ALL_ACCESS,
	};

	prepare(&t, &tuning);
	control_swap(side, &t.end.mine, &t.end.theirs, sizeof(t.end.mine));
	if (!problem[0])
		end_connect(&t.end, &tuning);
	control_meet(side);
	if (cell->window)
		offer_window(&t);
	if (!problem[0])
		move(&t);
	/* WRITEs without a local completion are done when the peer has its completions. */
	control_meet(side);
	if (cell->transport != IBV_QPT_RC && t.responds && !problem[0])
		await_data(&t, other);
	if (!problem[0] && (cell->op == OP_READ ? t.requests : t.responds))
		check_data(&t, other);
	window_free(t.window);
	end_free(&t.end);
	memory_free(&t.from);
	memory_free(&t.to);
}
