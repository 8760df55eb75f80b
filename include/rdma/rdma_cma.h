/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Connections by IP address and port, source and binary compatible with rdma-core's header of the
 * same name.
 *
 * Errors, unless a comment says otherwise: a function that returns int returns 0, or -1 and sets
 * errno; one that returns a pointer returns NULL and sets errno. An identifier without an event
 * channel is synchronous: each call then waits for the event that would tell its outcome.
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

/* After RDMA_CM_EVENT_DEVICE_REMOVAL the identifier and what was made on it must be destroyed. */
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

/* Where events arrive; fd may be polled, and does not block if it has O_NONBLOCK. */
struct rdma_event_channel {
    int fd;
};

/* What a side of a connection offers, asks for, or was told by the other. */
struct rdma_conn_param {
    const void *private_data;
    uint8_t private_data_len;
    /* READs and atomics at once: that are served, and that are sent. */
    uint8_t responder_resources;
    uint8_t initiator_depth;
    uint8_t flow_control;
    /* Means nothing to rdma_accept(). */
    uint8_t retry_count;
    uint8_t rnr_retry_count;
    /* These two count only where the identifier has no queue pair of its own. */
    uint8_t srq;
    uint32_t qp_num;
};

/* "As many as the device can" in responder_resources and initiator_depth. */
enum {
    RDMA_MAX_RESP_RES = 0xFF,
    RDMA_MAX_INIT_DEPTH = 0xFF
};

/* How to reach a datagram service or a multicast group. */
struct rdma_ud_param {
    const void *private_data;
    uint8_t private_data_len;
    struct ibv_ah_attr ah_attr;
    uint32_t qp_num;
    uint32_t qkey;
};

/*
 * An event. status is 0, or a negative errno, or for RDMA_CM_EVENT_REJECTED and a datagram
 * service's RDMA_CM_EVENT_UNREACHABLE the reason that the other side gave.
 */
struct rdma_cm_event {
    struct rdma_cm_id *id;
    /* For a connection request: who listened. The id is a new one then. */
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

/* Each port space has ports of its own. */
enum rdma_port_space {
    RDMA_PS_IPOIB = 0x0002,
    RDMA_PS_TCP = 0x0106,
    RDMA_PS_UDP = 0x0111,
    RDMA_PS_IB = 0x013F,
};

/* How port space and port stand in a service id. */
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

/* One end of a connection, a listener, or a user of datagrams: like a socket. */
struct rdma_cm_id {
    /* The device, once an address is bound to one. */
    struct ibv_context *verbs;
    struct rdma_event_channel *channel;
    /* The program's own. */
    void *context;
    struct ibv_qp *qp;
    struct rdma_route route;
    enum rdma_port_space ps;
    uint8_t port_num;
    /* What a synchronous call has waited for. */
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

/* Which members of struct rdma_cm_join_mc_attr_ex are set. */
enum rdma_cm_join_mc_attr_mask {
    RDMA_CM_JOIN_MC_ATTR_ADDRESS = 1 << 0,
    RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS = 1 << 1,
    RDMA_CM_JOIN_MC_ATTR_RESERVED = 1 << 2,
};

enum rdma_cm_mc_join_flags {
    RDMA_MC_JOIN_FLAG_FULLMEMBER,
    /* Does not receive what others send to the group. */
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
/* Its identifiers must be destroyed, and its events acknowledged, before. */
void rdma_destroy_event_channel(struct rdma_event_channel *channel);

/* Takes the next event; waits for one unless the channel's descriptor has O_NONBLOCK. */
int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event);
/* Each event that was taken must be given back: rdma_destroy_id() waits for that. */
int rdma_ack_cm_event(struct rdma_cm_event *event);
/* "RDMA_CM_EVENT_..." */
const char *rdma_event_str(enum rdma_cm_event_type event);
/* Puts an event into the identifier's channel; only RDMA_CM_EVENT_USER may be put there. */
int rdma_write_cm_event(struct rdma_cm_id *id, enum rdma_cm_event_type event, int status,
        uint64_t arg);

/* ---- Making and ending identifiers --------------------------------------------------------- */

/* Without a channel the identifier is synchronous. */
int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
        enum rdma_port_space ps);
/* Waits until the program has acknowledged its events. Its queue pair must be destroyed before. */
int rdma_destroy_id(struct rdma_cm_id *id);
/* Later events, and those that wait, arrive at another channel. */
int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel);

