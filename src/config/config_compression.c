/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the section compression_training: its groups become one list. Called by config_rules.c
 * as one of its rules. docs/internals/compress.md. */
#include "config/config_eval.h"

#include <inttypes.h>
#include <string.h>

static const char root[] = "compression_training";
static const char *const names[DS_COMPRESS_COUNT] = {[DS_COMPRESS_WEIGHTS] = "weight_quantization",
                                                     [DS_COMPRESS_ACTIVATIONS] =
                                                         "activation_quantization",
                                                     [DS_COMPRESS_SPARSE] = "sparse_pruning",
                                                     [DS_COMPRESS_ROWS] = "row_pruning",
                                                     [DS_COMPRESS_HEADS] = "head_pruning",
                                                     [DS_COMPRESS_CHANNELS] = "channel_pruning"};

typedef struct reader {
    dsi_eval *eval;
    const char *shared, *group; /* paths */
    const dsi_item *at;         /* for errors */
    ds_compress_group *to;
} reader;

static const char *shared_key(const reader *r, const char *key)
{
    return dsi_eval_text(r->eval, "%s.%s", r->shared, key);
}

static const char *own_key(const reader *r, const char *key)
{
    return dsi_eval_text(r->eval, "%s.params.%s", r->group, key);
}

static bool is_true(const reader *r, const char *key)
{
    return dsi_item_true(r->eval, shared_key(r, key));
}

static bool is_text(const reader *r, const char *key, const char *text)
{
    const char *value = dsi_item_text(r->eval, shared_key(r, key));
    return value != NULL && strcmp(value, text) == 0;
}

static double real_of(const reader *r, const char *path, double absent)
{
    const dsi_item *item = dsi_item_find(r->eval, path);
    return item != NULL && item->node != NULL && dsi_node_is_number(item->node)
               ? dsi_node_real(item->node)
               : absent;
}

/* A number that the group must have. */
static bool need(const reader *r, const char *key)
{
    const dsi_item *item = dsi_item_find(r->eval, own_key(r, key));
    if (item != NULL && item->node != NULL) {
        return true;
    }
    dsi_item_error(r->eval, r->at, "params needs \"%s\"", key);
    return false;
}

static void append(const reader *r, const char *key, char *text, const char *more,
                   const char *between)
{
    const size_t n = strlen(text);
    if (n + strlen(more) + 2 > DS_CONFIG_TEXT_BYTES || strpbrk(more, "\n\t") != NULL) {
        dsi_item_error(r->eval, r->at,
                       "%s: expected names of fewer than %d bytes in all, without tabs and line "
                       "breaks",
                       key, DS_CONFIG_TEXT_BYTES);
        return;
    }
    (void)strcpy(text + n, more);
    (void)strcpy(text + n + strlen(more), between);
}

static void read_modules(const reader *r)
{
    const dsi_item *modules =
        dsi_item_find(r->eval, dsi_eval_text(r->eval, "%s.modules", r->group));
    const dsi_item *related =
        dsi_item_find(r->eval, dsi_eval_text(r->eval, "%s.related_modules", r->group));
    const dsi_node *node = modules != NULL ? modules->node : NULL;
    if (node != NULL && node->kind == DSI_NODE_TEXT) {
        append(r, "modules", r->to->modules, node->as.text, "\n");
    }
    for (const dsi_node *n = node != NULL && node->kind == DSI_NODE_LIST ? node->first : NULL;
         n != NULL; n = n->next) {
        append(r, "modules", r->to->modules, n->as.text, "\n");
    }
    if (r->to->modules[0] == '\0') {
        (void)strcpy(r->to->modules, "*\n");
    }
    node = related != NULL ? related->node : NULL;
    for (const dsi_node *line = node != NULL && node->kind == DSI_NODE_LIST ? node->first : NULL;
         line != NULL; line = line->next) {
        for (const dsi_node *n = line->kind == DSI_NODE_LIST ? line->first : NULL; n != NULL;
             n = n->next) {
            if (n->kind == DSI_NODE_TEXT) {
                append(r, "related_modules", r->to->related, n->as.text, "\t");
            }
        }
        append(r, "related_modules", r->to->related, "", "\n");
    }
}

