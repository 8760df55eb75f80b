/*
 * The objects of the C ABI: refused arguments and their errors, the order of destruction, and the ways of
 * posting and polling. The argument selects the case.
 */
#include "program.h"

static void devices(void)
{
	int count = -1;
	struct ibv_device **list, **again;
	struct ibv_context *context;

	MUST(list = ibv_get_device_list(&count));
	MUST(count > 0);
	CHECK(!list[count]);
	MUST(again = ibv_get_device_list(NULL));
	for (int i = 0; i < count; i++) {
		CHECK(list[i] && list[i] == again[i]);
		CHECK(!strncmp(ibv_get_device_name(list[i]), "urxe_", 5));
		CHECK(ibv_get_device_guid(list[i]));
		/* The kernel has no index of these devices. UCX 1.20 queries the kernel with any other. */
		CHECK(ibv_get_device_index(list[i]) == -1);
		CHECK(list[i]->node_type == IBV_NODE_CA);
		CHECK(list[i]->transport_type == IBV_TRANSPORT_IB);
	}
	MUST(context = ibv_open_device(list[count - 1]));
	ibv_free_device_list(list);
	ibv_free_device_list(again);
	CHECK(!strcmp(ibv_get_device_name(context->device), "urxe_lo"));
	CHECK(context->num_comp_vectors == 1);
	FAILS(ibv_close_device(context), 0);

	NO_OBJECT(ibv_open_device(NULL), EINVAL);
	NO_OBJECT(ibv_get_device_name(NULL), EINVAL);
	CHECK(!ibv_get_device_guid(NULL));
	MINUS_ONE(ibv_get_device_index(NULL), EINVAL);
	ibv_free_device_list(NULL);
}

/* The values of sysfs, which the headers do not have. */
enum { SYSFS_ROCE_V1, SYSFS_ROCE_V2 };
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, int *type);

static void queries(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_device_attr device;
	struct ibv_device_attr_ex device_ex;
	struct ibv_port_attr port;
	struct ibv_gid_entry entry, entries[256];
	union ibv_gid gid, zero;
	uint16_t pkey;
	int type;

	FAILS(ibv_query_device(context, &device), 0);
	CHECK(device.node_guid == ibv_get_device_guid(context->device));
	CHECK(device.phys_port_cnt == 1 && device.max_sge == 32);
	FAILS(ibv_query_device(context, NULL), EINVAL);
	memset(&device_ex, 0xee, sizeof(device_ex));
	FAILS(ibv_query_device_ex(context, NULL, &device_ex), 0);
	CHECK(!memcmp(&device_ex.orig_attr, &device, sizeof(device)));
	CHECK(!device_ex.comp_mask && !device_ex.raw_packet_caps);
	CHECK(device_ex.phys_port_cnt_ex == 1);

	memset(&port, 0xee, sizeof(port));
	FAILS(ibv_query_port(context, 1, &port), 0);
	CHECK(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET);
	CHECK(port.active_mtu == IBV_MTU_4096 && port.port_cap_flags2 == 0);
	FAILS(ibv_query_port(context, 0, &port), EINVAL);
	FAILS(ibv_query_port(context, 2, &port), EINVAL);

	memset(&zero, 0, sizeof(zero));
	FAILS(ibv_query_gid(context, 1, 0, &gid), 0);
	CHECK(gid.raw[10] == 0xff && gid.raw[12] == 127);
	FAILS(ibv_query_gid(context, 1, port.gid_tbl_len - 1, &gid), 0);
	CHECK(!memcmp(&gid, &zero, sizeof(gid)));
	MINUS_ONE(ibv_query_gid(context, 1, port.gid_tbl_len, &gid), EINVAL);
	MINUS_ONE(ibv_query_gid(context, 1, -1, &gid), EINVAL);
	MINUS_ONE(ibv_query_gid(context, 2, 0, &gid), EINVAL);
	FAILS(ibv_query_gid_ex(context, 1, 0, &entry, 0), 0);
	CHECK(entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.ndev_ifindex == 1);
	FAILS(ibv_query_gid_ex(context, 1, 0, &entry, 1), EOPNOTSUPP);
	FAILS(ibv_query_gid_ex(context, 1, (uint32_t)port.gid_tbl_len - 1, &entry, 0), ENODATA);
	FAILS(ibv_query_gid_type(context, 1, 0, &type), 0);
	CHECK(type == SYSFS_ROCE_V2);
	FAILS(ibv_query_gid_type(context, 1, (unsigned int)port.gid_tbl_len - 1, &type), 0);
	CHECK(type == SYSFS_ROCE_V1);
	MINUS_ONE(ibv_query_gid_type(context, 1, (unsigned int)port.gid_tbl_len, &type), EINVAL);
	CHECK(ibv_query_gid_table(context, entries, 256, 0) >= 1);
	CHECK(!memcmp(&entries[0].gid.raw[12], "\x7f\0\0\1", 4));
	CHECK(ibv_query_gid_table(context, entries, 0, 0) == -EINVAL);
	CHECK(ibv_query_gid_table(context, entries, 256, 1) == -EOPNOTSUPP);

	FAILS(ibv_query_pkey(context, 1, 0, &pkey), 0);
	CHECK(pkey == 0xffff && ibv_get_pkey_index(context, 1, pkey) == 0);
	MINUS_ONE(ibv_query_pkey(context, 1, 1, &pkey), EINVAL);
	MINUS_ONE(ibv_get_pkey_index(context, 1, 0x0180), EINVAL);
	FAILS(ibv_close_device(context), 0);
}

