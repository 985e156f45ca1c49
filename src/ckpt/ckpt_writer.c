/* SPDX-License-Identifier: Apache-2.0 */
/* Collecting what a checkpoint saves: slices and states. The commit is in ckpt_commit.c. */
#include "ckpt/ckpt_writer.h"
#include "ckpt/checkpoint_on.h"

#include "base/reserved.h"
#include "io/json_load.h"
#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define ARENA_BYTES ((size_t)1 << 30)

static ds_status no_memory(ds_ctx *ctx)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "out of memory saving a checkpoint");
}

void dsi_ckpt_writer_free(ds_checkpoint_writer **writer)
{
    ds_checkpoint_writer *w = *writer;
    dsi_file_abort(&w->shard);
    dsi_file_abort(&w->manifest);
    dsi_file_abort(&w->latest);
    if (w->leads && dsi_publish_end(w->ctx, &w->publish, &w->stage) < 0) {
        ds_log(w->ctx, DS_LOG_WARN,
               "checkpoint %s is saved, but the one that it replaced is not removed: %s",
               w->m.info.tag, ds_ctx_error(w->ctx));
    }
    dsi_safetensors_plan_destroy(&w->plan);
    dsi_ckpt_pieces_free(&w->reports);
    dsi_buf_free(&w->text);
    free(w->sources);
    free(w->report);
    dsi_ckpt_group_close(&w->group);
    dsi_arena_destroy(&w->m.arena);
    free(w->m.states);
    free(w->pending);
    free(w->folder);
    free(w->dir);
    free(w->keep_tag);
    free(w);
    *writer = NULL;
}

void ds_checkpoint_writer_abort(ds_checkpoint_writer **writer)
{
    ds_checkpoint_writer *w = writer != NULL ? *writer : NULL;
    if (w == NULL) {
        return;
    }
    if (w->group.comm != NULL) { /* the others learn it in their commit */
        char reason[1024];
        (void)snprintf(reason, sizeof reason, "%s", ds_ctx_error(w->ctx));
        (void)ds_fail(w->group.ctx, DS_ERR_INTERRUPTED, "gave up saving checkpoint %s: %s",
                      w->m.info.tag, reason);
        (void)dsi_ckpt_agree(&w->group, DS_ERR_INTERRUPTED);
    }
    dsi_ckpt_writer_free(writer);
}

static ds_status set_info(ds_checkpoint_writer *w, const ds_checkpoint_params *params)
{
    char tag[64];
    (void)snprintf(tag, sizeof tag, "global_step%llu", (unsigned long long)params->step);
    const char *name = params->tag != NULL ? params->tag : tag;
    if (!dsi_ckpt_is_tag(name)) {
        return ds_fail(w->ctx, DS_ERR_ARG,
                       "'%s' cannot be a checkpoint's tag: expected a plain name without a slash, "
                       "not beginning with a dot, of at most 200 bytes",
                       name);
    }
    if (params->step > INT64_MAX || params->samples > INT64_MAX || params->tokens > INT64_MAX) {
        return ds_fail(w->ctx, DS_ERR_ARG, "checkpoint %s: a counter is above 2^63-1", name);
    }
    w->m.info =
        (ds_checkpoint_info){.tag = dsi_arena_strdup(w->m.arena, name),
                             .step = params->step,
                             .samples = params->samples,
                             .tokens = params->tokens,
                             .optimizer = dsi_arena_strdup(
                                 w->m.arena, params->optimizer != NULL ? params->optimizer : ""),
                             .n_shards = 1};
    return w->m.info.tag != NULL && w->m.info.optimizer != NULL ? DS_OK : no_memory(w->ctx);
}

/* What all ranks must give alike. */
typedef struct claim {
    uint64_t step, samples, tokens, optimizer;
    char tag[256];
} claim;

