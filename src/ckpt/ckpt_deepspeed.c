/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the files of a folder of DeepSpeed for Python and fills the manifest. See ckpt_deepspeed.h.
 *
 *     [bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt   rank R's partition
 *     mp_rank_00_model_states.pt                         names, shapes, counters (stages 1 and 2)
 *     zero_pp_rank_R_mp_rank_00_model_states.pt          the same at stage 3, by rank
 */
#include "ckpt/ckpt_deepspeed.h"

#include "ckpt/ckpt_foreign.h"
#include "io/safetensors_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { NAME_BYTES = 96, MOST_RANKS = 65536, MOST_MODEL = 1024 };

bool dsi_ckpt_deepspeed_is(const char *folder)
{
    int n_model = 0;
    bool pipeline = false;
    bool experts = false;
    return dsi_ckpt_foreign_zero_ranks(folder, &n_model, &pipeline, &experts) > 0 ||
           dsi_ckpt_foreign_universal(folder) > 0;
}

/* ---- files ---- */

/* The first of the forms of the file of ranks a and b that is there; its path, from malloc. */
static char *find_file(const dsi_deepspeed *d, const char *const *forms, uint32_t a, uint32_t b)
{
    char name[NAME_BYTES];
    for (; *forms != NULL; ++forms) {
        (void)snprintf(name, sizeof name, *forms, a, b); /* NOLINT: the forms below */
        char *path = dsi_path_join(d->folder, name);
        if (path == NULL || access(path, F_OK) == 0) {
            return path;
        }
        free(path);
    }
    return NULL;
}

static ds_status open_file(dsi_deepspeed *d, const char *const *forms, uint32_t a, uint32_t b,
                           dsi_torch_file *file)
{
    char name[NAME_BYTES];
    char *path = find_file(d, forms, a, b);
    if (path == NULL) {
        (void)snprintf(name, sizeof name, forms[0], a, b); /* NOLINT: the forms below */
        return ds_fail(d->ctx, DS_ERR_NOT_FOUND, "%s lacks %s, and has files of %u ranks",
                       d->folder, name, d->n_ranks);
    }
    const ds_status status = dsi_torch_open(d->ctx, path, DSI_MAP_NO_LINK, file);
    free(path);
    return status;
}

static ds_status open_optims(dsi_deepspeed *d, uint32_t mp)
{
    static const char *const forms[] = {"zero_pp_rank_%u_mp_rank_%02u_optim_states.pt",
                                        "bf16_zero_pp_rank_%u_mp_rank_%02u_optim_states.pt",
                                        "zero_pp_rank_%u_mp_rank_%02uoptim_states.pt", NULL};
    for (uint32_t r = 0; r < d->n_ranks; ++r) {
        DS_TRY(open_file(d, forms, r, mp, &d->optims[r]));
        d->states[r] = dsi_pickle_get(d->optims[r].root, "optimizer_state_dict");
        if (!dsi_pickle_is(d->states[r], DSI_PICKLE_DICT)) {
            return ds_fail(d->ctx, DS_ERR_FORMAT, "%s has no dict optimizer_state_dict",
                           d->optims[r].path);
        }
    }
    return DS_OK;
}

static ds_status read_stage(dsi_deepspeed *d)
{
    const dsi_pickle *stage = dsi_pickle_get(d->states[0], "zero_stage");
    if (stage != NULL && (!dsi_pickle_whole(stage, &d->stage) || d->stage < 1 || d->stage > 3)) {
        return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: zero_stage is not 1, 2 or 3", d->optims[0].path);
    }
    for (uint32_t r = 0; r < d->n_ranks; ++r) {
        const dsi_pickle *count = dsi_pickle_get(d->states[r], "partition_count");
        const dsi_pickle *own = dsi_pickle_get(d->states[r], "zero_stage");
        int64_t n = 0;
        int64_t of = 0;
        count = dsi_pickle_is(count, DSI_PICKLE_LIST) ? dsi_pickle_at(count, 0) : count;
        if (!dsi_pickle_whole(count, &n) || n != (int64_t)d->n_ranks) {
            return ds_fail(d->ctx, DS_ERR_FORMAT,
                           "%s: partition_count says %lld ranks, the folder has files of %u; are "
                           "they of one save?",
                           d->optims[r].path, (long long)n, d->n_ranks);
        }
        if ((own != NULL) != (stage != NULL) ||
            (own != NULL && (!dsi_pickle_whole(own, &of) || of != d->stage))) {
            return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: zero_stage is not that of rank 0",
                           d->optims[r].path);
        }
    }
    return DS_OK;
}