/*
 * A synchronous identifier for what rdma_getaddrinfo() found: a passive one is bound, an active one
 * has its route, and with attributes a queue pair too.
 */
int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd,
        struct ibv_qp_init_attr *qp_init_attr);
/* Ends it with its queue pair and its shared receive queue. */
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
    /* int: whether others may bind the same address and port. */
    RDMA_OPTION_ID_REUSEADDR = 1,
    /* int: whether an IPv6 wildcard leaves IPv4 alone. */
    RDMA_OPTION_ID_AFONLY = 2,
    /* uint8_t: the queue pair's timeout. */
    RDMA_OPTION_ID_ACK_TIMEOUT = 3
};

/* Options of RDMA_OPTION_IB. */
enum {
    /* struct ibv_path_data[]: the path, in place of rdma_resolve_route(). */
    RDMA_OPTION_IB_PATH = 1
};

/* ---- Addresses and routes ------------------------------------------------------------------ */

/* Binds to an address and port; port 0 is one that is free. */
int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr);
/* Finds the device for a destination; ends in RDMA_CM_EVENT_ADDR_RESOLVED or _ADDR_ERROR. */
int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src_addr, struct sockaddr *dst_addr,
        int timeout_ms);
/* Finds the path to it; ends in RDMA_CM_EVENT_ROUTE_RESOLVED or _ROUTE_ERROR. */
int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms);

/* In network byte order; 0 when there is none. */
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

/* The devices, opened, and ended by NULL; num_devices may be NULL. */
struct ibv_context **rdma_get_devices(int *num_devices);
void rdma_free_devices(struct ibv_context **list);

/* As getaddrinfo(). Returns 0, -1 with errno, or an error of getaddrinfo(). */
int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
        struct rdma_addrinfo **res);
void rdma_freeaddrinfo(struct rdma_addrinfo *res);
/* The same, told by RDMA_CM_EVENT_ADDRINFO_RESOLVED or _ADDRINFO_ERROR and then fetched. */
int rdma_resolve_addrinfo(struct rdma_cm_id *id, const char *node, const char *service,
        const struct rdma_addrinfo *hints);
int rdma_query_addrinfo(struct rdma_cm_id *id, struct rdma_addrinfo **info);

/* ---- Queue pairs --------------------------------------------------------------------------- */

/*
 * Makes the identifier's queue pair, ready for receives to be posted. Without a protection domain it
 * is in one that the device's identifiers share; without completion queues it gets its own.
 */
int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd,
        struct ibv_qp_init_attr *qp_init_attr);
int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *qp_init_attr);
void rdma_destroy_qp(struct rdma_cm_id *id);
/* The attributes with which a queue pair goes to qp_attr->qp_state, for programs that make theirs. */
int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *qp_attr, int *qp_attr_mask);

/* ---- Connections --------------------------------------------------------------------------- */

/* Connects, or asks where a datagram service is. */
int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *conn_param);
/* Ends a connection's making, where the program has a queue pair of its own. */
int rdma_establish(struct rdma_cm_id *id);
int rdma_listen(struct rdma_cm_id *id, int backlog);
/* The next request of a synchronous listener. */
int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id);
int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *conn_param);
int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len);
/* Rejects because of the vendor's options. */
int rdma_reject_ece(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len);
/* Tells of IBV_EVENT_COMM_EST on the queue pair: the connection is there. */
int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event);
int rdma_disconnect(struct rdma_cm_id *id);

/* Vendors' options, for programs that have queue pairs of their own. */
int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece);
int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece);

/* ---- Multicast ----------------------------------------------------------------------------- */

/* Ends in RDMA_CM_EVENT_MULTICAST_JOIN or _MULTICAST_ERROR, with context as private_data. */
int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context);
int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *mc_join_attr,
        void *context);
int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr);

#ifdef __cplusplus
}
#endif

#endif
