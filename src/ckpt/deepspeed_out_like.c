/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint as a folder that is like one that a job of DeepSpeed has saved (given->like): stages
 * of a pipeline, ranks that share layers (AutoTP), ranks of experts (deepspeed.moe), and the order,
 * names and groups of their parameters are the other's; values, counters and the number of
 * data-parallel ranks are the checkpoint's and the caller's. See deepspeed_out.h.
 *
 *     mp_rank_MM_model_states.pt                       names, shapes, counters of model rank MM
 *     [bf16_]zero_pp_rank_R_mp_rank_MM_optim_states.pt rank R's partition of them
 *     layer_LL-model_states.pt, layer_L_expert_E_mp_rank_MM_model_states.pt   weights
 */
#include "ckpt/deepspeed_out_like.h"
#include "ckpt/ckpt_foreign.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96 };

static ds_status no_memory(const dsi_out_like_state *l)
{
    return ds_fail(l->o->ctx, DS_ERR_NOMEM, "no memory for a folder for DeepSpeed");
}

static ds_status no_like(const dsi_out_like_state *l)
{
    return ds_fail(l->o->ctx, DS_ERR_ARG,
                   "%s is no folder of DeepSpeed at ZeRO stage 1 or 2, which is what --like takes "
                   "(for a universal one, a universal one)",
                   l->folder);
}

/* ---- groups ---- */

/* Whether the run decays a parameter: all, or matrices. */
static bool decays(const dsi_deepspeed_out *o, const dsi_out_param *p)
{
    return dsi_out_group_count(o) == 1 || p->tensors[DSI_OUT_WEIGHT]->meta.shape.n_dims >= 2;
}

ds_status dsi_out_like_decay(const dsi_out_like_state *l, const dsi_out_param *p, size_t g,
                             bool is_first)
{
    dsi_deepspeed_out *o = l->o;
    o->decays[g] = is_first ? decays(o, p) : o->decays[g];
    return o->values->optimizer.weight_decay == 0.0 || decays(o, p) == o->decays[g]
               ? DS_OK
               : ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                         "%s has '%.160s' in its group %zu of parameters together with others, and "
                         "the checkpoint's weight decay is of matrices and not of vectors",
                         l->folder, p->name, g);
}

/* Pair i of a group, as a parameter of place `place`. */
static ds_status take_param(dsi_out_like_state *l, const dsi_pickle *group, size_t i,
                            uint32_t place, dsi_out_param *param_out)
{
    const char *local = dsi_pickle_text(group->list.items[2 * i]);
    const dsi_pickle *dims = group->list.items[2 * i + 1];
    const char *name = local;
    ds_shape shape;
    if (local == NULL || !dsi_deepspeed_dims(dims, &shape)) {
        return ds_fail(l->o->ctx, DS_ERR_FORMAT, "%s: param_shapes has no names and shapes",
                       l->model.path);
    }
    DS_TRY(dsi_deepspeed_expert_name(&l->d, group, &name, place));
    DS_TRY(dsi_out_own_param(l, name, shape, param_out));
    param_out->name = dsi_arena_strdup(l->o->arena, local);
    return param_out->name != NULL ? DS_OK : no_memory(l);
}

/* A group's parameters, for each place that has other ones (n: 1 where none has). */
static ds_status take_group(dsi_out_like_state *l, const dsi_pickle *group, size_t g, uint32_t n)
{
    dsi_deepspeed_out *o = l->o;
    const size_t n_params = dsi_pickle_is(group, DSI_PICKLE_DICT) ? dsi_pickle_count(group) : 0;
    dsi_out_param **places = dsi_arena_array(o->arena, n, sizeof *places);
    if (places == NULL) {
        return no_memory(l);
    }
    for (uint32_t place = 0; place < n; ++place) {
        places[place] = dsi_arena_array(o->arena, n_params + 1, sizeof **places);
        if (places[place] == NULL) {
            return no_memory(l);
        }
        for (size_t i = 0; i < n_params; ++i) {
            DS_TRY(take_param(l, group, i, place, &places[place][i]));
            DS_TRY(dsi_out_like_decay(l, &places[place][i], g, place == 0 && i == 0));
        }
    }
    memcpy(&o->params[o->n_params], places[0], n_params * sizeof *o->params);
    o->places[g] = places;
    o->n_places[g] = n > 1 ? n : 0;
    o->group_begin[g] = o->n_params;
    o->n_params += n_params;
    o->group_begin[g + 1] = o->n_params;
    return DS_OK;
}

