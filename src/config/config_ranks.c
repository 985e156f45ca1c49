/* SPDX-License-Identifier: Apache-2.0 */
/* Rules about ranks: ZeRO's communication, sub-groups, what several ranks do not have. Called by
 * config_rules.c as one of its rules. */
#include "config/config_eval.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

#define PP_KEY      "pipeline.stages"
#define TP_KEY      "tensor_parallel.autotp_size"
#define SP_KEY      "sequence_parallel_size"
#define EP_KEY      "expert_parallel.autoep_size"
#define ETP_KEY     "expert_parallel.expert_tensor_parallel_size"
#define TP_SIZE_KEY "tensor_parallel.tensor_parallel.tp_size"

const char *dsi_config_data_text(const dsi_eval *eval)
{
    const bool tp = eval->values->tensor_parallel > 1;
    const bool sp = eval->values->sequence_parallel > 1;
    if (eval->values->pipeline_stages > 1) {
        return tp && sp ? "world size / " PP_KEY " / " TP_KEY " / " SP_KEY
               : tp     ? "world size / " PP_KEY " / " TP_KEY
               : sp     ? "world size / " PP_KEY " / " SP_KEY
                        : "world size / " PP_KEY;
    }
    return tp && sp ? "world size / " TP_KEY " / " SP_KEY
           : tp     ? "world size / " TP_KEY
           : sp     ? "world size / " SP_KEY
                    : "world size";
}

/* The size of an axis of which a key asks for `size` ranks, of `ranks`; 0: it is none, and said. */
static uint32_t divisor(dsi_eval *eval, const char *key, int64_t size, uint32_t ranks)
{
    if (size < 2) {
        return 1;
    }
    if (ranks % size == 0) {
        return (uint32_t)size;
    }
    int64_t nearest = size < ranks ? size : ranks;
    while (ranks % nearest != 0) {
        --nearest;
    }
    dsi_item_error(eval, dsi_item_find(eval, key),
                   "expected a divisor of the %s, %" PRIu32 ", found %" PRId64
                   "; the nearest below is %" PRId64,
                   ranks == eval->world_size ? "world size" : dsi_config_data_text(eval), ranks,
                   size, nearest);
    return 0;
}

/* Ranks that share the experts, which have a factorisation of their own: of data-parallel ranks, or
 * folded over those that share sequences and layers too, innermost first. */
static void expert_ranks(dsi_eval *eval, int64_t size)
{
    ds_config_values *v = eval->values;
    const int64_t tp = v->tensor_parallel;
    const int64_t sp = v->sequence_parallel;
    const int64_t each = dsi_item_int(eval, ETP_KEY, 0); /* 0: not said */
    if (each > 1 && each != tp) {
        dsi_item_error(eval, dsi_item_find(eval, ETP_KEY),
                       "expected 1 or " TP_KEY ", %" PRId64 ", found %" PRId64, tp, each);
        return;
    }
    const bool fits =
        v->data_ranks % size == 0 || (size % sp == 0 && v->data_ranks % (size / sp) == 0);
    const bool folded = tp > 1 && (each == 1 || (each == 0 && !fits && size % tp == 0));
    if (folded && size % tp != 0) {
        dsi_item_error(eval, dsi_item_find(eval, EP_KEY),
                       "expected a multiple of " TP_KEY ", %" PRId64 ", whose ranks share the "
                       "experts where " ETP_KEY " is 1, found %" PRId64 "; the nearest is %" PRId64,
                       tp, size, size < tp ? tp : size / tp * tp);
        return;
    }
    const int64_t rest = folded ? size / tp : size;
    const bool over_sp = v->data_ranks % rest != 0 && rest % sp == 0;
    const int64_t ep = over_sp ? rest / sp : rest;
    if (v->data_ranks % ep == 0) {
        v->expert_parallel = (uint32_t)ep;
        v->experts_over_tp = folded;
        v->experts_over_sp = over_sp && sp > 1;
        return;
    }
    (void)divisor(eval, EP_KEY, size,
                  tp * sp == 1 ? v->data_ranks : v->data_ranks * (uint32_t)(tp * sp));
    if (v->data_ranks * (uint32_t)(tp * sp) % size ==
        0) { /* divides them all, but not axis by axis */
        dsi_item_error(eval, dsi_item_find(eval, EP_KEY),
                       "expected ranks of whole axes: " TP_KEY " %" PRId64 ", " SP_KEY " %" PRId64
                       " and a divisor of the %" PRIu32 " data-parallel ranks, found %" PRId64,
                       tp, sp, v->data_ranks, size);
    }
}

