/* SPDX-License-Identifier: Apache-2.0 */
/* The rewrite. See compress_graph.h.
 *
 * Invariants: a weight that two nodes use in one region and under one name is compressed once; the
 * order for one weight is quantized, pruned by element, by row, by head, as in DeepSpeed; every
 * compressed value stands in the phase, scope and region of the node that uses it. */
#include "compile/compress_graph.h"

#include "ir/rewrite.h"
#include "nn/nn.h"
#include "op/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { NAME_BYTES = 1100 };

/* The compressed form of a weight that was made last. */
typedef struct form {
    ds_value value, bias;
    uint32_t region;
    bool as_head; /* used as a tied head */
} form;

typedef struct rewriter {
    const ds_config_compression *how;
    dsi_rewrite r;
    ds_ctx *ctx;
    ds_cells *cells;
    bool *is_table;      /* per cell: an embedding */
    form *forms;         /* per cell */
    ds_value *inputs;    /* per value of the old graph: its quantized form … */
    uint32_t *input_of;  /* … by this group + 1 */
    uint32_t *n_matched; /* per group */
    dsi_compress_masks *masks;
    uint32_t n_cells;
    char example[NAME_BYTES]; /* a layer that is there */
} rewriter;

/* A layer: one use of a weight. */
typedef struct layer {
    const dsi_node_info *node;
    uint32_t weight, bias; /* inputs; bias 16: none */
    ds_cell cell;
    bool embedding, transposed;
    char name[NAME_BYTES];
    const ds_compress_group *groups[DS_COMPRESS_COUNT];
} layer;

const char *dsi_compress_control_name(const ds_compress_group *group, char *text, size_t n)
{
    (void)snprintf(text, n, "compress.%s.%s", dsi_compress_technique_name(group->technique),
                   group->name);
    return text;
}

