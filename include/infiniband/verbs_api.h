/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Values of verbs.h that are also macros, so that programs can test for them with #ifdef. */
#ifndef VERBS_API_H
#define VERBS_API_H

/* The kernel's names, IB_UVERBS_..., which some programs use in addition to those of verbs.h. */
#include <rdma/ib_user_ioctl_verbs.h>

/*
 * Access flags in this range are hints: a library that does not know one ignores it.
 * The first is IBV_ACCESS_RELAXED_ORDERING.
 */
#define IBV_ACCESS_OPTIONAL_FIRST (1 << 20)
#define IBV_ACCESS_OPTIONAL_LAST (1 << 29)
#define IBV_ACCESS_OPTIONAL_RANGE                                                                  \
    (((IBV_ACCESS_OPTIONAL_LAST << 1) - 1) & ~(IBV_ACCESS_OPTIONAL_FIRST - 1))

#endif
