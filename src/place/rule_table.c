/* SPDX-License-Identifier: Apache-2.0 */
/* The placement rule of every built-in operator, and what attributes change of it. See rule.h. */
#include "place/rule.h"

#include <string.h>

static void drop_letter(char *letters, char letter)
{
    char *to = letters;
    for (const char *at = letters; *at != '\0'; ++at) {
        if (*at != letter) {
            *to++ = *at;
        }
    }
    *to = '\0';
}

static bool has_input(const dsi_rule_case *c, uint32_t i)
{
    return i < c->n_in && c->in_meta[i].dtype != DS_DTYPE_NONE;
}

static void swap_dims(char *label)
{
    const char first = label[0];
    label[0] = label[1];
    label[1] = first;
}

/* ---- adapt: what attributes and shapes change ------------------------------------------------ */

static void adapt_linear(dsi_rule_case *c)
{
    const dsi_linear_attrs *a = c->attrs;
    if (a->transposed != 0) {
        swap_dims(c->in[1]);
    }
    if (a->activation != DSI_ACT_NONE) { /* of the finished sum only */
        drop_letter(c->cuts, 'k');
        c->n_groups = 0;
        c->hint = "an activation needs the finished sum";
    }
}

static void adapt_linear_dw(dsi_rule_case *c)
{
    const dsi_linear_dw_attrs *a = c->attrs;
    if (a->transposed != 0) {
        swap_dims(c->in[2]);
        swap_dims(c->out[0]);
    }
}

static void adapt_rope(dsi_rule_case *c)
{
    const dsi_rope_attrs *a = c->attrs;
    c->unit_letter = 'h';
    c->units[0] = c->units[1] = ds_shape_last(c->in_meta[0].shape) / a->head_dim;
}

/* The base of dynamic scaling looks at all positions of a document. */
static void adapt_rope_table(dsi_rule_case *c)
{
    const dsi_rope_table_attrs *a = c->attrs;
    if (a->scaling == DSI_ROPE_DYNAMIC) {
        drop_letter(c->cuts, 't');
        c->in[0][1] = c->out[0][1] = '_';
        c->hint = "dynamic rotary scaling needs whole sequences";
    }
}

static void adapt_heads(dsi_rule_case *c, uint32_t q, bool has_rng)
{
    const dsi_attention_attrs *a = c->attrs;
    c->unit_letter = 'h';
    c->units[0] = a->n_heads;
    c->units[1] = a->n_kv_heads;
    c->hint = "the ranks that share the heads must divide n_heads and n_kv_heads";
    if (a->packed != 0) {
        drop_letter(c->cuts, 'h');
        c->in[q][2] = '_';
        c->hint = "packed q, k, v cannot be cut by heads; give them as three tensors";
    }
    if (has_rng && a->dropout > 0.0) {
        drop_letter(c->cuts, 'h');
        c->flags |= DSI_RULE_SAMPLES;
        c->hint = "dropout draws by sample, so only samples may be cut, on axes where the random "
                  "state counts from the rank's own first sample";
    }
}

static void adapt_attention(dsi_rule_case *c)
{
    adapt_heads(c, 0, has_input(c, 5));
}

static void adapt_attention_backward(dsi_rule_case *c)
{
    const dsi_attention_attrs *a = c->attrs;
    adapt_heads(c, 1, has_input(c, 7));
    if (a->packed != 0) {
        c->out[0][2] = '_';
    }
}

static void adapt_dropout(dsi_rule_case *c)
{
    const dsi_dropout_attrs *a = c->attrs;
    if (a->p > 0.0) {
        c->cuts[c->cuts[0] != '\0' ? 1 : 0] = '\0'; /* samples are the first dim */
        c->flags |= DSI_RULE_SAMPLES;
        c->hint = "dropout draws by sample, so only dim 0 may be cut, on axes where the random "
                  "state counts from the rank's own first sample";
    }
}

