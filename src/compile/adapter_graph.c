/* SPDX-License-Identifier: Apache-2.0 */
/* The rewrite. See adapter_graph.h.
 *
 * Invariants: the nodes of an adapter stand in the phase, scope and region of the layer that they
 * belong to; B adds the layer's output in fp32 before the one rounding of the sum; what a layer is
 * called depends on its weight alone, so that training, evaluation and generation agree.
 */
#include "compile/adapter_graph.h"

#include "compile/adapter_rewriter.h"
#include "model/adapter_experts.h"
#include "nn/nn.h"
#include "op/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { NAME_BYTES = 1100 };

typedef dsi_adapter_rewriter rewriter;

/* A matrix of the model, in many bits or few. */
static bool is_matrix(const ds_cell_info *cell)
{
    return ds_cell_unpacked(cell, DS_DTYPE_F32).shape.n_dims == 2;
}

static bool is_model_param(const ds_cell_info *cell)
{
    return cell->kind == DS_CELL_PARAM && cell->of == DS_NONE;
}

/* The module of a weight; false: the parameter is none. */
static bool module_of(const char *param, char module[NAME_BYTES])
{
    static const char end[] = ".weight";
    const size_t n = strlen(param), k = sizeof end - 1;
    if (n <= k || n - k >= NAME_BYTES || strcmp(param + n - k, end) != 0) {
        return false;
    }
    (void)snprintf(module, NAME_BYTES, "%.*s", (int)(n - k), param);
    dsi_router_module(module);
    return true;
}

static ds_cell param_of(const ds_graph *g, const dsi_node_info *node, uint32_t input)
{
    const ds_value v = input < node->n_in ? dsi_node_in(g, node)[input] : DS_NONE;
    const ds_cell cell = v != DS_NONE ? g->values[v].cell : DS_NONE;
    return cell != DS_NONE && is_model_param(ds_cells_get(g->cells, cell)) ? cell : DS_NONE;
}

ds_cell dsi_adapter_head_weight(const ds_graph *g, const dsi_node_info *node, ds_value *x_out)
{
    ds_value x = dsi_node_in(g, node)[0], weight = dsi_node_in(g, node)[1];
    for (ds_node w = g->values[weight].producer; w != DS_NONE && g->nodes[w].op == &dsi_op_concat;
         w = g->values[weight].producer) {
        weight = dsi_node_in(g, &g->nodes[w])[0];
        x = dsi_node_in(g, &g->nodes[g->values[x].producer])[0];
    }
    *x_out = x;
    const ds_cell cell = g->values[weight].cell;
    return cell != DS_NONE && is_model_param(ds_cells_get(g->cells, cell)) ? cell : DS_NONE;
}

/* The weight of a node: of a head, also beside another adapter's B. */
static ds_cell weight_of(const ds_graph *g, const dsi_node_info *node)
{
    ds_value x;
    return dsi_adapter_is_head(node) ? dsi_adapter_head_weight(g, node, &x) : param_of(g, node, 1);
}

/* ---- what is meant --------------------------------------------------------------------------- */

static ds_status unsupported(const rewriter *w, const char *name, const char *what)
{
    return ds_fail(
        w->ctx, DS_ERR_UNSUPPORTED,
        "adapter: target_modules means %s, %s; adapters are on linear layers and embeddings "
        "here: name those, or \"all-linear\"",
        name, what);
}

/* Of a model of sources and targets, what generates: reading a source and decoding are graphs of
 * their own, each with a part of the layers. */
static bool is_part(const rewriter *w)
{
    return w->adapter->pairs &&
           (w->trace->task == DS_TASK_HIDDEN || w->trace->mode == DS_TRACE_GENERATE);
}

/* Of what generates, whose heads are linear layers as others are: the names that models have
 * (ds_model_info.head). */
static bool is_head_name(const char *module)
{
    return strcmp(module, "lm_head") == 0 || strcmp(module, "embed_out") == 0;
}

static ds_status find_targets(rewriter *w)
{
    for (ds_cell c = 0; c < w->n_cells; ++c) {
        const ds_cell_info *cell = ds_cells_get(w->cells, c);
        char module[NAME_BYTES];
        if (!is_model_param(cell) || !is_matrix(cell) || !module_of(cell->name, module)) {
            continue;
        }
        const bool head = is_head_name(module);
        DS_TRY(
            dsi_adapter_match(w->adapter, module, head, &w->targets[c].on, &w->targets[c].layer));
    }
    return DS_OK;
}