static const char *key_of(const ds_compress_group *g, char text[256])
{
    (void)snprintf(text, 256, "compression_training.%s.different_groups.%s.modules",
                   dsi_compress_technique_name(g->technique), g->name);
    return text;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static ds_cell param_of(const ds_graph *g, const dsi_node_info *node, uint32_t input)
{
    const ds_value v = input < node->n_in ? dsi_node_in(g, node)[input] : DS_NONE;
    const ds_cell cell = v != DS_NONE ? g->values[v].cell : DS_NONE;
    const ds_cell_info *info = cell != DS_NONE ? ds_cells_get(g->cells, cell) : NULL;
    const bool is_own = info != NULL && info->kind == DS_CELL_PARAM && !dsi_nn_is_teacher(info);
    return is_own ? cell : DS_NONE;
}

static void name_layer(const rewriter *w, layer *l)
{
    const char *name = ds_cells_get(w->cells, l->cell)->name;
    const char *end = strrchr(name, '.');
    const size_t n =
        end != NULL && strcmp(end, ".weight") == 0 ? (size_t)(end - name) : strlen(name);
    const bool tied = !l->embedding && w->is_table[l->cell];
    (void)snprintf(l->name, sizeof l->name, "%.*s", (int)n, tied ? "lm_head" : name);
    if (tied) {
        (void)strcpy(l->name, "lm_head");
    }
}

/* The layers that a node is: an embedding node may be two. */
static uint32_t layers_of(const rewriter *w, const dsi_node_info *node, layer out[2])
{
    uint32_t n = 0;
    layer l = {.node = node, .bias = DS_MAX_IN};
    if (node->op == &dsi_op_linear || node->op == &dsi_op_linear_cross_entropy) {
        l.weight = 1;
        l.bias = node->op == &dsi_op_linear ? 2 : DS_MAX_IN;
        l.transposed = node->op == &dsi_op_linear
                           ? ((const dsi_linear_attrs *)node->attrs)->transposed != 0
                           : ((const dsi_linear_ce_attrs *)node->attrs)->ce.transposed != 0;
        l.cell = param_of(w->r.from, node, 1);
        n = l.cell != DS_NONE ? 1 : 0;
        out[0] = l;
    } else if (node->op == &dsi_op_embedding) {
        l.embedding = true;
        for (uint32_t i = 0; i <= 2; i += 2) {
            l.weight = i;
            l.cell = param_of(w->r.from, node, i);
            if (l.cell != DS_NONE) {
                out[n++] = l;
            }
        }
    }
    for (uint32_t i = 0; i < n; ++i) {
        name_layer(w, &out[i]);
    }
    return n;
}

/* A weight that DeepSpeed quantizes in place is so wherever it is used: also under its other name.
 */
static ds_status matches(const rewriter *w, const ds_compress_group *g, const layer *l, int *which)
{
    char key[256];
    DS_TRY(dsi_compress_match(w->ctx, key_of(g, key), g->modules, l->name, which));
    if (*which < 0 && g->technique == DS_COMPRESS_WEIGHTS && !g->in_forward &&
        w->is_table[l->cell]) {
        layer other = *l;
        other.embedding = !l->embedding;
        name_layer(w, &other);
        DS_TRY(dsi_compress_match(w->ctx, key, g->modules, other.name, which));
    }
    return DS_OK;
}

/* Pruning and quantized inputs are of linears alone, as in DeepSpeed. */
static ds_status find_groups(rewriter *w, layer *l)
{
    if (l->bias < DS_MAX_IN || w->example[0] == '\0') { /* rather a linear than a head */
        (void)snprintf(w->example, sizeof w->example, "%s", l->name);
    }
    for (uint32_t i = 0; i < w->how->n_groups; ++i) {
        const ds_compress_group *g = &w->how->groups[i];
        int which = -1;
        DS_TRY(matches(w, g, l, &which));
        if (which < 0) {
            continue;
        }
        if (l->embedding && g->technique != DS_COMPRESS_WEIGHTS) {
            char key[256];
            if (g->modules[0] == '*') {
                continue;
            }
            return ds_fail(w->ctx, DS_ERR_CONFIG, "%s: %s is an embedding, which %s does not know",
                           key_of(g, key), l->name, dsi_compress_technique_name(g->technique));
        }
        if (l->groups[g->technique] != NULL) {
            return ds_fail(w->ctx, DS_ERR_CONFIG,
                           "compression_training.%s: the layer %s is in the groups %s and %s; "
                           "let one of them name it",
                           dsi_compress_technique_name(g->technique), l->name,
                           l->groups[g->technique]->name, g->name);
        }
        l->groups[g->technique] = g;
        w->n_matched[i] += 1;
    }
    return DS_OK;
}

/* ---- cells ----------------------------------------------------------------------------------- */

static ds_status cell_value(rewriter *w, const ds_cell_info *info, ds_cell *cell_out,
                            ds_value *value_out)
{
    *cell_out = ds_cells_find(w->cells, info->kind, info->name);
    if (*cell_out == DS_NONE) {
        DS_TRY(ds_cells_add(w->cells, info, cell_out));
    }
    return ds_graph_read(w->r.to, *cell_out, value_out);
}

static ds_status control(rewriter *w, const ds_compress_group *g, ds_value *value_out)
{
    char name[128];
    ds_cell cell;
    const ds_cell_info info = {.name = dsi_compress_control_name(g, name, sizeof name),
                               .kind = DS_CELL_SCALAR,
                               .meta = {DS_DTYPE_F32, g->technique == DS_COMPRESS_WEIGHTS
                                                          ? ds_shape_1d(DSI_QUANT_COUNT)
                                                          : (ds_shape){0}},
                               .of = DS_NONE};
    return cell_value(w, &info, &cell, value_out);
}

/* The mask of a pruned layer: of trained scores, or made once. */
static ds_status mask_of(rewriter *w, const layer *l, const ds_compress_group *g,
                         const dsi_mask_attrs *attrs, ds_value *mask_out)
{
    static const char *const scores[] = {"sparse_mask_scores", "row_mask_scores",
                                         "head_pruning_scores"};
    static const char *const masks[] = {"sparse_pruning_mask", "row_pruning_mask", ""};
    const ds_cell_info weight = *ds_cells_get(w->cells, l->cell);
    const ds_shape s = weight.meta.shape;
    const int64_t n_out = s.dims[l->transposed ? 1 : 0], n_in = s.dims[l->transposed ? 0 : 1];
    const ds_shape rows = g->scores ? ds_shape_2d(n_out, 1) : ds_shape_1d(n_out);
    const ds_shape shape = attrs->along == DSI_MASK_ELEMENTS ? s
                           : attrs->along == DSI_MASK_ROWS   ? rows
                                                             : ds_shape_2d(1, g->heads);
    const double fan_in = attrs->along == DSI_MASK_ELEMENTS ? (double)n_in
                          : attrs->along == DSI_MASK_ROWS   ? 1.0
                                                            : (double)g->heads;
    char name[NAME_BYTES + 32];
    (void)snprintf(name, sizeof name, "%s.%s", l->name, (g->scores ? scores : masks)[attrs->along]);
    const ds_cell_info info = {.name = name,
                               .kind = g->scores ? DS_CELL_PARAM : DS_CELL_MASK,
                               .meta = {g->scores ? weight.meta.dtype : DS_DTYPE_BOOL, shape},
                               .init = {DS_INIT_UNIFORM, 1.0 / sqrt(fan_in)},
                               .of = l->cell};
    ds_cell cell;
    ds_value value;
    DS_TRY(cell_value(w, &info, &cell, &value));
    if (g->scores) {
        const dsi_top_mask_attrs top = {.ratio = g->dense_ratio, .by = DSI_TOP_VALUE};
        ds_value out[DS_MAX_OUT];
        DS_TRY(ds_graph_apply(w->r.to, &dsi_op_top_mask, &top, &value, 1, out));
        value = out[0];
    } else if (w->masks != NULL) {
        bool known = false;
        for (uint32_t i = 0; i < w->masks->n; ++i) {
            known = known || w->masks->items[i].cell == cell;
        }
        if (!known) {
            w->masks->items[w->masks->n++] = (dsi_compress_mask){
                .cell = cell,
                .param = l->cell,
                .ratio = g->dense_ratio,
                .by = attrs->along == DSI_MASK_ROWS ? DSI_TOP_ROW : DSI_TOP_MAGNITUDE,
                .transposed = l->transposed};
        }
    }
    *mask_out = value;
    return DS_OK;
}

/* ---- what stands for operands ---------------------------------------------------------------- */

static ds_status divides(const rewriter *w, const layer *l, const ds_compress_group *g,
                         const char *what, int64_t parts, int64_t n)
{
    return parts > 0 && n % parts == 0
               ? DS_OK
               : ds_fail(w->ctx, DS_ERR_CONFIG,
                         "compression_training.%s: %s %lld does not divide the %lld of %s",
                         dsi_compress_technique_name(g->technique), what, (long long)parts,
                         (long long)n, l->name);
}

static ds_status quantize(rewriter *w, const layer *l, ds_value *value)
{
    const ds_compress_group *g = l->groups[DS_COMPRESS_WEIGHTS];
    const ds_cell_info weight = *ds_cells_get(w->cells, l->cell);
    const int64_t n = ds_shape_count(weight.meta.shape);
    const bool by_rows = l->embedding && g->in_forward;
    const dsi_fake_quant_attrs attrs = {
        .groups = by_rows ? weight.meta.shape.dims[0] : g->groups,
        .asymmetric = g->asymmetric,
        .transposed = l->transposed,
        .stochastic = g->stochastic,
        .site =
            g->stochastic ? (int64_t)(uint32_t)XXH3_64bits(weight.name, strlen(weight.name)) : 0};
    ds_value in[3] = {*value, DS_NONE, DS_NONE};
    ds_value out[DS_MAX_OUT];
    DS_TRY(divides(w, l, g, "quantize_groups", attrs.groups, n));
    DS_TRY(control(w, g, &in[1]));
    if (g->stochastic) {
        ds_cell cell;
        const ds_cell_info draw = {.name = DSI_COMPRESS_DRAW,
                                   .kind = DS_CELL_SCALAR,
                                   .meta = {DS_DTYPE_I64, ds_shape_1d(2)},
                                   .of = DS_NONE};
        DS_TRY(cell_value(w, &draw, &cell, &in[2]));
    }
    DS_TRY(ds_graph_apply(w->r.to, &dsi_op_fake_quant, &attrs, in, g->stochastic ? 3 : 2, out));
    *value = out[0];
    return DS_OK;
}

static ds_status prune(rewriter *w, const layer *l, ds_compress_technique technique,
                       ds_value *value, ds_value *bias)
{
    const ds_compress_group *g = l->groups[technique];
    const ds_shape shape = ds_cells_get(w->cells, l->cell)->meta.shape;
    const dsi_mask_attrs attrs = {.along = technique == DS_COMPRESS_SPARSE ? DSI_MASK_ELEMENTS
                                           : technique == DS_COMPRESS_ROWS ? DSI_MASK_ROWS
                                                                           : DSI_MASK_HEADS,
                                  .heads = technique == DS_COMPRESS_HEADS ? g->heads : 0,
                                  .transposed = l->transposed};
    ds_value in[3] = {*value, DS_NONE, DS_NONE};
    ds_value out[DS_MAX_OUT];
    if (technique == DS_COMPRESS_HEADS) {
        DS_TRY(divides(w, l, g, "num_heads", g->heads, shape.dims[l->transposed ? 0 : 1]));
    }
    DS_TRY(mask_of(w, l, g, &attrs, &in[1]));
    DS_TRY(control(w, g, &in[2]));
    DS_TRY(ds_graph_apply(w->r.to, &dsi_op_mask_weight, &attrs, in, 3, out));
    *value = out[0];
    if (technique == DS_COMPRESS_ROWS && *bias != DS_NONE) {
        const dsi_mask_attrs each = {.along = DSI_MASK_ELEMENTS};
        in[0] = *bias;
        DS_TRY(ds_graph_apply(w->r.to, &dsi_op_mask_weight, &each, in, 3, out));
        *bias = out[0];
    }
    return DS_OK;
}

static ds_status compress_weight(rewriter *w, const layer *l, ds_value *in)
{
    const bool has_bias = l->bias < l->node->n_in;
    const bool as_head = !l->embedding && w->is_table[l->cell];
    form *made = &w->forms[l->cell];
    if (made->value == DS_NONE || made->region != l->node->region || made->as_head != as_head) {
        form f = {in[l->weight], has_bias ? in[l->bias] : DS_NONE, l->node->region, as_head};
        if (l->groups[DS_COMPRESS_WEIGHTS] != NULL) {
            DS_TRY(quantize(w, l, &f.value));
        }
        for (ds_compress_technique t = DS_COMPRESS_SPARSE; t <= DS_COMPRESS_HEADS; ++t) {
            if (l->groups[t] != NULL) {
                DS_TRY(prune(w, l, t, &f.value, &f.bias));
            }
        }
        *made = f;
    }
    in[l->weight] = made->value;
    if (has_bias) {
        in[l->bias] = made->bias;
    }
    return DS_OK;
}

static ds_status compress_input(rewriter *w, const layer *l, ds_value *in)
{
    const ds_compress_group *g = l->groups[DS_COMPRESS_ACTIVATIONS];
    const ds_value x = dsi_node_in(w->r.from, l->node)[0];
    const uint32_t by = g != NULL ? (uint32_t)(g - w->how->groups) + 1 : 0;
    if (g == NULL) {
        return DS_OK;
    }
    if (w->input_of[x] != by) {
        const dsi_fake_quant_rows_attrs attrs = {.bits = g->bits, .asymmetric = g->asymmetric};
        ds_value pair[2] = {in[0], DS_NONE};
        ds_value out[DS_MAX_OUT];
        DS_TRY(control(w, g, &pair[1]));
        DS_TRY(ds_graph_apply(w->r.to, &dsi_op_fake_quant_rows, &attrs, pair, 2, out));
        w->input_of[x] = by;
        w->inputs[x] = out[0];
    }
    in[0] = w->inputs[x];
    return DS_OK;
}

/* ---- the walk -------------------------------------------------------------------------------- */

static ds_status compress_node(rewriter *w, const dsi_node_info *node)
{
    layer layers[2];
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT];
    const uint32_t n = layers_of(w, node, layers);
    dsi_rewrite_inputs(&w->r, node, in);
    DS_TRY(dsi_rewrite_stand_at(&w->r, node));
    for (uint32_t i = 0; i < n; ++i) {
        DS_TRY(find_groups(w, &layers[i]));
        DS_TRY(compress_weight(w, &layers[i], in));
        DS_TRY(compress_input(w, &layers[i], in));
    }
    DS_TRY(ds_graph_apply(w->r.to, node->op, node->attrs, in, node->n_in, out));
    dsi_rewrite_made(&w->r, node, out);
    return DS_OK;
}

