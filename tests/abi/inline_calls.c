/*
 * Calls the inline functions of verbs.h on a context whose functions print their arguments. The output
 * must be the same with urxe's headers and with rdma-core's.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>

/* A context that is part of an extended context. */
static struct verbs_context whole;
static struct ibv_pd pd, other_pd;
static struct ibv_mr region, other_region;
static struct ibv_cq cq;
static struct ibv_qp qp;
static struct ibv_srq srq;

#define SAY(...) (printf(__VA_ARGS__), putchar('\n'))
/* Prints the object of a pointer, since addresses differ between runs. */
static const char *which(const void *pointer)
{
    return !pointer ? "null"
        : pointer == &whole.context ? "context"
        : pointer == &pd ? "pd"
        : pointer == &cq ? "cq"
        : pointer == &qp ? "qp"
        : pointer == &srq ? "srq"
        : pointer == &region ? "region"
        : "other";
}

/* ---- Functions that the library exports ---- */

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    attr->max_qp = 77;
    return SAY("ibv_query_device(%s)", which(context)) ? 0 : 0;
}

int (ibv_query_port)(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
    (void)attr;
    SAY("ibv_query_port(%s, %d)", which(context), port);
    return 5;
}

struct ibv_mr *(ibv_reg_mr)(struct ibv_pd *domain, void *addr, size_t length, int access)
{
    SAY("ibv_reg_mr(%s, %p, %zu, %#x)", which(domain), addr, length, (unsigned int)access);
    return &region;
}

struct ibv_mr *(ibv_reg_mr_iova)(struct ibv_pd *domain, void *addr, size_t length, uint64_t iova,
        int access)
{
    SAY("ibv_reg_mr_iova(%s, %p, %zu, %#llx, %#x)", which(domain), addr, length,
        (unsigned long long)iova, (unsigned int)access);
    return &region;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *domain, void *addr, size_t length, uint64_t iova,
        unsigned int access)
{
    SAY("ibv_reg_mr_iova2(%s, %p, %zu, %#llx, %#x)", which(domain), addr, length,
        (unsigned long long)iova, access);
    return &region;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *domain, struct ibv_srq_init_attr *attr)
{
    SAY("ibv_create_srq(%s, %u)", which(domain), attr->attr.max_wr);
    return &srq;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *domain, struct ibv_qp_init_attr *attr)
{
    SAY("ibv_create_qp(%s, %u)", which(domain), attr->cap.max_send_wr);
    return &qp;
}

int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index,
        struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
    (void)entry;
    SAY("_ibv_query_gid_ex(%s, %u, %u, %u, %zu)", which(context), port, index, flags, size);
    return 6;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
        uint32_t flags, size_t size)
{
    (void)entries;
    SAY("_ibv_query_gid_table(%s, %zu, %u, %zu)", which(context), max, flags, size);
    return 9;
}

/* ---- Functions of the context ---- */

static int query_device_result;
static int query_device_ex(struct ibv_context *context,
        const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr, size_t size)
{
    SAY("query_device_ex(%s, %s, %zu)", which(context), which(input), size);
    attr->comp_mask = 3;
    return query_device_result;
}

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr,
        size_t size)
{
    (void)attr;
    SAY("query_port(%s, %d), %s", which(context), port,
        size == sizeof(*attr) ? "whole" : "a part");
    return 8;
}

static struct ibv_srq *create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr)
{
    SAY("create_srq_ex(%s, %#x)", which(context), attr->comp_mask);
    return &srq;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
    SAY("create_qp_ex(%s, %#x)", which(context), attr->comp_mask);
    return &qp;
}

static int close_xrcd(struct ibv_xrcd *xrcd)
{
    (void)xrcd;
    return SAY("close_xrcd") ? 11 : 0;
}

static int post_srq_ops(struct ibv_srq *queue, struct ibv_ops_wr *op, struct ibv_ops_wr **bad)
{
    (void)op;
    (void)bad;
    SAY("post_srq_ops(%s)", which(queue));
    return 12;
}

static int advise_mr(struct ibv_pd *domain, enum ibv_advise_mr_advice advice, uint32_t flags,
        struct ibv_sge *list, uint32_t count)
{
    (void)list;
    SAY("advise_mr(%s, %d, %u, %u)", which(domain), (int)advice, flags, count);
    return 13;
}