/* A file of as many ranks as the optimizer's; of stage 3 they may be those of a group (MiCS). */
static ds_status check_ranks(const dsi_deepspeed *d, const dsi_torch_file *file)
{
    const dsi_pickle *count = dsi_pickle_get(file->root, "dp_world_size");
    int64_t n = 0;
    return d->stage == 3 || count == NULL ||
                   (dsi_pickle_whole(count, &n) && n == (int64_t)d->n_ranks)
               ? DS_OK
               : ds_fail(d->ctx, DS_ERR_FORMAT,
                         "%s: dp_world_size says %lld ranks, the folder has files of %u; are they "
                         "of one save?",
                         file->path, (long long)n, d->n_ranks);
}

static ds_status open_models(dsi_deepspeed *d, uint32_t mp)
{
    static const char *const whole[] = {"mp_rank_%02u_model_states.pt", NULL};
    static const char *const parts[] = {"zero_pp_rank_%u_mp_rank_%02u_model_states.pt", NULL};
    const uint32_t n = d->stage == 3 ? d->n_ranks : 1;
    for (; d->n_models < n; ++d->n_models) {
        dsi_torch_file *file = &d->models[d->n_models];
        DS_TRY(d->stage == 3 ? open_file(d, parts, d->n_models, mp, file)
                             : open_file(d, whole, mp, 0, file));
        DS_TRY(check_ranks(d, file));
    }
    return DS_OK;
}

/* ---- tensors ---- */

static ds_status no_memory(const dsi_deepspeed *d)
{
    return ds_fail(d->ctx, DS_ERR_NOMEM, "no memory to read %s", d->folder);
}

/* Room for one more in an array of the arena. */
static void *grown(dsi_deepspeed *d, void *old, size_t n, size_t *room, size_t size)
{
    if (n < *room) {
        return old;
    }
    const size_t wanted = *room > 0 ? 2 * *room : 64;
    void *array = dsi_arena_array(d->m->arena, wanted, size);
    if (array != NULL && n > 0) {
        memcpy(array, old, n * size);
    }
    *room = array != NULL ? wanted : *room;
    return array;
}

bool dsi_deepspeed_dims(const dsi_pickle *dims, ds_shape *shape_out)
{
    const size_t n = dsi_pickle_count(dims);
    *shape_out = (ds_shape){.n_dims = (uint32_t)n};
    if (n > DS_MAX_DIMS || dsi_pickle_is(dims, DSI_PICKLE_DICT)) {
        return false;
    }
    for (size_t i = 0; i < n; ++i) {
        if (!dsi_pickle_whole(dsi_pickle_at(dims, i), &shape_out->dims[i]) ||
            shape_out->dims[i] < 0) {
            return false;
        }
    }
    const int64_t count = ds_shape_count(*shape_out);
    return dsi_pickle_is(dims, DSI_PICKLE_TUPLE) && count < INT64_C(1) << 56;
}

int64_t dsi_deepspeed_count(const dsi_pickle *dims)
{
    ds_shape shape;
    return dsi_deepspeed_dims(dims, &shape) ? ds_shape_count(shape) : -1;
}

ds_status dsi_deepspeed_tensor(dsi_deepspeed *d, const char *kind, const char *name, ds_dtype dtype,
                               const dsi_pickle *dims)
{
    ds_meta meta = {dtype, {0}};
    return dsi_deepspeed_dims(dims, &meta.shape)
               ? dsi_deepspeed_tensor_of(d, kind, name, meta)
               : ds_fail(d->ctx, DS_ERR_FORMAT, "%s: the shape of %.120s is none",
                         d->models[0].path, name);
}

