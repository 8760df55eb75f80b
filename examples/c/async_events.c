/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Asynchronous events: a thread takes them, and two queue pairs raise them. */
#include "common.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Takes events until both expected ones have arrived. */
static void *event_loop(void *arg)
{
    struct ibv_context *context = arg;
    int established = 0, drained = 0;

    while (!established || !drained) {
        struct ibv_async_event event;

        if (ibv_get_async_event(context, &event))
            die("ibv_get_async_event");
        printf("%s\n", ibv_event_type_str(event.event_type));
        established |= event.event_type == IBV_EVENT_COMM_EST;
        drained |= event.event_type == IBV_EVENT_SQ_DRAINED;
        /* ibv_destroy_qp blocks until the events of the queue pair are acknowledged. */
        ibv_ack_async_event(&event);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    struct ibv_context *context = open_device(&options);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
    struct ibv_qp *qp[2];
    struct end end[2];
    struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send;
    struct ibv_recv_wr receive = { .wr_id = 1 }, *bad_receive;
    struct ibv_qp_attr drain = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
    pthread_t thread;
    int i;

    if (!pd || !cq || pthread_create(&thread, NULL, event_loop, context))
        die("pthread_create");
    for (i = 0; i < 2; i++) {
        qp[i] = ibv_create_qp(pd, &init);
        if (!qp[i])
            die("ibv_create_qp");
        end[i] = (struct end){ .qpn = qp[i]->qp_num, .gid = local_gid(context, &options) };
        to_init(qp[i], 0);
    }
    for (i = 0; i < 2; i++)
        to_rtr(qp[i], IBV_QPT_RC, &end[1 - i], options.gid_index);
    /* The second queue pair stays in RTR, where the first packet raises IBV_EVENT_COMM_EST. */
    to_rts(qp[0], IBV_QPT_RC, &end[0]);
    if (ibv_post_recv(qp[1], &receive, &bad_receive) || ibv_post_send(qp[0], &send, &bad_send))
        die("ibv_post_send");
    completion(cq);
    completion(cq);
    /* SQD raises IBV_EVENT_SQ_DRAINED when no work request is in progress. */
    if (ibv_modify_qp(qp[0], &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY))
        die("ibv_modify_qp to SQD");
    pthread_join(thread, NULL);

    for (i = 0; i < 2; i++)
        if (ibv_destroy_qp(qp[i]))
            die("ibv_destroy_qp");
    if (ibv_destroy_cq(cq) || ibv_dealloc_pd(pd))
        die("ibv_destroy_cq");
    ibv_close_device(context);
    return 0;
}
