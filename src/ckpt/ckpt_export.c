/* SPDX-License-Identifier: Apache-2.0 */
/* Weights out of a checkpoint, and one checkpoint out of many shards: streamed, so that memory is
 * bounded by one tensor, whatever the number of ranks that saved it.
 *
 * Called by ds_checkpoint and zero_to_fp32. A block is read from the mapped shards, converted and
 * written; when a tensor is done its pages are given back.
 */
#include "ckpt/ckpt_internal.h"

#include "base/reserved.h"
#include "ckpt/model_weights.h"
#include "ckpt/stacked.h"
#include "io/json_load.h"
#include "io/safetensors_write.h"
#include "nn/nn.h"
#include <deepspeed/context.h>
#include <deepspeed/hf_export.h>
#include <stdlib.h>
#include <string.h>

typedef struct source {
    ds_checkpoint *ckpt;
    const ds_checkpoint_tensor *tensor;
    ds_dtype dtype; /* given */
} source;

/* Gives n bytes of a tensor, converted. */
static ds_status fill(void *user, size_t offset, void *data, size_t n)
{
    const source *s = user;
    const size_t width = ds_dtype_bytes(s->dtype);
    const ds_extent part = ds_extent_flat((int64_t)(offset / width), (int64_t)(n / width));
    DS_TRY(ds_checkpoint_read(s->ckpt, s->tensor, &part, s->dtype, data));
    if (part.begin + part.count == ds_shape_count(s->tensor->meta.shape)) {
        dsi_ckpt_release(s->ckpt, s->tensor);
    }
    return DS_OK;
}

