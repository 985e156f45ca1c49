/* Saving a checkpoint: collect slices and states, then write, sync and rename in one commit. */
#include "ckpt/ckpt_internal.h"

#include "io/json_load.h"
#include "io/safetensors_write.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)1 << 30)

typedef struct pending {
    ds_checkpoint_tensor tensor;
    ds_extent extent;
    size_t order; /* of the call, keeps slices of one tensor in order */
    const void *data;
    ds_tensor_fill_fn fill;
    void *user;
} pending;

struct ds_checkpoint_writer {
    ds_ctx *ctx;
    char *dir;
    bool keep_latest;
    dsi_stage stage;
    dsi_ckpt_manifest m;
    pending *pending; /* from malloc; the rest of the lists is in the arena */
    size_t n_pending, pending_capacity, states_capacity;
};

static ds_status no_memory(ds_ctx *ctx)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "out of memory saving a checkpoint");
}

void ds_checkpoint_writer_abort(ds_checkpoint_writer **writer)
{
    ds_checkpoint_writer *w = writer != NULL ? *writer : NULL;
    if (w == NULL) {
        return;
    }
    dsi_folder_unstage(&w->stage);
    dsi_arena_destroy(&w->m.arena);
    free(w->m.states);
    free(w->pending);
    free(w->dir);
    free(w);
    *writer = NULL;
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

ds_status ds_checkpoint_writer_create(ds_ctx *ctx, const ds_checkpoint_params *params,
                                      ds_checkpoint_writer **writer_out)
{
    ds_checkpoint_writer *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return no_memory(ctx);
    }
    w->ctx = ctx;
    w->keep_latest = params->keep_latest;
    w->stage.lock = -1;
    w->dir = strdup(params->dir);
    ds_status status = DS_OK;
    if (w->dir == NULL || dsi_arena_create(ARENA_BYTES, &w->m.arena) < 0) {
        status = no_memory(ctx);
        goto undo;
    }
    DS_TRY_GOTO(status, set_info(w, params), undo);
    DS_TRY_GOTO(status, dsi_folder_make(ctx, w->dir), undo);
    dsi_folder_clean(w->dir, NULL);
    DS_TRY_GOTO(status, dsi_folder_stage(ctx, w->dir, w->m.info.tag, &w->stage), undo);
    *writer_out = w;
    return DS_OK;

undo:
    ds_checkpoint_writer_abort(&w);
    return status;
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
    return DS_OK;
}

ds_status ds_checkpoint_writer_add(ds_checkpoint_writer *w, const ds_checkpoint_slice *slice)
{
    const ds_extent extent =
        slice->extent != NULL ? *slice->extent : ds_extent_whole(slice->meta.shape);
    DS_TRY(check_slice(w, slice, &extent));
    if (w->n_pending == w->pending_capacity) {
        const size_t capacity = w->pending_capacity > 0 ? 2 * w->pending_capacity : 256;
        pending *grown = realloc(w->pending, capacity * sizeof *grown);
        if (grown == NULL) {
            return no_memory(w->ctx);
        }
        w->pending = grown;
        w->pending_capacity = capacity;
    }
    pending *p = &w->pending[w->n_pending];
    *p = (pending){.tensor = {.kind = dsi_arena_strdup(w->m.arena, slice->kind),
                              .name = dsi_arena_strdup(w->m.arena, slice->name),
                              .meta = slice->meta},
                   .extent = extent,
                   .order = w->n_pending,
                   .data = slice->data,
                   .fill = slice->fill,
                   .user = slice->user};
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
    if (w->m.n_states == w->states_capacity) {
        const size_t capacity = w->states_capacity > 0 ? 2 * w->states_capacity : 16;
        ds_text_pair *grown = realloc(w->m.states, capacity * sizeof *grown);
        if (grown == NULL) {
            return no_memory(w->ctx);
        }
        w->m.states = grown;
        w->states_capacity = capacity;
    }
    const char *key = dsi_arena_strdup(w->m.arena, section);
    if (key == NULL) {
        return no_memory(w->ctx);
    }
    w->m.states[w->m.n_states++] = (ds_text_pair){key, text};
    return DS_OK;
}