static void memory(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	long page = sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, (size_t)page * 2, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_ah_attr address = { .is_global = 1, .port_num = 1 };

	MUST(pd && pages != MAP_FAILED);
	NO_OBJECT(ibv_alloc_pd(NULL), EINVAL);
	FAILS(ibv_dealloc_pd(NULL), EINVAL);
	FAILS(ibv_dereg_mr(NULL), EINVAL);
	NO_OBJECT(ibv_reg_mr(NULL, pages, 16, 0), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, pages, 16, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, pages, 16, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, pages, 16, 1 << 15), EOPNOTSUPP);
	MUST(!munmap(pages + page, (size_t)page));
	NO_OBJECT(ibv_reg_mr(pd, pages, (size_t)page + 1, ALL), EFAULT);
	MUST(mr = ibv_reg_mr(pd, pages, (size_t)page, ALL | IBV_ACCESS_RELAXED_ORDERING));
	CHECK(mr->context == context && mr->pd == pd && mr->addr == pages);
	CHECK(mr->length == (size_t)page && mr->lkey && mr->rkey);
	FAILS(ibv_dealloc_pd(pd), EBUSY);
	FAILS(ibv_dereg_mr(mr), 0);

	NO_OBJECT(ibv_create_ah(pd, &address), EINVAL); /* the zero GID is no address */
	MUST(!ibv_query_gid(context, 1, 0, &address.grh.dgid));
	MUST(ah = ibv_create_ah(pd, &address));
	FAILS(ibv_dealloc_pd(pd), EBUSY);
	FAILS(ibv_destroy_ah(ah), 0);
	address.port_num = 2;
	NO_OBJECT(ibv_create_ah(pd, &address), EINVAL);
	address.port_num = 1;
	address.grh.sgid_index = 200;
	NO_OBJECT(ibv_create_ah(pd, &address), EINVAL);
	address = (struct ibv_ah_attr){ .port_num = 1 };
	NO_OBJECT(ibv_create_ah(pd, &address), EINVAL);

	FAILS(ibv_dealloc_pd(pd), 0);
	FAILS(ibv_close_device(context), 0);
}

