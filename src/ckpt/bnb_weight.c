/* SPDX-License-Identifier: Apache-2.0 */
/* See bnb_weight.h. */
#include "ckpt/bnb_weight.h"

#include "base/nf4.h"
#include "ckpt/bnb_state.h"
#include "ckpt/quantized_config.h"
#include "io/convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 1024, N_CODES = 16, N_NESTED = 256 };

struct dsi_bnb_matrix {
    ds_ctx *ctx;
    dsi_bnb_form form;
    const ds_safetensor *weight;
    ds_dtype dtype; /* of the numbers */
    ds_shape shape;
    int64_t block;      /* elements that a scale is of; of 8 bits a row */
    float map[N_CODES]; /* of 4 bits */
    float *scales;
};

/* ---- what config.json says ---- */

static bool is_true(const dsi_quantized_config *c, const char *key)
{
    return json_is_true(json_object_get(c->own, key));
}

static ds_status read_form(const dsi_quantized_config *c, dsi_bnb_form *form_out)
{
    const bool four = is_true(c, "load_in_4bit"), eight = is_true(c, "load_in_8bit");
    if (four == eight) {
        return dsi_quantized_refuse(c, "load_in_4bit",
                                    "either this or load_in_8bit is to be true, not both");
    }
    if (eight && is_true(c, "llm_int8_has_fp16_weight")) {
        return dsi_quantized_refuse(c, "llm_int8_has_fp16_weight", "false alone is read");
    }
    if (four && !dsi_quantized_is(c->own, "bnb_4bit_quant_type", "fp4", "fp4") &&
        !dsi_quantized_is(c->own, "bnb_4bit_quant_type", "fp4", "nf4")) {
        return dsi_quantized_refuse(c, "bnb_4bit_quant_type", "\"nf4\" and \"fp4\" alone are read");
    }
    if (four && !dsi_quantized_is(c->own, "bnb_4bit_quant_storage", "uint8", "uint8")) {
        return dsi_quantized_refuse(c, "bnb_4bit_quant_storage", "\"uint8\" alone is read");
    }
    *form_out = four ? DSI_BNB_4 : DSI_BNB_8;
    return DS_OK;
}

ds_status dsi_bnb_form_of(ds_ctx *ctx, const ds_safetensors *st, dsi_bnb_form *form_out)
{
    dsi_quantized_config c;
    ds_status status = DS_OK;
    *form_out = DSI_BNB_NONE;
    dsi_quantized_config_load(ctx, st, &c);
    if (dsi_quantized_is(c.own, "quant_method", "", "bitsandbytes")) {
        status = read_form(&c, form_out);
    }
    json_decref(c.root);
    return status;
}

/* ---- its tensors ---- */

/* What follows "X." in their names. */
static const char *const ends[DSI_BNB_N_PARTS] = {
    [DSI_BNB_WEIGHT] = "weight",
    [DSI_BNB_ABSMAX] = "weight.absmax",
    [DSI_BNB_MAP] = "weight.quant_map",
    [DSI_BNB_NESTED_ABSMAX] = "weight.nested_absmax",
    [DSI_BNB_NESTED_MAP] = "weight.nested_quant_map",
    [DSI_BNB_STATE_NF4] = "weight.quant_state.bitsandbytes__nf4",
    [DSI_BNB_STATE_FP4] = "weight.quant_state.bitsandbytes__fp4",
    [DSI_BNB_SCB] = "SCB",
    [DSI_BNB_FORMAT] = "weight_format",
};

/* Bytes of "X." in a name "X.END"; 0: it ends otherwise. */
static size_t stem_bytes(const char *name, const char *end)
{
    const size_t n = strlen(name), k = strlen(end);
    return n > k && name[n - k - 1] == '.' && strcmp(name + n - k, end) == 0 ? n - k : 0;
}

static const ds_safetensor *find_part(const ds_safetensors *st, const char *name, size_t stem,
                                      dsi_bnb_part part)
{
    char full[NAME_BYTES];
    const int n = snprintf(full, sizeof full, "%.*s%s", (int)stem, name, ends[part]);
    return stem > 0 && n > 0 && n < NAME_BYTES ? ds_safetensors_find(st, full) : NULL;
}

bool dsi_bnb_is_stored(dsi_bnb_form form, const ds_safetensor *weight)
{
    return form != DSI_BNB_NONE &&
           weight->meta.dtype == (form == DSI_BNB_4 ? DS_DTYPE_U8 : DS_DTYPE_I8) &&
           stem_bytes(weight->name, ends[DSI_BNB_WEIGHT]) > 0;
}

