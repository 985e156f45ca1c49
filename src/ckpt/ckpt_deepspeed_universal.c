/* SPDX-License-Identifier: Apache-2.0 */
/* Universal checkpoints (ds_to_universal of DeepSpeed for Python): a file for each parameter and
 * state, whole, whatever ranks saved it. See ckpt_deepspeed.h.
 *
 *     TAG/zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt   {"param": tensor, …}; of stage 3 the bare
 *                                                        flat tensor
 *     TAG/zero/NAME/step.pt                              steps of the optimizer; not at stage 3
 *     TAG/zero/optimizer_state.pt                        the loss scaler, groups
 *     TAG/mp_rank_00_model_states.pt (stage 3: zero_pp_rank_0_…)   names, shapes, counters
 */
#include "ckpt/ckpt_deepspeed.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *kind, *file;
} kinds[] = {{"master", "fp32.pt"}, {"exp_avg", "exp_avg.pt"}, {"exp_avg_sq", "exp_avg_sq.pt"}};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

static ds_status no_memory(const dsi_deepspeed *d)
{
    return ds_fail(d->ctx, DS_ERR_NOMEM, "no memory to read %s", d->folder);
}

/* The shape of a parameter by the model's files; NULL where none has that name. */
static const dsi_pickle *dims_of(const dsi_deepspeed *d, const char *name)
{
    const dsi_pickle *dims = NULL;
    for (uint32_t k = 0; k < d->n_models && dims == NULL; ++k) {
        const dsi_pickle *groups = dsi_pickle_get(d->models[k].root, "param_shapes");
        for (size_t g = 0; g < dsi_pickle_count(groups) && dims == NULL; ++g) {
            dims = dsi_pickle_get(dsi_pickle_at(groups, g), name);
        }
    }
    return dims;
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

static ds_status add_tensor(dsi_deepspeed *d, const char *kind, const char *name,
                            const dsi_torch_file *file, uint32_t shard)
{
    const dsi_pickle_tensor *t = NULL;
    const dsi_pickle *dims = dims_of(d, name);
    DS_TRY(find_tensor(d, file, &t));
    if (dims == NULL) {
        return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: param_shapes of %s has no such parameter",
                       file->path, d->models[0].path);
    }
    const int64_t count = dsi_deepspeed_count(dims);
    const int64_t has = ds_shape_count(t->shape);
    DS_TRY(dsi_deepspeed_tensor(d, kind, name, dsi_pickle_dtype(t), dims));
    const ds_shape shape = d->m->tensors[d->m->n_tensors - 1].meta.shape;
    /* a flat one may be padded for the ranks that saved it */
    if (has < count || (t->shape.n_dims != 1 && !ds_shape_equal(t->shape, shape))) {
        return ds_fail(d->ctx, DS_ERR_SHAPE, "%s has not the shape that param_shapes has for it",
                       file->path);
    }
    if (count > 0) {
        DS_TRY(dsi_deepspeed_slice(d, shard, 0, count, dsi_pickle_dense(t)));
    }
    return dsi_deepspeed_end_tensor(d);
}

/* A file of a parameter, where there is one. */
static ds_status add_file(dsi_deepspeed *d, const char *folder, const char *name, size_t k)
{
    dsi_torch_file file = {0};
    char *path = dsi_path_join(folder, kinds[k].file);
    if (path == NULL) {
        return no_memory(d);
    }
    ds_status status = DS_OK;
    if (access(path, F_OK) == 0) {
        const uint32_t shard = (uint32_t)d->m->n_shards;
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
static ds_status read_steps(dsi_deepspeed *d, const char *folder)
{
    dsi_torch_file file = {0};
    double steps = -1.0;
    char *path = dsi_path_join(folder, "step.pt");
    if (path == NULL) {
        return no_memory(d);
    }
    ds_status status = DS_OK;
    if (access(path, F_OK) == 0) {
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

static ds_status add_param(dsi_deepspeed *d, const char *zero, const char *name)
{
    char *folder = dsi_path_join(zero, name);
    if (folder == NULL) {
        return no_memory(d);
    }
    ds_status status = read_steps(d, folder);
    for (size_t k = 0; k < N_KINDS && status >= 0; ++k) {
        status = add_file(d, folder, name, k);
    }
    free(folder);
    return status;
}

ds_status dsi_deepspeed_universal(dsi_deepspeed *d, char *const *names, size_t n)
{
    const dsi_pickle *shared = dsi_pickle_get(d->models[0].root, "shared_params");
    char *zero = dsi_path_join(d->folder, "zero");
    ds_status status = zero != NULL ? DS_OK : no_memory(d);
    for (size_t i = 0; i < n && status >= 0; ++i) {
        /* a second name of a parameter, such as that of a tied head, has files of its own */
        const bool second = dsi_pickle_get(shared, names[i]) != NULL;
        if (!second && strcmp(names[i], "optimizer_state.pt") != 0) {
            status = add_param(d, zero, names[i]);
        }
    }
    free(zero);
    return status;
}
