/*
 * Datagrams: address handles, replies, queue keys, multicast groups. The argument selects the case.
 */
#include "program.h"

enum { QKEY = 0x11111111, GRH = 40 };

/* An end with a UD queue pair in RTS. */
static struct end make_with(struct ibv_context *context, uint32_t create_flags)
{
	struct end end = make_end(context);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = end.cq, .recv_cq = end.cq, .pd = end.pd, .qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2,
			 .max_recv_sge = 2, .max_inline_data = INLINE },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS |
			     IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
		.create_flags = create_flags,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };

	FAILS(ibv_destroy_qp(end.qp), 0);
	MUST(end.qp = ibv_create_qp_ex(context, &init));
	MUST(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					   IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	MUST(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 9;
	MUST(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return end;
}

static struct end make_datagrams(struct ibv_context *context)
{
	return make_with(context, 0);
}

static struct ibv_ah *make_ah(struct end *end, const char *gid)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	struct ibv_ah *ah;
	if (gid)
		memcpy(attr.grh.dgid.raw, gid, 16);
	else
		MUST(!ibv_query_gid(end->qp->context, 1, 0, &attr.grh.dgid));
	MUST(ah = ibv_create_ah(end->pd, &attr));
	return ah;
}

static int send_to(struct end *end, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey,
		   enum ibv_wr_opcode opcode)
{
	struct ibv_sge element = sge(end, 4096, 8);
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &element, .num_sge = 1, .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = 0x1234,
				  .wr = { .ud = { ah, qpn, qkey } } }, *bad = NULL;
	int status = ibv_post_send(end->qp, &wr, &bad);
	CHECK((bad == &wr) == (status != 0));
	return status;
}

static void posting(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_datagrams(context), b = make_datagrams(context);
	struct ibv_ah *ah = make_ah(&a, NULL), *foreign = make_ah(&b, NULL);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_port_attr port, after;

	FAILS(send_to(&a, NULL, b.qp->qp_num, QKEY, IBV_WR_SEND), EINVAL);
	FAILS(send_to(&a, foreign, b.qp->qp_num, QKEY, IBV_WR_SEND), EINVAL);
	FAILS(send_to(&a, ah, b.qp->qp_num, QKEY, IBV_WR_RDMA_WRITE), EINVAL);
	FAILS(send_to(&a, ah, b.qp->qp_num, QKEY, IBV_WR_RDMA_READ), EINVAL);
	FAILS(send_to(&a, ah, b.qp->qp_num, QKEY, IBV_WR_ATOMIC_FETCH_AND_ADD), EINVAL);
	FAILS(ibv_query_qp(a.qp, &attr, IBV_QP_QKEY, &init), 0);
	CHECK(attr.qkey == QKEY && attr.qp_state == IBV_QPS_RTS && attr.sq_psn == 9);
	CHECK(init.qp_type == IBV_QPT_UD);

	/* A datagram with a wrong queue key is dropped and counted. */
	MUST(!ibv_query_port(context, 1, &port));
	post_recv(&b, 1, 0);
	FAILS(send_to(&a, ah, b.qp->qp_num, QKEY + 1, IBV_WR_SEND), 0);
	FAILS(send_to(&a, ah, b.qp->qp_num, QKEY, IBV_WR_SEND_WITH_IMM), 0);
	struct ibv_wc wc = completion(&b);
	CHECK(wc.wr_id == 1 && wc.byte_len == GRH + 8 && wc.src_qp == a.qp->qp_num);
	CHECK(wc.wc_flags == (IBV_WC_GRH | IBV_WC_WITH_IMM) && wc.imm_data == 0x1234);
	CHECK(wc.opcode == IBV_WC_RECV && !wc.pkey_index);
	CHECK(completion(&a).status == IBV_WC_SUCCESS && completion(&a).wr_id == 5);
	MUST(!ibv_query_port(context, 1, &after));
	CHECK(after.qkey_viol_cntr == port.qkey_viol_cntr + 1);
	CHECK(after.bad_pkey_cntr == port.bad_pkey_cntr);

	FAILS(ibv_destroy_ah(ah), 0);
	FAILS(ibv_destroy_ah(foreign), 0);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

static void answers(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_datagrams(context), b = make_datagrams(context);
	struct ibv_ah *ah = make_ah(&a, NULL), *back, *others;
	struct ibv_qp_ex *qp;

	memcpy(a.data + 4096, "question", 8);
	post_recv(&a, 2, 0);
	post_recv(&b, 1, 0);
	FAILS(send_to(&a, ah, b.qp->qp_num, QKEY, IBV_WR_SEND), 0);
	/* The address handle may be destroyed after the post. */
	FAILS(ibv_destroy_ah(ah), 0);
	struct ibv_wc wc = completion(&b);
	CHECK(!memcmp(b.data + GRH, "question", 8));
	MUST(back = ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)b.data, 1));

	MUST(qp = ibv_qp_to_qp_ex(b.qp));
	ibv_wr_start(qp);
	qp->wr_id = 6;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data(qp, "nowhere", 8);
	FAILS(ibv_wr_complete(qp), EINVAL); /* it has no address */
	/* An invalid request fails the batch: a handle of another domain, or an operation that UD does
	 * not support. */
	MUST(others = make_ah(&a, NULL));
	for (int i = 0; i < 2; i++) {
		ibv_wr_start(qp);
		ibv_wr_send(qp);
		ibv_wr_set_ud_addr(qp, back, wc.src_qp, QKEY);
		ibv_wr_set_inline_data(qp, "whole", 6);
		if (i == 0)
			ibv_wr_send(qp);
		else
			ibv_wr_rdma_write(qp, 1, 2);
		ibv_wr_set_ud_addr(qp, i == 0 ? others : back, wc.src_qp, QKEY);
		FAILS(ibv_wr_complete(qp), EINVAL);
	}
	FAILS(ibv_destroy_ah(others), 0);
	ibv_wr_start(qp);
	ibv_wr_send_imm(qp, 7);
	ibv_wr_set_ud_addr(qp, back, wc.src_qp, QKEY);
	ibv_wr_set_inline_data(qp, "answer", 7);
	FAILS(ibv_wr_complete(qp), 0);
	CHECK(completion(&b).wr_id == 6);
	do
		wc = completion(&a);
	while (wc.opcode != IBV_WC_RECV);
	CHECK(wc.wr_id == 2 && wc.imm_data == 7 && wc.src_qp == b.qp->qp_num);
	CHECK(!strcmp((char *)a.data + GRH, "answer"));
	FAILS(ibv_destroy_ah(back), 0);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

