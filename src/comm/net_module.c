/* SPDX-License-Identifier: Apache-2.0 */
/* Finds, loads and opens the module of a wire: libdeepspeed_mpi_openmpi.so,
 * libdeepspeed_mpi_mpich.so, libdeepspeed_ucx.so. Called by net_world.c.
 *
 * A module stays loaded until the process ends: neither MPI nor UCX can be taken out again.
 */
#include "base/module.h"
#include "comm/mpi_peer.h"
#include "comm/net.h"
#include "comm/net_impl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *net_module_mpi(void)
{
    const char *asked = getenv("DS_MPI");
    if (asked != NULL && asked[0] != '\0') {
        return asked;
    }
    if (getenv("OMPI_COMM_WORLD_SIZE") != NULL) {
        return "openmpi";
    }
    if (getenv("PMI_SIZE") != NULL || getenv("PALS_LOCAL_RANKID") != NULL) {
        return "mpich";
    }
    return getenv("PMIX_RANK") != NULL ? "openmpi" : NULL;
}

static ds_status file_of(ds_ctx *ctx, const char *name, char *file, size_t n)
{
    if (strcmp(name, "ucx") == 0) {
        (void)snprintf(file, n, "libdeepspeed_ucx.so");
        return DS_OK;
    }
    const char *which = net_module_mpi();
    if (which == NULL) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "the transport \"mpi\" needs a process that mpirun or srun started; none of "
                       "their variables is set (DS_MPI=openmpi or mpich says which MPI)");
    }
    if (strcmp(which, "openmpi") != 0 && strcmp(which, "mpich") != 0) {
        return ds_fail(ctx, DS_ERR_CONFIG, "DS_MPI is \"%s\", expected openmpi or mpich", which);
    }
    (void)snprintf(file, n, "libdeepspeed_mpi_%s.so", which);
    return DS_OK;
}

ds_status dsi_comm_net_probe(ds_ctx *ctx, const char *file)
{
    void *handle;
    return dsi_module_load(ctx, file, DSI_MODULE_GLOBAL, &handle);
}

ds_status dsi_comm_mpi_peer(ds_ctx *ctx, const dsi_mpi_peer **peer_out)
{
    char file[64];
    void *handle;
    DS_TRY(file_of(ctx, "mpi", file, sizeof file));
    DS_TRY(dsi_module_load(ctx, file, DSI_MODULE_GLOBAL, &handle));
    const dsi_mpi_peer *peer = dlsym(handle, DSI_MPI_PEER_SYMBOL);
    if (peer == NULL || peer->version != DSI_MPI_PEER_VERSION) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s is of another version of this library", file);
    }
    *peer_out = peer;
    return DS_OK;
}

ds_status net_module_open(ds_ctx *ctx, const char *name, const dsi_wire_setup *setup,
                          dsi_wire **wire_out)
{
    char file[64];
    char error[DSI_WIRE_ERROR_BYTES] = "";
    void *handle;
    dsi_wire_open_fn open;
    dsi_wire *wire;
    DS_TRY(file_of(ctx, name, file, sizeof file));
    DS_TRY(dsi_module_load(ctx, file, DSI_MODULE_GLOBAL, &handle));
    void *symbol = dlsym(handle, DSI_WIRE_SYMBOL);
    if (symbol == NULL) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s is not a module of this library", file);
    }
    memcpy(&open, &symbol, sizeof open); /* ISO C has no cast from object to function pointers */
    if (open(setup, &wire, error) != 0) {
        return error[0] == '\0' ? DS_ERR_PEER /* our put or get failed, and said why */
                                : ds_fail(ctx, DS_ERR_PEER, "%s: %s", file, error);
    }
    if (wire->ops->version != DSI_WIRE_VERSION) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s has version %u, this library needs %d", file,
                       wire->ops->version, (int)DSI_WIRE_VERSION);
    }
    *wire_out = wire;
    return DS_OK;
}