/* An embedding is one by its name, not by all-linear. */
static ds_status find_table(rewriter *w, ds_cell c)
{
    dsi_adapter_target *t = &w->targets[c];
    t->on = t->on && !w->adapter->all_linear;
    if (t->on && (w->adapter->dora || w->adapter->pissa)) {
        return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                       "adapter: target_modules means %s, an embedding, which has plain LoRA alone "
                       "here: leave it out, or take another method than %s",
                       ds_cells_get(w->cells, c)->name, w->adapter->dora ? "DoRA" : "PiSSA");
    }
    if (t->on && t->parameter) {
        return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                       "adapter: target_parameters means %s, an embedding; name its module in "
                       "target_modules",
                       ds_cells_get(w->cells, c)->name);
    }
    return DS_OK;
}

/* Embeddings and output heads, which all-linear does not mean. */
static ds_status drop_others(rewriter *w)
{
    for (ds_node i = 0; i < w->r.from->n_nodes; ++i) {
        const dsi_node_info *node = &w->r.from->nodes[i];
        const bool table = node->op == &dsi_op_embedding;
        const bool head = dsi_adapter_is_head(node);
        const ds_cell cells[2] = {head    ? weight_of(w->r.from, node)
                                  : table ? param_of(w->r.from, node, 0)
                                          : DS_NONE,
                                  table ? param_of(w->r.from, node, 2) : DS_NONE};
        for (uint32_t k = 0; k < 2 && table; ++k) {
            DS_TRY(cells[k] != DS_NONE ? find_table(w, cells[k]) : DS_OK);
        }
        if (head && cells[0] != DS_NONE && w->adapter->all_linear) {
            w->targets[cells[0]].on = false;
        }
    }
    return DS_OK;
}

/* The weight of an output head that an embedding reads, too, would have two adapters. */
static ds_status check_tied(const rewriter *w)
{
    const ds_graph *g = w->r.from;
    for (ds_node i = 0; i < g->n_nodes; ++i) {
        const ds_cell table =
            g->nodes[i].op == &dsi_op_embedding ? param_of(g, &g->nodes[i], 0) : DS_NONE;
        for (ds_node k = 0; table != DS_NONE && w->targets[table].on && k < g->n_nodes; ++k) {
            const dsi_node_info *node = &g->nodes[k];
            const bool reads = dsi_adapter_is_head(node) || node->op == &dsi_op_linear;
            if (reads && weight_of(g, node) == table) {
                return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                               "adapter: target_modules means %s, an embedding that is the output "
                               "head, too: make the model untied (ds_adapter_fit)",
                               ds_cells_get(w->cells, table)->name);
            }
        }
    }
    return DS_OK;
}

/* Routers, as experts, are parameters for PEFT, and no linear layers. What its all-linear means of
 * them depends on the version of transformers. */
static ds_status check_experts(const rewriter *w)
{
    const ds_graph *g = w->r.from;
    for (ds_node i = 0; i < g->n_nodes; ++i) {
        const dsi_node_info *node = &g->nodes[i];
        const bool routes = node->op == &dsi_op_route;
        const ds_node from = routes ? g->values[dsi_node_in(g, node)[0]].producer : DS_NONE;
        const ds_cell router = from != DS_NONE ? param_of(g, &g->nodes[from], 1) : DS_NONE;
        const bool on = router != DS_NONE && w->targets[router].on && !w->targets[router].parameter;
        char module[NAME_BYTES] = "";
        if (routes && (w->adapter->all_linear || on)) {
            return ds_fail(
                w->ctx, DS_ERR_UNSUPPORTED,
                "adapter: target_modules means experts or their router (%s), which are parameters "
                "for PEFT: name %s.weight in target_parameters, and the other layers, as q_proj "
                "k_proj v_proj o_proj (--lora_targets)",
                router != DS_NONE ? ds_cells_get(w->cells, router)->name : node->scope,
                router != DS_NONE && module_of(ds_cells_get(w->cells, router)->name, module)
                    ? module
                    : "it");
        }
    }
    return DS_OK;
}

/* Norms and other parameters that are no matrix. */
static ds_status check_vectors(const rewriter *w)
{
    for (ds_cell c = 0; c < w->n_cells && !w->adapter->all_linear; ++c) {
        const ds_cell_info *cell = ds_cells_get(w->cells, c);
        char module[NAME_BYTES];
        dsi_adapter_layer layer;
        bool on = false;
        if (!is_model_param(cell) || is_matrix(cell) || !module_of(cell->name, module)) {
            continue;
        }
        DS_TRY(dsi_adapter_match(w->adapter, module, false, &on, &layer));
        dsi_expert_matrix matrix;
        if (on && dsi_expert_matrix_of(cell->name, &matrix)) {
            return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                           "adapter: target_modules means %s, matrices of experts, which are "
                           "parameters for PEFT: name experts.%s in target_parameters "
                           "(--lora_targets mlp.experts.%s)",
                           module, matrix.parameter, matrix.parameter);
        }
        if (on) {
            return unsupported(w, module, "which is no linear layer");
        }
    }
    return DS_OK;
}

