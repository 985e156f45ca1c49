/* SPDX-License-Identifier: Apache-2.0 */
/* What each weight becomes where adapters are merged: of linear layers, embeddings, output heads
 * and routers, and of experts. See adapter_merger.h. Matrices of the adapters are read whole.
 */
#include "train/adapter_merger.h"

#include "ir/graph.h"
#include "model/adapter.h"
#include "model/adapter_experts.h"
#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 1200 };

static ds_status no_memory(const dsi_merger *m)
{
    return ds_fail(m->ctx, DS_ERR_NOMEM, "no memory to merge an adapter");
}

/* ---- one weight ------------------------------------------------------------------------------ */

/* A matrix in fp32, turned over where asked for; several stay as they are. */
static ds_status read_matrix(const dsi_merger *m, const ds_safetensor *tensor, bool turn,
                             float **out)
{
    const int64_t rows = tensor->meta.shape.dims[0], columns = tensor->meta.shape.dims[1];
    const size_t count = (size_t)ds_shape_count(tensor->meta.shape);
    float *read = malloc(count * sizeof *read + 1);
    float *turned = turn ? malloc(count * sizeof *turned + 1) : NULL;
    ds_status status = read != NULL && (turned != NULL || !turn) ? DS_OK : no_memory(m);
    if (status == DS_OK) {
        status = ds_safetensors_read(m->ctx, tensor, DS_DTYPE_F32, read);
    }
    for (int64_t i = 0; turn && status == DS_OK && i < rows * columns; ++i) {
        turned[i % columns * rows + i / columns] = read[i];
    }
    *out = status < 0 ? NULL : turn ? turned : read;
    free(*out == read ? NULL : read);
    free(*out == turned ? NULL : turned);
    return status;
}

static const ds_safetensor *tensor_of(const dsi_merge_part *p, const char *module,
                                      const char *which)
{
    char name[NAME_BYTES + 32];
    (void)snprintf(name, sizeof name, "%s%s", module, which);
    const ds_cell cell = ds_cells_find(p->cells, DS_CELL_PARAM, name);
    return cell != DS_NONE ? p->own_of[cell] : NULL;
}

static ds_status read_lengths(dsi_merger *m, const dsi_merge_part *p, const char *module,
                              dsi_adapter_sum *sum)
{
    const ds_safetensor *tensor = tensor_of(p, module, DSI_ADAPTER_MAGNITUDE);
    const int64_t n = sum->turned ? sum->columns : sum->rows;
    float *lengths = malloc(((size_t)n + 1) * sizeof *lengths);
    if (lengths == NULL || tensor == NULL) {
        free(lengths);
        return no_memory(m);
    }
    const ds_status status = ds_safetensors_read(m->ctx, tensor, DS_DTYPE_F32, lengths);
    if (status < 0) {
        free(lengths);
        return status;
    }
    return dsi_adapter_sum_lengths(m->ctx, sum, lengths);
}

/* Of a weight that a part trained whole, the others would be added to that. */
static ds_status check_saved(const dsi_merger *m, uint32_t part, ds_cell cell)
{
    const char *name = ds_cells_get(m->cells, cell)->name;
    for (uint32_t i = 0; i < m->n_parts; ++i) {
        if (i != part && dsi_adapter_saves(m->parts[i].adapter, name)) {
            return ds_fail(m->ctx, DS_ERR_UNSUPPORTED,
                           "ds_adapter_merge: %s is in modules_to_save of %s and adapted by %s: "
                           "they are not merged together",
                           name, m->parts[i].adapter->folder, m->parts[part].adapter->folder);
        }
    }
    return DS_OK;
}

/* The layer of a weight's module, or of the weight as a parameter. */
static ds_status match(const ds_adapter *adapter, const char *module, dsi_adapter_layer *layer)
{
    char key[NAME_BYTES + 8];
    bool on = false;
    DS_TRY(dsi_adapter_match(adapter, module, false, &on, layer));
    (void)snprintf(key, sizeof key, "%s.weight", module);
    return on ? DS_OK : dsi_adapter_match_parameter(adapter, key, &on, layer);
}

/* What the weight of a linear layer, of an embedding, or of an output head, which is read by a
 * concat, becomes, once. */