static void read_weights(const reader *r)
{
    ds_compress_group *to = r->to;
    dsi_eval *eval = r->eval;
    if (!need(r, "start_bits") || !need(r, "target_bits")) {
        return;
    }
    to->in_forward = is_true(r, "quantize_weight_in_forward");
    to->stochastic = is_text(r, "rounding", "stochastic");
    to->verbose = is_true(r, "quantize_verbose");
    to->mixed = is_true(r, "fp16_mixed_quantize.enabled");
    to->change_ratio =
        real_of(r, shared_key(r, "fp16_mixed_quantize.quantize_change_ratio"), 0.001);
    to->groups = dsi_item_int(eval, shared_key(r, "quantize_groups"), 1);
    to->start_bits = dsi_item_int(eval, own_key(r, "start_bits"), 8);
    to->target_bits = dsi_item_int(eval, own_key(r, "target_bits"), 8);
    to->period = dsi_item_int(eval, own_key(r, "quantization_period"), 1);
    const dsi_item *target = dsi_item_find(eval, own_key(r, "target_bits"));
    if (to->target_bits > to->start_bits) {
        dsi_item_error(eval, target, "expected at most start_bits, %" PRId64 ", found %" PRId64,
                       to->start_bits, to->target_bits);
    }
    if (to->target_bits < 3 && to->asymmetric) {
        dsi_item_error(eval, target,
                       "1 and 2 bits need quantization_type \"symmetric\", found \"asymmetric\"");
    }
    if (to->target_bits < 3 && to->stochastic) {
        dsi_item_error(eval, target,
                       "1 and 2 bits need rounding \"nearest\", found \"stochastic\"");
    }
    if (to->in_forward && (to->stochastic || to->mixed)) {
        dsi_item_error(eval, dsi_item_find(eval, shared_key(r, "quantize_weight_in_forward")),
                       "expected false with rounding \"stochastic\" or fp16_mixed_quantize, which "
                       "DeepSpeed leaves out of the forward pass; change one of them");
    }
}

static void read_activations(const reader *r)
{
    const char *bits = own_key(r, "bits");
    if (!need(r, "bits")) {
        return;
    }
    r->to->bits = dsi_item_int(r->eval, bits, 8);
    if (r->to->bits != 4 && r->to->bits != 8) {
        dsi_item_error(r->eval, dsi_item_find(r->eval, bits), "expected 4 or 8, found %" PRId64,
                       r->to->bits);
    }
    if (is_text(r, "range_calibration", "static")) {
        dsi_item_error(r->eval, dsi_item_find(r->eval, shared_key(r, "range_calibration")),
                       "\"static\" is not built; set it to \"dynamic\", a range for each token");
    }
}

static void read_pruning(const reader *r)
{
    ds_compress_group *to = r->to;
    const char *method = shared_key(r, "method");
    if (!need(r, "dense_ratio")) {
        return;
    }
    to->dense_ratio = real_of(r, own_key(r, "dense_ratio"), 1.0);
    to->scores = is_text(r, "method", "topk");
    if (to->technique != DS_COMPRESS_HEADS) {
        return;
    }
    to->heads = dsi_item_int(r->eval, shared_key(r, "num_heads"), 0);
    if (to->heads < 1) {
        dsi_item_error(r->eval, r->at, "head_pruning needs num_heads");
    }
    if (!to->scores) {
        dsi_item_error(r->eval, dsi_item_find(r->eval, method),
                       "expected \"topk\", found \"l1\", which DeepSpeed does not have for heads");
    }
}

static void read_group(const reader *r)
{
    r->to->offset = dsi_item_int(r->eval, shared_key(r, "schedule_offset"), 0);
    r->to->asymmetric = is_text(r, "quantization_type", "asymmetric");
    read_modules(r);
    if (r->to->technique == DS_COMPRESS_WEIGHTS) {
        read_weights(r);
    } else if (r->to->technique == DS_COMPRESS_ACTIVATIONS) {
        read_activations(r);
    } else {
        read_pruning(r);
    }
}

/* The path of the group whose key `modules` an item is, of a technique; NULL: it is none. */
static const char *group_of(dsi_eval *eval, int technique, const dsi_item *item)
{
    static const char end[] = ".modules";
    const char *start = dsi_eval_text(eval, "%s.%s.different_groups.", root, names[technique]);
    const size_t n = strlen(item->path), head = strlen(start), tail = sizeof end - 1;
    return n > head + tail && strncmp(item->path, start, head) == 0 &&
                   strcmp(item->path + n - tail, end) == 0
               ? dsi_eval_text(eval, "%.*s", (int)(n - tail), item->path)
               : NULL;
}

static uint32_t count_groups(dsi_eval *eval, int technique)
{
    uint32_t n = 0;
    for (size_t i = 0; i < eval->n_items; ++i) {
        n += group_of(eval, technique, &eval->items[i]) != NULL;
    }
    return n;
}