/* An IPv4 header in the second half of a GRH, from 127.0.0.9 to 127.0.0.1. */
static void addresses(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	unsigned char grh[40] = { [20] = 0x45, [21] = 0x68, [28] = 33, [29] = 17,
				  [32] = 127, [33] = 0, [34] = 0, [35] = 9,
				  [36] = 127, [37] = 0, [38] = 0, [39] = 1 };
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH, .sl = 3 };
	struct ibv_ah_attr attr;
	struct ibv_ah *ah;
	uint32_t sum = 0;

	MUST(pd);
	for (int i = 20; i < 40; i += 2)
		sum += (uint32_t)(grh[i] << 8 | grh[i + 1]);
	sum = ~((sum & 0xffff) + (sum >> 16));
	grh[30] = (unsigned char)(sum >> 8);
	grh[31] = (unsigned char)sum;
	FAILS(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)grh, &attr), 0);
	CHECK(attr.is_global == 1 && attr.port_num == 1 && attr.sl == 3);
	CHECK(!memcmp(attr.grh.dgid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\x09", 16));
	CHECK(attr.grh.sgid_index == 0 && attr.grh.hop_limit == 33);
	CHECK(attr.grh.traffic_class == 0x68 && attr.grh.flow_label == 0);
	MUST(ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)grh, 1));
	FAILS(ibv_destroy_ah(ah), 0);

	grh[31] ^= 1; /* neither a valid IPv4 header nor an IPv6 header */
	MINUS_ONE(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)grh, &attr),
		  EPROTONOSUPPORT);
	NO_OBJECT(ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)grh, 1), EPROTONOSUPPORT);
	MINUS_ONE(ibv_init_ah_from_wc(context, 1, &wc, NULL, &attr), EINVAL);
	struct ibv_grh six = { .version_tclass_flow = htobe32(0x6ab12345), .hop_limit = 7 };
	six.sgid.raw[15] = 9;
	six.dgid.raw[15] = 77; /* not an address of this host */
	MINUS_ONE(ibv_init_ah_from_wc(context, 1, &wc, &six, &attr), EINVAL);
	memcpy(six.dgid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\0\1", 16);
	FAILS(ibv_init_ah_from_wc(context, 1, &wc, &six, &attr), 0);
	CHECK(!memcmp(&attr.grh.dgid, &six.sgid, 16) && attr.grh.hop_limit == 7);
	CHECK(attr.grh.flow_label == 0x12345 && attr.grh.traffic_class == 0xab);
	NO_OBJECT(ibv_create_ah_from_wc(NULL, &wc, &six, 1), EINVAL);
	FAILS(ibv_dealloc_pd(pd), 0);
	FAILS(ibv_close_device(context), 0);
}