static int compare_pending(const void *a, const void *b)
{
    const pending *x = a;
    const pending *y = b;
    const int order = dsi_ckpt_compare_tensors(&x->tensor, &y->tensor);
    return order != 0 ? order : (x->order > y->order) - (x->order < y->order);
}

/* One logical tensor of pending slices [first, first + n): all alike, and covering it. */
static ds_status check_tensor(const ds_checkpoint_writer *w, size_t first, size_t n)
{
    const ds_checkpoint_tensor *t = &w->pending[first].tensor;
    ds_extent *extents = calloc(n, sizeof *extents);
    if (extents == NULL) {
        return no_memory(w->ctx);
    }
    bool alike = true;
    bool gap = false;
    for (size_t i = 0; i < n; ++i) {
        const pending *p = &w->pending[first + i];
        extents[i] = p->extent;
        alike = alike && p->tensor.meta.dtype == t->meta.dtype &&
                ds_shape_equal(p->tensor.meta.shape, t->meta.shape);
    }
    const bool covered = alike && dsi_extent_cover(extents, n, t->meta.shape, &gap);
    free(extents);
    if (!alike) {
        return ds_fail(w->ctx, DS_ERR_SHAPE,
                       "checkpoint: tensor '%s/%s' is given with different shapes or dtypes",
                       t->kind, t->name);
    }
    if (!covered) {
        return ds_fail(w->ctx, DS_ERR_SHAPE,
                       gap ? "checkpoint: the slices of tensor '%s/%s' do not cover it"
                           : "checkpoint: tensor '%s/%s' has elements that are given twice",
                       t->kind, t->name);
    }
    return DS_OK;
}

/* Fills the manifest's tensors and slices from the sorted pending ones. */
static ds_status collect_tensors(ds_checkpoint_writer *w)
{
    dsi_ckpt_manifest *m = &w->m;
    if (w->n_pending > 0) {
        qsort(w->pending, w->n_pending, sizeof *w->pending, compare_pending);
    }
    m->tensors = dsi_arena_array(m->arena, w->n_pending + 1, sizeof *m->tensors);
    m->slices = dsi_arena_array(m->arena, w->n_pending + 1, sizeof *m->slices);
    if (m->tensors == NULL || m->slices == NULL) {
        return no_memory(w->ctx);
    }
    size_t n = 0;
    for (size_t first = 0; first < w->n_pending; first += n) {
        const pending *p = &w->pending[first];
        for (n = 1; first + n < w->n_pending &&
                    dsi_ckpt_compare_tensors(&p->tensor, &w->pending[first + n].tensor) == 0;) {
            ++n;
        }
        DS_TRY(check_tensor(w, first, n));
        ds_checkpoint_tensor *t = &m->tensors[m->n_tensors++];
        *t = p->tensor;
        t->first_slice = (uint32_t)first;
        t->n_slices = (uint32_t)n;
        for (uint32_t k = 0; k < n; ++k) {
            dsi_ckpt_slice *slice = &m->slices[m->n_slices++];
            slice->extent = p[k].extent;
            slice->entry = dsi_ckpt_entry_name(m->arena, t->kind, t->name, k, t->n_slices);
            if (slice->entry == NULL) {
                return no_memory(w->ctx);
            }
        }
    }
    return DS_OK;
}

static ds_status write_shard_file(ds_checkpoint_writer *w, const char *path,
                                  const ds_tensor_source *sources, uint64_t *digests,
                                  dsi_ckpt_shard *shard)
{
    static const ds_text_pair format = {"format", "pt"};
    const ds_safetensors_params params = {.metadata = &format, .n_metadata = 1};
    dsi_file_out *file = NULL;
    DS_TRY(dsi_file_create(w->ctx, path, &file));
    const ds_status status =
        dsi_safetensors_stream(w->ctx, file, path, sources, w->n_pending, &params, digests);
    if (status < 0) {
        dsi_file_abort(&file);
        return status;
    }
    shard->bytes = dsi_file_size(file);
    shard->digest = dsi_file_digest(file);
    return dsi_file_commit(&file);
}