static ds_status take_groups(dsi_out_like_state *l)
{
    dsi_deepspeed_out *o = l->o;
    const dsi_pickle *groups = dsi_pickle_get(l->model.root, "param_shapes");
    const size_t n = dsi_pickle_is(groups, DSI_PICKLE_LIST) ? dsi_pickle_count(groups) : 0;
    size_t n_params = 0;
    if (n < 1 || n > DSI_OUT_GROUPS) {
        return ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                       "%s has %zu groups of parameters; 1 to %d are "
                       "written",
                       l->model.path, n, (int)DSI_OUT_GROUPS);
    }
    for (size_t g = 0; g < n; ++g) {
        n_params += dsi_pickle_count(dsi_pickle_at(groups, g));
    }
    o->params = dsi_arena_array(o->arena, n_params + 1, sizeof *o->params);
    o->n_params = 0;
    o->n_groups = n;
    if (o->params == NULL) {
        return no_memory(l);
    }
    for (size_t g = 0; g < n; ++g) {
        uint32_t places = 1;
        DS_TRY(dsi_deepspeed_expert_ranks(&l->d, (int64_t)g, &places));
        if (o->given->ranks % places != 0) {
            return ds_fail(o->ctx, DS_ERR_ARG,
                           "%s is of experts on %u ranks each, which do not divide %u ranks",
                           l->folder, places, o->given->ranks);
        }
        DS_TRY(take_group(l, dsi_pickle_at(groups, g), g, places));
    }
    return DS_OK;
}

/* ---- model ranks ---- */

static ds_status open_file(const dsi_out_like_state *l, const char *form, dsi_torch_file *file)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, form, l->o->model_rank); /* NOLINT: the forms below */
    char *path = dsi_path_join(l->folder, name);
    const ds_status status =
        path != NULL ? dsi_torch_open(l->o->ctx, path, DSI_MAP_NO_LINK, file) : no_memory(l);
    free(path);
    return status;
}

static ds_status open_optim(dsi_out_like_state *l)
{
    ds_status status = open_file(l, "zero_pp_rank_0_mp_rank_%02u_optim_states.pt", &l->optim);
    if (status == DS_ERR_NOT_FOUND || status == DS_ERR_IO) {
        status = open_file(l, "bf16_zero_pp_rank_0_mp_rank_%02u_optim_states.pt", &l->optim);
    }
    DS_TRY(status);
    int64_t stage = 1; /* BF16_Optimizer does not say it */
    l->state = dsi_pickle_get(l->optim.root, "optimizer_state_dict");
    (void)dsi_pickle_whole(dsi_pickle_get(l->state, "zero_stage"), &stage);
    if (stage != 1 && stage != 2) {
        return no_like(l);
    }
    l->o->like_groups =
        dsi_pickle_get(dsi_pickle_get(l->state, "base_optimizer_state"), "param_groups");
    return DS_OK;
}

static ds_status write_model_rank(dsi_out_like_state *l)
{
    ds_status status = open_optim(l);
    status = status >= 0 ? open_file(l, "mp_rank_%02u_model_states.pt", &l->model) : status;
    if (status >= 0) {
        l->o->like = l->model.root;
        status = take_groups(l);
    }
    status = status >= 0 ? dsi_out_zero(l->o) : status;
    l->o->like = NULL;
    l->o->like_groups = NULL;
    dsi_torch_close(&l->model);
    dsi_torch_close(&l->optim);
    return status;
}

