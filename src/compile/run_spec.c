/* SPDX-License-Identifier: Apache-2.0 */
/* From DeepSpeed's configuration to the numbers of a run. */
#include "compile/run_spec_impl.h"
#include "compile/train_graph.h"
#include "model/adapter.h"

#include <stdio.h>
#include <stdlib.h>

static void read_optimizer(const ds_config_optimizer *o, dsi_engine_spec *spec)
{
    const bool sgd = o->kind == DS_OPTIMIZER_SGD;
    const bool zero_one = o->kind == DS_OPTIMIZER_ZERO_ONE_ADAM;
    spec->train.optimizer = o->kind;
    spec->train.eps = o->eps;
    spec->train.decoupled_decay = o->decoupled;
    spec->train.momentum = sgd ? o->momentum != 0.0 : o->has_beta1;
    spec->train.dampening = o->dampening;
    spec->train.nesterov = o->nesterov;
    spec->train.max_coeff = o->max_coeff;
    spec->train.min_coeff = o->min_coeff;
    spec->lr = o->lr;
    spec->beta1 = sgd ? o->momentum : o->beta1;
    spec->beta2 = o->beta2;
    spec->weight_decay = o->weight_decay;
    spec->bias_correction =
        o->kind == DS_OPTIMIZER_MUON || o->kind == DS_OPTIMIZER_SCHEDULE_FREE ||
        o->kind == DS_OPTIMIZER_ADAMW_8BIT || o->kind == DS_OPTIMIZER_ADEMAMIX ||
        ((o->kind == DS_OPTIMIZER_ADAM || o->kind == DS_OPTIMIZER_LAMB) && o->bias_correction);
    spec->train.muon = (dsi_muon_spec){.on = o->kind == DS_OPTIMIZER_MUON,
                                       .dtype = o->muon_bf16 ? DS_DTYPE_BF16 : DS_DTYPE_F32};
    spec->train.adafactor = (dsi_adafactor_spec){.on = o->kind == DS_OPTIMIZER_ADAFACTOR,
                                                 .scales = o->scale_parameter,
                                                 .relative = o->relative_step,
                                                 .warms_up = o->warmup_init,
                                                 .eps = o->eps,
                                                 .scale_eps = o->scale_eps,
                                                 .clip_threshold = o->clip_threshold,
                                                 .decay_rate = o->decay_rate};
    spec->train.schedule_free =
        (dsi_schedule_free_spec){.on = o->kind == DS_OPTIMIZER_SCHEDULE_FREE,
                                 .warmup_steps = o->warmup_steps,
                                 .average_power = o->average_power,
                                 .rate_power = o->rate_power};
    spec->train.adam_8bit = (dsi_adam_8bit_spec){.on = dsi_config_is_8bit(o),
                                                 .min_size = o->min_8bit_size,
                                                 .embeddings_fp32 = !o->embeddings_8bit};
    spec->train.ademamix = (dsi_ademamix_spec){.on = o->kind == DS_OPTIMIZER_ADEMAMIX,
                                               .beta3 = o->beta3,
                                               .alpha = o->alpha,
                                               .t_beta3 = o->t_beta3,
                                               .t_alpha = o->t_alpha};
    spec->muon_lr = o->muon_lr;
    spec->muon_momentum = o->momentum;
    spec->train.onebit =
        (dsi_onebit_spec){.on = dsi_config_is_onebit(o->kind),
                          .freeze_step = zero_one ? o->var_freeze_step : o->freeze_step,
                          .var_update_scaler = o->var_update_scaler,
                          .local_step_scaler = o->local_step_scaler,
                          .local_step_clipper = o->local_step_clipper,
                          .coeff_beta = o->coeff_beta,
                          .factor_max = o->factor_max,
                          .factor_min = o->factor_min,
                          .factor_threshold = o->factor_threshold};
}

static dsi_loss_scale read_loss_scale(const ds_config_fp16 *fp16)
{
    if (!fp16->enabled) {
        return dsi_loss_scale_none();
    }
    if (!fp16->dynamic) {
        return dsi_loss_scale_static(fp16->loss_scale);
    }
    return dsi_loss_scale_dynamic(fp16->initial_scale, fp16->loss_scale_window,
                                  fp16->min_loss_scale, fp16->hysteresis,
                                  fp16->consecutive_hysteresis);
}

