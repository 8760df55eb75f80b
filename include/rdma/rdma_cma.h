/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Connections by IP address and port, source and binary compatible with rdma-core's header of the
 * same name.
 *
 * Errors, unless a comment says otherwise: a function that returns int returns 0, or -1 and sets
 * errno; one that returns a pointer returns NULL and sets errno. An identifier without an event
 * channel is synchronous: each call waits for the event that reports its outcome.
 */
#ifndef RDMA_CMA_H
#define RDMA_CMA_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <infiniband/verbs.h>
#include <infiniband/sa.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Events -------------------------------------------------------------------------------- */

/* After RDMA_CM_EVENT_DEVICE_REMOVAL the identifier and its device's objects must be destroyed. */
enum rdma_cm_event_type {
    RDMA_CM_EVENT_ADDR_RESOLVED,
    RDMA_CM_EVENT_ADDR_ERROR,
    RDMA_CM_EVENT_ROUTE_RESOLVED,
    RDMA_CM_EVENT_ROUTE_ERROR,
    RDMA_CM_EVENT_CONNECT_REQUEST,
    RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_CONNECT_ERROR,
    RDMA_CM_EVENT_UNREACHABLE,
    RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_ESTABLISHED,
    RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_DEVICE_REMOVAL,
    RDMA_CM_EVENT_MULTICAST_JOIN,
    RDMA_CM_EVENT_MULTICAST_ERROR,
    RDMA_CM_EVENT_ADDR_CHANGE,
    RDMA_CM_EVENT_TIMEWAIT_EXIT,
    RDMA_CM_EVENT_ADDRINFO_RESOLVED,
    RDMA_CM_EVENT_ADDRINFO_ERROR,
    RDMA_CM_EVENT_USER,
    RDMA_CM_EVENT_INTERNAL,
};

/* A queue of events. fd may be polled; with O_NONBLOCK reads of events do not block. */
struct rdma_event_channel {
    int fd;
};

/* The parameters of one side of a connection. */
struct rdma_conn_param {
    const void *private_data;
    uint8_t private_data_len;
    /* The maximum number of outstanding READs and atomics: inbound, and outbound. */
    uint8_t responder_resources;
    uint8_t initiator_depth;
    uint8_t flow_control;
    /* Ignored by rdma_accept(). */
    uint8_t retry_count;
    uint8_t rnr_retry_count;
    /* Ignored if the identifier has a queue pair. */
    uint8_t srq;
    uint32_t qp_num;
};

/* In responder_resources and initiator_depth: the device's maximum. */
enum {
    RDMA_MAX_RESP_RES = 0xFF,
    RDMA_MAX_INIT_DEPTH = 0xFF
};

/* The address of a datagram service or a multicast group. */
struct rdma_ud_param {
    const void *private_data;
    uint8_t private_data_len;
    struct ibv_ah_attr ah_attr;
    uint32_t qp_num;
    uint32_t qkey;
};

/*
 * An event. status is 0, or a negative errno. For RDMA_CM_EVENT_REJECTED, and for a datagram
 * service's RDMA_CM_EVENT_UNREACHABLE, it is the reason that the peer gave.
 */
struct rdma_cm_event {
    struct rdma_cm_id *id;
    /* For a connection request: the listener; id is a new identifier. */
    struct rdma_cm_id *listen_id;
    enum rdma_cm_event_type event;
    int status;
    union {
        struct rdma_conn_param conn;
        struct rdma_ud_param ud;
        uint64_t arg;
    } param;
};

/* ---- Identifiers --------------------------------------------------------------------------- */

/* Ports of different port spaces are independent. */
enum rdma_port_space {
    RDMA_PS_IPOIB = 0x0002,
    RDMA_PS_TCP = 0x0106,
    RDMA_PS_UDP = 0x0111,
    RDMA_PS_IB = 0x013F,
};

/* The encoding of port space and port in a service id. */
#define RDMA_IB_IP_PS_MASK 0xFFFFFFFFFFFF0000ULL
#define RDMA_IB_IP_PORT_MASK 0x000000000000FFFFULL
#define RDMA_IB_IP_PS_TCP 0x0000000001060000ULL
#define RDMA_IB_IP_PS_UDP 0x0000000001110000ULL
#define RDMA_IB_PS_IB 0x00000000013F0000ULL