static ds_status all_matched(const rewriter *w)
{
    for (uint32_t i = 0; i < w->how->n_groups; ++i) {
        char key[256];
        if (w->n_matched[i] == 0) {
            const char *modules = w->how->groups[i].modules;
            return ds_fail(w->ctx, DS_ERR_CONFIG,
                           "%s: no layer of this model is named like \"%.*s\"%s; its layers are "
                           "named like %s",
                           key_of(&w->how->groups[i], key), (int)strcspn(modules, "\n"), modules,
                           strchr(modules, '\n')[1] != '\0' ? " or the others" : "", w->example);
        }
    }
    return DS_OK;
}

static ds_status make_tables(rewriter *w, const ds_graph *from)
{
    const uint32_t n = ds_cells_count(w->cells);
    w->is_table = calloc((size_t)n + 1, sizeof *w->is_table);
    w->forms = malloc(((size_t)n + 1) * sizeof *w->forms);
    w->inputs = malloc(((size_t)from->n_values + 1) * sizeof *w->inputs);
    w->input_of = calloc((size_t)from->n_values + 1, sizeof *w->input_of);
    w->n_matched = calloc((size_t)w->how->n_groups + 1, sizeof *w->n_matched);
    if (w->masks != NULL) {
        w->masks->items = calloc(2 * (size_t)n + 1, sizeof *w->masks->items);
    }
    if (w->is_table == NULL || w->forms == NULL || w->inputs == NULL || w->input_of == NULL ||
        w->n_matched == NULL || (w->masks != NULL && w->masks->items == NULL)) {
        return ds_fail(w->ctx, DS_ERR_NOMEM, "no memory to rewrite the graph");
    }
    for (uint32_t i = 0; i < n; ++i) {
        w->forms[i] = (form){.value = DS_NONE};
    }
    for (ds_node i = 0; i < from->n_nodes; ++i) {
        const ds_cell table =
            from->nodes[i].op == &dsi_op_embedding ? param_of(from, &from->nodes[i], 0) : DS_NONE;
        if (table != DS_NONE) {
            w->is_table[table] = true;
        }
    }
    return DS_OK;
}

ds_status dsi_compress_graph(const ds_config_compression *how, ds_graph **graph,
                             dsi_compress_masks *masks_out)
{
    const ds_graph *from = *graph;
    ds_graph *made = NULL;
    if (how == NULL || how->n_groups == 0) {
        return DS_OK;
    }
    rewriter w = {.how = how, .ctx = from->ctx, .cells = from->cells, .masks = masks_out};
    ds_status status = make_tables(&w, from);
    if (status >= 0) {
        status = dsi_rewrite_begin(&w.r, from, w.cells);
        for (ds_node i = 0; i < from->n_nodes && status >= 0; ++i) {
            status = compress_node(&w, &from->nodes[i]);
        }
        status = status >= 0 ? all_matched(&w) : status;
        status = dsi_rewrite_end(&w.r, status, &made);
    }
    free(w.is_table);
    free(w.forms);
    free(w.inputs);
    free(w.input_of);
    free(w.n_matched);
    if (status < 0) {
        if (masks_out != NULL) {
            free(masks_out->items);
            *masks_out = (dsi_compress_masks){0};
        }
        return status;
    }
    ds_graph_destroy(graph);
    *graph = made;
    return DS_OK;
}