static ds_status check_tags(ds_checkpoint_writer *w, const claim *all,
                            ds_checkpoint_tag_validation validation)
{
    for (uint32_t r = 1; r < w->group.size; ++r) {
        if (strcmp(all[r].tag, all[0].tag) == 0 || validation == DS_CHECKPOINT_TAG_IGNORE) {
            continue;
        }
        if (validation == DS_CHECKPOINT_TAG_FAIL) {
            return ds_fail(w->ctx, DS_ERR_PEER,
                           "the ranks save under different tags: rank 0 '%s', %s '%s'; give "
                           "all the same, or set checkpoint.tag_validation to \"Warn\"",
                           all[0].tag, dsi_comm_rank_name(w->group.comm, r).text, all[r].tag);
        }
        if (w->group.rank == 0) {
            ds_log(w->ctx, DS_LOG_WARN,
                   "the ranks save under different tags: rank 0 '%s', %s '%s'; rank 0's is "
                   "used (checkpoint.tag_validation)",
                   all[0].tag, dsi_comm_rank_name(w->group.comm, r).text, all[r].tag);
        }
        break;
    }
    return DS_OK;
}

static ds_status compare_claims(ds_checkpoint_writer *w, const claim *all,
                                ds_checkpoint_tag_validation validation)
{
    DS_TRY(check_tags(w, all, validation));
    for (uint32_t r = 1; r < w->group.size; ++r) {
        if (all[r].step != all[0].step || all[r].samples != all[0].samples ||
            all[r].tokens != all[0].tokens || all[r].optimizer != all[0].optimizer) {
            return ds_fail(w->ctx, DS_ERR_PEER,
                           "checkpoint %s: %s has done %llu steps on %llu samples, rank 0 "
                           "%llu steps on %llu samples, or their optimizers differ",
                           all[0].tag, dsi_comm_rank_name(w->group.comm, r).text,
                           (unsigned long long)all[r].step, (unsigned long long)all[r].samples,
                           (unsigned long long)all[0].step, (unsigned long long)all[0].samples);
        }
    }
    if (strcmp(w->m.info.tag, all[0].tag) != 0) {
        w->m.info.tag = dsi_arena_strdup(w->m.arena, all[0].tag);
    }
    return w->m.info.tag != NULL ? DS_OK : no_memory(w->ctx);
}

/* Agrees about the tag (rank 0's is used) and the counters. */
static ds_status agree_info(ds_checkpoint_writer *w, const ds_checkpoint_params *params)
{
    dsi_ckpt_group *g = &w->group;
    if (g->comm == NULL) {
        return DS_OK;
    }
    claim *all = calloc(g->size, sizeof *all);
    const ds_checkpoint_info *info = &w->m.info;
    ds_status status = dsi_ckpt_agree(g, all != NULL ? DS_OK : no_memory(w->ctx));
    if (status == DS_OK) {
        claim mine = {info->step, info->samples, info->tokens,
                      XXH3_64bits(info->optimizer, strlen(info->optimizer)), ""};
        (void)snprintf(mine.tag, sizeof mine.tag, "%s", info->tag);
        status = dsi_ckpt_gather(g, &mine, sizeof mine, all);
    }
    if (status == DS_OK) {
        status = dsi_ckpt_agree(g, compare_claims(w, all, params->tag_validation));
    }
    free(all);
    return status;
}

/* Local part of the creation. */
static ds_status prepare(ds_checkpoint_writer *w, const ds_checkpoint_params *params)
{
    w->keep_latest = params->keep_latest;
    w->keep_last = params->keep_last;
    w->dir = strdup(params->dir);
    w->keep_tag = params->keep_tag != NULL ? strdup(params->keep_tag) : NULL;
    if (w->dir == NULL || (w->keep_tag == NULL && params->keep_tag != NULL) ||
        dsi_arena_create(ARENA_BYTES, &w->m.arena) < 0) {
        return no_memory(w->ctx);
    }
    return set_info(w, params);
}