static ds_status check_named(const rewriter *w)
{
    const char **params = calloc((size_t)w->n_cells + 1, sizeof *params);
    ds_status status = DS_OK;
    uint32_t n = 0;
    bool container = false;
    if (params == NULL) {
        return ds_fail(w->ctx, DS_ERR_NOMEM, "no memory for an adapter");
    }
    for (ds_cell c = 0; c < w->n_cells; ++c) {
        if (is_model_param(ds_cells_get(w->cells, c))) {
            params[n++] = ds_cells_get(w->cells, c)->name;
        }
    }
    const char *none = dsi_adapter_unmatched(w->adapter, params, n, true, &container);
    const bool classes = w->trace->task != DS_TASK_TOKENS; /* PEFT adds the names of all heads */
    if (none != NULL && classes &&
        (strcmp(none, "classifier") == 0 || strcmp(none, "score") == 0)) {
        none = NULL;
    }
    if (none != NULL) {
        status = ds_fail(w->ctx, DS_ERR_NOT_FOUND,
                         "adapter: modules_to_save: no module of this model with parameters of its "
                         "own is named like \"%s\" (an output head that is tied to the embedding "
                         "has none)",
                         none);
    }
    none = status < 0 ? NULL : dsi_adapter_unmatched(w->adapter, params, n, false, &container);
    if (none != NULL && container) {
        status = unsupported(w, none, "a module that holds others");
    } else if (none != NULL && w->adapter->folder == NULL) {
        status = ds_fail(w->ctx, DS_ERR_NOT_FOUND,
                         "adapter: no layer of this model is named like the target \"%s\"; its "
                         "parameters are named like %s",
                         none, n > 2 ? params[n / 2] : "");
    }
    free(params);
    return status;
}

/* What is meant stands in the graph as a linear layer. all-linear means no other matrices: norms of
 * heads, tables behind a slice. */
static ds_status check_used(const rewriter *w)
{
    uint32_t n = 0;
    for (ds_cell c = 0; c < w->n_cells; ++c) {
        if ((w->adapter->all_linear || is_part(w)) && w->targets[c].uses == 0) {
            w->targets[c].on = false;
        } else if (w->targets[c].on && w->targets[c].uses == 0) {
            return unsupported(w, ds_cells_get(w->cells, c)->name,
                               "which no linear layer of this model is made of");
        }
        n += w->targets[c].on;
    }
    return n > 0 || is_part(w) ? DS_OK
                               : ds_fail(w->ctx, DS_ERR_NOT_FOUND,
                                         "adapter: target_modules means no layer of this model");
}

/* ---- cells ----------------------------------------------------------------------------------- */

/* An embedding that is the output head too: PEFT would train a copy of it in one of the two places.
 */
static bool is_tied(const rewriter *w, ds_cell c)
{
    bool table = false, head = false;
    for (ds_node i = 0; i < w->r.from->n_nodes; ++i) {
        const dsi_node_info *node = &w->r.from->nodes[i];
        if (node->op == &dsi_op_embedding) {
            table = table || param_of(w->r.from, node, 0) == c;
        } else {
            head = head || weight_of(w->r.from, node) == c;
        }
    }
    return table && head;
}

/* Weights of the model have no gradient, but for those that are trained whole. */
static ds_status freeze(const rewriter *w)
{
    for (ds_cell c = 0; c < w->n_cells; ++c) {
        ds_cell_info *cell = &w->cells->items[c];
        const bool saved = is_model_param(cell) && dsi_adapter_saves(w->adapter, cell->name);
        if (saved && w->targets[c].on) {
            return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                           "adapter: %s is in target_modules and in modules_to_save; leave it out "
                           "of one",
                           cell->name);
        }
        if (saved && is_tied(w, c)) {
            return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                           "adapter: modules_to_save means %s, which is the output head too "
                           "(tie_word_embeddings), and PEFT trains a copy of one of the two: make "
                           "the model untied (ds_adapter_fit)",
                           cell->name);
        }
        if (saved && cell->packed.format != DS_PACKING_NONE) {
            return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                           "adapter: modules_to_save means %s, which is held in few bits (%s) and "
                           "cannot be trained: leave one of the two",
                           cell->name, ds_packing_name(cell->packed.format));
        }
        if (is_model_param(cell) && !saved && w->adapter->number == 0) { /* the first says */
            cell->frozen = true;
        }
    }
    return DS_OK;
}

