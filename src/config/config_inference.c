/* SPDX-License-Identifier: Apache-2.0 */
/* The files of inference engines: which one a file is of, their rules, and what their keys come to
 * (ds_config_values.inference). Called by config.c in place of what training has. */
#include "config/config_eval.h"

#include <inttypes.h>
#include <string.h>

const dsi_section *const dsi_config_roots[] = {
    [DS_CONFIG_TRAINING] = &dsi_section_root,
    [DS_CONFIG_INFERENCE] = &dsi_section_inference,
    [DS_CONFIG_INFERENCE_V2] = &dsi_section_inference_v2,
    [DS_CONFIG_MII] = &dsi_section_mii,
};

static uint32_t n_strange(const dsi_section *section, const dsi_node *root)
{
    uint32_t n = 0;
    for (const dsi_node *child = root->first; child != NULL; child = child->next) {
        bool known = false;
        for (uint32_t i = 0; i < section->n_rows && !known; ++i) {
            known = dsi_option_has_name(&section->rows[i], child->key);
        }
        n += known ? 0 : 1;
    }
    return n;
}

ds_config_kind dsi_config_guess(const dsi_node *root)
{
    static const ds_config_kind order[] = {DS_CONFIG_INFERENCE, DS_CONFIG_INFERENCE_V2,
                                           DS_CONFIG_MII, DS_CONFIG_TRAINING};
    ds_config_kind best = order[0];
    for (size_t i = 1; i < sizeof order / sizeof order[0]; ++i) {
        if (n_strange(dsi_config_roots[order[i]], root) < n_strange(dsi_config_roots[best], root)) {
            best = order[i];
        }
    }
    return best;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Of several paths that mean one value the one that the file gives, rightly; NULL: none. */
static const dsi_item *first_given(const dsi_eval *eval, const char *const *paths, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        const dsi_item *item = dsi_item_find(eval, paths[i]);
        if (dsi_item_given(item) && item->node != NULL && item->node->kind != DSI_NODE_NULL) {
            return item;
        }
    }
    return NULL;
}

static void contradicts(dsi_eval *eval, const dsi_item *item, const dsi_item *other)
{
    dsi_buf found = dsi_buf_make(256);
    dsi_node_describe(&found, item->node);
    dsi_item_error(eval, item, "expected the value of %s, found %s; remove one of them",
                   other->path, dsi_buf_text(&found));
    dsi_buf_free(&found);
}

static void find_ranks(dsi_eval *eval, ds_config_inference *out)
{
    static const char *const paths[] = {
        "tensor_parallel.tp_size",
        "mp_size",
        "model_config.tensor_parallel",
        "tensor_parallel",
        "model_config.inference_engine_config.tensor_parallel.tp_size",
        "inference_engine_config.tensor_parallel.tp_size",
    };
    enum { PATHS = sizeof paths / sizeof paths[0] };
    static const char *const switches[] = {"tensor_parallel.enabled"};
    const dsi_item *enabled = first_given(eval, switches, 1);
    const bool off = enabled != NULL && !enabled->node->as.truth;
    const dsi_item *item = first_given(eval, paths, PATHS);
    for (size_t i = 0; i < PATHS; ++i) {
        const dsi_item *other = first_given(eval, &paths[i], 1);
        if (other != NULL && !dsi_node_equal(other->node, item->node)) {
            contradicts(eval, other, item);
            return;
        }
    }
    item = off ? enabled : item;
    if (off) {
        out->ranks = 1;
    } else if (item == NULL || !dsi_node_int(item->node, &out->ranks)) {
        return;
    }
    if (out->ranks > 1 && dsi_item_true(eval, "enable_cuda_graph")) {
        dsi_item_error(eval, dsi_item_find(eval, "enable_cuda_graph"),
                       "expected false with %s %" PRId64 ", as in DeepSpeed; remove it", item->path,
                       out->ranks);
    }
    if (eval->world_size != 0 && out->ranks != (int64_t)eval->world_size) {
        dsi_item_error(eval, item,
                       "expected the number of ranks that are started, %" PRIu32 ", found %" PRId64
                       "; start that many: deepspeed --num_gpus %" PRId64 " …",
                       eval->world_size, out->ranks, out->ranks);
    }
}

