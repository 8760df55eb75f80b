/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Verbs on identifiers of the connection manager, source compatible with rdma-core's header of the
 * same name. Functions that return int return 0, or -1 and set errno.
 */
#ifndef RDMA_VERBS_H
#define RDMA_VERBS_H

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Converts a returned errno to errno and -1. */
static inline int rdma_seterrno(int ret)
{
    if (!ret)
        return 0;
    errno = ret;
    return -1;
}

/* ---- Shared receive queues ----------------------------------------------------------------- */

int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr);
void rdma_destroy_srq(struct rdma_cm_id *id);

/* ---- Memory -------------------------------------------------------------------------------- */

/* Regions for messages; for the peer's READs; for the peer's WRITEs. */
static inline struct ibv_mr *rdma_reg_msgs(struct rdma_cm_id *id, void *addr, size_t length)
{
    return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE);
}

static inline struct ibv_mr *rdma_reg_read(struct rdma_cm_id *id, void *addr, size_t length)
{
    return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
}

static inline struct ibv_mr *rdma_reg_write(struct rdma_cm_id *id, void *addr, size_t length)
{
    return ibv_reg_mr(id->pd, addr, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

static inline int rdma_dereg_mr(struct ibv_mr *mr)
{
    return rdma_seterrno(ibv_dereg_mr(mr));
}

/* ---- Work requests ------------------------------------------------------------------------- */

static inline struct ibv_sge urxe_element(void *addr, size_t length, struct ibv_mr *mr)
{
    struct ibv_sge sge;

    sge.addr = (uint64_t)(uintptr_t)addr;
    sge.length = (uint32_t)length;
    /* Inline data needs no region. */
    sge.lkey = mr ? mr->lkey : 0;
    return sge;
}

static inline struct ibv_send_wr urxe_send_request(enum ibv_wr_opcode opcode, void *context,
        struct ibv_sge *sgl, int nsge, int flags)
{
    struct ibv_send_wr wr;

    memset(&wr, 0, sizeof(wr));
    wr.wr_id = (uintptr_t)context;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    wr.opcode = opcode;
    wr.send_flags = (unsigned int)flags;
    return wr;
}

static inline int urxe_post(struct rdma_cm_id *id, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;

    return rdma_seterrno(ibv_post_send(id->qp, wr, &bad));
}

/* The functions with a v take a list of elements. Receives use the shared receive queue, if any. */
static inline int rdma_post_recvv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl,
        int nsge)
{
    struct ibv_recv_wr wr, *bad;

    wr.wr_id = (uintptr_t)context;
    wr.next = NULL;
    wr.sg_list = sgl;
    wr.num_sge = nsge;
    return rdma_seterrno(id->srq ? ibv_post_srq_recv(id->srq, &wr, &bad)
                                 : ibv_post_recv(id->qp, &wr, &bad));
}

static inline int rdma_post_sendv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl,
        int nsge, int flags)
{
    struct ibv_send_wr wr = urxe_send_request(IBV_WR_SEND, context, sgl, nsge, flags);

    return urxe_post(id, &wr);
}

static inline int rdma_post_readv(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl,
        int nsge, int flags, uint64_t remote_addr, uint32_t rkey)
{
    struct ibv_send_wr wr = urxe_send_request(IBV_WR_RDMA_READ, context, sgl, nsge, flags);

    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    return urxe_post(id, &wr);
}

static inline int rdma_post_writev(struct rdma_cm_id *id, void *context, struct ibv_sge *sgl,
        int nsge, int flags, uint64_t remote_addr, uint32_t rkey)
{
    struct ibv_send_wr wr = urxe_send_request(IBV_WR_RDMA_WRITE, context, sgl, nsge, flags);

    wr.wr.rdma.remote_addr = remote_addr;
    wr.wr.rdma.rkey = rkey;
    return urxe_post(id, &wr);
}

static inline int rdma_post_recv(struct rdma_cm_id *id, void *context, void *addr, size_t length,
        struct ibv_mr *mr)
{
    struct ibv_sge sge = urxe_element(addr, length, mr);

    assert((uint8_t *)addr >= (uint8_t *)mr->addr);
    assert((uint8_t *)addr + length <= (uint8_t *)mr->addr + mr->length);
    return rdma_post_recvv(id, context, &sge, 1);
}

static inline int rdma_post_send(struct rdma_cm_id *id, void *context, void *addr, size_t length,
        struct ibv_mr *mr, int flags)
{
    struct ibv_sge sge = urxe_element(addr, length, mr);

    return rdma_post_sendv(id, context, &sge, 1, flags);
}

static inline int rdma_post_read(struct rdma_cm_id *id, void *context, void *addr, size_t length,
        struct ibv_mr *mr, int flags, uint64_t remote_addr, uint32_t rkey)
{
    struct ibv_sge sge = urxe_element(addr, length, mr);

    return rdma_post_readv(id, context, &sge, 1, flags, remote_addr, rkey);
}

static inline int rdma_post_write(struct rdma_cm_id *id, void *context, void *addr, size_t length,
        struct ibv_mr *mr, int flags, uint64_t remote_addr, uint32_t rkey)
{
    struct ibv_sge sge = urxe_element(addr, length, mr);

    return rdma_post_writev(id, context, &sge, 1, flags, remote_addr, rkey);
}

static inline int rdma_post_ud_send(struct rdma_cm_id *id, void *context, void *addr,
        size_t length, struct ibv_mr *mr, int flags, struct ibv_ah *ah, uint32_t remote_qpn)
{
    struct ibv_sge sge = urxe_element(addr, length, mr);
    struct ibv_send_wr wr = urxe_send_request(IBV_WR_SEND, context, &sge, 1, flags);

    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = remote_qpn;
    wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
    return urxe_post(id, &wr);
}

/* ---- Completions --------------------------------------------------------------------------- */

/* Waits for a completion, and returns 1. */
static inline int urxe_wait(struct rdma_cm_id *id, struct ibv_cq *cq,
        struct ibv_comp_channel *channel, struct ibv_wc *wc)
{
    for (;;) {
        struct ibv_cq *event_cq;
        void *event_context;
        int ret = ibv_poll_cq(cq, 1, wc);

        if (!ret) {
            ret = ibv_req_notify_cq(cq, 0);
            if (ret)
                return rdma_seterrno(ret);
            /* A completion may have been added before the queue was armed. */
            ret = ibv_poll_cq(cq, 1, wc);
        }
        if (ret)
            return ret < 0 ? rdma_seterrno(ret) : ret;

        ret = ibv_get_cq_event(channel, &event_cq, &event_context);
        if (ret)
            return ret;
        assert(event_cq == cq && event_context == id);
        (void)id;
        ibv_ack_cq_events(cq, 1);
    }
}

static inline int rdma_get_send_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
{
    return urxe_wait(id, id->send_cq, id->send_cq_channel, wc);
}

static inline int rdma_get_recv_comp(struct rdma_cm_id *id, struct ibv_wc *wc)
{
    return urxe_wait(id, id->recv_cq, id->recv_cq_channel, wc);
}

#ifdef __cplusplus
}
#endif

#endif