static ds_status read_cell(rewriter *w, const ds_cell_info *info, ds_value *value_out)
{
    ds_cell cell = ds_cells_find(w->cells, info->kind, info->name);
    if (cell == DS_NONE) {
        DS_TRY(ds_cells_add(w->cells, info, &cell));
    }
    return ds_graph_read(w->r.to, cell, value_out);
}

ds_status dsi_adapter_read_own(rewriter *w, ds_cell weight, const char *module, const char *end,
                               ds_meta meta, ds_init init, ds_value *value_out)
{
    char prefix[DSI_ADAPTER_PREFIX_BYTES];
    char name[NAME_BYTES + 64];
    dsi_adapter_cell_prefix(w->adapter, prefix);
    (void)snprintf(name, sizeof name, "%s%s%s", prefix, module, end);
    const ds_cell_info info = {.name = name,
                               .kind = DS_CELL_PARAM,
                               .meta = meta,
                               .init = init,
                               .of = weight,
                               .frozen = w->adapter->number > 0 && !w->adapter->trained};
    return read_cell(w, &info, value_out);
}

/* A or B: (rows,columns) in the dtype of x, beginning as init says. */
static ds_status read_matrix(rewriter *w, ds_cell weight, const char *end, ds_meta meta,
                             ds_init init, ds_value *value_out)
{
    const char *name = ds_cells_get(w->cells, weight)->name;
    char module[NAME_BYTES];
    if (!module_of(name, module)) {
        return ds_fail(w->ctx, DS_ERR_INTERNAL, "%s is no weight", name);
    }
    return dsi_adapter_read_own(w, weight, module, end, meta, init, value_out);
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* Whether ranks share the features of layers: the ranks that share heads are more than those that
 * share sequences. */
static bool shares_columns(const ds_trace *trace)
{
    const bool ring = trace->sequence_form != DS_SEQUENCE_HEADS;
    const int64_t others = trace->sequence_ranks > 1 && !ring ? trace->sequence_ranks : 1;
    return trace->head_ranks > others;
}

ds_status dsi_adapter_drop_input(rewriter *w, ds_cell weight, ds_value *x)
{
    const ds_cell_info rng = {.name = "train/rng",
                              .kind = DS_CELL_INPUT,
                              .meta = {DS_DTYPE_I64, ds_shape_1d(4)},
                              .of = DS_NONE};
    const char *name = ds_cells_get(w->cells, weight)->name;
    dsi_dropout_attrs attrs = {
        .p = w->adapter->dropout, /* sites of the model count from 1 */
        .site = (int64_t)((uint32_t)XXH3_64bits_withSeed(name, strlen(name), w->adapter->number) |
                          0x80000000u)};
    const ds_shape shape = ds_graph_meta(w->r.to, *x).shape;
    const bool shared = w->trace->sequence_ranks > 1 || w->trace->sequence_chunk > 0;
    const bool has_rows = shared && shape.n_dims > 1;
    const bool has_columns = shares_columns(w->trace) && shape.n_dims > 1;
    ds_value in[4] = {*x, DS_NONE, DS_NONE, DS_NONE};
    ds_value out[DS_MAX_OUT];
    if (w->targets[weight].uses > 1) {
        return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                       "adapter: lora_dropout where %s is computed in tiles; set it to 0, or do "
                       "not tile",
                       name);
    }
    DS_TRY(read_cell(w, &rng, &in[1]));
    if (has_rows) { /* a part of a sequence, of a rank or a chunk, knows its positions */
        const dsi_row_numbers_attrs numbers = dsi_nn_row_numbers(w->trace, shape.dims[1]);
        attrs.n_rows = numbers.n_rows;
        DS_TRY(ds_graph_apply(w->r.to, &dsi_op_row_numbers, &numbers, NULL, 0, &in[2]));
    }
    if (has_columns) { /* and of a layer's features, by theirs */
        const dsi_row_numbers_attrs numbers = {.n_rows = ds_shape_last(shape)};
        attrs.n_columns = numbers.n_rows;
        DS_TRY(ds_graph_apply(w->r.to, &dsi_op_row_numbers, &numbers, NULL, 0, &in[3]));
    }
    const uint32_t n_in = has_columns ? 4 : has_rows ? 3 : 2;
    DS_TRY(ds_graph_apply(w->r.to, &dsi_op_dropout, &attrs, in, n_in, out));
    *x = out[0];
    return DS_OK;
}

