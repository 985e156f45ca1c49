/* SPDX-License-Identifier: Apache-2.0 */
/* See gguf_write.h. */
#include "io/gguf_write.h"

#include "base/blocks.h"
#include "base/buf.h"
#include "base/context.h"
#include "base/half.h"
#include "io/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 32, ROWS = 256, NAME_BYTES = 64, MOST_DIMS = 4 };

typedef struct tensor {
    char name[NAME_BYTES];
    ds_meta meta;
    dsi_gguf_rows rows;
} tensor;

struct dsi_gguf_out {
    ds_ctx *ctx;
    dsi_buf entries;
    size_t n_entries;
    tensor *tensors;
    size_t n_tensors, capacity;
};

/* ---- types ----------------------------------------------------------------------------------- */

static size_t row_bytes(ds_meta meta)
{
    const int64_t k = ds_shape_last(meta.shape);
    return dsi_is_blocks(meta.dtype) ? dsi_block_row_bytes(meta.dtype, k)
                                     : (size_t)k * ds_dtype_bytes(meta.dtype);
}

/* n values, whole blocks, as `dtype`. */
static void encode(ds_dtype dtype, const float *x, int64_t n, uint8_t *out)
{
    if (dsi_is_blocks(dtype)) {
        dsi_blocks_quantize(dtype, x, n, out);
        return;
    }
    if (dtype == DS_DTYPE_F32) {
        memcpy(out, x, (size_t)n * sizeof *x);
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        const uint16_t half = dtype == DS_DTYPE_BF16 ? dsi_f32_to_bf16(x[i]) : dsi_f32_to_f16(x[i]);
        out[2 * i] = (uint8_t)half;
        out[2 * i + 1] = (uint8_t)(half >> 8);
    }
}

/* The largest magnitude that a type has: scales are halves, and values are at least as many times
 * them as this. */
static float most_of(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 ? INFINITY : 65504.0f;
}

/* ---- entries --------------------------------------------------------------------------------- */

ds_status dsi_gguf_out_create(ds_ctx *ctx, dsi_gguf_out **out_out)
{
    dsi_gguf_out *out = calloc(1, sizeof *out);
    if (out == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to write a GGUF file");
    }
    out->ctx = ctx;
    out->entries = dsi_buf_make(SIZE_MAX / 2);
    *out_out = out;
    return DS_OK;
}

void dsi_gguf_out_destroy(dsi_gguf_out **out)
{
    if (*out != NULL) {
        dsi_buf_free(&(*out)->entries);
        free((*out)->tensors);
        free(*out);
    }
    *out = NULL;
}

/* The low n bytes, the lowest first. */
static void put(dsi_buf *buf, uint64_t value, size_t n)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < n; ++i) {
        bytes[i] = (uint8_t)(value >> 8 * i);
    }
    dsi_buf_append(buf, bytes, n);
}

