/* SPDX-License-Identifier: Apache-2.0 */
/* Stages of a pipeline of DeepSpeed (PipelineModule): mp_rank_XX is stage XX, whose files hold the
 * parameters of its own layers, whole. See ckpt_deepspeed.h.
 *
 * A tied layer is a module of each of its stages, of one name and equal values (DeepSpeed
 * broadcasts them and sums their gradients); the first stage's is taken. The files of the layers
 * hold weights in the training dtype, which the optimizer's master weights are already.
 */
#include "ckpt/ckpt_deepspeed.h"

#include <deepspeed/context.h>
#include <string.h>

static bool is_known(const dsi_ckpt_manifest *m, size_t n, const ds_checkpoint_tensor *t,
                     const ds_checkpoint_tensor **first_out)
{
    const bool tied = strncmp(t->name, "tied_modules.", 13) == 0;
    for (size_t i = 0; i < n && tied; ++i) {
        if (strcmp(m->tensors[i].name, t->name) == 0 && strcmp(m->tensors[i].kind, t->kind) == 0) {
            *first_out = &m->tensors[i];
            return true;
        }
    }
    return false;
}

ds_status dsi_deepspeed_drop_tied(dsi_deepspeed *d, size_t first)
{
    dsi_ckpt_manifest *m = d->m;
    size_t to = first;
    uint32_t slice = first < m->n_tensors ? m->tensors[first].first_slice : 0;
    for (size_t i = first; i < m->n_tensors; ++i) {
        ds_checkpoint_tensor t = m->tensors[i];
        const ds_checkpoint_tensor *other = NULL;
        if (!is_known(m, first, &t, &other)) {
            memmove(&m->slices[slice], &m->slices[t.first_slice], t.n_slices * sizeof *m->slices);
            t.first_slice = slice;
            slice += t.n_slices;
            m->tensors[to++] = t;
        } else if (other->meta.dtype != t.meta.dtype ||
                   !ds_shape_equal(other->meta.shape, t.meta.shape)) {
            return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: two stages have %s with other shapes",
                           d->folder, t.name);
        }
    }
    m->n_slices = to < m->n_tensors ? slice : m->n_slices;
    m->n_tensors = to;
    return DS_OK;
}

ds_status dsi_deepspeed_check_stages(const dsi_deepspeed *d)
{
    static const char *const keys[] = {"global_steps", "skipped_steps", "global_samples"};
    for (uint32_t s = 0; s < d->n_model; ++s) {
        const dsi_pickle *root = d->models[s].root;
        const dsi_pickle *sizes = dsi_pickle_get(root, "checkpoint_parallel_dimensions");
        int64_t stages = d->n_model;
        int64_t tensor = 1;
        (void)dsi_pickle_whole(dsi_pickle_get(sizes, "pp_degree"), &stages);
        (void)dsi_pickle_whole(dsi_pickle_get(sizes, "tp_degree"), &tensor);
        if (tensor != 1) {
            return ds_fail(
                d->ctx, DS_ERR_UNSUPPORTED, "%s: %s with tensor parallelism (%lld) cannot be read",
                d->models[s].path, d->experts ? "experts" : "a pipeline", (long long)tensor);
        }
        if (stages != (int64_t)d->n_model) {
            return ds_fail(d->ctx, DS_ERR_FORMAT,
                           "%s is of %lld stages, the folder has files of %u", d->models[s].path,
                           (long long)stages, d->n_model);
        }
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; ++k) {
            int64_t first = -1;
            int64_t own = -1;
            (void)dsi_pickle_whole(dsi_pickle_get(d->models[0].root, keys[k]), &first);
            (void)dsi_pickle_whole(dsi_pickle_get(root, keys[k]), &own);
            if (own != first) {
                return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: %s is %lld, in %s %lld",
                               d->models[s].path, keys[k], (long long)own, d->models[0].path,
                               (long long)first);
            }
        }
    }
    return DS_OK;
}