/* The world without the axes whose ranks have the same samples, as DeepSpeed counts it. A number
 * that does not divide the world is said once: the rest then is as before the world is known. */
void dsi_config_data_ranks(dsi_eval *eval)
{
    ds_config_values *v = eval->values;
    const int64_t tp = dsi_item_int(eval, TP_KEY, 0);
    const int64_t sp = dsi_item_int(eval, SP_KEY, 0);
    const int64_t pp = dsi_item_int(eval, PP_KEY, 0);
    v->pipeline_stages = 1;
    v->tensor_parallel = 1;
    v->sequence_parallel = 1;
    v->expert_parallel = 1;
    v->data_ranks = v->zero_ranks = eval->world_size;
    const int64_t other = dsi_item_int(eval, TP_SIZE_KEY, 1);
    if (other > 1 && other != tp) {
        dsi_item_error(eval, dsi_item_find(eval, TP_SIZE_KEY),
                       "expected 1 or " TP_KEY ", %" PRId64 ", found %" PRId64, tp, other);
    }
    if (eval->world_size == 0) {
        return;
    }
    v->pipeline_stages = divisor(eval, PP_KEY, pp, eval->world_size);
    if (v->pipeline_stages == 0) {
        v->pipeline_stages = 1;
        v->data_ranks = v->zero_ranks = 0;
        return;
    }
    const uint32_t world = eval->world_size / v->pipeline_stages;
    v->tensor_parallel = divisor(eval, TP_KEY, tp, world);
    v->sequence_parallel =
        v->tensor_parallel > 0 ? divisor(eval, SP_KEY, sp, world / v->tensor_parallel) : 0;
    if (v->sequence_parallel == 0) { /* said once */
        v->data_ranks = v->zero_ranks = 0;
        v->tensor_parallel = v->tensor_parallel > 0 ? v->tensor_parallel : 1;
        v->sequence_parallel = 1;
        return;
    }
    v->zero_ranks = world / v->tensor_parallel;
    v->data_ranks = v->zero_ranks / v->sequence_parallel;
    if (dsi_item_true(eval, "expert_parallel.enabled") && dsi_item_int(eval, EP_KEY, 1) > 1) {
        expert_ranks(eval, dsi_item_int(eval, EP_KEY, 1));
    }
}

static void reduction(dsi_eval *eval)
{
    ds_config_values *v = eval->values;
    const char *op = dsi_item_text(eval, "gradient_allreduce_op");
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
    const int64_t ranks = eval->values->zero_ranks;
    int64_t size = dsi_item_int(eval, path, 0);
    if (clamp && ranks > 1 && size > ranks) {
        dsi_item_notice(eval, dsi_item_find(eval, path),
                        "there are %" PRId64 " ranks: groups are of all of them", ranks);
    }
    size = clamp && size > ranks ? ranks : size;
    if (ranks != 0 && size > 1 && ranks % size != 0) {
        dsi_item_error(eval, dsi_item_find(eval, path),
                       "expected a divisor of the %s, %" PRId64 ", found %" PRId64,
                       eval->values->tensor_parallel > 1 ? "world size / " TP_KEY : "world size",
                       ranks, size);
    }
}

