/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of whole numbers with a scale each, in place of numbers: what quantized collectives send.
 * Rules; see ops.h for what they compute and docs/internals/quantized.md for the collectives that
 * they stand around. */
#include "op/op_place.h"
#include "op/op_util.h"

enum { ERROR = 1, UNIT = 2 };

int64_t dsi_blocks_count(const dsi_blocks_attrs *a)
{
    return (a->width + a->block - 1) / a->block;
}

int64_t dsi_blocks_row_bytes(const dsi_blocks_attrs *a)
{
    const int64_t whole = a->bits == 8 ? a->width : (a->width + 1) / 2;
    return dsi_blocks_count(a) * (int64_t)sizeof(float) + (whole + 3) / 4 * 4;
}

static ds_status check_attrs(const ds_infer *call)
{
    const dsi_blocks_attrs *a = call->attrs;
    if (a->bits != 4 && a->bits != 8) {
        return dsi_op_bad_attr(call, "bits is %lld, expected 4 or 8", (long long)a->bits);
    }
    if (a->block < 2 || a->block > DSI_BLOCKS_MOST || a->block % 2 != 0) {
        return dsi_op_bad_attr(call, "block is %lld, expected an even number up to %d",
                               (long long)a->block, DSI_BLOCKS_MOST);
    }
    if (a->n_rows < 1 || a->n_rows > INT32_MAX || a->width < 1 ||
        a->width > INT64_MAX / 8 / a->n_rows) {
        return dsi_op_bad_attr(call, "n_rows is %lld, width %lld", (long long)a->n_rows,
                               (long long)a->width);
    }
    return DS_OK;
}

static ds_meta sent(const dsi_blocks_attrs *a)
{
    return dsi_meta_of(DS_DTYPE_U8, ds_shape_2d(a->n_rows, dsi_blocks_row_bytes(a)));
}

static ds_status need_sent(const ds_infer *call)
{
    DS_TRY(check_attrs(call));
    const ds_meta want = sent(call->attrs);
    return dsi_op_need(call, 0, "blocks", DS_DTYPE_U8, want.shape);
}

static ds_status quantize_infer(ds_infer *call)
{
    const dsi_blocks_attrs *a = call->attrs;
    DS_TRY(check_attrs(call));
    DS_TRY(dsi_op_need_float(call, 0, "x", 0));
    const ds_meta x = call->in[0];
    if (x.dtype == DS_DTYPE_F64 || ds_shape_count(x.shape) > a->n_rows * a->width) {
        return dsi_op_bad(call, 0, "x", "f32, bf16 or f16, at most %lld elements",
                          (long long)(a->n_rows * a->width));
    }
    call->out[0] = sent(a);
    return DS_OK;
}

static ds_status with_error_infer(ds_infer *call)
{
    const dsi_blocks_attrs *a = call->attrs;
    const ds_shape scalar = {0};
    DS_TRY(quantize_infer(call));
    if (!(a->beta >= 0.0 && a->beta <= 1.0)) {
        return dsi_op_bad_attr(call, "beta is %g, expected 0 to 1", a->beta);
    }
    dsi_blocks_attrs kept = *a;
    kept.bits = 8;
    DS_TRY(dsi_op_need(call, ERROR, "error", DS_DTYPE_U8, sent(&kept).shape));
    if (dsi_op_has(call, UNIT)) {
        DS_TRY(dsi_op_need(call, UNIT, "unit", DS_DTYPE_F32, scalar));
    }
    call->out[ERROR] = call->in[ERROR];
    return DS_OK;
}

static ds_status check_made(const ds_infer *call)
{
    const dsi_blocks_attrs *a = call->attrs;
    if (a->dtype != DS_DTYPE_F32 && a->dtype != DS_DTYPE_BF16 && a->dtype != DS_DTYPE_F16) {
        return dsi_op_bad_attr(call, "dtype is %lld, expected f32, bf16 or f16",
                               (long long)a->dtype);
    }
    return DS_OK;
}

static ds_status dequantize_infer(ds_infer *call)
{
    const dsi_blocks_attrs *a = call->attrs;
    DS_TRY(need_sent(call));
    DS_TRY(check_made(call));
    if (a->count < 1 || a->count > a->n_rows * a->width) {
        return dsi_op_bad_attr(call, "count is %lld, expected 1 to %lld", (long long)a->count,
                               (long long)(a->n_rows * a->width));
    }
    call->out[0] = dsi_meta_of((ds_dtype)a->dtype, ds_shape_1d(a->count));
    return DS_OK;
}