static void read_precision(const ds_config_values *v, dsi_engine_spec *spec)
{
    const bool narrow = v->bf16.master_weights_and_grads || v->fp16.master_weights_and_grads;
    spec->train.dtype = v->compute_dtype;
    spec->train.comm_dtype = v->communication_dtype;
    spec->train.accumulate_dtype = narrow ? v->compute_dtype : v->grad_accum_dtype;
    spec->train.state_dtype = v->bf16.optimizer_states ? DS_DTYPE_BF16 : DS_DTYPE_F32;
    spec->train.master = v->compute_dtype != DS_DTYPE_F32 && !narrow;
}

static dsi_zero_spec read_zero(const ds_config_values *v)
{
    return (dsi_zero_spec){
        .pp = v->pipeline_stages,
        .tp = v->tensor_parallel,
        .sp = v->sequence_parallel,
        .ep = v->expert_parallel,
        .folded = (v->experts_over_tp ? 1u << DSI_AXIS_TP : 0u) |
                  (v->experts_over_sp ? 1u << DSI_AXIS_SP : 0u),
        .stage = (uint32_t)v->zero.stage,
        .mics = v->zero.mics_shard_size > 0 ? (uint32_t)v->zero.mics_shard_size : 0,
        .hpz = v->zero.hpz_partition_size > 1 ? (uint32_t)v->zero.hpz_partition_size : 0,
        .reduce_each = !dsi_config_is_onebit(v->optimizer.kind) &&
                       (v->batch.gradient_accumulation_steps == 1 || v->deterministic),
        .own_states = v->optimizer.kind == DS_OPTIMIZER_ZERO_ONE_ADAM,
        .sum = v->gradient_sum,
        .quantized = {.weights = v->zero.quantized_weights,
                      .frozen_weights = v->zero.quantized_frozen_weights,
                      .gradients = v->zero.quantized_gradients,
                      .errors = v->zero.loco.enabled,
                      .beta = v->zero.loco.err_beta,
                      .seeded = v->compute_dtype == DS_DTYPE_F16},
        .comm_dtype = v->communication_dtype,
        .reduce_bucket = v->zero.reduce_bucket_size,
        .gather_bucket = v->zero.allgather_bucket_size,
        .persistence_threshold = v->zero.param_persistence_threshold,
        .model_persistence = v->zero.model_persistence_threshold,
        .max_live = v->zero.max_live_parameters,
        .max_reuse_distance = v->zero.max_reuse_distance};
}

ds_status dsi_run_mesh(ds_ctx *ctx, const ds_config_values *values, uint32_t n_ranks,
                       dsi_mesh *mesh_out)
{
    dsi_zero_spec zero = read_zero(values);
    DS_TRY(dsi_zero_set_ranks(ctx, &zero, n_ranks));
    *mesh_out = zero.mesh;
    return DS_OK;
}

static dsi_zenflow_spec read_zenflow(const ds_config_zenflow *z, int64_t steps_per_epoch)
{
    const int64_t epoch = steps_per_epoch > 0 ? steps_per_epoch : z->steps_per_epoch;
    const int64_t unit = z->select_by_epoch ? epoch : 1;
    const int64_t most = INT64_MAX / (unit > 0 ? unit : 1);
    return (dsi_zenflow_spec){.on = z->enabled,
                              .ratio = z->topk_ratio,
                              .weighs = z->auto_update,
                              .auto_ratio = z->auto_ratio,
                              .update_every = z->update_interval,
                              .select_every =
                                  z->select_interval < most ? z->select_interval * unit : INT64_MAX,
                              .warm_up = z->full_warm_up_rounds,
                              .overlap = z->enabled && z->overlap_step};
}

static dsi_recompute read_recompute(const ds_config_activation_checkpointing *a)
{
    return (dsi_recompute){.mode = a->recompute,
                           .interval = a->interval,
                           .n_checkpoints = a->number_checkpoints > 0 ? a->number_checkpoints : 0,
                           .operators = a->operators};
}

ds_status dsi_run_follow_accel(ds_ctx *ctx, const ds_config_values *v, bool apart,
                               dsi_engine_spec *spec)
{
    spec->isa = dsi_accel_isa(&spec->accel);
    spec->offload = dsi_offload_read(v, apart);
    spec->host_cores = v->zero.offload_optimizer.cpuadam_cores;
    spec->train.speculative = v->zero.offload_optimizer.super_offload && spec->offload.how.host &&
                              !dsi_train_is_early(&spec->train);
    return dsi_run_check_super_offload(ctx, v, apart, spec);
}

