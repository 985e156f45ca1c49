/* What depends on several keys: contradictions, derived values, what a combination asks for.
 *
 * Every cross-option rule of the configuration is here, one function each, listed in `rules`. A
 * rule reads items and values, adds errors or notices, and sets derived values. It says nothing
 * about keys whose "auto" is still open, which the values then hold as defaults.
 */
#include "config/config_eval.h"

#include "base/nearest.h"
#include <deepspeed/comm.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool is_true(const dsi_eval *eval, const char *path)
{
    const dsi_item *item = dsi_item_find(eval, path);
    return item != NULL && item->node != NULL && item->node->kind == DSI_NODE_BOOL &&
           item->node->as.truth;
}

static int64_t int_of(const dsi_eval *eval, const char *path, int64_t absent)
{
    const dsi_item *item = dsi_item_find(eval, path);
    int64_t value = absent;
    (void)(item != NULL && item->node != NULL && dsi_node_int(item->node, &value));
    return value;
}

static const char *text_of(const dsi_eval *eval, const char *path)
{
    const dsi_item *item = dsi_item_find(eval, path);
    return item != NULL && item->node != NULL && item->node->kind == DSI_NODE_TEXT
               ? item->node->as.text
               : NULL;
}

/* ---- precision ------------------------------------------------------------------------------- */

static void one_precision(dsi_eval *eval)
{
    ds_config_values *v = eval->values;
    if (v->fp16.enabled && v->bf16.enabled) {
        dsi_item_error(eval, dsi_item_find(eval, "bf16.enabled"),
                       "expected at most one of fp16.enabled and bf16.enabled to be true, found "
                       "both; set one to false");
    }
    v->compute_dtype = v->bf16.enabled   ? DS_DTYPE_BF16
                       : v->fp16.enabled ? DS_DTYPE_F16
                                         : DS_DTYPE_F32;
}

static void data_types(dsi_eval *eval)
{
    ds_config_values *v = eval->values;
    const char *param = text_of(eval, "data_types.param_dtype");
    ds_dtype dtype;
    if (param != NULL && dsi_dtype_parse(param, &dtype) && dtype != v->compute_dtype) {
        dsi_item_error(eval, dsi_item_find(eval, "data_types.param_dtype"),
                       "expected the type that fp16.enabled and bf16.enabled ask for, found "
                       "\"%s\"; change one of them",
                       param);
    }
    const char *accumulate = text_of(eval, "data_types.grad_accum_dtype");
    v->grad_accum_dtype = DS_DTYPE_F32;
    if (accumulate != NULL) {
        (void)dsi_dtype_parse(accumulate, &v->grad_accum_dtype);
    }
    const char *communicate = text_of(eval, "communication_data_type");
    v->communication_dtype = v->compute_dtype;
    if (communicate != NULL) {
        const int index = dsi_choice_index("fp16|bf16|fp32", communicate, true);
        const ds_dtype types[] = {DS_DTYPE_F16, DS_DTYPE_BF16, DS_DTYPE_F32};
        v->communication_dtype = index >= 0 ? types[index] : v->compute_dtype;
    }
}

static void loss_scale(dsi_eval *eval)
{
    ds_config_fp16 *fp16 = &eval->values->fp16;
    const int64_t power = int_of(eval, "fp16.initial_scale_power", 16);
    fp16->dynamic = fp16->loss_scale == 0;
    fp16->initial_scale = ldexp(1.0, (int)power);
    fp16->min_loss_scale = (double)int_of(eval, "fp16.min_loss_scale", 1);
    if (fp16->enabled && fp16->dynamic && fp16->initial_scale < fp16->min_loss_scale) {
        dsi_item_error(eval, dsi_item_find(eval, "fp16.min_loss_scale"),
                       "expected at most the initial scale, 2^%" PRId64 ", found %g; lower it or "
                       "raise fp16.initial_scale_power",
                       power, fp16->min_loss_scale);
    }
}

