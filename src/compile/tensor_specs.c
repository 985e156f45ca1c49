/* SPDX-License-Identifier: Apache-2.0 */
/* Specs against parameters. See tensor_specs.h. Expressions are Python's, matched from the name's
 * first letter on, read by PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "compile/tensor_specs.h"

#include "ir/graph.h"
#include "op/ops.h"

#include <pcre2.h>
#include <string.h>
#include <strings.h>

#define KEY "tensor_parallel.partition_config.layer_specs"

/* A matrix of the model and how the graph reads it. */
typedef struct layer {
    const char *name;
    uint32_t n_dims;
    int out_dim, in_dim; /* of a linear layer; -1: it is none */
    bool table;          /* rows of the vocabulary */
} layer;

static layer layer_of(const ds_graph *g, ds_cell c)
{
    const ds_cell_info *cell = ds_cells_get(g->cells, c);
    layer l = {cell->name, cell->meta.shape.n_dims, -1, -1, false};
    for (ds_node n = 0; n < g->n_nodes; ++n) {
        const dsi_node_info *node = &g->nodes[n];
        const bool linear = node->op == &dsi_op_linear;
        const bool loss = node->op == &dsi_op_linear_cross_entropy ||
                          node->op == &dsi_op_linear_cross_entropy_part;
        const bool lookup = node->op == &dsi_op_embedding || node->op == &dsi_op_embedding_part;
        const uint32_t at = linear || loss ? 1 : 0;
        const ds_value v = at < node->n_in ? dsi_node_in(g, node)[at] : DS_NONE;
        if (node->phase != DS_PHASE_FORWARD || (!linear && !loss && !lookup) || v == DS_NONE ||
            g->values[v].cell != c || g->values[v].producer != DS_NONE) {
            continue;
        }
        const int64_t transposed = linear ? ((const dsi_linear_attrs *)node->attrs)->transposed
                                   : loss ? ((const dsi_ce_attrs *)node->attrs)->transposed
                                          : 0;
        l.out_dim = transposed != 0 ? 1 : 0;
        l.in_dim = 1 - l.out_dim;
        l.table = l.table || loss || lookup;
    }
    return l;
}

/* Whether a line of `lines` matches the name. */
static ds_status matches(const ds_graph *g, uint32_t spec, const char *lines, const char *name,
                         bool *found_out)
{
    *found_out = false;
    for (const char *p = lines; *p != '\0' && !*found_out; p += strcspn(p, "\n") + 1) {
        int error = 0;
        PCRE2_SIZE at = 0;
        const size_t n = strcspn(p, "\n");
        pcre2_code *code =
            pcre2_compile((PCRE2_SPTR)p, n, PCRE2_UTF | PCRE2_ANCHORED, &error, &at, NULL);
        pcre2_match_data *data =
            code != NULL ? pcre2_match_data_create_from_pattern(code, NULL) : NULL;
        const int got = data != NULL
                            ? pcre2_match(code, (PCRE2_SPTR)name, strlen(name), 0, 0, data, NULL)
                            : PCRE2_ERROR_NOMEMORY;
        pcre2_match_data_free(data);
        pcre2_code_free(code);
        *found_out = got > 0;
        if (got < 0 && got != PCRE2_ERROR_NOMATCH) {
            return ds_fail(g->ctx, DS_ERR_CONFIG,
                           KEY "[%u].patterns: \"%.*s\" is no regular expression that is known, or "
                               "takes too long on %s",
                           spec, (int)n, p, name);
        }
    }
    return DS_OK;
}

static bool is_of_type(const ds_tensor_spec *spec, const char *model_type)
{
    bool of = spec->model_types[0] == '\0';
    for (const char *p = spec->model_types; *p != '\0'; p += strcspn(p, "\n") + 1) {
        const size_t n = strcspn(p, "\n");
        of = of || (strlen(model_type) == n && strncasecmp(p, model_type, n) == 0);
    }
    return of;
}

/* The first spec that names the parameter; n_specs: none does. */
static ds_status find_spec(const ds_config_tensor *config, const char *model_type,
                           const ds_graph *g, const layer *l, uint32_t *spec_out)
{
    *spec_out = config->n_specs;
    for (uint32_t i = 0; i < config->n_specs && *spec_out == config->n_specs; ++i) {
        bool found = false;
        if (is_of_type(&config->specs[i], model_type)) {
            DS_TRY(matches(g, i, config->specs[i].patterns, l->name, &found));
        }
        *spec_out = found ? i : *spec_out;
    }
    return DS_OK;
}

