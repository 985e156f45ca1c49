/* SPDX-License-Identifier: Apache-2.0 */
/* Reads indexed data. Nothing in the files is trusted. */
#include "data/indexed.h"
#include "data/source.h"

#include "base/arena.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 9 + 8 + 1 + 8 + 8 };

static uint64_t get(const unsigned char *at, uint32_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, at, bytes);
    return value;
}

static ds_status malformed(ds_ctx *ctx, const char *path, const char *what)
{
    return ds_fail(ctx, DS_ERR_FORMAT, "%s: no good index: %s", path, what);
}

static uint32_t width_of(uint64_t code)
{
    static const uint32_t widths[9] = {0, 1, 1, 2, 4, 8, 2, 4, 8};
    return code < 9 ? widths[code] : 0;
}

/* Code 8 is DeepSpeed's u64 and Megatron's u16. */
static uint32_t width_of_code_8(const dsi_indexed *x)
{
    uint64_t tokens = 0;
    for (uint64_t i = 0; i < x->n_items; ++i) {
        if (tokens > 0) {
            return get(x->pointers + 8 * i, 8) == tokens * 2 ? 2 : 8;
        }
        tokens = get(x->sizes + 4 * i, 4);
    }
    return tokens * 2 == x->bin.size || tokens > x->bin.size / 8 ? 2 : 8;
}

/* Sizes add up and lie back to back. */
static ds_status check_items(ds_ctx *ctx, const char *path, dsi_indexed *x)
{
    uint64_t tokens = 0;
    for (uint64_t i = 0; i < x->n_items; ++i) {
        const uint64_t size = get(x->sizes + 4 * i, 4);
        if (size > INT32_MAX || get(x->pointers + 8 * i, 8) != tokens * x->width) {
            return ds_fail(ctx, size > INT32_MAX ? DS_ERR_FORMAT : DS_ERR_UNSUPPORTED,
                           "%s: item %llu has a bad size or is not back to back with the one "
                           "before it",
                           path, (unsigned long long)i);
        }
        tokens += size;
    }
    x->n_tokens = tokens;
    if (tokens > x->bin.size / x->width) {
        return malformed(ctx, path, "it names more tokens than the .bin holds");
    }
    if (tokens * x->width < x->bin.size) {
        ds_log(ctx, DS_LOG_WARN,
               "%s: the .bin has %llu bytes behind its last token; they are not read", path,
               (unsigned long long)(x->bin.size - tokens * x->width));
    }
    return DS_OK;
}

static ds_status check_boundaries(ds_ctx *ctx, const char *path, dsi_indexed *x)
{
    uint64_t before = 0;
    if (x->n_boundaries == 1 && get(x->boundaries, 8) == 0) {
        x->n_boundaries = 0; /* no document was ended: each item is one */
    }
    for (uint64_t i = 0; i < x->n_boundaries; ++i) {
        const uint64_t item = get(x->boundaries + 8 * i, 8);
        if (item > x->n_items || item < before || (i == 0 && item != 0)) {
            return malformed(ctx, path, "its document boundaries do not ascend from 0");
        }
        before = item;
    }
    if (x->n_boundaries > 0 && before != x->n_items) {
        return malformed(ctx, path, "its last document boundary is not its number of items");
    }
    return DS_OK;
}

static ds_status parse(ds_ctx *ctx, const char *path, dsi_indexed *x)
{
    const unsigned char *idx = x->idx.data;
    size_t items = 0;
    size_t documents = 0;
    size_t need = HEADER_BYTES;
    if (x->idx.size >= 8 && memcmp(idx, "TNTIDX\0\0", 8) == 0) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s: the TNTIDX layout is not supported, only MMIDIDX is", path);
    }
    if (x->idx.size < HEADER_BYTES || memcmp(idx, "MMIDIDX\0\0", 9) != 0 || get(idx + 9, 8) != 1) {
        return malformed(ctx, path, "expected the magic MMIDIDX and version 1");
    }
    const uint64_t code = idx[17];
    x->width = width_of(code);
    x->n_items = get(idx + 18, 8);
    x->n_boundaries = get(idx + 26, 8);
    if (x->width == 0) {
        return malformed(ctx, path, "unknown type code");
    }
    if (!dsi_mul_size(x->n_items, 12, &items) || !dsi_mul_size(x->n_boundaries, 8, &documents) ||
        !dsi_add_size(need, items, &need) || !dsi_add_size(need, documents, &need) ||
        need != x->idx.size) {
        return malformed(ctx, path, "its size does not fit its counts");
    }
    x->sizes = idx + HEADER_BYTES;
    x->pointers = x->sizes + 4 * x->n_items;
    x->boundaries = x->pointers + 8 * x->n_items;
    x->is_signed = code >= 2 && code <= 5;
    if (code == 8) {
        x->width = width_of_code_8(x);
    }
    DS_TRY(check_items(ctx, path, x));
    return check_boundaries(ctx, path, x);
}

char *dsi_indexed_other(const char *path)
{
    const bool bin = dsi_path_ends(path, ".bin");
    char *other = bin || dsi_path_ends(path, ".idx") ? strdup(path) : NULL;
    if (other != NULL) {
        memcpy(other + strlen(other) - 4, bin ? ".idx" : ".bin", 4);
    }
    return other;
}

ds_status dsi_indexed_open(ds_ctx *ctx, const char *path, dsi_indexed *indexed_out)
{
    size_t n = strlen(path);
    if (n > 4 && (strcmp(path + n - 4, ".bin") == 0 || strcmp(path + n - 4, ".idx") == 0)) {
        n -= 4;
    }
    char *name = malloc(n + 5);
    dsi_indexed x = {.width = 0};
    if (name == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to open %s", path);
    }
    memcpy(name, path, n);
    memcpy(name + n, ".bin", 5);
    ds_status status = dsi_map_open(ctx, name, 0, &x.bin);
    if (status >= 0) {
        memcpy(name + n, ".idx", 5);
        status = dsi_map_open(ctx, name, 0, &x.idx);
        if (status >= 0) {
            status = parse(ctx, name, &x);
        }
    }
    free(name);
    if (status < 0) {
        dsi_indexed_close(&x);
        return status;
    }
    *indexed_out = x;
    return DS_OK;
}

void dsi_indexed_close(dsi_indexed *indexed)
{
    dsi_map_close(&indexed->bin);
    dsi_map_close(&indexed->idx);
}

uint64_t dsi_indexed_n_documents(const dsi_indexed *x)
{
    return x->n_boundaries > 0 ? x->n_boundaries - 1 : x->n_items;
}

uint64_t dsi_indexed_begin(const dsi_indexed *x, uint64_t d)
{
    const uint64_t item = x->n_boundaries > 0 ? get(x->boundaries + 8 * d, 8) : d;
    return item < x->n_items ? get(x->pointers + 8 * item, 8) / x->width : x->n_tokens;
}
