/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The verbs API, source and binary compatible with rdma-core's header of the same name: a program
 * compiled with one runs with the library of the other. Types are in infiniband/verbs/.
 *
 * Errors, unless a comment says otherwise: a function that returns a pointer returns NULL and sets
 * errno. One that returns int returns 0 or an errno value, or says if it returns -1 and sets errno.
 */
#ifndef INFINIBAND_VERBS_H
#define INFINIBAND_VERBS_H

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include <linux/types.h>

#include <infiniband/verbs_api.h>
#include <infiniband/verbs/device.h>
#include <infiniband/verbs/event.h>
#include <infiniband/verbs/memory.h>
#include <infiniband/verbs/address.h>
#include <infiniband/verbs/queue.h>
#include <infiniband/verbs/completion.h>
#include <infiniband/verbs/qp.h>
#include <infiniband/verbs/work.h>
#include <infiniband/verbs/flow.h>
#include <infiniband/verbs/context.h>
#include <infiniband/verbs/data_path.h>

#if defined(__GNUC__)
#define URXE_CONST_FN __attribute__((const))
#define URXE_ALWAYS_INLINE __attribute__((always_inline)) static inline
#else
#define URXE_CONST_FN
#define URXE_ALWAYS_INLINE static inline
#endif

/* Whether a structure of sz bytes, as its creator has stored it, contains the field. */
#define vext_field_avail(type, fld, sz) (offsetof(type, fld) < (sz))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Devices ------------------------------------------------------------------------------- */

/* The devices, terminated by NULL; num_devices may be NULL. Free the list with the call below. */
struct ibv_device **ibv_get_device_list(int *num_devices);
void ibv_free_device_list(struct ibv_device **list);
const char *ibv_get_device_name(struct ibv_device *device);
/* The index of the device in the kernel, or -1 if it has none, as urxe's devices. */
int ibv_get_device_index(struct ibv_device *device);
/* The node GUID in network byte order. */
__be64 ibv_get_device_guid(struct ibv_device *device);

struct ibv_context *ibv_open_device(struct ibv_device *device);
int ibv_close_device(struct ibv_context *context);

/* A context, and objects of it, that another process shares through the descriptor. */
struct ibv_context *ibv_import_device(int cmd_fd);
struct ibv_pd *ibv_import_pd(struct ibv_context *context, uint32_t pd_handle);
void ibv_unimport_pd(struct ibv_pd *pd);
struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t mr_handle);
void ibv_unimport_mr(struct ibv_mr *mr);
struct ibv_dm *ibv_import_dm(struct ibv_context *context, uint32_t dm_handle);
void ibv_unimport_dm(struct ibv_dm *dm);

/* Waits for the next asynchronous event. Returns 0, or -1 and errno. */
int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event);
/* Each event must be acknowledged before its object can be destroyed. */
void ibv_ack_async_event(struct ibv_async_event *event);

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *device_attr);
/* The entry point for programs with an older struct ibv_port_attr; see the macro below. */
int ibv_query_port(struct ibv_context *context, uint8_t port_num,
        struct _compat_ibv_port_attr *port_attr);
/* Effective speed in units of 100 Mbit/s. */
int ibv_query_port_speed(struct ibv_context *context, uint32_t port_num, uint64_t *port_speed);
/* Returns 0, or -1 and errno. */
int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid);
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num, uint32_t gid_index,
        struct ibv_gid_entry *entry, uint32_t flags, size_t entry_size);
/* Fills in up to max_entries rows; returns how many, or a negative errno. */
ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
        size_t max_entries, uint32_t flags, size_t entry_size);
/* Returns 0, or -1 and errno. */
int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey);
/* The index of a P_Key in the port's table, or -1 and errno. */
int ibv_get_pkey_index(struct ibv_context *context, uint8_t port_num, __be16 pkey);

/* ---- Memory -------------------------------------------------------------------------------- */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context);
int ibv_dealloc_pd(struct ibv_pd *pd);

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
/* The same with an explicit address (iova) for remote and local use of the region. */
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
        int access);
/* The same with optional access flags. */
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
        unsigned int access);
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova,
        int fd, int access);
struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *mr_init_attr);
/* Returns 0 or an enum ibv_rereg_mr_err_code, with errno. */
int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
        int access);
int ibv_dereg_mr(struct ibv_mr *mr);

/* Buffers that the library allocates. */
void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **buf);
void ibv_free_buf(struct ibv_buf *buf);
struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length,
        int access);
/* These two return a new descriptor, or -1 and errno. */
int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf);
int ibv_dm_export_dmabuf_fd(struct ibv_dm *dm);

struct ibv_dmah *ibv_alloc_dmah(struct ibv_context *context, struct ibv_dmah_init_attr *attr);
int ibv_dealloc_dmah(struct ibv_dmah *dmah);

/* ---- Completions --------------------------------------------------------------------------- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context);
int ibv_destroy_comp_channel(struct ibv_comp_channel *channel);

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
        struct ibv_comp_channel *channel, int comp_vector);
int ibv_resize_cq(struct ibv_cq *cq, int cqe);
int ibv_destroy_cq(struct ibv_cq *cq);
/* Waits for an event of a completion queue of the channel. Returns 0, or -1 and errno. */
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
/* Each event must be acknowledged before its queue can be destroyed. */
void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents);

int _ibv_query_comp_cntr_caps(struct ibv_context *context, struct ibv_comp_cntr_caps *caps,
        size_t caps_size);
struct ibv_comp_cntr *ibv_create_comp_cntr(struct ibv_context *context,
        struct ibv_comp_cntr_init_attr *cc_attr);
int ibv_destroy_comp_cntr(struct ibv_comp_cntr *comp_cntr);
int ibv_set_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t value);
int ibv_set_err_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t value);
int ibv_inc_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t amount);
int ibv_inc_err_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t amount);
int ibv_read_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t *value);
int ibv_read_err_comp_cntr(struct ibv_comp_cntr *comp_cntr, uint64_t *value);

/* ---- Shared receive queues, queue pairs and addresses --------------------------------------- */

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *srq_init_attr);
int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr, int srq_attr_mask);
int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr);
int ibv_destroy_srq(struct ibv_srq *srq);

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr);
int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
        struct ibv_qp_init_attr *init_attr);
int ibv_destroy_qp(struct ibv_qp *qp);
/* The extended view of a queue pair that was created with send_ops_flags. */
struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp);
/* Whether data becomes visible in order: 1 or 0, or capability bits when flags ask for them. */
int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags);
int ibv_qp_attach_comp_cntr(struct ibv_qp *qp, struct ibv_comp_cntr *comp_cntr,
        struct ibv_qp_attach_comp_cntr_attr *attr);
int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece);
int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece);

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
/* The address of a datagram's sender, from its completion and the 40 bytes before its payload. */
int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port_num, struct ibv_wc *wc,
        struct ibv_grh *grh, struct ibv_ah_attr *ah_attr);
struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh,
        uint8_t port_num);
int ibv_destroy_ah(struct ibv_ah *ah);
/* The Ethernet address and VLAN of the next hop of an address vector. */
int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
        uint8_t eth_mac[ETHERNET_LL_SIZE], uint16_t *vid);

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);
int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid);

/* ---- Names, rates and fork ------------------------------------------------------------------ */

const char *ibv_node_type_str(enum ibv_node_type node_type);
const char *ibv_port_state_str(enum ibv_port_state port_state);
const char *ibv_event_type_str(enum ibv_event_type event);
const char *ibv_wc_status_str(enum ibv_wc_status status);
const char *ibv_wr_opcode_str(enum ibv_wr_opcode opcode);

/* Multiples of 2.5 Gbit/s and Mbit/s; -1 or IBV_RATE_MAX when there is no such rate. */
int URXE_CONST_FN ibv_rate_to_mult(enum ibv_rate rate);
enum ibv_rate URXE_CONST_FN mult_to_ibv_rate(int mult);
int URXE_CONST_FN ibv_rate_to_mbps(enum ibv_rate rate);
enum ibv_rate URXE_CONST_FN mbps_to_ibv_rate(int mbps);