static void needs_sharding(dsi_eval *eval, const char *path)
{
    if (is_true(eval, path) && eval->values->zero.stage == 0) {
        dsi_item_error(eval, dsi_item_find(eval, path),
                       "expected zero_optimization.stage 1, 2 or 3 with it, found 0; change one of "
                       "them");
    }
}

/* 16-bit master weights: asked for only where their precision is enabled. */
static void narrow_weights(dsi_eval *eval)
{
    ds_config_values *v = eval->values;
    v->fp16.master_weights_and_grads = v->fp16.master_weights_and_grads && v->fp16.enabled;
    v->bf16.master_weights_and_grads = v->bf16.master_weights_and_grads && v->bf16.enabled;
    v->bf16.optimizer_states = v->bf16.optimizer_states && v->bf16.enabled;
    if (v->fp16.master_weights_and_grads) {
        needs_sharding(eval, "fp16.fp16_master_weights_and_grads");
    }
    if (v->bf16.master_weights_and_grads) {
        needs_sharding(eval, "bf16.bf16_master_weights_and_grads");
    }
    if (v->bf16.optimizer_states && !v->bf16.master_weights_and_grads) {
        dsi_item_error(eval, dsi_item_find(eval, "bf16.bf16_optimizer_states"),
                       "expected bf16_master_weights_and_grads true with it, found false; change "
                       "one of them");
    }
}

/* ---- optimizer ------------------------------------------------------------------------------- */

static void unknown_type(dsi_eval *eval, const dsi_item *item, const dsi_variant *variants,
                         const char *built)
{
    const char *type = item->node->as.text;
    dsi_nearest nearest = {.word = type};
    char names[32][32];
    size_t n = 0;
    for (const dsi_variant *v = variants; v->types != NULL; ++v) {
        for (int i = 0;
             n < 32 && v->section != NULL && dsi_choice_at(v->types, i, names[n], sizeof names[n]);
             ++i) {
            dsi_nearest_offer(&nearest, names[n++]);
        }
    }
    if (nearest.best != NULL) {
        dsi_item_error(eval, item, "expected one of %s, found \"%.40s\"; did you mean \"%s\"?",
                       built, type, nearest.best);
    } else {
        dsi_item_error(eval, item, "expected one of %s, found \"%.40s\"", built, type);
    }
}

/* The families that are built come first in the variants; index is 0 for the first. */
static bool find_type(dsi_eval *eval, const char *path, const dsi_variant *variants,
                      const dsi_variant *found, int n_built, const char *built, int *index_out)
{
    const dsi_item *item = dsi_item_find(eval, path);
    if (found == NULL) {
        unknown_type(eval, item, variants, built);
        return false;
    }
    *index_out = (int)(found - variants);
    if (*index_out >= n_built) {
        dsi_item_error(eval, item,
                       "not available, found \"%.40s\": it is not built yet; take one "
                       "of %s",
                       item->node->as.text, built);
        return false;
    }
    return true;
}

static void ignored_params(dsi_eval *eval, const char *section)
{
    /* params without type: DeepSpeed ignores them too */
    dsi_notice_at(eval->diags, 0, 0, section, "without a \"type\" it does nothing");
}

static void optimizer_type(dsi_eval *eval)
{
    ds_config_optimizer *o = &eval->values->optimizer;
    const char *type = text_of(eval, "optimizer.type");
    int index = -1;
    if (type == NULL) {
        const dsi_item *item = dsi_item_find(eval, "optimizer.type");
        if (item != NULL && item->given != NULL && item->given->kind == DSI_NODE_NULL) {
            ignored_params(eval, "optimizer");
        }
        return;
    }
    if (!find_type(eval, "optimizer.type", dsi_optimizer_variants, dsi_optimizer_variant(type), 5,
                   "Adam, AdamW, SGD, Lion, Adagrad, Lamb", &index)) {
        return;
    }
    o->kind = (ds_optimizer_kind)(DS_OPTIMIZER_ADAM + index);
    const dsi_item *item = dsi_item_find(eval, "optimizer.type");
    if (strncasecmp(type, "fused", 5) == 0 || strcasestr(type, "cpuada") != NULL ||
        strcasestr(type, "cpulion") != NULL) {
        dsi_item_notice(eval, item, "the name of an implementation; it means %s here",
                        ds_optimizer_kind_name(o->kind));
    }
    if (strcasecmp(type, "adamw") == 0) {
        o->decoupled = true;
    } else {
        o->decoupled = is_true(eval, "optimizer.params.adam_w_mode");
    }
    const dsi_item *decay = dsi_item_find(eval, "optimizer.params.weight_decay");
    if (o->kind == DS_OPTIMIZER_ADAM && o->decoupled &&
        is_true(eval, "optimizer.params.torch_adam") && decay != NULL && decay->given == NULL) {
        o->weight_decay = 0.01;
        dsi_item_set(eval, dsi_item_find(eval, "optimizer.params.weight_decay"),
                     dsi_node_make_real(eval->arena, 0.01), DS_ORIGIN_RULE,
                     "torch_adam: PyTorch's default");
    }
}