ds_status dsi_deepspeed_tensor_of(dsi_deepspeed *d, const char *kind, const char *name,
                                  ds_meta meta)
{
    dsi_ckpt_manifest *m = d->m;
    ds_checkpoint_tensor *tensors =
        grown(d, m->tensors, m->n_tensors, &d->room_tensors, sizeof *tensors);
    char *copy = dsi_arena_strdup(m->arena, name);
    if (tensors == NULL || copy == NULL) {
        return no_memory(d);
    }
    m->tensors = tensors;
    tensors[m->n_tensors++] = (ds_checkpoint_tensor){
        .kind = kind, .name = copy, .meta = meta, .first_slice = (uint32_t)m->n_slices};
    return DS_OK;
}

ds_status dsi_deepspeed_slice(dsi_deepspeed *d, uint32_t shard, int64_t begin, int64_t count,
                              const uint8_t *data)
{
    const ds_extent extent = ds_extent_flat(begin, count);
    return dsi_deepspeed_part(d, d->first_shard + shard, &extent, data);
}

ds_status dsi_deepspeed_part(dsi_deepspeed *d, uint32_t shard, const ds_extent *extent,
                             const uint8_t *data)
{
    dsi_ckpt_manifest *m = d->m;
    ds_checkpoint_tensor *t = &m->tensors[m->n_tensors - 1];
    dsi_ckpt_slice *slices = grown(d, m->slices, m->n_slices, &d->room_slices, sizeof *slices);
    ds_safetensor *stored = dsi_arena_alloc(m->arena, sizeof *stored);
    if (slices == NULL || stored == NULL || m->n_slices >= UINT32_MAX) {
        return no_memory(d);
    }
    *stored = (ds_safetensor){.name = t->name,
                              .meta = {t->meta.dtype, dsi_ckpt_entry_shape(extent, t->meta.shape)},
                              .data = data,
                              .path = m->shards[shard].file};
    stored->bytes = ds_meta_bytes(stored->meta);
    m->slices = slices;
    slices[m->n_slices++] = (dsi_ckpt_slice){
        .shard = shard, .entry = t->name, .extent = *extent, .stored = stored, .verified = true};
    ++t->n_slices;
    return DS_OK;
}

ds_status dsi_deepspeed_end_tensor(dsi_deepspeed *d)
{
    const dsi_ckpt_manifest *m = d->m;
    const ds_checkpoint_tensor *t = &m->tensors[m->n_tensors - 1];
    int64_t count = 0;
    for (uint32_t k = 0; k < t->n_slices; ++k) {
        count += ds_extent_count(&m->slices[t->first_slice + k].extent, t->meta.shape);
    }
    return count == ds_shape_count(t->meta.shape)
               ? DS_OK
               : ds_fail(d->ctx, DS_ERR_FORMAT,
                         "%s: the ranks' partitions have %lld of the %lld elements of %s of %s",
                         d->folder, (long long)count, (long long)ds_shape_count(t->meta.shape),
                         t->kind, t->name);
}