/* How many groups of a technique are in force; 0: it is not enabled. */
static uint32_t enabled_groups(dsi_eval *eval, int technique)
{
    const char *path = dsi_eval_text(eval, "%s.%s", root, names[technique]);
    const char *shared = dsi_eval_text(eval, "%s.shared_parameters", path);
    const char *method = dsi_eval_text(eval, "%s.method", shared);
    const dsi_item *enabled = dsi_item_find(eval, dsi_eval_text(eval, "%s.enabled", shared));
    const char *how = dsi_item_text(eval, method);
    if (!dsi_item_true(eval, dsi_eval_text(eval, "%s.enabled", shared))) {
        return 0;
    }
    if (technique == DS_COMPRESS_CHANNELS) {
        dsi_item_error(eval, enabled,
                       "channels are those of convolutions, and no model here has any; set it to "
                       "false");
        return 0;
    }
    if (technique == DS_COMPRESS_SPARSE && how != NULL && strcmp(how, "snip_momentum") == 0) {
        dsi_item_error(eval, dsi_item_find(eval, method),
                       "\"snip_momentum\" is not available: DeepSpeed leaves it to a package of "
                       "Intel's, and imports that by a name that it has not; use \"l1\" or "
                       "\"topk\"");
        return 0;
    }
    const uint32_t n = count_groups(eval, technique);
    if (n == 0) {
        dsi_item_error(eval, enabled,
                       "%s is enabled, but different_groups names no group of modules",
                       names[technique]);
    }
    return n;
}

static void read_groups(dsi_eval *eval, int technique, ds_config_compression *c)
{
    for (size_t i = 0; i < eval->n_items; ++i) {
        const char *path = group_of(eval, technique, &eval->items[i]);
        if (path == NULL) {
            continue;
        }
        ds_compress_group *to = &c->groups[c->n_groups++];
        const char *shared = dsi_eval_text(eval, "%s.%s.shared_parameters", root, names[technique]);
        const reader r = {
            .eval = eval, .shared = shared, .group = path, .at = &eval->items[i], .to = to};
        const char *name = path + strlen(root) + strlen(names[technique]) + 19;
        to->technique = (ds_compress_technique)technique;
        if (strlen(name) >= sizeof to->name) {
            dsi_item_error(eval, r.at, "expected a group's name of fewer than %zu bytes",
                           sizeof to->name);
            continue;
        }
        (void)strcpy(to->name, name);
        read_group(&r);
    }
}

/* What compressed layers cannot go with. */
static void compression_needs(dsi_eval *eval, const dsi_item *enabled)
{
    const ds_config_values *v = eval->values;
    if (v->tensor_parallel > 1) {
        dsi_item_error(eval, dsi_item_find(eval, "tensor_parallel.autotp_size"),
                       "expected 0 or 1 with compression_training, found %" PRIu32
                       ": scales and masks are of whole weights; change one of them",
                       v->tensor_parallel);
    }
    if (v->sequence_parallel > 1) {
        dsi_item_error(eval, dsi_item_find(eval, "sequence_parallel_size"),
                       "expected 1 with compression_training, found %" PRIu32
                       ": ranges are of whole sequences; change one of them",
                       v->sequence_parallel);
    }
    if (v->zero.zenflow.enabled) {
        dsi_item_error(eval, enabled,
                       "cannot go with zero_optimization.zenflow; leave one of them out");
    }
}

void dsi_config_compression(dsi_eval *eval)
{
    uint32_t counts[DS_COMPRESS_COUNT];
    uint32_t n = 0;
    const dsi_item *enabled = NULL;
    for (int t = 0; t < DS_COMPRESS_COUNT; ++t) {
        counts[t] = enabled_groups(eval, t);
        n += counts[t];
        if (counts[t] > 0) {
            enabled = dsi_item_find(
                eval, dsi_eval_text(eval, "%s.%s.shared_parameters.enabled", root, names[t]));
        }
    }
    if (n == 0) {
        return;
    }
    if (n > DS_COMPRESS_MAX_GROUPS) {
        dsi_item_error(eval, enabled, "expected at most %d groups, found %" PRIu32,
                       DS_COMPRESS_MAX_GROUPS, n);
        return;
    }
    ds_config_compression *c = dsi_arena_alloc(eval->arena, dsi_compression_bytes(n));
    if (c == NULL) {
        eval->no_memory = true;
        return;
    }
    memset(c, 0, dsi_compression_bytes(n));
    for (int t = 0; t < DS_COMPRESS_COUNT; ++t) {
        if (counts[t] > 0) {
            read_groups(eval, t, c);
        }
    }
    compression_needs(eval, enabled);
    eval->values->compression = c;
}

size_t dsi_compression_bytes(uint32_t n_groups)
{
    return sizeof(ds_config_compression) + (size_t)n_groups * sizeof(ds_compress_group);
}

const char *dsi_compress_technique_name(ds_compress_technique technique)
{
    return names[technique];
}
