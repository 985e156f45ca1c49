/* SPDX-License-Identifier: Apache-2.0 */
/* Finds, loads and opens the module of a wire: libdeepspeed_mpi_openmpi.so,
 * libdeepspeed_mpi_mpich.so, libdeepspeed_ucx.so. Called by net_world.c.
 *
 * A module stays loaded until the process ends: neither MPI nor UCX can be taken out again.
 */
#include "comm/mpi_peer.h"
#include "comm/net.h"
#include "comm/net_impl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

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

/* The folder of the library or program that holds this code, with a slash; "" when unknown. */
static void own_folder(char *folder)
{
    Dl_info info;
    static const char anchor = 0;
    folder[0] = '\0';
    if (dladdr(&anchor, &info) != 0 && info.dli_fname != NULL && info.dli_fname[0] == '/') {
        (void)snprintf(folder, PATH_BYTES, "%s", info.dli_fname);
    } else { /* a program is known by its first argument, which PATH may have led to */
        const ssize_t n = readlink("/proc/self/exe", folder, PATH_BYTES - 1);
        folder[n > 0 ? n : 0] = '\0';
    }
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        slash[1] = '\0';
    }
}

/* Tries one path; keeps the reason why not. Global: Open MPI's own plug-ins need its symbols. */
static void *try_path(const char *folder, const char *file, char *why, size_t why_bytes)
{
    char path[PATH_BYTES + 128];
    (void)snprintf(path, sizeof path, "%s%s%s", folder,
                   folder[0] == '\0' || folder[strlen(folder) - 1] == '/' ? "" : "/", file);
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (handle == NULL) {
        const char *text = dlerror();
        const size_t used = strlen(why);
        (void)snprintf(why + used, why_bytes - used, "%s%.300s", used > 0 ? "; " : "",
                       text != NULL ? text : path);
    }
    return handle;
}

static ds_status load(ds_ctx *ctx, const char *file, void **handle_out)
{
    char folder[PATH_BYTES];
    char beside[PATH_BYTES + 8];
    char why[1500] = "";
    const char *asked = getenv("DS_MODULE_PATH");
    void *handle = NULL;
    own_folder(folder);
    (void)snprintf(beside, sizeof beside, "%s../lib", folder);
    if (asked != NULL && asked[0] != '\0') {
        handle = try_path(asked, file, why, sizeof why);
    }
    const char *places[3] = {folder, beside, ""};
    for (size_t i = 0; i < 3 && handle == NULL; ++i) {
        handle = try_path(places[i], file, why, sizeof why);
    }
    if (handle == NULL) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s cannot be loaded (%s); install it, or name its folder in DS_MODULE_PATH",
                       file, why);
    }
    *handle_out = handle;
    return DS_OK;
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
    return load(ctx, file, &handle);
}

ds_status dsi_comm_mpi_peer(ds_ctx *ctx, const dsi_mpi_peer **peer_out)
{
    char file[64];
    void *handle;
    DS_TRY(file_of(ctx, "mpi", file, sizeof file));
    DS_TRY(load(ctx, file, &handle));
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
    DS_TRY(load(ctx, file, &handle));
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
