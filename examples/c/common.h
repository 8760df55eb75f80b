/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the examples share: options, a TCP connection on which two programs meet, and the states of a
 * connected queue pair. Every error ends the program with a message: these are examples. */
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H

#include <infiniband/verbs.h>

/* The one port that devices of RoCE mostly have. */
#define PORT 1
#define MTU IBV_MTU_1024

struct options {
    const char *device; /* NULL: the first */
    int gid_index;
    int tcp_port;
    const char *server; /* NULL: be the server */
    int unconnected;    /* -u: UC in place of RC, where the example has both */
};

/* What one end has to know of the other. */
struct end {
    uint32_t qpn;
    uint32_t psn;
    uint32_t rkey;
    uint64_t addr;
    union ibv_gid gid;
};

/* Takes the options -d DEVICE, -g GID_INDEX, -p TCP_PORT and -u, and the server's address. */
struct options parse(int argc, char **argv);

/* Ends the program: says what failed, and errno. */
void die(const char *what) __attribute__((noreturn));

/* Opens the device of the options. */
struct ibv_context *open_device(const struct options *options);

/* The GID of the options. */
union ibv_gid local_gid(struct ibv_context *context, const struct options *options);

/* Connects to the server's TCP port, or waits for the client. Returns the socket. */
int meet(const struct options *options);

/* Tells the peer what it has to know of this end, and hears the same of it. */
struct end exchange(int sock, const struct end *mine);

/* Returns when the peer has come to the same place. */
void wait_for_peer(int sock);

/* Takes a queue pair of a connected service from RESET to INIT. */
void to_init(struct ibv_qp *qp, int access);

/* And on to RTR and RTS, connected with the peer. */
void to_rtr(struct ibv_qp *qp, enum ibv_qp_type type, const struct end *theirs,
            int gid_index);
void to_rts(struct ibv_qp *qp, enum ibv_qp_type type, const struct end *mine);

/* Polls until there is a completion, which must be a success. */
struct ibv_wc completion(struct ibv_cq *cq);

#endif