/* By which the new folder is read again. */
static ds_status copy_names(const dsi_out_like_state *l)
{
    char *from = NULL;
    DS_TRY(dsi_deepspeed_names_file(l->o->ctx, l->folder, &from));
    char *to = from != NULL ? dsi_path_join(l->o->folder, "parameter_names.txt") : NULL;
    const ds_status status = from == NULL ? DS_OK
                             : to == NULL ? no_memory(l)
                                          : dsi_file_copy(l->o->ctx, from, to);
    free(to);
    free(from);
    return status;
}

static ds_status check_used(const dsi_out_like_state *l)
{
    for (size_t i = 0; i < l->n_all; ++i) {
        if (!l->used[i]) {
            return ds_fail(l->o->ctx, DS_ERR_ARG, "%s has '%.160s', which %s has not",
                           ds_checkpoint_get_info(l->o->ckpt)->path, l->all[i].name, l->folder);
        }
    }
    return DS_OK;
}

static int compare_name(const void *a, const void *b)
{
    return strcmp(((const dsi_out_param *)a)->name, ((const dsi_out_param *)b)->name);
}

/* What the other folder is, by its files. */
static ds_status look(dsi_out_like_state *l, uint32_t *n_model_out)
{
    dsi_deepspeed_out *o = l->o;
    int n_model = 0;
    bool pipeline = false;
    bool experts = false;
    const int n = dsi_ckpt_foreign_zero_ranks(l->folder, &n_model, &pipeline, &experts);
    if (n <= 0) {
        return no_like(l);
    }
    if (pipeline && o->given->zero_stage != 1) {
        return ds_fail(o->ctx, DS_ERR_ARG, "the folder of a pipeline is of ZeRO stage 1");
    }
    *n_model_out = (uint32_t)n_model;
    o->n_stages = pipeline ? (uint32_t)n_model : 0;
    o->n_tensor = !pipeline && n_model > 1 ? (uint32_t)n_model : 0;
    l->d = (dsi_deepspeed){.ctx = o->ctx,
                           .folder = l->folder,
                           .n_ranks = (uint32_t)n,
                           .n_model = 1,
                           .experts = experts,
                           .optims = &l->optim,
                           .models = &l->model,
                           .states = &l->state};
    return DS_OK;
}

static ds_status write_ranks(dsi_out_like_state *l)
{
    dsi_deepspeed_out *o = l->o;
    uint32_t n_model = 0;
    dsi_ckpt_manifest names = {.arena = o->arena}; /* of experts, by dsi_deepspeed_expert_name */
    DS_TRY(look(l, &n_model));
    l->d.m = &names;
    for (o->model_rank = 0; o->model_rank < n_model; ++o->model_rank) {
        DS_TRY(write_model_rank(l));
    }
    DS_TRY(check_used(l));
    return dsi_out_layers(l);
}

static ds_status write_all(dsi_out_like_state *l)
{
    dsi_deepspeed_out *o = l->o;
    DS_TRY(dsi_out_own_names(l));
    l->all = o->params;
    l->n_all = o->n_params;
    qsort(l->all, l->n_all, sizeof *l->all, compare_name);
    l->used = dsi_arena_array(o->arena, l->n_all + 1, sizeof *l->used);
    l->pieces = dsi_arena_array(o->arena, DSI_DEEPSPEED_PIECES, sizeof *l->pieces);
    if (l->used == NULL || l->pieces == NULL) {
        return no_memory(l);
    }
    if (o->given->zero_stage > 0) {
        DS_TRY(write_ranks(l));
    } else {
        DS_TRY(dsi_out_like_universal(l));
        DS_TRY(check_used(l));
    }
    return copy_names(l);
}

ds_status dsi_out_like(dsi_deepspeed_out *o)
{
    dsi_out_like_state l = {.o = o};
    DS_TRY(ds_checkpoint_open(o->ctx, o->given->like, NULL, &l.ckpt));
    l.folder = ds_checkpoint_get_info(l.ckpt)->path;
    const ds_status status = write_all(&l);
    ds_checkpoint_close(&l.ckpt);
    return status;
}
