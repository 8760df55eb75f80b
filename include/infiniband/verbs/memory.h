/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Protection domains, memory regions, memory windows and the domains around them. */
#ifndef URXE_VERBS_MEMORY_H
#define URXE_VERBS_MEMORY_H

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
struct ibv_dm;
struct ibv_dmah;
struct ibv_mr;
struct ibv_pd;
struct ibv_td;

struct ibv_buf;

/* Returned by an allocator of a parent domain: the library allocates by itself. */
#define IBV_ALLOCATOR_USE_DEFAULT ((void *)-1)

/* Access flags of memory regions, memory windows and queue pairs. */
enum ibv_access_flags {
    IBV_ACCESS_LOCAL_WRITE = 1 << 0,
    IBV_ACCESS_REMOTE_WRITE = 1 << 1,
    IBV_ACCESS_REMOTE_READ = 1 << 2,
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
    IBV_ACCESS_MW_BIND = 1 << 4,
    IBV_ACCESS_ZERO_BASED = 1 << 5,
    IBV_ACCESS_ON_DEMAND = 1 << 6,
    IBV_ACCESS_HUGETLB = 1 << 7,
    IBV_ACCESS_FLUSH_GLOBAL = 1 << 8,
    IBV_ACCESS_FLUSH_PERSISTENT = 1 << 9,
    IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
};

/* A protection domain. */
struct ibv_pd {
    struct ibv_context *context;
    uint32_t handle;
};

struct ibv_td_init_attr {
    uint32_t comp_mask;
};

/* A thread domain. */
struct ibv_td {
    struct ibv_context *context;
};

enum ibv_parent_domain_init_attr_mask {
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 1 << 2,
};

/* A protection domain with a thread domain or allocators of its own. */
struct ibv_parent_domain_init_attr {
    struct ibv_pd *pd;
    struct ibv_td *td;
    uint32_t comp_mask;
    void *(*alloc)(struct ibv_pd *pd, void *pd_context, size_t size, size_t alignment,
            uint64_t resource_type);
    void (*free)(struct ibv_pd *pd, void *pd_context, void *ptr, uint64_t resource_type);
    void *pd_context;
};

enum ibv_xrcd_init_attr_mask {
    IBV_XRCD_INIT_ATTR_FD = 1 << 0,
    IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1,
    IBV_XRCD_INIT_ATTR_RESERVED = 1 << 2,
};

/* The attributes for opening or creating an XRC domain, which the inode of fd identifies. */
struct ibv_xrcd_init_attr {
    uint32_t comp_mask;
    int fd;
    int oflags;
};

/* An XRC domain. */
struct ibv_xrcd {
    struct ibv_context *context;
};

/* A registered memory region; length in bytes. */
struct ibv_mr {
    struct ibv_context *context;
    struct ibv_pd *pd;
    void *addr;
    size_t length;
    uint32_t handle;
    uint32_t lkey;
    uint32_t rkey;
};

/* Flags of ibv_rereg_mr(): the attributes to change. */
enum ibv_rereg_mr_flags {
    IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0,
    IBV_REREG_MR_CHANGE_PD = 1 << 1,
    IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
    IBV_REREG_MR_FLAGS_SUPPORTED = 7,
};

/* Errors of ibv_rereg_mr(); below -1 the region is no longer usable. */
enum ibv_rereg_mr_err_code {
    IBV_REREG_MR_ERR_INPUT = -1,
    IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
    IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
    IBV_REREG_MR_ERR_CMD = -4,
    IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
};

/* Which members of ibv_mr_init_attr are valid. */
enum ibv_mr_init_attr_mask {
    IBV_REG_MR_MASK_IOVA = 1 << 0,
    IBV_REG_MR_MASK_ADDR = 1 << 1,
    IBV_REG_MR_MASK_FD = 1 << 2,
    IBV_REG_MR_MASK_FD_OFFSET = 1 << 3,
    IBV_REG_MR_MASK_DMAH = 1 << 4,
    IBV_REG_MR_MASK_BUF = 1 << 5,
};

/* The attributes for registering a region. */
struct ibv_mr_init_attr {
    size_t length;
    int access;
    uint64_t comp_mask;
    uint64_t iova;
    void *addr;
    int fd;
    uint64_t fd_offset;
    struct ibv_dmah *dmah;
    struct ibv_buf *buf;
};

enum ibv_advise_mr_advice {
    IBV_ADVISE_MR_ADVICE_PREFETCH = 0,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
    IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
};

enum ibv_advise_mr_flag {
    IBV_ADVISE_MR_FLAG_FLUSH = 1,
};

/* Memory window types. */
enum ibv_mw_type {
    IBV_MW_TYPE_1 = 1,
    IBV_MW_TYPE_2 = 2,
};

/* A memory window. */
struct ibv_mw {
    struct ibv_context *context;
    struct ibv_pd *pd;
    uint32_t rkey;
    uint32_t handle;
    enum ibv_mw_type type;
};

/* The range and the rights that a window is bound to. */
struct ibv_mw_bind_info {
    struct ibv_mr *mr;
    uint64_t addr;
    uint64_t length;
    unsigned int mw_access_flags;
};

/* A bind request for a type 1 window. */
struct ibv_mw_bind {
    uint64_t wr_id;
    unsigned int send_flags;
    struct ibv_mw_bind_info bind_info;
};

/* Size and alignment of device memory. */
struct ibv_alloc_dm_attr {
    size_t length;
    uint32_t log_align_req;
    uint32_t comp_mask;
};

enum ibv_dm_mask {
    IBV_DM_MASK_HANDLE = 1 << 0,
};

/* Device memory. */
struct ibv_dm {
    struct ibv_context *context;
    int (*memcpy_to_dm)(struct ibv_dm *dm, uint64_t dm_offset, const void *host_addr,
            size_t length);
    int (*memcpy_from_dm)(void *host_addr, struct ibv_dm *dm, uint64_t dm_offset, size_t length);
    uint32_t comp_mask;
    uint32_t handle;
};

/* A DMA handle: hints for the device's access to memory. */
struct ibv_dmah {
    struct ibv_context *context;
};

enum ibv_tph_mem_type {
    IBV_TPH_MEM_TYPE_VM = 0,
    IBV_TPH_MEM_TYPE_PM = 1,
};

enum ibv_dmah_init_attr_mask {
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1 << 0,
    IBV_DMAH_INIT_ATTR_MASK_PH = 1 << 1,
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 1 << 2,
};

/* Processor and TLP hints of a DMA handle. */
struct ibv_dmah_init_attr {
    uint32_t comp_mask;
    uint32_t cpu_id;
    uint8_t ph;
    uint8_t tph_mem_type;
};

#ifdef __cplusplus
}
#endif

#endif
