/* SPDX-License-Identifier: Apache-2.0 */
/* See byte_weight.h. */
#include "ckpt/byte_weight.h"

#include "base/file_dtype.h"
#include "base/half.h"
#include "ckpt/quantized_config.h"
#include "io/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BLOCK = 1 << 24 };

/* ---- what config.json says ---- */

static bool is_null(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

/* A pair of sizes. */
static bool read_block(const json_t *pair, dsi_byte_form *form)
{
    form->rows = json_integer_value(json_array_get(pair, 0));
    form->columns = json_integer_value(json_array_get(pair, 1));
    return json_array_size(pair) == 2 && form->rows >= 1 && form->rows <= MOST_BLOCK &&
           form->columns >= 1 && form->columns <= MOST_BLOCK;
}

static ds_status read_fp8(const dsi_quantized_config *c, dsi_byte_form *form)
{
    const json_t *block = json_object_get(c->own, "weight_block_size");
    *form = (dsi_byte_form){.there = true, .scale = "weight_scale_inv"};
    if (block == NULL) { /* as in transformers; null is a scale for the matrix */
        form->rows = form->columns = 128;
    }
    if (!dsi_quantized_is(c->own, "activation_scheme", "dynamic", "dynamic")) {
        return dsi_quantized_refuse(c, "activation_scheme", "\"dynamic\" alone is read");
    }
    if (!dsi_quantized_is(c->own, "expert_dtype", "fp8", "fp8")) {
        return dsi_quantized_refuse(c, "expert_dtype", "\"fp8\" alone is read");
    }
    if (!dsi_quantized_is(c->own, "fmt", "e4m3", "e4m3")) {
        return dsi_quantized_refuse(c, "fmt", "\"e4m3\" alone is read");
    }
    return is_null(block) || read_block(block, form)
               ? DS_OK
               : dsi_quantized_refuse(c, "weight_block_size", "a pair of sizes, or null");
}

/* What a scale is of, by strategy and what belongs to it. */
static ds_status read_strategy(const dsi_quantized_config *c, const json_t *weights,
                               dsi_byte_form *form)
{
    const json_t *size = json_object_get(weights, "group_size");
    const json_int_t n = json_integer_value(size);
    const char *absent = is_null(size) ? "tensor" : n > 0 ? "group" : "channel";
    form->rows = form->columns = 0;
    if (dsi_quantized_is(weights, "strategy", absent, "tensor")) {
        return DS_OK;
    }
    form->rows = 1;
    if (dsi_quantized_is(weights, "strategy", absent, "channel")) {
        return DS_OK;
    }
    if (dsi_quantized_is(weights, "strategy", absent, "group")) {
        form->columns = n;
        return n >= 1 && n <= MOST_BLOCK
                   ? DS_OK
                   : dsi_quantized_refuse(c, "group_size", "above 0 with strategy \"group\"");
    }
    if (dsi_quantized_is(weights, "strategy", absent, "block")) {
        return read_block(json_object_get(weights, "block_structure"), form)
                   ? DS_OK
                   : dsi_quantized_refuse(c, "block_structure", "a pair of sizes");
    }
    return dsi_quantized_refuse(c, "strategy",
                                "\"tensor\", \"channel\", \"group\" and \"block\" alone are read");
}

static ds_status read_group(const dsi_quantized_config *c, const json_t *group, dsi_byte_form *form)
{
    const json_t *weights = json_object_get(group, "weights");
    const json_t *inputs = json_object_get(group, "input_activations");
    if (!is_null(json_object_get(group, "output_activations"))) {
        return dsi_quantized_refuse(c, "output_activations", "what layers give is kept whole");
    }
    if (!is_null(inputs) && !json_is_true(json_object_get(inputs, "dynamic"))) {
        return dsi_quantized_refuse(c, "input_activations",
                                    "those of scales that are stored are not read");
    }
    if (json_integer_value(json_object_get(weights, "num_bits")) != 8) {
        return dsi_quantized_refuse(c, "num_bits", "8 alone is read in this format");
    }
    form->whole_numbers = dsi_quantized_is(weights, "type", "int", "int");
    if (!form->whole_numbers && !dsi_quantized_is(weights, "type", "int", "float")) {
        return dsi_quantized_refuse(c, "type", "\"int\" and \"float\" alone are read");
    }
    DS_TRY(dsi_quantized_check_order(c, weights));
    const json_t *format = json_object_get(group, "format");
    if (!is_null(format) && !dsi_byte_is_format(group)) {
        return dsi_quantized_refuse(c, "format", "layers of different kinds are not read");
    }
    return read_strategy(c, weights, form);
}

static ds_status read_compressed(const dsi_quantized_config *c, dsi_byte_form *form)
{
    json_t *groups = json_object_get(c->own, "config_groups");
    const char *name = NULL;
    json_t *group = NULL;
    DS_TRY(dsi_quantized_check_groups(c));
    json_object_foreach(groups, name, group)
    {
        dsi_byte_form next = {.there = true, .scale = "weight_scale"};
        DS_TRY(read_group(c, group, &next));
        if (form->there && memcmp(&next.rows, &form->rows, 2 * sizeof next.rows) != 0) {
            return dsi_quantized_refuse(c, "config_groups",
                                        "groups of different scales are not read");
        }
        if (form->there && next.whole_numbers != form->whole_numbers) {
            return dsi_quantized_refuse(c, "config_groups",
                                        "groups of different types are not read");
        }
        *form = next;
    }
    return DS_OK;
}

bool dsi_byte_is_format(const json_t *quantization_config)
{
    static const char *const formats[] = {"float-quantized", "int-quantized", "naive-quantized"};
    bool found = false;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; ++i) {
        found = found || dsi_quantized_is(quantization_config, "format", "", formats[i]);
    }
    return found;
}

