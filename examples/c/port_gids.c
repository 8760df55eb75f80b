/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Lists the ports of a device and their GIDs, with the RoCE version of each. */
#include "common.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct options options = parse(argc, argv);
    struct ibv_context *context = open_device(&options);
    struct ibv_device_attr device;
    int port, i;

    if (ibv_query_device(context, &device))
        die("ibv_query_device");
    for (port = 1; port <= device.phys_port_cnt; port++) {
        struct ibv_port_attr attr;

        if (ibv_query_port(context, port, &attr))
            die("ibv_query_port");
        printf("%s port %d: %s\n", ibv_get_device_name(context->device), port,
               ibv_port_state_str(attr.state));
        for (i = 0; i < attr.gid_tbl_len; i++) {
            struct ibv_gid_entry entry;
            char text[INET6_ADDRSTRLEN];

            /* This call fails for an empty entry of the table. */
            if (ibv_query_gid_ex(context, port, i, &entry, 0))
                continue;
            inet_ntop(AF_INET6, entry.gid.raw, text, sizeof(text));
            printf("  GID %d: %s, %s\n", i, text,
                   entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? "RoCE v2"
                   : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1"
                                                            : "InfiniBand");
        }
    }
    ibv_close_device(context);
    return 0;
}