/* The Q_Key of datagram queue pairs and multicast groups in RDMA_PS_UDP. */
#define RDMA_UDP_QKEY 0x01234567

struct rdma_ib_addr {
    union ibv_gid sgid;
    union ibv_gid dgid;
    __be16 pkey;
};

struct rdma_addr {
    union {
        struct sockaddr src_addr;
        struct sockaddr_in src_sin;
        struct sockaddr_in6 src_sin6;
        struct sockaddr_storage src_storage;
    };
    union {
        struct sockaddr dst_addr;
        struct sockaddr_in dst_sin;
        struct sockaddr_in6 dst_sin6;
        struct sockaddr_storage dst_storage;
    };
    union {
        struct rdma_ib_addr ibaddr;
    } addr;
};

struct rdma_route {
    struct rdma_addr addr;
    struct ibv_sa_path_rec *path_rec;
    int num_paths;
};

/* One end of a connection, a listener, or a datagram endpoint: like a socket. */
struct rdma_cm_id {
    /* The device, once an address is bound to one. */
    struct ibv_context *verbs;
    struct rdma_event_channel *channel;
    /* For the program's use. */
    void *context;
    struct ibv_qp *qp;
    struct rdma_route route;
    enum rdma_port_space ps;
    uint8_t port_num;
    /* The event that completed the last synchronous call. */
    struct rdma_cm_event *event;
    struct ibv_comp_channel *send_cq_channel;
    struct ibv_cq *send_cq;
    struct ibv_comp_channel *recv_cq_channel;
    struct ibv_cq *recv_cq;
    struct ibv_srq *srq;
    struct ibv_pd *pd;
    enum ibv_qp_type qp_type;
};

/* Flags of struct rdma_addrinfo. */
#define RAI_PASSIVE 0x00000001
#define RAI_NUMERICHOST 0x00000002
#define RAI_NOROUTE 0x00000004
#define RAI_FAMILY 0x00000008
#define RAI_SA 0x00000010
#define RAI_DNS 0x00000020

struct rdma_addrinfo {
    int ai_flags;
    int ai_family;
    int ai_qp_type;
    int ai_port_space;
    socklen_t ai_src_len;
    socklen_t ai_dst_len;
    struct sockaddr *ai_src_addr;
    struct sockaddr *ai_dst_addr;
    char *ai_src_canonname;
    char *ai_dst_canonname;
    size_t ai_route_len;
    void *ai_route;
    size_t ai_connect_len;
    void *ai_connect;
    struct rdma_addrinfo *ai_next;
};

/* Bits of comp_mask in struct rdma_cm_join_mc_attr_ex. */
enum rdma_cm_join_mc_attr_mask {
    RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
    RDMA_CM_JOIN_MC_ATTR_RESERVED = 1 << 2,
};

enum rdma_cm_mc_join_flags {
    RDMA_MC_JOIN_FLAG_FULLMEMBER,
    /* Sends to the group, and does not receive from it. */
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
    RDMA_MC_JOIN_FLAG_RESERVED,
};

struct rdma_cm_join_mc_attr_ex {
    uint32_t comp_mask;
    uint32_t join_flags;
    struct sockaddr *addr;
};

/* ---- Event channels ------------------------------------------------------------------------ */

struct rdma_event_channel *rdma_create_event_channel(void);
/* All its identifiers must have been destroyed, and all its events acknowledged. */
void rdma_destroy_event_channel(struct rdma_event_channel *channel);

/* Returns the next event. Blocks unless the channel's descriptor has O_NONBLOCK. */
int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
/* Every event must be acknowledged; rdma_destroy_id() blocks until then. */
int rdma_ack_cm_event(struct rdma_cm_event *event);
/* "RDMA_CM_EVENT_..." */
const char *rdma_event_str(enum rdma_cm_event_type event);
/* Adds an RDMA_CM_EVENT_USER event to the identifier's channel; others are refused. */
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
        uint64_t arg);

/* ---- Creation and destruction of identifiers ----------------------------------------------- */

/* With a NULL channel the identifier is synchronous. */
int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
        enum rdma_port_space ps);
/* Blocks until its events are acknowledged. Its queue pair must have been destroyed. */
int rdma_destroy_id(struct rdma_cm_id *id);
/* Moves its pending events, and all later ones, to another channel. */
int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel);

/*
 * Creates a synchronous identifier from a result of rdma_getaddrinfo(). A passive one is bound; an
 * active one has a route, and if qp_init_attr is not NULL, a queue pair.
 */