static void creation(void)
{
	struct ibv_context *context = open_loopback(), *other = open_loopback();
	struct end end = make_end(context);
	struct ibv_qp_init_attr good = { .send_cq = end.cq, .recv_cq = end.cq,
					 .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_init_attr attr = good;
	struct ibv_qp_init_attr_ex attr_ex = { .send_cq = end.cq, .recv_cq = end.cq,
					       .qp_type = IBV_QPT_RC, .pd = end.pd,
					       .comp_mask = IBV_QP_INIT_ATTR_PD |
							    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					       .send_ops_flags = IBV_QP_EX_WITH_TSO };
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 1,
					       .wc_flags = IBV_WC_EX_WITH_CVLAN };
	struct ibv_qp *qp;
	struct ibv_cq *foreign;

	NO_OBJECT(ibv_create_comp_channel(NULL), EINVAL);
	NO_OBJECT(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	NO_OBJECT(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	NO_OBJECT(ibv_create_cq(context, 1 << 30, NULL, NULL, 0), EINVAL);
	NO_OBJECT(ibv_create_cq(context, 1, NULL, NULL, 1), EINVAL);
	NO_OBJECT(ibv_create_cq(context, 1, NULL, NULL, -1), EINVAL);
	NO_OBJECT(ibv_create_cq(other, 1, NULL, end.channel, 0), EINVAL);
	NO_OBJECT(ibv_create_cq_ex(context, &cq_attr), EOPNOTSUPP);

	NO_OBJECT(ibv_create_qp(NULL, &attr), EINVAL);
	NO_OBJECT(ibv_create_qp(end.pd, NULL), EINVAL);
	attr.send_cq = NULL;
	NO_OBJECT(ibv_create_qp(end.pd, &attr), EINVAL);
	attr = good;
	MUST(foreign = ibv_create_cq(other, 1, NULL, NULL, 0));
	attr.recv_cq = foreign;
	NO_OBJECT(ibv_create_qp(end.pd, &attr), EINVAL);
	FAILS(ibv_destroy_cq(foreign), 0);
	attr = good;
	attr.cap.max_send_sge = 33;
	NO_OBJECT(ibv_create_qp(end.pd, &attr), EINVAL);
	attr = good;
	attr.cap.max_recv_wr = 1 << 20;
	NO_OBJECT(ibv_create_qp(end.pd, &attr), EINVAL);
	for (enum ibv_qp_type type = IBV_QPT_UC; type <= IBV_QPT_UD; type++) {
		attr = good;
		attr.qp_type = type;
		MUST(qp = ibv_create_qp(end.pd, &attr));
		CHECK(qp->qp_type == type && qp->state == IBV_QPS_RESET);
		FAILS(ibv_destroy_qp(qp), 0);
	}
	attr.qp_type = IBV_QPT_DRIVER;
	NO_OBJECT(ibv_create_qp(end.pd, &attr), EOPNOTSUPP);
	attr.qp_type = (enum ibv_qp_type)77;
	NO_OBJECT(ibv_create_qp(end.pd, &attr), EINVAL);
	NO_OBJECT(ibv_create_qp_ex(context, &attr_ex), EOPNOTSUPP);
	attr_ex.qp_type = IBV_QPT_UD;
	attr_ex.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
	NO_OBJECT(ibv_create_qp_ex(context, &attr_ex), EOPNOTSUPP);
	attr_ex.qp_type = IBV_QPT_UC;
	attr_ex.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ;
	NO_OBJECT(ibv_create_qp_ex(context, &attr_ex), EOPNOTSUPP);
	attr_ex.cap = good.cap;
	attr_ex.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_BIND_MW;
	MUST(qp = ibv_create_qp_ex(context, &attr_ex));
	FAILS(ibv_destroy_qp(qp), 0);
	attr_ex.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	NO_OBJECT(ibv_create_qp_ex(context, &attr_ex), EINVAL);

	MUST(qp = ibv_create_qp(end.pd, &good));
	CHECK(good.cap.max_send_wr >= 1 && qp->state == IBV_QPS_RESET);
	CHECK(!ibv_qp_to_qp_ex(qp));
	CHECK(ibv_qp_to_qp_ex(end.qp));
	FAILS(ibv_destroy_qp(qp), 0);
	FAILS(ibv_destroy_qp(NULL), EINVAL);

	FAILS(ibv_destroy_cq(end.cq), EBUSY);
	FAILS(ibv_destroy_comp_channel(end.channel), EBUSY);
	FAILS(ibv_dealloc_pd(end.pd), EBUSY);
	FAILS(ibv_resize_cq(end.cq, 0), EINVAL);
	CHECK(end.cq->cqe == 127);
	FAILS(ibv_resize_cq(end.cq, 10), 0);
	CHECK(end.cq->cqe == 15);
	FAILS(ibv_resize_cq(end.cq, 15), 0);
	CHECK(end.cq->cqe == 15);
	free_end(&end);
	FAILS(ibv_close_device(other), 0);
	FAILS(ibv_close_device(context), 0);
}

/*
 * Creates queue pairs with the inline sizes of a bisection, and repeats one invalid request. The caller
 * checks the messages that the library prints.
 */
static void probing(void)
{
	struct ibv_context *context = open_loopback();
	struct end end = make_end(context);
	struct ibv_qp_init_attr attr;
	struct ibv_qp *qp;
	uint32_t good = 0, bad = 1 << 16;

	while (bad - good > 1) {
		uint32_t size = (good + bad) / 2;

		attr = (struct ibv_qp_init_attr){ .send_cq = end.cq, .recv_cq = end.cq,
						  .cap = { 1, 1, 1, 1, size },
						  .qp_type = IBV_QPT_RC };
		qp = ibv_create_qp(end.pd, &attr);
		if (qp) {
			FAILS(ibv_destroy_qp(qp), 0);
			good = size;
		} else {
			int code = errno;

			CHECK(code == EINVAL);
			bad = size;
		}
	}
	CHECK(good > 0);
	for (int i = 0; i < 40; i++) {
		attr = (struct ibv_qp_init_attr){ .send_cq = end.cq, .recv_cq = end.cq,
						  .cap = { 1, 1, 1, 1, 0 },
						  .qp_type = IBV_QPT_DRIVER };
		NO_OBJECT(ibv_create_qp(end.pd, &attr), EOPNOTSUPP);
	}
	free_end(&end);
	FAILS(ibv_close_device(context), 0);
}

static void transitions(void)
{
	struct ibv_context *context = open_loopback();
	struct end end = make_end(context);
	struct ibv_qp_attr attr = rtr_attr(end.qp, end.qp->qp_num), bad;
	struct ibv_qp_init_attr init;

	FAILS(ibv_modify_qp(NULL, &attr, IBV_QP_STATE), EINVAL);
	FAILS(ibv_modify_qp(end.qp, NULL, IBV_QP_STATE), EINVAL);
	FAILS(ibv_modify_qp(end.qp, &attr, RTR_MASK), EINVAL);
	FAILS(ibv_modify_qp(end.qp, &attr, 1 << 30), EOPNOTSUPP);
	CHECK(end.qp->state == IBV_QPS_RESET);
	bad = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 2 };
	FAILS(ibv_modify_qp(end.qp, &bad, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					  IBV_QP_ACCESS_FLAGS), EINVAL);
	bad.port_num = 1;
	bad.pkey_index = 1;
	FAILS(ibv_modify_qp(end.qp, &bad, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					  IBV_QP_ACCESS_FLAGS), EINVAL);
	bad.qp_state = (enum ibv_qp_state)9;
	FAILS(ibv_modify_qp(end.qp, &bad, IBV_QP_STATE), EINVAL);
	FAILS(to_init(end.qp), 0);
	CHECK(end.qp->state == IBV_QPS_INIT);
	FAILS(ibv_modify_qp(end.qp, &attr, RTR_MASK & ~IBV_QP_DEST_QPN), EINVAL);
	FAILS(ibv_modify_qp(end.qp, &attr, RTR_MASK | IBV_QP_CAP), EINVAL);
	bad = attr;
	bad.ah_attr.is_global = 0;
	FAILS(ibv_modify_qp(end.qp, &bad, RTR_MASK), EINVAL);
	bad = attr;
	bad.ah_attr.port_num = 0;
	FAILS(ibv_modify_qp(end.qp, &bad, RTR_MASK), EINVAL);
	bad = attr;
	bad.ah_attr.grh.sgid_index = 200;
	FAILS(ibv_modify_qp(end.qp, &bad, RTR_MASK), EINVAL);
	bad = attr;
	bad.path_mtu = (enum ibv_mtu)6;
	FAILS(ibv_modify_qp(end.qp, &bad, RTR_MASK), EINVAL);
	CHECK(end.qp->state == IBV_QPS_INIT);
	FAILS(ibv_modify_qp(end.qp, &attr, RTR_MASK), 0);

	memset(&bad, 0xee, sizeof(bad));
	FAILS(ibv_query_qp(end.qp, &bad, IBV_QP_STATE, &init), 0);
	CHECK(bad.qp_state == IBV_QPS_RTR && bad.path_mtu == IBV_MTU_1024);
	CHECK(bad.dest_qp_num == end.qp->qp_num && bad.max_dest_rd_atomic == 4);
	CHECK(!memcmp(&bad.ah_attr.grh.dgid, &attr.ah_attr.grh.dgid, 16));
	CHECK(init.send_cq == end.cq && init.qp_type == IBV_QPT_RC && !init.srq);
	CHECK(init.cap.max_inline_data >= INLINE && init.cap.max_send_wr >= DEPTH);
	attr.qp_state = IBV_QPS_RESET;
	FAILS(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE), 0);
	CHECK(end.qp->state == IBV_QPS_RESET);
	free_end(&end);
	FAILS(ibv_close_device(context), 0);
}

