/* SPDX-License-Identifier: Apache-2.0 */
/* How each operator of a layer of experts is cut. See piece_experts.h. */
#include "pass/piece_experts.h"

#include "op/ops.h"

/* An operand: `t` cut along the tokens, `r` rows sorted by expert or what says where they are, `w`
 * the same for all pieces, `s` a sum that later pieces' go behind. */
typedef struct form {
    const ds_op *op;
    const char *in, *out;
    uint32_t chained; /* the input that is added to the sum; DS_MAX_IN: none */
    void (*attrs)(const dsi_pieces *p, const dsi_node_info *node, uint32_t piece, void *attrs);
} form;

/* Of so many rows of all pieces; tokens are those of the pieces' dim. */
static int64_t rows_of(const dsi_pieces *p, uint32_t piece, int64_t n)
{
    return n > 0 ? p->how->length(p, n, piece) : n;
}

static void grouped_attrs(const dsi_pieces *p, const dsi_node_info *node, uint32_t piece,
                          void *attrs)
{
    dsi_grouped_attrs *a = attrs;
    (void)node;
    a->expected = rows_of(p, piece, a->expected);
}

static void rows_attrs(const dsi_pieces *p, const dsi_node_info *node, uint32_t piece, void *attrs)
{
    dsi_expert_ranks_attrs *a = attrs;
    (void)node;
    a->n_rows = rows_of(p, piece, a->n_rows);
}

static void same_attrs(const dsi_pieces *p, const dsi_node_info *node, uint32_t piece, void *attrs)
{
    (void)p;
    (void)node;
    (void)piece;
    (void)attrs;
}

static const form forms[] = {
    {&dsi_op_group_rows, "tt", "rr", DS_MAX_IN, same_attrs},
    {&dsi_op_group_sizes, "r", "s", DS_MAX_IN, same_attrs},
    {&dsi_op_spread_rows, "trt", "r", DS_MAX_IN, same_attrs},
    {&dsi_op_combine_rows, "rrt", "t", DS_MAX_IN, same_attrs},
    {&dsi_op_combine_rows_dw, "trr", "t", DS_MAX_IN, same_attrs},
    {&dsi_op_grouped_linear, "rwr", "r", DS_MAX_IN, grouped_attrs},
    {&dsi_op_grouped_linear_dw, "rrrw", "s", 3, grouped_attrs},
    {&dsi_op_gather_offsets, "r", "r", DS_MAX_IN, same_attrs},
    {&dsi_op_expert_segments, "r", "r", DS_MAX_IN, same_attrs},
    {&dsi_op_to_experts, "rr", "r", DS_MAX_IN, rows_attrs},
    {&dsi_op_from_experts, "rr", "r", DS_MAX_IN, rows_attrs},
    {&dsi_op_split_tokens, "t", "t", DS_MAX_IN, same_attrs},
    {&dsi_op_join_tokens, "t", "t", DS_MAX_IN, same_attrs},
};

static const form *find(const ds_op *op)
{
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
        if (forms[i].op == op) {
            return &forms[i];
        }
    }
    return NULL;
}

static dsi_place_on on_of(const dsi_pieces *p, char kind)
{
    return kind == 't'   ? (dsi_place_on){DSI_SHARD, (uint8_t)p->how->dim, 0}
           : kind == 'r' ? (dsi_place_on){DSI_SHARD, 0, 0}
           : kind == 's' ? (dsi_place_on){DSI_PARTIAL, DSI_TERMS_SUM, 0}
                         : (dsi_place_on){0};
}

/* Whether what is along the tokens is in pieces, or can be. */
static bool fits(const dsi_pieces *p, const dsi_node_info *node, const form *f)
{
    for (uint32_t i = 0; i < node->n_in; ++i) {
        const ds_value v = dsi_node_in(p->r.from, node)[i];
        const bool sorted = v != DS_NONE && p->is_cut[v] && p->apart[v];
        if (v != DS_NONE && f->in[i] != 'w' &&
            (f->in[i] == 'r' ? !sorted
             : p->is_cut[v]  ? p->dim[v] != p->how->dim || sorted
                             : !p->how->may_slice(p, v, p->how->dim))) {
            return false;
        }
    }
    return true;
}

ds_status dsi_pieces_experts(dsi_pieces *p, const dsi_node_info *node, bool *made_out)
{
    const form *f = find(node->op);
    dsi_piece_cut cut;
    if (f == NULL || !dsi_phase_is_micro(&p->r.from->phases, node->phase) || !fits(p, node, f)) {
        return DS_OK;
    }
    if (node->op == &dsi_op_group_rows && ((const dsi_group_attrs *)node->attrs)->capacity > 0) {
        return ds_fail(p->r.from->ctx, DS_ERR_UNSUPPORTED,
                       "%s does not go with a capacity of experts (%s): which tokens one drops is "
                       "decided over the whole micro-batch; leave out one of the two",
                       p->how->key, node->scope);
    }
    dsi_pieces_describe(p, node, &cut);
    for (uint32_t i = 0; i < node->n_in; ++i) {
        cut.how.in[i] = on_of(p, f->in[i]);
    }
    for (uint32_t o = 0; o < node->n_out; ++o) {
        cut.how.out[o] = on_of(p, f->out[o]);
        cut.chained[o] = f->chained;
    }
    cut.apart = f->out[0] == 'r';
    cut.attrs = f->attrs;
    *made_out = true;
    return dsi_pieces_cut_node(p, node, &cut);
}
