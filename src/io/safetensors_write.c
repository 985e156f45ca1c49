/* SPDX-License-Identifier: Apache-2.0 */
/* One safetensors file as a stream: header first, then the data of each tensor, block by block.
 *
 * The order of data is that of the safetensors package (its ranking of dtypes, then names), so that
 * the same tensors give the same bytes.
 */
#include "io/safetensors_write.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/reserved.h"
#include "io/convert.h"
#include "io/safetensors_internal.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include <xxhash.h>

/* Data in flight: small enough to stay in a core's cache from the first checksum to the copy. */
#define BLOCK_BYTES ((size_t)512 << 10)

typedef struct item {
    const ds_tensor_source *source;
    size_t index; /* in the caller's list */
    ds_meta stored;
    size_t bytes; /* in the file */
} item;

struct dsi_safetensors_plan {
    ds_ctx *ctx;
    char *path; /* for messages */
    item *items;
    size_t n;
    dsi_buf header;
    uint64_t data_bytes;
    XXH3_state_t *hash;
    uint8_t *filled;    /* BLOCK_BYTES for fill */
    uint8_t *converted; /* 4 times that: f16 to f64 grows most */
};

typedef struct dsi_safetensors_plan stream;

static int dtype_rank(ds_dtype dtype)
{
    static const ds_dtype ranking[] = {DS_DTYPE_I64, DS_DTYPE_F64,  DS_DTYPE_F32,
                                       DS_DTYPE_I32, DS_DTYPE_BF16, DS_DTYPE_F16,
                                       DS_DTYPE_I8,  DS_DTYPE_U8,   DS_DTYPE_BOOL};
    const int n = (int)(sizeof ranking / sizeof ranking[0]);
    for (int i = 0; i < n; ++i) {
        if (ranking[i] == dtype) {
            return i;
        }
    }
    return n;
}

static int compare_name(const void *a, const void *b)
{
    return strcmp(((const item *)a)->source->name, ((const item *)b)->source->name);
}

static int compare_index(const void *a, const void *b)
{
    const item *x = a;
    const item *y = b;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int compare_layout(const void *a, const void *b)
{
    const int x = dtype_rank(((const item *)a)->stored.dtype);
    const int y = dtype_rank(((const item *)b)->stored.dtype);
    return x != y ? x - y : compare_name(a, b);
}

static bool is_utf8(const char *text)
{
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text;
    while (*p != 0) {
        utf8proc_int32_t code = 0;
        const utf8proc_ssize_t n = utf8proc_iterate(p, -1, &code);
        if (n <= 0) {
            return false;
        }
        p += n;
    }
    return true;
}

static ds_status check_source(const stream *s, const ds_tensor_source *source)
{
    const char *name = source->name;
    DS_TRY(DSI_RESERVED_CHECK(s->ctx, "ds_tensor_source", source));
    if (name == NULL || name[0] == '\0' || strcmp(name, "__metadata__") == 0 || !is_utf8(name)) {
        return ds_fail(s->ctx, DS_ERR_ARG, "%s: '%s' cannot be the name of a tensor", s->path,
                       name != NULL ? name : "(null)");
    }
    const ds_dtype stored = source->stored != DS_DTYPE_NONE ? source->stored : source->meta.dtype;
    if (!dsi_can_convert(source->meta.dtype, stored)) {
        return ds_fail(s->ctx, DS_ERR_ARG, "%s: tensor '%s' is %s, cannot be stored as %s", s->path,
                       name, ds_dtype_name(source->meta.dtype), ds_dtype_name(stored));
    }
    for (uint32_t i = 0; i < source->meta.shape.n_dims; ++i) {
        if (source->meta.shape.dims[i] < 0) {
            return ds_fail(s->ctx, DS_ERR_ARG, "%s: tensor '%s' has a negative dimension", s->path,
                           name);
        }
    }
    const ds_meta meta = {stored, source->meta.shape};
    if (ds_meta_bytes(meta) > SIZE_MAX / 4 || ds_meta_bytes(source->meta) > SIZE_MAX / 4) {
        return ds_fail(s->ctx, DS_ERR_LIMIT, "%s: tensor '%s' is too large", s->path, name);
    }
    if (source->data == NULL && source->fill == NULL && ds_meta_bytes(meta) > 0) {
        return ds_fail(s->ctx, DS_ERR_ARG, "%s: tensor '%s' has no data", s->path, name);
    }
    return DS_OK;
}

static ds_status plan_items(stream *s, const ds_tensor_source *sources, size_t n, bool keep_order)
{
    s->items = calloc(n > 0 ? n : 1, sizeof *s->items);
    if (s->items == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "out of memory writing %s", s->path);
    }
    s->n = n;
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(check_source(s, &sources[i]));
        item *it = &s->items[i];
        *it = (item){.source = &sources[i], .index = i, .stored = sources[i].meta};
        if (sources[i].stored != DS_DTYPE_NONE) {
            it->stored.dtype = sources[i].stored;
        }
        it->bytes = ds_meta_bytes(it->stored);
    }
    qsort(s->items, n, sizeof *s->items, compare_name);
    for (size_t i = 1; i < n; ++i) {
        if (compare_name(&s->items[i - 1], &s->items[i]) == 0) {
            return ds_fail(s->ctx, DS_ERR_ARG, "%s: tensor '%s' is given twice", s->path,
                           s->items[i].source->name);
        }
    }
    qsort(s->items, n, sizeof *s->items, keep_order ? compare_index : compare_layout);
    return DS_OK;
}

