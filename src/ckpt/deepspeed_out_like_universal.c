/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint as a universal folder for the job of another one (given->like): names and groups of
 * parameters, and which of them hold all experts (AutoEP), are the other's. See
 * deepspeed_out_like.h.
 *
 * Shards need no such folder: DeepSpeed takes each rank's part out of the whole parameter. Groups
 * do: it loads as many as the file has, and leaves those behind as they were made.
 */
#include "ckpt/ckpt_foreign.h"
#include "ckpt/deepspeed_out_like.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ds_status no_memory(const dsi_out_like_state *l)
{
    return ds_fail(l->o->ctx, DS_ERR_NOMEM, "no memory for a folder for DeepSpeed");
}

static ds_status open_file(const dsi_out_like_state *l, const char *const *names,
                           dsi_torch_file *file)
{
    for (; *names != NULL; ++names) {
        char *path = dsi_path_join(l->folder, *names);
        const bool found = path != NULL && (names[1] == NULL || access(path, F_OK) == 0);
        const ds_status status = path == NULL ? no_memory(l)
                                 : found ? dsi_torch_open(l->o->ctx, path, DSI_MAP_NO_LINK, file)
                                         : DS_OK;
        free(path);
        if (found || status < 0) {
            return status;
        }
    }
    return DS_OK;
}

/* ---- parameters ---- */

/* Its experts have to stand in our tensor one by one in their order. */
static ds_status check_experts(const dsi_out_like_state *l, const char *name,
                               const ds_checkpoint_tensor *t)
{
    const int64_t n = t->meta.shape.dims[0];
    const int64_t each = n > 0 ? ds_shape_count(t->meta.shape) / n : 0;
    for (int64_t e = 0; e < n; ++e) {
        const char *one = NULL;
        DS_TRY(dsi_deepspeed_expert_of(&l->d, l->o->arena, name, e, &one));
        const dsi_out_own *own = dsi_out_own_find(l, one);
        if (own == NULL || own->tensor != t || own->slice->extent.begin != e * each) {
            return ds_fail(l->o->ctx, DS_ERR_FORMAT,
                           "%s: '%.160s' has not the place of expert %lld", l->folder, name,
                           (long long)e);
        }
    }
    return DS_OK;
}

static ds_status take_param(dsi_out_like_state *l, const char *name, dsi_out_param *param_out)
{
    const dsi_out_own *own = dsi_out_own_find(l, name);
    const bool experts = own == NULL && strstr(name, ".experts.") != NULL;
    const char *first = name;
    if (experts) {
        DS_TRY(dsi_deepspeed_expert_of(&l->d, l->o->arena, name, 0, &first));
        own = dsi_out_own_find(l, first);
    }
    if (own == NULL) {
        return ds_fail(l->o->ctx, DS_ERR_FORMAT, "%s: zero has no '%.160s' of param_shapes",
                       l->folder, name);
    }
    DS_TRY(experts ? check_experts(l, name, own->tensor) : DS_OK);
    DS_TRY(dsi_out_own_param(l, first, own->tensor->meta.shape, param_out));
    param_out->experts = experts ? param_out->shape.dims[0] : 0;
    param_out->name = dsi_arena_strdup(l->o->arena, name);
    return param_out->name != NULL ? DS_OK : no_memory(l);
}

/* ---- groups ---- */

static ds_status take_list(dsi_out_like_state *l, const dsi_pickle *list, size_t g)
{
    dsi_deepspeed_out *o = l->o;
    for (size_t i = 0; dsi_pickle_is(list, DSI_PICKLE_DICT) && i < list->list.n; i += 2) {
        const char *name = dsi_pickle_text(list->list.items[i]);
        dsi_out_param *p = &o->params[o->n_params];
        if (name == NULL) {
            return ds_fail(o->ctx, DS_ERR_FORMAT, "%s: param_shapes has no names", l->model.path);
        }
        DS_TRY(take_param(l, name, p));
        DS_TRY(dsi_out_like_decay(l, p, g, o->n_params == o->group_begin[g]));
        ++o->n_params;
    }
    return DS_OK;
}

/* Of a stage-3 folder a group has as many lists as sub-groups. */
static ds_status take_groups(dsi_out_like_state *l)
{
    dsi_deepspeed_out *o = l->o;
    const dsi_pickle *shapes = dsi_pickle_get(l->model.root, "param_shapes");
    const dsi_pickle *inner = dsi_pickle_get(l->optim.root, "optimizer_state_dict");
    const bool sub_groups = dsi_pickle_get(inner, "zero_stage") != NULL;
    const size_t n = dsi_pickle_count(o->like_groups);
    size_t n_params = 0;
    size_t at = 0;
    for (size_t i = 0; i < dsi_pickle_count(shapes); ++i) {
        n_params += dsi_pickle_count(dsi_pickle_at(shapes, i));
    }
    o->params = dsi_arena_array(o->arena, n_params + 1, sizeof *o->params);
    o->n_params = 0;
    o->n_groups = n;
    if (o->params == NULL) {
        return no_memory(l);
    }
    for (size_t g = 0; g < n && n <= DSI_OUT_GROUPS; ++g) {
        const dsi_pickle *vectors = dsi_pickle_get(dsi_pickle_at(o->like_groups, g), "params");
        o->group_begin[g] = o->n_params;
        for (size_t left = sub_groups ? dsi_pickle_count(vectors) : 1; left > 0; --left, ++at) {
            DS_TRY(take_list(l, dsi_pickle_at(shapes, at), g));
        }
        o->group_begin[g + 1] = o->n_params;
    }
    return n >= 1 && n <= DSI_OUT_GROUPS && at == dsi_pickle_count(shapes)
               ? DS_OK
               : ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                         "%s has %zu groups of parameters and param_shapes of %zu; 1 to %d are "
                         "written, each with its own",
                         l->model.path, n, dsi_pickle_count(shapes), (int)DSI_OUT_GROUPS);
}

static ds_status write_files(dsi_out_like_state *l)
{
    static const char *const models[] = {"mp_rank_00_model_states.pt",
                                         "zero_pp_rank_0_mp_rank_00_model_states.pt", NULL};
    static const char *const optimizer[] = {"zero/optimizer_state.pt", NULL};
    DS_TRY(open_file(l, models, &l->model));
    DS_TRY(open_file(l, optimizer, &l->optim));
    l->o->like = l->model.root;
    l->o->like_groups = dsi_pickle_get(l->optim.root, "param_groups");
    DS_TRY(take_groups(l));
    return dsi_out_universal(l->o);
}

ds_status dsi_out_like_universal(dsi_out_like_state *l)
{
    const int n_model = dsi_ckpt_foreign_universal(l->folder);
    if (n_model <= 0) {
        return ds_fail(l->o->ctx, DS_ERR_ARG,
                       "%s is no universal folder of DeepSpeed, which is what --like takes for one",
                       l->folder);
    }
    l->d = (dsi_deepspeed){.ctx = l->o->ctx, .folder = l->folder, .universal = true};
    const ds_status status = write_files(l);
    l->o->like = NULL;
    l->o->like_groups = NULL;
    dsi_torch_close(&l->model);
    dsi_torch_close(&l->optim);
    return status;
}