static void put_text(dsi_buf *buf, const char *text, size_t n)
{
    put(buf, n, 8);
    dsi_buf_append(buf, text, n);
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void begin(dsi_gguf_out *out, const char *key, size_t n, uint32_t kind)
{
    out->n_entries += 1;
    put_text(&out->entries, key, n);
    put(&out->entries, kind, 4);
}

/* The file's number of a kind. */
static uint32_t number_of(dsi_gguf_kind kind)
{
    static const uint8_t numbers[DSI_GGUF_KINDS] = {
        [DSI_GGUF_U8] = 0,   [DSI_GGUF_I8] = 1,    [DSI_GGUF_U16] = 2,  [DSI_GGUF_I16] = 3,
        [DSI_GGUF_U32] = 4,  [DSI_GGUF_I32] = 5,   [DSI_GGUF_F32] = 6,  [DSI_GGUF_BOOL] = 7,
        [DSI_GGUF_TEXT] = 8, [DSI_GGUF_ARRAY] = 9, [DSI_GGUF_U64] = 10, [DSI_GGUF_I64] = 11,
        [DSI_GGUF_F64] = 12};
    return numbers[kind];
}

void dsi_gguf_out_u32(dsi_gguf_out *out, const char *key, uint32_t value)
{
    begin(out, key, strlen(key), number_of(DSI_GGUF_U32));
    put(&out->entries, value, 4);
}

void dsi_gguf_out_f32(dsi_gguf_out *out, const char *key, float value)
{
    begin(out, key, strlen(key), number_of(DSI_GGUF_F32));
    put(&out->entries, bits_of(value), 4);
}

void dsi_gguf_out_bool(dsi_gguf_out *out, const char *key, bool value)
{
    begin(out, key, strlen(key), number_of(DSI_GGUF_BOOL));
    put(&out->entries, value, 1);
}

void dsi_gguf_out_text(dsi_gguf_out *out, const char *key, const char *text, size_t n)
{
    begin(out, key, strlen(key), number_of(DSI_GGUF_TEXT));
    put_text(&out->entries, text, n);
}

void dsi_gguf_out_list(dsi_gguf_out *out, const char *key, dsi_gguf_kind kind, size_t n)
{
    begin(out, key, strlen(key), number_of(DSI_GGUF_ARRAY));
    put(&out->entries, number_of(kind), 4);
    put(&out->entries, n, 8);
}

void dsi_gguf_out_append_text(dsi_gguf_out *out, const char *text, size_t n)
{
    put_text(&out->entries, text, n);
}

void dsi_gguf_out_append_i32(dsi_gguf_out *out, int32_t value)
{
    put(&out->entries, (uint32_t)value, 4);
}

void dsi_gguf_out_append_f32(dsi_gguf_out *out, float value)
{
    put(&out->entries, bits_of(value), 4);
}

void dsi_gguf_out_copy(dsi_gguf_out *out, const dsi_gguf_entry *e)
{
    static const uint8_t bytes[DSI_GGUF_KINDS] = {
        [DSI_GGUF_U8] = 1,  [DSI_GGUF_I8] = 1,  [DSI_GGUF_U16] = 2, [DSI_GGUF_I16] = 2,
        [DSI_GGUF_U32] = 4, [DSI_GGUF_I32] = 4, [DSI_GGUF_F32] = 4, [DSI_GGUF_BOOL] = 1,
        [DSI_GGUF_U64] = 8, [DSI_GGUF_I64] = 8, [DSI_GGUF_F64] = 8};
    begin(out, e->key.data, e->key.n, number_of(e->kind));
    if (e->kind == DSI_GGUF_ARRAY) {
        put(&out->entries, number_of(e->of), 4);
        put(&out->entries, e->n, 8);
    }
    if (e->of != DSI_GGUF_TEXT) {
        dsi_buf_append(&out->entries, e->data, e->n * bytes[e->of]);
        return;
    }
    for (size_t i = 0; i < e->n; ++i) {
        put_text(&out->entries, e->texts[i].data, e->texts[i].n);
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

ds_status dsi_gguf_out_tensor(dsi_gguf_out *out, const char *name, ds_meta meta,
                              const dsi_gguf_rows *rows)
{
    if (strlen(name) >= NAME_BYTES || meta.shape.n_dims == 0 || meta.shape.n_dims > MOST_DIMS) {
        return ds_fail(out->ctx, DS_ERR_LIMIT,
                       "%s: a GGUF file has names of up to 63 bytes and 1 to 4 dims", name);
    }
    if (out->n_tensors == out->capacity) {
        const size_t capacity = out->capacity > 0 ? 2 * out->capacity : 256;
        tensor *grown = realloc(out->tensors, capacity * sizeof *grown);
        if (grown == NULL) {
            return ds_fail(out->ctx, DS_ERR_NOMEM, "no memory to write a GGUF file");
        }
        out->tensors = grown;
        out->capacity = capacity;
    }
    tensor *t = &out->tensors[out->n_tensors++];
    *t = (tensor){.meta = meta, .rows = *rows};
    memcpy(t->name, name, strlen(name) + 1);
    return DS_OK;
}

static size_t tensor_bytes(const tensor *t)
{
    return (size_t)ds_shape_rows(t->meta.shape) * row_bytes(t->meta);
}

static size_t padded(size_t n)
{
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Everything in front of the data. */
static dsi_buf head_of(const dsi_gguf_out *out)
{
    dsi_buf head = dsi_buf_make(SIZE_MAX / 2);
    size_t offset = 0;
    dsi_buf_append(&head, "GGUF", 4);
    put(&head, 3, 4);
    put(&head, out->n_tensors, 8);
    put(&head, out->n_entries, 8);
    dsi_buf_append(&head, out->entries.data, out->entries.size);
    for (size_t i = 0; i < out->n_tensors; ++i) {
        const tensor *t = &out->tensors[i];
        const ds_shape shape = t->meta.shape;
        put_text(&head, t->name, strlen(t->name));
        put(&head, shape.n_dims, 4);
        for (uint32_t d = shape.n_dims; d > 0; --d) {
            put(&head, (uint64_t)shape.dims[d - 1], 8);
        }
        put(&head, dsi_gguf_type_of(t->meta.dtype), 4);
        put(&head, offset, 8);
        offset += padded(tensor_bytes(t));
    }
    while (head.size % ALIGNMENT != 0 && !head.failed) {
        put(&head, 0, 1);
    }
    head.failed = head.failed || out->entries.failed;
    return head;
}

/* Some rows on their way to the file. */
typedef struct encoding {
    const tensor *t;
    const float *values; /* [n][k] */
    uint8_t *bytes;      /* [n][row_bytes] */
    const bool *stored;  /* [n]: bytes are there */
} encoding;

static void encode_row(void *arg, uint32_t task, uint32_t thread)
{
    const encoding *e = arg;
    const int64_t k = ds_shape_last(e->t->meta.shape);
    (void)thread;
    if (!e->stored[task]) {
        encode(e->t->meta.dtype, e->values + (int64_t)task * k, k,
               e->bytes + (size_t)task * row_bytes(e->t->meta));
    }
}

static ds_status check_values(ds_ctx *ctx, const tensor *t, const float *x)
{
    const float most = most_of(t->meta.dtype);
    for (int64_t i = 0; i < ds_shape_last(t->meta.shape); ++i) {
        if (!isfinite(x[i]) || fabsf(x[i]) > most) {
            return ds_fail(ctx, DS_ERR_NUMERIC, "%s has the value %g, which %s has not", t->name,
                           (double)x[i], ds_dtype_name(t->meta.dtype));
        }
    }
    return DS_OK;
}

static ds_status write_rows(const dsi_gguf_out *out, const tensor *t, float *values, uint8_t *bytes,
                            dsi_file_out *file)
{
    const int64_t k = ds_shape_last(t->meta.shape);
    const int64_t n = ds_shape_rows(t->meta.shape);
    const size_t each = row_bytes(t->meta);
    for (int64_t first = 0; first < n; first += ROWS) {
        const int64_t part = n - first < ROWS ? n - first : ROWS;
        bool stored[ROWS];
        for (int64_t i = 0; i < part; ++i) {
            const uint8_t *there =
                t->rows.stored != NULL ? t->rows.stored(t->rows.user, first + i) : NULL;
            stored[i] = there != NULL;
            if (there != NULL) {
                memcpy(bytes + (size_t)i * each, there, each);
                continue;
            }
            DS_TRY(t->rows.read(t->rows.user, first + i, values + i * k));
            DS_TRY(check_values(out->ctx, t, values + i * k));
        }
        encoding e = {t, values, bytes, stored};
        dsi_pool_run(dsi_ctx_pool(out->ctx), encode_row, &e, (uint32_t)part);
        DS_TRY(dsi_file_write(file, bytes, (size_t)part * each));
    }
    static const uint8_t zeros[ALIGNMENT];
    return dsi_file_write(file, zeros, padded(tensor_bytes(t)) - tensor_bytes(t));
}

static ds_status write_all(const dsi_gguf_out *out, const dsi_buf *head, dsi_file_out *file)
{
    int64_t longest = 1;
    for (size_t i = 0; i < out->n_tensors; ++i) {
        const int64_t k = ds_shape_last(out->tensors[i].meta.shape);
        longest = k > longest ? k : longest;
    }
    float *values = malloc((size_t)(ROWS * longest) * sizeof *values);
    uint8_t *bytes = malloc((size_t)(ROWS * longest) * sizeof *values);
    ds_status status = values != NULL && bytes != NULL
                           ? dsi_file_write(file, head->data, head->size)
                           : ds_fail(out->ctx, DS_ERR_NOMEM, "no memory to write a GGUF file");
    for (size_t i = 0; i < out->n_tensors && status >= 0; ++i) {
        status = write_rows(out, &out->tensors[i], values, bytes, file);
    }
    free(values);
    free(bytes);
    return status;
}

ds_status dsi_gguf_out_write(dsi_gguf_out *out, const char *path,
                             ds_status (*check)(void *user, const char *staged), void *user)
{
    dsi_file_out *file = NULL;
    dsi_buf head = head_of(out);
    ds_status status = head.failed
                           ? ds_fail(out->ctx, DS_ERR_NOMEM, "no memory to write a GGUF file")
                           : dsi_file_stage(out->ctx, path, &file);
    status = status < 0 ? status : write_all(out, &head, file);
    if (status >= 0 && check != NULL) {
        const char *staged = dsi_file_staged(file);
        status = staged != NULL
                     ? check(user, staged)
                     : ds_fail(out->ctx, DS_ERR_UNSUPPORTED,
                               "%s is no file: what is written there cannot be read back", path);
    }
    if (status >= 0) {
        status = dsi_file_commit(&file);
    }
    dsi_file_abort(&file);
    dsi_buf_free(&head);
    return status;
}