/* An operator of one output. */
static ds_status apply1(rewriter *w, const ds_op *op, const void *attrs, const ds_value *in,
                        uint32_t n_in, ds_value *out)
{
    ds_value made[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(w->r.to, op, attrs, in, n_in, made));
    *out = made[0];
    return DS_OK;
}

/* Of several adapters that are trained: h of tokens that belong to others becomes 0, and so does
 * its gradient. */
static ds_status keep_own_tokens(rewriter *w, ds_cell weight, ds_value *h)
{
    const bool eval = w->trace->mode == DS_TRACE_EVAL;
    const ds_shape tokens = ds_shape_2d(w->trace->batch, w->trace->seq_length);
    const ds_cell_info ids = {.name = eval ? "eval/adapters" : "train/adapters",
                              .kind = DS_CELL_INPUT,
                              .meta = {DS_DTYPE_I32, tokens},
                              .of = DS_NONE};
    const dsi_compare_attrs is_own = {.kind = DSI_COMPARE_EQ, .value = w->adapter->number};
    const dsi_where_attrs others = {0};
    dsi_reshape_attrs column = {0};
    ds_shape shape = ds_graph_meta(w->r.to, *h).shape;
    ds_value in[2] = {DS_NONE, *h};
    if (!dsi_adapter_has_rows(w->adapter)) {
        return DS_OK;
    }
    shape.dims[shape.n_dims - 1] = 1;
    if (ds_shape_count(shape) != ds_shape_count(tokens)) {
        return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                       "several adapters: %s is read in parts of the batch (tiles, pieces), where "
                       "a row's adapter is not known: do not tile, or train one at a time",
                       ds_cells_get(w->cells, weight)->name);
    }
    column.n_dims = shape.n_dims;
    memcpy(column.dims, shape.dims, sizeof column.dims);
    DS_TRY(read_cell(w, &ids, &in[0]));
    DS_TRY(apply1(w, &dsi_op_reshape, &column, in, 1, &in[0]));
    DS_TRY(apply1(w, &dsi_op_compare, &is_own, in, 1, &in[0]));
    return apply1(w, &dsi_op_where, &others, in, 2, h);
}

/* The linear layer of a node without its bias, of x. */
static ds_status apply_plain(rewriter *w, const dsi_node_info *node, ds_value x, ds_value weight,
                             ds_value *y)
{
    const ds_value in[2] = {x, weight};
    return apply1(w, node->op, node->attrs, in, 2, y);
}

/* (out): the trained lengths of rows over the lengths that they have, of which no gradient goes on.
 */
static ds_status length_ratio(rewriter *w, const dsi_node_info *node, ds_cell weight,
                              const ds_value *parts, double scale, ds_value *ratio)
{
    const ds_cell_info base = *ds_cells_get(w->cells, weight);
    const bool packed = base.packed.format != DS_PACKING_NONE;
    const dsi_weight_norms_attrs norms = {
        .scale = scale,
        .transposed = packed ? 0 : ((const dsi_linear_attrs *)node->attrs)->transposed,
        .format = base.packed.format,
        .rows = base.packed.rows,
        .columns = base.packed.columns};
    const dsi_cast_attrs wide = {.dtype = DS_DTYPE_F32};
    const int64_t n_out = ds_graph_meta(w->r.to, parts[2]).shape.dims[0];
    const ds_meta own = {ds_graph_meta(w->r.to, parts[1]).dtype, ds_shape_1d(n_out)};
    ds_value in[2] = {DS_NONE, DS_NONE};
    DS_TRY(read_matrix(w, weight, DSI_ADAPTER_MAGNITUDE, own, /* the engine sets it once the weight
                                                                 is there */
                       (ds_init){DS_INIT_ONES, 0.0}, &in[0]));
    if (own.dtype != DS_DTYPE_F32) {
        DS_TRY(apply1(w, &dsi_op_cast, &wide, in, 1, &in[0]));
    }
    DS_TRY(apply1(w, &dsi_op_weight_norms, &norms, parts, 3, &in[1]));
    DS_TRY(apply1(w, &dsi_op_sqrt, NULL, &in[1], 1, &in[1]));
    return apply1(w, &dsi_op_div, NULL, in, 2, ratio);
}

