/*
 * Memory regions that change or have no memory, on-demand paging, windows, device memory and buffers.
 * The argument selects the case.
 */
#include "program.h"

/* Not in older headers. */
struct ibv_buf;
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length,
			      int access);
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);

enum { BINDABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND };

/* Two connected queue pairs. */
struct both {
	struct ibv_context *context;
	struct end a, b;
};

static struct both make_both(void)
{
	struct both both = { .context = open_loopback() };
	both.a = make_end(both.context);
	both.b = make_end(both.context);
	connect_to(both.a.qp, both.b.qp->qp_num);
	connect_to(both.b.qp, both.a.qp->qp_num);
	return both;
}

static void free_both(struct both *both)
{
	free_end(&both->a);
	free_end(&both->b);
	FAILS(ibv_close_device(both->context), 0);
}

static struct ibv_wc run(struct end *end, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;
	wr.send_flags |= IBV_SEND_SIGNALED;
	MUST(!ibv_post_send(end->qp, &wr, &bad));
	return completion(end);
}

/* Writes or reads `length` bytes at `at` of the peer, from or to the start of the end's own region. */
static enum ibv_wc_status move(struct end *end, enum ibv_wr_opcode opcode, uint64_t at, uint32_t rkey,
			       uint32_t length)
{
	struct ibv_sge element = sge(end, 0, length);
	struct ibv_send_wr wr = { .sg_list = &element, .num_sge = 1, .opcode = opcode };
	wr.wr.rdma.remote_addr = at;
	wr.wr.rdma.rkey = rkey;
	return run(end, wr).status;
}

static void reconnect(struct both *both)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	MUST(!ibv_modify_qp(both->a.qp, &reset, IBV_QP_STATE));
	MUST(!ibv_modify_qp(both->b.qp, &reset, IBV_QP_STATE));
	first_psn += 0x1000;
	connect_to(both->a.qp, both->b.qp->qp_num);
	connect_to(both->b.qp, both->a.qp->qp_num);
}

static void rereg(void)
{
	struct both both = make_both();
	struct ibv_pd *other = ibv_alloc_pd(both.context);
	struct ibv_mr *mr = both.b.mr;
	void *old = mr->addr;
	char *fresh = calloc(1, SIZE);
	struct ibv_mw *mw;

	MINUS_ONE(ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), EINVAL);
	MINUS_ONE(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0), EINVAL);
	MINUS_ONE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 16, 0), EINVAL);
	MINUS_ONE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, fresh, 0, 0), EINVAL);
	MINUS_ONE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, ALL), EINVAL);
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD && errno == EINVAL);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_CMD);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)8, 4096, 0) ==
		      IBV_REREG_MR_ERR_CMD && errno == EFAULT);
	CHECK(mr->addr == old && mr->length == SIZE && mr->pd == both.b.pd);

	both.a.data[0] = 5;
	CHECK(move(&both.a, IBV_WR_RDMA_WRITE, (uintptr_t)old, mr->rkey, 1) == IBV_WC_SUCCESS);
	CHECK(both.b.data[0] == 5);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, fresh, SIZE, 0) == 0);
	CHECK(mr->addr == fresh && mr->length == SIZE);
	CHECK(move(&both.a, IBV_WR_RDMA_WRITE, (uintptr_t)fresh, mr->rkey, 1) == IBV_WC_SUCCESS);
	CHECK(fresh[0] == 5);
	CHECK(move(&both.a, IBV_WR_RDMA_WRITE, (uintptr_t)old, mr->rkey, 1) ==
	      IBV_WC_REM_ACCESS_ERR);
	reconnect(&both);

	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, other, NULL, 0,
			   BINDABLE) == 0);
	CHECK(mr->pd == other);
	FAILS(ibv_dealloc_pd(other), EBUSY);
	CHECK(move(&both.a, IBV_WR_RDMA_WRITE, (uintptr_t)fresh, mr->rkey, 1) ==
	      IBV_WC_REM_ACCESS_ERR);
	reconnect(&both);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, both.b.pd, NULL, 0, 0) == 0);
	FAILS(ibv_dealloc_pd(other), 0);

	struct ibv_mw_bind bind = { .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { .mr = mr, .addr = (uintptr_t)fresh, .length = 8,
						   .mw_access_flags = IBV_ACCESS_REMOTE_READ } };
	MUST(mw = ibv_alloc_mw(both.b.pd, IBV_MW_TYPE_1));
	MUST(!ibv_bind_mw(both.b.qp, mw, &bind));
	CHECK(completion(&both.b).status == IBV_WC_SUCCESS);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) ==
		      IBV_REREG_MR_ERR_CMD && errno == EBUSY);
	FAILS(ibv_dealloc_mw(mw), 0);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) == 0);
	free_both(&both);
	free(fresh);
}

