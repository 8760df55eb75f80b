/* Datagrams: each reply uses an address handle created from the message's completion and GRH. */
#include "agent.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define MAX_MESSAGES 64
#define GRH_BYTES 40
/* The offset of an IPv4 header in the space of a GRH (IBA annex A17.4.5.2). */
#define IPV4_AT 20
#define UDP_PROTOCOL 17
/* The waiting time for a message that must not arrive. */
#define SETTLE_US 200000
/* The immediate value of a message that must not arrive. */
#define WRONG_ID 0xbad

struct datagrams {
	const struct cell *cell;
	struct side *side;
	struct end end;
	struct memory from, to;
	struct ibv_ah *ah;	/* to the other side */
	struct ibv_ah *answers[MAX_MESSAGES];	/* each created from a completion */
	unsigned int posted, sent, received;
};

static bool is(const struct datagrams *d, const char *error)
{
	return !strcmp(d->cell->error, error);
}

static size_t pitch(const struct cell *cell)
{
	return GRH_BYTES + cell->size + 8;
}

static uint8_t byte_of(const struct datagrams *d, char origin, unsigned int i, size_t at)
{
	return scramble(seed_of(d->cell->name) ^ scramble(origin + 256 * i)) + at * 151 + (at >> 8);
}

static bool with_immediate(const struct cell *cell)
{
	return cell->op == OP_SEND_IMM;
}

static uint32_t immediate(char origin, unsigned int i)
{
	return htonl((uint32_t)origin << 16 | i);
}

static struct ibv_ah *address_of(struct datagrams *d, const union ibv_gid *gid)
{
	struct ibv_ah_attr attr = {
		.is_global = 1,
		.port_num = 1,
		.grh = { .dgid = *gid, .sgid_index = d->side->gid_index, .hop_limit = 64 },
	};
	struct ibv_ah *ah = ibv_create_ah(d->side->pd, &attr);

	if (!ah)
		complain("ibv_create_ah: %s", strerror(errno));
	return ah;
}

static bool post_datagram(struct datagrams *d, struct ibv_ah *ah, uint32_t qpn, unsigned int i)
{
	const struct cell *cell = d->cell;
	uint8_t *data = d->from.data + i * pitch(cell);
	struct ibv_sge sge = { (uintptr_t)data, cell->size, d->from.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = i,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = with_immediate(cell) ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = immediate(d->side->role, i),
		.wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY },
	};

	for (size_t at = 0; at < cell->size; at++)
		data[at] = byte_of(d, d->side->role, i, at);
	d->posted++;
	return post_send(&d->end, &wr);
}

/* Sends a message that must not arrive. Its send completes with success. */
static bool post_wrong(struct datagrams *d)
{
	struct ibv_port_attr port;
	struct ibv_sge sge = { (uintptr_t)d->from.data, d->cell->size, d->from.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = WRONG_ID,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { .ah = d->ah, .remote_qpn = d->end.theirs.qpn, .remote_qkey = QKEY },
	};

	if (ibv_query_port(d->side->context, 1, &port)) {
		complain("ibv_query_port failed");
		return false;
	}
	if (is(d, "wrong-qkey"))
		wr.wr.ud.remote_qkey ^= 1;
	if (is(d, "wrong-qpn"))
		wr.wr.ud.remote_qpn ^= 0x5a;
	if (is(d, "longer-than-port-mtu"))
		sge.length = (128u << port.active_mtu) + 1;
	return post_send(&d->end, &wr);
}

/* Checks the IP header of a message, in the space of its GRH. */
static void check_grh(const struct datagrams *d, const uint8_t *grh, unsigned int i)
{
	const struct cell *cell = d->cell;
	const uint8_t *theirs = d->end.theirs.gid.raw, *mine = d->end.mine.gid.raw;
	/* UDP, BTH, DETH, the immediate value, the pad, the ICRC. */
	size_t udp = 8 + 12 + 8 + (with_immediate(cell) ? 4 : 0) + ((cell->size + 3) & ~(size_t)3) + 4;
	bool v4 = !memcmp(mine, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);

	if (v4) {
		const uint8_t *ip = grh + IPV4_AT;

		if (ip[0] != 0x45 || ip[9] != UDP_PROTOCOL || (size_t)(ip[2] << 8 | ip[3]) != 20 + udp)
			complain("message %u: the IPv4 header of %u bytes of protocol %u begins with %#x", i,
				 ip[2] << 8 | ip[3], ip[9], ip[0]);
		if (memcmp(ip + 12, theirs + 12, 4) || memcmp(ip + 16, mine + 12, 4))
			complain("message %u: the IPv4 addresses are wrong", i);
	} else {
		if (grh[0] >> 4 != 6 || grh[6] != UDP_PROTOCOL || (size_t)(grh[4] << 8 | grh[5]) != udp)
			complain("message %u: the IPv6 header of %u bytes of next header %u begins with %#x", i,
				 grh[4] << 8 | grh[5], grh[6], grh[0]);
		if (memcmp(grh + 8, theirs, 16) || memcmp(grh + 24, mine, 16))
			complain("message %u: the IPv6 addresses are wrong", i);
	}
}