/* Frozen parameters: whole in the one model file, or a partition in each rank's. */
static ds_status add_frozen(dsi_deepspeed *d)
{
    const dsi_pickle *shapes = dsi_pickle_get(d->models[0].root, "frozen_param_shapes");
    const size_t n = dsi_pickle_is(shapes, DSI_PICKLE_DICT) ? dsi_pickle_count(shapes) : 0;
    const uint32_t n_model = d->universal ? d->n_models : d->n_model;
    for (uint32_t mp = 0; mp < n_model && (n_model > 1 || d->pipeline); ++mp) {
        const dsi_torch_file *file = &d->models[d->universal ? mp : (size_t)mp * d->n_models];
        if (dsi_pickle_count(dsi_pickle_get(file->root, "frozen_param_shapes")) > 0) {
            return ds_fail(d->ctx, DS_ERR_UNSUPPORTED,
                           "%s has frozen parameters, which are not read together with ranks or "
                           "stages that share the model",
                           file->path);
        }
    }
    for (size_t i = 0; i < n; ++i) {
        const char *name = dsi_pickle_text(shapes->list.items[2 * i]);
        const dsi_pickle *dims = shapes->list.items[2 * i + 1];
        int64_t left = dsi_deepspeed_count(dims);
        int64_t at = 0;
        for (uint32_t r = 0; r < d->n_models; ++r) {
            const dsi_pickle *fragments =
                dsi_pickle_get(d->models[r].root, "frozen_param_fragments");
            const dsi_pickle *value = name != NULL ? dsi_pickle_get(fragments, name) : NULL;
            const dsi_pickle_tensor *t =
                dsi_pickle_is(value, DSI_PICKLE_TENSOR) ? value->tensor : NULL;
            const uint8_t *data = t != NULL ? dsi_pickle_dense(t) : NULL;
            if (data == NULL || dsi_pickle_dtype(t) == DS_DTYPE_NONE) {
                return ds_fail(d->ctx, DS_ERR_FORMAT,
                               "%s: frozen_param_fragments has no values of '%.120s'",
                               d->models[r].path, name != NULL ? name : "?");
            }
            const int64_t has = ds_shape_count(t->shape);
            if (r == 0) {
                DS_TRY(dsi_deepspeed_tensor(d, "param", name, dsi_pickle_dtype(t), dims));
            }
            if (dsi_pickle_dtype(t) != d->m->tensors[d->m->n_tensors - 1].meta.dtype) {
                return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: '%.120s' has another dtype than in %s",
                               d->models[r].path, name, d->models[0].path);
            }
            const int64_t own = has < left ? has : left; /* the rest is padding */
            if (own > 0) {
                DS_TRY(dsi_deepspeed_slice(d, d->n_ranks + r, at, own, data));
            }
            at += own;
            left -= own;
        }
        DS_TRY(dsi_deepspeed_end_tensor(d));
    }
    return DS_OK;
}

/* ---- shards ---- */

ds_status dsi_deepspeed_shard(dsi_deepspeed *d, const dsi_torch_file *file, const char *prefix)
{
    dsi_ckpt_shard *shard = &d->m->shards[d->m->n_shards];
    const char *name = dsi_path_name(file->path);
    char *below = prefix != NULL ? dsi_path_join(prefix, name) : NULL;
    shard->file = dsi_arena_strdup(d->m->arena, below != NULL ? below : name);
    free(below);
    shard->bytes = file->map.size;
    d->m->info.bytes += shard->bytes;
    ++d->m->n_shards;
    return shard->file != NULL ? DS_OK : no_memory(d);
}

/* Every host must see the same files: the names, sizes and values that are read at once. */
static uint64_t digest_of(const dsi_deepspeed *d)
{
    uint64_t digest = (uint64_t)d->n_ranks << 8 | (uint64_t)d->stage;
    for (size_t i = 0; i < d->m->n_shards; ++i) {
        const dsi_ckpt_shard *shard = &d->m->shards[i];
        digest = XXH3_64bits_withSeed(shard->file, strlen(shard->file), digest);
        digest = XXH3_64bits_withSeed(&shard->bytes, sizeof shard->bytes, digest);
    }
    for (size_t i = 0; i < d->m->n_tensors; ++i) { /* by parameter_names.txt, too */
        const char *name = d->m->tensors[i].name;
        digest = XXH3_64bits_withSeed(name, strlen(name), digest);
    }
    for (size_t i = 0; i < d->m->n_states; ++i) {
        const char *text = d->m->states[i].value;
        digest = XXH3_64bits_withSeed(text, strlen(text), digest);
    }
    return digest;
}

ds_status dsi_deepspeed_own_map(dsi_deepspeed *d, dsi_ckpt_shard *shard, dsi_torch_file *file)
{
    DS_TRY(dsi_safetensors_create(d->ctx, 1, &shard->st));
    shard->st->files[0].map = dsi_torch_take_map(file);
    shard->st->n_files = 1;
    return DS_OK;
}