static void windows(void)
{
	struct both both = make_both();
	struct ibv_pd *pd = both.b.pd, *other;
	struct ibv_mr *mr, *foreign;
	struct ibv_mw *one, *two;
	unsigned char *data = calloc(1, 4096);
	uintptr_t at = (uintptr_t)data;
	struct ibv_device_attr attr;
	struct ibv_wc wc;

	FAILS(ibv_query_device(both.context, &attr), 0);
	CHECK(attr.max_mw > 0);
	CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
	CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	NO_OBJECT(ibv_alloc_mw(pd, 3), EINVAL);
	MUST(mr = ibv_reg_mr(pd, data, 4096, BINDABLE));
	MUST(one = ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	MUST(two = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	CHECK(one->context == both.context && one->pd == pd && one->type == IBV_MW_TYPE_1);

	/* Type 1, by its own call. */
	struct ibv_mw_bind bind = { .wr_id = 7, .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { .mr = mr, .addr = at + 16, .length = 16,
						   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	uint32_t before = one->rkey;
	FAILS(ibv_bind_mw(both.b.qp, two, &bind), EINVAL);
	bind.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	FAILS(ibv_bind_mw(both.b.qp, one, &bind), EINVAL);
	bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
	MUST(other = ibv_alloc_pd(both.context));
	MUST(foreign = ibv_reg_mr(other, data, 4096, BINDABLE));
	bind.bind_info.mr = foreign;
	FAILS(ibv_bind_mw(both.b.qp, one, &bind), EPERM);
	FAILS(ibv_dereg_mr(foreign), 0);
	FAILS(ibv_dealloc_pd(other), 0);
	bind.bind_info.mr = NULL;
	FAILS(ibv_bind_mw(both.b.qp, one, &bind), EINVAL);
	CHECK(one->rkey == before);
	bind.bind_info.mr = mr;
	FAILS(ibv_bind_mw(both.b.qp, one, &bind), 0);
	CHECK(one->rkey != before && (one->rkey & ~0xffu) == (before & ~0xffu));
	wc = completion(&both.b);
	CHECK(wc.wr_id == 7 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW);
	memset(both.a.data, 9, 16);
	CHECK(move(&both.a, IBV_WR_RDMA_WRITE, at + 24, one->rkey, 8) == IBV_WC_SUCCESS);
	CHECK(data[23] == 0 && data[24] == 9 && data[31] == 9 && data[32] == 0);
	FAILS(ibv_dereg_mr(mr), EBUSY);
	FAILS(ibv_dealloc_pd(pd), EBUSY);
	CHECK(move(&both.a, IBV_WR_RDMA_WRITE, at + 25, one->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
	reconnect(&both);
	bind.bind_info = (struct ibv_mw_bind_info){ 0 };
	FAILS(ibv_bind_mw(both.b.qp, one, &bind), 0);
	CHECK(completion(&both.b).status == IBV_WC_SUCCESS);

	/* Type 2, by a work request; zero-based. */
	struct ibv_send_wr wr = { .wr_id = 8, .opcode = IBV_WR_BIND_MW }, *bad;
	wr.bind_mw.mw = two;
	wr.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = mr, .addr = at + 64, .length = 8,
		.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED
	};
	wr.bind_mw.mw = one;
	FAILS(ibv_post_send(both.b.qp, &wr, &bad), EINVAL);
	CHECK(bad == &wr);
	wr.bind_mw.mw = two;
	wc = run(&both.b, wr);
	CHECK(wc.wr_id == 8 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW);
	two->rkey = wr.bind_mw.rkey;
	CHECK(move(&both.a, IBV_WR_RDMA_WRITE, 0, two->rkey, 8) == IBV_WC_SUCCESS);
	CHECK(data[63] == 0 && data[64] == 9 && data[71] == 9 && data[72] == 0);

	/* The peer invalidates it. */
	post_recv(&both.b, 3, 0);
	struct ibv_send_wr inv = { .opcode = IBV_WR_SEND_WITH_INV, .invalidate_rkey = two->rkey };
	CHECK(run(&both.a, inv).status == IBV_WC_SUCCESS);
	wc = completion(&both.b);
	CHECK(wc.wr_id == 3 && (wc.wc_flags & IBV_WC_WITH_INV) &&
	      wc.invalidated_rkey == two->rkey);
	CHECK(move(&both.a, IBV_WR_RDMA_WRITE, 0, two->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
	reconnect(&both);

	/* This end invalidates it. */
	wr.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	CHECK(run(&both.b, wr).status == IBV_WC_SUCCESS);
	two->rkey = wr.bind_mw.rkey;
	inv.opcode = IBV_WR_LOCAL_INV;
	inv.invalidate_rkey = two->rkey;
	wc = run(&both.b, inv);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_LOCAL_INV);
	CHECK(move(&both.a, IBV_WR_RDMA_WRITE, 0, two->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
	reconnect(&both);

	/* A failed bind, and destruction of the queue pair. */
	wr.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	wr.bind_mw.bind_info.length = 4096;
	CHECK(run(&both.b, wr).status == IBV_WC_MW_BIND_ERR);
	CHECK(both.b.qp->state == IBV_QPS_RTS);
	reconnect(&both);
	wr.bind_mw.bind_info.length = 8;
	CHECK(run(&both.b, wr).status == IBV_WC_SUCCESS);
	FAILS(ibv_dereg_mr(mr), EBUSY);
	FAILS(ibv_destroy_qp(both.b.qp), 0);
	both.b.qp = NULL;
	FAILS(ibv_dereg_mr(mr), 0);

	FAILS(ibv_dealloc_mw(one), 0);
	FAILS(ibv_dealloc_mw(two), 0);
	free_both(&both);
	free(data);
}

static void *reregister(void *region)
{
	struct ibv_mr *mr = region;
	for (int i = 0; i < 3000; i++)
		CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, BINDABLE) ||
		      errno == EBUSY);
	return NULL;
}

/* ibv_rereg_mr() races with binds of windows: one of the two is refused. */
static void together(void)
{
	struct both both = make_both();
	unsigned char *data = calloc(1, 4096);
	struct ibv_mr *mr;
	struct ibv_mw *mw;
	pthread_t thread;

	MUST(mr = ibv_reg_mr(both.b.pd, data, 4096, BINDABLE));
	MUST(mw = ibv_alloc_mw(both.b.pd, IBV_MW_TYPE_2));
	MUST(!pthread_create(&thread, NULL, reregister, mr));
	struct ibv_send_wr bind = { .opcode = IBV_WR_BIND_MW }, inv = { .opcode = IBV_WR_LOCAL_INV };
	bind.bind_mw.mw = mw;
	bind.bind_mw.bind_info = (struct ibv_mw_bind_info){ .mr = mr, .addr = (uintptr_t)data,
							    .length = 8 };
	for (int i = 0; i < 3000; i++) {
		bind.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
		MUST(run(&both.b, bind).status == IBV_WC_SUCCESS);
		mw->rkey = inv.invalidate_rkey = bind.bind_mw.rkey;
		MUST(run(&both.b, inv).status == IBV_WC_SUCCESS);
	}
	MUST(!pthread_join(thread, NULL));
	FAILS(ibv_dealloc_mw(mw), 0);
	FAILS(ibv_dereg_mr(mr), 0);
	free_both(&both);
	free(data);
}

static void paging(void)
{
	struct both both = make_both();
	struct ibv_device_attr_ex attr;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	unsigned char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr, *implicit, *null;

	MUST(pages != MAP_FAILED);
	FAILS(ibv_query_device_ex(both.context, NULL, &attr), 0);
	CHECK(attr.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	CHECK(attr.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_ATOMIC);
	CHECK(!(attr.odp_caps.per_transport_caps.ud_odp_caps & IBV_ODP_SUPPORT_WRITE));
	MUST(mr = ibv_reg_mr(both.b.pd, pages, 2 * page, ALL | IBV_ACCESS_ON_DEMAND));
	MUST(implicit = ibv_reg_mr(both.b.pd, NULL, SIZE_MAX, ALL | IBV_ACCESS_ON_DEMAND));

	struct ibv_sge range = { (uintptr_t)pages, (uint32_t)page, mr->lkey };
	FAILS(ibv_advise_mr(both.b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH,
			    &range, 1), 0);
	FAILS(ibv_advise_mr(both.b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &range, 1), 0);
	FAILS(ibv_advise_mr(both.b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 2, &range, 1), EINVAL);
	FAILS(ibv_advise_mr(both.b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &range, 0), EINVAL);
	FAILS(ibv_advise_mr(both.b.pd, 77, 0, &range, 1), EOPNOTSUPP);
	FAILS(ibv_advise_mr(both.a.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &range, 1), EPERM);
	range.lkey = both.b.mr->lkey;
	FAILS(ibv_advise_mr(both.b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &range, 1), ENOENT);

	/* The second page is unmapped, and the process continues. */
	pages[0] = 4;
	CHECK(move(&both.a, IBV_WR_RDMA_READ, (uintptr_t)pages, mr->rkey, 8) == IBV_WC_SUCCESS);
	CHECK(both.a.data[0] == 4);
	MUST(!munmap(pages + page, page));
	range = (struct ibv_sge){ (uintptr_t)pages, (uint32_t)(2 * page), mr->lkey };
	FAILS(ibv_advise_mr(both.b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH,
			    &range, 1), EFAULT);
	uintptr_t gone = (uintptr_t)pages + page;
	CHECK(move(&both.a, IBV_WR_RDMA_WRITE, gone - 4, mr->rkey, 8) != IBV_WC_SUCCESS);
	reconnect(&both);
	CHECK(move(&both.a, IBV_WR_RDMA_READ, gone, implicit->rkey, 8) != IBV_WC_SUCCESS);
	reconnect(&both);
	CHECK(move(&both.a, IBV_WR_RDMA_READ, (uintptr_t)pages, implicit->rkey, 8) ==
	      IBV_WC_SUCCESS);
	struct ibv_sge lost = { gone, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &lost, .num_sge = 1, .opcode = IBV_WR_SEND };
	CHECK(run(&both.b, wr).status == IBV_WC_LOC_PROT_ERR);
	reconnect(&both);

	/* The null region reads zeros, and discards writes. */
	MUST(null = ibv_alloc_null_mr(both.b.pd));
	memset(both.a.data, 6, 64);
	lost = (struct ibv_sge){ 12345, 64, null->lkey };
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = (uintptr_t)both.a.data;
	wr.wr.rdma.rkey = both.a.mr->rkey;
	CHECK(run(&both.b, wr).status == IBV_WC_SUCCESS);
	CHECK(both.a.data[0] == 0 && both.a.data[63] == 0);
	wr.opcode = IBV_WR_RDMA_READ;
	CHECK(run(&both.b, wr).status == IBV_WC_SUCCESS);
	CHECK(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_PD, both.a.pd, NULL, 0, 0) ==
	      IBV_REREG_MR_ERR_INPUT);
	CHECK(move(&both.a, IBV_WR_RDMA_READ, 0, null->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
	FAILS(ibv_dereg_mr(null), 0);
	FAILS(ibv_dereg_mr(implicit), 0);
	FAILS(ibv_dereg_mr(mr), 0);
	free_both(&both);
}

static void device_memory(void)
{
	struct both both = make_both();
	struct ibv_device_attr_ex attr;
	struct ibv_alloc_dm_attr wish = { .length = 256, .log_align_req = 12 };
	struct ibv_dm *dm;
	struct ibv_mr *mr;
	char text[8] = "device!";

	FAILS(ibv_query_device_ex(both.context, NULL, &attr), 0);
	CHECK(attr.max_dm_size >= 256);
	MUST(dm = ibv_alloc_dm(both.context, &wish));
	FAILS(ibv_memcpy_to_dm(dm, 64, text, 8), 0);
	FAILS(ibv_memcpy_to_dm(dm, 62, text, 8), EINVAL);
	FAILS(ibv_memcpy_to_dm(dm, 256, text, 8), EFAULT);
	FAILS(ibv_memcpy_from_dm(text, dm, 252, 8), EFAULT);
	NO_OBJECT(ibv_reg_dm_mr(both.b.pd, dm, 0, 256, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	NO_OBJECT(ibv_reg_dm_mr(both.b.pd, dm, 64, 256, ALL | IBV_ACCESS_ZERO_BASED), EINVAL);
	NO_OBJECT(ibv_reg_dm_mr(both.b.pd, dm, 0, 8, IBV_ACCESS_REMOTE_WRITE |
						     IBV_ACCESS_ZERO_BASED), EINVAL);
	MUST(mr = ibv_reg_dm_mr(both.b.pd, dm, 64, 128, ALL | IBV_ACCESS_ZERO_BASED));
	CHECK(mr->length == 128 && mr->pd == both.b.pd);
	FAILS(ibv_free_dm(dm), EBUSY);
	CHECK(move(&both.a, IBV_WR_RDMA_READ, 0, mr->rkey, 8) == IBV_WC_SUCCESS);
	CHECK(!memcmp(both.a.data, "device!", 8));
	memcpy(both.a.data, "changed", 8);
	CHECK(move(&both.a, IBV_WR_RDMA_WRITE, 120, mr->rkey, 8) == IBV_WC_SUCCESS);
	FAILS(ibv_memcpy_from_dm(text, dm, 184, 8), 0);
	CHECK(!memcmp(text, "changed", 8));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, both.a.pd, NULL, 0, 0) ==
	      IBV_REREG_MR_ERR_INPUT);
	FAILS(ibv_dereg_mr(mr), 0);
	FAILS(ibv_free_dm(dm), 0);
	wish.length = attr.max_dm_size + 1;
	NO_OBJECT(ibv_alloc_dm(both.context, &wish), EINVAL);
	wish = (struct ibv_alloc_dm_attr){ .length = 256, .log_align_req = 40 };
	NO_OBJECT(ibv_alloc_dm(both.context, &wish), EINVAL);
	wish = (struct ibv_alloc_dm_attr){ .length = 256, .comp_mask = 1 };
	NO_OBJECT(ibv_alloc_dm(both.context, &wish), EINVAL);
	free_both(&both);
}

static void buffers(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct ibv_buf *buf;
	struct ibv_mr *mr;
	char *data;
	int memfd = memfd_create("memory", MFD_CLOEXEC);

	MUST(pd && other && memfd >= 0);
	NO_OBJECT(ibv_alloc_buf(pd, 0, &buf), EINVAL);
	MUST(data = ibv_alloc_buf(pd, 10000, &buf));
	CHECK((uintptr_t)data % (uintptr_t)sysconf(_SC_PAGESIZE) == 0);
	memset(data, 1, 10000);
	FAILS(ibv_dealloc_pd(pd), EBUSY);
	NO_OBJECT(ibv_reg_buf_mr(other, buf, data, 10000, ALL), EINVAL);
	NO_OBJECT(ibv_reg_buf_mr(pd, buf, data - 1, 10000, ALL), EINVAL);
	NO_OBJECT(ibv_reg_buf_mr(pd, buf, data + 1, 10000, ALL), EINVAL);
	MUST(mr = ibv_reg_buf_mr(pd, buf, data + 1, 9999, ALL));
	CHECK(mr->addr == data + 1 && mr->length == 9999);
	MINUS_ONE(ibv_export_buf_dmabuf_fd(buf), ENODATA);
	FAILS(ibv_dereg_mr(mr), 0);
	ibv_free_buf(buf);

	/* Errors: not a DMA buffer, and a DMA buffer that cannot be mapped. */
	MUST(!ftruncate(memfd, 8192));
	NO_OBJECT(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, memfd, ALL), EINVAL);
	NO_OBJECT(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, ALL), EBADF);
	NO_OBJECT(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 9999, ALL), EBADF);
	NO_OBJECT(ibv_reg_dmabuf_mr(pd, 8, 4096, 0, memfd, ALL), EINVAL);
	close(memfd);
	FAILS(ibv_dealloc_pd(pd), 0);
	FAILS(ibv_dealloc_pd(other), 0);
	FAILS(ibv_close_device(context), 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "rereg", rereg },
		{ "windows", windows },
		{ "together", together },
		{ "paging", paging },
		{ "device_memory", device_memory },
		{ "buffers", buffers },
	};
	return run_case(cases, sizeof(cases) / sizeof(*cases), argc, argv);
}
