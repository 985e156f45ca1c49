/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest as text. A line for each state, shard and tensor, so that people and diff can read
 * it; the last line holds the XXH3-64 of all bytes before it. */
#include "ckpt/ckpt_internal.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

bool dsi_ckpt_is_word(const char *text)
{
    const size_t n = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
    return n > 0 && n <= 64 && text[n] == '\0';
}

bool dsi_ckpt_is_tag(const char *tag)
{
    return dsi_path_is_plain(tag) && tag[0] != '.' && strcmp(tag, DSI_CKPT_LATEST) != 0;
}

char *dsi_ckpt_entry_name(dsi_arena *arena, const char *kind, const char *name, uint32_t k,
                          uint32_t n)
{
    dsi_buf text = dsi_buf_make(1 << 20);
    dsi_buf_printf(&text, "%s/%s", kind, name);
    if (n > 1) {
        dsi_buf_printf(&text, "#%u", k);
    }
    char *copy = text.failed ? NULL : dsi_arena_strdup(arena, dsi_buf_text(&text));
    dsi_buf_free(&text);
    return copy;
}

ds_shape dsi_ckpt_entry_shape(const ds_extent *extent, ds_shape shape)
{
    if (!extent->flat) {
        return ds_shape_of(shape.n_dims, extent->lengths);
    }
    return extent->begin == 0 && extent->count == ds_shape_count(shape)
               ? shape
               : ds_shape_1d(extent->count);
}

void dsi_ckpt_shard_name(uint32_t rank, uint32_t size, char *name)
{
    (void)snprintf(name, DSI_CKPT_SHARD_NAME, "ds_shard_%05u_of_%05u.safetensors", rank, size);
}

int dsi_ckpt_compare_tensors(const void *a, const void *b)
{
    const ds_checkpoint_tensor *x = a;
    const ds_checkpoint_tensor *y = b;
    const int order = strcmp(x->kind, y->kind);
    return order != 0 ? order : strcmp(x->name, y->name);
}

static void put_text(dsi_buf *out, const char *text)
{
    dsi_buf_putc(out, '"');
    dsi_buf_json(out, text, strlen(text));
    dsi_buf_putc(out, '"');
}

static void put_list(dsi_buf *out, const int64_t *values, uint32_t n)
{
    for (uint32_t i = 0; i < n; ++i) {
        dsi_buf_printf(out, i == 0 ? "[%lld" : ",%lld", (long long)values[i]);
    }
    dsi_buf_puts(out, n == 0 ? "[]" : "]");
}

static void put_head(dsi_buf *out, const dsi_ckpt_manifest *m)
{
    const ds_checkpoint_info *info = &m->info;
    dsi_buf_printf(out, "{\n\"format\": \"%s\",\n\"version\": %d,\n\"tag\": ", DSI_CKPT_FORMAT,
                   DSI_CKPT_VERSION);
    put_text(out, info->tag);
    dsi_buf_printf(out,
                   ",\n\"step\": %llu,\n\"samples\": %llu,\n\"tokens\": %llu,\n\"optimizer\": ",
                   (unsigned long long)info->step, (unsigned long long)info->samples,
                   (unsigned long long)info->tokens);
    put_text(out, info->optimizer);
    dsi_buf_puts(out, ",\n\"states\": {");
    for (size_t i = 0; i < m->n_states; ++i) {
        dsi_buf_puts(out, i == 0 ? "\n" : ",\n");
        put_text(out, m->states[i].key);
        dsi_buf_puts(out, ": ");
        dsi_buf_puts(out, m->states[i].value);
    }
    dsi_buf_puts(out, "},\n");
}

static void put_shards(dsi_buf *out, const dsi_ckpt_manifest *m)
{
    dsi_buf_puts(out, "\"shards\": [");
    for (size_t i = 0; i < m->n_shards; ++i) {
        dsi_buf_puts(out, i == 0 ? "\n{\"file\": " : ",\n{\"file\": ");
        put_text(out, m->shards[i].file);
        if (m->shards[i].host != NULL) {
            dsi_buf_puts(out, ", \"host\": ");
            put_text(out, m->shards[i].host);
        }
        dsi_buf_printf(out, ", \"bytes\": %llu, \"xxh3\": \"%016llx\"}",
                       (unsigned long long)m->shards[i].bytes,
                       (unsigned long long)m->shards[i].digest);
    }
    dsi_buf_puts(out, "],\n");
}

static void put_slice(dsi_buf *out, const dsi_ckpt_slice *slice, uint32_t n_dims)
{
    dsi_buf_printf(out, "{\"shard\": %u, \"entry\": ", slice->shard);
    put_text(out, slice->entry);
    if (slice->extent.flat) {
        const int64_t range[2] = {slice->extent.begin, slice->extent.count};
        dsi_buf_puts(out, ", \"flat\": ");
        put_list(out, range, 2);
    } else {
        dsi_buf_puts(out, ", \"offset\": ");
        put_list(out, slice->extent.offset, n_dims);
        dsi_buf_puts(out, ", \"lengths\": ");
        put_list(out, slice->extent.lengths, n_dims);
    }
    dsi_buf_printf(out, ", \"xxh3\": \"%016llx\"}", (unsigned long long)slice->digest);
}

static void put_tensors(dsi_buf *out, const dsi_ckpt_manifest *m)
{
    dsi_buf_puts(out, "\"tensors\": [");
    for (size_t i = 0; i < m->n_tensors; ++i) {
        const ds_checkpoint_tensor *t = &m->tensors[i];
        dsi_buf_puts(out, i == 0 ? "\n{\"kind\": " : ",\n{\"kind\": ");
        put_text(out, t->kind);
        dsi_buf_puts(out, ", \"name\": ");
        put_text(out, t->name);
        dsi_buf_printf(out,
                       ", \"dtype\": \"%s\", \"shape\": ", ds_dtype_safetensors(t->meta.dtype));
        put_list(out, t->meta.shape.dims, t->meta.shape.n_dims);
        dsi_buf_puts(out, ", \"slices\": [");
        for (uint32_t k = 0; k < t->n_slices; ++k) {
            dsi_buf_puts(out, k == 0 ? "" : ", ");
            put_slice(out, &m->slices[t->first_slice + k], t->meta.shape.n_dims);
        }
        dsi_buf_puts(out, "]}");
    }
    dsi_buf_puts(out, "],\n");
}

ds_status dsi_ckpt_manifest_text(ds_ctx *ctx, const dsi_ckpt_manifest *m, dsi_buf *out)
{
    put_head(out, m);
    put_shards(out, m);
    put_tensors(out, m);
    if (!out->failed) {
        const uint64_t digest = XXH3_64bits(out->data, out->size);
        dsi_buf_printf(out, "\"checksum\": \"%016llx\"\n}\n", (unsigned long long)digest);
    }
    if (out->failed && out->size < out->ceiling / 2) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory saving checkpoint %s", m->info.tag);
    }
    if (out->failed) {
        return ds_fail(ctx, DS_ERR_LIMIT, "the manifest of checkpoint %s is too large",
                       m->info.tag);
    }
    return DS_OK;
}
