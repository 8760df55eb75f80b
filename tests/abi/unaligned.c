/*
 * Structures at addresses that are not multiples of their alignment, as in programs that pack them
 * into structures of their own (libiscsi has ibv_sge at 4 mod 8).
 */
#include "cm.h"

/* Returns a copy at an odd address, valid until the eighth call after this one. */
static void *odd(const void *from, size_t size)
{
	static char room[8][1024];
	static unsigned int next;
	char *at = room[next++ % 8] + 1;

	MUST(size < sizeof(room[0]));
	return memcpy(at, from, size);
}

#define ODD(value) ((__typeof__(value) *)odd(&(value), sizeof(value)))

/* Reads an object that may be at an odd address. */
#define VALUE(type, at) (*(type *)memcpy(&(type){ 0 }, at, sizeof(type)))

static struct ibv_wc odd_completion(struct end *end)
{
	struct ibv_wc none = { 0 }, *wc = ODD(none);
	int count;

	while (!(count = ibv_poll_cq(end->cq, 1, wc)))
		;
	MUST(count == 1);
	return VALUE(struct ibv_wc, wc);
}

static void work_requests(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct ibv_recv_wr *bad_recv = NULL, **bad_recv_at = ODD(bad_recv);
	struct ibv_send_wr *bad_send = NULL, **bad_send_at = ODD(bad_send);
	struct ibv_sge parts[2] = { sge(&b, 0, 3), sge(&b, 512, 5) };
	struct ibv_recv_wr recv = { .wr_id = 7, .num_sge = 2 };
	struct ibv_send_wr send = { .wr_id = 8, .num_sge = 1, .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED };
	struct ibv_sge element = sge(&a, 0, 8);
	struct ibv_wc wc;

	memcpy(a.data, "unpacked", 8);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);

	recv.sg_list = odd(parts, sizeof(parts));
	MUST(!ibv_post_recv(b.qp, ODD(recv), bad_recv_at));
	send.sg_list = ODD(element);
	MUST(!ibv_post_send(a.qp, ODD(send), bad_send_at));
	wc = odd_completion(&a);
	CHECK(wc.wr_id == 8 && wc.status == IBV_WC_SUCCESS);
	wc = odd_completion(&b);
	CHECK(wc.wr_id == 7 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 8);
	CHECK(!memcmp(b.data, "unp", 3) && !memcmp(b.data + 512, "acked", 5));

	/* The second request of a list is refused, and bad_wr points to it. */
	struct ibv_send_wr wrong = send;
	wrong.num_sge = -1;
	send.next = ODD(wrong);
	send.opcode = IBV_WR_RDMA_WRITE;
	send.num_sge = 0;
	FAILS(ibv_post_send(a.qp, ODD(send), bad_send_at), EINVAL);
	CHECK(VALUE(struct ibv_send_wr *, bad_send_at) == send.next);
	/* Null is refused where elements are read. */
	recv.sg_list = NULL;
	FAILS(ibv_post_recv(b.qp, ODD(recv), bad_recv_at), EINVAL);
	odd_completion(&a);

	/* The same by the calls of an extended queue pair. */
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(a.qp);
	struct ibv_data_buf piece = { .addr = "inline", .length = 6 };
	post_recv(&b, 9, 1024);
	ibv_wr_start(qpx);
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qpx);
	ibv_wr_set_sge_list(qpx, 1, ODD(element));
	FAILS(ibv_wr_complete(qpx), 0);
	CHECK(odd_completion(&a).status == IBV_WC_SUCCESS);
	CHECK(odd_completion(&b).wr_id == 9 && !memcmp(b.data + 1024, "unpacked", 8));
	post_recv(&b, 10, 2048);
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data_list(qpx, 1, ODD(piece));
	FAILS(ibv_wr_complete(qpx), 0);
	CHECK(odd_completion(&a).status == IBV_WC_SUCCESS);
	CHECK(odd_completion(&b).wr_id == 10 && !memcmp(b.data + 2048, "inline", 6));

	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

