/* SPDX-License-Identifier: Apache-2.0 */
/* See int4.h. */
#include "ckpt/int4.h"

#include "base/buf.h"
#include "io/convert.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_CEILING = 1 << 24, PATH_BYTES = 4096, A_WORD = 8 };

/* ---- what config.json says ---- */

static ds_status refuse(ds_ctx *ctx, const char *path, const char *key, const char *what)
{
    return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                   "%s: quantization_config.%s: %s; convert the model with its own package", path,
                   key, what);
}

static bool is_text(const json_t *own, const char *key, const char *absent, const char *text)
{
    const json_t *value = json_object_get(own, key);
    const char *found = value == NULL || json_is_null(value) ? absent : json_string_value(value);
    return found != NULL && strcmp(found, text) == 0;
}

static ds_status check_bits(ds_ctx *ctx, const char *path, const json_t *own)
{
    const json_t *bits = json_object_get(own, "bits");
    bits = bits != NULL ? bits : json_object_get(own, "w_bit");
    return json_integer_value(bits) == 4 ? DS_OK : refuse(ctx, path, "bits", "4 alone is read");
}

static ds_status read_gptq(ds_ctx *ctx, const char *path, const json_t *own, dsi_int4_form *out)
{
    const bool second = is_text(own, "checkpoint_format", "gptq", "gptq_v2");
    if (!second && !is_text(own, "checkpoint_format", "gptq", "gptq")) {
        return refuse(ctx, path, "checkpoint_format", "\"gptq\" and \"gptq_v2\" alone are read");
    }
    if (!is_text(own, "pack_dtype", "int32", "int32")) {
        return refuse(ctx, path, "pack_dtype", "\"int32\" alone is read");
    }
    if (json_object_size(json_object_get(own, "dynamic")) > 0) {
        return refuse(ctx, path, "dynamic", "layers of different kinds are not read");
    }
    *out = second ? DSI_INT4_GPTQ_V2 : DSI_INT4_GPTQ;
    return check_bits(ctx, path, own);
}

static ds_status read_awq(ds_ctx *ctx, const char *path, const json_t *own, dsi_int4_form *out)
{
    if (!is_text(own, "version", "gemm", "gemm") && !is_text(own, "version", "gemm", "GEMM")) {
        return refuse(ctx, path, "version", "\"gemm\" alone is read");
    }
    if (json_is_false(json_object_get(own, "zero_point"))) {
        return refuse(ctx, path, "zero_point", "true alone is read");
    }
    *out = DSI_INT4_AWQ;
    return check_bits(ctx, path, own);
}

static ds_status check_group(ds_ctx *ctx, const char *path, const json_t *group)
{
    const json_t *weights = json_object_get(group, "weights");
    const char *both[2] = {"input_activations", "output_activations"};
    for (int i = 0; i < 2; ++i) {
        const json_t *value = json_object_get(group, both[i]);
        if (value != NULL && !json_is_null(value)) {
            return refuse(ctx, path, both[i], "weights alone are read in few bits");
        }
    }
    if (json_integer_value(json_object_get(weights, "num_bits")) != 4 ||
        !is_text(weights, "type", "int", "int")) {
        return refuse(ctx, path, "num_bits", "whole numbers of 4 alone are read");
    }
    if (is_text(weights, "actorder", "", "group")) {
        return refuse(ctx, path, "actorder", "columns in another order are not read here");
    }
    return is_text(group, "format", "pack-quantized", "pack-quantized")
               ? DS_OK
               : refuse(ctx, path, "format", "\"pack-quantized\" alone is read");
}

static ds_status read_packed(ds_ctx *ctx, const char *path, json_t *own, dsi_int4_form *out)
{
    json_t *groups = json_object_get(own, "config_groups");
    const json_t *sparse = json_object_get(own, "sparsity_config");
    const json_t *cache = json_object_get(own, "kv_cache_scheme");
    const char *name = NULL;
    json_t *group = NULL;
    if (!is_text(own, "format", "", "pack-quantized")) {
        return refuse(ctx, path, "format", "\"pack-quantized\" alone is read");
    }
    if (json_object_size(sparse) > 0 && !is_text(sparse, "format", "dense", "dense")) {
        return refuse(ctx, path, "sparsity_config", "sparse weights are not read");
    }
    if (cache != NULL && !json_is_null(cache)) {
        return refuse(ctx, path, "kv_cache_scheme", "keys and values are kept whole");
    }
    json_object_foreach(groups, name, group)
    {
        DS_TRY(check_group(ctx, path, group));
    }
    *out = DSI_INT4_PACKED;
    return json_object_size(groups) > 0
               ? DS_OK
               : refuse(ctx, path, "config_groups", "at least one is expected");
}

