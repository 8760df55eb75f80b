/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#define _GNU_SOURCE
#include "common.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct options parse(int argc, char **argv)
{
    struct options options = { .tcp_port = 18515 };
    int option;

    while ((option = getopt(argc, argv, "d:g:p:u")) != -1) {
        switch (option) {
        case 'd':
            options.device = optarg;
            break;
        case 'g':
            options.gid_index = atoi(optarg);
            break;
        case 'p':
            options.tcp_port = atoi(optarg);
            break;
        case 'u':
            options.unconnected = 1;
            break;
        default:
            fprintf(stderr, "usage: %s [-d DEVICE] [-g GID_INDEX] [-p TCP_PORT] [-u] [SERVER]\n",
                    argv[0]);
            exit(2);
        }
    }
    options.server = argv[optind];
    return options;
}

void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

/* Checks the result of a call that returns an errno. */
static void check(int error, const char *what)
{
    if (error) {
        errno = error;
        die(what);
    }
}

struct ibv_context *open_device(const struct options *options)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *context = NULL;
    int i;

    if (!list)
        die("ibv_get_device_list");
    for (i = 0; list[i]; i++)
        if (!options->device || !strcmp(options->device, ibv_get_device_name(list[i])))
            break;
    if (!list[i]) {
        errno = ENODEV;
        die(options->device ? options->device : "no device");
    }
    context = ibv_open_device(list[i]);
    if (!context)
        die("ibv_open_device");
    ibv_free_device_list(list);
    return context;
}

union ibv_gid local_gid(struct ibv_context *context, const struct options *options)
{
    union ibv_gid gid;

    if (ibv_query_gid(context, PORT, options->gid_index, &gid))
        die("ibv_query_gid");
    return gid;
}

int connect_tcp(const struct options *options)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
    struct addrinfo *address;
    char port[8];
    int sock, accepted, on = 1;

    snprintf(port, sizeof(port), "%d", options->tcp_port);
    if (!options->server)
        hints.ai_family = AF_INET;
    if (getaddrinfo(options->server, port, &hints, &address))
        die("getaddrinfo");
    sock = socket(address->ai_family, address->ai_socktype, address->ai_protocol);
    if (sock < 0)
        die("socket");
    if (options->server) {
        if (connect(sock, address->ai_addr, address->ai_addrlen))
            die("connect");
        freeaddrinfo(address);
        return sock;
    }
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(sock, address->ai_addr, address->ai_addrlen) || listen(sock, 1))
        die("listen");
    freeaddrinfo(address);
    accepted = accept(sock, NULL, NULL);
    if (accepted < 0)
        die("accept");
    close(sock);
    return accepted;
}

/* The values are exchanged as a line of text, which does not depend on the byte order. */
struct end exchange(int sock, const struct end *mine)
{
    struct end theirs;
    char line[128];
    uint64_t high, low;
    size_t got = 0;

    memcpy(&high, mine->gid.raw, 8);
    memcpy(&low, mine->gid.raw + 8, 8);
    memset(line, 0, sizeof(line));
    snprintf(line, sizeof(line), "%x %x %x %" PRIx64 " %" PRIx64 " %" PRIx64, mine->qpn, mine->psn,
             mine->rkey, mine->addr, be64toh(high), be64toh(low));
    if (write(sock, line, sizeof(line)) != sizeof(line))
        die("write");
    while (got < sizeof(line)) {
        ssize_t n = read(sock, line + got, sizeof(line) - got);
        if (n <= 0)
            die("the peer closed the connection");
        got += n;
    }
    line[sizeof(line) - 1] = 0;
    if (sscanf(line, "%x %x %x %" SCNx64 " %" SCNx64 " %" SCNx64, &theirs.qpn, &theirs.psn,
               &theirs.rkey, &theirs.addr, &high, &low) != 6) {
        errno = EPROTO;
        die("cannot parse the line of the peer");
    }
    high = htobe64(high);
    low = htobe64(low);
    memcpy(theirs.gid.raw, &high, 8);
    memcpy(theirs.gid.raw + 8, &low, 8);
    return theirs;
}

void wait_for_peer(int sock)
{
    char byte = 0;

    if (write(sock, &byte, 1) != 1 || read(sock, &byte, 1) != 1)
        die("the peer closed the connection");
}

void to_init(struct ibv_qp *qp, int access)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = PORT,
        .qp_access_flags = access,
    };

    check(ibv_modify_qp(qp, &attr,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
          "ibv_modify_qp to INIT");
}

void to_rtr(struct ibv_qp *qp, enum ibv_qp_type type, const struct end *theirs,
            int gid_index)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = MTU,
        .dest_qp_num = theirs->qpn,
        .rq_psn = theirs->psn,
        .ah_attr = {
            .port_num = PORT,
            .is_global = 1,
            .grh = { .dgid = theirs->gid, .sgid_index = gid_index, .hop_limit = 64 },
        },
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
    };
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

    if (type == IBV_QPT_RC)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    check(ibv_modify_qp(qp, &attr, mask), "ibv_modify_qp to RTR");
}

void to_rts(struct ibv_qp *qp, enum ibv_qp_type type, const struct end *mine)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = mine->psn,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = 1,
    };
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

    if (type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    check(ibv_modify_qp(qp, &attr, mask), "ibv_modify_qp to RTS");
}

struct ibv_wc completion(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int n;

    do {
        n = ibv_poll_cq(cq, 1, &wc);
    } while (n == 0);
    if (n < 0)
        die("ibv_poll_cq");
    if (wc.status != IBV_WC_SUCCESS) {
        fprintf(stderr, "work request %" PRIu64 ": %s\n", wc.wr_id, ibv_wc_status_str(wc.status));
        exit(1);
    }
    return wc;
}