int ibv_fork_init(void);
enum ibv_fork_status ibv_is_fork_initialized(void);

/* ---- Calls that depend on how the program was compiled -------------------------------------- */

/* The verbs_context that contains a context, or NULL if there is none. */
static inline struct verbs_context *verbs_get_ctx(struct ibv_context *ctx)
{
    uintptr_t whole = (uintptr_t)ctx - offsetof(struct verbs_context, context);

    return ctx->abi_compat == __VERBS_ABI_IS_EXTENDED ? (struct verbs_context *)whole : NULL;
}

/* The same, or NULL if the library does not have the function. */
#define verbs_get_ctx_op(ctx, op)                                                                  \
    ({                                                                                             \
        struct verbs_context *__vctx = verbs_get_ctx(ctx);                                         \
        if (__vctx && (__vctx->sz < sizeof(*__vctx) - offsetof(struct verbs_context, op) ||        \
                       !__vctx->op))                                                               \
            __vctx = NULL;                                                                         \
        __vctx;                                                                                    \
    })

/* Calls an extended function, or fails with EOPNOTSUPP: as the result, or as NULL and errno. */
#define URXE_CALL_INT(ctx, op, ...)                                                                \
    ({                                                                                             \
        struct verbs_context *__ext = verbs_get_ctx_op(ctx, op);                                   \
        __ext ? __ext->op(__VA_ARGS__) : EOPNOTSUPP;                                               \
    })
#define URXE_CALL_PTR(ctx, op, ...)                                                                \
    ({                                                                                             \
        struct verbs_context *__ext = verbs_get_ctx_op(ctx, op);                                   \
        __typeof__(__ext->op(__VA_ARGS__)) __res = NULL;                                           \
        if (__ext)                                                                                 \
            __res = __ext->op(__VA_ARGS__);                                                        \
        else                                                                                       \
            errno = EOPNOTSUPP;                                                                    \
        __res;                                                                                     \
    })

/* Passes the size of the structure as the program was compiled with it. */
static inline int ___ibv_query_port(struct ibv_context *context, uint8_t port_num,
        struct ibv_port_attr *port_attr)
{
    struct verbs_context *ext = verbs_get_ctx_op(context, query_port);

    if (ext)
        return ext->query_port(context, port_num, port_attr, sizeof(*port_attr));
    memset(port_attr, 0, sizeof(*port_attr));
    return ibv_query_port(context, port_num, (struct _compat_ibv_port_attr *)port_attr);
}
#define ibv_query_port(context, port_num, port_attr)                                               \
    ___ibv_query_port(context, port_num, port_attr)

static inline int ibv_query_gid_ex(struct ibv_context *context, uint32_t port_num,
        uint32_t gid_index, struct ibv_gid_entry *entry, uint32_t flags)
{
    return _ibv_query_gid_ex(context, port_num, gid_index, entry, flags, sizeof(*entry));
}

static inline ssize_t ibv_query_gid_table(struct ibv_context *context,
        struct ibv_gid_entry *entries, size_t max_entries, uint32_t flags)
{
    return _ibv_query_gid_table(context, entries, max_entries, flags, sizeof(*entries));
}

static inline int ibv_query_comp_cntr_caps(struct ibv_context *context,
        struct ibv_comp_cntr_caps *caps)
{
    return _ibv_query_comp_cntr_caps(context, caps, sizeof(*caps));
}

/* Falls back to the plain query, with the other members zero, if there is no extended one. */
static inline int ibv_query_device_ex(struct ibv_context *context,
        const struct ibv_query_device_ex_input *input, struct ibv_device_attr_ex *attr)
{
    int res;

    if (input && input->comp_mask)
        return EINVAL;
    res = URXE_CALL_INT(context, query_device_ex, context, input, attr, sizeof(*attr));
    if (res != EOPNOTSUPP && res != ENOSYS)
        return res;
    memset(attr, 0, sizeof(*attr));
    return ibv_query_device(context, &attr->orig_attr);
}

static inline int ibv_query_rt_values_ex(struct ibv_context *context, struct ibv_values_ex *values)
{
    return URXE_CALL_INT(context, query_rt_values, context, values);
}

