/* SPDX-License-Identifier: Apache-2.0 */
/* The section elasticity: its parameters, and the batch triple that follows from them. Called by
 * config_batch.c, before it derives the triple.
 */
#include "config/config_eval.h"

#include "base/number.h"
#include "config/config_impl.h"
#include <deepspeed/context.h>
#include <deepspeed/elasticity.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SECTION "elasticity."

/* 1 and 2 for "0.1" and "0.2", as number or text; 0 after an error. */
static int read_version(dsi_eval *eval)
{
    const dsi_item *item = dsi_item_find(eval, SECTION "version");
    const dsi_node *node = item->node;
    double version = 0;
    if (node != NULL && dsi_node_is_number(node)) {
        version = dsi_node_real(node);
    } else if (node != NULL && node->kind == DSI_NODE_TEXT) {
        (void)dsi_number_real(node->as.text, &version);
    }
    if (version != 0.1 && version != 0.2) {
        dsi_item_error(eval, item, "expected 0.1 or 0.2, found another version; change it");
        return 0;
    }
    return version == 0.1 ? 1 : 2;
}

static bool read_sizes(dsi_eval *eval, ds_elastic_params *p)
{
    const dsi_item *item = dsi_item_find(eval, SECTION "micro_batch_sizes");
    const dsi_node *list = item->node;
    if (list == NULL || list->kind != DSI_NODE_LIST || list->n_children == 0) {
        dsi_item_error(eval, item, "expected a list of at least one size, found none");
        return false;
    }
    int64_t *sizes = dsi_arena_array(eval->arena, list->n_children, sizeof *sizes);
    if (sizes == NULL) {
        eval->no_memory = true;
        return false;
    }
    for (const dsi_node *node = list->first; node != NULL; node = node->next) {
        if (!dsi_node_int(node, &sizes[p->n_micro_batch_sizes++])) {
            return false; /* the walk has said so */
        }
    }
    p->micro_batch_sizes = sizes;
    return true;
}

static bool given(dsi_eval *eval, const char *path)
{
    const dsi_item *item = dsi_item_find(eval, path);
    if (item->given != NULL) {
        return true;
    }
    dsi_item_error(eval, item,
                   "expected a value with elasticity.enabled true, found none; give it");
    return false;
}

static bool read_params(dsi_eval *eval, ds_elastic_params *p)
{
    const bool has_cap = given(eval, SECTION "max_train_batch_size");
    const bool has_sizes = given(eval, SECTION "micro_batch_sizes");
    p->version = read_version(eval);
    if (!has_cap || !has_sizes || p->version == 0 || !read_sizes(eval, p)) {
        return false;
    }
    p->max_train_batch_size = dsi_item_int(eval, SECTION "max_train_batch_size", 0);
    p->min_gpus = dsi_item_int(eval, SECTION "min_gpus", 0);
    p->max_gpus = dsi_item_int(eval, SECTION "max_gpus", 0);
    p->num_gpus_per_node = dsi_item_int(eval, SECTION "num_gpus_per_node", 0);
    p->model_parallel_size = dsi_item_int(eval, SECTION "model_parallel_size", 0);
    p->prefer_larger_batch = dsi_item_true(eval, SECTION "prefer_larger_batch");
    return true;
}

static const char *const batch_keys[3] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                          "gradient_accumulation_steps"};

/* The batch keys belong to elasticity alone. */
static void refuse_batch_keys(dsi_eval *eval)
{
    const bool ignore = dsi_item_true(eval, SECTION "ignore_non_elastic_batch_info");
    for (int i = 0; i < 3; ++i) {
        const dsi_item *item = dsi_item_find(eval, batch_keys[i]);
        if (item->given != NULL && ignore) {
            dsi_item_notice(eval, item, "without effect: elasticity computes it");
        } else if (item->given != NULL) {
            dsi_item_error(
                eval, item,
                "expected no batch size with elasticity.enabled true, which computes it; "
                "remove the key, or set elasticity.ignore_non_elastic_batch_info");
        }
    }
}

static void set_triple(dsi_eval *eval, const ds_elastic_result *result)
{
    const int64_t each = result->train_batch_size / eval->values->data_ranks;
    const int64_t values[3] = {result->train_batch_size, result->micro_batch_size,
                               each / result->micro_batch_size};
    const ds_maybe flags[3] = {
        {0}, eval->trainer->micro_batch, eval->trainer->gradient_accumulation_steps};
    static const char *const names[3] = {"", "--micro_batch", "--gradient_accumulation_steps"};
    for (int i = 0; i < 3; ++i) {
        if (flags[i].known && flags[i].value != (double)values[i]) {
            dsi_item_error(eval, dsi_item_find(eval, SECTION "enabled"),
                           "%s is %.17g, elasticity computes %" PRId64 "; drop the flag", names[i],
                           flags[i].value, values[i]);
        }
        dsi_item_set(eval, dsi_item_find(eval, batch_keys[i]),
                     dsi_node_make_int(eval->arena, values[i]), DS_ORIGIN_RULE, "elasticity");
    }
}

bool dsi_config_elastic(dsi_eval *eval)
{
    if (!dsi_item_true(eval, SECTION "enabled")) {
        return false;
    }
    ds_elastic_params params = {0};
    refuse_batch_keys(eval);
    if (!read_params(eval, &params)) {
        return true;
    }
    ds_elastic_params *kept = dsi_arena_copy(eval->arena, &params, sizeof params);
    eval->no_memory = eval->no_memory || kept == NULL;
    eval->values->elasticity = kept;
    const uint32_t world = eval->values->data_ranks;
    ds_elastic_result result = {0};
    ds_ctx *ctx = NULL;
    ds_ctx_params quiet = ds_ctx_params_default();
    quiet.n_threads = 1;
    if (world == 0 && params.version == 2) { /* it says nothing without a number */
        return true;
    }
    if (ds_ctx_create(&quiet, &ctx) < 0) { /* only for the message */
        eval->no_memory = true;
        return true;
    }
    if (ds_elastic_compute(ctx, &params, world, &result) < 0) {
        dsi_item_error(eval, dsi_item_find(eval, SECTION "enabled"), "%s", ds_ctx_error(ctx));
    } else if (world != 0) {
        set_triple(eval, &result);
    }
    ds_elastic_free(&result);
    ds_ctx_destroy(&ctx);
    return world == 0;
}

const ds_elastic_params *ds_config_get_elasticity(const ds_config *config)
{
    return config->values.elasticity;
}