/* The service level of a receive encodes the network header type, as on NICs, and address handles
 * created from the completion reach the sender. */
static void service_level(void)
{
	static const char V4[] = "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\x01";
	static const char V6[] = "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01";
	static const struct { const char *gid; uint8_t sl; } families[] = { { V4, 0xa }, { V6, 0x9 } };
	struct ibv_context *context;
	struct end a, b;

	own_network();
	context = open_loopback();
	a = make_datagrams(context);
	b = make_datagrams(context);
	for (int i = 0; i < 2; i++) {
		struct ibv_ah_attr to = { .is_global = 1, .port_num = 1 }, attr;
		struct ibv_ah *ah, *back[2];
		union ibv_gid gid;
		struct ibv_wc wc;

		memcpy(to.grh.dgid.raw, families[i].gid, 16);
		do
			MUST(!ibv_query_gid(context, 1, to.grh.sgid_index++, &gid));
		while (memcmp(gid.raw, families[i].gid, 16));
		to.grh.sgid_index--;
		MUST(ah = ibv_create_ah(a.pd, &to));
		post_recv(&b, 1, 0);
		post_recv(&b, 2, 0);
		for (int n = 0; n < 2; n++) {
			FAILS(send_to(&a, ah, b.qp->qp_num, QKEY, IBV_WR_SEND), 0);
			wc = completion(&a);
			CHECK(wc.status == IBV_WC_SUCCESS && !wc.sl);
		}
		while (ibv_start_poll(b.cq_ex, NULL))
			;
		CHECK(ibv_wc_read_sl(b.cq_ex) == families[i].sl);
		ibv_end_poll(b.cq_ex);
		wc = completion(&b);
		CHECK(wc.wr_id == 2 && wc.sl == families[i].sl);

		MUST(back[0] = ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)b.data, 1));
		FAILS(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)b.data, &attr), 0);
		CHECK(attr.sl == families[i].sl && attr.is_global);
		CHECK(!memcmp(attr.grh.dgid.raw, families[i].gid, 16));
		MUST(back[1] = ibv_create_ah(b.pd, &attr));
		for (int n = 0; n < 2; n++) {
			post_recv(&a, 3, 0);
			FAILS(send_to(&b, back[n], wc.src_qp, QKEY, IBV_WR_SEND), 0);
			CHECK(completion(&b).status == IBV_WC_SUCCESS);
			struct ibv_wc answer = completion(&a);
			CHECK(answer.wr_id == 3 && answer.sl == families[i].sl);
			FAILS(ibv_destroy_ah(back[n]), 0);
		}
		FAILS(ibv_destroy_ah(ah), 0);
	}
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

#define GROUP "\0\0\0\0\0\0\0\0\0\0\xff\xff\xef\x2f\x5b\x1e" /* 239.47.91.30 */