/*
 * Optional access flags need the entry point that ignores those it does not know. Constant flags
 * without optional ones use the plain entry point, which older libraries have, too.
 */
URXE_ALWAYS_INLINE struct ibv_mr *__ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
        unsigned int access, int is_access_const)
{
    if (!is_access_const || (access & IBV_ACCESS_OPTIONAL_RANGE))
        return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, access);
    return ibv_reg_mr(pd, addr, length, (int)access);
}
#define ibv_reg_mr(pd, addr, length, access)                                                       \
    __ibv_reg_mr(pd, addr, length, access,                                                         \
            __builtin_constant_p(((int)(access) & IBV_ACCESS_OPTIONAL_RANGE) == 0))

URXE_ALWAYS_INLINE struct ibv_mr *__ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
        uint64_t iova, unsigned int access, int is_access_const)
{
    if (!is_access_const || (access & IBV_ACCESS_OPTIONAL_RANGE))
        return ibv_reg_mr_iova2(pd, addr, length, iova, access);
    return ibv_reg_mr_iova(pd, addr, length, iova, (int)access);
}
#define ibv_reg_mr_iova(pd, addr, length, iova, access)                                            \
    __ibv_reg_mr_iova(pd, addr, length, iova, access,                                              \
            __builtin_constant_p(((int)(access) & IBV_ACCESS_OPTIONAL_RANGE) == 0))

/* ---- Calls that go through the context's tables --------------------------------------------- */

static inline struct ibv_mw *ibv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
    if (pd->context->ops.alloc_mw)
        return pd->context->ops.alloc_mw(pd, type);
    errno = EOPNOTSUPP;
    return NULL;
}

static inline int ibv_dealloc_mw(struct ibv_mw *mw)
{
    return mw->context->ops.dealloc_mw(mw);
}

/* The next key of a type 2 window: the program increments the low 8 bits. */
static inline uint32_t ibv_inc_rkey(uint32_t rkey)
{
    return (rkey & 0xffffff00u) | ((rkey + 1) & 0xffu);
}

/* Binds a type 1 window; without a region only an empty range can be bound. */
static inline int ibv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *mw_bind)
{
    const struct ibv_mw_bind_info *info = &mw_bind->bind_info;

    if (mw->type != IBV_MW_TYPE_1)
        return EINVAL;
    if (info->mr)
        return info->mr->pd == mw->pd ? mw->context->ops.bind_mw(qp, mw, mw_bind) : EPERM;
    if (info->addr || info->length)
        return EINVAL;
    return mw->context->ops.bind_mw(qp, mw, mw_bind);
}

static inline int ibv_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice,
        uint32_t flags, struct ibv_sge *sg_list, uint32_t num_sge)
{
    return URXE_CALL_INT(pd->context, advise_mr, pd, advice, flags, sg_list, num_sge);
}

static inline struct ibv_mr *ibv_alloc_null_mr(struct ibv_pd *pd)
{
    return URXE_CALL_PTR(pd->context, alloc_null_mr, pd);
}

static inline struct ibv_dm *ibv_alloc_dm(struct ibv_context *context,
        struct ibv_alloc_dm_attr *attr)
{
    return URXE_CALL_PTR(context, alloc_dm, context, attr);
}

static inline int ibv_free_dm(struct ibv_dm *dm)
{
    return URXE_CALL_INT(dm->context, free_dm, dm);
}

static inline int ibv_memcpy_to_dm(struct ibv_dm *dm, uint64_t dm_offset, const void *host_addr,
        size_t length)
{
    return dm->memcpy_to_dm(dm, dm_offset, host_addr, length);
}

static inline int ibv_memcpy_from_dm(void *host_addr, struct ibv_dm *dm, uint64_t dm_offset,
        size_t length)
{
    return dm->memcpy_from_dm(host_addr, dm, dm_offset, length);
}

static inline struct ibv_mr *ibv_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *dm,
        uint64_t dm_offset, size_t length, unsigned int access)
{
    return URXE_CALL_PTR(pd->context, reg_dm_mr, pd, dm, dm_offset, length, access);
}