ds_status dsi_int4_form_of(ds_ctx *ctx, const ds_safetensors *st, dsi_int4_form *form_out)
{
    char path[PATH_BYTES];
    const ds_safetensor *first = ds_safetensors_at(st, 0);
    const char *slash = first != NULL ? strrchr(first->path, '/') : NULL;
    json_error_t error;
    *form_out = DSI_INT4_NONE;
    (void)snprintf(path, sizeof path, "%.*sconfig.json",
                   slash != NULL ? (int)(slash + 1 - first->path) : 0,
                   slash != NULL ? first->path : "");
    json_t *root = json_load_file(path, 0, &error); /* the model's reader judges the file */
    json_t *own = json_object_get(root, "quantization_config");
    ds_status status = DS_OK;
    if (is_text(own, "quant_method", "", "gptq")) {
        status = read_gptq(ctx, path, own, form_out);
    } else if (is_text(own, "quant_method", "", "awq")) {
        status = read_awq(ctx, path, own, form_out);
    } else if (is_text(own, "quant_method", "", "compressed-tensors")) {
        status = read_packed(ctx, path, own, form_out);
    }
    json_decref(root);
    return status;
}

/* ---- a matrix ---- */

typedef struct matrix {
    dsi_int4_form form;
    const uint32_t *words;
    const uint32_t *zeros; /* NULL: 8 */
    const int32_t *groups; /* [n_in]; NULL: neighbours */
    float *scales;         /* [n_groups][n_out]; of PACKED [n_out][n_groups] */
    int64_t n_in, n_out, n_groups;
} matrix;

/* The shapes that a form has. */
typedef struct form_shapes {
    ds_shape words, scales, zeros;
} form_shapes;

static form_shapes shapes_of(const matrix *m)
{
    const int64_t in = m->n_in;
    const int64_t out = m->n_out;
    const int64_t g = m->n_groups;
    if (m->form == DSI_INT4_PACKED) {
        return (form_shapes){ds_shape_2d(out, in / A_WORD), ds_shape_2d(out, g),
                             ds_shape_2d(out / A_WORD, g)};
    }
    return (form_shapes){m->form == DSI_INT4_AWQ ? ds_shape_2d(in, out / A_WORD)
                                                 : ds_shape_2d(in / A_WORD, out),
                         ds_shape_2d(g, out), ds_shape_2d(g, out / A_WORD)};
}

static bool is_of(const ds_safetensor *t, ds_shape shape)
{
    return t->meta.dtype == DS_DTYPE_I32 && ds_shape_equal(t->meta.shape, shape) &&
           (uintptr_t)t->data % 4 == 0;
}

static bool is_real(const ds_safetensor *t, ds_shape shape)
{
    const ds_dtype dtype = t->meta.dtype;
    return ds_shape_equal(t->meta.shape, shape) &&
           (dtype == DS_DTYPE_F16 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F32);
}

/* The part whose dtype or shape is not that of the matrix; NULL: none. */
static const ds_safetensor *find_wrong(const dsi_int4_parts *p, const matrix *m)
{
    const form_shapes s = shapes_of(m);
    const int64_t whole[2] = {m->n_out, m->n_in};
    if (m->n_out < 1 || m->n_in < 1 || m->n_out % A_WORD != 0 || m->n_in % A_WORD != 0 ||
        !is_of(p->words, s.words)) {
        return p->words;
    }
    if (m->n_groups < 1 || !is_real(p->scales, s.scales) ||
        (p->groups == NULL && m->n_in % m->n_groups != 0)) {
        return p->scales;
    }
    if (p->zeros != NULL && !is_of(p->zeros, s.zeros)) {
        return p->zeros;
    }
    if (p->groups != NULL && !is_of(p->groups, ds_shape_1d(m->n_in))) {
        return p->groups;
    }
    if (p->shape != NULL &&
        (p->shape->meta.dtype != DS_DTYPE_I64 || p->shape->bytes != sizeof whole ||
         memcmp(p->shape->data, whole, sizeof whole) != 0)) {
        return p->shape;
    }
    return NULL;
}

static ds_status check(ds_ctx *ctx, const dsi_int4_parts *p, ds_shape shape, matrix *m)
{
    const ds_shape scales = p->scales->meta.shape;
    m->n_out = shape.n_dims == 2 ? shape.dims[0] : 0;
    m->n_in = shape.n_dims == 2 ? shape.dims[1] : 0;
    m->n_groups = scales.n_dims == 2 ? scales.dims[m->form == DSI_INT4_PACKED] : 0;
    const ds_safetensor *wrong = find_wrong(p, m);
    if (wrong != NULL) {
        char got[160];
        return ds_fail(ctx, DS_ERR_SHAPE,
                       "%s: tensor %s is %s, which is none of a matrix of %lld rows and %lld "
                       "columns in four bits",
                       wrong->path, wrong->name, ds_meta_text(wrong->meta, got, sizeof got),
                       (long long)m->n_out, (long long)m->n_in);
    }
    for (int64_t i = 0; p->groups != NULL && i < m->n_in; ++i) {
        const int32_t g = ((const int32_t *)p->groups->data)[i];
        if (g < 0 || g >= m->n_groups) {
            return ds_fail(ctx, DS_ERR_FORMAT, "%s: tensor %s says group %d of %lld",
                           p->groups->path, p->groups->name, g, (long long)m->n_groups);
        }
    }
    return DS_OK;
}

