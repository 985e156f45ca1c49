/* SPDX-License-Identifier: Apache-2.0 */
/* Signs and one scale in place of numbers: what 1-bit optimizers send. Rules; see ops.h for what
 * they compute and docs/internals/optim.md for the exchange that they are the pieces of. */
#include "op/op_place.h"
#include "op/op_util.h"

enum { BITS = 8, ERROR = 1 };

static ds_status compress_infer(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, 0, "x", 0));
    const ds_meta x = call->in[0];
    if (x.dtype == DS_DTYPE_F64) {
        return dsi_op_bad(call, 0, "x", "f32, bf16 or f16");
    }
    const ds_meta error = dsi_op_in(call, ERROR);
    const int64_t n = error.shape.n_dims == 1 ? error.shape.dims[0] : 0;
    if (error.dtype != DS_DTYPE_F32 || n < 1 || n % BITS != 0 || n < ds_shape_count(x.shape)) {
        return dsi_op_bad(call, ERROR, "error", "f32 (N), N a multiple of 8 and at least %lld",
                          (long long)ds_shape_count(x.shape));
    }
    call->out[0] = dsi_meta_of(DS_DTYPE_U8, ds_shape_1d(n / BITS));
    call->out[1] = dsi_meta_of(DS_DTYPE_F32, ds_shape_1d(1));
    call->out[2] = error;
    return DS_OK;
}

/* signs u8 (any shape) in as many equal blocks as there are scales. */
static ds_status need_signs(const ds_infer *call, int64_t *n_blocks, int64_t *n_bits)
{
    const ds_shape scales = dsi_op_in(call, 1).shape;
    *n_blocks = scales.n_dims == 1 ? scales.dims[0] : 0;
    if (*n_blocks < 1) {
        return dsi_op_bad(call, 1, "scales", "f32 (ranks)");
    }
    DS_TRY(dsi_op_need(call, 1, "scales", DS_DTYPE_F32, ds_shape_1d(*n_blocks)));
    const ds_meta signs = dsi_op_in(call, 0);
    const int64_t n = ds_shape_count(signs.shape);
    if (signs.dtype != DS_DTYPE_U8 || n < 1 || n % *n_blocks != 0) {
        return dsi_op_bad(call, 0, "signs", "u8, %lld equal blocks", (long long)*n_blocks);
    }
    *n_bits = n * BITS;
    return DS_OK;
}

static ds_status average_infer(ds_infer *call)
{
    int64_t n_blocks = 0;
    int64_t n_bits = 0;
    DS_TRY(need_signs(call, &n_blocks, &n_bits));
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, ds_shape_1d(n_bits / n_blocks));
    return DS_OK;
}

static ds_status expand_infer(ds_infer *call)
{
    const dsi_signs_attrs *a = call->attrs;
    int64_t n_blocks = 0;
    int64_t n_bits = 0;
    DS_TRY(need_signs(call, &n_blocks, &n_bits));
    if (a->count < 1 || a->count > n_bits) {
        return dsi_op_bad_attr(call, "count is %lld, expected 1 to %lld", (long long)a->count,
                               (long long)n_bits);
    }
    call->out[0] = dsi_meta_of(DS_DTYPE_F32, ds_shape_1d(a->count));
    return DS_OK;
}

static void cost_of(const ds_infer *call, ds_cost *cost_out)
{
    cost_out->flops = 4.0 * dsi_op_count(call->out[0]);
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr signs_attrs[] = {DSI_ATTR_INT(dsi_signs_attrs, count)};
static const int8_t writes_error[] = {-1, -1, ERROR};

#define SIGNS_OP(op_name, n_outputs, infer_fn, writes_of, out_words, text)                         \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = 2, .n_in_max = 2,  \
        .n_out = (n_outputs), .attrs_bytes = sizeof(dsi_signs_attrs), .attrs = signs_attrs,        \
        .n_attrs = DSI_N(signs_attrs), .writes = (writes_of), .infer = (infer_fn),                 \
        .cost = cost_of, .op_class = DS_CLASS_REDUCE, .again = DS_AGAIN_COSTLY,                    \
        .role = (writes_of) != NULL ? DS_ROLE_WRITE : DS_ROLE_COMPUTE,                             \
        .place = DSI_PLACE(.in = "* _", .out = (out_words)),                                       \
    }

const ds_op dsi_op_compress_signs =
    SIGNS_OP("compress_signs", 3, compress_infer, writes_error, "_ _ _",
             "x (P elements), error f32 (N >= P, a multiple of 8; written) → signs u8 (N/8), scale "
             "f32 (1), error: the signs and the root of the mean square of x + error, and what is "
             "lost by them.");
const ds_op dsi_op_average_signs =
    SIGNS_OP("average_signs", 1, average_infer, NULL, "_",
             "signs u8 of as many equal blocks as there are scales, scales f32 (ranks) → f32: the "
             "mean of the ranks' ±scale.");
const ds_op dsi_op_expand_signs =
    SIGNS_OP("expand_signs", 1, expand_infer, NULL, "_",
             "signs u8 of as many equal blocks as there are scales, scales f32 (ranks) → f32 "
             "(count): ±scale of its block, padding cut off.");