/* The maps outlive the values that were read from them. */
static ds_status own_maps(dsi_deepspeed *d)
{
    const uint32_t n_optims = d->n_ranks * d->n_model;
    for (uint32_t r = 0; r < n_optims; ++r) {
        DS_TRY(dsi_deepspeed_own_map(d, &d->m->shards[r], &d->optims[r]));
    }
    for (uint32_t r = 0; r < d->n_models * d->n_model; ++r) {
        DS_TRY(dsi_deepspeed_own_map(d, &d->m->shards[n_optims + r], &d->models[r]));
    }
    return DS_OK;
}

/* Order, and what all folders have. */
static ds_status finish(dsi_deepspeed *d)
{
    DS_TRY(add_frozen(d));
    DS_TRY(dsi_deepspeed_states(d));
    DS_TRY(dsi_deepspeed_names(d));
    DS_TRY(d->experts ? dsi_deepspeed_stack(d) : DS_OK);
    qsort(d->m->tensors, d->m->n_tensors, sizeof *d->m->tensors, dsi_ckpt_compare_tensors);
    for (size_t i = 1; i < d->m->n_tensors; ++i) {
        if (dsi_ckpt_compare_tensors(&d->m->tensors[i - 1], &d->m->tensors[i]) == 0) {
            return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: %s of %s is there twice", d->folder,
                           d->m->tensors[i].kind, d->m->tensors[i].name);
        }
    }
    d->m->digest = digest_of(d);
    d->m->info.n_shards = (uint32_t)d->m->n_shards;
    return own_maps(d);
}

/* Shards: the ranks' files, the models', then n more. */
static ds_status make_shards(dsi_deepspeed *d, size_t n)
{
    const uint32_t n_optims = d->n_ranks * d->n_model;
    const uint32_t n_models = d->n_models * d->n_model;
    d->m->shards = dsi_arena_array(d->m->arena, n_optims + n_models + n, sizeof *d->m->shards);
    if (d->m->shards == NULL) {
        return no_memory(d);
    }
    for (uint32_t r = 0; r < n_optims; ++r) {
        DS_TRY(dsi_deepspeed_shard(d, &d->optims[r], NULL));
    }
    for (uint32_t r = 0; r < n_models; ++r) {
        DS_TRY(dsi_deepspeed_shard(d, &d->models[r], NULL));
    }
    return DS_OK;
}

/* What looks at the files of one model-parallel rank. */
static dsi_deepspeed of_model_rank(const dsi_deepspeed *d, uint32_t mp)
{
    dsi_deepspeed one = *d;
    one.first_shard = mp * d->n_ranks;
    one.optims += one.first_shard;
    one.states += one.first_shard;
    one.models += (size_t)mp * d->n_models;
    return one;
}

static ds_status open_ranks(dsi_deepspeed *d)
{
    for (uint32_t mp = 0; mp < d->n_model; ++mp) {
        dsi_deepspeed one = of_model_rank(d, mp);
        DS_TRY(open_optims(&one, mp));
        DS_TRY(read_stage(&one));
        if (mp > 0 && one.stage != d->stage) {
            return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: zero_stage is not that of rank 0",
                           one.optims[0].path);
        }
        one.models = d->models + (size_t)mp * (one.stage == 3 ? d->n_ranks : 1);
        one.n_models = 0;
        DS_TRY(open_models(&one, mp));
        d->stage = one.stage;
        d->n_models = one.n_models;
    }
    return DS_OK;
}

static ds_status read_ranks(dsi_deepspeed *d)
{
    DS_TRY(open_ranks(d));
    DS_TRY(make_shards(d, 0));
    for (uint32_t mp = 0; mp < d->n_model; ++mp) {
        dsi_deepspeed one = of_model_rank(d, mp);
        const size_t first = d->m->n_tensors;
        DS_TRY(d->stage == 3 ? dsi_deepspeed_zero3(&one) : dsi_deepspeed_flat(&one));
        d->room_tensors = one.room_tensors;
        d->room_slices = one.room_slices;
        DS_TRY(d->pipeline ? dsi_deepspeed_drop_tied(d, first) : DS_OK);
    }
    DS_TRY(d->pipeline      ? dsi_deepspeed_check_stages(d)
           : d->n_model > 1 ? dsi_deepspeed_join(d)
                            : DS_OK);
    return finish(d);
}

