/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint's parameters by the names of another folder's module: whole, one of stacked experts,
 * or a rank's shard. See deepspeed_out_like.h. */
#include "ckpt/deepspeed_out_like.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>

static ds_status no_memory(const dsi_out_like_state *l)
{
    return ds_fail(l->o->ctx, DS_ERR_NOMEM, "no memory for a folder for DeepSpeed");
}

/* ---- names ---- */

static int compare_own(const void *a, const void *b)
{
    return strcmp(((const dsi_out_own *)a)->name, ((const dsi_out_own *)b)->name);
}

static int compare_name(const void *a, const void *b)
{
    return strcmp(((const dsi_out_param *)a)->name, ((const dsi_out_param *)b)->name);
}

/* The slices of a tensor stand by their names: of one there may be several, by its ranks. */
ds_status dsi_out_own_names(dsi_out_like_state *l)
{
    const dsi_ckpt_manifest *m = dsi_ckpt_manifest_of(l->ckpt);
    l->names = dsi_arena_array(l->o->arena, m->n_slices + 1, sizeof *l->names);
    if (l->names == NULL) {
        return no_memory(l);
    }
    for (size_t i = 0; i < m->n_tensors; ++i) {
        const ds_checkpoint_tensor *t = &m->tensors[i];
        for (uint32_t k = 0; k < t->n_slices && strcmp(t->kind, "master") == 0; ++k) {
            const dsi_ckpt_slice *s = &m->slices[t->first_slice + k];
            if (k == 0 || strcmp(s->entry, l->names[l->n_names - 1].name) != 0) {
                l->names[l->n_names++] = (dsi_out_own){s->entry, t, s};
            }
        }
    }
    qsort(l->names, l->n_names, sizeof *l->names, compare_own);
    return DS_OK;
}

const dsi_out_own *dsi_out_own_find(const dsi_out_like_state *l, const char *name)
{
    const dsi_out_own key = {.name = name};
    return bsearch(&key, l->names, l->n_names, sizeof *l->names, compare_own);
}

/* ---- parameters ---- */

static ds_status set_boxes(const dsi_out_like_state *l, dsi_out_param *p, const dsi_box *boxes,
                           size_t n)
{
    dsi_box *copy = dsi_arena_array(l->o->arena, n + 1, sizeof *copy);
    if (copy == NULL) {
        return no_memory(l);
    }
    memcpy(copy, boxes, n * sizeof *copy);
    p->boxes = copy;
    p->n_boxes = n;
    return DS_OK;
}

static int compare_begin(const void *a, const void *b)
{
    const dsi_deepspeed_piece *x = a;
    const dsi_deepspeed_piece *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* The shard of a rank that shares layers: its pieces have to fill it, one behind the other. */
static ds_status set_shard(const dsi_out_like_state *l, const char *name, dsi_out_param *p)
{
    dsi_box boxes[64];
    size_t n = 0;
    int64_t at = 0;
    ds_shape whole;
    DS_TRY(dsi_deepspeed_pieces(&l->d, name, l->o->model_rank, p->shape, &whole, l->pieces, &n));
    qsort(l->pieces, n, sizeof *l->pieces, compare_begin);
    for (size_t i = 0; i < n && i < sizeof boxes / sizeof boxes[0] && at == l->pieces[i].begin;
         ++i) {
        boxes[i] = l->pieces[i].box;
        at += ds_shape_count(boxes[i].shape);
    }
    return at == p->count && ds_shape_equal(whole, p->tensors[DSI_OUT_WEIGHT]->meta.shape) &&
                   n <= sizeof boxes / sizeof boxes[0]
               ? set_boxes(l, p, boxes, n)
               : ds_fail(l->o->ctx, DS_ERR_UNSUPPORTED,
                         "%s: the pieces of '%.160s' do not fill the shard of rank %u",
                         l->model.path, name, l->o->model_rank);
}

/* One of the experts that are stacked here. */
static ds_status set_expert(const dsi_out_like_state *l, const dsi_out_own *own, dsi_out_param *p)
{
    const ds_shape *stack = &own->tensor->meta.shape;
    dsi_box box = {.shape = *stack};
    bool same = stack->n_dims == p->shape.n_dims + 1 && p->count > 0;
    for (uint32_t i = 0; i < p->shape.n_dims && same; ++i) {
        same = stack->dims[i + 1] == p->shape.dims[i];
    }
    if (!same) {
        return ds_fail(l->o->ctx, DS_ERR_FORMAT,
                       "%s: '%.160s' is of another shape than its experts", l->folder, own->name);
    }
    box.shape.dims[0] = 1;
    box.offset[0] = own->slice->extent.begin / p->count;
    return set_boxes(l, p, &box, 1);
}

ds_status dsi_out_own_param(dsi_out_like_state *l, const char *name, ds_shape shape,
                            dsi_out_param *param_out)
{
    const dsi_out_own *own = dsi_out_own_find(l, name);
    const dsi_out_param key = {.name = own != NULL ? own->tensor->name : name};
    const dsi_out_param *found = bsearch(&key, l->all, l->n_all, sizeof *l->all, compare_name);
    if (own == NULL || found == NULL || !ds_shape_equal(found->shape, own->tensor->meta.shape)) {
        return ds_fail(l->o->ctx, DS_ERR_ARG,
                       "%s has '%.160s' (%.160s), which %s has not, or has in another shape",
                       l->folder, name, key.name, ds_checkpoint_get_info(l->o->ckpt)->path);
    }
    l->used[found - l->all] = true;
    *param_out = *found;
    param_out->name = own->name;
    param_out->shape = shape;
    param_out->count = ds_shape_count(shape);
    return l->o->n_tensor > 0                    ? set_shard(l, name, param_out)
           : ds_shape_equal(found->shape, shape) ? DS_OK
                                                 : set_expert(l, own, param_out);
}
