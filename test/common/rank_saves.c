/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of N ranks for tests. See rank_saves.h. */
#include "common/rank_saves.h"

#include "base/arena.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct tensor {
    const char *kind, *name;
    ds_dtype dtype;
    uint32_t n_dims;
    int64_t dims[3];
    enum { CUT, REPLICATED, RANK_0 } how;
} tensor;

/* Sizes that leave padding, ranks without a slice, and none at all. */
static const tensor tensors[] = {
    {"master", "h.0.w", DS_DTYPE_F32, 2, {33, 17}, CUT},
    {"exp_avg", "h.0.w", DS_DTYPE_F32, 2, {33, 17}, CUT},
    {"exp_avg_sq", "h.0.w", DS_DTYPE_BF16, 2, {33, 17}, CUT},
    {"master", "h.0.b", DS_DTYPE_F32, 1, {5}, CUT},
    {"master", "one", DS_DTYPE_F32, 1, {1}, CUT},
    {"master", "none", DS_DTYPE_F32, 1, {0}, CUT},
    {"param", "scalar", DS_DTYPE_F32, 0, {0}, REPLICATED},
    {"param", "wte", DS_DTYPE_BF16, 2, {1001, 24}, REPLICATED},
    {"param", "wpe", DS_DTYPE_F32, 3, {3, 100, 24}, REPLICATED},
    {"param", "empty", DS_DTYPE_F32, 1, {0}, REPLICATED},
    {"momentum", "lonely", DS_DTYPE_F64, 1, {77}, RANK_0},
};
enum { N_TENSORS = sizeof tensors / sizeof tensors[0] };

static ds_meta meta_of(const tensor *t, int64_t scale)
{
    ds_meta meta = {t->dtype, ds_shape_of(t->n_dims, t->dims)};
    if (t->n_dims > 0 && scale > 1) {
        meta.shape.dims[0] *= scale;
    }
    return meta;
}

/* Byte i of a tensor. */
static void pattern(uint64_t step, size_t tensor_index, size_t from, uint8_t *out, size_t n)
{
    const uint64_t seed = (step + 1) * 0x9E3779B97F4A7C15u + tensor_index * 0xD1B54A32D192ED03u;
    for (size_t i = 0; i < n; ++i) {
        uint64_t x = seed + (from + i) / 8 * 0xBF58476D1CE4E5B9u;
        x ^= x >> 29;
        x *= 0x94D049BB133111EBu;
        x ^= x >> 32;
        out[i] = (uint8_t)(x >> 8 * ((from + i) % 8));
    }
}

typedef struct source {
    const rank_save *save;
    uint32_t rank;
    size_t tensor_index, base; /* base: bytes before this rank's slice */
} source;

static ds_status fill(void *user, size_t offset, void *data, size_t n)
{
    const source *s = user;
    if (s->save->fail_at > 0 && s->save->fail_rank == s->rank &&
        s->tensor_index + 1 >= s->save->fail_at) {
        return DS_ERR_DEVICE;
    }
    if (s->save->wait_at_fill) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    pattern(s->save->step, s->tensor_index, s->base + offset, data, n);
    return DS_OK;
}

static ds_extent cut(const ds_meta *meta, uint32_t rank, uint32_t size)
{
    const int64_t count = ds_shape_count(meta->shape);
    const int64_t slice = (count + size - 1) / size;
    const int64_t begin = slice * rank < count ? slice * rank : count;
    return ds_extent_flat(begin, count - begin < slice ? count - begin : slice);
}

static ds_status add_one(ds_checkpoint_writer *w, const rank_save *save, size_t i, uint32_t rank,
                         uint32_t size, source *s)
{
    const tensor *t = &tensors[i];
    const ds_meta meta = meta_of(t, save->scale);
    const ds_extent extent = t->how == CUT ? cut(&meta, rank, size) : ds_extent_whole(meta.shape);
    *s = (source){save, rank, i, (size_t)extent.begin * ds_dtype_bytes(t->dtype)};
    const ds_checkpoint_slice slice = {.kind = t->kind,
                                       .name = t->name,
                                       .meta = meta,
                                       .extent = &extent,
                                       .fill = fill,
                                       .user = s,
                                       .replicated = t->how == REPLICATED};
    return t->how == RANK_0 && rank != 0 ? DS_OK : ds_checkpoint_writer_add(w, &slice);
}

