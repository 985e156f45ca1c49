/* SPDX-License-Identifier: Apache-2.0 */
/* Universal checkpoints (ds_to_universal of DeepSpeed for Python): a file for each parameter and
 * state, whole, whatever ranks saved it. See ckpt_deepspeed.h.
 *
 *     TAG/zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt   {"param": tensor, …}; of stage 3 the bare
 *                                                        flat tensor; of AutoEP's experts all,
 *                                                        with is_expert_param and ep_num_experts
 *     TAG/zero/NAME/step.pt                              steps of the optimizer; not at stage 3
 *     TAG/zero/optimizer_state.pt                        the loss scaler, groups
 *     TAG/mp_rank_MM_model_states.pt (stage 3: zero_pp_rank_0_…)   names, shapes, counters
 */
#include "ckpt/ckpt_deepspeed.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *kind, *file;
} kinds[] = {{"master", "fp32.pt"}, {"exp_avg", "exp_avg.pt"}, {"exp_avg_sq", "exp_avg_sq.pt"}};
enum { N_KINDS = sizeof kinds / sizeof kinds[0], STEP = 1 << N_KINDS };

static ds_status no_memory(const dsi_deepspeed *d)
{
    return ds_fail(d->ctx, DS_ERR_NOMEM, "no memory to read %s", d->folder);
}

/* The file's tensor, whose elements stand in row-major order. */
static ds_status find_tensor(const dsi_deepspeed *d, const dsi_torch_file *file,
                             const dsi_pickle_tensor **tensor_out)
{
    const dsi_pickle *param = dsi_pickle_get(file->root, "param");
    const dsi_pickle *value = param != NULL ? param : file->root;
    const dsi_pickle_tensor *t = dsi_pickle_is(value, DSI_PICKLE_TENSOR) ? value->tensor : NULL;
    if (t == NULL || dsi_pickle_dense(t) == NULL || dsi_pickle_dtype(t) == DS_DTYPE_NONE) {
        return ds_fail(d->ctx, DS_ERR_FORMAT, "%s holds no tensor in row-major order", file->path);
    }
    *tensor_out = t;
    return DS_OK;
}

/* Experts of AutoEP, one by one as those of deepspeed.moe, which ckpt_deepspeed_experts.c stacks
 * again behind the model's names. */
static ds_status add_experts(dsi_deepspeed *d, const char *kind, const char *name,
                             const dsi_torch_file *file, uint32_t shard, const dsi_pickle_tensor *t)
{
    ds_meta one = {dsi_pickle_dtype(t), {.n_dims = t->shape.n_dims - 1}};
    int64_t n = 0;
    DS_TRY(dsi_deepspeed_whole_experts(d, name, file, t->shape, &n));
    memcpy(one.shape.dims, &t->shape.dims[1], one.shape.n_dims * sizeof one.shape.dims[0]);
    const int64_t count = ds_shape_count(one.shape);
    const size_t bytes = ds_meta_bytes(one);
    for (int64_t e = 0; e < n; ++e) {
        const char *own = NULL;
        DS_TRY(dsi_deepspeed_expert_of(d, d->m->arena, name, e, &own));
        DS_TRY(dsi_deepspeed_tensor_of(d, kind, own, one));
        if (count > 0) {
            DS_TRY(
                dsi_deepspeed_slice(d, shard, 0, count, dsi_pickle_dense(t) + (size_t)e * bytes));
        }
        DS_TRY(dsi_deepspeed_end_tensor(d));
    }
    d->experts = true;
    return DS_OK;
}

static ds_status add_tensor(dsi_deepspeed *d, const char *kind, const char *name,
                            const dsi_torch_file *file, uint32_t shard)
{
    const dsi_pickle_tensor *t = NULL;
    DS_TRY(find_tensor(d, file, &t));
    if (dsi_deepspeed_is_experts(file)) {
        return add_experts(d, kind, name, file, shard, t);
    }
    ds_meta meta = {dsi_pickle_dtype(t), {0}};
    DS_TRY(dsi_deepspeed_whole(d, name, file, t->shape, &meta.shape));
    DS_TRY(dsi_deepspeed_tensor_of(d, kind, name, meta));
    const int64_t count = ds_shape_count(meta.shape);
    if (count > 0) {
        DS_TRY(dsi_deepspeed_slice(d, shard, 0, count, dsi_pickle_dense(t)));
    }
    return dsi_deepspeed_end_tensor(d);
}

/* A file of a parameter, where there is one: then it is in the set. */
static ds_status add_file(dsi_deepspeed *d, const char *folder, const char *name, size_t k,
                          uint32_t *set)
{
    dsi_torch_file file = {0};
    char *path = dsi_path_join(folder, kinds[k].file);
    if (path == NULL) {
        return no_memory(d);
    }
    ds_status status = DS_OK;
    if (access(path, F_OK) == 0) {
        const uint32_t shard = (uint32_t)d->m->n_shards;
        *set |= 1u << k;
        status = dsi_torch_open(d->ctx, path, DSI_MAP_NO_LINK, &file);
        if (status >= 0) {
            status = dsi_deepspeed_shard(d, &file, name);
        }
        if (status >= 0) {
            status = add_tensor(d, kinds[k].kind, name, &file, shard);
        }
        if (status >= 0) {
            status = dsi_deepspeed_own_map(d, &d->m->shards[shard], &file);
        }
    } else if (k == 0) {
        status = ds_fail(d->ctx, DS_ERR_NOT_FOUND, "%s is missing", path);
    }
    dsi_torch_close(&file);
    free(path);
    return status;
}

