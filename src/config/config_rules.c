/* SPDX-License-Identifier: Apache-2.0 */
/* What depends on several keys: contradictions, derived values, what a combination asks for.
 *
 * A rule is a function that reads items and values, adds errors or notices, and sets derived
 * values; `rules` lists all that apply to a training configuration. The large families have files
 * of their own: config_optimizer.c, config_ranks.c, config_memory.c, config_zenflow.c,
 * config_onebit.c, config_pipeline.c, config_autocast.c, config_comms_logger.c,
 * config_autotuning.c. A rule says nothing about keys whose "auto" is still open, which the values
 * then hold as defaults.
 */
#include "config/config_eval.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

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
    const char *param = dsi_item_text(eval, "data_types.param_dtype");
    ds_dtype dtype;
    if (param != NULL && dsi_dtype_parse(param, &dtype) && dtype != v->compute_dtype) {
        dsi_item_error(eval, dsi_item_find(eval, "data_types.param_dtype"),
                       "expected the type that fp16.enabled and bf16.enabled ask for, found "
                       "\"%s\"; change one of them",
                       param);
    }
    const char *accumulate = dsi_item_text(eval, "data_types.grad_accum_dtype");
    v->grad_accum_dtype = DS_DTYPE_F32;
    if (accumulate != NULL) {
        (void)dsi_dtype_parse(accumulate, &v->grad_accum_dtype);
    }
    const char *communicate = dsi_item_text(eval, "communication_data_type");
    v->communication_dtype = dsi_config_autocast_travels(eval) ? v->compute_dtype : DS_DTYPE_F32;
    if (communicate != NULL) {
        const int index = dsi_choice_index("fp16|bf16|fp32", communicate, true);
        const ds_dtype types[] = {DS_DTYPE_F16, DS_DTYPE_BF16, DS_DTYPE_F32};
        v->communication_dtype = index >= 0 ? types[index] : v->compute_dtype;
    }
}

static void loss_scale(dsi_eval *eval)
{
    ds_config_fp16 *fp16 = &eval->values->fp16;
    const int64_t power = dsi_item_int(eval, "fp16.initial_scale_power", 16);
    fp16->dynamic = fp16->loss_scale == 0;
    fp16->initial_scale = ldexp(1.0, (int)power);
    if (fp16->enabled && fp16->dynamic && fp16->initial_scale < fp16->min_loss_scale) {
        dsi_item_error(eval, dsi_item_find(eval, "fp16.min_loss_scale"),
                       "expected at most the initial scale, 2^%" PRId64 ", found %g; lower it or "
                       "raise fp16.initial_scale_power",
                       power, fp16->min_loss_scale);
    }
}

static void needs_sharding(dsi_eval *eval, const char *path)
{
    if (dsi_item_true(eval, path) && eval->values->zero.stage == 0) {
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
        if (!dsi_item_true(eval, features[i].path)) {
            continue;
        }
        const dsi_item *item = dsi_item_find(eval, features[i].path);
        const bool outer = dsi_item_true(eval, features[i].outer);
        if (outer && dsi_item_true(eval, "data_efficiency.enabled")) {
            dsi_item_error(eval, item,
                           "not available, found true: it is not built yet; set it to "
                           "false");
        } else {
            dsi_item_notice(eval, item, "off, because %s is false",
                            outer ? "data_efficiency.enabled" : features[i].outer);
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

/* What comet_ml takes as the key of an experiment. */
static void comet_key(dsi_eval *eval)
{
    static const char word[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const ds_config_comet *comet = &eval->values->comet;
    const char *key = comet->experiment_key;
    const size_t n = key != NULL ? strlen(key) : 0;
    if (!comet->enabled) {
        return;
    }
    if (key != NULL && (n < 32 || n > 50 || key[strspn(key, word)] != '\0')) {
        dsi_item_error(eval, dsi_item_find(eval, "comet.experiment_key"),
                       "expected 32 to 50 letters and digits, found \"%s\"", key);
    }
    if (key == NULL && comet->mode == DS_COMET_GET) {
        dsi_item_error(eval, dsi_item_find(eval, "comet.mode"),
                       "\"get\" goes on with an experiment: give its comet.experiment_key");
    }
}

/* What a hybrid engine asks for that is not there. */
static void hybrid_engine(dsi_eval *eval)
{
    if (!eval->values->hybrid.enabled) {
        return;
    }
    if (dsi_item_int(eval, "hybrid_engine.inference_tp_size", 1) > 1) {
        dsi_item_error(eval, dsi_item_find(eval, "hybrid_engine.inference_tp_size"),
                       "not available: ranks of an engine each generate by themselves; set it "
                       "to 1");
    }
    if (dsi_item_true(eval, "hybrid_engine.release_inference_cache")) {
        dsi_item_error(eval, dsi_item_find(eval, "hybrid_engine.release_inference_cache"),
                       "not available: keys and values are planned and stay; set it to false, and "
                       "destroy the generator or server where the memory is needed");
    }
    if (dsi_item_true(eval, "hybrid_engine.enable_cuda_graph")) {
        dsi_item_error(eval, dsi_item_find(eval, "hybrid_engine.enable_cuda_graph"),
                       "not available: the plan is run as it is; set it to false");
    }
}

typedef void (*rule_fn)(dsi_eval *eval);
static const rule_fn rules[] = {
    hybrid_engine,
    dsi_config_autocast,
    one_precision,
    narrow_weights,
    data_types,
    loss_scale,
    dsi_config_optimizer,
    dsi_config_ranks,
    dsi_config_routing,
    dsi_config_memory,
    data_efficiency,
    dsi_config_comms_logger,
    aio_blocks,
    checkpoint_behind,
    dsi_config_autotuning,
    dsi_config_zenflow,
    dsi_config_onebit,
    dsi_config_pipeline,
    comet_key,
    dsi_config_compression,
    dsi_config_tensor,
};

void dsi_config_rules(dsi_eval *eval)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i) {
        rules[i](eval);
    }
}
