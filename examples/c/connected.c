/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A connection that executes each operation once: first the ones that consume a receive at the
 * peer, then the others. -u selects UC, which has no READ and no atomics.
 *
 * Run it without an address on one host, and with the first host's address on another. */
#include "common.h"

#include <endian.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 64
#define ACCESS                                                                                     \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |                   \
     IBV_ACCESS_REMOTE_ATOMIC)

/* The first half of the buffer is the peer's target, the second half is the source. */
static union {
    char bytes[2 * SIZE];
    uint64_t number;
} buffer __attribute__((aligned(8)));

struct connection {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct end peer;
};

static void post_receive(const struct connection *connection)
{
    struct ibv_sge sge = {
        .addr = (uintptr_t)buffer.bytes,
        .length = SIZE,
        .lkey = connection->mr->lkey,
    };
    struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

    if (ibv_post_recv(connection->qp, &wr, &bad))
        die("ibv_post_recv");
}

/* Executes one operation from or to the second half of the buffer. */
static void operate(const struct connection *connection, enum ibv_wr_opcode opcode, uint32_t length)
{
    struct ibv_sge sge = {
        .addr = (uintptr_t)buffer.bytes + SIZE,
        .length = length,
        .lkey = connection->mr->lkey,
    };
    struct ibv_send_wr wr = {
        .wr_id = 2,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED,
        .imm_data = htobe32(4711),
    }, *bad;

    if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = connection->peer.addr;
        wr.wr.atomic.rkey = connection->peer.rkey;
        wr.wr.atomic.compare_add = opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? 40 : 2;
        wr.wr.atomic.swap = 100;
    } else {
        wr.wr.rdma.remote_addr = connection->peer.addr;
        wr.wr.rdma.rkey = connection->peer.rkey;
    }
    if (ibv_post_send(connection->qp, &wr, &bad))
        die("ibv_post_send");
    completion(connection->cq);
}

static void expect(int holds, const char *what)
{
    printf("%s: %s\n", what, holds ? "ok" : "WRONG");
    if (!holds)
        exit(1);
}

static void client(const struct connection *connection, int sock, int reliable)
{
    char *own = buffer.bytes + SIZE;
    uint64_t was;

    strcpy(own, "send");
    operate(connection, IBV_WR_SEND, SIZE);
    wait_for_peer(sock);
    strcpy(own, "send with immediate");
    operate(connection, IBV_WR_SEND_WITH_IMM, SIZE);
    wait_for_peer(sock);
    strcpy(own, "write with immediate");
    operate(connection, IBV_WR_RDMA_WRITE_WITH_IMM, SIZE);
    wait_for_peer(sock);
    strcpy(own, "write");
    operate(connection, IBV_WR_RDMA_WRITE, SIZE);
    wait_for_peer(sock);
    if (!reliable)
        return;

    wait_for_peer(sock);
    memset(own, 0, SIZE);
    operate(connection, IBV_WR_RDMA_READ, SIZE);
    memcpy(&was, own, 8);
    expect(was == 40, "read");
    operate(connection, IBV_WR_ATOMIC_CMP_AND_SWP, 8);
    memcpy(&was, own, 8);
    expect(was == 40, "compare and swap");
    operate(connection, IBV_WR_ATOMIC_FETCH_AND_ADD, 8);
    memcpy(&was, own, 8);
    expect(was == 100, "fetch and add");
    wait_for_peer(sock);
}

static void server(const struct connection *connection, int sock, int reliable)
{
    struct ibv_wc wc = completion(connection->cq);

    expect(wc.opcode == IBV_WC_RECV && wc.byte_len == SIZE && !strcmp(buffer.bytes, "send"), "send");
    post_receive(connection);
    wait_for_peer(sock);
    wc = completion(connection->cq);
    expect(wc.wc_flags & IBV_WC_WITH_IMM && be32toh(wc.imm_data) == 4711 &&
               !strcmp(buffer.bytes, "send with immediate"),
           "send with immediate");
    post_receive(connection);
    wait_for_peer(sock);
    wc = completion(connection->cq);
    expect(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && be32toh(wc.imm_data) == 4711 &&
               !strcmp(buffer.bytes, "write with immediate"),
           "write with immediate");
    wait_for_peer(sock);
    /* A WRITE makes no completion here, so poll the memory. A SEND after it would notify. */
    do {
        atomic_thread_fence(memory_order_seq_cst);
    } while (strcmp(buffer.bytes, "write"));
    expect(1, "write");
    wait_for_peer(sock);
    if (!reliable)
        return;

    buffer.number = 40;
    wait_for_peer(sock);
    wait_for_peer(sock);
    expect(buffer.number == 102, "result of the peer's atomics");
}

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    enum ibv_qp_type type = options.unconnected ? IBV_QPT_UC : IBV_QPT_RC;
    struct ibv_context *context = open_device(&options);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct connection connection;
    struct ibv_qp_init_attr init = {
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
        .qp_type = type,
    };
    struct end mine;
    int sock;

    if (!pd)
        die("ibv_alloc_pd");
    connection.mr = ibv_reg_mr(pd, &buffer, sizeof(buffer), ACCESS);
    connection.cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    if (!connection.mr || !connection.cq)
        die("ibv_create_cq");
    init.send_cq = init.recv_cq = connection.cq;
    connection.qp = ibv_create_qp(pd, &init);
    if (!connection.qp)
        die("ibv_create_qp");

    mine = (struct end){
        .qpn = connection.qp->qp_num,
        .psn = 0x123456,
        .rkey = connection.mr->rkey,
        .addr = (uintptr_t)&buffer,
        .gid = local_gid(context, &options),
    };
    sock = connect_tcp(&options);
    connection.peer = exchange(sock, &mine);
    /* UC permits only remote WRITE. */
    to_init(connection.qp, type == IBV_QPT_RC ? ACCESS : IBV_ACCESS_REMOTE_WRITE);
    post_receive(&connection);
    to_rtr(connection.qp, type, &connection.peer, options.gid_index);
    to_rts(connection.qp, type, &mine);
    /* A message that arrives before the peer is in RTR is dropped. */
    wait_for_peer(sock);

    (options.server ? client : server)(&connection, sock, type == IBV_QPT_RC);

    if (ibv_destroy_qp(connection.qp) || ibv_destroy_cq(connection.cq) ||
        ibv_dereg_mr(connection.mr) || ibv_dealloc_pd(pd))
        die("ibv_destroy_qp");
    ibv_close_device(context);
    return 0;
}
