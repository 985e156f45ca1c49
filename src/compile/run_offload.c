/* SPDX-License-Identifier: Apache-2.0 */
/* What of a run lives elsewhere than in the device's memory. See run_spec.h. */
#include "compile/run_spec_impl.h"

#include <stdio.h>

static dsi_residency residency(const ds_config_values *v, ds_offload_device device, bool apart)
{
    if (device == DS_OFFLOAD_CPU) { /* without a limit a device that is the host has all of it */
        return apart || v->device_memory > 0 ? DSI_RESIDENCY_HOST : DSI_RESIDENCY_DEVICE;
    }
    return device == DS_OFFLOAD_NVME ? DSI_RESIDENCY_DISK : DSI_RESIDENCY_DEVICE;
}

/* Bytes that an update of a sub-group moves one way: master, two moments, gradient. */
static size_t sub_group_bytes(const ds_config_values *v)
{
    const int64_t most = (int64_t)1 << 40;
    const int64_t n = v->zero.sub_group_size < most ? v->zero.sub_group_size : most;
    return (size_t)n * (v->optimizer.kind == DS_OPTIMIZER_ADEMAMIX ? 20 : 16);
}

static void copy_folders(char text_out[DS_CONFIG_TEXT_BYTES], const char *folders)
{
    (void)snprintf(text_out, DS_CONFIG_TEXT_BYTES, "%s", folders != NULL ? folders : "");
}

dsi_offload_spec dsi_offload_read(const ds_config_values *v, bool apart)
{
    const ds_config_zero *z = &v->zero;
    const ds_config_offload *states = &z->offload_optimizer;
    const ds_config_offload *params = &z->offload_param;
    const double buffers = (double)params->buffer_count * (double)params->buffer_size;
    const size_t group = sub_group_bytes(v);
    dsi_offload_spec spec = {
        .params = residency(v, params->device, apart),
        .states = residency(v, states->device, apart),
        .chosen = residency(v, z->zenflow.offload ? DS_OFFLOAD_CPU : DS_OFFLOAD_NONE, apart),
        .ratio = states->ratio,
        .by_gradient = states->super_offload,
        .choose_ratio = states->super_offload && !states->ratio_given,
        .max_resident = params->device == DS_OFFLOAD_NVME ? params->max_in_cpu : 0,
        .threshold = z->param_persistence_threshold,
        .how = {.chunk = z->sub_group_size,
                .reuse = z->max_live_parameters < z->max_reuse_distance ? z->max_live_parameters
                                                                        : z->max_reuse_distance},
        .read_ahead =
            (size_t)(buffers < (double)z->prefetch_bucket_size ? buffers
                                                               : (double)z->prefetch_bucket_size) *
            ds_dtype_bytes(v->compute_dtype),
        .update_ahead = states->pipeline_read ? group / 4 * (size_t)states->buffer_count : 0,
        .write_behind = states->pipeline_write ? group / 4 * (size_t)states->buffer_count : group,
        .defer = states->pipeline_write,
        .write_first = !states->pipeline_write,
        .aio = {.block_size = (uint64_t)v->aio.block_size,
                .queue_depth = (uint32_t)v->aio.queue_depth,
                .intra_op_parallelism = (uint32_t)v->aio.intra_op_parallelism,
                .single_submit = v->aio.single_submit,
                .overlap_events = v->aio.overlap_events},
        .use_gds = v->aio.use_gds};
    const ds_config_activation_checkpointing *kept = &v->activation_checkpointing;
    spec.how.host = apart && states->device == DS_OFFLOAD_CPU && states->cpuadam_cores > 0.0;
    spec.how.least_activation = 65536;
    spec.how.activations =
        kept->nvme_path != NULL
            ? DSI_RESIDENCY_DISK
            : residency(v, kept->cpu_checkpointing ? DS_OFFLOAD_CPU : DS_OFFLOAD_NONE, apart);
    copy_folders(spec.folders, states->nvme_path);
    copy_folders(spec.param_folders, params->nvme_path);
    spec.how.waiting = residency(v, v->sequence_offload, apart);
    copy_folders(spec.activation_folders,
                 kept->nvme_path != NULL ? kept->nvme_path : v->sequence_path);
    return spec;
}

ds_status dsi_run_check_super_offload(ds_ctx *ctx, const ds_config_values *v, bool apart,
                                      const dsi_engine_spec *spec)
{
    const ds_accel *accel = dsi_accel_chosen(&spec->accel);
    const bool asked = v->zero.offload_optimizer.super_offload;
    if (asked && !apart && !accel->counts_only) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "zero_optimization.offload_optimizer.super_offload: the accelerator %s has "
                       "no memory apart from the host's, where updates are already; use the "
                       "accelerator cuda, or "
                       "set it to false",
                       accel->name);
    }
    const dsi_train_spec *t = &spec->train;
    if (asked && (t->schedule_free.on || t->onebit.on || t->muon.on || t->adafactor.on ||
                  t->adam_8bit.on || t->optimizer == DS_OPTIMIZER_LAMB || spec->zero.pp > 1)) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "zero_optimization.offload_optimizer.super_offload with %s: updates ahead "
                       "of the norm are those of Adam, AdamW, AdEMAMix, Lion, Adagrad and SGD in "
                       "one stage; change one of them",
                       spec->zero.pp > 1 ? "a pipeline" : "this optimizer");
    }
    return DS_OK;
}