ds_status rank_save_run(ds_ctx *ctx, dsi_comm *comm, const rank_save *save)
{
    const uint32_t rank = comm != NULL ? comm->rank : 0;
    const uint32_t size = comm != NULL ? comm->size : 1;
    const ds_checkpoint_params params = {.dir = save->dirs != NULL ? save->dirs[rank] : save->dir,
                                         .tag = save->tag,
                                         .step = save->step,
                                         .optimizer = "adamw",
                                         .keep_last = save->keep_last};
    source sources[N_TENSORS];
    ds_checkpoint_writer *w = NULL;
    if (save->saver != NULL) {
        DS_TRY(ds_checkpoint_saver_begin(save->saver, &params, &w));
    } else {
        DS_TRY(dsi_checkpoint_writer_create_on(ctx, &params, comm, &w));
    }
    ds_status status = DS_OK;
    for (size_t i = 0; i < N_TENSORS && status == DS_OK; ++i) {
        status = add_one(w, save, i, rank, size, &sources[i]);
    }
    if (status == DS_OK && (rank == 0 || rank + 1 < size)) { /* the last rank gives none */
        status = ds_checkpoint_writer_state(w, "engine", "{\"a\": [1, 2.5]}");
    }
    if (status < 0) {
        ds_checkpoint_writer_abort(&w);
        return status;
    }
    return save->saver != NULL ? ds_checkpoint_saver_commit(save->saver, &w)
                               : ds_checkpoint_writer_commit(&w);
}

static ds_status check_one(ds_ctx *ctx, ds_checkpoint *c, uint64_t step, int64_t scale, size_t i,
                           uint32_t rank, uint32_t size)
{
    const ds_checkpoint_tensor *t = ds_checkpoint_find(c, tensors[i].kind, tensors[i].name);
    const ds_meta meta = meta_of(&tensors[i], scale);
    const size_t width = ds_dtype_bytes(meta.dtype);
    if (t == NULL || t->meta.dtype != meta.dtype || !ds_shape_equal(t->meta.shape, meta.shape)) {
        return ds_fail(ctx, DS_ERR_CORRUPT, "%s/%s is missing or another", tensors[i].kind,
                       tensors[i].name);
    }
    const ds_extent mine = cut(&meta, rank, size);
    const size_t bytes = (size_t)mine.count * width;
    uint8_t *got = calloc(1, bytes + 8);
    uint8_t *want = calloc(1, bytes + 8);
    pattern(step, i, (size_t)mine.begin * width, want, bytes);
    ds_status status = ds_checkpoint_read(c, t, &mine, meta.dtype, got);
    if (status == DS_OK && memcmp(got, want, bytes + 8) != 0) {
        status = ds_fail(ctx, DS_ERR_CORRUPT, "%s/%s is not that of step %llu", t->kind, t->name,
                         (unsigned long long)step);
    }
    free(got);
    free(want);
    return status;
}

ds_status rank_save_check(ds_ctx *ctx, ds_checkpoint *c, uint64_t step, int64_t scale,
                          uint32_t rank, uint32_t size)
{
    if (ds_checkpoint_get_info(c)->step != step || ds_checkpoint_count(c) != N_TENSORS) {
        return ds_fail(ctx, DS_ERR_CORRUPT, "step %llu with %zu tensors",
                       (unsigned long long)ds_checkpoint_get_info(c)->step, ds_checkpoint_count(c));
    }
    for (size_t i = 0; i < N_TENSORS; ++i) {
        DS_TRY(check_one(ctx, c, step, scale, i, rank, size));
    }
    const char *state = ds_checkpoint_state(c, "engine");
    if (size > 1 && (state == NULL || strstr(state, "2.5") == NULL)) {
        return ds_fail(ctx, DS_ERR_CORRUPT, "the state 'engine' is missing");
    }
    return DS_OK;
}