static int bind_mw(struct ibv_qp *pair, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
    (void)mw;
    SAY("bind_mw(%s, %llu)", which(pair), (unsigned long long)bind->wr_id);
    return 14;
}

static struct ibv_mw *alloc_mw(struct ibv_pd *domain, enum ibv_mw_type type)
{
    SAY("alloc_mw(%s, %d)", which(domain), (int)type);
    return NULL;
}

static int post_send(struct ibv_qp *pair, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    *bad = wr;
    SAY("post_send(%s, %llu)", which(pair), (unsigned long long)wr->wr_id);
    return 15;
}

static int post_recv(struct ibv_qp *pair, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    *bad = wr;
    SAY("post_recv(%s, %llu)", which(pair), (unsigned long long)wr->wr_id);
    return 16;
}

static int poll_cq(struct ibv_cq *queue, int count, struct ibv_wc *wc)
{
    (void)wc;
    SAY("poll_cq(%s, %d)", which(queue), count);
    return 17;
}

static int req_notify_cq(struct ibv_cq *queue, int solicited)
{
    SAY("req_notify_cq(%s, %d)", which(queue), solicited);
    return 18;
}

static int modify_cq(struct ibv_cq *queue, struct ibv_modify_cq_attr *attr)
{
    SAY("modify_cq(%s, %u)", which(queue), attr->attr_mask);
    return 19;
}

/* ---- Calls, in a context with all functions, with none, and of an older version ---- */

static void binds(void)
{
    struct ibv_mw mw = { .context = &whole.context, .pd = &pd, .type = IBV_MW_TYPE_2 };
    struct ibv_mw_bind bind = { .wr_id = 5, .bind_info = { .mr = &region } };

    SAY("type 2: %d", ibv_bind_mw(&qp, &mw, &bind));
    mw.type = IBV_MW_TYPE_1;
    SAY("type 1: %d", ibv_bind_mw(&qp, &mw, &bind));
    bind.bind_info.mr = &other_region;
    SAY("other domain: %d", ibv_bind_mw(&qp, &mw, &bind));
    bind.bind_info.mr = NULL;
    SAY("unbind: %d", ibv_bind_mw(&qp, &mw, &bind));
    bind.bind_info.length = 1;
    SAY("length without region: %d", ibv_bind_mw(&qp, &mw, &bind));
    bind.bind_info.length = 0;
    bind.bind_info.addr = 1;
    SAY("address without region: %d", ibv_bind_mw(&qp, &mw, &bind));
}

static void creates(void)
{
    struct ibv_srq_init_attr_ex srq_attr = { .attr = { .max_wr = 21 }, .pd = &pd };
    struct ibv_qp_init_attr_ex qp_attr = { .cap = { .max_send_wr = 22 }, .pd = &pd };

    for (uint32_t mask = 0; mask < 64; mask++)
        for (int type = IBV_SRQT_BASIC; type <= IBV_SRQT_TM; type++) {
            srq_attr.comp_mask = mask;
            srq_attr.srq_type = (enum ibv_srq_type)type;
            errno = 0;
            SAY("srq: %s", which(ibv_create_srq_ex(&whole.context, &srq_attr)));
            SAY("errno %d", errno);
        }
    for (uint32_t mask = 0; mask < 128; mask++) {
        qp_attr.comp_mask = mask;
        errno = 0;
        SAY("qp: %s", which(ibv_create_qp_ex(&whole.context, &qp_attr)));
        SAY("errno %d", errno);
    }
}

static void queries(void)
{
    struct ibv_query_device_ex_input input = { .comp_mask = 0 };
    struct ibv_device_attr_ex device;
    struct ibv_port_attr port;
    struct ibv_gid_entry entry;
    int results[] = { 0, EOPNOTSUPP, ENOSYS, EINVAL };

    for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++) {
        query_device_result = results[i];
        memset(&device, 0xff, sizeof(device));
        SAY("device: %d", ibv_query_device_ex(&whole.context, NULL, &device));
        SAY("max_qp %d, comp_mask %u", device.orig_attr.max_qp, device.comp_mask);
    }
    input.comp_mask = 1;
    SAY("device: %d", ibv_query_device_ex(&whole.context, &input, &device));
    memset(&port, 0xff, sizeof(port));
    SAY("port: %d", ibv_query_port(&whole.context, 1, &port));
    SAY("flags2 %#x", port.port_cap_flags2);
    SAY("gid: %d", ibv_query_gid_ex(&whole.context, 1, 2, &entry, 0));
    SAY("gids: %zd", ibv_query_gid_table(&whole.context, &entry, 1, 0));
}

