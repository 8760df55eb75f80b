/* Memory windows. */
#include "agent.h"

#include <string.h>

#define BIND_ID 0xb14d
#define BIND_SECONDS 10

static bool bound(struct end *end)
{
	double deadline = now() + BIND_SECONDS;
	unsigned int empty = 0;
	struct ibv_wc wc;

	while (ibv_poll_cq(end->cq, 1, &wc) != 1) {
		if (now() > deadline) {
			complain("the window was not bound in %d seconds", BIND_SECONDS);
			return false;
		}
		idle(&empty);
	}
	if (wc.status != IBV_WC_SUCCESS || wc.opcode != IBV_WC_BIND_MW || wc.wr_id != BIND_ID) {
		complain("bind: %s, opcode %d", ibv_wc_status_str(wc.status), wc.opcode);
		return false;
	}
	return true;
}

struct ibv_mw *window_make(struct end *end, unsigned int type, const struct memory *memory, unsigned int access,
			   uint32_t *key)
{
	struct ibv_mw_bind_info info = {
		.mr = memory->mr,
		.addr = (uintptr_t)memory->data,
		.length = memory->length,
		.mw_access_flags = access,
	};
	struct ibv_mw_bind bind = { .wr_id = BIND_ID, .send_flags = IBV_SEND_SIGNALED, .bind_info = info };
	struct ibv_send_wr wr = {
		.wr_id = BIND_ID,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_mw *window = NULL;
	int error;

	if (end->side->context->ops.alloc_mw)
		window = ibv_alloc_mw(end->side->pd, type == 1 ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2);
	if (!window) {
		complain("no memory windows here");
		return NULL;
	}
	if (type == 1) {
		error = ibv_bind_mw(end->qp, window, &bind);
		if (error)
			complain("ibv_bind_mw: %s", strerror(error));
		if (!error && bound(end))
			*key = window->rkey;
		return window;
	}
	wr.bind_mw.mw = window;
	wr.bind_mw.rkey = ibv_inc_rkey(window->rkey);
	wr.bind_mw.bind_info = info;
	if (post_send(end, &wr) && bound(end))
		*key = wr.bind_mw.rkey;
	return window;
}

bool window_free(struct ibv_mw *window)
{
	if (!window || !ibv_dealloc_mw(window))
		return true;
	complain("ibv_dealloc_mw failed");
	return false;
}