static ds_status sum_infer(ds_infer *call)
{
    const dsi_blocks_attrs *a = call->attrs;
    DS_TRY(need_sent(call));
    DS_TRY(check_made(call));
    if (!(a->factor > 0.0)) {
        return dsi_op_bad_attr(call, "factor is %g, expected above 0", a->factor);
    }
    call->out[0] = dsi_meta_of((ds_dtype)a->dtype, ds_shape_1d(a->width));
    return DS_OK;
}

static void cost_of(const ds_infer *call, ds_cost *cost_out)
{
    const dsi_blocks_attrs *a = call->attrs;
    cost_out->flops = 4.0 * (double)a->n_rows * (double)a->width;
    cost_out->bytes = dsi_op_bytes(call);
}

static const ds_attr blocks_attrs[] = {
    DSI_ATTR_INT(dsi_blocks_attrs, bits),    DSI_ATTR_INT(dsi_blocks_attrs, block),
    DSI_ATTR_INT(dsi_blocks_attrs, n_rows),  DSI_ATTR_INT(dsi_blocks_attrs, width),
    DSI_ATTR_INT(dsi_blocks_attrs, count),   DSI_ATTR_INT(dsi_blocks_attrs, dtype),
    DSI_ATTR_REAL(dsi_blocks_attrs, factor), DSI_ATTR_REAL(dsi_blocks_attrs, beta),
};
static const int8_t writes_error[] = {-1, ERROR};

#define BLOCKS_OP(op_name, infer_fn, text)                                                         \
    {                                                                                              \
        .version = DS_OP_VERSION, .name = (op_name), .doc = (text), .n_in_min = 1, .n_in_max = 1,  \
        .n_out = 1, .attrs_bytes = sizeof(dsi_blocks_attrs), .attrs = blocks_attrs,                \
        .n_attrs = DSI_N(blocks_attrs), .infer = (infer_fn), .cost = cost_of,                      \
        .op_class = DS_CLASS_REDUCE, .again = DS_AGAIN_COSTLY, .role = DS_ROLE_COMPUTE,            \
        .place = DSI_PLACE(.in = "_", .out = "_"),                                                 \
    }

const ds_op dsi_op_quantize_blocks = BLOCKS_OP(
    "quantize_blocks", quantize_infer,
    "x (at most n_rows·width elements) → u8 (n_rows, bytes): each row's scales f32, one a "
    "block, then its numbers in `bits` bits, padded with zeros.");
const ds_op dsi_op_quantize_with_error = {
    .version = DS_OP_VERSION,
    .name = "quantize_with_error",
    .doc = "x (at most n_rows·width elements), error u8 (n_rows, bytes of 8 bits; written), [unit "
           "f32 ()] → u8 (n_rows, bytes) as quantize_blocks makes it of x and the error, and the "
           "error: of what was lost now and before, a mean with the weight beta.",
    .n_in_min = 2,
    .n_in_max = 3,
    .n_out = 2,
    .attrs_bytes = sizeof(dsi_blocks_attrs),
    .attrs = blocks_attrs,
    .n_attrs = DSI_N(blocks_attrs),
    .writes = writes_error,
    .infer = with_error_infer,
    .cost = cost_of,
    .op_class = DS_CLASS_REDUCE,
    .again = DS_AGAIN_COSTLY,
    .role = DS_ROLE_WRITE,
    .place = DSI_PLACE(.in = "_ _ _", .out = "_ _")};
const ds_op dsi_op_dequantize_blocks =
    BLOCKS_OP("dequantize_blocks", dequantize_infer,
              "u8 (n_rows, bytes) as quantize_blocks makes it → dtype (count): the rows' numbers "
              "times their blocks' scales, one row behind the other, padding cut off.");
const ds_op dsi_op_dequantize_sum = BLOCKS_OP(
    "dequantize_sum", sum_infer,
    "u8 (n_rows, bytes) as quantize_blocks makes it → dtype (width): the sum of the rows, "
    "in fp32 in the canonical order, times factor, rounded once.");
