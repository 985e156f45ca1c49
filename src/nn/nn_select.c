/* SPDX-License-Identifier: Apache-2.0 */
/* Products of batches, masks and what they choose, of nn.h. */
#include "nn/nn.h"
#include "op/ops.h"

/* ds_nn_apply takes an absent operand as one that is left out; here none may be. */
static bool all_there(ds_nn *nn, const char *what, const ds_value *in, uint32_t n)
{
    for (uint32_t i = 0; i < n && ds_nn_status(nn) == DS_OK; ++i) {
        if (in[i] == DS_NONE) {
            ds_nn_fail(nn, DS_ERR_ARG, "%s: operand %u is absent", what, i);
        }
    }
    return ds_nn_status(nn) == DS_OK;
}

static ds_value apply(ds_nn *nn, const char *what, const ds_op *op, const void *attrs,
                      const ds_value *in, uint32_t n)
{
    return all_there(nn, what, in, n) ? ds_nn_apply(nn, op, attrs, in, n) : DS_NONE;
}

ds_value ds_nn_bmm(ds_nn *nn, ds_value a, ds_value b, bool b_transposed)
{
    const dsi_bmm_attrs attrs = {.b_transposed = b_transposed};
    const ds_value in[2] = {a, b};
    return apply(nn, "ds_nn_bmm", &dsi_op_bmm, &attrs, in, 2);
}

ds_value ds_nn_compare(ds_nn *nn, ds_value a, ds_comparison kind, ds_value b)
{
    const dsi_compare_attrs attrs = {.kind = (int64_t)kind};
    const ds_value in[2] = {a, b};
    return apply(nn, "ds_nn_compare", &dsi_op_compare, &attrs, in, 2);
}

ds_value ds_nn_compare_to(ds_nn *nn, ds_value a, ds_comparison kind, double number)
{
    const dsi_compare_attrs attrs = {.kind = (int64_t)kind, .value = number};
    return apply(nn, "ds_nn_compare_to", &dsi_op_compare, &attrs, &a, 1);
}

ds_value ds_nn_where(ds_nn *nn, ds_value mask, ds_value a, ds_value b)
{
    const dsi_where_attrs attrs = {0};
    const ds_value in[3] = {mask, a, b};
    return apply(nn, "ds_nn_where", &dsi_op_where, &attrs, in, 3);
}

ds_value ds_nn_masked_fill(ds_nn *nn, ds_value x, ds_value mask, double number)
{
    const dsi_where_attrs attrs = {.inverse = 1, .other = number};
    const ds_value in[2] = {mask, x};
    return apply(nn, "ds_nn_masked_fill", &dsi_op_where, &attrs, in, 2);
}

ds_value ds_nn_tril(ds_nn *nn, ds_value x, int64_t diagonal, double number)
{
    const dsi_band_attrs attrs = {.lower = INT64_MIN, .upper = diagonal, .other = number};
    return apply(nn, "ds_nn_tril", &dsi_op_band, &attrs, &x, 1);
}

ds_value ds_nn_triu(ds_nn *nn, ds_value x, int64_t diagonal, double number)
{
    const dsi_band_attrs attrs = {.lower = diagonal, .upper = INT64_MAX, .other = number};
    return apply(nn, "ds_nn_triu", &dsi_op_band, &attrs, &x, 1);
}
