/* SPDX-License-Identifier: Apache-2.0 */
/* Puts the operators on parts of the vocabulary. See vocab_parts.h.
 *
 * A part says which rows it has by a second output, which is cut as the table is: the gradient
 * reads it, and so is cut as well, without the table. */
#include "pass/vocab_parts.h"

#include "ir/rewrite.h"
#include "op/ops.h"

#include <stdlib.h>

enum { TABLE, IDS, POSITION_TABLE, POSITIONS }; /* of embedding */
enum { X, W, TARGETS, TARGET_COUNT };           /* of linear_cross_entropy */

typedef struct parter {
    dsi_rewrite r;
    uint32_t ranks;
    const dsi_place_on *tensor;
    ds_value *rows; /* per node of `from`: the rows that its part has, in `to`; else DS_NONE */
} parter;

/* Rows of the table if the node is an embedding or a loss by parts, else 0. */
static int64_t rows_of(const parter *p, const dsi_node_info *node)
{
    const bool is_loss = node->op == &dsi_op_linear_cross_entropy;
    if (node->op != &dsi_op_embedding && !is_loss) {
        return 0;
    }
    const ds_value read = dsi_node_in(p->r.from, node)[is_loss ? W : TABLE];
    const dsi_value_info *table = &p->r.from->values[read];
    const dsi_linear_ce_attrs *loss = is_loss ? node->attrs : NULL;
    const uint8_t dim = is_loss && loss->ce.transposed != 0 ? 1 : 0;
    if (is_loss && loss->keep != 0) {
        return 0; /* parts have whole rows */
    }
    const int64_t n = table->meta.shape.dims[dim];
    const bool is_param = table->producer == DS_NONE && table->cell != DS_NONE &&
                          ds_cells_get(p->r.from->cells, table->cell)->kind == DS_CELL_PARAM;
    const bool even = n % p->ranks == 0;
    if (!is_param || n > INT32_MAX || (!even && (dim != 0 || !dsi_all_have_some(n, p->ranks)))) {
        return 0;
    }
    const dsi_place_on *on = p->tensor != NULL ? &p->tensor[table->cell] : NULL;
    const uint8_t blocks = even ? 0 : DSI_PADDED;
    return on == NULL || (on->kind == DSI_SHARD && on->dim == dim && on->blocks == blocks) ? n : 0;
}

static ds_status make_part(parter *p, ds_node n, const ds_value *in, ds_value *out)
{
    const dsi_vocab_attrs attrs = {.n_rows = rows_of(p, &p->r.from->nodes[n])};
    const dsi_row_numbers_attrs numbers = {.n_rows = attrs.n_rows};
    ds_value made[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_row_numbers, &numbers, in, 0, made));
    const ds_value part[3] = {in[TABLE], in[IDS], made[0]};
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_embedding_part, &attrs, part, 3, made));
    out[0] = made[0];
    p->rows[n] = made[1];
    if (in[POSITION_TABLE] == DS_NONE) {
        return DS_OK;
    }
    const ds_value other[2] = {in[POSITION_TABLE], in[POSITIONS]};
    ds_value sum[2] = {out[0]};
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_embedding, NULL, other, 2, made));
    sum[1] = made[0];
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_add, NULL, sum, 2, made));
    out[0] = made[0];
    return DS_OK;
}

/* The table of a part, which is a parameter, is trained. */
static bool is_trained(const ds_graph *g, ds_node n)
{
    const ds_value table = dsi_node_in(g, &g->nodes[n])[TABLE];
    return !ds_cells_get(g->cells, g->values[table].cell)->frozen;
}

/* The rows of the part whose table's gradient a node makes, or DS_NONE. Tables of as many rows read
 * by the same ids have the same rows; one that is frozen has no gradient, which is then that of an
 * adapter beside it. */
static ds_value rows_of_gradient(const parter *p, const dsi_node_info *node)
{
    const ds_graph *g = p->r.from;
    if (node->op != &dsi_op_embedding_dw) {
        return DS_NONE;
    }
    const int64_t n_rows = ((const dsi_embedding_dw_attrs *)node->attrs)->n_rows;
    for (ds_node n = 0; &g->nodes[n] < node; ++n) {
        if (p->rows[n] != DS_NONE && g->nodes[n].op == &dsi_op_embedding &&
            rows_of(p, &g->nodes[n]) == n_rows && is_trained(g, n) &&
            dsi_node_in(g, &g->nodes[n])[IDS] == dsi_node_in(g, node)[0]) {
            return p->rows[n];
        }
    }
    return DS_NONE;
}