static void zero_groups(dsi_eval *eval)
{
    shards_divide(eval, "zero_optimization.zero_hpz_partition_size", true);
    shards_divide(eval, "zero_optimization.mics_shard_size", true);
    if (dsi_item_true(eval, "zero_optimization.zero_quantized_gradients") &&
        !eval->values->zero.reduce_scatter) {
        dsi_item_error(eval, dsi_item_find(eval, "zero_optimization.zero_quantized_gradients"),
                       "expected zero_optimization.reduce_scatter true with it, found false; "
                       "change one of them");
    }
}

/* LoCo: the section's presence turns it on, and each of its keys must be there. */
static void loco(dsi_eval *eval)
{
    const dsi_item *beta = dsi_item_find(eval, "zero_optimization.zeropp_loco_param.err_beta");
    const dsi_item *reset = dsi_item_find(eval, "zero_optimization.zeropp_loco_param.reset_T");
    ds_config_values *v = eval->values;
    v->zero.loco.enabled = beta != NULL && v->zero.quantized_gradients;
    if (beta == NULL) {
        return;
    }
    if (!dsi_item_given(beta) || !dsi_item_given(reset)) {
        dsi_item_error(eval, beta,
                       "expected both keys err_beta and reset_T, found fewer; "
                       "DeepSpeed documents 0.8 and 1024");
    } else if (!v->zero.quantized_gradients) {
        dsi_item_error(eval, beta,
                       "expected no zeropp_loco_param without "
                       "zero_optimization.zero_quantized_gradients: it is about what quantized "
                       "gradients lose");
    } else if (v->tensor_parallel > 1 || v->sequence_parallel > 1 || v->pipeline_stages > 1) {
        dsi_item_error(eval, beta,
                       "expected no zeropp_loco_param with " TP_KEY ", " SP_KEY " or " PP_KEY
                       ": what each rank's gradients lost is kept for data-parallel ranks only; "
                       "leave one of them out");
    }
}

/* What is in force on one rank, where nothing is sent, and not built for more. */
static void many_ranks(dsi_eval *eval)
{
    static const char *const switches[] = {
        "zero_optimization.mics_hierarchical_params_gather",
    };
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
    if (eval->values->zero_ranks < 2) {
        return;
    }
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; ++i) {
        const dsi_item *item = dsi_item_find(eval, ignored[i].path);
        if (dsi_item_given(item) && dsi_item_true(eval, ignored[i].path) == ignored[i].when) {
            dsi_item_notice(eval, item, "no effect here: %s", ignored[i].instead);
        }
    }
    if (dsi_item_int(eval, "zero_optimization.module_granularity_threshold", 0) > 0) {
        dsi_item_notice(eval, dsi_item_find(eval, "zero_optimization.module_granularity_threshold"),
                        "no effect here: parameters are gathered one by one, ahead of their use");
    }
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; ++i) {
        if (dsi_item_true(eval, switches[i])) {
            dsi_item_error(eval, dsi_item_find(eval, switches[i]),
                           "expected false on %" PRIu32 " ranks, found true: it is not built yet",
                           eval->values->zero_ranks);
        }
    }
}

/* What groups of ranks go with. */
static void group_goes(dsi_eval *eval, const char *path, const char *why)
{
    const ds_config_values *v = eval->values;
    const dsi_item *size = dsi_item_find(eval, path);
    const int64_t found = dsi_item_int(eval, path, 0);
    if (v->zero.stage != 3) {
        dsi_item_error(eval, size,
                       "expected none with zero_optimization.stage %" PRId64 ", found %" PRId64
                       ": %s; set the stage to 3",
                       v->zero.stage, found, why);
    }
    if (v->zero.zenflow.enabled) {
        dsi_item_error(eval, size,
                       "expected none with zero_optimization.zenflow, found %" PRId64
                       "; change one of them",
                       found);
    }
}

