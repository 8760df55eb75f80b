/*
 * Shared receive queues and extended reliable connections: refused arguments and their errors, events, the
 * order of destruction, and queue pairs that several processes open. The argument selects the case.
 */
#include "program.h"

static struct ibv_srq *make_srq(struct ibv_pd *pd, uint32_t max_wr)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = max_wr, .max_sge = 1 } };
	return ibv_create_srq(pd, &attr);
}

static struct ibv_recv_wr *post_shared(struct ibv_srq *srq, struct end *end, int count)
{
	struct ibv_sge element = sge(end, 8192, 1024);
	struct ibv_recv_wr *bad = NULL;
	for (int i = 0; i < count; i++) {
		struct ibv_recv_wr wr = { .wr_id = (uint64_t)i, .sg_list = &element, .num_sge = 1 };
		if (ibv_post_srq_recv(srq, &wr, &bad))
			return bad;
	}
	return NULL;
}

static void queues(void)
{
	struct ibv_context *context = open_loopback(), *other = open_loopback();
	struct end end = make_end(context);
	struct ibv_pd *foreign = ibv_alloc_pd(other);
	struct ibv_srq *srq, *theirs;
	struct ibv_srq_attr attr;
	struct ibv_qp_init_attr init = { .send_cq = end.cq, .recv_cq = end.cq, .qp_type = IBV_QPT_RC,
					 .cap = { 1, 9, 1, 9, 0 } };
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad = NULL;
	struct ibv_device_attr device;
	struct ibv_qp_attr qp_attr;
	struct ibv_qp_init_attr shown;
	struct ibv_async_event event;
	uint32_t number;

	FAILS(ibv_query_device(context, &device), 0);
	CHECK(device.max_srq > 0 && device.max_srq_wr > 0 && device.max_srq_sge > 0);
	CHECK(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
	NO_OBJECT(make_srq(end.pd, 0), EINVAL);
	NO_OBJECT(make_srq(end.pd, (uint32_t)device.max_srq_wr + 1), EINVAL);
	NO_OBJECT(make_srq(NULL, 4), EINVAL);
	NO_OBJECT(ibv_create_srq(end.pd, NULL), EINVAL);
	MUST(srq = make_srq(end.pd, 4));
	MUST(theirs = make_srq(foreign, 4));
	CHECK(srq->context == context && srq->pd == end.pd);
	FAILS(ibv_query_srq(srq, &attr), 0);
	CHECK(attr.max_wr >= 4 && attr.max_sge >= 1 && !attr.srq_limit);
	FAILS(ibv_get_srq_num(srq, &number), EOPNOTSUPP);
	init.srq = theirs;
	NO_OBJECT(ibv_create_qp(end.pd, &init), EINVAL);
	FAILS(ibv_destroy_qp(end.qp), 0);
	init.srq = srq;
	MUST(end.qp = ibv_create_qp(end.pd, &init));
	CHECK(end.qp->srq == srq && !init.cap.max_recv_wr && !init.cap.max_recv_sge);
	FAILS(ibv_query_qp(end.qp, &qp_attr, IBV_QP_STATE, &shown), 0);
	CHECK(shown.srq == srq);
	FAILS(ibv_destroy_srq(srq), EBUSY);
	FAILS(ibv_dealloc_pd(foreign), EBUSY);
	MUST(!to_init(end.qp));
	FAILS(ibv_post_recv(end.qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);

	CHECK(!post_shared(srq, &end, 4));
	CHECK(post_shared(srq, &end, 1));
	FAILS(ibv_post_srq_recv(srq, &wr, &bad), ENOMEM);
	attr.max_wr = 3;
	FAILS(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
	attr.max_wr = 8;
	FAILS(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), 0);
	CHECK(!post_shared(srq, &end, 4));
	attr.srq_limit = 9;
	FAILS(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
	FAILS(ibv_modify_srq(srq, &attr, 1 << 7), EINVAL);
	attr.srq_limit = 5;
	FAILS(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	FAILS(ibv_query_srq(srq, &attr), 0);
	CHECK(attr.srq_limit == 5 && attr.max_wr >= 8);

	attr.srq_limit = 2; /* the queue is empty: the limit is reached at once */
	FAILS(ibv_modify_srq(theirs, &attr, IBV_SRQ_LIMIT), 0);
	FAILS(ibv_get_async_event(other, &event), 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == theirs);
	ibv_ack_async_event(&event);
	FAILS(ibv_destroy_srq(theirs), 0);
	FAILS(ibv_destroy_srq(NULL), EINVAL);

	FAILS(ibv_destroy_qp(end.qp), 0);
	end.qp = NULL;
	FAILS(ibv_destroy_srq(srq), 0);
	free_end(&end);
	FAILS(ibv_dealloc_pd(foreign), 0);
	FAILS(ibv_close_device(other), 0);
	FAILS(ibv_close_device(context), 0);
}

static struct ibv_xrcd *open_domain(struct ibv_context *context, int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD |
							IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = fd, .oflags = oflags };
	return ibv_open_xrcd(context, &attr);
}

static struct ibv_srq *make_member(struct end *end, struct ibv_xrcd *xrcd)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { .max_wr = 8, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.pd = end->pd, .xrcd = xrcd, .cq = end->cq,
	};
	return ibv_create_srq_ex(end->qp->context, &attr);
}

static struct ibv_qp *make_target(struct ibv_context *context, struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex attr = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd,
					    .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	return ibv_create_qp_ex(context, &attr);
}

static struct ibv_qp *make_initiator(struct end *end)
{
	struct ibv_qp_init_attr_ex attr = { .qp_type = IBV_QPT_XRC_SEND, .send_cq = end->cq,
					    .cap = { .max_send_wr = 8, .max_send_sge = 1 },
					    .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = end->pd };
	return ibv_create_qp_ex(end->qp->context, &attr);
}

static struct ibv_qp *open_target(struct ibv_context *context, struct ibv_xrcd *xrcd, uint32_t number)
{
	struct ibv_qp_open_attr attr = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
						      IBV_QP_OPEN_ATTR_TYPE |
						      IBV_QP_OPEN_ATTR_CONTEXT,
					 .qp_num = number, .xrcd = xrcd, .qp_context = &failures,
					 .qp_type = IBV_QPT_XRC_RECV };
	return ibv_open_qp(context, &attr);
}

static void domains(void)
{
	struct ibv_context *context = open_loopback();
	struct end end = make_end(context);
	int file = memfd_create("domain", 0), same = dup(file);
	struct ibv_xrcd *first, *second, *nobodys;
	struct ibv_srq *srq, *elsewhere;
	struct ibv_qp *qp;
	uint32_t one, two;

	MUST(file >= 0 && same >= 0);
	NO_OBJECT(open_domain(context, file, 0), EAGAIN);
	NO_OBJECT(open_domain(context, 9999, O_CREAT), EBADF);
	NO_OBJECT(open_domain(context, file, O_APPEND), EINVAL);
	MUST(first = open_domain(context, file, O_CREAT | O_EXCL));
	NO_OBJECT(open_domain(context, same, O_CREAT | O_EXCL), EINVAL);
	MUST(second = open_domain(context, same, 0));
	MUST(nobodys = open_domain(context, -1, O_CREAT));

	MUST(srq = make_member(&end, first));
	MUST(elsewhere = make_member(&end, nobodys));
	FAILS(ibv_get_srq_num(srq, &one), 0);
	FAILS(ibv_get_srq_num(elsewhere, &two), 0);
	FAILS(ibv_close_xrcd(first), EBUSY);
	NO_OBJECT(make_target(context, NULL), EINVAL);
	MUST(qp = make_target(context, second));
	CHECK(!qp->pd && !qp->send_cq && !qp->recv_cq && !qp->srq);
	FAILS(ibv_close_xrcd(second), EBUSY);
	NO_OBJECT(open_target(context, nobodys, qp->qp_num), EINVAL);
	NO_OBJECT(open_target(context, first, end.qp->qp_num), EINVAL);
	FAILS(ibv_destroy_qp(qp), 0);
	FAILS(ibv_destroy_srq(srq), 0);
	FAILS(ibv_destroy_srq(elsewhere), 0);
	FAILS(ibv_close_xrcd(second), 0);
	MUST(second = open_domain(context, file, 0));
	FAILS(ibv_close_xrcd(second), 0);
	FAILS(ibv_close_xrcd(first), 0);
	NO_OBJECT(open_domain(context, file, 0), EAGAIN);
	FAILS(ibv_close_xrcd(nobodys), 0);
	free_end(&end);
	FAILS(ibv_close_device(context), 0);
}

static int send_message(struct end *from, struct ibv_qp *qp, uint32_t srqn, enum ibv_wr_opcode opcode,
			struct end *to)
{
	struct ibv_sge element = sge(from, 0, 8);
	struct ibv_send_wr wr = { .wr_id = 3, .sg_list = &element, .num_sge = 1, .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED,
				  .qp_type = { .xrc = { srqn } } }, *bad;
	if (opcode != IBV_WR_SEND)
		wr.wr.rdma.remote_addr = (uintptr_t)to->data, wr.wr.rdma.rkey = to->mr->rkey;
	return ibv_post_send(qp, &wr, &bad);
}

/* Two owners of shared queues open one target, through which a peer accesses the memory of both. */
static void targets(void)
{
	struct ibv_context *context = open_loopback(), *other = open_loopback();
	struct end a = make_end(context), b = make_end(context), c = make_end(other);
	struct ibv_xrcd *xrcd, *again;
	struct ibv_srq *at_b, *at_c;
	struct ibv_qp *initiator, *target, *opened;
	struct ibv_async_event event;
	struct ibv_wc wc;
	uint32_t b_number, c_number, number;
	int file = memfd_create("domain", 0);

	MUST(file >= 0);
	MUST(xrcd = open_domain(context, file, O_CREAT));
	MUST(again = open_domain(other, file, 0));
	MUST(at_b = make_member(&b, xrcd));
	MUST(at_c = make_member(&c, again));
	MUST(!ibv_get_srq_num(at_b, &b_number) && !ibv_get_srq_num(at_c, &c_number));
	MUST(initiator = make_initiator(&a));
	MUST(target = make_target(context, xrcd));
	MUST(opened = open_target(other, again, target->qp_num));
	CHECK(opened->qp_num == target->qp_num && opened->qp_context == &failures);
	connect_to(initiator, target->qp_num);
	connect_to(opened, initiator->qp_num);

	CHECK(!post_shared(at_b, &b, 1) && !post_shared(at_c, &c, 1));
	strcpy((char *)a.data, "hello");
	MUST(!send_message(&a, initiator, c_number, IBV_WR_SEND, NULL));
	wc = completion(&c);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 8);
	CHECK(wc.qp_num == target->qp_num && !strcmp((char *)c.data + 8192, "hello"));
	MUST(!send_message(&a, initiator, b_number, IBV_WR_SEND, NULL));
	CHECK(completion(&b).status == IBV_WC_SUCCESS);
	MUST(!send_message(&a, initiator, b_number, IBV_WR_RDMA_WRITE, &b));
	for (int i = 0; i < 3; i++)
		CHECK(completion(&a).status == IBV_WC_SUCCESS);
	CHECK(!strcmp((char *)b.data, "hello"));

	/* The creator closes it; it lives on for the other owner, which gets the event of its end. */
	FAILS(ibv_destroy_qp(target), 0);
	CHECK(!post_shared(at_c, &c, 1));
	MUST(!send_message(&a, initiator, c_number, IBV_WR_SEND, NULL));
	CHECK(completion(&c).status == IBV_WC_SUCCESS && completion(&a).status == IBV_WC_SUCCESS);
	/* The key is of b's protection domain, and the request uses c's. */
	MUST(!send_message(&a, initiator, c_number, IBV_WR_RDMA_WRITE, &b));
	CHECK(completion(&a).status == IBV_WC_REM_ACCESS_ERR);
	do {
		MUST(!ibv_get_async_event(other, &event));
		CHECK(event.element.qp == opened);
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_QP_LAST_WQE_REACHED);

	number = opened->qp_num;
	FAILS(ibv_destroy_qp(opened), 0);
	NO_OBJECT(open_target(other, again, number), EINVAL);
	FAILS(ibv_destroy_qp(initiator), 0);
	FAILS(ibv_destroy_srq(at_b), 0);
	FAILS(ibv_destroy_srq(at_c), 0);
	FAILS(ibv_close_xrcd(again), 0);
	FAILS(ibv_close_xrcd(xrcd), 0);
	free_end(&a);
	free_end(&b);
	free_end(&c);
	FAILS(ibv_close_device(other), 0);
	FAILS(ibv_close_device(context), 0);
}