/* b is like a, or a row, or a scalar. */
static void adapt_binary(dsi_rule_case *c)
{
    const ds_shape a = c->in_meta[0].shape;
    const ds_shape b = c->in_meta[1].shape;
    const bool scalar = b.n_dims == 0;
    if (ds_shape_equal(a, b)) {
        return;
    }
    c->in[1][0] = scalar ? '\0' : c->in[0][a.n_dims - 1];
    c->in[1][1] = '\0';
    const bool keeps_zero = c->op == &dsi_op_mul || c->op == &dsi_op_div;
    if (!scalar || !keeps_zero) {
        c->flags &= ~(uint32_t)DSI_RULE_ELEMENTS;
    }
}

static void adapt_div(dsi_rule_case *c)
{
    adapt_binary(c);
    if (c->in_meta[1].shape.n_dims > 0) { /* 0/0 in the padding */
        c->flags &= ~(uint32_t)DSI_RULE_ELEMENTS;
    }
}

static void adapt_permute(dsi_rule_case *c)
{
    const dsi_permute_attrs *a = c->attrs;
    for (uint32_t d = 0; d < c->out_meta[0].shape.n_dims; ++d) {
        c->out[0][d] = c->in[0][a->order[d]];
    }
}

static void freeze_dim(dsi_rule_case *c, int64_t dim)
{
    drop_letter(c->cuts, c->in[0][dim]);
    for (uint32_t i = 0; i < c->n_in; ++i) {
        c->in[i][dim] = '_';
    }
    c->out[0][dim] = '_';
    c->hint = "it works along the dim that is cut";
}

static void adapt_slice(dsi_rule_case *c)
{
    freeze_dim(c, ((const dsi_slice_attrs *)c->attrs)->dim);
}

static void adapt_pad(dsi_rule_case *c)
{
    freeze_dim(c, ((const dsi_pad_attrs *)c->attrs)->dim);
}

static void adapt_split(dsi_rule_case *c)
{
    const int64_t dim = ((const dsi_split_attrs *)c->attrs)->dim;
    freeze_dim(c, dim);
    for (uint32_t i = 1; i < c->n_out; ++i) {
        c->out[i][dim] = '_';
    }
}

static void adapt_concat(dsi_rule_case *c)
{
    freeze_dim(c, ((const dsi_concat_attrs *)c->attrs)->dim);
}

/* A dim of x and a dim of y can be cut alike when what stands before them has the same size, and
 * both divide: then a part of either is the same run of elements. Letters that meet no partner are
 * dropped. */
static void adapt_reshape(dsi_rule_case *c)
{
    const ds_shape x = c->in_meta[0].shape;
    const ds_shape y = c->out_meta[0].shape;
    memset(c->out[0], '_', y.n_dims);
    c->out[0][y.n_dims] = '\0';
    int64_t before_x = 1;
    for (uint32_t i = 0; i < x.n_dims; before_x *= x.dims[i++]) {
        bool met = false;
        int64_t before_y = 1;
        for (uint32_t k = 0; k < y.n_dims && !met; before_y *= y.dims[k++]) {
            if (before_x == before_y && c->out[0][k] == '_' && (x.dims[i] > 1) == (y.dims[k] > 1)) {
                c->out[0][k] = c->in[0][i];
                met = true;
            }
        }
        if (!met) {
            drop_letter(c->cuts, c->in[0][i]);
            c->in[0][i] = '_';
        }
    }
    c->hint = "the new shape does not keep the dim that is cut, or not in equal parts";
}

/* ---- the table ------------------------------------------------------------------------------- */

#define ELEMENTWISE(name, groups)                                                                  \
    {                                                                                              \
        &dsi_op_##name, "*", "*", "*", "", groups, DSI_RULE_ELEMENTS, NULL                         \
    }
#define UPDATE(name)                                                                               \
    {                                                                                              \
        &dsi_op_##name, "* * _ . * * *", "* * * *", "*", "", "",                                   \
            DSI_RULE_ELEMENTS | DSI_RULE_UPDATE, NULL                                              \
    }
#define REFUSED(name)                                                                              \
    {                                                                                              \
        &dsi_op_##name, "", "", "", "", "", DSI_RULE_REFUSED, NULL                                 \
    }