static void attributes(void)
{
	struct ibv_context *context = open_loopback();
	struct end end = make_end(context);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq_init_attr *srq_init_at = ODD(srq_init);
	struct ibv_srq_attr srq_attr = { .srq_limit = 1 }, *srq_attr_at = ODD(srq_attr);
	struct ibv_qp_init_attr init = {
		.send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_init_attr_ex extended = {
		.send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_RC, .pd = end.pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, *attr_at;
	struct ibv_qp_init_attr *init_at;
	struct ibv_qp_init_attr_ex *extended_at;
	struct ibv_device_attr device = { 0 }, *device_at = ODD(device);
	struct ibv_port_attr port = { 0 }, *port_at = ODD(port);
	union ibv_gid gid, *gid_at;
	struct ibv_sge element = sge(&end, 0, 8);
	struct ibv_recv_wr recv = { .wr_id = 1, .num_sge = 1 }, *bad;
	struct ibv_ah_attr ah_attr = { .is_global = 1, .port_num = 1 };
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_ah *ah;

	CHECK((srq = ibv_create_srq(end.pd, srq_init_at)));
	MUST(srq);
	CHECK(VALUE(struct ibv_srq_init_attr, srq_init_at).attr.max_wr >= 8);
	recv.sg_list = ODD(element);
	FAILS(ibv_post_srq_recv(srq, ODD(recv), &bad), 0);
	FAILS(ibv_modify_srq(srq, srq_attr_at, IBV_SRQ_LIMIT), 0);
	FAILS(ibv_query_srq(srq, srq_attr_at), 0);
	CHECK(VALUE(struct ibv_srq_attr, srq_attr_at).srq_limit == 1);
	FAILS(ibv_destroy_srq(srq), 0);

	extended_at = ODD(extended);
	CHECK((qp = ibv_create_qp_ex(context, extended_at)));
	MUST(qp);
	CHECK(VALUE(struct ibv_qp_init_attr_ex, extended_at).cap.max_send_wr >= 4);
	FAILS(ibv_destroy_qp(qp), 0);
	init_at = ODD(init);
	CHECK((qp = ibv_create_qp(end.pd, init_at)));
	MUST(qp);
	CHECK(VALUE(struct ibv_qp_init_attr, init_at).cap.max_send_wr >= 4);
	FAILS(ibv_modify_qp(qp, ODD(attr), IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					   IBV_QP_ACCESS_FLAGS), 0);
	attr_at = ODD(attr);
	FAILS(ibv_query_qp(qp, attr_at, IBV_QP_STATE, init_at), 0);
	CHECK(VALUE(struct ibv_qp_attr, attr_at).qp_state == IBV_QPS_INIT);
	FAILS(ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL);
	FAILS(ibv_destroy_qp(qp), 0);

	FAILS(ibv_query_device(context, device_at), 0);
	CHECK(VALUE(struct ibv_device_attr, device_at).phys_port_cnt == 1);
	FAILS(ibv_query_port(context, 1, port_at), 0);
	CHECK(VALUE(struct ibv_port_attr, port_at).state == IBV_PORT_ACTIVE);
	memset(&gid, 0, sizeof(gid));
	gid_at = ODD(gid);
	CHECK(!ibv_query_gid(context, 1, 0, gid_at));
	ah_attr.grh.dgid = VALUE(union ibv_gid, gid_at);
	CHECK((ah = ibv_create_ah(end.pd, ODD(ah_attr))));
	MUST(ah);
	FAILS(ibv_destroy_ah(ah), 0);

	free_end(&end);
	FAILS(ibv_close_device(context), 0);
}

static void connections(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL, **id_at = ODD(id), *server, *client;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1,
					 .private_data = "odd", .private_data_len = 3, .qp_num = 5 };
	struct rdma_cm_event *event = NULL, **event_at = ODD(event);
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *res = NULL, **res_at = ODD(res);
	struct ibv_qp_init_attr init = small_qp(IBV_QPT_RC), *init_at = ODD(init);

	MUST(channel);
	MUST(!rdma_create_id(channel, id_at, NULL, RDMA_PS_TCP));
	CHECK(!rdma_destroy_id(VALUE(struct rdma_cm_id *, id_at)));
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7", ODD(hints), res_at));
	rdma_freeaddrinfo(VALUE(struct rdma_addrinfo *, res_at));

	server = listener(channel, RDMA_PS_TCP);
	client = on_the_way(channel, RDMA_PS_TCP, rdma_get_src_port(server));
	CHECK(!rdma_create_qp(client, NULL, init_at));
	CHECK(VALUE(struct ibv_qp_init_attr, init_at).send_cq == client->send_cq);
	MUST(!rdma_connect(client, ODD(param)));
	MUST(!rdma_get_cm_event(channel, event_at));
	event = VALUE(struct rdma_cm_event *, event_at);
	CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(!memcmp(event->param.conn.private_data, "odd", 3));
	id = event->id;
	CHECK(!rdma_accept(id, ODD(param)));
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_qp(client);
	CHECK(!rdma_destroy_id(client));
	CHECK(!rdma_destroy_id(server));
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "work_requests", work_requests },
		{ "attributes", attributes },
		{ "connections", connections },
	};

	return run_case(cases, sizeof(cases) / sizeof(cases[0]), argc, argv);
}