static void find_experts(dsi_eval *eval, ds_config_inference *out)
{
    static const char *const sizes[] = {"moe.ep_size", "ep_size"};
    static const char *const counts[] = {"moe.moe_experts", "moe_experts"};
    const dsi_item *size = first_given(eval, sizes, 2);
    const dsi_item *count = first_given(eval, counts, 2);
    int64_t ranks = 1;
    if (size != NULL && dsi_node_int(size->node, &ranks) && ranks > 1 && eval->world_size != 0 &&
        ranks != (int64_t)eval->world_size) {
        dsi_item_error(eval, size,
                       "expected 1, or the number of ranks that are started, %" PRIu32
                       ", found %" PRId64,
                       eval->world_size, ranks);
    }
    for (const dsi_node *n = count != NULL ? count->node->first : NULL; n != NULL; n = n->next) {
        int64_t experts = 0;
        (void)dsi_node_int(n, &experts);
        if (n != count->node->first && experts != out->n_experts) {
            dsi_item_error(eval, count,
                           "expected the same number for all layers, found %" PRId64
                           " and %" PRId64,
                           out->n_experts, experts);
            return;
        }
        out->n_experts = experts;
    }
    out->n_experts = out->n_experts == 1 ? 0 : out->n_experts; /* the default asks for nothing */
}

/* ---- weights --------------------------------------------------------------------------------- */

/* The type of blocks that `bits` are; NONE: there is none. */
static ds_dtype blocks_of(int64_t bits, bool asymmetric)
{
    switch (bits) {
    case 8:
        return DS_DTYPE_Q8_0;
    case 6:
        return DS_DTYPE_Q6_K;
    case 5:
        return asymmetric ? DS_DTYPE_Q5_1 : DS_DTYPE_Q5_0;
    case 4:
        return asymmetric ? DS_DTYPE_Q4_1 : DS_DTYPE_Q4_0;
    default:
        return DS_DTYPE_NONE;
    }
}

/* A switch of a section: true where the file does not say otherwise. */
static bool is_on(const dsi_eval *eval, const char *path)
{
    const dsi_item *item = dsi_item_find(eval, path);
    return item == NULL || item->node == NULL || item->node->as.truth;
}

static void find_int8(dsi_eval *eval, ds_config_inference *out)
{
    const char *type = dsi_item_text(eval, "quant.weight.q_type");
    const bool asymmetric = type != NULL && strcmp(type, "asymmetric") == 0;
    const int64_t bits = dsi_item_int(eval, "quant.weight.num_bits", 8);
    if (!is_on(eval, "quant.enabled") || !is_on(eval, "quant.weight.enabled")) {
        return;
    }
    out->quantize = blocks_of(bits, asymmetric);
    if (out->quantize == DS_DTYPE_NONE) {
        dsi_item_error(eval, dsi_item_find(eval, "quant.weight.num_bits"),
                       "expected 4, 5, 6 or 8, found %" PRId64, bits);
    }
    if (asymmetric && bits > 5) {
        dsi_item_notice(eval, dsi_item_find(eval, "quant.weight.q_type"),
                        "no effect: %" PRId64 " bits are symmetric here, as DeepSpeed's int8 is",
                        bits);
    }
    if (!is_on(eval, "quant.activation.enabled")) {
        dsi_item_error(eval, dsi_item_find(eval, "quant.activation.enabled"),
                       "expected true with dtype int8, whose products round what they read to "
                       "bytes; or take dtype fp16");
    }
}