static void betas(dsi_eval *eval)
{
    const dsi_item *item = dsi_item_find(eval, "optimizer.params.betas");
    if (item == NULL || item->open || item->node == NULL || item->node->kind != DSI_NODE_LIST) {
        return;
    }
    const dsi_node *first = item->node->first;
    if (item->node->n_children != 2) {
        dsi_item_error(eval, item, "expected a list of 2 numbers, found a list of %" PRIu32,
                       item->node->n_children);
        return;
    }
    eval->values->optimizer.beta1 = dsi_node_real(first);
    eval->values->optimizer.beta2 = dsi_node_real(first->next);
    if (dsi_node_real(first) >= 1 || dsi_node_real(first->next) >= 1) {
        dsi_item_error(eval, item, "expected two numbers of at least 0 and below 1, found [%g, %g]",
                       dsi_node_real(first), dsi_node_real(first->next));
    }
}

static void optimizer_numbers(dsi_eval *eval)
{
    const ds_config_optimizer *o = &eval->values->optimizer;
    if (o->kind == DS_OPTIMIZER_SGD && o->nesterov && (o->momentum <= 0 || o->dampening != 0)) {
        dsi_item_error(eval, dsi_item_find(eval, "optimizer.params.nesterov"),
                       "expected a momentum above 0 and a dampening of 0 with it, found momentum "
                       "%g, dampening %g",
                       o->momentum, o->dampening);
    }
    if (o->kind == DS_OPTIMIZER_LAMB && o->min_coeff > o->max_coeff) {
        dsi_item_error(eval, dsi_item_find(eval, "optimizer.params.min_coeff"),
                       "expected at most optimizer.params.max_coeff = %g, found %g", o->max_coeff,
                       o->min_coeff);
    }
}

static void tested_optimizer(dsi_eval *eval)
{
    const ds_config_values *v = eval->values;
    const bool untested =
        v->optimizer.kind == DS_OPTIMIZER_SGD || v->optimizer.kind == DS_OPTIMIZER_LAMB;
    if (untested && v->zero.stage >= 1 && !is_true(eval, "zero_allow_untested_optimizer")) {
        dsi_item_error(eval, dsi_item_find(eval, "optimizer.type"),
                       "expected Adam, AdamW, Adagrad or Lion with zero_optimization.stage %" PRId64
                       ", found %s; set zero_allow_untested_optimizer to true, or the stage to 0",
                       v->zero.stage, ds_optimizer_kind_name(v->optimizer.kind));
    }
}

/* ---- scheduler ------------------------------------------------------------------------------- */