static ds_status find_weight(dsi_merger *m, uint32_t part, const dsi_node_info *node, uint32_t at)
{
    const dsi_merge_part *p = &m->parts[part];
    const bool table = node->op == &dsi_op_embedding;
    const ds_value v = at < node->n_in ? dsi_node_in(p->graph, node)[at] : DS_NONE;
    const ds_cell cell = v != DS_NONE ? p->graph->values[v].cell : DS_NONE;
    char module[NAME_BYTES];
    dsi_adapter_layer layer = {0};
    if (cell == DS_NONE || cell >= m->n_cells || m->by_cell[cell] == NULL ||
        (m->sums[cell].last != NULL && m->sums[cell].last->part == part)) {
        return DS_OK;
    }
    const char *name = ds_cells_get(m->cells, cell)->name;
    const char *end = strrchr(name, '.');
    (void)snprintf(module, sizeof module, "%.*s", (int)(end - name), name);
    dsi_router_module(module);
    const ds_safetensor *a = tensor_of(p, module, table ? DSI_ADAPTER_TABLE_A : ".lora_A.weight");
    const ds_safetensor *b = tensor_of(p, module, table ? DSI_ADAPTER_TABLE_B : ".lora_B.weight");
    if (a == NULL || b == NULL) {
        return DS_OK;
    }
    const bool linear = node->op == &dsi_op_linear;
    const bool turn = table || (linear && ((const dsi_linear_attrs *)node->attrs)->transposed != 0);
    dsi_adapter_sum *sum = &m->sums[cell];
    DS_TRY(check_saved(m, part, cell));
    DS_TRY(match(p->adapter, module, &layer));
    sum->weight = m->own_of[cell] != NULL ? m->own_of[cell] : m->by_cell[cell];
    sum->experts = 1;
    sum->rows = sum->weight->meta.shape.dims[0];
    sum->columns = sum->weight->meta.shape.dims[1];
    sum->turned = turn;
    dsi_adapter_term *term = dsi_adapter_sum_add(sum);
    if (term == NULL) {
        return no_memory(m);
    }
    term->part = part;
    term->rank = a->meta.shape.dims[0];
    term->scale = layer.scale * p->weight;
    DS_TRY(read_matrix(m, turn ? b : a, turn, &term->a));
    DS_TRY(read_matrix(m, turn ? a : b, turn, &term->b));
    return p->adapter->dora ? read_lengths(m, p, module, sum) : DS_OK;
}

/* ---- experts --------------------------------------------------------------------------------- */

/* A matrix of experts, with its A (E,rank,in) and B (E,out,rank). */
typedef struct stack {
    dsi_expert_matrix matrix;
    float *a, *b;
    int64_t rank, n_experts, n_in, n_out;
    bool turned; /* stored (in,out) */
    double scale;
    uint32_t part;
} stack;

/* Expert e's A and B in the order of the stored matrix: rows times rank, and rank times columns. */
static void copy_expert(const stack *s, int64_t e, float *rows, float *columns)
{
    float *b = s->turned ? columns : rows, *a = s->turned ? rows : columns;
    for (int64_t k = 0; k < s->rank; ++k) {
        for (int64_t i = 0; i < s->n_in; ++i) {
            a[s->turned ? i * s->rank + k : k * s->n_in + i] =
                s->a[(e * s->rank + k) * s->n_in + i];
        }
        for (int64_t o = 0; o < s->n_out; ++o) {
            b[s->turned ? k * s->n_out + o : o * s->rank + k] =
                s->b[(e * s->n_out + o) * s->rank + k];
        }
    }
}

/* Experts [first, first + n) in one stored tensor. */
static ds_status merge_experts(dsi_merger *m, const stack *s, const ds_safetensor *tensor,
                               int64_t first, int64_t n, dsi_adapter_sum *sum)
{
    const int64_t rows = s->turned ? s->n_in : s->n_out;
    sum->weight = tensor;
    sum->rows = n * rows;
    sum->columns = s->turned ? s->n_out : s->n_in;
    sum->experts = n;
    sum->turned = s->turned;
    dsi_adapter_term *term = dsi_adapter_sum_add(sum);
    if (term == NULL) {
        return no_memory(m);
    }
    term->part = s->part;
    term->rank = s->rank;
    term->scale = s->scale;
    term->a = malloc((size_t)(n * s->rank * sum->columns) * sizeof *term->a + 1);
    term->b = malloc((size_t)(n * s->rank * rows) * sizeof *term->b + 1);
    if (term->a == NULL || term->b == NULL) {
        return no_memory(m);
    }
    for (int64_t e = 0; e < n; ++e) {
        copy_expert(s, first + e, term->b + e * rows * s->rank,
                    term->a + e * s->rank * sum->columns);
    }
    return DS_OK;
}