static inline struct ibv_td *ibv_alloc_td(struct ibv_context *context,
        struct ibv_td_init_attr *init_attr)
{
    return URXE_CALL_PTR(context, alloc_td, context, init_attr);
}

static inline int ibv_dealloc_td(struct ibv_td *td)
{
    return URXE_CALL_INT(td->context, dealloc_td, td);
}

static inline struct ibv_pd *ibv_alloc_parent_domain(struct ibv_context *context,
        struct ibv_parent_domain_init_attr *attr)
{
    return URXE_CALL_PTR(context, alloc_parent_domain, context, attr);
}

static inline struct ibv_xrcd *ibv_open_xrcd(struct ibv_context *context,
        struct ibv_xrcd_init_attr *xrcd_init_attr)
{
    return URXE_CALL_PTR(context, open_xrcd, context, xrcd_init_attr);
}

static inline int ibv_close_xrcd(struct ibv_xrcd *xrcd)
{
    return URXE_CALL_INT(xrcd->context, close_xrcd, xrcd);
}

static inline struct ibv_cq_ex *ibv_create_cq_ex(struct ibv_context *context,
        struct ibv_cq_init_attr_ex *cq_attr)
{
    return URXE_CALL_PTR(context, create_cq_ex, context, cq_attr);
}

static inline int ibv_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
{
    return URXE_CALL_INT(cq->context, modify_cq, cq, attr);
}

/* Uses the plain call where it is sufficient: both structures begin with the same members. */
static inline struct ibv_srq *ibv_create_srq_ex(struct ibv_context *context,
        struct ibv_srq_init_attr_ex *srq_init_attr_ex)
{
    uint32_t mask = srq_init_attr_ex->comp_mask;
    int typed = !!(mask & IBV_SRQ_INIT_ATTR_TYPE);
    int basic = !typed || srq_init_attr_ex->srq_type == IBV_SRQT_BASIC;

    if (basic && (mask & ~(uint32_t)IBV_SRQ_INIT_ATTR_TYPE) == IBV_SRQ_INIT_ATTR_PD)
        return ibv_create_srq(srq_init_attr_ex->pd, (struct ibv_srq_init_attr *)srq_init_attr_ex);
    return URXE_CALL_PTR(context, create_srq_ex, context, srq_init_attr_ex);
}

static inline int ibv_get_srq_num(struct ibv_srq *srq, uint32_t *srq_num)
{
    return URXE_CALL_INT(srq->context, get_srq_num, srq, srq_num);
}

static inline int ibv_post_srq_ops(struct ibv_srq *srq, struct ibv_ops_wr *op,
        struct ibv_ops_wr **bad_op)
{
    struct verbs_context *ext = verbs_get_ctx_op(srq->context, post_srq_ops);

    if (ext)
        return ext->post_srq_ops(srq, op, bad_op);
    *bad_op = op;
    return EOPNOTSUPP;
}

/* Uses the plain call where it is sufficient: both structures begin with the same members. */
static inline struct ibv_qp *ibv_create_qp_ex(struct ibv_context *context,
        struct ibv_qp_init_attr_ex *qp_init_attr_ex)
{
    if (qp_init_attr_ex->comp_mask == IBV_QP_INIT_ATTR_PD)
        return ibv_create_qp(qp_init_attr_ex->pd, (struct ibv_qp_init_attr *)qp_init_attr_ex);
    return URXE_CALL_PTR(context, create_qp_ex, context, qp_init_attr_ex);
}

static inline struct ibv_qp *ibv_open_qp(struct ibv_context *context,
        struct ibv_qp_open_attr *qp_open_attr)
{
    return URXE_CALL_PTR(context, open_qp, context, qp_open_attr);
}

static inline int ibv_modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr)
{
    return URXE_CALL_INT(qp->context, modify_qp_rate_limit, qp, attr);
}

/* Whether a mask of transport services contains one. */
static inline int ibv_is_qpt_supported(uint32_t caps, enum ibv_qp_type qpt)
{
    return (caps >> qpt) & 1;
}