static void scheduler_type(dsi_eval *eval)
{
    ds_schedule_params *s = &eval->values->scheduler;
    const char *type = text_of(eval, "scheduler.type");
    int index = -1;
    if (type == NULL) {
        const dsi_item *item = dsi_item_find(eval, "scheduler.type");
        if (item != NULL && item->given != NULL && item->given->kind == DSI_NODE_NULL) {
            ignored_params(eval, "scheduler");
        }
        return;
    }
    if (!find_type(eval, "scheduler.type", dsi_scheduler_variants, dsi_scheduler_variant(type), 5,
                   "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest", &index)) {
        return;
    }
    s->kind = (ds_schedule_kind)(DS_SCHEDULE_WARMUP + index);
    const bool has_end =
        s->kind == DS_SCHEDULE_WARMUP_DECAY || s->kind == DS_SCHEDULE_WARMUP_COSINE;
    const dsi_item *total = dsi_item_find(eval, "scheduler.params.total_num_steps");
    const dsi_item *warmup = dsi_item_find(eval, "scheduler.params.warmup_num_steps");
    if (has_end && total != NULL && total->node != NULL && !total->open && !warmup->open &&
        s->total_num_steps < s->warmup_num_steps) {
        dsi_item_notice(eval, total,
                        "%" PRId64 " is less than warmup_num_steps, %" PRId64
                        ": the run ends before the warm-up",
                        s->total_num_steps, s->warmup_num_steps);
    }
}

/* ---- ZeRO and communication ------------------------------------------------------------------ */

static void reduction(dsi_eval *eval)
{
    ds_config_values *v = eval->values;
    const char *op = text_of(eval, "gradient_allreduce_op");
    v->gradient_sum = op != NULL && strcasecmp(op, "sum") == 0;
    if (v->gradient_sum && v->zero.stage == 3) {
        dsi_item_error(eval, dsi_item_find(eval, "gradient_allreduce_op"),
                       "expected \"mean\" with zero_optimization.stage 3, found \"sum\"; change "
                       "one of them");
    }
}

static void overlap(dsi_eval *eval)
{
    dsi_item *item = dsi_item_find(eval, "zero_optimization.overlap_comm");
    if (item != NULL && item->node != NULL && item->node->kind == DSI_NODE_NULL) {
        const bool on = eval->values->zero.stage == 3;
        eval->values->zero.overlap_comm = on;
        dsi_item_set(eval, item, dsi_node_make_bool(eval->arena, on), DS_ORIGIN_RULE,
                     "zero_optimization.stage");
    }
}

static void shards_divide(dsi_eval *eval, const char *path, bool clamp)
{
    const int64_t world = eval->world_size;
    int64_t size = int_of(eval, path, 0);
    size = clamp && size > world ? world : size;
    if (world != 0 && size > 1 && world % size != 0) {
        dsi_item_error(eval, dsi_item_find(eval, path),
                       "expected a divisor of the world size, %" PRId64 ", found %" PRId64, world,
                       size);
    }
}

static void zero_groups(dsi_eval *eval)
{
    shards_divide(eval, "zero_optimization.zero_hpz_partition_size", true);
    shards_divide(eval, "zero_optimization.mics_shard_size", true);
    if (is_true(eval, "zero_optimization.zero_quantized_gradients") &&
        !eval->values->zero.reduce_scatter) {
        dsi_item_error(eval, dsi_item_find(eval, "zero_optimization.zero_quantized_gradients"),
                       "expected zero_optimization.reduce_scatter true with it, found false; "
                       "change one of them");
    }
    const dsi_item *loco = dsi_item_find(eval, "zero_optimization.zeropp_loco_param");
    if (dsi_item_given(loco) && (dsi_node_find(loco->node, "err_beta") == NULL ||
                                 dsi_node_find(loco->node, "reset_T") == NULL)) {
        dsi_item_error(eval, loco,
                       "expected both keys err_beta and reset_T, found fewer; "
                       "DeepSpeed documents 0.8 and 1024");
    }
}