/* Of init_inference. */
static void find_dtype(dsi_eval *eval, ds_config_inference *out)
{
    enum { NAMES = 4 }; /* of a type, in the row's choices */
    static const ds_dtype types[] = {DS_DTYPE_F16, DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    const dsi_item *item = dsi_item_find(eval, "dtype");
    const int index = item != NULL && item->node != NULL
                          ? dsi_choice_index(item->option->choices, item->node->as.text, false)
                          : 0;
    if (index < 0) {
        return;
    }
    out->dtype = types[index / NAMES];
    if (index / NAMES == 3) {
        find_int8(eval, out);
    } else if (dsi_item_find(eval, "quant.enabled") != NULL && is_on(eval, "quant.enabled")) {
        dsi_item_notice(eval, dsi_item_find(eval, "quant.enabled"),
                        "no effect with dtype %s, as in DeepSpeed: \"dtype\": \"int8\" asks for "
                        "quantized weights",
                        item->node->as.text);
    }
}

/* Of the ragged engine and MII: "wf6af16". */
static void find_mode(const dsi_eval *eval, ds_config_inference *out)
{
    static const char *const paths[] = {
        "quantization.quantization_mode",
        "quantization_mode",
        "model_config.quantization_mode",
        "inference_engine_config.quantization.quantization_mode",
        "model_config.inference_engine_config.quantization.quantization_mode",
    };
    if (first_given(eval, paths, sizeof paths / sizeof paths[0]) != NULL) {
        out->quantize = DS_DTYPE_Q6_K;
        out->dtype = DS_DTYPE_F16;
    }
}

static void find_weights(dsi_eval *eval, const dsi_node *root, ds_config_inference *out)
{
    static const char *const copies[] = {"save_mp_checkpoint_path",
                                         "checkpoint_config.save_mp_checkpoint_path"};
    static const char *const folders[] = {"checkpoint_config.base_dir", "base_dir"};
    const dsi_item *copy = first_given(eval, copies, 2);
    const dsi_item *base = first_given(eval, folders, 2);
    const dsi_node *checkpoint = dsi_node_find(root, "checkpoint");
    const bool described = checkpoint != NULL && checkpoint->kind != DSI_NODE_NULL;
    out->copy = copy != NULL ? copy->node->as.text : NULL;
    if (described) {
        out->weights = eval->diags->name; /* safetensors_described.c reads it there */
    } else if (out->checkpoint_dir != NULL) {
        const bool joins =
            base != NULL && base->node->as.text[0] != '\0' && out->checkpoint_dir[0] != '/';
        out->weights = joins
                           ? dsi_eval_text(eval, "%s/%s", base->node->as.text, out->checkpoint_dir)
                           : out->checkpoint_dir;
    }
    if (described && out->checkpoint_dir != NULL) {
        dsi_item_error(eval, dsi_item_find(eval, "checkpoint_config.checkpoint_dir"),
                       "expected none beside checkpoint, found \"%s\"; remove one of them",
                       out->checkpoint_dir);
    }
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* In a file of another kind the items are absent. */
static void check_ragged(dsi_eval *eval, const char *prefix)
{
    static const char *const limits[] = {"max_tracked_sequences", "max_ragged_batch_size"};
    const char *path = dsi_eval_text(eval, "%sstate_manager.max_ragged_sequence_count", prefix);
    const int64_t count = dsi_item_int(eval, path, 0);
    for (size_t i = 0; i < 2; ++i) {
        const char *other = dsi_eval_text(eval, "%sstate_manager.%s", prefix, limits[i]);
        const int64_t limit = dsi_item_int(eval, other, INT64_MAX);
        if (count > limit) {
            dsi_item_error(eval, dsi_item_find(eval, path),
                           "expected at most %s = %" PRId64 ", found %" PRId64, other, limit,
                           count);
        }
    }
}

/* MII's keys of the model stand at the top or in model_config: at both with one value. */
static void check_twice(dsi_eval *eval)
{
    static const char inner[] = "model_config.";
    for (size_t i = 0; i < eval->n_items; ++i) {
        const dsi_item *item = &eval->items[i];
        if (strncmp(item->path, inner, sizeof inner - 1) != 0 || !dsi_item_given(item)) {
            continue;
        }
        const dsi_item *other = dsi_item_find(eval, item->path + sizeof inner - 1);
        if (dsi_item_given(other) && !dsi_node_equal(item->given, other->given)) {
            contradicts(eval, item, other);
        }
    }
}

/* MII's length, within that of its engine. */
static void find_length(dsi_eval *eval, ds_config_inference *out)
{
    static const char *const lengths[] = {"max_length", "model_config.max_length"};
    static const char *const contexts[] = {
        "inference_engine_config.state_manager.max_context",
        "model_config.inference_engine_config.state_manager.max_context",
    };
    const dsi_item *length = first_given(eval, lengths, 2);
    const dsi_item *context = first_given(eval, contexts, 2);
    int64_t most = INT64_MAX;
    if (length == NULL || !dsi_node_int(length->node, &out->max_length)) {
        return;
    }
    if (context != NULL && dsi_node_int(context->node, &most) && out->max_length > most) {
        dsi_item_error(eval, length, "expected at most %s = %" PRId64 ", found %" PRId64,
                       context->path, most, out->max_length);
    }
}

static void check_injection(dsi_eval *eval)
{
    const dsi_item *policy = dsi_item_find(eval, "injection_policy");
    if (dsi_item_given(policy) && dsi_item_true(eval, "replace_with_kernel_inject")) {
        dsi_item_error(eval, policy,
                       "expected none with replace_with_kernel_inject true, found an object; "
                       "remove one of them");
    }
}

static void check_lengths(dsi_eval *eval, const ds_config_inference *out)
{
    if (out->min_length > out->max_length) {
        dsi_item_error(eval, dsi_item_find(eval, "min_out_tokens"),
                       "expected at most max_out_tokens = %" PRId64 ", found %" PRId64,
                       out->max_length, out->min_length);
    }
}

void dsi_config_inference_rules(dsi_eval *eval, const dsi_node *root)
{
    ds_config_inference *out = &eval->values->inference;
    check_ragged(eval, "");
    check_ragged(eval, "inference_engine_config.");
    check_ragged(eval, "model_config.inference_engine_config.");
    check_twice(eval);
    find_ranks(eval, out);
    if (eval->root == &dsi_section_inference) {
        check_injection(eval);
        check_lengths(eval, out);
        find_dtype(eval, out);
        find_experts(eval, out);
        find_weights(eval, root, out);
        out->zero = dsi_node_find(root, "zero");
    } else {
        find_length(eval, out);
        find_mode(eval, out);
    }
}
