/* SPDX-License-Identifier: Apache-2.0 */
/* See int4.h. */
#include "ckpt/int4.h"

#include "ckpt/byte_weight.h"
#include "ckpt/model_weights.h"
#include "ckpt/stacked.h"
#include "io/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { A_WORD = 8, N_PARTS = 5 }; /* of four bits; of a matrix */

/* ---- a matrix ---- */

/* The shapes that a form has. */
typedef struct form_shapes {
    ds_shape words, scales, zeros;
} form_shapes;

static bool is_packed(const dsi_int4_matrix *m)
{
    return m->layout == DSI_INT4_PACKED || m->layout == DSI_INT4_PACKED8;
}

static bool is_packed_form(const dsi_int4_form *form)
{
    return form->layout == DSI_INT4_PACKED || form->layout == DSI_INT4_PACKED8;
}

/* Numbers in a word, and their bits. */
static int64_t per_word(const dsi_int4_matrix *m)
{
    return m->layout == DSI_INT4_PACKED8 ? 4 : A_WORD;
}

static uint32_t bits_of_word(const dsi_int4_matrix *m)
{
    return m->layout == DSI_INT4_PACKED8 ? 8 : 4;
}

static form_shapes shapes_of(const dsi_int4_matrix *m)
{
    const int64_t in = m->n_in;
    const int64_t out = m->n_out;
    const int64_t g = m->n_groups;
    if (is_packed(m)) {
        return (form_shapes){ds_shape_2d(out, in / per_word(m)), ds_shape_2d(out, g),
                             ds_shape_2d(out / per_word(m), g)};
    }
    return (form_shapes){m->layout == DSI_INT4_AWQ ? ds_shape_2d(in, out / A_WORD)
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
static const ds_safetensor *find_wrong(const dsi_int4_parts *p, const dsi_int4_matrix *m)
{
    const form_shapes s = shapes_of(m);
    const int64_t whole[2] = {m->n_out, m->n_in};
    if (m->n_out < 1 || m->n_in < 1 || m->n_out % per_word(m) != 0 || m->n_in % per_word(m) != 0 ||
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

static ds_status check(ds_ctx *ctx, const dsi_int4_parts *p, ds_shape shape, dsi_int4_matrix *m)
{
    const ds_shape scales = p->scales->meta.shape;
    m->n_out = shape.n_dims == 2 ? shape.dims[0] : 0;
    m->n_in = shape.n_dims == 2 ? shape.dims[1] : 0;
    m->n_groups = scales.n_dims == 2 ? scales.dims[is_packed(m)] : 0;
    const ds_safetensor *wrong = find_wrong(p, m);
    if (wrong != NULL) {
        char got[160];
        return ds_fail(ctx, DS_ERR_SHAPE,
                       "%s: tensor %s is %s, which is none of a matrix of %lld rows and %lld "
                       "columns in %u bits",
                       wrong->path, wrong->name, ds_meta_text(wrong->meta, got, sizeof got),
                       (long long)m->n_out, (long long)m->n_in, bits_of_word(m));
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

/* Whether there are as many groups as inputs in groups of that size, the last of which may have
 * fewer where g_idx says of which each is. */
static bool has_groups_of(const dsi_int4_matrix *m, int64_t size, bool any_order)
{
    const int64_t each = size > 0 && size < m->n_in ? size : m->n_in;
    return m->n_groups == (m->n_in + each - 1) / each && (any_order || m->n_in % each == 0);
}

static ds_status check_form(ds_ctx *ctx, const dsi_int4_form *form, const dsi_int4_parts *p,
                            const dsi_int4_matrix *m)
{
    bool found = form->n_sizes == 0;
    for (uint32_t i = 0; i < form->n_sizes; ++i) {
        found = found || has_groups_of(m, form->sizes[i], p->groups != NULL);
    }
    if (!found) {
        const int64_t size = form->sizes[0];
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "%s: tensor %s has %lld groups of %lld inputs; by quantization_config."
                       "group_size they are of %lld each",
                       p->scales->path, p->scales->name, (long long)m->n_groups, (long long)m->n_in,
                       (long long)(size > 0 ? size : m->n_in));
    }
    if (form->zeros != DSI_INT4_ZEROS_ANY &&
        (form->zeros == DSI_INT4_ZEROS) != (p->zeros != NULL)) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s: tensor %s has %s zero points; by %s it has %s",
                       p->words->path, p->words->name, p->zeros != NULL ? "its" : "no",
                       "quantization_config's \"symmetric\"", p->zeros != NULL ? "none" : "some");
    }
    return DS_OK;
}

/* Where column j of eight lies in a word of AWQ's. */
static uint32_t awq_shift(int64_t column)
{
    static const uint8_t nibbles[A_WORD] = {0, 4, 1, 5, 2, 6, 3, 7};
    return 4u * nibbles[column % A_WORD];
}

int32_t dsi_int4_zero(const dsi_int4_matrix *m, int64_t group, int64_t o)
{
    if (m->zeros == NULL) {
        return 1 << (bits_of_word(m) - 1);
    }
    if (m->layout == DSI_INT4_PACKED8) {
        return (int32_t)(m->zeros[o / 4 * m->n_groups + group] >> 8 * (o % 4) & 255u);
    }
    const int64_t at = m->layout == DSI_INT4_PACKED ? o / A_WORD * m->n_groups + group
                                                    : group * (m->n_out / A_WORD) + o / A_WORD;
    const uint32_t shift = m->layout == DSI_INT4_AWQ ? awq_shift(o) : 4u * (uint32_t)(o % A_WORD);
    return (int32_t)(m->zeros[at] >> shift & 15u) + (m->layout == DSI_INT4_GPTQ);
}

int32_t dsi_int4_number(const dsi_int4_matrix *m, int64_t i, int64_t o)
{
    switch (m->layout) {
    case DSI_INT4_AWQ:
        return (int32_t)(m->words[i * (m->n_out / A_WORD) + o / A_WORD] >> awq_shift(o) & 15u);
    case DSI_INT4_PACKED:
        return (int32_t)(m->words[o * (m->n_in / A_WORD) + i / A_WORD] >> 4 * (i % A_WORD) & 15u);
    case DSI_INT4_PACKED8:
        return (int32_t)(m->words[o * (m->n_in / 4) + i / 4] >> 8 * (i % 4) & 255u);
    case DSI_INT4_GPTQ:
    case DSI_INT4_GPTQ_V2:
    case DSI_INT4_NONE:
        break;
    }
    return (int32_t)(m->words[i / A_WORD * m->n_out + o] >> 4 * (i % A_WORD) & 15u);
}

float dsi_int4_scale(const dsi_int4_matrix *m, int64_t group, int64_t o)
{
    return is_packed(m) ? m->scales[o * m->n_groups + group] : m->scales[group * m->n_out + o];
}

/* The first format cannot say 0: what is stored for it wraps to 15, and so would 16 be. */
static ds_status check_zeros(ds_ctx *ctx, const dsi_int4_parts *p, const dsi_int4_matrix *m)
{
    for (int64_t g = 0; m->layout == DSI_INT4_GPTQ && g < m->n_groups; ++g) {
        for (int64_t o = 0; o < m->n_out; ++o) {
            if (dsi_int4_zero(m, g, o) == 16) {
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

/* Elements from `first` on. A product of a scale and a small whole number is exact in fp32, so that
 * it is rounded once. */
static void multiply(const dsi_int4_matrix *m, int64_t first, int64_t n, float *out)
{
    const int64_t each = m->n_in / m->n_groups;
    for (int64_t at = 0; at < n;) {
        const int64_t o = (first + at) / m->n_in;
        for (int64_t i = (first + at) % m->n_in; i < m->n_in && at < n; ++i, ++at) {
            const int64_t g = m->groups != NULL ? m->groups[i] : i / each;
            out[at] = dsi_int4_scale(m, g, o) *
                      (float)(dsi_int4_number(m, i, o) - dsi_int4_zero(m, g, o));
        }
    }
}

ds_status dsi_int4_open(ds_ctx *ctx, const dsi_int4_form *form, const dsi_int4_parts *parts,
                        ds_shape shape, dsi_int4_matrix *m)
{
    *m = (dsi_int4_matrix){.layout = form->layout, .from = parts->words};
    m->dtype = parts->scales->meta.dtype;
    DS_TRY(check(ctx, parts, shape, m));
    DS_TRY(check_form(ctx, form, parts, m));
    m->words = (const uint32_t *)parts->words->data;
    m->zeros = parts->zeros != NULL ? (const uint32_t *)parts->zeros->data : NULL;
    m->groups = parts->groups != NULL ? (const int32_t *)parts->groups->data : NULL;
    DS_TRY(check_zeros(ctx, parts, m));
    const size_t n_scales = (size_t)(m->n_groups * m->n_out);
    m->scales = malloc(n_scales * sizeof *m->scales);
    if (m->scales == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to unpack %s", parts->words->name);
    }
    (void)dsi_convert(parts->scales->meta.dtype, parts->scales->data, DS_DTYPE_F32, m->scales,
                      n_scales);
    return DS_OK;
}

void dsi_int4_close(dsi_int4_matrix *m)
{
    free(m->scales);
    m->scales = NULL;
}

/* What follows "X." in the names of the parts, the words first; NULL: no such part. */
static const char *part_end(const dsi_int4_form *form, int i)
{
    static const char *const ends[2][N_PARTS] = {
        {"qweight", "scales", "qzeros", "g_idx", NULL},
        {"weight_packed", "weight_scale", "weight_zero_point", NULL, "weight_shape"}};
    return i == 3 && form->layout == DSI_INT4_AWQ ? NULL : ends[is_packed_form(form)][i];
}

bool dsi_int4_find(const ds_model *model, const ds_safetensors *st, const dsi_int4_form *form,
                   const char *name, dsi_int4_parts *parts_out)
{
    const ds_safetensor *found[N_PARTS] = {NULL};
    const size_t n = strlen(name);
    if (form->layout == DSI_INT4_NONE || n < 7 || strcmp(name + n - 7, ".weight") != 0) {
        return false;
    }
    for (int i = 0; i < N_PARTS; ++i) {
        const char *end = part_end(form, i);
        char part[DSI_STACKED_NAME_BYTES + 32];
        (void)snprintf(part, sizeof part, "%.*s%s", (int)(n - 6), name, end != NULL ? end : "");
        found[i] = end != NULL ? dsi_weights_find(model, st, part) : NULL;
    }
    *parts_out = (dsi_int4_parts){found[0], found[1], found[2], found[3], found[4]};
    return found[0] != NULL && found[1] != NULL && (found[2] != NULL || is_packed_form(form));
}

bool dsi_int4_part(const ds_safetensors *st, const dsi_int4_form *form, const ds_safetensor *t,
                   dsi_int4_parts *parts_out)
{
    const ds_safetensor *found[N_PARTS] = {NULL};
    const char *dot = strrchr(t->name, '.');
    bool is_one = false;
    for (int i = 0; i < N_PARTS && form->layout != DSI_INT4_NONE && dot != NULL; ++i) {
        const char *end = part_end(form, i);
        char name[DSI_STACKED_NAME_BYTES + 32];
        const int n = snprintf(name, sizeof name, "%.*s%s", (int)(dot + 1 - t->name), t->name,
                               end != NULL ? end : "");
        found[i] = end != NULL && n < (int)sizeof name ? ds_safetensors_find(st, name) : NULL;
        is_one = is_one || found[i] == t;
    }
    *parts_out = (dsi_int4_parts){found[0], found[1], found[2], found[3], found[4]};
    return is_one && found[0] != NULL;
}

ds_shape dsi_int4_shape(const dsi_int4_form *form, const dsi_int4_parts *parts)
{
    const dsi_int4_matrix m = {.layout = form->layout};
    const ds_shape words = parts->words->meta.shape;
    const int64_t each = per_word(&m);
    if (words.n_dims != 2) {
        return words; /* which dsi_int4_open refuses */
    }
    return is_packed(&m)                  ? ds_shape_2d(words.dims[0], words.dims[1] * each)
           : form->layout == DSI_INT4_AWQ ? ds_shape_2d(words.dims[1] * each, words.dims[0])
                                          : ds_shape_2d(words.dims[1], words.dims[0] * each);
}

static ds_status overflowed(ds_ctx *ctx, const dsi_int4_matrix *m, size_t n)
{
    return n == 0 ? DS_OK
                  : ds_fail(ctx, DS_ERR_NUMERIC, "%s: %zu values of %s are beyond the range of %s",
                            m->from->path, n, m->from->name, ds_dtype_name(m->dtype));
}

ds_status dsi_int4_read(ds_ctx *ctx, const dsi_int4_matrix *m, int64_t first, int64_t n, float *out)
{
    multiply(m, first, n, out);
    return overflowed(ctx, m, dsi_round(m->dtype, out, (size_t)n));
}

ds_status dsi_int4_unpack(ds_ctx *ctx, const dsi_int4_form *form, const dsi_int4_parts *parts,
                          ds_shape shape, ds_safetensor *out)
{
    dsi_int4_matrix m;
    const ds_dtype dtype = parts->scales->meta.dtype;
    DS_TRY(dsi_int4_open(ctx, form, parts, shape, &m));
    const size_t row_bytes = (size_t)m.n_in * ds_dtype_bytes(dtype);
    unsigned char *data = aligned_alloc(64, ((size_t)m.n_out * row_bytes + 63) / 64 * 64);
    float *row = malloc((size_t)m.n_in * sizeof *row);
    if (data == NULL || row == NULL) {
        free(data);
        free(row);
        dsi_int4_close(&m);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to unpack %s", parts->words->name);
    }
    size_t overflows = 0;
    for (int64_t o = 0; o < m.n_out; ++o) {
        multiply(&m, o * m.n_in, m.n_in, row);
        overflows +=
            dsi_convert(DS_DTYPE_F32, row, dtype, data + (size_t)o * row_bytes, (size_t)m.n_in);
    }
    free(row);
    dsi_int4_close(&m);
    if (overflows > 0) {
        free(data);
        return overflowed(ctx, &m, overflows);
    }
    *out = *parts->words;
    out->meta = (ds_meta){dtype, shape};
    out->data = data;
    out->bytes = (size_t)m.n_out * row_bytes;
    return DS_OK;
}