/* A target fails when the completion queue of a shared receive queue overruns. */
static void overrun_target(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context), small = b;
	struct ibv_qp *initiator, *target;
	struct ibv_async_event event;
	struct ibv_xrcd *xrcd;
	struct ibv_srq *srq;
	uint32_t number;

	MUST(small.cq = ibv_create_cq(context, 1, NULL, NULL, 0));
	MUST(xrcd = open_domain(context, -1, O_CREAT));
	MUST(srq = make_member(&small, xrcd));
	MUST(!ibv_get_srq_num(srq, &number));
	MUST(initiator = make_initiator(&a));
	MUST(target = make_target(context, xrcd));
	connect_to(initiator, target->qp_num);
	connect_to(target, initiator->qp_num);
	CHECK(!post_shared(srq, &b, 2));
	MUST(!send_message(&a, initiator, number, IBV_WR_SEND, NULL));
	MUST(!send_message(&a, initiator, number, IBV_WR_SEND, NULL));
	MUST(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == small.cq);
	ibv_ack_async_event(&event);
	do {
		MUST(!ibv_get_async_event(context, &event));
		CHECK(event.element.qp == target);
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_QP_FATAL);

	FAILS(ibv_destroy_qp(initiator), 0);
	FAILS(ibv_destroy_qp(target), 0);
	FAILS(ibv_destroy_srq(srq), 0);
	FAILS(ibv_close_xrcd(xrcd), 0);
	FAILS(ibv_destroy_cq(small.cq), 0);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "queues", queues },
		{ "domains", domains },
		{ "targets", targets },
		{ "overrun_target", overrun_target },
	};
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