/* As serde_json escapes: the short forms, else \u00xx; other characters as they are. */
static void put_text(dsi_buf *out, const char *text)
{
    dsi_buf_putc(out, '"');
    for (const char *p = text; *p != '\0'; ++p) {
        if (*p == '\b') {
            dsi_buf_puts(out, "\\b");
        } else if (*p == '\f') {
            dsi_buf_puts(out, "\\f");
        } else {
            dsi_buf_json(out, p, 1);
        }
    }
    dsi_buf_putc(out, '"');
}

static void put_item(dsi_buf *out, const item *it, uint64_t begin)
{
    put_text(out, it->source->name);
    dsi_buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", ds_dtype_safetensors(it->stored.dtype));
    for (uint32_t i = 0; i < it->stored.shape.n_dims; ++i) {
        dsi_buf_printf(out, i == 0 ? "%lld" : ",%lld", (long long)it->stored.shape.dims[i]);
    }
    dsi_buf_printf(out, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                   (unsigned long long)(begin + it->bytes));
}

static ds_status build_header(const stream *s, const ds_safetensors_params *params, dsi_buf *out,
                              uint64_t *data_bytes_out)
{
    uint64_t at = 0;
    dsi_buf_putc(out, '{');
    if (params->n_metadata > 0) {
        dsi_buf_puts(out, "\"__metadata__\":{");
        for (size_t i = 0; i < params->n_metadata; ++i) {
            const ds_text_pair *pair = &params->metadata[i];
            if (!is_utf8(pair->key) || !is_utf8(pair->value)) {
                return ds_fail(s->ctx, DS_ERR_ARG, "%s: metadata %zu is not UTF-8", s->path, i);
            }
            if (i > 0) {
                dsi_buf_putc(out, ',');
            }
            put_text(out, pair->key);
            dsi_buf_putc(out, ':');
            put_text(out, pair->value);
        }
        dsi_buf_putc(out, '}');
    }
    for (size_t i = 0; i < s->n; ++i) {
        if (i > 0 || params->n_metadata > 0) {
            dsi_buf_putc(out, ',');
        }
        put_item(out, &s->items[i], at);
        at += s->items[i].bytes;
    }
    dsi_buf_putc(out, '}');
    while (out->size % 8 != 0 && !out->failed) {
        dsi_buf_putc(out, ' ');
    }
    if (out->failed && out->size < out->ceiling / 2) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "out of memory writing %s", s->path);
    }
    if (out->failed) {
        return ds_fail(s->ctx, DS_ERR_LIMIT,
                       "%s: the header of %zu tensors is above the limit of %zu bytes", s->path,
                       s->n, out->ceiling);
    }
    *data_bytes_out = at;
    return DS_OK;
}

/* One block of a tensor: n elements from element `at` on, in stored form, at *out. */
static ds_status get_block(const stream *s, const item *it, size_t at, size_t n, const void **out)
{
    const ds_tensor_source *source = it->source;
    const size_t width = ds_dtype_bytes(source->meta.dtype);
    const void *in = s->filled;
    if (source->data != NULL) {
        in = (const uint8_t *)source->data + at * width;
    } else {
        DS_TRY(source->fill(source->user, at * width, s->filled, n * width));
    }
    *out = in;
    if (it->stored.dtype != source->meta.dtype) {
        const size_t overflows =
            dsi_convert(source->meta.dtype, in, it->stored.dtype, s->converted, n);
        if (overflows > 0) {
            return ds_fail(s->ctx, DS_ERR_NUMERIC,
                           "%s: tensor '%s' has values beyond the range of %s; store it as bf16 or "
                           "f32",
                           s->path, source->name, ds_dtype_name(it->stored.dtype));
        }
        *out = s->converted;
    }
    return DS_OK;
}