dsi_bnb_parts dsi_bnb_find(const ds_safetensors *st, const ds_safetensor *weight)
{
    const size_t stem = stem_bytes(weight->name, ends[DSI_BNB_WEIGHT]);
    dsi_bnb_parts parts = {{[DSI_BNB_WEIGHT] = weight}};
    for (dsi_bnb_part i = DSI_BNB_ABSMAX; i < DSI_BNB_N_PARTS; ++i) {
        parts.of[i] = find_part(st, weight->name, stem, i);
    }
    return parts;
}

bool dsi_bnb_is_beside(const ds_safetensors *st, dsi_bnb_form form, const ds_safetensor *t)
{
    const bool four = form == DSI_BNB_4;
    const dsi_bnb_part first = four ? DSI_BNB_ABSMAX : DSI_BNB_SCB;
    const dsi_bnb_part last = four ? DSI_BNB_STATE_FP4 : DSI_BNB_FORMAT;
    for (dsi_bnb_part i = first; i <= last && form != DSI_BNB_NONE; ++i) {
        const ds_safetensor *w =
            find_part(st, t->name, stem_bytes(t->name, ends[i]), DSI_BNB_WEIGHT);
        if (w != NULL && dsi_bnb_is_stored(form, w)) {
            return true;
        }
    }
    return false;
}

/* ---- four bits ---- */

static int64_t parts_of(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}

static ds_status missing(ds_ctx *ctx, const dsi_bnb_parts *p, dsi_bnb_part part)
{
    const ds_safetensor *w = p->of[DSI_BNB_WEIGHT];
    return ds_fail(ctx, DS_ERR_NOT_FOUND, "%s: the tensor %.*s%s is missing, beside %s", w->path,
                   (int)stem_bytes(w->name, ends[DSI_BNB_WEIGHT]), w->name, ends[part], w->name);
}

static ds_status wrong(ds_ctx *ctx, const ds_safetensor *t, ds_meta want)
{
    char got[160];
    char need[160];
    return ds_fail(ctx, DS_ERR_SHAPE, "%s: tensor %s is %s; by what lies beside it, it is %s",
                   t->path, t->name, ds_meta_text(t->meta, got, sizeof got),
                   ds_meta_text(want, need, sizeof need));
}

/* A part that must be there with this dtype and shape. */
static ds_status check_part(ds_ctx *ctx, const dsi_bnb_parts *p, dsi_bnb_part part, ds_dtype dtype,
                            ds_shape shape)
{
    const ds_safetensor *t = p->of[part];
    const ds_meta want = {dtype, shape};
    if (t == NULL) {
        return missing(ctx, p, part);
    }
    return t->meta.dtype == dtype && ds_shape_equal(t->meta.shape, shape) ? DS_OK
                                                                          : wrong(ctx, t, want);
}

/* The package reads codes by its own table of the type, whatever the file's map is: another map
 * would be other numbers there. One that differs in last bits (other versions) is the file's. */
static ds_status read_map(ds_ctx *ctx, const ds_safetensor *map, bool nf4, float out[N_CODES])
{
    static const float fp4[N_CODES / 2] = {0.0f, 0.0625f, 8.0f, 12.0f, 4.0f, 6.0f, 2.0f, 3.0f};
    memcpy(out, map->data, N_CODES * sizeof *out);
    for (int i = 0; i < N_CODES; ++i) {
        const float size = fp4[i % 8] / 12.0f;
        const float known = nf4 ? dsi_nf4[i] : i < 8 ? size : -size;
        if (!(fabsf(out[i] - known) <= 1e-6f)) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                           "%s: tensor %s has %g for code %d; bitsandbytes reads it as %g",
                           map->path, map->name, (double)out[i], i, (double)known);
        }
    }
    out[8] = nf4 ? out[8] : -0.0f; /* its sign is a bit of the code in the package's kernels */
    return DS_OK;
}

/* Magnitudes of n blocks; nested ones are made whole. */
static void read_magnitudes(const dsi_bnb_parts *p, const dsi_bnb_state *state, int64_t n,
                            float *out)
{
    if (p->of[DSI_BNB_NESTED_ABSMAX] == NULL) {
        memcpy(out, p->of[DSI_BNB_ABSMAX]->data, (size_t)n * sizeof *out);
        return;
    }
    const uint8_t *codes = p->of[DSI_BNB_ABSMAX]->data;
    const unsigned char *nested = p->of[DSI_BNB_NESTED_ABSMAX]->data;
    float map[N_NESTED];
    memcpy(map, p->of[DSI_BNB_NESTED_MAP]->data, sizeof map);
    for (int64_t i = 0; i < n; ++i) {
        float scale = 0.0f; /* a file's numbers need not be aligned */
        memcpy(&scale, nested + (size_t)(i / state->nested_block) * sizeof scale, sizeof scale);
        out[i] = map[codes[i]] * scale + state->nested_offset;
    }
}