static void posting(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct ibv_sge element = sge(&a, 0, 8), many[3] = { element, element, element };
	struct ibv_send_wr first = { .wr_id = 1, .sg_list = &element, .num_sge = 1,
				     .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				     .wr = { .rdma = { (uintptr_t)b.data, b.mr->rkey } } };
	struct ibv_send_wr second = first, *bad = NULL;
	struct ibv_recv_wr recv = { .sg_list = &element, .num_sge = 1 }, *bad_recv = NULL;
	struct ibv_wc wc;

	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
	CHECK(ibv_poll_cq(a.cq, 0, NULL) == 0);
	CHECK(ibv_poll_cq(a.cq, -1, &wc) < 0);
	FAILS(ibv_post_recv(a.qp, &recv, &bad_recv), EINVAL);
	CHECK(bad_recv == &recv);
	MUST(!to_init(a.qp));
	FAILS(ibv_post_send(a.qp, &first, &bad), EINVAL);
	CHECK(bad == &first);
	for (int i = 0; i < DEPTH; i++)
		FAILS(ibv_post_recv(a.qp, &recv, &bad_recv), 0);
	FAILS(ibv_post_recv(a.qp, &recv, &bad_recv), ENOMEM);
	recv.sg_list = many;
	recv.num_sge = 3;
	bad_recv = NULL;
	FAILS(ibv_post_recv(b.qp, &recv, &bad_recv), EINVAL);
	CHECK(bad_recv == &recv);

	connect_to(b.qp, a.qp->qp_num);
	connect_to(a.qp, b.qp->qp_num);
	/* The second is refused: the first is sent. */
	memcpy(a.data, "one two", 8);
	first.next = &second;
	const struct { struct ibv_sge *list; int count; int opcode; unsigned int flags; } wrong[] = {
		{ many, 3, IBV_WR_RDMA_WRITE, 0 },
		{ many, -1, IBV_WR_RDMA_WRITE, 0 },
		{ many, 1000, IBV_WR_RDMA_WRITE, 0 },
		{ NULL, 1, IBV_WR_RDMA_WRITE, 0 },
		{ &element, 1, 99, 0 },
		{ &element, 1, IBV_WR_TSO, 0 },
		{ &element, 1, IBV_WR_RDMA_READ, IBV_SEND_INLINE },
		{ &element, 1, IBV_WR_RDMA_WRITE, 1u << 20 },
	};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		second.sg_list = wrong[i].list;
		second.num_sge = wrong[i].count;
		second.opcode = (enum ibv_wr_opcode)wrong[i].opcode;
		second.send_flags = wrong[i].flags;
		bad = NULL;
		FAILS(ibv_post_send(a.qp, &first, &bad), EINVAL);
		CHECK(bad == &second);
		wc = completion(&a);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1);
		CHECK(wc.qp_num == a.qp->qp_num && wc.opcode == IBV_WC_RDMA_WRITE);
	}
	CHECK(!memcmp(b.data, "one two", 8));

	/* Inline data needs no region, and may be overwritten after the call. */
	char text[] = "inline";
	struct ibv_sge local = { (uintptr_t)text, sizeof(text), 0 };
	first.next = NULL;
	first.sg_list = &local;
	first.send_flags |= IBV_SEND_INLINE;
	FAILS(ibv_post_send(a.qp, &first, &bad), 0);
	memset(text, 'x', sizeof(text));
	CHECK(completion(&a).status == IBV_WC_SUCCESS);
	CHECK(!strcmp((char *)b.data, "inline"));
	local.length = INLINE + 1;
	FAILS(ibv_post_send(a.qp, &first, &bad), EINVAL);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

