/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Datagrams: the client sends one to the server, which replies to its sender.
 *
 * Run it without an address on one host, and with the first host's address on another. */
#include "common.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define QKEY 0x11111111
#define SIZE 64
/* A received datagram is preceded by a header with the addresses. */
#define GRH 40

static char buffer[GRH + SIZE];

static void to_rts_ud(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = QKEY };

    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
        die("ibv_modify_qp to INIT");
    attr.qp_state = IBV_QPS_RTR;
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
        die("ibv_modify_qp to RTR");
    attr.qp_state = IBV_QPS_RTS;
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN))
        die("ibv_modify_qp to RTS");
}

static void post_receive(struct ibv_qp *qp, struct ibv_mr *mr)
{
    struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = sizeof(buffer), .lkey = mr->lkey };
    struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

    if (ibv_post_recv(qp, &wr, &bad))
        die("ibv_post_recv");
}

static void send_to(struct ibv_qp *qp, struct ibv_cq *cq, struct ibv_ah *ah, uint32_t qpn,
                    const char *text)
{
    struct ibv_sge sge = { .addr = (uintptr_t)text, .length = SIZE };
    struct ibv_send_wr wr = {
        .opcode = IBV_WR_SEND,
        .sg_list = &sge,
        .num_sge = 1,
        /* Inline data is copied when it is posted, and needs no memory region. */
        .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
        .wr = { .ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY } },
    }, *bad;

    if (!ah)
        die("ibv_create_ah");
    if (ibv_post_send(qp, &wr, &bad))
        die("ibv_post_send");
    completion(cq);
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    struct ibv_context *context = open_device(&options);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *sent = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_cq *received = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
    struct ibv_qp_init_attr init = {
        .send_cq = sent,
        .recv_cq = received,
        .cap = {
            .max_send_wr = 4,
            .max_recv_wr = 4,
            .max_send_sge = 1,
            .max_recv_sge = 1,
            .max_inline_data = SIZE,
        },
        .qp_type = IBV_QPT_UD,
    };
    struct ibv_qp *qp;
    struct ibv_ah *ah;
    struct ibv_wc wc;
    struct end mine, theirs;
    char request[SIZE] = "Who is there?", reply[SIZE] = "A datagram.";
    int sock;

    if (!sent || !received || !mr)
        die("ibv_reg_mr");
    qp = ibv_create_qp(pd, &init);
    if (!qp)
        die("ibv_create_qp");
    to_rts_ud(qp);
    post_receive(qp, mr);

    sock = connect_tcp(&options);
    mine = (struct end){ .qpn = qp->qp_num, .gid = local_gid(context, &options) };
    theirs = exchange(sock, &mine);
    if (options.server) {
        struct ibv_ah_attr attr = {
            .port_num = PORT,
            .is_global = 1,
            .grh = { .dgid = theirs.gid, .sgid_index = options.gid_index, .hop_limit = 64 },
        };

        ah = ibv_create_ah(pd, &attr);
        send_to(qp, sent, ah, theirs.qpn, request);
        wc = completion(received);
    } else {
        wc = completion(received);
        /* The header holds the address of the sender. */
        ah = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)buffer, PORT);
        send_to(qp, sent, ah, wc.src_qp, reply);
    }
    printf("from queue pair %#x, %u bytes: %s\n", wc.src_qp, wc.byte_len - GRH, buffer + GRH);
    if (wc.src_qp != theirs.qpn || !(wc.wc_flags & IBV_WC_GRH) ||
        strcmp(buffer + GRH, options.server ? reply : request)) {
        errno = EPROTO;
        die("unexpected datagram");
    }
    wait_for_peer(sock);

    if (ibv_destroy_ah(ah) || ibv_destroy_qp(qp) || ibv_destroy_cq(sent) ||
        ibv_destroy_cq(received) || ibv_dereg_mr(mr) || ibv_dealloc_pd(pd))
        die("ibv_destroy_qp");
    ibv_close_device(context);
    return 0;
}