static ds_status check_4(ds_ctx *ctx, const dsi_bnb_parts *p, dsi_bnb_state *state)
{
    const ds_safetensor *nf4 = p->of[DSI_BNB_STATE_NF4], *fp4 = p->of[DSI_BNB_STATE_FP4];
    const bool nested = p->of[DSI_BNB_NESTED_ABSMAX] != NULL || p->of[DSI_BNB_NESTED_MAP] != NULL;
    if (nf4 == NULL && fp4 == NULL) {
        return missing(ctx, p, DSI_BNB_STATE_NF4);
    }
    if (nf4 != NULL && fp4 != NULL) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s: %s and %s are of one matrix", nf4->path, nf4->name,
                       fp4->name);
    }
    DS_TRY(dsi_bnb_state_read(ctx, nf4 != NULL ? nf4 : fp4, nf4 != NULL ? "nf4" : "fp4", nested,
                              state));
    const int64_t n = state->n_out * state->n_in, blocks = parts_of(n, state->block);
    DS_TRY(check_part(ctx, p, DSI_BNB_WEIGHT, DS_DTYPE_U8, ds_shape_2d(parts_of(n, 2), 1)));
    DS_TRY(check_part(ctx, p, DSI_BNB_ABSMAX, nested ? DS_DTYPE_U8 : DS_DTYPE_F32,
                      ds_shape_1d(blocks)));
    DS_TRY(check_part(ctx, p, DSI_BNB_MAP, DS_DTYPE_F32, ds_shape_1d(N_CODES)));
    if (nested) {
        DS_TRY(check_part(ctx, p, DSI_BNB_NESTED_ABSMAX, DS_DTYPE_F32,
                          ds_shape_1d(parts_of(blocks, state->nested_block))));
        DS_TRY(check_part(ctx, p, DSI_BNB_NESTED_MAP, DS_DTYPE_F32, ds_shape_1d(N_NESTED)));
    }
    return DS_OK;
}

static float *scales_room(int64_t n)
{
    return malloc((size_t)n * sizeof(float));
}

static ds_status open_4(const dsi_bnb_parts *p, dsi_bnb_matrix *m)
{
    dsi_bnb_state state;
    DS_TRY(check_4(m->ctx, p, &state));
    DS_TRY(read_map(m->ctx, p->of[DSI_BNB_MAP], p->of[DSI_BNB_STATE_NF4] != NULL, m->map));
    const int64_t blocks = parts_of(state.n_out * state.n_in, state.block);
    m->shape = ds_shape_2d(state.n_out, state.n_in);
    m->dtype = state.dtype;
    m->block = state.block;
    m->scales = scales_room(blocks);
    if (m->scales == NULL) {
        return ds_fail(m->ctx, DS_ERR_NOMEM, "no memory to unpack %s", m->weight->name);
    }
    read_magnitudes(p, &state, blocks, m->scales);
    return DS_OK;
}

static void read_4(const dsi_bnb_matrix *m, int64_t first, int64_t n, float *out)
{
    const uint8_t *bytes = m->weight->data;
    for (int64_t i = 0; i < n;) { /* as far as one scale goes */
        const int64_t block = (first + i) / m->block;
        const int64_t rest = (block + 1) * m->block - first;
        const int64_t to = rest < n ? rest : n;
        for (; i < to; ++i) {
            const int64_t at = first + i;
            const unsigned both = bytes[at / 2];
            out[i] = m->map[at % 2 == 0 ? both >> 4 : both & 15u] * m->scales[block];
        }
    }
}

/* ---- eight bits ---- */

static ds_status open_8(const dsi_bnb_parts *p, dsi_bnb_matrix *m)
{
    const ds_shape shape = m->weight->meta.shape;
    const ds_safetensor *format = p->of[DSI_BNB_FORMAT];
    if (shape.n_dims != 2 || shape.dims[0] < 1 || shape.dims[1] < 1) {
        char got[160];
        return ds_fail(m->ctx, DS_ERR_SHAPE, "%s: tensor %s is %s, which is no matrix",
                       m->weight->path, m->weight->name,
                       ds_meta_text(m->weight->meta, got, sizeof got));
    }
    DS_TRY(check_part(m->ctx, p, DSI_BNB_SCB, DS_DTYPE_F32, ds_shape_1d(shape.dims[0])));
    if (format != NULL && (format->meta.dtype != DS_DTYPE_U8 || format->bytes != 1 ||
                           *(const uint8_t *)format->data != 0)) {
        return ds_fail(m->ctx, DS_ERR_UNSUPPORTED,
                       "%s: tensor %s: rows (0, in one byte) alone are read; save the model with a "
                       "newer bitsandbytes",
                       format->path, format->name);
    }
    m->shape = shape;
    m->dtype = DS_DTYPE_F32;
    m->block = shape.dims[1];
    m->scales = scales_room(shape.dims[0]);
    if (m->scales == NULL) {
        return ds_fail(m->ctx, DS_ERR_NOMEM, "no memory to unpack %s", m->weight->name);
    }
    memcpy(m->scales, p->of[DSI_BNB_SCB]->data, (size_t)shape.dims[0] * sizeof *m->scales);
    return DS_OK;
}