ds_status dsi_adapter_project(rewriter *w, ds_cell weight, ds_value x, int64_t n_out,
                              ds_value *parts)
{
    const dsi_adapter_layer layer = w->targets[weight].layer;
    const ds_dtype dtype = ds_graph_meta(w->r.to, x).dtype;
    const int64_t n_in = ds_shape_last(ds_graph_meta(w->r.to, x).shape);
    const ds_meta a = {dtype, ds_shape_2d(layer.rank, n_in)};
    const ds_meta b = {dtype, ds_shape_2d(n_out, layer.rank)};
    const dsi_linear_attrs plain = {0};
    const dsi_scale_attrs scale = {.factor = layer.scale};
    const ds_init first = w->adapter->gaussian
                              ? (ds_init){DS_INIT_NORMAL, 1.0 / (double)layer.rank}
                              : (ds_init){DS_INIT_UNIFORM, 1.0 / sqrt((double)n_in)};
    ds_value in[2] = {x, DS_NONE};
    DS_TRY(read_matrix(w, weight, ".lora_A.weight", a, first, &parts[1]));
    in[1] = parts[1];
    DS_TRY(apply1(w, &dsi_op_linear, &plain, in, 2, &parts[0]));
    DS_TRY(apply1(w, &dsi_op_scale, &scale, parts, 1, &parts[0]));
    DS_TRY(keep_own_tokens(w, weight, &parts[0]));
    return read_matrix(w, weight, ".lora_B.weight", b, (ds_init){DS_INIT_ZEROS, 0.0}, &parts[2]);
}

/* y + scale·(x·Aᵀ)·Bᵀ, in place of y. parts: [1] and [2] receive A and B. */
static ds_status adapt(rewriter *w, ds_cell weight, ds_value x, ds_value *y, ds_value *parts)
{
    const ds_meta meta = ds_graph_meta(w->r.to, *y);
    const dsi_linear_attrs sum = {.out_dtype = meta.dtype};
    ds_value made[3];
    DS_TRY(dsi_adapter_project(w, weight, x, ds_shape_last(meta.shape), made));
    const ds_value in[4] = {made[0], made[2], DS_NONE, *y};
    parts[1] = made[1];
    parts[2] = made[2];
    return apply1(w, &dsi_op_linear, &sum, in, 4, y);
}

bool dsi_adapter_drops(const rewriter *w)
{
    return w->trace->mode == DS_TRACE_TRAIN && w->adapter->dropout > 0.0;
}

/* DoRA: m/|W + scale·B·A| · (W + scale·B·A)·x + bias, in place of y; under dropout y - W·d +
 * m/|…| · (W + scale·B·A)·d of what is left of x, d, as PEFT. in: the node's. */
static ds_status adapt_lengths(rewriter *w, const dsi_node_info *node, ds_cell weight,
                               const ds_value *in, ds_value *y)
{
    const bool bias = node->n_in > 2 && in[2] != DS_NONE;
    ds_value parts[3] = {in[1], DS_NONE, DS_NONE};
    ds_value pair[2] = {DS_NONE, DS_NONE};
    ds_value x = in[0], plain = DS_NONE, sum = DS_NONE;
    DS_TRY(dsi_adapter_drops(w) ? dsi_adapter_drop_input(w, weight, &x) : DS_OK);
    DS_TRY(apply_plain(w, node, x, in[1], &plain));
    sum = plain;
    DS_TRY(adapt(w, weight, x, &sum, parts));
    pair[0] = sum;
    DS_TRY(length_ratio(w, node, weight, parts, w->targets[weight].layer.scale, &pair[1]));
    DS_TRY(apply1(w, &dsi_op_mul, NULL, pair, 2, &sum));
    if (dsi_adapter_drops(w)) {
        const ds_value rest[2] = {sum, plain};
        DS_TRY(apply1(w, &dsi_op_sub, NULL, rest, 2, &sum));
        const ds_value both[2] = {*y, sum};
        return apply1(w, &dsi_op_add, NULL, both, 2, y);
    }
    *y = sum;
    const ds_value with_bias[2] = {sum, bias ? in[2] : DS_NONE};
    return bias ? apply1(w, &dsi_op_add, NULL, with_bias, 2, y) : DS_OK;
}