ds_status dsi_byte_form_of(ds_ctx *ctx, const ds_safetensors *st, dsi_byte_form *form_out)
{
    dsi_quantized_config c;
    ds_status status = DS_OK;
    *form_out = (dsi_byte_form){0};
    dsi_quantized_config_load(ctx, st, &c);
    if (dsi_quantized_is(c.own, "quant_method", "", "fp8")) {
        status = read_fp8(&c, form_out);
    } else if (dsi_quantized_is(c.own, "quant_method", "", "fbgemm_fp8")) {
        *form_out = (dsi_byte_form){.there = true, .scale = "weight_scale", .rows = 1};
    } else if (dsi_quantized_is(c.own, "quant_method", "", "compressed-tensors") &&
               dsi_byte_is_format(c.own)) {
        status = read_compressed(&c, form_out);
    }
    json_decref(c.root);
    return status;
}

/* ---- a matrix ---- */

bool dsi_byte_is_stored(const dsi_byte_form *form, const ds_safetensor *weight)
{
    const int dtype = (int)weight->meta.dtype;
    return form->there &&
           (form->whole_numbers ? dtype == DS_DTYPE_I8
                                : dtype == DSI_DTYPE_F8_E4M3 || dtype == DSI_DTYPE_F8_E5M2);
}

/* E4M3 of the kind without infinities: its largest pattern is NaN. */
static float e4m3(uint8_t byte)
{
    const int exponent = byte >> 3 & 15;
    const int mantissa = byte & 7;
    const float size = (byte & 127) == 127 ? NAN
                       : exponent == 0     ? ldexpf((float)mantissa, -9)
                                           : ldexpf((float)(8 + mantissa), exponent - 10);
    return byte > 127 ? -size : size;
}

static float value_of(ds_dtype dtype, uint8_t byte)
{
    if (dtype == DS_DTYPE_I8) {
        return (float)(int8_t)byte;
    }
    if ((int)dtype == DSI_DTYPE_F8_E5M2) { /* an f16 whose mantissa is cut */
        return dsi_f16_to_f32((uint16_t)(byte << 8));
    }
    return e4m3(byte);
}

/* Exponents of powers of two, also as plain bytes, as transformers reads them. */
static bool is_exponent(ds_dtype dtype)
{
    return (int)dtype == DSI_DTYPE_F8_E8M0 || dtype == DS_DTYPE_U8;
}

/* A scale in fp32; E8M0 is a power of two, 255 no number (OCP Microscaling Formats, 2023). */
static void read_scales(const ds_safetensor *scales, float *wide, size_t n)
{
    const uint8_t *exponents = scales->data;
    const bool plain = scales->meta.dtype == DS_DTYPE_U8;
    if (!is_exponent(scales->meta.dtype)) {
        (void)dsi_convert(scales->meta.dtype, scales->data, DS_DTYPE_F32, wide, n);
        return;
    }
    for (size_t i = 0; i < n; ++i) {
        wide[i] = exponents[i] == 255 && !plain ? NAN : ldexpf(1.0f, (int)exponents[i] - 127);
    }
}

