/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Shared by the examples: options, a TCP connection for the exchange of addresses, and the state
 * transitions of a connected queue pair. Every error ends the program with a message. */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <infiniband/verbs.h>

/* RoCE devices usually have one port. */
#define PORT 1
#define MTU IBV_MTU_1024

struct options {
    const char *device; /* NULL: the first device */
    int gid_index;
    int tcp_port;
    const char *server; /* NULL: act as the server */
    int unconnected;    /* -u: UC instead of RC, where the example supports both */
};

/* The values that the peer needs to connect to this end. */
struct end {
    uint32_t qpn;
    uint32_t psn;
    uint32_t rkey;
    uint64_t addr;
    union ibv_gid gid;
};

/* Parses the options -d DEVICE, -g GID_INDEX, -p TCP_PORT and -u, and the server's address. */
struct options parse(int argc, char **argv);

/* Prints what failed and errno, and exits. */
void die(const char *what) __attribute__((noreturn));

/* Opens the selected device. */
struct ibv_context *open_device(const struct options *options);

/* Returns the selected GID. */
union ibv_gid local_gid(struct ibv_context *context, const struct options *options);

/* Connects to the server's TCP port, or waits for the client. Returns the socket. */
int connect_tcp(const struct options *options);

/* Exchanges the values of both ends over TCP. */
struct end exchange(int sock, const struct end *mine);

/* Waits until the peer has reached the same call. */
void wait_for_peer(int sock);

/* Moves a queue pair of a connected service from RESET to INIT. */
void to_init(struct ibv_qp *qp, int access);

/* Moves it on to RTR and RTS, connected to the peer. */
void to_rtr(struct ibv_qp *qp, enum ibv_qp_type type, const struct end *theirs,
            int gid_index);
void to_rts(struct ibv_qp *qp, enum ibv_qp_type type, const struct end *mine);

/* Polls until a work request completes. Exits if it failed. */
struct ibv_wc completion(struct ibv_cq *cq);

#endif