static ds_status read_universal(dsi_deepspeed *d, uint32_t n_files)
{
    static const char *const optimizer[] = {"zero/optimizer_state.pt", NULL};
    static const char *const models[] = {"mp_rank_%02u_model_states.pt",
                                         "zero_pp_rank_0_mp_rank_%02u_model_states.pt", NULL};
    char **names = NULL;
    size_t n = 0;
    DS_TRY(open_file(d, optimizer, 0, 0, &d->optims[0]));
    const dsi_pickle *inner = dsi_pickle_get(d->optims[0].root, "optimizer_state_dict");
    const bool whole = dsi_pickle_get(inner, "zero_stage") != NULL; /* of stage 3 */
    d->states[0] = whole ? inner : d->optims[0].root;
    (void)dsi_pickle_whole(dsi_pickle_get(d->states[0], "zero_stage"), &d->stage);
    DS_TRY(open_file(d, models, 0, 0, &d->models[0]));
    for (d->n_models = 1; d->n_models < n_files; ++d->n_models) { /* of stages, of
                                                            ranks that share layers */
        DS_TRY(open_file(d, models, d->n_models, 0, &d->models[d->n_models]));
    }
    char *zero = dsi_path_join(d->folder, "zero");
    ds_status status = zero != NULL ? dsi_folder_list(d->ctx, zero, &names, &n) : no_memory(d);
    free(zero);
    if (status >= 0) {
        status = make_shards(d, 3 * n);
    }
    if (status >= 0) {
        status = dsi_deepspeed_universal(d, names, n);
    }
    dsi_names_free(names, n);
    DS_TRY(status);
    return finish(d);
}

ds_status dsi_ckpt_deepspeed_read(ds_ctx *ctx, const char *folder, const char *tag,
                                  dsi_ckpt_manifest *m)
{
    const int n_universal = dsi_ckpt_foreign_universal(folder);
    int n_model = 1;
    bool pipeline = false;
    bool experts = false;
    const int n = n_universal > 0
                      ? n_universal
                      : dsi_ckpt_foreign_zero_ranks(folder, &n_model, &pipeline, &experts);
    if (n <= 0 || n > MOST_RANKS || n_model > MOST_MODEL) {
        return ds_fail(ctx, DS_ERR_LIMIT, "%s has files of more than %d ranks", folder, MOST_RANKS);
    }
    const size_t n_files = (size_t)n * (size_t)n_model;
    dsi_deepspeed d = {.ctx = ctx,
                       .folder = folder,
                       .m = m,
                       .n_ranks = n_universal > 0 ? 1 : (uint32_t)n,
                       .n_model = (uint32_t)n_model,
                       .pipeline = pipeline,
                       .universal = n_universal > 0,
                       .experts = experts,
                       .steps = -1.0};
    d.optims = calloc(n_files, sizeof *d.optims);
    d.models = calloc(n_files, sizeof *d.models);
    d.states = calloc(n_files, sizeof *d.states);
    m->foreign = true;
    m->info.tag = dsi_arena_strdup(m->arena, tag);
    const bool right =
        d.optims != NULL && d.models != NULL && d.states != NULL && m->info.tag != NULL;
    const ds_status status = !right            ? no_memory(&d)
                             : n_universal > 0 ? read_universal(&d, (uint32_t)n_universal)
                                               : read_ranks(&d);
    for (size_t r = 0; r < n_files && d.optims != NULL && d.models != NULL; ++r) {
        dsi_torch_close(&d.optims[r]);
        dsi_torch_close(&d.models[r]);
    }
    free(d.optims);
    free(d.models);
    free((void *)d.states);
    return status;
}
