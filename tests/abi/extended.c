/*
 * The extended verbs. The argument selects the case.
 */
#include <stddef.h>
#include <time.h>

#include "program.h"

static uint64_t device_clock(struct ibv_context *context)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	FAILS(ibv_query_rt_values_ex(context, &values), 0);
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK && values.raw_clock.tv_nsec > 0);
	return (uint64_t)values.raw_clock.tv_nsec;
}

static uint64_t wall_clock(void)
{
	struct timespec now;
	MUST(!clock_gettime(CLOCK_REALTIME, &now));
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static struct end end_with(struct ibv_context *context, struct ibv_cq_init_attr_ex attr)
{
	struct end end;

	MUST(end.pd = ibv_alloc_pd(context));
	MUST(end.channel = ibv_create_comp_channel(context));
	attr.channel = end.channel;
	MUST(end.cq_ex = ibv_create_cq_ex(context, &attr));
	end.cq = ibv_cq_ex_to_cq(end.cq_ex);
	MUST(end.qp = make_qp(context, &end));
	MUST(end.data = calloc(1, SIZE));
	MUST(end.mr = ibv_reg_mr(end.pd, end.data, SIZE, ALL));
	return end;
}

/* Sends a byte, for which a receive must be posted. */
static void send_byte(struct end *from)
{
	struct ibv_sge element = sge(from, 0, 1);
	struct ibv_send_wr *bad, wr = { .wr_id = 7, .sg_list = &element, .num_sge = 1,
					.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	MUST(!ibv_post_send(from->qp, &wr, &bad));
	MUST(completion(from).status == IBV_WC_SUCCESS);
}

/* Timestamps are between the clock readings before and after, in the order of the completions. */
static void timestamps(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 8, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
				      IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK };
	struct end a = make_end(context), b = end_with(context, attr);
	struct ibv_device_attr_ex device;
	uint64_t clock, wall;

	FAILS(ibv_query_device_ex(context, NULL, &device), 0);
	CHECK(device.completion_timestamp_mask == UINT64_MAX && device.hca_core_clock == 1000000);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	post_recv(&b, 1, 0);
	post_recv(&b, 2, 0);
	clock = device_clock(context);
	wall = wall_clock();
	send_byte(&a);
	send_byte(&a);
	for (uint64_t i = 1; i <= 2; i++) {
		while (ibv_start_poll(b.cq_ex, NULL))
			;
		CHECK(b.cq_ex->wr_id == i && b.cq_ex->status == IBV_WC_SUCCESS);
		CHECK(ibv_wc_read_completion_ts(b.cq_ex) >= clock);
		CHECK(ibv_wc_read_completion_wallclock_ns(b.cq_ex) >= wall);
		clock = ibv_wc_read_completion_ts(b.cq_ex);
		wall = ibv_wc_read_completion_wallclock_ns(b.cq_ex);
		ibv_end_poll(b.cq_ex);
	}
	CHECK(clock <= device_clock(context) && wall <= wall_clock());
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

/* Fields of raw packets and tag matching are refused, and so are unknown ones. */
static void refusals(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_cq_init_attr_ex attr = { .cqe = 1 };
	struct ibv_modify_cq_attr unknown = { .attr_mask = IBV_CQ_ATTR_RESERVED };
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RESERVED };
	const uint64_t flags[] = { IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_FLOW_TAG,
				   IBV_WC_EX_WITH_TM_INFO, 1ULL << 40 };
	struct ibv_cq_ex *cq;

	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
		attr.wc_flags = flags[i];
		NO_OBJECT(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
	}
	attr.wc_flags = 0;
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr.flags = 1 << 9;
	NO_OBJECT(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
	attr.comp_mask = 1 << 9;
	NO_OBJECT(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
	attr.comp_mask = 0;
	attr.flags = 1 << 9;
	MUST(cq = ibv_create_cq_ex(context, &attr));
	FAILS(ibv_modify_cq(ibv_cq_ex_to_cq(cq), &unknown), EINVAL);
	FAILS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	FAILS(ibv_query_rt_values_ex(context, &values), EINVAL);
	FAILS(ibv_close_device(context), 0);
}

static int is_readable(struct end *end)
{
	struct pollfd fd = { .fd = end->channel->fd, .events = POLLIN };
	return poll(&fd, 1, 0);
}

static void take_event(struct end *end)
{
	struct ibv_cq *cq;
	void *cq_context;
	FAILS(ibv_get_cq_event(end->channel, &cq, &cq_context), 0);
	CHECK(cq == end->cq);
	ibv_ack_cq_events(cq, 1);
}

/* With a count, the last of so many completions raises an event; with a period, the timer after the
 * first. */
static void moderation(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE };
	struct ibv_device_attr_ex device;

	FAILS(ibv_query_device_ex(context, NULL, &device), 0);
	CHECK(device.cq_mod_caps.max_cq_count && device.cq_mod_caps.max_cq_period);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);

	attr.moderate.cq_count = 3;
	FAILS(ibv_modify_cq(b.cq, &attr), 0);
	for (int round = 0; round < 2; round++) {
		FAILS(ibv_req_notify_cq(b.cq, 0), 0);
		for (int i = 0; i < 3; i++) {
			post_recv(&b, 1, 0);
			CHECK(!is_readable(&b));
			send_byte(&a);
		}
		take_event(&b);
		CHECK(!is_readable(&b));
		for (int i = 0; i < 3; i++)
			CHECK(completion(&b).wr_id == 1);
	}

	attr.moderate.cq_count = UINT16_MAX;
	attr.moderate.cq_period = 1000;
	FAILS(ibv_modify_cq(b.cq, &attr), 0);
	FAILS(ibv_req_notify_cq(b.cq, 0), 0);
	post_recv(&b, 2, 0);
	send_byte(&a);
	take_event(&b);
	CHECK(completion(&b).wr_id == 2);

	attr.moderate.cq_period = 0;
	FAILS(ibv_modify_cq(b.cq, &attr), 0);
	FAILS(ibv_req_notify_cq(b.cq, 0), 0);
	post_recv(&b, 3, 0);
	send_byte(&a);
	CHECK(!is_readable(&b));
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

/*
 * With IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN the oldest completions are overwritten. The number of
 * entries is 2^n - 1.
 */
static void overrun(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_cq_init_attr_ex attr = { .cqe = 2, .wc_flags = IBV_WC_STANDARD_FLAGS,
					    .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					    .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN };
	enum { ENTRIES = 3 };
	struct end a = make_end(context), b = end_with(context, attr);
	struct ibv_wc wc;

	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	for (uint64_t i = 0; i < DEPTH; i++) {
		post_recv(&b, i, 0);
		send_byte(&a);
	}
	CHECK(b.cq->cqe == ENTRIES);
	for (uint64_t i = DEPTH - ENTRIES; i < DEPTH; i++)
		CHECK(completion(&b).wr_id == i);
	CHECK(!ibv_poll_cq(b.cq, 1, &wc));
	post_recv(&b, 9, 0);
	send_byte(&a);
	CHECK(completion(&b).wr_id == 9);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

static struct ibv_wq *make_wq(struct ibv_context *context, struct end *end, struct ibv_cq *cq)
{
	struct ibv_wq_init_attr init = { .wq_context = end, .wq_type = IBV_WQT_RQ, .max_wr = DEPTH,
					 .max_sge = 1, .pd = end->pd, .cq = cq };
	struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
	struct ibv_sge element = sge(end, 0, 1024);
	struct ibv_recv_wr wr = { .sg_list = &element, .num_sge = 1 }, *bad;
	struct ibv_wq *wq = ibv_create_wq(context, &init);

	MUST(wq);
	FAILS(ibv_modify_wq(wq, &ready), 0);
	for (int i = 0; i < 2; i++)
		FAILS(ibv_post_wq_recv(wq, &wr, &bad), 0);
	return wq;
}

/* The overrun that a work queue causes takes another one of its completion queue to error. */
static void work_queue_overrun(void)
{
	struct ibv_wq_attr attr = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_ERR };
	struct ibv_context *context = open_loopback(), *other = open_loopback();
	struct end end = make_end(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_wq *cause = make_wq(context, &end, cq), *victim = make_wq(context, &end, cq);
	struct ibv_wq_init_attr foreign = { .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1,
					    .pd = end.pd, .cq = cq };
	struct ibv_async_event event;

	NO_OBJECT(ibv_create_wq(other, &foreign), EINVAL);
	FAILS(ibv_modify_wq(cause, &attr), 0);
	MUST(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq);
	ibv_ack_async_event(&event);
	MUST(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_WQ_FATAL && event.element.wq == victim);
	CHECK(event.element.wq->wq_context == &end);
	ibv_ack_async_event(&event);

	attr.attr_mask |= IBV_WQ_ATTR_CURR_STATE;
	attr.wq_state = IBV_WQS_RESET;
	attr.curr_wq_state = IBV_WQS_RDY;
	FAILS(ibv_modify_wq(victim, &attr), EINVAL);
	attr.curr_wq_state = IBV_WQS_ERR;
	FAILS(ibv_modify_wq(victim, &attr), 0);
	FAILS(ibv_destroy_wq(cause), 0);
	FAILS(ibv_destroy_wq(victim), 0);
	FAILS(ibv_destroy_cq(cq), 0);
	free_end(&end);
	FAILS(ibv_close_device(other), 0);
	FAILS(ibv_close_device(context), 0);
}

/* The requests to the allocators below. */
static struct {
	struct ibv_pd *pd;
	int given, taken;
	uint64_t kinds;
	void *answer;
} memory;

static void *allocate(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t kind)
{
	void *place = NULL;
	CHECK(pd == memory.pd && context == &memory);
	CHECK(size > sizeof(struct ibv_cq) && !(kind >> 32));
	if (memory.answer != &memory)
		return memory.answer;
	MUST(!posix_memalign(&place, alignment, size));
	memset(place, 0, size);
	memory.given++;
	memory.kinds |= 1 << kind;
	return place;
}

static void release(struct ibv_pd *pd, void *context, void *place, uint64_t kind)
{
	CHECK(pd == memory.pd && context == &memory);
	CHECK(memory.kinds & 1 << kind);
	free(place);
	memory.taken++;
}

/* A parent domain can be used in place of its protection domain. Its objects are in memory of its
 * allocators; without memory they are not created. */
static void parent_domains(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct ibv_td_init_attr td_attr = { .comp_mask = 1 };
	struct ibv_parent_domain_init_attr attr = { .comp_mask = 1 << 9 };
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 64, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD };
	struct ibv_pd *own = a.pd;
	struct ibv_td *td;
	struct ibv_cq_ex *cq;
	struct ibv_qp *qp;

	NO_OBJECT(ibv_alloc_td(context, &td_attr), EINVAL);
	td_attr.comp_mask = 0;
	MUST(td = ibv_alloc_td(context, &td_attr));
	NO_OBJECT(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.comp_mask = 0;
	NO_OBJECT(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.pd = own;
	attr.td = td;
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			 IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	attr.alloc = allocate;
	NO_OBJECT(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.free = release;
	attr.pd_context = &memory;
	MUST(memory.pd = ibv_alloc_parent_domain(context, &attr));
	FAILS(ibv_dealloc_td(td), EBUSY);

	memory.answer = NULL;
	a.pd = memory.pd;
	NO_OBJECT(make_qp(context, &a), ENOMEM);
	memory.answer = IBV_ALLOCATOR_USE_DEFAULT;
	MUST(qp = make_qp(context, &a));
	FAILS(ibv_dealloc_pd(memory.pd), EBUSY);
	FAILS(ibv_destroy_qp(qp), 0);
	CHECK(memory.given == 0 && memory.taken == 0);

	memory.answer = &memory;
	cq_attr.parent_domain = own;
	NO_OBJECT(ibv_create_cq_ex(context, &cq_attr), EINVAL);
	cq_attr.parent_domain = memory.pd;
	cq_attr.cqe = 0;
	NO_OBJECT(ibv_create_cq_ex(context, &cq_attr), EINVAL);
	CHECK(memory.given == memory.taken);
	cq_attr.cqe = 64;
	MUST(cq = ibv_create_cq_ex(context, &cq_attr));
	FAILS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	FAILS(ibv_destroy_qp(a.qp), 0);
	MUST(a.qp = make_qp(context, &a));
	CHECK(memory.kinds == 3 && memory.given == memory.taken + 1);
	FAILS(ibv_dealloc_pd(own), EBUSY);

	/* The region is in the protection domain, the queue pair in the parent domain. */
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	post_recv(&b, 1, 0);
	send_byte(&a);
	CHECK(completion(&b).status == IBV_WC_SUCCESS);

	FAILS(ibv_destroy_qp(a.qp), 0);
	a.qp = NULL;
	CHECK(memory.given == memory.taken);
	FAILS(ibv_dealloc_pd(memory.pd), 0);
	FAILS(ibv_dealloc_td(td), 0);
	a.pd = own;
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

static struct ibv_qp *raw_pair(struct end *end)
{
	struct ibv_qp_init_attr attr = { .send_cq = end->cq, .recv_cq = end->cq, .sq_sig_all = 1,
					 .cap = { 16, 16, 1, 1, 0 }, .qp_type = IBV_QPT_RAW_PACKET };
	return ibv_create_qp(end->pd, &attr);
}

static void raw_to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	FAILS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY), EINVAL);
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	attr.qp_state = IBV_QPS_RTR;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

enum { FRAME = 60 };
/* A frame to an unused station address, of an unused type. */
static const unsigned char frame[FRAME] = { 2, 1, 2, 3, 4, 5, 2, 6, 7, 8, 9, 10, 0x88, 0xb5, 42 };

static void send_frame(struct end *end, struct ibv_qp *qp)
{
	struct ibv_sge element = sge(end, 0, FRAME);
	struct ibv_send_wr *bad, wr = { .wr_id = 7, .sg_list = &element, .num_sge = 1,
					.opcode = IBV_WR_SEND };
	MUST(!ibv_post_send(qp, &wr, &bad));
	CHECK(completion(end).status == IBV_WC_SUCCESS);
}

/* Frames reach the raw packet queue pairs whose flows they match, and are counted. */
static void raw_packets(void)
{
	/* Each specification follows the previous one, by the size in its header. */
	struct rule {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_counter_action count;
	} rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .priority = 1, .num_of_specs = 2, .port = 1 },
		.eth = { .type = IBV_FLOW_SPEC_ETH,
			 .size = offsetof(struct rule, count) - offsetof(struct rule, eth) },
		.count = { .type = IBV_FLOW_SPEC_ACTION_COUNT, .size = sizeof(rule.count) },
	};
	struct drop {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_action_drop drop;
	} drop = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .num_of_specs = 2, .port = 1 },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(drop.eth),
			 .val.src_mac[5] = 10, .mask.src_mac[5] = 0xff },
		.drop = { .type = IBV_FLOW_SPEC_ACTION_DROP, .size = sizeof(drop.drop) },
	};
	struct ibv_counters_init_attr counters_attr = { 0 };
	struct ibv_counter_attach_attr place = { .counter_desc = IBV_COUNTER_BYTES, .index = 2 };
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct ibv_counters *counters;
	struct ibv_flow *flow, *dropping;
	struct ibv_qp *from, *to;
	uint64_t values[4];
	struct ibv_wc wc;

	NO_OBJECT(ibv_create_flow(a.qp, &rule.attr), EINVAL);
	from = raw_pair(&a);
	if (!from && errno == EPERM) {
		printf("raw packets need the capability CAP_NET_RAW\n");
		exit(77);
	}
	MUST(from && (to = raw_pair(&b)));
	raw_to_rts(from);
	raw_to_rts(to);
	memcpy(a.data, frame, FRAME);

	MUST(counters = ibv_create_counters(context, &counters_attr));
	FAILS(ibv_attach_counters_point_flow(counters, &place, NULL), 0);
	place = (struct ibv_counter_attach_attr){ .counter_desc = IBV_COUNTER_PACKETS, .index = 0 };
	FAILS(ibv_attach_counters_point_flow(counters, &place, NULL), 0);
	place.index = 1000;
	FAILS(ibv_attach_counters_point_flow(counters, &place, NULL), EINVAL);

	rule.count.counters = counters;
	memcpy(rule.eth.val.dst_mac, frame, 6);
	memset(rule.eth.mask.dst_mac, 0xff, 6);
	rule.eth.val.ether_type = htobe16(0x88b5);
	rule.eth.mask.ether_type = 0xffff;
	rule.attr.port = 2;
	NO_OBJECT(ibv_create_flow(to, &rule.attr), EINVAL);
	rule.attr.port = 1;
	NO_OBJECT(ibv_create_flow(a.qp, &rule.attr), EOPNOTSUPP);
	MUST(flow = ibv_create_flow(to, &rule.attr));
	FAILS(ibv_destroy_qp(to), EBUSY);
	FAILS(ibv_destroy_counters(counters), EBUSY);

	struct ibv_sge element = sge(&b, 0, 1024);
	struct ibv_recv_wr *bad, wr = { .wr_id = 5, .sg_list = &element, .num_sge = 1 };
	for (int i = 0; i < 3; i++)
		MUST(!ibv_post_recv(to, &wr, &bad));
	for (int i = 0; i < 2; i++) {
		send_frame(&a, from);
		wc = completion(&b);
		CHECK(wc.wr_id == 5 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
		CHECK(wc.byte_len == FRAME && wc.qp_num == to->qp_num);
		CHECK(!memcmp(b.data, frame, FRAME));
	}
	FAILS(ibv_read_counters(counters, values, 4, 0), 0);
	CHECK(values[0] == 2 && values[1] == 0 && values[2] == 2 * FRAME && values[3] == 0);

	/* A rule with a lower number drops the frames of another station. */
	MUST(dropping = ibv_create_flow(to, &drop.attr));
	send_frame(&a, from);
	a.data[11] = 11;
	send_frame(&a, from);
	CHECK(completion(&b).wr_id == 5 && b.data[11] == 11);
	FAILS(ibv_destroy_flow(dropping), 0);
	FAILS(ibv_read_counters(counters, values, 1, 0), 0);
	CHECK(values[0] == 3);

	FAILS(ibv_destroy_flow(flow), 0);
	FAILS(ibv_destroy_counters(counters), 0);
	FAILS(ibv_destroy_qp(from), 0);
	FAILS(ibv_destroy_qp(to), 0);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

/* A duplicate of a context's descriptor opens its device again, and its objects by their handles. */
static void imports(void)
{
	struct ibv_context *context = open_loopback(), *other = open_loopback(), *again;
	struct end a = make_end(context), b = make_end(context), c = make_end(other);
	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_pd *pd, *own = a.pd;
	struct ibv_mr *mr;
	struct ibv_dm *dm, *dm_again;
	uint64_t word = 0x1122334455667788, copy = 0;
	int fd = dup(context->cmd_fd), pipes[2];

	NO_OBJECT(ibv_import_device(-1), EBADF);
	MUST(!pipe(pipes));
	NO_OBJECT(ibv_import_device(pipes[0]), EOPNOTSUPP);
	MUST(fd >= 0 && (again = ibv_import_device(fd)));
	CHECK(again != context && again->device == context->device && again->cmd_fd == fd);

	NO_OBJECT(ibv_import_pd(again, c.pd->handle), EINVAL);
	NO_OBJECT(ibv_import_pd(again, a.mr->handle), EINVAL);
	NO_OBJECT(ibv_import_pd(other, own->handle), EINVAL);
	MUST(pd = ibv_import_pd(again, own->handle));
	NO_OBJECT(ibv_import_mr(pd, own->handle), EINVAL);
	MUST(mr = ibv_import_mr(pd, a.mr->handle));
	CHECK(mr->lkey == a.mr->lkey && mr->rkey == a.mr->rkey && mr->length == SIZE && !mr->addr);
	FAILS(ibv_dealloc_pd(pd), EBUSY);

	/* The imported region is the original one, and ends with it. */
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	post_recv(&b, 1, 0);
	send_byte(&a);
	CHECK(completion(&b).status == IBV_WC_SUCCESS);
	FAILS(ibv_dereg_mr(mr), 0);
	struct ibv_sge element = sge(&a, 0, 1);
	struct ibv_send_wr *bad, wr = { .wr_id = 7, .sg_list = &element, .num_sge = 1,
					.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	MUST(!ibv_post_send(a.qp, &wr, &bad));
	CHECK(completion(&a).status == IBV_WC_LOC_PROT_ERR);
	NO_OBJECT(ibv_import_mr(pd, a.mr->handle), EINVAL);
	MUST(mr = ibv_import_mr(pd, b.mr->handle));
	ibv_unimport_mr(mr);
	post_recv(&b, 1, 0);

	MUST(dm = ibv_alloc_dm(context, &dm_attr));
	MUST(dm_again = ibv_import_dm(again, dm->handle));
	FAILS(ibv_memcpy_to_dm(dm, 8, &word, sizeof(word)), 0);
	FAILS(ibv_memcpy_from_dm(&copy, dm_again, 8, sizeof(copy)), 0);
	CHECK(copy == word);
	ibv_unimport_dm(dm_again);
	FAILS(ibv_free_dm(dm), 0);
	NO_OBJECT(ibv_import_dm(again, 1 << 30), EINVAL);

	ibv_unimport_pd(pd);
	FAILS(ibv_close_device(again), 0);
	CHECK(fcntl(fd, F_GETFD) == -1);
	close(pipes[0]);
	close(pipes[1]);
	free_end(&a);
	free_end(&b);
	free_end(&c);
	FAILS(ibv_close_device(context), 0);
	FAILS(ibv_close_device(other), 0);
}

/* The rate limit is not exceeded, and all data arrives. */
static void rate_limit(void)
{
	enum { RATE = 8000, BURST = 4096, WRITES = 8 };
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct ibv_qp_rate_limit_attr attr = { .rate_limit = RATE, .max_burst_sz = BURST };
	struct ibv_device_attr_ex device;
	uint64_t start, took;

	FAILS(ibv_query_device_ex(context, NULL, &device), 0);
	CHECK(device.packet_pacing_caps.qp_rate_limit_min <= RATE);
	CHECK(device.packet_pacing_caps.qp_rate_limit_max >= RATE);
	CHECK(device.packet_pacing_caps.supported_qpts & 1 << IBV_QPT_RC);
	FAILS(ibv_modify_qp_rate_limit(a.qp, &attr), EINVAL);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	attr.comp_mask = 1;
	FAILS(ibv_modify_qp_rate_limit(a.qp, &attr), EINVAL);
	attr.comp_mask = 0;
	FAILS(ibv_modify_qp_rate_limit(a.qp, &attr), 0);
	for (int i = 0; i < SIZE; i++)
		a.data[i] = (unsigned char)(i * 7);
	start = device_clock(context);
	for (int i = 0; i < WRITES; i++) {
		struct ibv_sge element = sge(&a, 0, SIZE);
		struct ibv_send_wr *bad, wr = {
			.sg_list = &element, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)b.data, .rkey = b.mr->rkey },
		};
		MUST(!ibv_post_send(a.qp, &wr, &bad));
		CHECK(completion(&a).status == IBV_WC_SUCCESS);
	}
	took = device_clock(context) - start;
	/* At 1 kbit/s a bit takes 1,000,000 ns; the last burst is sent at once. */
	CHECK(took >= (uint64_t)(WRITES * SIZE - 2 * BURST) * 8 * 1000000 / RATE);
	CHECK(!memcmp(a.data, b.data, SIZE));
	attr.rate_limit = 0;
	FAILS(ibv_modify_qp_rate_limit(a.qp, &attr), 0);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

/* An atomic returns 8 bytes: shorter scatter lists are refused, and nothing is executed. */
static void short_atomics(void)
{
	struct ibv_context *context = open_loopback();
	struct end a = make_end(context), b = make_end(context);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
	struct ibv_sge elements[2] = { sge(&a, 0, 4), sge(&a, 4, 3) };
	struct ibv_send_wr atomic = {
		.wr_id = 2, .sg_list = elements, .num_sge = 2, .send_flags = IBV_SEND_SIGNALED,
		.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.wr.atomic = { (uintptr_t)b.data, 5, 0, b.mr->rkey } };
	struct ibv_sge byte = sge(&a, 0, 1);
	struct ibv_send_wr write = {
		.wr_id = 1, .next = &atomic, .sg_list = &byte, .num_sge = 1,
		.send_flags = IBV_SEND_SIGNALED, .opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { (uintptr_t)b.data + 64, b.mr->rkey } };
	struct ibv_send_wr *bad = NULL;

	MUST(qp);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	FAILS(ibv_post_send(a.qp, &write, &bad), EINVAL);
	CHECK(bad == &atomic);
	CHECK(completion(&a).wr_id == 1);
	atomic.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	FAILS(ibv_post_send(a.qp, &atomic, &bad), EINVAL);
	CHECK(bad == &atomic);
	atomic.num_sge = 0;
	FAILS(ibv_post_send(a.qp, &atomic, &bad), EINVAL);

	qp->wr_flags = IBV_SEND_SIGNALED;
	for (int given = 0; given < 2; given++) {
		ibv_wr_start(qp);
		ibv_wr_atomic_fetch_add(qp, b.mr->rkey, (uintptr_t)b.data, 5);
		if (given)
			ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.data, 7);
		FAILS(ibv_wr_complete(qp), EINVAL);
	}
	ibv_wr_start(qp);
	qp->wr_id = 3;
	ibv_wr_atomic_fetch_add(qp, b.mr->rkey, (uintptr_t)b.data, 5);
	ibv_wr_set_sge_list(qp, 2, elements);
	FAILS(ibv_wr_complete(qp), EINVAL);

	elements[1].length = 4;
	atomic.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	atomic.num_sge = 2;
	FAILS(ibv_post_send(a.qp, &atomic, &bad), 0);
	struct ibv_wc wc = completion(&a);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS);
	CHECK(*(uint64_t *)b.data == 5 && *(uint64_t *)a.data == 0);
	free_end(&a);
	free_end(&b);
	FAILS(ibv_close_device(context), 0);
}

int main(int argc, char **argv)
{
	const struct test_case cases[] = {
		{ "timestamps", timestamps },
		{ "refusals", refusals },
		{ "moderation", moderation },
		{ "imports", imports },
		{ "overrun", overrun },
		{ "work_queue_overrun", work_queue_overrun },
		{ "rate_limit", rate_limit },
		{ "raw_packets", raw_packets },
		{ "parent_domains", parent_domains },
		{ "short_atomics", short_atomics },
	};
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