/* What is in force on one rank, where nothing is sent, and not built for more. */
static void many_ranks(dsi_eval *eval)
{
    static const char *const switches[] = {
        "zero_optimization.zero_quantized_weights",
        "zero_optimization.zero_quantized_nontrainable_weights",
        "zero_optimization.zero_quantized_gradients",
        "zero_optimization.mics_hierarchical_params_gather",
    };
    static const char *const groups[] = {"zero_optimization.zero_hpz_partition_size",
                                         "zero_optimization.mics_shard_size"};
    static const struct {
        const char *path;
        bool when; /* this value asks for what does not happen */
        const char *instead;
    } ignored[] = {
        {"zero_optimization.round_robin_gradients", true,
         "every rank owns an equal slice of every parameter"},
        {"zero_optimization.reduce_scatter", false,
         "stages 1 to 3 reduce to the owner of a slice; the result is the same"},
        {"zero_optimization.allgather_partitions", false,
         "parameters are gathered by all-gather; the result is the same"},
        {"zero_optimization.use_multi_rank_bucket_allreduce", false,
         "a bucket carries slices of all ranks; the result is the same"},
        {"zero_optimization.use_all_reduce_for_fetch_params", true,
         "parameters are gathered by all-gather; the result is the same"},
        {"zero_optimization.allgather_sequential", true,
         "prefetch_bucket_size and overlap_comm decide what is gathered at a time"},
    };
    if (eval->world_size < 2) {
        return;
    }
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; ++i) {
        const dsi_item *item = dsi_item_find(eval, ignored[i].path);
        if (dsi_item_given(item) && is_true(eval, ignored[i].path) == ignored[i].when) {
            dsi_item_notice(eval, item, "no effect here: %s", ignored[i].instead);
        }
    }
    if (int_of(eval, "zero_optimization.module_granularity_threshold", 0) > 0) {
        dsi_item_notice(eval, dsi_item_find(eval, "zero_optimization.module_granularity_threshold"),
                        "no effect here: parameters are gathered one by one, ahead of their use");
    }
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; ++i) {
        if (is_true(eval, switches[i])) {
            dsi_item_error(eval, dsi_item_find(eval, switches[i]),
                           "expected false on %" PRIu32 " ranks, found true: it is not built yet",
                           eval->world_size);
        }
    }
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; ++i) {
        if (int_of(eval, groups[i], 1) > 1) {
            dsi_item_error(eval, dsi_item_find(eval, groups[i]),
                           "expected 1 or less on %" PRIu32 " ranks, found %" PRId64
                           ": sub-groups of ranks are not built yet",
                           eval->world_size, int_of(eval, groups[i], 1));
        }
    }
}

static void data_parallel_size(dsi_eval *eval)
{
    const int64_t size = int_of(eval, "data_parallel_size", 0);
    if (size != 0 && eval->world_size != 0 && size != (int64_t)eval->world_size) {
        dsi_item_error(eval, dsi_item_find(eval, "data_parallel_size"),
                       "expected the world size, %" PRIu32 ", found %" PRId64 "; remove the key",
                       eval->world_size, size);
    }
}

/* ---- the rest -------------------------------------------------------------------------------- */

/* The outer switches are documented, and DeepSpeed ignores them. */
static void data_efficiency(dsi_eval *eval)
{
    static const struct {
        const char *path;
        const char *outer;
    } features[] = {
        {"data_efficiency.data_sampling.curriculum_learning.enabled",
         "data_efficiency.data_sampling.enabled"},
        {"data_efficiency.data_sampling.dynamic_batching.enabled",
         "data_efficiency.data_sampling.enabled"},
        {"data_efficiency.data_routing.random_ltd.enabled", "data_efficiency.data_routing.enabled"},
    };
    for (size_t i = 0; i < sizeof features / sizeof features[0]; ++i) {
        if (!is_true(eval, features[i].path)) {
            continue;
        }
        const dsi_item *item = dsi_item_find(eval, features[i].path);
        const bool outer = is_true(eval, features[i].outer);
        if (outer && is_true(eval, "data_efficiency.enabled")) {
            dsi_item_error(eval, item,
                           "not available, found true: it is not built yet; set it to "
                           "false");
        } else {
            dsi_item_notice(eval, item, "off, because %s is false",
                            outer ? "data_efficiency.enabled" : features[i].outer);
        }
    }
}

/* comms_logger.prof_ops: DeepSpeed's names of operations. Those that none of ours answers to are
 * never called here. */