static ds_status write_item(const stream *s, const item *it, dsi_file_out *file,
                            uint64_t *digest_out)
{
    const size_t n = it->bytes / ds_dtype_bytes(it->stored.dtype);
    const size_t width = ds_dtype_bytes(it->stored.dtype);
    const size_t block = BLOCK_BYTES / ds_dtype_bytes(it->source->meta.dtype);
    (void)XXH3_64bits_reset(s->hash);
    for (size_t at = 0; at < n; at += block) {
        const size_t m = n - at < block ? n - at : block;
        const void *data = NULL;
        DS_TRY(get_block(s, it, at, m, &data));
        (void)XXH3_64bits_update(s->hash, data, m * width);
        DS_TRY(dsi_file_write(file, data, m * width));
    }
    *digest_out = XXH3_64bits_digest(s->hash);
    return DS_OK;
}

static ds_status allocate_blocks(stream *s)
{
    bool fills = false;
    bool converts = false;
    for (size_t i = 0; i < s->n; ++i) {
        fills |= s->items[i].source->data == NULL;
        converts |= s->items[i].stored.dtype != s->items[i].source->meta.dtype;
    }
    s->hash = XXH3_createState();
    s->filled = fills ? malloc(BLOCK_BYTES) : NULL;
    s->converted = converts ? malloc(4 * BLOCK_BYTES) : NULL;
    if (s->hash == NULL || (fills && s->filled == NULL) || (converts && s->converted == NULL)) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "out of memory writing %s", s->path);
    }
    return DS_OK;
}

ds_status dsi_safetensors_plan_create(ds_ctx *ctx, const char *path,
                                      const ds_tensor_source *sources, size_t n,
                                      const ds_safetensors_params *params,
                                      dsi_safetensors_plan **plan_out)
{
    const ds_safetensors_params none = {0};
    if (params != NULL) {
        DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_safetensors_params", params));
    }
    stream *s = calloc(1, sizeof *s);
    ds_status status = DS_OK;
    params = params != NULL ? params : &none;
    if (s == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s", path);
    }
    s->ctx = ctx;
    s->header = dsi_buf_make((size_t)DSI_SAFETENSORS_MAX_HEADER);
    s->path = strdup(path);
    if (s->path == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s", path);
        goto undo;
    }
    DS_TRY_GOTO(status, plan_items(s, sources, n, params->keep_order), undo);
    DS_TRY_GOTO(status, build_header(s, params, &s->header, &s->data_bytes), undo);
    DS_TRY_GOTO(status, allocate_blocks(s), undo);
    *plan_out = s;
    return DS_OK;

undo:
    dsi_safetensors_plan_destroy(&s);
    return status;
}

void dsi_safetensors_plan_destroy(dsi_safetensors_plan **plan)
{
    stream *s = plan != NULL ? *plan : NULL;
    if (s == NULL) {
        return;
    }
    dsi_buf_free(&s->header);
    (void)XXH3_freeState(s->hash);
    free(s->items);
    free(s->filled);
    free(s->converted);
    free(s->path);
    free(s);
    *plan = NULL;
}

uint64_t dsi_safetensors_plan_bytes(const dsi_safetensors_plan *s)
{
    return 8 + s->header.size + s->data_bytes;
}

ds_status dsi_safetensors_plan_write(const dsi_safetensors_plan *s, dsi_file_out *file,
                                     uint64_t *digests_out)
{
    uint8_t size[8];
    for (int i = 0; i < 8; ++i) {
        size[i] = (uint8_t)((uint64_t)s->header.size >> (8 * i));
    }
    DS_TRY(dsi_file_write(file, size, sizeof size));
    DS_TRY(dsi_file_write(file, s->header.data, s->header.size));
    for (size_t i = 0; i < s->n; ++i) {
        uint64_t digest = 0;
        DS_TRY(write_item(s, &s->items[i], file, &digest));
        if (digests_out != NULL) {
            digests_out[s->items[i].index] = digest;
        }
    }
    return DS_OK;
}

ds_status dsi_safetensors_stream(ds_ctx *ctx, dsi_file_out *file, const char *path,
                                 const ds_tensor_source *sources, size_t n,
                                 const ds_safetensors_params *params, uint64_t *digests_out)
{
    dsi_safetensors_plan *plan = NULL;
    DS_TRY(dsi_safetensors_plan_create(ctx, path, sources, n, params, &plan));
    ds_status status = dsi_file_reserve(file, dsi_safetensors_plan_bytes(plan));
    if (status == DS_OK) {
        status = dsi_safetensors_plan_write(plan, file, digests_out);
    }
    dsi_safetensors_plan_destroy(&plan);
    return status;
}

ds_status ds_safetensors_write(ds_ctx *ctx, const char *path, const ds_tensor_source *sources,
                               size_t n, const ds_safetensors_params *params)
{
    dsi_file_out *file = NULL;
    DS_TRY(dsi_file_stage(ctx, path, &file));
    const ds_status status = dsi_safetensors_stream(ctx, file, path, sources, n, params, NULL);
    if (status < 0) {
        dsi_file_abort(&file);
        return status;
    }
    return dsi_file_commit(&file);
}