/* The sums of so many tensors, those of one cell side by side. */
static ds_status sums_of(dsi_merger *m, const dsi_weight *weight, dsi_adapter_sum **out)
{
    for (size_t i = 0; i < m->n_experts; ++i) {
        if (m->experts[i].weight == weight->parts[0]) {
            *out = &m->experts[i];
            return DS_OK;
        }
    }
    if (m->n_experts + (size_t)weight->n > m->room) {
        const size_t room = 2 * m->room + (size_t)weight->n;
        dsi_adapter_sum *grown = realloc(m->experts, room * sizeof *grown);
        if (grown == NULL) {
            return no_memory(m);
        }
        m->experts = grown;
        m->room = room;
    }
    *out = &m->experts[m->n_experts];
    memset(*out, 0, (size_t)weight->n * sizeof **out);
    m->n_experts += (size_t)weight->n;
    return DS_OK;
}

static ds_status merge_stack(dsi_merger *m, const stack *s, ds_cell cell)
{
    const dsi_weight weight = dsi_weights_of(m->stored, cell);
    dsi_adapter_sum *sums = NULL;
    if (weight.scales != NULL) {
        return ds_fail(m->ctx, DS_ERR_UNSUPPORTED,
                       "ds_adapter_merge: %s is stored in MXFP4, to which nothing can be added; "
                       "write the model in bf16 first",
                       ds_cells_get(m->cells, cell)->name);
    }
    DS_TRY(check_saved(m, s->part, cell));
    if (weight.n == 1) {
        return merge_experts(m, s, weight.parts[0], 0, s->n_experts, &m->sums[cell]);
    }
    DS_TRY(sums_of(m, &weight, &sums));
    for (int64_t e = 0; e < weight.n; ++e) {
        DS_TRY(merge_experts(m, s, weight.parts[e], e, 1, &sums[e]));
    }
    return DS_OK;
}

/* What the matrices of a product by groups become. */
static ds_status find_experts(dsi_merger *m, uint32_t part, const dsi_node_info *node)
{
    const dsi_merge_part *p = &m->parts[part];
    const ds_value v = dsi_node_in(p->graph, node)[1];
    const ds_cell cell = p->graph->values[v].cell;
    char base[DSI_EXPERTS_NAME_BYTES + 16];
    char key[DSI_EXPERTS_NAME_BYTES + 32];
    char last[DSI_EXPERTS_END_BYTES];
    stack s = {.turned = ((const dsi_grouped_attrs *)node->attrs)->transposed != 0, .part = part};
    dsi_adapter_layer layer;
    bool on = false;
    if (cell == DS_NONE || cell >= m->n_cells ||
        !dsi_expert_matrix_of(ds_cells_get(m->cells, cell)->name, &s.matrix)) {
        return DS_OK;
    }
    (void)snprintf(key, sizeof key, "%s.%s", s.matrix.module, s.matrix.parameter);
    DS_TRY(dsi_adapter_match_parameter(p->adapter, key, &on, &layer));
    if (!on) {
        return DS_OK;
    }
    DS_TRY(dsi_expert_cells_of(p->adapter, &s.matrix, base));
    const ds_safetensor *a = tensor_of(p, base, ".lora_A.weight");
    dsi_expert_b_end(&s.matrix, last);
    const ds_safetensor *b = tensor_of(p, base, last);
    const ds_shape shape = ds_cells_get(m->cells, cell)->meta.shape;
    s.scale = layer.scale * p->weight;
    s.rank = layer.rank;
    s.n_experts = shape.dims[0];
    s.n_in = shape.dims[s.turned ? 1 : 2];
    s.n_out = shape.dims[s.turned ? 2 : 1];
    ds_status status = a != NULL && b != NULL
                           ? read_matrix(m, a, false, &s.a)
                           : ds_fail(m->ctx, DS_ERR_INTERNAL, "%s has no A or B", key);
    status = status < 0 ? status : read_matrix(m, b, false, &s.b);
    status = status < 0 ? status : merge_stack(m, &s, cell);
    free(s.a);
    free(s.b);
    return status;
}

ds_status dsi_merge_weights(dsi_merger *m, uint32_t part)
{
    const ds_graph *graph = m->parts[part].graph;
    for (ds_node i = 0; i < graph->n_nodes; ++i) {
        const dsi_node_info *node = &graph->nodes[i];
        DS_TRY(node->op == &dsi_op_grouped_linear ? find_experts(m, part, node) : DS_OK);
        DS_TRY(node->op == &dsi_op_linear ? find_weight(m, part, node, 1) : DS_OK);
        DS_TRY(node->op == &dsi_op_concat ? find_weight(m, part, node, 0) : DS_OK);
        DS_TRY(node->op == &dsi_op_embedding ? find_weight(m, part, node, 0) : DS_OK);
        DS_TRY(node->op == &dsi_op_embedding ? find_weight(m, part, node, 2) : DS_OK);
    }
    return DS_OK;
}
