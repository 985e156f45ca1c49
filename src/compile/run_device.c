/* SPDX-License-Identifier: Apache-2.0 */
/* See run_device.h. */
#include "compile/run_device.h"

#include "base/machine_memory.h"
#include "comm/comm.h"

#include <math.h>
#include <stdio.h>

bool dsi_run_device_matters(const dsi_engine_spec *spec)
{
    const dsi_offload_spec *offload = &spec->offload;
    return offload->choose_ratio && offload->how.host && offload->states == DSI_RESIDENCY_HOST;
}

/* Ranks of the fullest node, as ds_plan --nodes has them. A process that no launcher started plans
 * for one. */
static uint32_t ranks_of_node(ds_ctx *ctx, uint32_t n_ranks)
{
    dsi_comm_world world = {.size = 0};
    if (dsi_comm_world_read(ctx, &world) < 0 || world.size != n_ranks || world.n_nodes < 1) {
        return n_ranks;
    }
    return (n_ranks + world.n_nodes - 1) / world.n_nodes;
}

static double least(double profile, uint64_t there)
{
    const double gib = 1073741824.0;
    const double whole = floor((double)there / gib) * gib;
    return whole > 0.0 && whole < profile ? whole : profile;
}

ds_status dsi_run_device_find(ds_ctx *ctx, const dsi_engine_spec *spec, dsi_run_device *found_out)
{
    const ds_accel *accel = dsi_accel_chosen(&spec->accel);
    ds_accel_about about = {.name = ""};
    const uint32_t n_local = ranks_of_node(ctx, spec->zero.mesh.n_ranks);
    *found_out = (dsi_run_device){.n_local = n_local};
    if (accel->about == NULL) {
        return DS_OK;
    }
    DS_TRY(accel->about(ctx, spec->accel.options, &about));
    (void)snprintf(found_out->name, sizeof found_out->name, "%s", about.name);
    const dsi_device *profile = dsi_device_of_name(about.name);
    if (profile != NULL) {
        found_out->device = dsi_device_of_rank(profile, n_local, 1);
        found_out->device.memory_bytes =
            least(profile->memory_bytes, dsi_accel_device_memory(ctx, &spec->accel));
        found_out->device.host_memory_bytes =
            least(profile->host_memory_bytes, dsi_machine_memory());
    }
    return DS_OK;
}

const dsi_device *dsi_run_device_profile(const dsi_run_device *found)
{
    return found->device.name[0] != '\0' ? &found->device : NULL;
}

void dsi_run_device_text(const dsi_run_device *found, const dsi_engine_spec *spec,
                         char text_out[DSI_RUN_DEVICE_TEXT])
{
    if (dsi_run_device_profile(found) != NULL) {
        (void)snprintf(text_out, DSI_RUN_DEVICE_TEXT, "%s, by the profile %s", found->name,
                       found->device.name);
    } else if (found->name[0] != '\0') {
        (void)snprintf(text_out, DSI_RUN_DEVICE_TEXT, "there is no profile of %s", found->name);
    } else {
        (void)snprintf(text_out, DSI_RUN_DEVICE_TEXT, "the accelerator %.60s does not name it",
                       dsi_accel_chosen(&spec->accel)->name);
    }
}