ds_status dsi_ckpt_writer_create(ds_ctx *ctx, const ds_checkpoint_params *params, dsi_comm *comm,
                                 ds_status before, ds_checkpoint_writer **writer_out)
{
    ds_checkpoint_writer *w = calloc(1, sizeof *w);
    if (w == NULL) {
        dsi_comm_abort(comm, "out of memory saving a checkpoint");
        return no_memory(ctx);
    }
    w->ctx = ctx;
    w->stage.lock = -1;
    ds_status status = DS_OK;
    DS_TRY_GOTO(status, dsi_ckpt_group_open(ctx, comm, &w->group), undo);
    (void)snprintf(w->group.what, sizeof w->group.what, "save of step %llu",
                   (unsigned long long)params->step);
    DS_TRY_GOTO(status, dsi_ckpt_agree(&w->group, before < 0 ? before : prepare(w, params)), undo);
    DS_TRY_GOTO(status, agree_info(w, params), undo);
    DS_TRY_GOTO(status, dsi_ckpt_places_make(w), undo);
    *writer_out = w;
    return DS_OK;

undo:
    dsi_ckpt_writer_free(&w);
    return status;
}

ds_status dsi_ckpt_writer_measure(ds_ctx *ctx, dsi_comm *comm, ds_checkpoint_writer **writer_out)
{
    const ds_checkpoint_params params = {.dir = "", .tag = "in memory"};
    ds_checkpoint_writer *w = calloc(1, sizeof *w);
    if (w == NULL) {
        dsi_comm_abort(comm, "out of memory measuring a checkpoint");
        return no_memory(ctx);
    }
    w->ctx = ctx;
    w->stage.lock = -1;
    ds_status status = DS_OK;
    DS_TRY_GOTO(status, dsi_ckpt_group_open(ctx, comm, &w->group), undo);
    (void)snprintf(w->group.what, sizeof w->group.what, "size of a checkpoint");
    DS_TRY_GOTO(status, dsi_ckpt_agree(&w->group, prepare(w, &params)), undo);
    *writer_out = w;
    return DS_OK;

undo:
    dsi_ckpt_writer_free(&w);
    return status;
}

ds_status dsi_checkpoint_writer_create_on(ds_ctx *ctx, const ds_checkpoint_params *params,
                                          dsi_comm *comm, ds_checkpoint_writer **writer_out)
{
    return dsi_ckpt_writer_create(ctx, params, comm, DS_OK, writer_out);
}

ds_status ds_checkpoint_writer_create(ds_ctx *ctx, const ds_checkpoint_params *params,
                                      ds_checkpoint_writer **writer_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_checkpoint_params", params));
    return dsi_ckpt_writer_create(ctx, params, NULL, DS_OK, writer_out);
}

static ds_status check_slice(const ds_checkpoint_writer *w, const ds_checkpoint_slice *slice,
                             const ds_extent *extent)
{
    char meta[128];
    if (slice->kind == NULL || slice->name == NULL || slice->name[0] == '\0' ||
        !dsi_ckpt_is_word(slice->kind)) {
        return ds_fail(w->ctx, DS_ERR_ARG, "checkpoint: '%s/%s' cannot be the name of a tensor",
                       slice->kind != NULL ? slice->kind : "",
                       slice->name != NULL ? slice->name : "");
    }
    if (slice->meta.dtype == DS_DTYPE_NONE || ds_meta_bytes(slice->meta) > SIZE_MAX / 4) {
        return ds_fail(w->ctx, DS_ERR_SHAPE, "checkpoint: tensor '%s/%s' cannot be stored: %s",
                       slice->kind, slice->name, ds_meta_text(slice->meta, meta, sizeof meta));
    }
    if (!dsi_extent_is_inside(extent, slice->meta.shape)) {
        return ds_fail(w->ctx, DS_ERR_SHAPE,
                       "checkpoint: a slice of tensor '%s/%s' lies outside of %s", slice->kind,
                       slice->name, ds_meta_text(slice->meta, meta, sizeof meta));
    }
    if (slice->replicated &&
        ds_extent_count(extent, slice->meta.shape) != ds_shape_count(slice->meta.shape)) {
        return ds_fail(w->ctx, DS_ERR_SHAPE,
                       "checkpoint: replicated tensor '%s/%s' must be given whole", slice->kind,
                       slice->name);
    }
    return DS_OK;
}

