/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two connections that share a receive queue, and the event for a low number of receives. All four
 * ends are in this program. */
#include "common.h"

#include <stdio.h>
#include <string.h>

#define RECEIVES 8
#define LIMIT 4
#define SIZE 32

static char buffer[2][RECEIVES * SIZE];

static struct ibv_qp *create(struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .srq = srq,
        .cap = { .max_send_wr = RECEIVES, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);

    if (!qp)
        die("ibv_create_qp");
    to_init(qp, 0);
    return qp;
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    struct ibv_context *context = open_device(&options);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *sent = ibv_create_cq(context, 2 * RECEIVES, NULL, NULL, 0);
    struct ibv_cq *received = ibv_create_cq(context, 2 * RECEIVES, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
    struct ibv_srq_init_attr init = { .attr = { .max_wr = RECEIVES, .max_sge = 1 } };
    struct ibv_srq_attr limit = { .srq_limit = LIMIT };
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    struct ibv_qp *from[2], *to[2];
    struct ibv_async_event event;
    int i, by[2] = { 0, 0 };

    if (!sent || !received || !mr || !srq)
        die("ibv_create_srq");
    for (i = 0; i < 2; i++) {
        struct end a, b;

        from[i] = create(pd, sent, NULL);
        to[i] = create(pd, received, srq);
        a = (struct end){ .qpn = from[i]->qp_num, .gid = local_gid(context, &options) };
        b = (struct end){ .qpn = to[i]->qp_num, .gid = a.gid };
        to_rtr(from[i], IBV_QPT_RC, &b, options.gid_index);
        to_rtr(to[i], IBV_QPT_RC, &a, options.gid_index);
        to_rts(from[i], IBV_QPT_RC, &a);
    }
    for (i = 0; i < RECEIVES; i++) {
        struct ibv_sge sge = {
            .addr = (uintptr_t)(buffer[0] + i * SIZE),
            .length = SIZE,
            .lkey = mr->lkey,
        };
        struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

        if (ibv_post_srq_recv(srq, &wr, &bad))
            die("ibv_post_srq_recv");
    }
    if (ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT))
        die("ibv_modify_srq");

    /* The connections alternate. Each message consumes the oldest receive. */
    for (i = 0; i < RECEIVES; i++) {
        char *text = buffer[1] + i * SIZE;
        struct ibv_sge sge = { .addr = (uintptr_t)text, .length = SIZE, .lkey = mr->lkey };
        struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 }, *bad;
        struct ibv_wc wc;

        snprintf(text, SIZE, "message %d", i);
        if (ibv_post_send(from[i % 2], &wr, &bad))
            die("ibv_post_send");
        completion(sent);
        wc = completion(received);
        if (wc.qp_num != to[i % 2]->qp_num || strcmp(buffer[0] + wc.wr_id * SIZE, text))
            die("a completion of the wrong queue pair or receive");
        by[i % 2]++;
    }
    printf("%d messages over the first connection, %d over the second\n", by[0], by[1]);
    /* The events of the established connections come first. */
    do {
        if (ibv_get_async_event(context, &event))
            die("ibv_get_async_event");
        printf("%s\n", ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    } while (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED);

    for (i = 0; i < 2; i++)
        if (ibv_destroy_qp(from[i]) || ibv_destroy_qp(to[i]))
            die("ibv_destroy_qp");
    if (ibv_destroy_srq(srq) || ibv_destroy_cq(sent) || ibv_destroy_cq(received) ||
        ibv_dereg_mr(mr) || ibv_dealloc_pd(pd))
        die("ibv_destroy_srq");
    ibv_close_device(context);
    return 0;
}
