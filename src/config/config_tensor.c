/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of tensor_parallel.partition_config: its layer_specs become one list. Called by
 * config_rules.c as one of its rules. What they mean for a model: compile/tensor_specs.c. */
#include "config/config_eval.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

#define ROOT "tensor_parallel.partition_config"

typedef struct reader {
    dsi_eval *eval;
    uint32_t index;
    ds_tensor_spec *to;
} reader;

static const dsi_item *item_of(const reader *r, const char *key)
{
    return dsi_item_find(
        r->eval, dsi_eval_text(r->eval, ROOT ".layer_specs[%" PRIu32 "].%s", r->index, key));
}

/* A list of texts, a line each. */
static void read_lines(const reader *r, const char *key, char *lines)
{
    const dsi_item *item = item_of(r, key);
    const dsi_node *list = item != NULL ? item->node : NULL;
    size_t at = 0;
    for (const dsi_node *n = list != NULL && list->kind == DSI_NODE_LIST ? list->first : NULL;
         n != NULL; n = n->next) {
        const size_t bytes = strlen(n->as.text);
        if (at + bytes + 2 > DS_CONFIG_TEXT_BYTES || strchr(n->as.text, '\n') != NULL) {
            dsi_item_error(r->eval, item,
                           "expected texts of fewer than %d bytes in all, without line breaks",
                           DS_CONFIG_TEXT_BYTES);
            return;
        }
        memcpy(lines + at, n->as.text, bytes);
        lines[at + bytes] = '\n';
        at += bytes + 1;
    }
}

/* [n, -1]: n equal parts side by side on the dim that is cut. */
static void read_shape(const reader *r)
{
    const dsi_item *item = item_of(r, "shape");
    const dsi_node *list = item != NULL ? item->node : NULL;
    const dsi_node *second = NULL;
    int64_t parts = 0;
    int64_t rest = 0;
    if (list == NULL || list->kind != DSI_NODE_LIST) {
        return;
    }
    second = list->first != NULL ? list->first->next : NULL;
    if (second == NULL || second->next != NULL || !dsi_node_int(list->first, &parts) ||
        !dsi_node_int(second, &rest) || parts < 1 || parts > 8 || rest != -1) {
        dsi_item_error(r->eval, item,
                       "expected [n, -1], 1 to 8 equal parts of the outputs: parts of different "
                       "sizes and experts are not split here; remove the key, and what can be "
                       "split is found from the model");
        return;
    }
    r->to->parts = (uint32_t)parts;
}

static void read_spec(const reader *r)
{
    const dsi_item *type = item_of(r, "partition_type");
    const dsi_item *dim = item_of(r, "partition_dim");
    const dsi_item *gather = item_of(r, "gather_output");
    const char *text = type != NULL && type->node != NULL && type->node->kind == DSI_NODE_TEXT
                           ? type->node->as.text
                           : "column";
    *r->to = (ds_tensor_spec){.type = strcasecmp(text, "skip") == 0  ? DS_TENSOR_SKIP
                                      : strcasecmp(text, "row") == 0 ? DS_TENSOR_ROW
                                                                     : DS_TENSOR_COLUMN,
                              .dim = -1};
    read_lines(r, "patterns", r->to->patterns);
    read_lines(r, "model_types", r->to->model_types);
    read_shape(r);
    if (dim != NULL && dim->node != NULL && dsi_node_int(dim->node, &r->to->dim) &&
        r->to->dim > 1) {
        dsi_item_error(r->eval, dim, "expected 0 or 1, the dims of a matrix, found %" PRId64,
                       r->to->dim);
    }
    r->to->gathers = gather != NULL && gather->node != NULL &&
                     gather->node->kind == DSI_NODE_BOOL && gather->node->as.truth;
}

void dsi_config_tensor(dsi_eval *eval)
{
    const dsi_item *list = dsi_item_find(eval, ROOT ".layer_specs");
    uint32_t n = 0;
    if (list == NULL && dsi_item_find(eval, ROOT ".strict_mode") == NULL) {
        return; /* no such section */
    }
    while (dsi_item_find(eval, dsi_eval_text(eval, ROOT ".layer_specs[%" PRIu32 "].patterns", n)) !=
           NULL) {
        ++n;
    }
    ds_config_tensor *c =
        dsi_arena_alloc(eval->arena, sizeof *c + (size_t)n * sizeof(ds_tensor_spec));
    if (c == NULL) {
        eval->no_memory = true;
        return;
    }
    c->n_specs = n;
    c->strict = dsi_item_true(eval, ROOT ".strict_mode");
    c->finds = dsi_item_true(eval, ROOT ".use_default_specs");
    for (uint32_t i = 0; i < n; ++i) {
        const reader r = {.eval = eval, .index = i, .to = &c->specs[i]};
        read_spec(&r);
    }
    eval->values->tensor = c;
}
