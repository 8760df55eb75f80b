/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two completion queues: one to poll, and one whose channel delivers notifications. */
#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    struct ibv_context *context = open_device(&options);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *polled = ibv_create_cq(context, 10, NULL, NULL, 0);
    struct ibv_cq *notified = ibv_create_cq(context, 100, &options, channel, 0);
    struct ibv_cq *cq;
    struct ibv_wc wc;
    void *cq_context;

    if (!channel || !polled || !notified)
        die("ibv_create_cq");
    printf("without a channel: %d entries\nwith a channel: %d entries\n", polled->cqe,
           notified->cqe);
    if (ibv_poll_cq(polled, 1, &wc) != 0 || ibv_poll_cq(notified, 1, &wc) != 0)
        die("an unexpected completion");
    if (ibv_req_notify_cq(notified, 0))
        die("ibv_req_notify_cq");
    /* No event will arrive. A program that waits for one calls poll(2) on channel->fd. */
    fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    if (ibv_get_cq_event(channel, &cq, &cq_context) == 0 || errno != EAGAIN)
        die("an unexpected event");
    printf("armed, and no event\n");
    /* A channel cannot be destroyed while completion queues use it. */
    if (ibv_destroy_comp_channel(channel) != EBUSY)
        die("a channel in use was destroyed");
    if (ibv_destroy_cq(notified) || ibv_destroy_cq(polled) || ibv_destroy_comp_channel(channel))
        die("ibv_destroy_cq");
    ibv_close_device(context);
    return 0;
}