static void logged_operations(dsi_eval *eval)
{
    static const struct {
        const char *name;
        uint32_t op;
    } names[] = {{"all_reduce", DS_COMM_ALL_REDUCE},
                 {"all_reduce_coalesced", DS_COMM_ALL_REDUCE},
                 {"inference_all_reduce", DS_COMM_ALL_REDUCE},
                 {"reduce_scatter", DS_COMM_REDUCE_SCATTER},
                 {"reduce_scatter_tensor", DS_COMM_REDUCE_SCATTER},
                 {"all_gather", DS_COMM_ALL_GATHER},
                 {"all_gather_into_tensor", DS_COMM_ALL_GATHER},
                 {"all_gather_coalesced", DS_COMM_ALL_GATHER},
                 {"broadcast", DS_COMM_BROADCAST},
                 {"all_to_all", DS_COMM_ALL_TO_ALL},
                 {"all_to_all_single", DS_COMM_ALL_TO_ALL},
                 {"send", DS_COMM_SEND},
                 {"isend", DS_COMM_SEND},
                 {"recv", DS_COMM_RECV},
                 {"irecv", DS_COMM_RECV},
                 {"barrier", DS_COMM_BARRIER},
                 {"monitored_barrier", DS_COMM_BARRIER},
                 {"reduce", DS_COMM_OP_COUNT},
                 {"gather", DS_COMM_OP_COUNT},
                 {"scatter", DS_COMM_OP_COUNT},
                 {"all_gather_object", DS_COMM_OP_COUNT},
                 {"broadcast_object_list", DS_COMM_OP_COUNT}};
    const size_t n = sizeof names / sizeof names[0];
    const dsi_item *item = dsi_item_find(eval, "comms_logger.prof_ops");
    const dsi_node *list = item != NULL ? item->node : NULL;
    ds_config_comms_logger *log = &eval->values->comms_logger;
    bool right = true;
    log->prof_ops = 0;
    for (const dsi_node *node = list != NULL ? list->first : NULL; node != NULL;
         node = node->next) {
        dsi_nearest nearest = {.word = node->as.text};
        size_t i = 0;
        while (i < n && strcmp(names[i].name, node->as.text) != 0) {
            dsi_nearest_offer(&nearest, names[i++].name);
        }
        right = right && i < n;
        if (i == n) {
            dsi_item_error(eval, item, "expected names of operations, found \"%.40s\"%s%s%s",
                           node->as.text, nearest.best != NULL ? "; did you mean \"" : "",
                           nearest.best != NULL ? nearest.best : "",
                           nearest.best != NULL ? "\"?" : "");
        } else if (names[i].op == DS_COMM_OP_COUNT) {
            dsi_item_notice(eval, item, "%s is never called here", names[i].name);
        } else {
            log->prof_ops |= 1u << names[i].op;
        }
    }
    if (right && log->enabled && !log->prof_all && log->prof_ops == 0) {
        dsi_item_error(eval, item,
                       "expected an operation to log, or comms_logger.prof_all true, found "
                       "neither; add one");
    }
}

/* Of the inference engines' files; in a file of the other kind the items are absent. */
static void inference_ragged(dsi_eval *eval)
{
    static const char *const limits[] = {"state_manager.max_tracked_sequences",
                                         "state_manager.max_ragged_batch_size"};
    const int64_t count = int_of(eval, "state_manager.max_ragged_sequence_count", 0);
    for (size_t i = 0; i < 2; ++i) {
        const int64_t limit = int_of(eval, limits[i], INT64_MAX);
        if (count > limit) {
            dsi_item_error(eval, dsi_item_find(eval, "state_manager.max_ragged_sequence_count"),
                           "expected at most %s = %" PRId64 ", found %" PRId64, limits[i], limit,
                           count);
        }
    }
}

static void inference_injection(dsi_eval *eval)
{
    const dsi_item *policy = dsi_item_find(eval, "injection_policy");
    if (dsi_item_given(policy) && is_true(eval, "replace_with_kernel_inject")) {
        dsi_item_error(eval, policy,
                       "expected none with replace_with_kernel_inject true, found an object; "
                       "remove one of them");
    }
}

void dsi_config_inference_rules(dsi_eval *eval)
{
    inference_ragged(eval);
    inference_injection(eval);
}