/* Where column j of eight lies in a word of AWQ's. */
static uint32_t awq_shift(int64_t column)
{
    static const uint8_t nibbles[A_WORD] = {0, 4, 1, 5, 2, 6, 3, 7};
    return 4u * nibbles[column % A_WORD];
}

static int32_t zero_of(const matrix *m, int64_t group, int64_t o)
{
    if (m->zeros == NULL) {
        return 8;
    }
    const int64_t at = m->form == DSI_INT4_PACKED ? o / A_WORD * m->n_groups + group
                                                  : group * (m->n_out / A_WORD) + o / A_WORD;
    const uint32_t shift = m->form == DSI_INT4_AWQ ? awq_shift(o) : 4u * (uint32_t)(o % A_WORD);
    return (int32_t)(m->zeros[at] >> shift & 15u) + (m->form == DSI_INT4_GPTQ);
}

static int32_t number_of(const matrix *m, int64_t i, int64_t o)
{
    switch (m->form) {
    case DSI_INT4_AWQ:
        return (int32_t)(m->words[i * (m->n_out / A_WORD) + o / A_WORD] >> awq_shift(o) & 15u);
    case DSI_INT4_PACKED:
        return (int32_t)(m->words[o * (m->n_in / A_WORD) + i / A_WORD] >> 4 * (i % A_WORD) & 15u);
    case DSI_INT4_GPTQ:
    case DSI_INT4_GPTQ_V2:
    case DSI_INT4_NONE:
        break;
    }
    return (int32_t)(m->words[i / A_WORD * m->n_out + o] >> 4 * (i % A_WORD) & 15u);
}

static float scale_of(const matrix *m, int64_t group, int64_t o)
{
    return m->form == DSI_INT4_PACKED ? m->scales[o * m->n_groups + group]
                                      : m->scales[group * m->n_out + o];
}

/* The first format cannot say 0: what is stored for it wraps to 15, and so would 16 be. */
static ds_status check_zeros(ds_ctx *ctx, const dsi_int4_parts *p, const matrix *m)
{
    for (int64_t g = 0; m->form == DSI_INT4_GPTQ && g < m->n_groups; ++g) {
        for (int64_t o = 0; o < m->n_out; ++o) {
            if (zero_of(m, g, o) == 16) {
                return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                               "%s: tensor %s has a zero point, of group %lld and row %lld, that "
                               "checkpoint_format \"gptq\" cannot say; save the model as "
                               "\"gptq_v2\"",
                               p->zeros->path, p->zeros->name, (long long)g, (long long)o);
            }
        }
    }
    return DS_OK;
}

/* A product of a scale and a small whole number is exact in fp32, so that it is rounded once. */
static void fill_row(const matrix *m, int64_t o, float *row)
{
    const int64_t each = m->n_in / m->n_groups;
    for (int64_t i = 0; i < m->n_in; ++i) {
        const int64_t g = m->groups != NULL ? m->groups[i] : i / each;
        row[i] = scale_of(m, g, o) * (float)(number_of(m, i, o) - zero_of(m, g, o));
    }
}

ds_status dsi_int4_unpack(ds_ctx *ctx, dsi_int4_form form, const dsi_int4_parts *parts,
                          ds_shape shape, ds_safetensor *out)
{
    matrix m = {.form = form};
    const ds_dtype dtype = parts->scales->meta.dtype;
    DS_TRY(check(ctx, parts, shape, &m));
    m.words = (const uint32_t *)parts->words->data;
    m.zeros = parts->zeros != NULL ? (const uint32_t *)parts->zeros->data : NULL;
    m.groups = parts->groups != NULL ? (const int32_t *)parts->groups->data : NULL;
    DS_TRY(check_zeros(ctx, parts, &m));
    const size_t row_bytes = (size_t)m.n_in * ds_dtype_bytes(dtype);
    const size_t n_scales = (size_t)(m.n_groups * m.n_out);
    unsigned char *data = aligned_alloc(64, ((size_t)m.n_out * row_bytes + 63) / 64 * 64);
    float *row = malloc((size_t)m.n_in * sizeof *row);
    m.scales = malloc(n_scales * sizeof *m.scales);
    if (data == NULL || row == NULL || m.scales == NULL) {
        free(data);
        free(row);
        free(m.scales);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to unpack %s", parts->words->name);
    }
    (void)dsi_convert(dtype, parts->scales->data, DS_DTYPE_F32, m.scales, n_scales);
    size_t overflows = 0;
    for (int64_t o = 0; o < m.n_out; ++o) {
        fill_row(&m, o, row);
        overflows +=
            dsi_convert(DS_DTYPE_F32, row, dtype, data + (size_t)o * row_bytes, (size_t)m.n_in);
    }
    free(row);
    free(m.scales);
    if (overflows > 0) {
        free(data);
        return ds_fail(ctx, DS_ERR_NUMERIC, "%s: %zu values of %s are beyond the range of %s",
                       parts->words->path, overflows, parts->words->name, ds_dtype_name(dtype));
    }
    *out = *parts->words;
    out->meta = (ds_meta){dtype, shape};
    out->data = data;
    out->bytes = (size_t)m.n_out * row_bytes;
    return DS_OK;
}