static const dsi_rule rules[] = {
    /* op, in, out, cuts, sums, linear, flags, adapt */
    {&dsi_op_linear, "*k ok o *o", "*o<01+23 *o<01+2", "*ok", "k", "023|123", 0, adapt_linear},
    {&dsi_op_linear_dw, "*k *o ok o", "ok<01+2 o<1+3", "*ok", "*", "123", 0, adapt_linear_dw},
    {&dsi_op_embedding, "_c * _c *", "*c", "*c", "", "", 0, NULL},
    {&dsi_op_embedding_dw, "* *c _c", "_c<01+2", "*c", "*", "12", 0, NULL},
    {&dsi_op_layer_norm, "*_ _ _", "*_ * *", "*", "", "", 0, NULL},
    {&dsi_op_layer_norm_backward, "*_ *_ _ * * *_", "*_ _<0134 _<0", "*", "*", "05", 0, NULL},
    {&dsi_op_rms_norm, "*_ _", "*_ *", "*", "", "", 0, NULL},
    {&dsi_op_rms_norm_backward, "*_ *_ _ * *_", "*_ _<013", "*", "*", "04", 0, NULL},
    ELEMENTWISE(activation, ""),
    ELEMENTWISE(activation_backward, "0"),
    ELEMENTWISE(glu, ""),
    {&dsi_op_glu_backward, "* * *", "* *", "*", "", "0", DSI_RULE_ELEMENTS, NULL},
    {&dsi_op_rope_table, "bt b", "bt_", "bt", "", "", 0, adapt_rope_table},
    {&dsi_op_rope, "bth bt_", "bth", "hbt", "", "0", 0, adapt_rope},
    {&dsi_op_attention, "bth bsh bsh bt b _", "bth bht", "hb", "", "", 0, adapt_attention},
    {&dsi_op_attention_backward, "bth bth bsh bsh bth bht bt _", "bth bsh bsh", "hb", "", "0", 0,
     adapt_attention_backward},
    {&dsi_op_linear_cross_entropy, "*_ __ *", ". * . *_", "*", "*", "", DSI_RULE_MEAN_ROWS, NULL},
    {&dsi_op_linear_cross_entropy_backward, ". *_ __ * * . __", "*_<01234+5 __<01234+56", "*", "*",
     "06", DSI_RULE_MEAN_ROWS, NULL},
    {&dsi_op_linear_cross_entropy_dx, ". __ *_ * * .", "*_<01234+5", "*", "*", "0",
     DSI_RULE_MEAN_ROWS, NULL},
    {&dsi_op_linear_cross_entropy_dw, ". *_ *_ * * . __", "__<01234+56", "*", "*", "06",
     DSI_RULE_MEAN_ROWS, NULL},
    {&dsi_op_cross_entropy, "*_ *", ". * .", "*", "*", "", DSI_RULE_MEAN_ROWS, NULL},
    {&dsi_op_cross_entropy_backward, ". *_ * * .", "*_<0123+4", "*", "*", "0", DSI_RULE_MEAN_ROWS,
     NULL},
    {&dsi_op_softmax, "*_", "*_", "*", "", "", 0, NULL},
    {&dsi_op_softmax_backward, "*_ *_", "*_", "*", "", "0", 0, NULL},
    {&dsi_op_dropout, "* _", "*", "*", "", "0", 0, adapt_dropout},
    {&dsi_op_add, "* *", "*", "*", "", "01", DSI_RULE_ELEMENTS, adapt_binary},
    {&dsi_op_sub, "* *", "*", "*", "", "01", DSI_RULE_ELEMENTS, adapt_binary},
    {&dsi_op_mul, "* *", "*", "*", "", "0|1", DSI_RULE_ELEMENTS, adapt_binary},
    {&dsi_op_div, "* *", "*", "*", "", "0", DSI_RULE_ELEMENTS, adapt_div},
    ELEMENTWISE(scale, "0"),
    ELEMENTWISE(neg, "0"),
    {&dsi_op_exp, "*", "*", "*", "", "", 0, NULL},
    {&dsi_op_log, "*", "*", "*", "", "", 0, NULL},
    ELEMENTWISE(sqrt, ""),
    ELEMENTWISE(tanh, ""),
    {&dsi_op_sigmoid, "*", "*", "*", "", "", 0, NULL},
    ELEMENTWISE(relu, ""),
    ELEMENTWISE(square, ""),
    ELEMENTWISE(relu_backward, "0"),
    {&dsi_op_sum_all, "*", ".", "*", "*", "0", DSI_RULE_ADDS_ALL, NULL},
    {&dsi_op_mean_all, "*", ".", "*", "*", "0", DSI_RULE_MEAN, NULL},
    {&dsi_op_sum_last, "*c", "*", "*c", "c", "0", 0, NULL},
    {&dsi_op_sum_rows, "*c", "c", "*c", "*", "0", 0, NULL},
    {&dsi_op_fill, "* .", "*", "*", "", "1", 0, NULL},
    {&dsi_op_expand_last, "* *c", "*c", "*c", "", "0", 0, NULL},
    {&dsi_op_expand_rows, "c *c", "*c", "*c", "", "0", 0, NULL},
    ELEMENTWISE(cast, "0"), /* law 4a: a gradient is rounded before it is reduced */
    {&dsi_op_reshape, "*", "*", "*", "", "0", DSI_RULE_VIEW, adapt_reshape},
    ELEMENTWISE(gradient, "0"),
    {&dsi_op_permute, "*", "*", "*", "", "0", 0, adapt_permute},
    {&dsi_op_slice, "*", "*", "*", "", "0", 0, adapt_slice},
    {&dsi_op_pad, "*", "*", "*", "", "0", 0, adapt_pad},
    {&dsi_op_split, "*", "* * * * * * * *", "*", "*", "0", 0, adapt_split},
    {&dsi_op_concat, "*", "*", "*", "", "all", 0, adapt_concat},
    {&dsi_op_take_rows, "b_c b", "bc", "bc", "", "0", 0, NULL},
    {&dsi_op_store, "* *", "*", "*", "", "01", DSI_RULE_ELEMENTS | DSI_RULE_UPDATE, NULL},
    {&dsi_op_accumulate, "* *", "*", "*", "", "01", DSI_RULE_ELEMENTS, NULL},
    {&dsi_op_kv_write, "b_c b_c b", "b_c", "bc", "", "", 0, NULL},
    {&dsi_op_abs_max, "*", ".", "*", "*", "", DSI_RULE_ADDS_ALL | DSI_RULE_MAX, NULL},
    {&dsi_op_max_of, ".", ".", "", "", "all", DSI_RULE_MAX, NULL},
    {&dsi_op_sum_squares, "* .", "_", "*", "*", "", DSI_RULE_ADDS_ALL | DSI_RULE_EXACT, NULL},
    {&dsi_op_sum_parts, "_", "_", "", "", "all", DSI_RULE_EXACT, NULL},
    {&dsi_op_clip_factor, "_ . .", ". .", "", "", "", 0, NULL},
    UPDATE(adam),
    UPDATE(sgd),
    UPDATE(lion),
    UPDATE(adagrad),
    {&dsi_op_lamb, "* * _ . * * *", "* * * *", "", "", "", DSI_RULE_OWNER, NULL},
    {&dsi_op_column_sums, "* . .", "_", "", "", "",
     DSI_RULE_ADDS_ALL | DSI_RULE_SIDE | DSI_RULE_COLUMNS, NULL},
    {&dsi_op_choose_columns, "_ *", "_", "", "", "", 0, NULL},
    {&dsi_op_weigh_columns, "_ * _ .", "_", "", "", "", 0, NULL},
    {&dsi_op_take_columns, "* _ .", "__", "", "", "", DSI_RULE_ADDS_ALL | DSI_RULE_COLUMNS, NULL},
    {&dsi_op_put_columns, "* __ _ .", "*", "", "", "", DSI_RULE_ELEMENTS | DSI_RULE_COLUMNS, NULL},
    {&dsi_op_postpone, "* * . .", "*", "*", "", "", DSI_RULE_ELEMENTS, NULL},
    REFUSED(take_slice),
    REFUSED(reduce_scatter),
    REFUSED(all_reduce),
    REFUSED(all_gather),
    REFUSED(gather_store),
    REFUSED(swap_in),
    REFUSED(swap_out),
};

const dsi_rule *dsi_rule_find(const ds_op *op)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i) {
        if (rules[i].op == op) {
            return &rules[i];
        }
    }
    return NULL;
}