static dsi_flops_spec read_flops(const ds_config_flops_profiler *f)
{
    dsi_flops_spec spec = {.enabled = f->enabled,
                           .profile_step = f->profile_step,
                           .module_depth = f->module_depth,
                           .top_modules = f->top_modules,
                           .detailed = f->detailed};
    if (f->output_file != NULL) {
        (void)snprintf(spec.output_file, sizeof spec.output_file, "%s", f->output_file);
    }
    return spec;
}

static void take_path(char *out, size_t size, const char *given, const char *usual)
{
    (void)snprintf(out, size, "%s", given != NULL ? given : usual);
}

static dsi_autotune_spec read_autotune(const ds_config_autotuning *config)
{
    const char *trial = getenv("DS_AUTOTUNING_TRIAL");
    const int64_t first = config->start_profile_step > 0 ? config->start_profile_step : 1;
    dsi_autotune_spec spec = {.enabled = config->enabled,
                              .model_info = config->enabled && config->profile_model,
                              .trial = trial != NULL && trial[0] != '\0',
                              .first = first,
                              .last = config->end_profile_step > first ? config->end_profile_step
                                                                       : first};
    take_path(spec.metric_path, sizeof spec.metric_path, config->metric_path,
              "./autotuning_metric.json");
    take_path(spec.model_info_path, sizeof spec.model_info_path, config->model_info_path,
              "./autotuning_model_info.json");
    return spec;
}

/* What an optimizer does not go with. */
static ds_status check_optimizer(ds_ctx *ctx, const dsi_engine_spec *spec)
{
    const dsi_train_spec *t = &spec->train;
    if (t->schedule_free.on && spec->zero.pp > 1) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "AdamWScheduleFree with pipeline.stages %u: stages do not make the average "
                       "for an evaluation; set it to 1, or take AdamW",
                       spec->zero.pp);
    }
    if ((t->schedule_free.on || t->adafactor.on) && (t->zenflow.on || t->loco.on)) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s with %s: not built; take AdamW",
                       t->adafactor.on ? "Adafactor" : "AdamWScheduleFree",
                       t->zenflow.on ? "zero_optimization.zenflow" : "LoCo");
    }
    return DS_OK;
}

/* What no run is made of. */
static ds_status check_params(ds_ctx *ctx, const ds_engine_params *params,
                              const ds_config_values *v)
{
    if (v->optimizer.kind == DS_OPTIMIZER_NONE) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "optimizer: the configuration names none; add \"optimizer\": {\"type\": "
                       "\"AdamW\", \"params\": {\"lr\": …}}");
    }
    if (v->pipeline_open) {
        return ds_fail(
            ctx, DS_ERR_CONFIG,
            "pipeline.stages or pipeline.schedule \"auto\" is a planner's choice, which is "
            "made before an engine: call ds_plan_pipeline() and take the configuration "
            "that it makes (ds_train does), or give numbers and names");
    }
    if (v->scheduler_has_groups && params->decay_all) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "scheduler.params has a value for norms and biases, which decay_all puts "
                       "into one group with all others; give one value, or leave decay_all");
    }
    if (params->adapter != NULL && (v->compression != NULL || v->zero.zenflow.enabled)) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s with an adapter: it would change the weights of the frozen model; leave "
                       "one of the two",
                       v->compression != NULL ? "compression_training"
                                              : "zero_optimization.zenflow");
    }
    const bool own = ds_model_config_text(params->model) == NULL; /* which may ignore it */
    if (params->seq_length < (own ? 0 : 1)) {
        return ds_fail(ctx, DS_ERR_ARG, "seq_length: expected at least %d, found %lld", own ? 0 : 1,
                       (long long)params->seq_length);
    }
    return DS_OK;
}