/* Scores of compression_training are parameters of a run, not of the model. */
static bool is_score(const char *name)
{
    static const char *const ends[] = {".sparse_mask_scores", ".row_mask_scores",
                                       ".head_pruning_scores"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i) {
        const size_t tail = strlen(ends[i]);
        if (n > tail && strcmp(name + n - tail, ends[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_weight(const ds_checkpoint_tensor *t)
{
    return (strcmp(t->kind, "master") == 0 || strcmp(t->kind, "param") == 0) && !is_score(t->name);
}

/* Nobody shall take the folder for the compressed model. */
static void say_compression(ds_ctx *ctx, const ds_checkpoint *c)
{
    const char *text = ds_checkpoint_state(c, "config");
    json_error_t error;
    json_t *config = text != NULL ? dsi_json_parse(text, strlen(text), 0, &error) : NULL;
    const char *name;
    json_t *technique;
    json_object_foreach(json_object_get(config, "compression_training"), name, technique)
    {
        const json_t *shared = json_object_get(technique, "shared_parameters");
        if (json_is_true(json_object_get(shared, "enabled"))) {
            ds_log(ctx, DS_LOG_WARN,
                   "the weights are as they were trained, before %s of compression_training", name);
        }
    }
    json_decref(config);
}

/* Whether the optimizer knows the parameter: it has a master copy or a moment. */
static bool is_trained(const ds_checkpoint *c, const char *name)
{
    for (size_t i = 0; i < ds_checkpoint_count(c); ++i) {
        const ds_checkpoint_tensor *t = ds_checkpoint_at(c, i);
        if (strcmp(t->name, name) == 0 && strcmp(t->kind, "param") != 0) {
            return true;
        }
    }
    return false;
}

static bool tells_frozen(const ds_checkpoint *c)
{
    for (size_t i = 0; i < ds_checkpoint_count(c); ++i) {
        if (strcmp(ds_checkpoint_at(c, i)->kind, "param") != 0) {
            return true;
        }
    }
    return false;
}

/* The tensor that holds a weight best: its fp32 master where there is one. */
static bool is_chosen(const ds_checkpoint *c, const ds_checkpoint_tensor *t)
{
    return is_weight(t) &&
           (strcmp(t->kind, "master") == 0 || ds_checkpoint_find(c, "master", t->name) == NULL);
}

static bool is_real(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16 ||
           dtype == DS_DTYPE_F64;
}

static bool stays_f32(const ds_checkpoint_tensor *t)
{
    const size_t n = strlen(t->name);
    const size_t end = strlen(DSI_CHOICE_BIAS);
    return t->meta.dtype == DS_DTYPE_F32 && n >= end &&
           strcmp(t->name + n - end, DSI_CHOICE_BIAS) == 0;
}

static ds_status choose(ds_ctx *ctx, ds_checkpoint *c, const ds_checkpoint_export_params *params,
                        source *sources, size_t *n_out, ds_checkpoint_export_info *info)
{
    size_t n = 0;
    say_compression(ctx, c);
    if (params->exclude_frozen && !tells_frozen(c)) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s holds neither master weights nor moments, so frozen parameters cannot "
                       "be told from others; export all of them",
                       ds_checkpoint_get_info(c)->path);
    }
    for (size_t i = 0; i < ds_checkpoint_count(c); ++i) {
        const ds_checkpoint_tensor *t = ds_checkpoint_at(c, i);
        if (!is_chosen(c, t) || (params->model_folder && dsi_is_dense(t->name))) {
            continue;
        }
        const uint64_t count = (uint64_t)ds_shape_count(t->meta.shape);
        const bool frozen = tells_frozen(c) && !is_trained(c, t->name);
        info->n_frozen += frozen;
        info->frozen_elements += frozen ? count : 0;
        if (frozen && params->exclude_frozen) {
            continue;
        }
        info->n_trained += !frozen;
        info->trained_elements += frozen ? 0 : count;
        sources[n++] =
            (source){c, t, is_real(t->meta.dtype) && !stays_f32(t) ? params->dtype : t->meta.dtype};
    }
    if (n == 0) {
        return ds_fail(ctx, DS_ERR_NOT_FOUND, "%s holds no weights to export",
                       ds_checkpoint_get_info(c)->path);
    }
    *n_out = n;
    return DS_OK;
}

static int compare_sources(const void *a, const void *b)
{
    return strcmp(((const source *)a)->tensor->name, ((const source *)b)->tensor->name);
}

static ds_tensor_source as_tensor(source *s)
{
    return (ds_tensor_source){.name = s->tensor->name,
                              .meta = {s->dtype, s->tensor->meta.shape},
                              .stored = s->dtype,
                              .fill = fill,
                              .user = s};
}

static ds_status write_weights(ds_ctx *ctx, const ds_checkpoint_export_params *params,
                               source *sources, size_t n)
{
    static const ds_text_pair format = {"format", "pt"};
    const ds_safetensors_params file = {.metadata = &format, .n_metadata = 1};
    ds_tensor_source *list = calloc(n, sizeof *list);
    if (list == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory exporting weights");
    }
    for (size_t i = 0; i < n; ++i) {
        list[i] = as_tensor(&sources[i]);
    }
    ds_status status = dsi_folder_make(ctx, params->folder);
    if (status == DS_OK) {
        status = dsi_write_parameters(ctx, params->folder, list, n, params->max_shard_bytes, &file);
    }
    free(list);
    return status;
}

static ds_status write_model(ds_ctx *ctx, const ds_checkpoint *c,
                             const ds_checkpoint_export_params *params, source *sources, size_t n)
{
    const char *config = ds_checkpoint_state(c, "model");
    const ds_hf_export_params folder = {.folder = params->folder,
                                        .config_json = config,
                                        .dtype = params->dtype,
                                        .max_shard_bytes = params->max_shard_bytes,
                                        .copy_from = params->copy_from};
    ds_hf_export *export = NULL;
    if (config == NULL) {
        return ds_fail(ctx, DS_ERR_NOT_FOUND,
                       "%s does not hold its model's config.json (the state 'model'); export the "
                       "weights alone",
                       ds_checkpoint_get_info(c)->path);
    }
    DS_TRY(ds_hf_export_begin(ctx, &folder, &export));
    for (size_t i = 0; i < n; ++i) {
        const ds_tensor_source tensor = as_tensor(&sources[i]);
        const ds_status status = ds_hf_export_add(export, &tensor);
        if (status < 0) {
            ds_hf_export_abort(&export);
            return status;
        }
    }
    return ds_hf_export_finish(&export);
}

ds_status ds_checkpoint_export(ds_checkpoint *c, const ds_checkpoint_export_params *given,
                               ds_checkpoint_export_info *info_out)
{
    DS_TRY(DSI_RESERVED_CHECK(dsi_ckpt_ctx(c), "ds_checkpoint_export_params", given));
    ds_ctx *ctx = dsi_ckpt_ctx(c);
    ds_checkpoint_export_params params = *given;
    ds_checkpoint_export_info info = {0};
    source *sources = calloc(ds_checkpoint_count(c) + 1, sizeof *sources);
    size_t n = 0;
    if (sources == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory exporting weights");
    }
    if (ds_checkpoint_state(c, "adapter") != NULL) {
        free(sources);
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s holds an adapter without its model; ds_train with --resume writes it as "
                       "PEFT's folder, ds_checkpoint merge adds that to the model",
                       ds_checkpoint_get_info(c)->path);
    }
    params.dtype = params.dtype != DS_DTYPE_NONE ? params.dtype : DS_DTYPE_F32;
    ds_status status = choose(ctx, c, &params, sources, &n, &info);
    if (status == DS_OK) {
        qsort(sources, n, sizeof *sources, compare_sources);
        status = params.model_folder ? write_model(ctx, c, &params, sources, n)
                                     : write_weights(ctx, &params, sources, n);
    }
    free(sources);
    if (status == DS_OK && info_out != NULL) {
        *info_out = info;
    }
    return status;
}

/* ---- one shard out of many ---- */

static ds_status add_all(ds_checkpoint *c, ds_checkpoint_writer *w, source *sources)
{
    for (size_t i = 0; i < ds_checkpoint_count(c); ++i) {
        const ds_checkpoint_tensor *t = ds_checkpoint_at(c, i);
        sources[i] = (source){c, t, t->meta.dtype};
        const ds_checkpoint_slice slice = {
            .kind = t->kind, .name = t->name, .meta = t->meta, .fill = fill, .user = &sources[i]};
        DS_TRY(ds_checkpoint_writer_add(w, &slice));
    }
    for (size_t i = 0; ds_checkpoint_state_name(c, i) != NULL; ++i) {
        const char *name = ds_checkpoint_state_name(c, i);
        DS_TRY(ds_checkpoint_writer_state(w, name, ds_checkpoint_state(c, name)));
    }
    return DS_OK;
}

ds_status ds_checkpoint_consolidate(ds_checkpoint *c, const char *dir)
{
    ds_ctx *ctx = dsi_ckpt_ctx(c);
    const ds_checkpoint_info *info = ds_checkpoint_get_info(c);
    const ds_checkpoint_params params = {.dir = dir,
                                         .tag = info->tag,
                                         .step = info->step,
                                         .samples = info->samples,
                                         .tokens = info->tokens,
                                         .optimizer = info->optimizer};
    source *sources = calloc(ds_checkpoint_count(c) + 1, sizeof *sources);
    ds_checkpoint_writer *w = NULL;
    ds_status status =
        sources != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s", dir);
    if (status == DS_OK) {
        status = ds_checkpoint_writer_create(ctx, &params, &w);
    }
    if (status == DS_OK) {
        status = add_all(c, w, sources);
    }
    if (status == DS_OK) {
        status = ds_checkpoint_writer_commit(&w);
    }
    ds_checkpoint_writer_abort(&w);
    free(sources);
    return status;
}