ds_status dsi_adapter_adapt_linear(rewriter *w, const dsi_node_info *node, ds_cell weight,
                                   const ds_value *in, ds_value *y)
{
    ds_value x = in[0], parts[3];
    w->targets[weight].uses += 1;
    if (!w->adapter->dora || dsi_adapter_drops(w)) {
        DS_TRY(apply1(w, node->op, node->attrs, in, node->n_in, y));
    }
    if (w->adapter->dora) {
        return adapt_lengths(w, node, weight, in, y);
    }
    DS_TRY(dsi_adapter_drops(w) ? dsi_adapter_drop_input(w, weight, &x) : DS_OK);
    return adapt(w, weight, x, y, parts);
}

/* y + scale·Aᵀ[id]·Bᵀ, in place of y: of the table that is input `at` of the node, whose indices
 * are the next one. B begins as PEFT draws it, A at 0. */
static ds_status adapt_table(rewriter *w, ds_cell weight, const ds_value *in, uint32_t at,
                             ds_value *y)
{
    const dsi_adapter_layer layer = w->targets[weight].layer;
    const ds_meta table = ds_graph_meta(w->r.to, in[at]);
    const ds_meta a = {table.dtype, ds_shape_2d(layer.rank, table.shape.dims[0])};
    const ds_meta b = {table.dtype, ds_shape_2d(table.shape.dims[1], layer.rank)};
    const dsi_permute_attrs turn = {.n_dims = 2, .order = {1, 0}};
    const dsi_scale_attrs scale = {.factor = layer.scale};
    const dsi_linear_attrs sum = {.out_dtype = ds_graph_meta(w->r.to, *y).dtype};
    ds_value rows[2] = {DS_NONE, in[at + 1]};
    ds_value parts[4] = {DS_NONE, DS_NONE, DS_NONE, *y};
    w->targets[weight].uses += 1;
    DS_TRY(read_matrix(w, weight, DSI_ADAPTER_TABLE_A, a, (ds_init){DS_INIT_ZEROS, 0.0}, &rows[0]));
    DS_TRY(
        read_matrix(w, weight, DSI_ADAPTER_TABLE_B, b, (ds_init){DS_INIT_NORMAL, 1.0}, &parts[1]));
    DS_TRY(apply1(w, &dsi_op_permute, &turn, rows, 1, &rows[0]));
    DS_TRY(apply1(w, &dsi_op_embedding, NULL, rows, 2, &parts[0]));
    DS_TRY(apply1(w, &dsi_op_scale, &scale, parts, 1, &parts[0]));
    DS_TRY(keep_own_tokens(w, weight, &parts[0]));
    return apply1(w, &dsi_op_linear, &sum, parts, 4, y);
}

/* An embedding, of one table or of tokens and positions. */
static ds_status adapt_embedding(rewriter *w, const dsi_node_info *node)
{
    ds_value in[DS_MAX_IN] = {DS_NONE, DS_NONE, DS_NONE, DS_NONE};
    ds_value out[DS_MAX_OUT];
    dsi_rewrite_inputs(&w->r, node, in);
    DS_TRY(dsi_rewrite_stand_at(&w->r, node));
    DS_TRY(ds_graph_apply(w->r.to, node->op, node->attrs, in, node->n_in, out));
    for (uint32_t at = 0; at < 4; at += 2) {
        const ds_cell table = param_of(w->r.from, node, at);
        if (table != DS_NONE && w->targets[table].on) {
            DS_TRY(adapt_table(w, table, in, at, &out[0]));
        }
    }
    dsi_rewrite_made(&w->r, node, out);
    return DS_OK;
}

static ds_status adapt_grouped(rewriter *w, const dsi_node_info *node)
{
    const ds_cell weight = param_of(w->r.from, node, 1);
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    if (weight == DS_NONE || !w->targets[weight].on) {
        return dsi_rewrite_copy(&w->r, node);
    }
    w->targets[weight].uses += 1;
    dsi_rewrite_inputs(&w->r, node, in);
    DS_TRY(dsi_rewrite_stand_at(&w->r, node));
    DS_TRY(ds_graph_apply(w->r.to, node->op, node->attrs, in, node->n_in, out));
    DS_TRY(dsi_adapter_adapt_experts(w, node, weight, in, &out[0]));
    dsi_rewrite_made(&w->r, node, out);
    return DS_OK;
}