/* Of the matrix as real numbers. An FP8 number times a power of two is exact in bf16. */
static ds_dtype unpacked_dtype(const ds_safetensor *scales)
{
    return is_exponent(scales->meta.dtype) ? DS_DTYPE_BF16 : scales->meta.dtype;
}

typedef struct grid {
    int64_t n_out, n_in;
    int64_t rows, columns;   /* that a scale is of */
    int64_t n_down, n_along; /* scales */
} grid;

static int64_t parts_of(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

/* (D,A), or without the trailing dims that are 1. */
static bool is_grid(ds_shape s, const grid *g)
{
    const int64_t want[2] = {g->n_down, g->n_along};
    for (uint32_t i = 0; i < 2; ++i) {
        if ((i < s.n_dims ? s.dims[i] : 1) != want[i]) {
            return false;
        }
    }
    return s.n_dims <= 2;
}

/* The tensor whose dtype or shape is not that of the matrix; NULL: none. */
static const ds_safetensor *find_wrong(const dsi_byte_form *form, const ds_safetensor *weight,
                                       const ds_safetensor *scales, const ds_safetensor *zeros,
                                       ds_shape shape, grid *g)
{
    const ds_dtype dtype = scales->meta.dtype;
    if (shape.n_dims != 2 || !ds_shape_equal(weight->meta.shape, shape) || shape.dims[0] < 1 ||
        shape.dims[1] < 1) {
        return weight;
    }
    g->n_out = shape.dims[0];
    g->n_in = shape.dims[1];
    g->rows = form->rows > 0 ? form->rows : g->n_out;
    g->columns = form->columns > 0 ? form->columns : g->n_in;
    g->n_down = parts_of(g->n_out, g->rows);
    g->n_along = parts_of(g->n_in, g->columns);
    if (!is_grid(scales->meta.shape, g) ||
        (dtype != DS_DTYPE_F32 && dtype != DS_DTYPE_BF16 && dtype != DS_DTYPE_F16 &&
         (!is_exponent(dtype) || form->whole_numbers)) ||
        (dtype == DS_DTYPE_U8 && strcmp(form->scale, "weight_scale_inv") != 0)) {
        return scales;
    }
    if (zeros != NULL && (zeros->meta.dtype != DS_DTYPE_I8 || !form->whole_numbers ||
                          !is_grid(zeros->meta.shape, g))) {
        return zeros;
    }
    return NULL;
}

struct dsi_byte_matrix {
    ds_ctx *ctx;
    const ds_safetensor *weight, *zeros;
    grid g;
    ds_dtype dtype; /* that numbers are rounded to */
    float values[256];
    float *scales;
};

ds_status dsi_byte_open(ds_ctx *ctx, const dsi_byte_form *form, const ds_safetensor *weight,
                        const ds_safetensor *scales, const ds_safetensor *zeros, ds_shape shape,
                        dsi_byte_matrix **matrix_out)
{
    grid g = {0};
    const ds_safetensor *wrong = find_wrong(form, weight, scales, zeros, shape, &g);
    if (wrong != NULL) {
        char got[160];
        char need[160];
        return ds_fail(ctx, DS_ERR_SHAPE,
                       "%s: tensor %s is %s, which is none of a matrix of bytes with scales that "
                       "the model needs as %s; does quantization_config belong to it?",
                       wrong->path, wrong->name, ds_meta_text(wrong->meta, got, sizeof got),
                       ds_meta_text((ds_meta){DS_DTYPE_F32, shape}, need, sizeof need));
    }
    dsi_byte_matrix *m = calloc(1, sizeof *m);
    float *wide = malloc((size_t)(g.n_down * g.n_along) * sizeof *wide);
    if (m == NULL || wide == NULL) {
        free(m);
        free(wide);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to unpack %s", weight->name);
    }
    *m = (dsi_byte_matrix){.ctx = ctx,
                           .weight = weight,
                           .zeros = zeros,
                           .g = g,
                           .dtype = unpacked_dtype(scales),
                           .scales = wide};
    for (int i = 0; i < 256; ++i) {
        m->values[i] = value_of(weight->meta.dtype, (uint8_t)i);
    }
    read_scales(scales, wide, (size_t)(g.n_down * g.n_along));
    *matrix_out = m;
    return DS_OK;
}

void dsi_byte_close(dsi_byte_matrix **matrix)
{
    if (*matrix != NULL) {
        free((*matrix)->scales);
        free(*matrix);
        *matrix = NULL;
    }
}

/* Elements from `first` on, not rounded. */
static void multiply(const dsi_byte_matrix *m, int64_t first, int64_t n, float *out)
{
    const uint8_t *bytes = m->weight->data;
    const int8_t *zeros = m->zeros != NULL ? m->zeros->data : NULL;
    for (int64_t i = 0; i < n;) { /* as far as one scale goes */
        const int64_t row = (first + i) / m->g.n_in, column = (first + i) % m->g.n_in;
        const int64_t at = row / m->g.rows * m->g.n_along + column / m->g.columns;
        const int64_t block = m->g.columns - column % m->g.columns, rest = m->g.n_in - column;
        const int64_t to = i + (block < rest ? block : rest);
        const float zero = zeros != NULL ? (float)zeros[at] : 0.0f;
        for (; i < to && i < n; ++i) {
            out[i] = (m->values[bytes[first + i]] - zero) * m->scales[at];
        }
    }
}

static ds_status overflowed(const dsi_byte_matrix *m, size_t n)
{
    return n == 0 ? DS_OK
                  : ds_fail(m->ctx, DS_ERR_NUMERIC,
                            "%s: %zu values of %s are beyond the range of "
                            "%s",
                            m->weight->path, n, m->weight->name, ds_dtype_name(m->dtype));
}

ds_status dsi_byte_read(const dsi_byte_matrix *m, int64_t first, int64_t n, float *out)
{
    multiply(m, first, n, out);
    return overflowed(m, dsi_round(m->dtype, out, (size_t)n));
}

/* Rows [first, first + n). */
static ds_status fill(const dsi_byte_matrix *m, int64_t first, int64_t n, float *row,
                      unsigned char *data)
{
    const size_t row_bytes = (size_t)m->g.n_in * ds_dtype_bytes(m->dtype);
    size_t overflows = 0;
    for (int64_t o = 0; o < n; ++o) {
        multiply(m, (first + o) * m->g.n_in, m->g.n_in, row);
        overflows += dsi_convert(DS_DTYPE_F32, row, m->dtype, data + (size_t)o * row_bytes,
                                 (size_t)m->g.n_in);
    }
    return overflowed(m, overflows);
}

ds_status dsi_byte_unpack_rows(ds_ctx *ctx, const dsi_byte_form *form, const ds_safetensor *weight,
                               const ds_safetensor *scales, const ds_safetensor *zeros,
                               ds_shape shape, int64_t first, int64_t n, ds_safetensor *out)
{
    dsi_byte_matrix *m = NULL;
    DS_TRY(dsi_byte_open(ctx, form, weight, scales, zeros, shape, &m));
    const size_t n_bytes = (size_t)(n * m->g.n_in) * ds_dtype_bytes(m->dtype);
    unsigned char *data = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
    float *row = malloc((size_t)m->g.n_in * sizeof *row);
    const ds_dtype dtype = m->dtype;
    const ds_status status =
        data != NULL && row != NULL
            ? fill(m, first, n, row, data)
            : ds_fail(ctx, DS_ERR_NOMEM, "no memory to unpack %s", weight->name);
    free(row);
    dsi_byte_close(&m);
    if (status < 0) {
        free(data);
        return status;
    }
    *out = *weight;
    out->meta = (ds_meta){dtype, ds_shape_2d(n, shape.dims[1])};
    out->data = data;
    out->bytes = n_bytes;
    return DS_OK;
}

ds_status dsi_byte_unpack(ds_ctx *ctx, const dsi_byte_form *form, const ds_safetensor *weight,
                          const ds_safetensor *scales, const ds_safetensor *zeros, ds_shape shape,
                          ds_safetensor *out)
{
    const int64_t rows = shape.n_dims > 0 ? shape.dims[0] : 0;
    return dsi_byte_unpack_rows(ctx, form, weight, scales, zeros, shape, 0, rows, out);
}