ds_status ds_checkpoint_writer_add(ds_checkpoint_writer *w, const ds_checkpoint_slice *slice)
{
    DS_TRY(DSI_RESERVED_CHECK(w->ctx, "ds_checkpoint_slice", slice));
    const ds_extent extent =
        slice->extent != NULL ? *slice->extent : ds_extent_whole(slice->meta.shape);
    DS_TRY(check_slice(w, slice, &extent));
    if (ds_extent_count(&extent, slice->meta.shape) == 0 && ds_shape_count(slice->meta.shape) > 0) {
        return DS_OK; /* a rank that owns nothing of the tensor */
    }
    if (w->n_pending == w->pending_capacity) {
        const size_t capacity = w->pending_capacity > 0 ? 2 * w->pending_capacity : 256;
        dsi_ckpt_pending *grown = realloc(w->pending, capacity * sizeof *grown);
        if (grown == NULL) {
            return no_memory(w->ctx);
        }
        w->pending = grown;
        w->pending_capacity = capacity;
    }
    dsi_ckpt_pending *p = &w->pending[w->n_pending];
    *p = (dsi_ckpt_pending){.tensor = {.kind = dsi_arena_strdup(w->m.arena, slice->kind),
                                       .name = dsi_arena_strdup(w->m.arena, slice->name),
                                       .meta = slice->meta},
                            .extent = extent,
                            .order = w->n_pending,
                            .data = slice->data,
                            .fill = slice->fill,
                            .user = slice->user,
                            .replicated = slice->replicated};
    if (p->tensor.kind == NULL || p->tensor.name == NULL) {
        return no_memory(w->ctx);
    }
    ++w->n_pending;
    return DS_OK;
}

/* The text as jansson writes it: one form, with all digits. NULL in *out_text when out of memory.
 */
static ds_status normalize_json(ds_checkpoint_writer *w, const char *section, const char *json,
                                char **text_out)
{
    char label[128];
    json_t *value = NULL;
    (void)snprintf(label, sizeof label, "checkpoint: JSON of state '%s'", section);
    DS_TRY(dsi_json_load(w->ctx, label, json, strlen(json), JSON_DECODE_ANY, DS_ERR_ARG, &value));
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    json_decref(value);
    *text_out = text != NULL ? dsi_arena_strdup(w->m.arena, text) : NULL;
    free(text);
    return *text_out != NULL ? DS_OK : no_memory(w->ctx);
}

ds_status dsi_ckpt_push_state(ds_checkpoint_writer *w, const char *key, const char *text)
{
    if (w->m.n_states == w->states_capacity) {
        const size_t capacity = w->states_capacity > 0 ? 2 * w->states_capacity : 16;
        ds_text_pair *grown = realloc(w->m.states, capacity * sizeof *grown);
        if (grown == NULL) {
            return no_memory(w->ctx);
        }
        w->m.states = grown;
        w->states_capacity = capacity;
    }
    w->m.states[w->m.n_states++] = (ds_text_pair){key, text};
    return DS_OK;
}

ds_status ds_checkpoint_writer_state(ds_checkpoint_writer *w, const char *section, const char *json)
{
    char *text = NULL;
    if (!dsi_ckpt_is_word(section)) {
        return ds_fail(w->ctx, DS_ERR_ARG, "checkpoint: '%s' cannot be the name of a state",
                       section);
    }
    for (size_t i = 0; i < w->m.n_states; ++i) {
        if (strcmp(w->m.states[i].key, section) == 0) {
            return ds_fail(w->ctx, DS_ERR_ARG, "checkpoint: state '%s' is given twice", section);
        }
    }
    DS_TRY(normalize_json(w, section, json, &text));
    const char *key = dsi_arena_strdup(w->m.arena, section);
    return key != NULL ? dsi_ckpt_push_state(w, key, text) : no_memory(w->ctx);
}