static void groups(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_datagrams(context), b = make_datagrams(context), rc = make_end(context);
	struct ibv_ah *ah = make_ah(&a, GROUP);
	union ibv_gid group, own;

	memcpy(group.raw, GROUP, 16);
	MUST(!ibv_query_gid(context, 1, 0, &own));
	FAILS(ibv_attach_mcast(rc.qp, &group, 0), EINVAL);
	FAILS(ibv_attach_mcast(a.qp, &own, 0), EINVAL);
	FAILS(ibv_attach_mcast(NULL, &group, 0), EINVAL);
	FAILS(ibv_attach_mcast(a.qp, NULL, 0), EINVAL);
	FAILS(ibv_detach_mcast(a.qp, &group, 0), EINVAL);
	FAILS(ibv_attach_mcast(a.qp, &group, 0), 0);
	FAILS(ibv_attach_mcast(a.qp, &group, 0xc000), 0); /* attached already; the LID is ignored */
	FAILS(ibv_attach_mcast(b.qp, &group, 0), 0);
	FAILS(ibv_destroy_qp(b.qp), EBUSY);

	post_recv(&a, 1, 0);
	post_recv(&b, 1, 0);
	FAILS(send_to(&a, ah, 0xffffff, QKEY, IBV_WR_SEND), 0);
	struct ibv_wc wc = completion(&b);
	CHECK(wc.byte_len == GRH + 8 && wc.src_qp == a.qp->qp_num);
	CHECK(!memcmp(b.data + 36, GROUP + 12, 4));
	/* The sender's own copy, and the completion of its send. */
	for (int i = 0; i < 2; i++)
		CHECK(completion(&a).status == IBV_WC_SUCCESS);

	FAILS(ibv_detach_mcast(a.qp, &group, 0), 0);
	FAILS(ibv_detach_mcast(a.qp, &group, 0), EINVAL);
	FAILS(ibv_detach_mcast(b.qp, &group, 0), 0);
	FAILS(ibv_destroy_ah(ah), 0);
	free_end(&a);
	free_end(&b);
	free_end(&rc);
	FAILS(ibv_close_device(context), 0);
}

/* With IBV_QP_CREATE_BLOCK_SELF_MCAST_LB a queue pair does not receive its own datagrams; others do. */
static void own_blocked(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_with(context, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB);
	struct end b = make_datagrams(context);
	struct ibv_ah *ah = make_ah(&a, GROUP), *back = make_ah(&b, GROUP);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = a.cq, .recv_cq = a.cq, .pd = a.pd, .qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
	};
	union ibv_gid group;
	struct ibv_wc wc;

	errno = 0;
	CHECK(!ibv_create_qp_ex(context, &init) && errno == EINVAL);
	init.qp_type = IBV_QPT_UD;
	init.create_flags |= IBV_QP_CREATE_CVLAN_STRIPPING;
	errno = 0;
	CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);

	memcpy(group.raw, GROUP, 16);
	FAILS(ibv_attach_mcast(a.qp, &group, 0), 0);
	FAILS(ibv_attach_mcast(b.qp, &group, 0), 0);
	for (int i = 1; i <= 2; i++) {
		post_recv(&a, i, 0);
		post_recv(&b, i, 0);
	}
	FAILS(send_to(&a, ah, 0xffffff, QKEY, IBV_WR_SEND), 0);
	CHECK(completion(&a).opcode == IBV_WC_SEND);
	CHECK(completion(&b).src_qp == a.qp->qp_num);
	/* Datagrams are received in order, so the first one is not its own. */
	FAILS(send_to(&b, back, 0xffffff, QKEY, IBV_WR_SEND), 0);
	wc = completion(&a);
	CHECK(wc.opcode == IBV_WC_RECV && wc.wr_id == 1 && wc.src_qp == b.qp->qp_num);

	FAILS(ibv_detach_mcast(a.qp, &group, 0), 0);
	FAILS(ibv_detach_mcast(b.qp, &group, 0), 0);
	FAILS(ibv_destroy_ah(ah), 0);
	FAILS(ibv_destroy_ah(back), 0);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

/* An address that is added after the queue pair was created is local, too. */
static void later_address(void)
{
	static const char LATER[] = "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\0\0\x09";
	struct ibv_context *context;
	struct ibv_async_event event;
	struct end a, b;
	struct ibv_ah *ah;
	struct ibv_wc wc;

	own_network_to_change();
	context = open_loopback();
	a = make_datagrams(context);
	b = make_datagrams(context);
	ip("address add 10.0.0.9/32 dev lo");
	do {
		MUST(!ibv_get_async_event(context, &event));
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_GID_CHANGE);
	ah = make_ah(&a, LATER);
	post_recv(&b, 1, 0);
	/* The socket of the address opens asynchronously; datagrams before that are lost. */
	do {
		FAILS(send_to(&a, ah, b.qp->qp_num, QKEY, IBV_WR_SEND), 0);
		CHECK(completion(&a).status == IBV_WC_SUCCESS);
		usleep(1000);
	} while (!ibv_poll_cq(b.cq, 1, &wc));
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1);
	CHECK(!memcmp(b.data + 36, LATER + 12, 4));
	FAILS(ibv_destroy_ah(ah), 0);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "posting", posting },
		{ "answers", answers },
		{ "service_level", service_level },
		{ "groups", groups },
		{ "own_blocked", own_blocked },
		{ "later_address", later_address },
	};
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
