/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Addresses: the global route header, static rates and address handles. */
#ifndef URXE_VERBS_ADDRESS_H
#define URXE_VERBS_ADDRESS_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <linux/types.h>

#include <infiniband/verbs_api.h>
#include <infiniband/verbs/device.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_context;
struct ibv_pd;

/* The GRH part of an address. */
struct ibv_global_route {
    union ibv_gid dgid;
    uint32_t flow_label;
    uint8_t sgid_index;
    uint8_t hop_limit;
    uint8_t traffic_class;
};

/*
 * The 40 bytes in front of a datagram's payload; for RoCEv2 over IPv4 the last 20 of them are the
 * IP header.
 */
struct ibv_grh {
    __be32 version_tclass_flow;
    __be16 paylen;
    uint8_t next_hdr;
    uint8_t hop_limit;
    union ibv_gid sgid;
    union ibv_gid dgid;
};

/* Static rates; the codes are the specification's, not in order. */
enum ibv_rate {
    IBV_RATE_MAX = 0,
    IBV_RATE_2_5_GBPS = 2,
    IBV_RATE_5_GBPS = 5,
    IBV_RATE_10_GBPS = 3,
    IBV_RATE_20_GBPS = 6,
    IBV_RATE_30_GBPS = 4,
    IBV_RATE_40_GBPS = 7,
    IBV_RATE_60_GBPS = 8,
    IBV_RATE_80_GBPS = 9,
    IBV_RATE_120_GBPS = 10,
    IBV_RATE_14_GBPS = 11,
    IBV_RATE_56_GBPS = 12,
    IBV_RATE_112_GBPS = 13,
    IBV_RATE_168_GBPS = 14,
    IBV_RATE_25_GBPS = 15,
    IBV_RATE_100_GBPS = 16,
    IBV_RATE_200_GBPS = 17,
    IBV_RATE_300_GBPS = 18,
    IBV_RATE_28_GBPS = 19,
    IBV_RATE_50_GBPS = 20,
    IBV_RATE_400_GBPS = 21,
    IBV_RATE_600_GBPS = 22,
    IBV_RATE_800_GBPS = 23,
    IBV_RATE_1200_GBPS = 24,
};

/* An address vector. */
struct ibv_ah_attr {
    struct ibv_global_route grh;
    uint16_t dlid;
    uint8_t sl;
    uint8_t src_path_bits;
    uint8_t static_rate;
    uint8_t is_global;
    uint8_t port_num;
};

/* An address handle. */
struct ibv_ah {
    struct ibv_context *context;
    struct ibv_pd *pd;
    uint32_t handle;
};

#ifdef __cplusplus
}
#endif

#endif
