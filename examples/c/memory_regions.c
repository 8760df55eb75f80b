/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Three memory regions of one protection domain, with different access rights. */
#include "common.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    static const struct {
        const char *rights;
        int access;
    } kinds[3] = {
        { "local read", 0 },
        { "local write, remote read", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ },
        { "local write, remote read and write, atomics",
          IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
              IBV_ACCESS_REMOTE_ATOMIC },
    };
    struct options options = parse(argc, argv);
    struct ibv_context *context = open_device(&options);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_mr *mr[3], *wrong;
    char *buffers = malloc(3 * 4096);
    int i;

    if (!pd || !buffers)
        die("ibv_alloc_pd");
    for (i = 0; i < 3; i++) {
        mr[i] = ibv_reg_mr(pd, buffers + i * 4096, 4096, kinds[i].access);
        if (!mr[i])
            die("ibv_reg_mr");
        printf("%zu bytes at %p, lkey %#x, rkey %#x: %s\n", mr[i]->length, mr[i]->addr,
               mr[i]->lkey, mr[i]->rkey, kinds[i].rights);
    }
    /* Remote WRITE requires local write permission. */
    wrong = ibv_reg_mr(pd, buffers, 4096, IBV_ACCESS_REMOTE_WRITE);
    if (wrong || errno != EINVAL)
        die("remote write without local write did not fail");
    printf("remote write without local write: rejected\n");
    /* A protection domain cannot be freed while it has regions. */
    if (ibv_dealloc_pd(pd) != EBUSY)
        die("a domain in use was freed");
    for (i = 0; i < 3; i++)
        if (ibv_dereg_mr(mr[i]))
            die("ibv_dereg_mr");
    if (ibv_dealloc_pd(pd))
        die("ibv_dealloc_pd");
    ibv_close_device(context);
    free(buffers);
    return 0;
}