/* A matrix that specs may name: no adapter's, which goes with its layer. */
static bool is_meant(const ds_graph *g, ds_cell c)
{
    const ds_cell_info *cell = ds_cells_get(g->cells, c);
    return cell->kind == DS_CELL_PARAM && cell->of == DS_NONE && cell->meta.shape.n_dims > 1;
}

/* The dim that a spec means. */
static ds_status dim_of(const ds_graph *g, const ds_tensor_spec *spec, uint32_t index,
                        const layer *l, int *dim_out)
{
    *dim_out = spec->type == DS_TENSOR_ROW ? l->in_dim : l->out_dim;
    if (l->out_dim < 0 && spec->type != DS_TENSOR_SKIP) {
        return ds_fail(g->ctx, DS_ERR_CONFIG,
                       KEY "[%u]: %s is no linear layer, embedding or head; only partition_type "
                           "\"skip\" means it",
                       index, l->name);
    }
    if (spec->dim >= 0 && spec->type != DS_TENSOR_SKIP && spec->dim != *dim_out) {
        return ds_fail(g->ctx, DS_ERR_CONFIG,
                       KEY
                       "[%u].partition_dim: %s has its %s on dim %d, found %lld; remove the key",
                       index, l->name, spec->type == DS_TENSOR_ROW ? "inputs" : "outputs", *dim_out,
                       (long long)spec->dim);
    }
    return DS_OK;
}

ds_status dsi_tensor_specs(const ds_config_tensor *config, const char *model_type,
                           const ds_graph *graph, uint8_t *allowed_out)
{
    for (ds_cell c = 0; c < ds_cells_count(graph->cells); ++c) {
        uint32_t i = config->n_specs;
        int dim = -1;
        allowed_out[c] = UINT8_MAX;
        if (!is_meant(graph, c)) {
            continue;
        }
        const layer l = layer_of(graph, c);
        DS_TRY(find_spec(config, model_type, graph, &l, &i));
        if (i == config->n_specs) {
            if (config->strict && l.out_dim >= 0 && !l.table) {
                return ds_fail(graph->ctx, DS_ERR_CONFIG,
                               "tensor_parallel.partition_config.strict_mode is true, and no entry "
                               "of layer_specs names %s; add one, or set it to false",
                               l.name);
            }
            allowed_out[c] = config->finds ? UINT8_MAX : 0;
            continue;
        }
        DS_TRY(dim_of(graph, &config->specs[i], i, &l, &dim));
        allowed_out[c] =
            config->specs[i].type == DS_TENSOR_SKIP ? 0 : (uint8_t)(1u << (uint32_t)dim);
    }
    return DS_OK;
}

ds_status dsi_tensor_specs_hold(const ds_config_tensor *config, const char *model_type,
                                const ds_graph *graph, const dsi_place_on *on)
{
    for (ds_cell c = 0; c < ds_cells_count(graph->cells); ++c) {
        uint32_t i = config->n_specs;
        if (!is_meant(graph, c)) {
            continue;
        }
        const layer l = layer_of(graph, c);
        DS_TRY(find_spec(config, model_type, graph, &l, &i));
        const ds_tensor_spec *spec = i < config->n_specs ? &config->specs[i] : NULL;
        if (spec == NULL || spec->type == DS_TENSOR_SKIP) {
            continue;
        }
        if (on[c].kind != DSI_SHARD) {
            return ds_fail(graph->ctx, DS_ERR_CONFIG,
                           KEY "[%u]: %s cannot be split by %s here: what reads or makes its "
                               "values has to be split with it (heads and widths are multiples of "
                               "the ranks, a column layer ends in a row layer); change the spec, "
                               "or use \"skip\"",
                           i, l.name, spec->type == DS_TENSOR_ROW ? "row" : "column");
        }
        const uint32_t parts = on[c].blocks == 0 || on[c].blocks == DSI_PADDED ? 1 : on[c].blocks;
        if (spec->parts > 0 && spec->parts != parts) {
            return ds_fail(graph->ctx, DS_ERR_CONFIG,
                           KEY "[%u].shape: expected %u parts, which %s has side by side, found %u",
                           i, parts, l.name, spec->parts);
        }
        if (spec->gathers && !l.table) {
            return ds_fail(graph->ctx, DS_ERR_CONFIG,
                           KEY "[%u].gather_output: %s is read in parts, so nothing is gathered; "
                               "set it to false, or partition_type to \"skip\"",
                           i, l.name);
        }
    }
    return DS_OK;
}