static ds_status make_gradient(parter *p, const dsi_node_info *node, ds_value rows,
                               const ds_value *in, ds_value *out)
{
    const dsi_vocab_attrs attrs = {.n_rows = ((const dsi_embedding_dw_attrs *)node->attrs)->n_rows};
    const ds_value all[4] = {in[0], in[1], rows, in[2]};
    return ds_graph_apply(p->r.to, &dsi_op_embedding_part_dw, &attrs, all, in[2] != DS_NONE ? 4 : 3,
                          out);
}

/* ---- losses ---------------------------------------------------------------------------------- */

static ds_status make_loss(parter *p, ds_node n, const ds_value *in, ds_value *out)
{
    const dsi_node_info *node = &p->r.from->nodes[n];
    const dsi_linear_ce_attrs *a = node->attrs;
    const dsi_row_numbers_attrs numbers = {.n_rows = rows_of(p, node)};
    const dsi_ce_part_attrs attrs = {.back.ce = a->ce, .n_rows = numbers.n_rows};
    ds_value made[DS_MAX_OUT];
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_row_numbers, &numbers, in, 0, made));
    const ds_value part[4] = {in[X], in[W], in[TARGETS], made[0]};
    DS_TRY(ds_graph_apply(p->r.to, &dsi_op_linear_cross_entropy_part, &attrs, part, 4, made));
    p->rows[n] = made[1];
    const bool counted = a->ce.counted != 0;
    const ds_value join[3] = {made[0], in[TARGETS], counted ? in[TARGET_COUNT] : DS_NONE};
    return ds_graph_apply(p->r.to, &dsi_op_cross_entropy_join, &a->ce, join, counted ? 3 : 2, out);
}

/* The forward node of a backward node by parts, or DS_NONE. */
static ds_node loss_of(const parter *p, const dsi_node_info *node)
{
    enum { LSE = 4 };
    if (node->op != &dsi_op_linear_cross_entropy_backward) {
        return DS_NONE;
    }
    const ds_node maker = p->r.from->values[dsi_node_in(p->r.from, node)[LSE]].producer;
    return maker != DS_NONE && p->rows[maker] != DS_NONE ? maker : DS_NONE;
}

static ds_status make_loss_gradient(parter *p, const dsi_node_info *node, ds_node loss,
                                    const ds_value *in, ds_value *out)
{
    const dsi_ce_backward_attrs *a = node->attrs;
    const dsi_ce_part_attrs attrs = {.back = *a, .n_rows = rows_of(p, &p->r.from->nodes[loss])};
    const ds_value all[8] = {in[0], in[1], in[2], in[3], in[4], in[5], p->rows[loss], in[6]};
    return ds_graph_apply(p->r.to, &dsi_op_linear_cross_entropy_part_backward, &attrs, all,
                          in[6] != DS_NONE ? 8 : 7, out);
}

static ds_status rebuild_node(parter *p, ds_node n)
{
    const dsi_node_info *node = &p->r.from->nodes[n];
    const bool is_part = rows_of(p, node) > 0;
    const ds_value rows = rows_of_gradient(p, node);
    ds_value in[DS_MAX_IN];
    ds_value out[DS_MAX_OUT] = {DS_NONE};
    const ds_node loss = loss_of(p, node);
    if (!is_part && rows == DS_NONE && loss == DS_NONE) {
        return dsi_rewrite_copy(&p->r, node);
    }
    dsi_rewrite_inputs(&p->r, node, in);
    DS_TRY(dsi_rewrite_stand_at(&p->r, node));
    if (is_part) {
        DS_TRY(node->op == &dsi_op_embedding ? make_part(p, n, in, out) : make_loss(p, n, in, out));
    } else {
        DS_TRY(loss != DS_NONE ? make_loss_gradient(p, node, loss, in, out)
                               : make_gradient(p, node, rows, in, out));
    }
    dsi_rewrite_made(&p->r, node, out);
    return DS_OK;
}

ds_status dsi_vocab_parts(const ds_graph *graph, uint32_t ranks, const dsi_place_on *tensor,
                          ds_graph **parts_out)
{
    parter p = {.ranks = ranks, .tensor = tensor};
    p.rows = calloc((size_t)graph->n_nodes + 1, sizeof *p.rows);
    ds_status status = dsi_rewrite_begin(&p.r, graph, graph->cells);
    if (p.rows == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to cut the vocabulary");
    }
    for (ds_node n = 0; n < graph->n_nodes && status >= 0; ++n) {
        p.rows[n] = DS_NONE;
        status = rebuild_node(&p, n);
    }
    free(p.rows);
    return dsi_rewrite_end(&p.r, status, parts_out);
}