/* Checks a message, and replies unless this side is the client. */
static void take(struct datagrams *d, struct ibv_wc *wc, bool answers)
{
	const struct cell *cell = d->cell;
	char other = d->side->role == 'a' ? 'b' : 'a';
	unsigned int i = d->received++;
	uint8_t *at = d->to.data + i * pitch(cell);

	if (wc->wr_id != i || wc->opcode != IBV_WC_RECV)
		complain("receive %u completed as %llu with opcode %d", i, (unsigned long long)wc->wr_id, wc->opcode);
	if (wc->byte_len != GRH_BYTES + cell->size)
		complain("receive %u has %u bytes, not %zu", i, wc->byte_len, GRH_BYTES + cell->size);
	if (wc->src_qp != d->end.theirs.qpn)
		complain("receive %u is from queue pair %#x, not %#x", i, wc->src_qp, d->end.theirs.qpn);
	if (!(wc->wc_flags & IBV_WC_GRH) || !(wc->wc_flags & IBV_WC_WITH_IMM) == with_immediate(cell))
		complain("receive %u has flags %#x", i, wc->wc_flags);
	if (with_immediate(cell) && wc->imm_data != immediate(other, i))
		complain("receive %u has immediate %#x", i, ntohl(wc->imm_data));
	for (size_t n = 0; n < cell->size; n++)
		if (at[GRH_BYTES + n] != byte_of(d, other, i, n)) {
			complain("message %u differs at byte %zu", i, n);
			break;
		}
	check_grh(d, at, i);
	if (answers) {
		d->answers[i] = ibv_create_ah_from_wc(d->side->pd, wc, (struct ibv_grh *)at, 1);
		if (d->answers[i])
			post_datagram(d, d->answers[i], wc->src_qp, i);
		else
			complain("ibv_create_ah_from_wc: %s", strerror(errno));
	}
}

static void exchange(struct datagrams *d, bool begins)
{
	const struct cell *cell = d->cell;
	unsigned int wrong = begins && cell->error[0];
	double deadline = now() + cell->limit;
	unsigned int empty = 0;

	if (wrong && !post_wrong(d))
		return;
	while (d->sent < cell->count + wrong || d->received < cell->count) {
		struct ibv_wc wc;
		int n;

		while (begins && d->posted < cell->count && d->posted - d->received < cell->depth)
			if (!post_datagram(d, d->ah, d->end.theirs.qpn, d->posted))
				return;
		n = ibv_poll_cq(d->end.cq, 1, &wc);
		if (n == 1 && wc.status != IBV_WC_SUCCESS) {
			complain("%s after %u sent, %u received", ibv_wc_status_str(wc.status), d->sent, d->received);
			return;
		}
		if (n == 1 && (wc.opcode & IBV_WC_RECV))
			take(d, &wc, !begins);
		else if (n == 1)
			d->sent++;
		if (problem[0])
			return;
		if (n == 0 && now() > deadline) {
			complain("timed out: %u sent, %u received", d->sent, d->received);
			return;
		}
		if (n == 0)
			idle(&empty);
		else
			empty = 0;
	}
}

static bool prepare(struct datagrams *d, const struct tuning *tuning)
{
	const struct cell *cell = d->cell;
	struct ibv_pd *pd = d->side->pd;
	/* The buffer must hold a message that is too long. */
	size_t length = cell->count * pitch(cell) + 8192;

	if (!memory_make(&d->from, pd, length, IBV_ACCESS_LOCAL_WRITE) ||
	    !memory_make(&d->to, pd, length, IBV_ACCESS_LOCAL_WRITE) || !end_make(&d->end, d->side, tuning))
		return false;
	/* One more, for the message that must not arrive. */
	for (unsigned int i = 0; i < cell->count + 1; i++) {
		struct ibv_sge sge = {
			(uintptr_t)d->to.data + i * pitch(cell), GRH_BYTES + cell->size, d->to.mr->lkey,
		};

		if (!post_receive(&d->end, i, &sge, 1))
			return false;
	}
	d->end.mine.psn = scramble(seed_of(cell->name) + d->side->role) & 0xffffff;
	return true;
}

static uint16_t violations(struct side *side)
{
	struct ibv_port_attr port;

	if (ibv_query_port(side->context, 1, &port))
		complain("ibv_query_port failed");
	return port.qkey_viol_cntr;
}

void run_datagrams(struct side *side, const struct cell *cell)
{
	struct datagrams d = { .cell = cell, .side = side };
	bool begins = cell->requester == side->role;
	struct tuning tuning = {
		.transport = IBV_QPT_UD,
		.depth = cell->count + 1,
		.receives = cell->count + 1,
		.shared_receives = cell->shared_receives,
	};
	uint16_t before = violations(side);

	prepare(&d, &tuning);
	control_swap(side, &d.end.mine, &d.end.theirs, sizeof(d.end.mine));
	if (!problem[0] && end_connect(&d.end, &tuning))
		d.ah = address_of(&d, &d.end.theirs.gid);
	control_meet(side);
	if (!problem[0])
		exchange(&d, begins);
	if (cell->error[0] && !problem[0]) {
		struct ibv_wc wc;

		usleep(SETTLE_US);
		if (ibv_poll_cq(d.end.cq, 1, &wc))
			complain("a completion too many: %s", ibv_wc_status_str(wc.status));
		if (!begins && is(&d, "wrong-qkey") && violations(side) == before)
			complain("the violation was not counted");
	}
	control_meet(side);
	end_free(&d.end);
	if (d.ah && ibv_destroy_ah(d.ah))
		complain("ibv_destroy_ah failed");
	for (unsigned int i = 0; i < MAX_MESSAGES; i++)
		if (d.answers[i] && ibv_destroy_ah(d.answers[i]))
			complain("ibv_destroy_ah failed");
	memory_free(&d.from);
	memory_free(&d.to);
}