/* All parameters have made the same steps. */
static ds_status read_steps(dsi_deepspeed *d, const char *folder, uint32_t *set)
{
    dsi_torch_file file = {0};
    double steps = -1.0;
    char *path = dsi_path_join(folder, "step.pt");
    if (path == NULL) {
        return no_memory(d);
    }
    ds_status status = DS_OK;
    if (access(path, F_OK) == 0) {
        *set |= STEP;
        status = dsi_torch_open(d->ctx, path, DSI_MAP_NO_LINK, &file);
        if (status >= 0 && !dsi_pickle_number(file.root, &steps)) {
            status = ds_fail(d->ctx, DS_ERR_FORMAT, "%s holds no number", path);
        }
        if (status >= 0 && d->steps >= 0.0 && steps != d->steps) {
            status =
                ds_fail(d->ctx, DS_ERR_FORMAT, "%s says %.0f steps, that of another parameter %.0f",
                        path, steps, d->steps);
        }
        d->steps = status >= 0 ? steps : d->steps;
    }
    dsi_torch_close(&file);
    free(path);
    return status;
}

static ds_status add_param(dsi_deepspeed *d, const char *zero, const char *name, uint32_t *set)
{
    char *folder = dsi_path_join(zero, name);
    if (folder == NULL) {
        return no_memory(d);
    }
    ds_status status = read_steps(d, folder, set);
    for (size_t k = 0; k < N_KINDS && status >= 0; ++k) {
        status = add_file(d, folder, name, k, set);
    }
    free(folder);
    return status;
}

static const dsi_pickle_tensor *tensor_in(const dsi_pickle *module, const char *name)
{
    const dsi_pickle *value = dsi_pickle_get(module, name);
    return dsi_pickle_is(value, DSI_PICKLE_TENSOR) ? value->tensor : NULL;
}

static bool same_values(const dsi_pickle_tensor *a, const dsi_pickle_tensor *b)
{
    const uint8_t *x = dsi_pickle_dense(a);
    const uint8_t *y = dsi_pickle_dense(b);
    return x != NULL && y != NULL && ds_shape_equal(a->shape, b->shape) &&
           dsi_pickle_dtype(a) == dsi_pickle_dtype(b) && memcmp(x, y, dsi_pickle_bytes(a)) == 0;
}

/* Whether it is a second name of a parameter: by shared_params (that of a tied head), or one of the
 * module's file with the values of another that is trained, as AutoEP's router has. */
static bool is_second(const dsi_deepspeed *d, const dsi_torch_file *file, const char *name)
{
    const dsi_pickle *module = dsi_pickle_get(file->root, "module");
    const dsi_pickle_tensor *own = tensor_in(module, name);
    bool found = dsi_pickle_get(dsi_pickle_get(file->root, "shared_params"), name) != NULL;
    const size_t n = own != NULL && !dsi_deepspeed_has(d, name) ? module->list.n : 0;
    for (size_t i = 0; i < n && !found; i += 2) {
        const char *other = dsi_pickle_text(module->list.items[i]);
        const dsi_pickle_tensor *t = other != NULL ? tensor_in(module, other) : NULL;
        found = t != NULL && t != own && same_values(t, own) && dsi_deepspeed_has(d, other);
    }
    return found;
}

/* Whether ds_to_universal has written it besides what is trained, as it does with all that the
 * module's own file holds: second names, buffers, and frozen parameters, which are read from that
 * file. */
static bool is_besides(const dsi_deepspeed *d, const char *name)
{
    bool found = strcmp(name, "optimizer_state.pt") == 0;
    for (uint32_t k = 0; k < d->n_models && !found; ++k) {
        const dsi_torch_file *file = &d->models[k];
        const dsi_pickle *buffers = dsi_pickle_get(file->root, "buffer_names");
        found = is_second(d, file, name) ||
                dsi_pickle_get(dsi_pickle_get(file->root, "frozen_param_shapes"), name) != NULL;
        for (size_t i = 0; i < dsi_pickle_count(buffers) && !found; ++i) {
            const char *text = dsi_pickle_text(dsi_pickle_at(buffers, i));
            found = text != NULL && strcmp(text, name) == 0;
        }
    }
    return found;
}

/* Each parameter has the files that others have, or weights alone: one that never had a gradient.
 */
static ds_status check_sets(const dsi_deepspeed *d, char *const *names, const uint32_t *sets,
                            size_t n)
{
    uint32_t all = 0;
    for (size_t i = 0; i < n; ++i) {
        all |= sets[i];
    }
    for (size_t i = 0; i < n; ++i) {
        if (sets[i] > 1 && sets[i] != all) {
            const uint32_t lacks = all & ~sets[i];
            size_t k = 0;
            while (k < N_KINDS && (lacks & 1u << k) == 0) {
                ++k;
            }
            return ds_fail(d->ctx, DS_ERR_NOT_FOUND, "%s/zero/%s/%s is missing", d->folder,
                           names[i], k < N_KINDS ? kinds[k].file : "step.pt");
        }
    }
    return DS_OK;
}

ds_status dsi_deepspeed_universal(dsi_deepspeed *d, char *const *names, size_t n)
{
    char *zero = dsi_path_join(d->folder, "zero");
    uint32_t *sets = dsi_arena_array(d->m->arena, n + 1, sizeof *sets);
    ds_status status = zero != NULL && sets != NULL ? DS_OK : no_memory(d);
    for (size_t i = 0; i < n && status >= 0; ++i) {
        if (!is_besides(d, names[i])) {
            status = add_param(d, zero, names[i], &sets[i]);
        }
    }
    free(zero);
    return status >= 0 ? check_sets(d, names, sets, n) : status;
}