static void groups(dsi_eval *eval)
{
    const ds_config_zero *zero = &eval->values->zero;
    const bool several = eval->values->zero_ranks > 1;
    const bool mics = zero->mics_shard_size > 0 && several;
    const bool hpz = zero->hpz_partition_size > 1 && several;
    if (mics) {
        group_goes(eval, "zero_optimization.mics_shard_size",
                   "MiCS shards parameters, gradients and states alike");
    }
    if (hpz) {
        group_goes(eval, "zero_optimization.zero_hpz_partition_size",
                   "hpZ is about parameters that are sharded");
    }
    if (hpz && eval->values->zero.offload_param.device != DS_OFFLOAD_NONE) {
        dsi_item_error(eval, dsi_item_find(eval, "zero_optimization.zero_hpz_partition_size"),
                       "expected 1 with zero_optimization.offload_param, found %" PRId64
                       ": a group's parameters are gathered into memory; change one of them",
                       zero->hpz_partition_size);
    }
    if (mics && hpz) {
        dsi_item_error(eval, dsi_item_find(eval, "zero_optimization.zero_hpz_partition_size"),
                       "expected 1 with zero_optimization.mics_shard_size, found %" PRId64
                       "; change one of them",
                       zero->hpz_partition_size);
    }
}

/* What is sent as blocks of whole numbers: slices of parameters, and terms of slices of gradients.
 */
static void quantized(dsi_eval *eval)
{
    static const char *const weights[] = {
        "zero_optimization.zero_quantized_weights",
        "zero_optimization.zero_quantized_nontrainable_weights",
    };
    static const char gradients[] = "zero_optimization.zero_quantized_gradients";
    const ds_config_zero *zero = &eval->values->zero;
    if (eval->values->zero_ranks < 2) {
        return;
    }
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; ++i) {
        if (dsi_item_true(eval, weights[i]) && zero->stage != 3) {
            dsi_item_error(eval, dsi_item_find(eval, weights[i]),
                           "expected false with zero_optimization.stage %" PRId64
                           ", found true: only stage 3 gathers weights; change one of them",
                           zero->stage);
        }
    }
    if (zero->quantized_gradients && zero->stage == 0) {
        dsi_item_error(eval, dsi_item_find(eval, gradients),
                       "expected false with zero_optimization.stage 0, found true: gradients are "
                       "quantized where they are reduced to slices; set the stage to 1, 2 or 3");
    }
    if (zero->quantized_gradients && zero->mics_shard_size > 0) {
        dsi_item_error(eval, dsi_item_find(eval, gradients),
                       "expected false with zero_optimization.mics_shard_size, found true: use "
                       "zero_hpz_partition_size for groups, or leave one of them out");
    }
}

static void data_parallel_size(dsi_eval *eval)
{
    const int64_t size = dsi_item_int(eval, "data_parallel_size", 0);
    const uint32_t ranks = eval->values->data_ranks;
    if (size != 0 && ranks != 0 && size != (int64_t)ranks) {
        dsi_item_error(eval, dsi_item_find(eval, "data_parallel_size"),
                       "expected the %s, %" PRIu32 ", found %" PRId64 "; remove the key",
                       dsi_config_data_text(eval), ranks, size);
    }
}

/* What experts on several ranks do not go with yet. */
static void experts(dsi_eval *eval)
{
    const ds_config_values *v = eval->values;
    const dsi_item *item = dsi_item_find(eval, "expert_parallel.load_balance_coeff");
    if (v->expert_parallel > 1 && v->zero.zenflow.enabled) {
        dsi_item_error(eval, dsi_item_find(eval, EP_KEY),
                       "expected 1 with zero_optimization.zenflow, found %" PRIu32
                       "; change one of them",
                       v->expert_parallel);
    }
    if (dsi_item_given(item) && item->given->kind != DSI_NODE_NULL &&
        !dsi_item_true(eval, "expert_parallel.enabled")) { /* as DeepSpeed: also while it is off */
        dsi_item_error(eval, item, "DeepSpeed refuses it as well; remove the key");
    }
}

