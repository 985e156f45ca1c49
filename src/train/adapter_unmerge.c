/* SPDX-License-Identifier: Apache-2.0 */
/* What a merged folder differs by from its model, and the model again. See deepspeed/unmerge.h.
 *
 * ds_unmerge.safetensors has a tensor for each of the model's that the merged folder has otherwise:
 * u8 (bytes), the exclusive or of both, or where dtype or shape differ, or the folder has none, the
 * model's own. Its texts: "config", config.json as it was; "merged", a digest of the merged tensors
 * that it was made of; "added", a line for each tensor that merging added (an output head that is
 * tied in the model, experts that it has as one tensor), or "".
 */
#include "base/buf.h"
#include "io/file.h"

#include <deepspeed/hf_export.h>
#include <deepspeed/unmerge.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { CONFIG_CEILING = 16 << 20, DIGEST_BYTES = 17 };

#define DIFFERENCE "ds_unmerge.safetensors"

/* Two tensors of as many bytes, whose exclusive or is written. */
typedef struct pair {
    const unsigned char *a, *b;
} pair;

static ds_status no_memory(ds_ctx *ctx)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the difference of two models");
}

static ds_status fill_difference(void *user, size_t offset, void *data, size_t n)
{
    const pair *p = user;
    unsigned char *out = data;
    for (size_t i = 0; i < n; ++i) {
        out[i] = p->a[offset + i] ^ p->b[offset + i];
    }
    return DS_OK;
}

static bool are_alike(const ds_safetensor *a, const ds_safetensor *b)
{
    return a->meta.dtype == b->meta.dtype && ds_shape_equal(a->meta.shape, b->meta.shape);
}

/* Of names, layouts and bytes of all tensors in the order of the files. */
static void digest_of(const ds_safetensors *st, char text[DIGEST_BYTES])
{
    uint64_t sum = 0;
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *t = ds_safetensors_at(st, i);
        sum += XXH3_64bits_withSeed(t->data, t->bytes, XXH3_64bits(t->name, strlen(t->name)));
    }
    (void)snprintf(text, DIGEST_BYTES, "%016" PRIx64, sum);
}

static ds_status read_config(ds_ctx *ctx, const char *folder, dsi_buf *text)
{
    char *path = dsi_path_join(folder, "config.json");
    const ds_status status = path != NULL ? dsi_buf_read_file(ctx, path, text) : no_memory(ctx);
    free(path);
    return status;
}

/* The tensors that the model does not have, a line each. */
static void add_added(const ds_safetensors *model, const ds_safetensors *merged, dsi_buf *names)
{
    for (size_t i = 0; i < ds_safetensors_count(merged); ++i) {
        const char *name = ds_safetensors_at(merged, i)->name;
        if (ds_safetensors_find(model, name) == NULL) {
            dsi_buf_printf(names, "%s%s", names->size > 0 ? "\n" : "", name);
        }
    }
}

static bool is_added(const char *names, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = names; at != NULL; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, name, n) == 0 && (at[n] == '\n' || at[n] == '\0')) {
            return true;
        }
    }
    return false;
}

/* The source of one tensor of the model; false: the merged folder has it as it is. */
static bool differs(const ds_safetensor *model, const ds_safetensor *merged, pair *p,
                    ds_tensor_source *source)
{
    *source = (ds_tensor_source){.name = model->name, .meta = model->meta, .data = model->data};
    if (merged == NULL) {
        return true;
    }
    if (!are_alike(model, merged) || model->bytes == 0) {
        return model->bytes > 0;
    }
    if (memcmp(model->data, merged->data, model->bytes) == 0) {
        return false;
    }
    *p = (pair){model->data, merged->data};
    *source = (ds_tensor_source){.name = model->name,
                                 .meta = {DS_DTYPE_U8, ds_shape_1d((int64_t)model->bytes)},
                                 .fill = fill_difference,
                                 .user = p};
    return true;
}

static ds_status write_difference(ds_ctx *ctx, const ds_safetensors *model,
                                  const ds_safetensors *merged, const char *folder,
                                  const char *config)
{
    const size_t n = ds_safetensors_count(model);
    char digest[DIGEST_BYTES];
    dsi_buf added = dsi_buf_make(CONFIG_CEILING);
    add_added(model, merged, &added);
    const ds_text_pair texts[3] = {
        {"config", config}, {"merged", digest}, {"added", dsi_buf_text(&added)}};
    const ds_safetensors_params params = {.metadata = texts, .n_metadata = 3};
    char *path = dsi_path_join(folder, DIFFERENCE);
    pair *pairs = calloc(n + 1, sizeof *pairs);
    ds_tensor_source *sources = calloc(n + 1, sizeof *sources);
    ds_status status =
        path != NULL && pairs != NULL && sources != NULL && !added.failed ? DS_OK : no_memory(ctx);
    size_t used = 0;
    digest_of(merged, digest);
    for (size_t i = 0; i < n && status >= 0; ++i) {
        const ds_safetensor *own = ds_safetensors_at(model, i);
        used += differs(own, ds_safetensors_find(merged, own->name), &pairs[i], &sources[used]);
    }
    status = status < 0 ? status : ds_safetensors_write(ctx, path, sources, used, &params);
    dsi_buf_free(&added);
    free(path);
    free(pairs);
    free(sources);
    return status;
}