int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd,
        struct ibv_qp_init_attr *qp_init_attr);
/* Destroys an identifier, its queue pair and its shared receive queue. */
void rdma_destroy_ep(struct rdma_cm_id *id);

int rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen);

/* Levels of options. */
enum {
    RDMA_OPTION_ID = 0,
    RDMA_OPTION_IB = 1
};

/* Options of RDMA_OPTION_ID. */
enum {
    /* uint8_t: the IP type of service. */
    RDMA_OPTION_ID_TOS = 0,
    /* int: whether other identifiers may bind the same address and port. */
    RDMA_OPTION_ID_REUSEADDR = 1,
    /* int: whether the IPv6 wildcard covers IPv6 only. */
    RDMA_OPTION_ID_AFONLY = 2,
    /* uint8_t: the ACK timeout of the queue pair: 4.096 us x 2^n. */
    RDMA_OPTION_ID_ACK_TIMEOUT = 3
};

/* Options of RDMA_OPTION_IB. */
enum {
    /* struct ibv_path_data[]: the path, in place of rdma_resolve_route(). */
    RDMA_OPTION_IB_PATH = 1
};

/* ---- Addresses and routes ------------------------------------------------------------------ */

/* Binds to an address and port; port 0 selects a free one. */
int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr);
/* Finds the device for a destination. RDMA_CM_EVENT_ADDR_RESOLVED or _ADDR_ERROR follows. */
int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src_addr, struct sockaddr *dst_addr,
        int timeout_ms);
/* Finds the path to it. RDMA_CM_EVENT_ROUTE_RESOLVED or _ROUTE_ERROR follows. */
int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms);

/* In network byte order; 0 if there is none. */
__be16 rdma_get_src_port(struct rdma_cm_id *id);
__be16 rdma_get_dst_port(struct rdma_cm_id *id);

static inline struct sockaddr *rdma_get_local_addr(struct rdma_cm_id *id)
{
    return &id->route.addr.src_addr;
}

static inline struct sockaddr *rdma_get_peer_addr(struct rdma_cm_id *id)
{
    return &id->route.addr.dst_addr;
}

/* Returns the opened devices, terminated by NULL; num_devices may be NULL. */
struct ibv_context **rdma_get_devices(int *num_devices);
void rdma_free_devices(struct ibv_context **list);

/* Like getaddrinfo(). Returns 0, -1 with errno, or an error of getaddrinfo(). */
int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
        struct rdma_addrinfo **res);
void rdma_freeaddrinfo(struct rdma_addrinfo *res);
/* The asynchronous form. RDMA_CM_EVENT_ADDRINFO_RESOLVED or _ADDRINFO_ERROR follows. */
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
        const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);

/* ---- Queue pairs --------------------------------------------------------------------------- */

/*
 * Creates the identifier's queue pair in the INIT state, in which receives may be posted. A NULL pd
 * selects the device's default protection domain. NULL completion queues are created.
 */
int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd,
        struct ibv_qp_init_attr *qp_init_attr);
int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *qp_init_attr);
void rdma_destroy_qp(struct rdma_cm_id *id);
/* Returns the attributes for the transition of the program's own queue pair to qp_attr->qp_state. */
int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *qp_attr, int *qp_attr_mask);

/* ---- Connections --------------------------------------------------------------------------- */

/* Sends a REQ, or for a datagram service a SIDR_REQ. */
int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *conn_param);
/* Sends the RTU, if the identifier has no queue pair of its own. */
int rdma_establish(struct rdma_cm_id *id);
int rdma_listen(struct rdma_cm_id *id, int backlog);
/* Waits for the next request of a synchronous listener. */
int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id);
int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *conn_param);
int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len);
/* Rejects because of the peer's ECE options. */
int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len);
/* Reports IBV_EVENT_COMM_EST of the queue pair, which establishes the connection. */
int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event);
int rdma_disconnect(struct rdma_cm_id *id);

/* ECE options, if the identifier has no queue pair of its own. */
int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece);
int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece);

/* ---- Multicast ----------------------------------------------------------------------------- */

/* RDMA_CM_EVENT_MULTICAST_JOIN or _MULTICAST_ERROR follows, with context as private_data. */
int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context);
int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *mc_join_attr,
        void *context);
int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr);

#ifdef __cplusplus
}
#endif

#endif
