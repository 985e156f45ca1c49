/* SPDX-License-Identifier: Apache-2.0 */
/* The list of built-in operators. */
#include "op/ops.h"

#include <string.h>

static const ds_op *const all[] = {
    &dsi_op_linear,
    &dsi_op_linear_dw,
    &dsi_op_bmm,
    &dsi_op_embedding,
    &dsi_op_embedding_dw,
    &dsi_op_layer_norm,
    &dsi_op_layer_norm_backward,
    &dsi_op_rms_norm,
    &dsi_op_rms_norm_backward,
    &dsi_op_activation,
    &dsi_op_activation_backward,
    &dsi_op_glu,
    &dsi_op_glu_backward,
    &dsi_op_rope_table,
    &dsi_op_rope,
    &dsi_op_attention,
    &dsi_op_attention_backward,
    &dsi_op_linear_cross_entropy,
    &dsi_op_linear_cross_entropy_backward,
    &dsi_op_linear_cross_entropy_dx,
    &dsi_op_linear_cross_entropy_dw,
    &dsi_op_cross_entropy,
    &dsi_op_cross_entropy_backward,
    &dsi_op_softmax,
    &dsi_op_softmax_backward,
    &dsi_op_dropout,
    &dsi_op_add,
    &dsi_op_sub,
    &dsi_op_mul,
    &dsi_op_div,
    &dsi_op_scale,
    &dsi_op_neg,
    &dsi_op_exp,
    &dsi_op_log,
    &dsi_op_sqrt,
    &dsi_op_tanh,
    &dsi_op_sigmoid,
    &dsi_op_relu,
    &dsi_op_square,
    &dsi_op_relu_backward,
    &dsi_op_sum_all,
    &dsi_op_mean_all,
    &dsi_op_sum_last,
    &dsi_op_sum_rows,
    &dsi_op_fill,
    &dsi_op_expand_last,
    &dsi_op_expand_rows,
    &dsi_op_max_last,
    &dsi_op_max_last_backward,
    &dsi_op_compare,
    &dsi_op_where,
    &dsi_op_band,
    &dsi_op_cast,
    &dsi_op_reshape,
    &dsi_op_gradient,
    &dsi_op_permute,
    &dsi_op_slice,
    &dsi_op_pad,
    &dsi_op_split,
    &dsi_op_concat,
    &dsi_op_take_rows,
    &dsi_op_store,
    &dsi_op_accumulate,
    &dsi_op_kv_write,
    &dsi_op_swap_in,
    &dsi_op_swap_out,
    &dsi_op_abs_max,
    &dsi_op_max_of,
    &dsi_op_sum_squares,
    &dsi_op_sum_parts,
    &dsi_op_clip_factor,
    &dsi_op_adam,
    &dsi_op_sgd,
    &dsi_op_lion,
    &dsi_op_adagrad,
    &dsi_op_lamb_moments,
    &dsi_op_lamb_sums,
    &dsi_op_lamb,
    &dsi_op_column_sums,
    &dsi_op_choose_columns,
    &dsi_op_weigh_columns,
    &dsi_op_take_columns,
    &dsi_op_put_columns,
    &dsi_op_postpone,
    &dsi_op_take_slice,
    &dsi_op_take_term,
    &dsi_op_reduce_scatter,
    &dsi_op_all_reduce,
    &dsi_op_all_gather,
    &dsi_op_all_to_all,
    &dsi_op_gather_store,
    NULL,
};

const ds_op *const *dsi_op_all(void)
{
    return all;
}

const ds_op *ds_op_find(const char *name)
{
    for (uint32_t i = 0; all[i] != NULL; ++i) {
        if (strcmp(all[i]->name, name) == 0) {
            return all[i];
        }
    }
    return NULL;
}