static void builders(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
	uint64_t *cell = (uint64_t *)(b.data + 4096), *result = (uint64_t *)(a.data + 4096);
	struct ibv_poll_cq_attr wrong = { .comp_mask = 1 };

	MUST(qp);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	FAILS(ibv_start_poll(a.cq_ex, NULL), ENOENT);
	FAILS(ibv_start_poll(a.cq_ex, &(struct ibv_poll_cq_attr){ 0 }), ENOENT);
	FAILS(ibv_start_poll(a.cq_ex, &wrong), EINVAL);

	/* An aborted or failed batch posts no request. */
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.data);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.data, 8);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	for (int i = 0; i <= DEPTH; i++) {
		ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.data);
		ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.data, 8);
	}
	FAILS(ibv_wr_complete(qp), ENOMEM);
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.data);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.data, 8);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.data);
	ibv_wr_set_inline_data(qp, a.data, INLINE + 1);
	FAILS(ibv_wr_complete(qp), EINVAL);
	ibv_wr_start(qp);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.data, 8);
	FAILS(ibv_wr_complete(qp), EINVAL);
	FAILS(ibv_start_poll(a.cq_ex, NULL), ENOENT);

	/* A full queue of all operations. */
	*cell = 40;
	memcpy(a.data, "written", 8);
	post_recv(&b, 50, 8192);
	ibv_wr_start(qp);
	for (uint64_t i = 0; i < 4; i++) {
		char text[8] = "by list";
		struct ibv_data_buf pieces[] = { { text, 3 }, { text + 3, 5 } };
		struct ibv_sge to[] = { sge(&a, 4096, 8) };
		qp->wr_id = 10 + i;
		switch (i) {
		case 0:
			ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.data);
			ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.data, 8);
			break;
		case 1:
			ibv_wr_rdma_read(qp, b.mr->rkey, (uintptr_t)b.data);
			ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.data + 100, 8);
			break;
		case 2:
			ibv_wr_atomic_fetch_add(qp, b.mr->rkey, (uintptr_t)cell, 2);
			ibv_wr_set_sge_list(qp, 1, to);
			break;
		case 3:
			ibv_wr_send_imm(qp, 0x11223344);
			ibv_wr_set_inline_data_list(qp, 2, pieces);
			memset(text, 'x', sizeof(text));
		}
	}
	FAILS(ibv_wr_complete(qp), 0);
	const enum ibv_wc_opcode opcodes[] = { IBV_WC_RDMA_WRITE, IBV_WC_RDMA_READ,
					       IBV_WC_FETCH_ADD, IBV_WC_SEND };
	while (ibv_start_poll(a.cq_ex, NULL))
		;
	for (uint64_t i = 0; i < 4; i++) {
		if (i)
			while (ibv_next_poll(a.cq_ex))
				;
		CHECK(a.cq_ex->wr_id == 10 + i && a.cq_ex->status == IBV_WC_SUCCESS);
		CHECK(ibv_wc_read_opcode(a.cq_ex) == opcodes[i]);
		CHECK(ibv_wc_read_qp_num(a.cq_ex) == a.qp->qp_num);
	}
	ibv_end_poll(a.cq_ex);
	CHECK(!strcmp((char *)a.data + 100, "written"));
	CHECK(*result == 40 && *cell == 42);
	while (ibv_start_poll(b.cq_ex, NULL))
		;
	CHECK(b.cq_ex->wr_id == 50 && ibv_wc_read_opcode(b.cq_ex) == IBV_WC_RECV);
	CHECK(ibv_wc_read_byte_len(b.cq_ex) == 8);
	CHECK(ibv_wc_read_wc_flags(b.cq_ex) == IBV_WC_WITH_IMM);
	CHECK(ibv_wc_read_imm_data(b.cq_ex) == 0x11223344);
	CHECK(ibv_wc_read_slid(b.cq_ex) == 0 && ibv_wc_read_sl(b.cq_ex) == 0);
	FAILS(ibv_next_poll(b.cq_ex), ENOENT);
	ibv_end_poll(b.cq_ex);
	CHECK(!strcmp((char *)b.data + 8192, "by list"));
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