static void read_8(const dsi_bnb_matrix *m, int64_t first, int64_t n, float *out)
{
    static const float of_127 = 7.874015718698502e-3f; /* as the package has it */
    const int8_t *codes = m->weight->data;
    for (int64_t i = 0; i < n; ++i) {
        out[i] = (float)codes[first + i] * m->scales[(first + i) / m->block] * of_127;
    }
}

/* ---- a matrix ---- */

ds_status dsi_bnb_open(ds_ctx *ctx, dsi_bnb_form form, const dsi_bnb_parts *parts,
                       dsi_bnb_matrix **matrix_out)
{
    const ds_safetensor *weight = parts->of[DSI_BNB_WEIGHT];
    dsi_bnb_matrix *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to unpack %s", weight->name);
    }
    *m = (dsi_bnb_matrix){.ctx = ctx, .form = form, .weight = weight};
    const ds_status status = form == DSI_BNB_4 ? open_4(parts, m) : open_8(parts, m);
    if (status < 0) {
        dsi_bnb_close(&m);
        return status;
    }
    *matrix_out = m;
    return DS_OK;
}

ds_shape dsi_bnb_shape(const dsi_bnb_matrix *matrix)
{
    return matrix->shape;
}

void dsi_bnb_close(dsi_bnb_matrix **matrix)
{
    if (*matrix != NULL) {
        free((*matrix)->scales);
        free(*matrix);
        *matrix = NULL;
    }
}

/* Not rounded. */
static void multiply(const dsi_bnb_matrix *m, int64_t first, int64_t n, float *out)
{
    if (m->form == DSI_BNB_4) {
        read_4(m, first, n, out);
    } else {
        read_8(m, first, n, out);
    }
}

static ds_status overflowed(const dsi_bnb_matrix *m, size_t n)
{
    return n == 0
               ? DS_OK
               : ds_fail(m->ctx, DS_ERR_NUMERIC, "%s: %zu values of %s are beyond the range of %s",
                         m->weight->path, n, m->weight->name, ds_dtype_name(m->dtype));
}

ds_status dsi_bnb_read(const dsi_bnb_matrix *m, int64_t first, int64_t n, float *out)
{
    multiply(m, first, n, out);
    return overflowed(m, dsi_round(m->dtype, out, (size_t)n));
}

static ds_status fill(const dsi_bnb_matrix *m, float *row, unsigned char *data)
{
    const int64_t n_in = m->shape.dims[1];
    const size_t row_bytes = (size_t)n_in * ds_dtype_bytes(m->dtype);
    size_t overflows = 0;
    for (int64_t o = 0; o < m->shape.dims[0]; ++o) {
        multiply(m, o * n_in, n_in, row);
        overflows +=
            dsi_convert(DS_DTYPE_F32, row, m->dtype, data + (size_t)o * row_bytes, (size_t)n_in);
    }
    return overflowed(m, overflows);
}

static ds_status unpack(const dsi_bnb_matrix *m, ds_safetensor *out)
{
    const size_t n_bytes = ds_meta_bytes((ds_meta){m->dtype, m->shape});
    unsigned char *data = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
    float *row = malloc((size_t)m->shape.dims[1] * sizeof *row);
    const ds_status status =
        data != NULL && row != NULL
            ? fill(m, row, data)
            : ds_fail(m->ctx, DS_ERR_NOMEM, "no memory to unpack %s", m->weight->name);
    free(row);
    if (status < 0) {
        free(data);
        return status;
    }
    *out = *m->weight;
    out->meta = (ds_meta){m->dtype, m->shape};
    out->data = data;
    out->bytes = n_bytes;
    return DS_OK;
}

ds_status dsi_bnb_unpack(ds_ctx *ctx, dsi_bnb_form form, const dsi_bnb_parts *parts, ds_shape shape,
                         ds_safetensor *out)
{
    dsi_bnb_matrix *m = NULL;
    DS_TRY(dsi_bnb_open(ctx, form, parts, &m));
    char got[160];
    char need[160];
    const ds_status status =
        ds_shape_equal(m->shape, shape)
            ? unpack(m, out)
            : ds_fail(ctx, DS_ERR_SHAPE, "%s: tensor %s stands for %s, the model needs %s",
                      m->weight->path, m->weight->name,
                      ds_meta_text((ds_meta){m->dtype, m->shape}, got, sizeof got),
                      ds_meta_text((ds_meta){m->dtype, shape}, need, sizeof need));
    dsi_bnb_close(&m);
    return status;
}