/* What the training graph is made of, but for the optimizer, precision and losses. */
static void read_train(const ds_engine_params *params, const ds_config_values *v,
                       dsi_engine_spec *spec)
{
    spec->train.batch = v->batch.train_micro_batch_size_per_gpu;
    spec->train.seq_length = params->seq_length;
    spec->train.partition = (dsi_stage_partition)v->pipeline_partition;
    spec->train.partition_type = v->pipeline_type;
    spec->schedule_kind = (dsi_schedule_kind)v->pipeline_schedule;
    spec->stage_chunks = v->pipeline_chunks;
    spec->train.sequence_chunk = v->sequence_chunk;
    const bool chunks = v->sequence_chunk > 0 && v->sequence_chunk < params->seq_length;
    spec->train.mlp_rows = chunks ? 0 : v->mlp_tile_tokens; /* a chunk is no larger a tile */
    spec->train.sequence_form = v->sequence_attention == 0       ? DS_SEQUENCE_HEADS
                                : v->sequence_balance && !chunks ? DS_SEQUENCE_RING_HALVES
                                                                 : DS_SEQUENCE_RING;
    spec->train.accumulation = v->batch.gradient_accumulation_steps;
    spec->train.max_norm = v->gradient_clipping > 0.0 ? v->gradient_clipping : 0.0;
    spec->reserved_cores = v->zero.zenflow.reserved;
    spec->train.keep_nonfinite = v->bf16.enabled && !v->bf16.check_grad_overflow;
    spec->train.zenflow = read_zenflow(&v->zero.zenflow, params->steps_per_epoch);
    spec->train.loco = (dsi_loco_spec){.on = v->zero.loco.enabled,
                                       .beta = v->zero.loco.err_beta,
                                       .reset_every = v->zero.loco.reset_every};
    spec->train.compression = v->compression;
    spec->train.routing = v->routing;
    spec->hybrid = v->hybrid;
    spec->train.tensor = v->tensor;
    spec->train.adapter = params->adapter;
    spec->train.gradient_outputs = params->gradient_outputs;
    spec->train.n_gradient_outputs = params->n_gradient_outputs;
}

ds_status dsi_engine_read_config(ds_ctx *ctx, const ds_engine_params *params, dsi_engine_spec *spec)
{
    const ds_config_values *v = params->config != NULL ? dsi_config_values(params->config) : NULL;
    if (v == NULL) {
        return ds_fail(ctx, DS_ERR_STATE, "ds_initialize needs a resolved configuration");
    }
    DS_TRY(check_params(ctx, params, v));
    *spec = (dsi_engine_spec){.schedule = v->scheduler,
                              .has_groups = v->scheduler_has_groups,
                              .schedule_no_decay = v->scheduler_no_decay,
                              .loss_scale = read_loss_scale(&v->fp16),
                              .seed = params->seed,
                              .decay_all = params->decay_all,
                              .average = params->average,
                              .wall_clock_breakdown = v->wall_clock_breakdown,
                              .memory_breakdown = v->memory_breakdown,
                              .steps_per_print = v->steps_per_print};
    read_optimizer(&v->optimizer, spec);
    read_precision(v, spec);
    spec->zero = read_zero(v);
    spec->recompute = read_recompute(&v->activation_checkpointing);
    spec->flops = read_flops(&v->flops_profiler);
    spec->autotune = read_autotune(&v->autotuning);
    spec->device_memory = (size_t)v->device_memory;
    spec->overlap = v->zero.overlap_comm || v->tp_overlap_comm || v->tp_domino;
    spec->domino = v->tp_domino;
    spec->log_comm = v->comms_logger.enabled;
    spec->comm_log = (ds_comm_log_params){.all = v->comms_logger.prof_all,
                                          .ops = v->comms_logger.prof_ops,
                                          .verbose = v->comms_logger.verbose,
                                          .debug = v->comms_logger.debug};
    spec->tag_validation = v->tag_validation;
    spec->save_behind = v->checkpoint_behind;
    spec->save_host_bytes = (size_t)v->checkpoint_host_bytes;
    spec->prefetch = v->zero.prefetch_bucket_size;
    read_train(params, v, spec);
    DS_TRY(dsi_run_read_losses(ctx, params, v, spec));
    spec->train.adam_8bit.cut = spec->zero.stage > 0 || spec->zero.tp > 1 || spec->zero.ep > 1;
    DS_TRY(check_optimizer(ctx, spec));
    DS_TRY(dsi_adapter_check_vocab(params->adapter, params->model));
    DS_TRY(dsi_accel_choose(ctx, params->accelerator, &spec->accel));
    const bool apart = !dsi_accel_chosen(&spec->accel)->memory->on_host;
    return dsi_run_follow_accel(ctx, v, apart, spec);
}