static void *destroy(void *qp)
{
	return (void *)(intptr_t)ibv_destroy_qp(qp);
}

static void notifications(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct ibv_sge element = sge(&a, 0, 8);
	struct ibv_send_wr wr = { .sg_list = &element, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED, .imm_data = 7 }, *bad;
	struct ibv_async_event event;
	struct ibv_cq *cq = NULL;
	void *cq_context = NULL, *result = (void *)-1;
	struct timespec soon = { .tv_nsec = 50000000 };
	pthread_t thread;

	MUST(!fcntl(context->async_fd, F_SETFL, O_NONBLOCK));
	MINUS_ONE(ibv_get_async_event(context, &event), EAGAIN);
	MUST(!fcntl(b.channel->fd, F_SETFL, O_NONBLOCK));
	MINUS_ONE(ibv_get_cq_event(b.channel, &cq, &cq_context), EAGAIN);
	MINUS_ONE(ibv_get_cq_event(b.channel, NULL, NULL), EINVAL);
	MUST(!fcntl(b.channel->fd, F_SETFL, 0));

	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	post_recv(&b, 1, 0);
	FAILS(ibv_req_notify_cq(b.cq, 0), 0);
	FAILS(ibv_post_send(a.qp, &wr, &bad), 0);
	FAILS(ibv_get_cq_event(b.channel, &cq, &cq_context), 0);
	CHECK(cq == b.cq && cq_context == &failures);
	struct ibv_wc wc = completion(&b);
	CHECK(wc.imm_data == 7 && wc.wc_flags == IBV_WC_WITH_IMM && wc.byte_len == 8);
	CHECK(completion(&a).status == IBV_WC_SUCCESS);

	/* An unauthorized WRITE: the target gets an event, and cannot be destroyed before its ack. */
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = (uintptr_t)b.data;
	wr.wr.rdma.rkey = b.mr->rkey ^ 0x5555;
	FAILS(ibv_post_send(a.qp, &wr, &bad), 0);
	CHECK(completion(&a).status == IBV_WC_REM_ACCESS_ERR);
	struct pollfd ready = { .fd = context->async_fd, .events = POLLIN };
	CHECK(poll(&ready, 1, 5000) == 1);
	FAILS(ibv_get_async_event(context, &event), 0);
	CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b.qp);
	MUST(!pthread_create(&thread, NULL, destroy, b.qp));
	nanosleep(&soon, NULL);
	CHECK(pthread_tryjoin_np(thread, &result) == EBUSY);
	ibv_ack_async_event(&event);
	MUST(!pthread_join(thread, &result));
	CHECK(!result);
	b.qp = NULL;
	ibv_ack_cq_events(b.cq, 1);
	ibv_ack_async_event(NULL);
	ibv_ack_cq_events(NULL, 1);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