static void expect_order(dsi_eval *eval, const char *path, int64_t low, const char *low_path,
                         int64_t high)
{
    if (high < low) {
        dsi_item_error(eval, dsi_item_find(eval, path),
                       "expected at least autotuning.%s = %" PRId64 ", found %" PRId64, low_path,
                       low, high);
    }
}

/* Bounds of the search in their order; flags that trials set. */
static void autotuning(dsi_eval *eval)
{
    const ds_config_autotuning *a = &eval->values->autotuning;
    const dsi_item *mappings = dsi_item_find(eval, "autotuning.arg_mappings");
    expect_order(eval, "autotuning.end_profile_step", a->start_profile_step, "start_profile_step",
                 a->end_profile_step);
    expect_order(eval, "autotuning.max_train_micro_batch_size_per_gpu", a->min_micro_batch,
                 "min_train_micro_batch_size_per_gpu", a->max_micro_batch);
    if (a->max_train_batch_size > 0) {
        expect_order(eval, "autotuning.max_train_batch_size", a->min_train_batch_size,
                     "min_train_batch_size", a->max_train_batch_size);
    }
    if (mappings == NULL || mappings->node == NULL || mappings->node->kind != DSI_NODE_OBJECT) {
        return;
    }
    for (const dsi_node *n = mappings->node->first; n != NULL; n = n->next) {
        if (n->kind != DSI_NODE_TEXT || n->as.text[0] != '-' || n->as.text[1] == '\0') {
            dsi_item_error(eval, mappings,
                           "expected for \"%s\" a flag of the program with its dashes, such as "
                           "\"--micro_batch\"",
                           n->key);
        }
    }
}

/* Transfers past the page cache are of whole blocks of the disk. */
static void aio_blocks(dsi_eval *eval)
{
    if (eval->values->aio.block_size % 4096 != 0) {
        dsi_item_error(eval, dsi_item_find(eval, "aio.block_size"),
                       "expected a multiple of 4096, found %" PRId64 "; 1048576 is a good value",
                       eval->values->aio.block_size);
    }
}

/* Saves behind training: datastates_ckpt, or checkpoint.writer.decoupled, which has a field. */
static void checkpoint_behind(dsi_eval *eval)
{
    const dsi_item *item = dsi_item_find(eval, "datastates_ckpt");
    if (!dsi_item_given(item) || (item->node->kind == DSI_NODE_BOOL && !item->node->as.truth)) {
        return;
    }
    eval->values->checkpoint_behind = true;
    if (item->node->kind == DSI_NODE_BOOL) {
        return;
    }
    if (item->node->kind != DSI_NODE_OBJECT) {
        dsi_item_error(eval, item, "expected true, false, null or an object");
        return;
    }
    for (const dsi_node *n = item->node->first; n != NULL; n = n->next) {
        const double gib = dsi_node_is_number(n) ? dsi_node_real(n) : 0.0;
        if (strcmp(n->key, "host_cache_size") != 0) {
            dsi_item_notice(eval, item, "\"%s\" has no effect: host_cache_size is in force here",
                            n->key);
        } else if (gib > 0.0 && gib <= 1048576.0) {
            eval->values->checkpoint_host_bytes = (uint64_t)(gib * 1073741824.0);
        } else {
            dsi_item_error(eval, item,
                           "expected for host_cache_size a number of GiB above 0, at most 1048576");
        }
    }
}

typedef void (*rule_fn)(dsi_eval *eval);
static const rule_fn rules[] = {
    one_precision,
    narrow_weights,
    data_types,
    loss_scale,
    optimizer_type,
    betas,
    optimizer_numbers,
    tested_optimizer,
    scheduler_type,
    reduction,
    overlap,
    zero_groups,
    many_ranks,
    data_parallel_size,
    dsi_config_memory,
    data_efficiency,
    logged_operations,
    aio_blocks,
    checkpoint_behind,
    autotuning,
    dsi_config_zenflow,
};

void dsi_config_rules(dsi_eval *eval)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i) {
        rules[i](eval);
    }
}