static ds_status adapt_node(rewriter *w, const dsi_node_info *node)
{
    if (node->op == &dsi_op_embedding) {
        return adapt_embedding(w, node);
    }
    if (node->op == &dsi_op_grouped_linear) {
        return adapt_grouped(w, node);
    }
    if (dsi_adapter_is_head(node)) {
        const ds_cell head = weight_of(w->r.from, node);
        return head != DS_NONE && w->targets[head].on ? dsi_adapter_adapt_head(w, node, head)
                                                      : dsi_rewrite_copy(&w->r, node);
    }
    const bool packed = node->op == &dsi_op_linear_packed;
    const ds_cell weight =
        packed || node->op == &dsi_op_linear ? param_of(w->r.from, node, 1) : DS_NONE;
    if (weight == DS_NONE || !w->targets[weight].on) {
        return dsi_rewrite_copy(&w->r, node);
    }
    const dsi_linear_attrs *attrs = packed ? &(const dsi_linear_attrs){0} : node->attrs;
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    if (attrs->activation != DSI_ACT_NONE || attrs->save_pre != 0) {
        return unsupported(w, ds_cells_get(w->cells, weight)->name,
                           "a linear layer with its activation in one operator");
    }
    if (w->targets[weight].parameter && attrs->transposed != 0) {
        return unsupported(w, ds_cells_get(w->cells, weight)->name,
                           "a parameter that is stored (in,out), to which PEFT's A and B are "
                           "turned; name its module in target_modules");
    }
    dsi_rewrite_inputs(&w->r, node, in);
    DS_TRY(dsi_rewrite_stand_at(&w->r, node));
    DS_TRY(dsi_adapter_adapt_linear(w, node, weight, in, &out[0]));
    dsi_rewrite_made(&w->r, node, out);
    return DS_OK;
}

/* Of another head it would be another model. */
static ds_status check_task(const rewriter *w)
{
    static const char *const names[] = {"the next token (CAUSAL_LM)", "hidden states",
                                        "classes of documents (SEQ_CLS)",
                                        "classes of tokens (TOKEN_CLS)"};
    const bool embeds = w->trace->paged != NULL && w->trace->task == DS_TASK_HIDDEN &&
                        w->adapter->task == DS_TASK_TOKENS; /* vectors of what a server serves */
    return w->adapter->any_task || w->adapter->task == w->trace->task || embeds || is_part(w)
               ? DS_OK
               : ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                         "adapter: its task_type is for %s, and it is used for %s",
                         names[w->adapter->task],
                         w->trace->task < 4 ? names[w->trace->task] : "another");
}

static ds_status walk(rewriter *w, const ds_graph *from)
{
    DS_TRY(check_task(w));
    DS_TRY(find_targets(w));
    DS_TRY(dsi_adapter_find_parameters(w));
    DS_TRY(check_vectors(w));
    DS_TRY(check_experts(w));
    DS_TRY(is_part(w) ? DS_OK : check_named(w));
    DS_TRY(drop_others(w));
    DS_TRY(check_tied(w));
    DS_TRY(freeze(w));
    for (ds_node i = 0; i < from->n_nodes; ++i) {
        DS_TRY(adapt_node(w, &from->nodes[i]));
    }
    return check_used(w);
}

/* The rewrite for one adapter. */
static ds_status rewrite_one(const ds_adapter *adapter, const ds_trace *trace, ds_graph **graph)
{
    const ds_graph *from = *graph;
    ds_graph *made = NULL;
    rewriter w = {.adapter = adapter,
                  .trace = trace,
                  .ctx = from->ctx,
                  .cells = from->cells,
                  .n_cells = ds_cells_count(from->cells),
                  .experts = {.a = DS_NONE, .x = DS_NONE, .h = DS_NONE}};
    w.targets = calloc((size_t)w.n_cells + 1, sizeof *w.targets);
    ds_status status = w.targets != NULL ? dsi_rewrite_begin(&w.r, from, w.cells)
                                         : ds_fail(w.ctx, DS_ERR_NOMEM, "no memory for an adapter");
    if (w.targets == NULL) {
        return status;
    }
    status = status >= 0 ? walk(&w, from) : status;
    status = dsi_rewrite_end(&w.r, status, &made);
    free(w.targets);
    DS_TRY(status);
    ds_graph_destroy(graph);
    *graph = made;
    return DS_OK;
}

ds_status dsi_adapter_graph(const ds_adapter *adapter, const ds_trace *trace, ds_graph **graph)
{
    /* the first one last: its nodes come to stand in front of theirs, behind the layer's own */
    for (uint32_t i = 0; adapter != NULL && i < adapter->n_frozen; ++i) {
        DS_TRY(rewrite_one(adapter->frozen[i], trace, graph));
    }
    for (uint32_t i = 0; adapter != NULL && i < adapter->n_others; ++i) {
        DS_TRY(rewrite_one(adapter->others[i], trace, graph));
    }
    return adapter != NULL ? rewrite_one(adapter, trace, graph) : DS_OK;
}