enum { THREADS = 4, WRITES = 500 };

struct worker {
	struct end *from, *to;
	int number, *completed;
	pthread_t thread;
};

/* Posts WRITEs of its own number and polls for any completion. */
static void *work(void *argument)
{
	struct worker *worker = argument;
	struct ibv_sge element = sge(worker->from, 8 * (uint32_t)worker->number, 8);
	struct ibv_send_wr wr = { .sg_list = &element, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr = { .rdma = { (uintptr_t)worker->to->data, 0 } } }, *bad;
	struct ibv_wc wc[2];
	int posted = 0;

	wr.wr.rdma.remote_addr += 8 * (uint64_t)worker->number;
	wr.wr.rdma.rkey = worker->to->mr->rkey;
	while (__atomic_load_n(worker->completed, __ATOMIC_SEQ_CST) < THREADS * WRITES) {
		if (posted < WRITES) {
			int error = ibv_post_send(worker->from->qp, &wr, &bad);
			posted += !error;
			MUST(!error || error == ENOMEM);
		}
		int count = ibv_poll_cq(worker->from->cq, 2, wc);
		MUST(count >= 0);
		for (int i = 0; i < count; i++)
			MUST(wc[i].status == IBV_WC_SUCCESS);
		__atomic_add_fetch(worker->completed, count, __ATOMIC_SEQ_CST);
	}
	return NULL;
}

static void threads(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct worker workers[THREADS];
	int completed = 0;

	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	for (int i = 0; i < 8 * THREADS; i++)
		a.data[i] = (unsigned char)(i + 1);
	for (int i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ .from = &a, .to = &b, .number = i,
					      .completed = &completed };
		MUST(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
	}
	for (int i = 0; i < THREADS; i++)
		MUST(!pthread_join(workers[i].thread, NULL));
	CHECK(completed == THREADS * WRITES);
	CHECK(!memcmp(a.data, b.data, 8 * THREADS));
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

static void write_words(struct end *from, struct end *to, uint64_t count)
{
	for (uint64_t value = 1; value <= count; value++) {
		struct ibv_sge element = sge(from, 0, sizeof(value));
		struct ibv_send_wr *bad, wr = {
			.wr_id = value, .sg_list = &element, .num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)to->data, .rkey = to->mr->rkey },
		};
		struct ibv_wc wc;

		memcpy(from->data, &value, sizeof(value));
		MUST(!ibv_post_send(from->qp, &wr, &bad));
		wc = completion(from);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == value);
		CHECK(!memcmp(to->data, &value, sizeof(value)));
	}
}

/* The upper bits of a queue pair number are the slot of its process. */
static uint32_t process_of(struct ibv_qp *qp)
{
	return qp->qp_num >> 16;
}

/* Connects two queue pairs, transfers data, and destroys them. */
static void work_apart_from(uint32_t parent)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);

	CHECK(process_of(a.qp) != parent);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	write_words(&a, &b, 200);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

/* A child that is forked during transfers does not affect its parent's connections, and makes its
 * own. */
static void forks(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct ibv_wc wc;
	int status;
	pid_t child;

	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	write_words(&a, &b, 10);
	fflush(stdout);
	MUST((child = fork()) >= 0);
	if (child == 0) {
		CHECK(!ibv_poll_cq(a.cq, 1, &wc));
		work_apart_from(process_of(a.qp));
		CHECK(!ibv_poll_cq(a.cq, 1, &wc));
		free_end(&a);
		free_end(&b);
		FAILS(ibv_close_device(context), 0);
		exit(failures != 0);
	}
	write_words(&a, &b, 2000);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	write_words(&a, &b, 10);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		{ "devices", devices },	      { "queries", queries },
		{ "memory", memory },	      { "creation", creation },
		{ "transitions", transitions }, { "posting", posting },
		{ "builders", builders },     { "notifications", notifications },
		{ "addresses", addresses },   { "threads", threads },
		{ "forks", forks },	      { "probing", probing },
	};
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