/* Halves of a micro-batch hide what ranks of one layer send each other. */
static void domino(dsi_eval *eval)
{
    const int64_t tp = dsi_item_int(eval, TP_KEY, 0);
    const dsi_item *item = dsi_item_find(eval, "tensor_parallel.domino");
    if (eval->values->tp_domino && tp < 2) {
        dsi_item_error(eval, item,
                       "expected " TP_KEY " of 2 or more with it, found %" PRId64
                       ": there is no communication to hide; set domino to false",
                       tp);
    }
}

/* Sequences in chunks: what cuts sequences or rows in another way does not go with it. */
static void chunks(dsi_eval *eval)
{
    const ds_config_values *v = eval->values;
    const dsi_item *size = dsi_item_find(eval, "sequence_parallel.chunk_size");
    const dsi_item *offload = dsi_item_find(eval, "sequence_parallel.offload");
    const dsi_item *path = dsi_item_find(eval, "sequence_parallel.nvme_path");
    if (v->sequence_chunk > 0) {
        if (v->tp_domino) {
            dsi_item_error(eval, size,
                           "does not go with tensor_parallel.domino: halves of rows take turns to "
                           "hide what ranks send, chunks so that one of them is in memory; set "
                           "domino to false");
        }
        if (v->mlp_tile_tokens > 0 && v->mlp_tile_tokens < v->sequence_chunk) {
            dsi_item_error(eval, size,
                           "expected at most mlp_tile_tokens, %" PRId64 ", found %" PRId64
                           ": a chunk is the tile of the feed-forward parts; lower it, or set "
                           "mlp_tile_tokens to 0",
                           v->mlp_tile_tokens, v->sequence_chunk);
        }
    } else if (v->sequence_offload != DS_OFFLOAD_NONE) {
        dsi_item_error(eval, offload,
                       "expected sequence_parallel.chunk_size with it, found none; "
                       "set the positions of a chunk, or offload to \"none\"");
    }
    if ((v->sequence_offload == DS_OFFLOAD_NVME) != (v->sequence_path != NULL)) {
        dsi_item_error(eval, v->sequence_path != NULL ? path : offload,
                       "expected both or neither of sequence_parallel.offload \"nvme\" and "
                       "sequence_parallel.nvme_path, found one");
    }
    const char *kept = v->activation_checkpointing.nvme_path;
    if (v->sequence_path != NULL && kept != NULL && strcmp(v->sequence_path, kept) != 0) {
        dsi_item_error(eval, path,
                       "expected the folder of activation_checkpointing.nvme_path, \"%s\", found "
                       "another: what waits shares its file",
                       kept);
    }
    if (v->sequence_offload == DS_OFFLOAD_CPU && v->device_memory <= 0) {
        dsi_item_notice(eval, offload,
                        "no effect without device_memory: the device of this "
                        "accelerator is all of host memory");
    }
}

/* What says how ranks share sequences, where they do not, or not in that way. */
static void sequences(dsi_eval *eval)
{
    const dsi_item *attention = dsi_item_find(eval, "sequence_parallel.attention");
    const dsi_item *balance = dsi_item_find(eval, "sequence_parallel.load_balance");
    const ds_config_values *v = eval->values;
    if (eval->world_size == 0) {
        return;
    }
    if (dsi_item_given(attention) && v->sequence_parallel < 2) {
        dsi_item_notice(eval, attention,
                        "no effect with " SP_KEY " %" PRIu32 ": no ranks share a sequence",
                        v->sequence_parallel);
    } else if (dsi_item_given(balance) &&
               (v->sequence_parallel < 2 || v->sequence_attention == 0)) {
        dsi_item_notice(eval, balance,
                        "no effect without " SP_KEY
                        " of 2 or more and sequence_parallel.attention \"ring\"");
    }
}

void dsi_config_ranks(dsi_eval *eval)
{
    chunks(eval);
    sequences(eval);
    experts(eval);
    reduction(eval);
    overlap(eval);
    zero_groups(eval);
    loco(eval);
    many_ranks(eval);
    domino(eval);
    groups(eval);
    quantized(eval);
    data_parallel_size(eval);
}
