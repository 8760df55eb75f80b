/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Lists the devices of this host with their node types. */
#include "common.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>

int main(void)
{
    int count, i;
    struct ibv_device **list = ibv_get_device_list(&count);

    if (!list)
        die("ibv_get_device_list");
    for (i = 0; i < count; i++)
        printf("%s: %s, GUID %016" PRIx64 "\n", ibv_get_device_name(list[i]),
               ibv_node_type_str(list[i]->node_type), be64toh(ibv_get_device_guid(list[i])));
    ibv_free_device_list(list);
    return 0;
}