/* Also initializes the members of the work queue that libibverbs owns. */
static inline struct ibv_wq *ibv_create_wq(struct ibv_context *context,
        struct ibv_wq_init_attr *wq_init_attr)
{
    struct ibv_wq *wq = URXE_CALL_PTR(context, create_wq, context, wq_init_attr);

    if (wq) {
        pthread_mutex_init(&wq->mutex, NULL);
        pthread_cond_init(&wq->cond, NULL);
        wq->wq_context = wq_init_attr->wq_context;
        wq->events_completed = 0;
    }
    return wq;
}

static inline int ibv_modify_wq(struct ibv_wq *wq, struct ibv_wq_attr *wq_attr)
{
    return URXE_CALL_INT(wq->context, modify_wq, wq, wq_attr);
}

static inline int ibv_destroy_wq(struct ibv_wq *wq)
{
    return URXE_CALL_INT(wq->context, destroy_wq, wq);
}

static inline struct ibv_rwq_ind_table *ibv_create_rwq_ind_table(struct ibv_context *context,
        struct ibv_rwq_ind_table_init_attr *init_attr)
{
    return URXE_CALL_PTR(context, create_rwq_ind_table, context, init_attr);
}

static inline int ibv_destroy_rwq_ind_table(struct ibv_rwq_ind_table *rwq_ind_table)
{
    return URXE_CALL_INT(rwq_ind_table->context, destroy_rwq_ind_table, rwq_ind_table);
}

static inline struct ibv_flow *ibv_create_flow(struct ibv_qp *qp, struct ibv_flow_attr *flow)
{
    return URXE_CALL_PTR(qp->context, ibv_create_flow, qp, flow);
}

static inline int ibv_destroy_flow(struct ibv_flow *flow_id)
{
    return URXE_CALL_INT(flow_id->context, ibv_destroy_flow, flow_id);
}

static inline struct ibv_flow_action *ibv_create_flow_action_esp(struct ibv_context *ctx,
        struct ibv_flow_action_esp_attr *esp)
{
    return URXE_CALL_PTR(ctx, create_flow_action_esp, ctx, esp);
}

static inline int ibv_modify_flow_action_esp(struct ibv_flow_action *action,
        struct ibv_flow_action_esp_attr *esp)
{
    return URXE_CALL_INT(action->context, modify_flow_action_esp, action, esp);
}

static inline int ibv_destroy_flow_action(struct ibv_flow_action *action)
{
    return URXE_CALL_INT(action->context, destroy_flow_action, action);
}

static inline struct ibv_counters *ibv_create_counters(struct ibv_context *context,
        struct ibv_counters_init_attr *init_attr)
{
    return URXE_CALL_PTR(context, create_counters, context, init_attr);
}

static inline int ibv_destroy_counters(struct ibv_counters *counters)
{
    return URXE_CALL_INT(counters->context, destroy_counters, counters);
}

static inline int ibv_attach_counters_point_flow(struct ibv_counters *counters,
        struct ibv_counter_attach_attr *attr, struct ibv_flow *flow)
{
    return URXE_CALL_INT(counters->context, attach_counters_point_flow, counters, attr, flow);
}

static inline int ibv_read_counters(struct ibv_counters *counters, uint64_t *counters_value,
        uint32_t ncounters, uint32_t flags)
{
    return URXE_CALL_INT(counters->context, read_counters, counters, counters_value, ncounters,
            flags);
}

/* ---- RoCEv2 ---------------------------------------------------------------------------------- */

#define IB_ROCE_UDP_ENCAP_VALID_PORT_MIN (0xC000)
#define IB_ROCE_UDP_ENCAP_VALID_PORT_MAX (0xFFFF)
#define IB_GRH_FLOWLABEL_MASK (0x000FFFFF)

/* The UDP source port of a flow label: its upper 6 bits folded into the lower 14 (annex A17). */
static inline uint16_t ibv_flow_label_to_udp_sport(uint32_t fl)
{
    uint32_t folded = (fl & 0x3fff) ^ ((fl & IB_GRH_FLOWLABEL_MASK) >> 14);

    return (uint16_t)(IB_ROCE_UDP_ENCAP_VALID_PORT_MIN | folded);
}

#ifdef __cplusplus
}
#endif

#endif
