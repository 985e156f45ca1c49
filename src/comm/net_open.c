/* Chooses the network of a job and opens it. See net.h. */
#include "comm/net_impl.h"

#include <string.h>

ds_status dsi_comm_open_net(ds_ctx *ctx, const dsi_comm_world *world, dsi_comm **comm_out)
{
    const char *asked = world->transport;
    const char *name = net_module_mpi() != NULL ? "mpi" : "ucx";
    if (asked != NULL) {
        name = strncmp(asked, "shm+", 4) == 0 ? asked + 4 : asked;
        if (strcmp(name, "mpi") != 0 && strcmp(name, "ucx") != 0) {
            return ds_fail(ctx, DS_ERR_CONFIG,
                           "unknown transport \"%s\": mpi, ucx, shm+mpi or shm+ucx reach over a "
                           "network",
                           asked);
        }
    }
    return net_world_open(ctx, world, name, comm_out);
}