ds_status ds_unmerge_keep(ds_ctx *ctx, const char *model_folder, const char *merged_folder)
{
    ds_safetensors *model = NULL;
    ds_safetensors *merged = NULL;
    dsi_buf config = dsi_buf_make(CONFIG_CEILING);
    ds_status status = ds_safetensors_open_folder(ctx, model_folder, &model);
    status = status < 0 ? status : ds_safetensors_open_folder(ctx, merged_folder, &merged);
    status = status < 0 ? status : read_config(ctx, model_folder, &config);
    status = status < 0
                 ? status
                 : write_difference(ctx, model, merged, merged_folder, dsi_buf_text(&config));
    dsi_buf_free(&config);
    ds_safetensors_close(&merged);
    ds_safetensors_close(&model);
    return status;
}

/* ---- back ------------------------------------------------------------------------------------ */

static const char *text_of(const ds_safetensors *st, const char *wanted)
{
    const char *key = NULL;
    const char *value = NULL;
    for (size_t i = 0; ds_safetensors_metadata(st, i, &key, &value); ++i) {
        if (strcmp(key, wanted) == 0) {
            return value;
        }
    }
    return NULL;
}

static ds_status check_kept(ds_ctx *ctx, const char *folder, const ds_safetensors *merged,
                            const ds_safetensors *kept)
{
    char digest[DIGEST_BYTES];
    const char *of = text_of(kept, "merged");
    digest_of(merged, digest);
    return of != NULL && strcmp(of, digest) == 0 && text_of(kept, "config") != NULL
               ? DS_OK
               : ds_fail(ctx, DS_ERR_FORMAT,
                         "%s/" DIFFERENCE
                         " is not of the weights beside it (digest %s, theirs %s): "
                         "they were changed since",
                         folder, of != NULL ? of : "none", digest);
}

/* The model's tensors: those of the merged folder, or what was kept of them. A tensor that merging
 * added, an output head of its own, is in neither. */
static ds_status add_all(ds_ctx *ctx, const ds_safetensors *merged, const ds_safetensors *kept,
                         pair *pairs, ds_hf_export *export_)
{
    const char *added = text_of(kept, "added");
    for (size_t i = 0; i < ds_safetensors_count(merged); ++i) {
        const ds_safetensor *own = ds_safetensors_at(merged, i);
        const ds_safetensor *was = ds_safetensors_find(kept, own->name);
        ds_tensor_source source = {.name = own->name, .meta = own->meta, .data = own->data};
        if (added != NULL && is_added(added, own->name)) {
            continue;
        }
        /* codes of bitsandbytes are bytes, too, but of two dims */
        const bool differs_by =
            was != NULL && was->meta.dtype == DS_DTYPE_U8 && was->meta.shape.n_dims == 1;
        if (differs_by && was->bytes == own->bytes) {
            pairs[i] = (pair){own->data, was->data};
            source.data = NULL;
            source.fill = fill_difference;
            source.user = &pairs[i];
        } else if (was != NULL && !differs_by) {
            source.meta = was->meta;
            source.data = was->data;
        } else if (was != NULL) {
            return ds_fail(ctx, DS_ERR_FORMAT, "%s: %s has %zu bytes, expected %zu", was->path,
                           was->name, was->bytes, own->bytes);
        }
        DS_TRY(ds_hf_export_add(export_, &source));
    }
    for (size_t i = 0; i < ds_safetensors_count(kept); ++i) {
        const ds_safetensor *was = ds_safetensors_at(kept, i);
        if (ds_safetensors_find(merged, was->name) == NULL) {
            const ds_tensor_source source = {
                .name = was->name, .meta = was->meta, .data = was->data};
            DS_TRY(ds_hf_export_add(export_, &source));
        }
    }
    return DS_OK;
}

static ds_status write_model(ds_ctx *ctx, const ds_safetensors *merged, const ds_safetensors *kept,
                             const char *from, const char *to)
{
    const ds_hf_export_params params = {
        .folder = to, .config_json = text_of(kept, "config"), .copy_from = from};
    pair *pairs = calloc(ds_safetensors_count(merged) + 1, sizeof *pairs);
    ds_hf_export *export_ = NULL;
    ds_status status = pairs != NULL ? DS_OK : no_memory(ctx);
    status = status < 0 ? status : ds_hf_export_begin(ctx, &params, &export_);
    status = status < 0 ? status : add_all(ctx, merged, kept, pairs, export_);
    if (status >= 0) {
        status = ds_hf_export_finish(&export_);
    }
    ds_hf_export_abort(&export_);
    free(pairs);
    return status;
}

static ds_status check_place(ds_ctx *ctx, const char *from, const char *to)
{
    struct stat a;
    struct stat b;
    return stat(from, &a) == 0 && stat(to, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino
               ? ds_fail(ctx, DS_ERR_ARG,
                         "ds_unmerge: %s is the merged folder, which is read; "
                         "give another",
                         to)
               : DS_OK;
}

ds_status ds_unmerge(ds_ctx *ctx, const char *merged_folder, const char *out_folder)
{
    ds_safetensors *merged = NULL;
    ds_safetensors *kept = NULL;
    char *path = dsi_path_join(merged_folder, DIFFERENCE);
    ds_status status = path != NULL ? check_place(ctx, merged_folder, out_folder) : no_memory(ctx);
    status = status < 0 ? status : ds_safetensors_open_folder(ctx, merged_folder, &merged);
    status = status < 0 ? status : ds_safetensors_open(ctx, path, &kept);
    status = status < 0 ? status : check_kept(ctx, merged_folder, merged, kept);
    status = status < 0 ? status : write_model(ctx, merged, kept, merged_folder, out_folder);
    free(path);
    ds_safetensors_close(&kept);
    ds_safetensors_close(&merged);
    return status;
}