static ds_status write_shard(ds_checkpoint_writer *w)
{
    dsi_ckpt_manifest *m = &w->m;
    const size_t n = w->n_pending;
    ds_tensor_source *sources = calloc(n + 1, sizeof *sources);
    uint64_t *digests = calloc(n + 1, sizeof *digests);
    m->n_shards = 1;
    m->shards = dsi_arena_array(m->arena, 1, sizeof *m->shards);
    char *path = dsi_path_join(w->stage.path, "ds_shard_00000_of_00001.safetensors");
    ds_status status = DS_OK;
    if (sources == NULL || digests == NULL || m->shards == NULL || path == NULL) {
        status = no_memory(w->ctx);
    }
    for (size_t i = 0; i < n && status == DS_OK; ++i) {
        const pending *p = &w->pending[i];
        sources[i] = (ds_tensor_source){
            .name = m->slices[i].entry,
            .meta = {p->tensor.meta.dtype, dsi_ckpt_entry_shape(&p->extent, p->tensor.meta.shape)},
            .data = p->data,
            .fill = p->fill,
            .user = p->user};
    }
    if (status == DS_OK) {
        m->shards[0].file = "ds_shard_00000_of_00001.safetensors";
        status = write_shard_file(w, path, sources, digests, &m->shards[0]);
    }
    for (size_t i = 0; i < n && status == DS_OK; ++i) {
        m->slices[i].digest = digests[i];
    }
    free(path);
    free(digests);
    free(sources);
    return status;
}

static ds_status write_manifest(ds_checkpoint_writer *w)
{
    dsi_buf text = dsi_buf_make(DSI_CKPT_MANIFEST_BYTES);
    dsi_file_out *file = NULL;
    char *path = dsi_path_join(w->stage.path, DSI_CKPT_MANIFEST);
    ds_status status = path != NULL ? DS_OK : no_memory(w->ctx);
    if (status == DS_OK) {
        status = dsi_ckpt_manifest_text(w->ctx, &w->m, &text);
    }
    if (status == DS_OK) {
        status = dsi_file_create(w->ctx, path, &file);
    }
    if (status == DS_OK) {
        status = dsi_file_write(file, text.data, text.size);
    }
    if (status == DS_OK) {
        status = dsi_file_commit(&file);
    }
    dsi_file_abort(&file);
    free(path);
    dsi_buf_free(&text);
    return status;
}

static ds_status move_latest(ds_checkpoint_writer *w)
{
    char *path = dsi_path_join(w->dir, DSI_CKPT_LATEST);
    if (path == NULL) {
        return no_memory(w->ctx);
    }
    const ds_status status = dsi_file_replace(w->ctx, path, w->m.info.tag, strlen(w->m.info.tag));
    free(path);
    return status;
}

ds_status dsi_ckpt_commit(ds_checkpoint_writer **writer, bool allow_exchange)
{
    ds_checkpoint_writer *w = *writer;
    ds_status status = DS_OK;
    DS_TRY_GOTO(status, collect_tensors(w), done);
    DS_TRY_GOTO(status, write_shard(w), done);
    DS_TRY_GOTO(status, write_manifest(w), done);
    DS_TRY_GOTO(status,
                dsi_folder_publish(w->ctx, &w->stage, w->dir, w->m.info.tag, allow_exchange), done);
    if (!w->keep_latest) {
        DS_TRY_GOTO(status, move_latest(w), done);
    }
done:
    ds_checkpoint_writer_abort(writer);
    return status;
}

ds_status ds_checkpoint_writer_commit(ds_checkpoint_writer **writer)
{
    return dsi_ckpt_commit(writer, true);
}