static void data_path(void)
{
    struct ibv_send_wr send = { .wr_id = 31 }, *bad_send = NULL;
    struct ibv_recv_wr recv = { .wr_id = 32 }, *bad_recv = NULL;
    struct ibv_ops_wr op, *bad_op = NULL;
    struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE };
    struct ibv_wc wc;

    SAY("%d, %d", ibv_post_send(&qp, &send, &bad_send), bad_send == &send);
    SAY("%d, %d", ibv_post_recv(&qp, &recv, &bad_recv), bad_recv == &recv);
    SAY("%d", ibv_poll_cq(&cq, 4, &wc));
    SAY("%d", ibv_req_notify_cq(&cq, 1));
    SAY("%d", ibv_modify_cq(&cq, &attr));
    SAY("%d", ibv_post_srq_ops(&srq, &op, &bad_op));
    SAY("%d", bad_op == &op);
}

static void memory(int access)
{
    void *addr = (void *)0x1000;
    struct ibv_xrcd xrcd = { .context = &whole.context };

    ibv_reg_mr(&pd, addr, 10, IBV_ACCESS_LOCAL_WRITE);
    ibv_reg_mr(&pd, addr, 11, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
    ibv_reg_mr(&pd, addr, 12, access);
    ibv_reg_mr_iova(&pd, addr, 13, 0x2000, IBV_ACCESS_LOCAL_WRITE);
    ibv_reg_mr_iova(&pd, addr, 14, 0x2000, IBV_ACCESS_RELAXED_ORDERING);
    ibv_reg_mr_iova(&pd, addr, 15, 0x2000, access);
    SAY("%d", ibv_advise_mr(&pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 1, NULL, 3));
    if (verbs_get_ctx(&whole.context) && whole.close_xrcd && whole.sz)
        SAY("%d", ibv_close_xrcd(&xrcd));
    errno = 0;
    SAY("%s", which(ibv_alloc_mw(&pd, IBV_MW_TYPE_1)));
    SAY("errno %d", errno);
    errno = 0;
    SAY("%s", which(ibv_alloc_null_mr(&pd)));
    SAY("errno %d", errno);
}

static void calls(const char *context)
{
    SAY("---- %s", context);
    binds();
    creates();
    queries();
    data_path();
    memory(atoi("1"));
}

int main(void)
{
    struct verbs_context full = {
        .query_port = query_port, .advise_mr = advise_mr, .modify_cq = modify_cq,
        .post_srq_ops = post_srq_ops, .query_device_ex = query_device_ex,
        .create_qp_ex = create_qp_ex, .create_srq_ex = create_srq_ex, .close_xrcd = close_xrcd,
        .sz = sizeof(whole),
        .context = {
            .ops = { .alloc_mw = alloc_mw, .bind_mw = bind_mw, .poll_cq = poll_cq,
                     .req_notify_cq = req_notify_cq, .post_send = post_send,
                     .post_recv = post_recv },
            .abi_compat = __VERBS_ABI_IS_EXTENDED,
        },
    };
    size_t old = sizeof(whole) - offsetof(struct verbs_context, create_srq_ex);

    pd.context = other_pd.context = cq.context = qp.context = srq.context = &whole.context;
    region.pd = &pd;
    other_region.pd = &other_pd;

    whole = full;
    calls("everything");
    whole.sz = old;
    calls("older than create_qp_ex");
    whole = full;
    whole.context.abi_compat = NULL;
    whole.context.ops.alloc_mw = NULL;
    calls("nothing extended");

    for (uint32_t key = 0; key < 1000; key += 7)
        SAY("%#x", ibv_inc_rkey(0x12345600u + key));
    for (uint32_t label = 0; label <= 0x1fffff; label += 997)
        SAY("%#x", ibv_flow_label_to_udp_sport(label));
    for (uint32_t type = IBV_QPT_RC; type < 16; type++)
        SAY("%d", ibv_is_qpt_supported(0x304, (enum ibv_qp_type)type));
    return 0;
}
