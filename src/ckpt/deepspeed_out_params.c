/* SPDX-License-Identifier: Apache-2.0 */
/* Which parameters a folder for DeepSpeed has, in which order and in which group of the optimizer.
 * See deepspeed_out.h. */
#include "ckpt/deepspeed_out.h"

#include "io/json_load.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>

static const char *const moments[DSI_OUT_KINDS] = {NULL, "exp_avg", "exp_avg_sq"};

static ds_status unsupported(const dsi_deepspeed_out *o, const char *what, const char *name)
{
    return ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                   "%s %s%s%.160s%s, which a folder for DeepSpeed "
                   "cannot hold yet",
                   ds_checkpoint_get_info(o->ckpt)->path, what, name != NULL ? " '" : "",
                   name != NULL ? name : "", name != NULL ? "'" : "");
}

/* Nothing that the run needs may be left out silently. */
static ds_status check_tensors(const dsi_deepspeed_out *o)
{
    static const char *const kinds[] = {"param", "master", "exp_avg", "exp_avg_sq"};
    if (ds_checkpoint_state(o->ckpt, "adapter") != NULL) {
        return unsupported(o, "holds an adapter without its model", NULL);
    }
    for (size_t i = 0; i < ds_checkpoint_count(o->ckpt); ++i) {
        const ds_checkpoint_tensor *t = ds_checkpoint_at(o->ckpt, i);
        bool known = false;
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; ++k) {
            known = known || strcmp(t->kind, kinds[k]) == 0;
        }
        if (!known) {
            return unsupported(o, "holds tensors of the kind", t->kind);
        }
        if (strchr(t->name, '*') != NULL && o->given->like == NULL) {
            return ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                           "%s holds stacked experts '%.160s': a folder for DeepSpeed has them as "
                           "the job that it is for, which has to have saved one (--like)",
                           ds_checkpoint_get_info(o->ckpt)->path, t->name);
        }
    }
    return DS_OK;
}

static ds_status take(dsi_deepspeed_out *o, const ds_checkpoint_tensor *t)
{
    dsi_out_param *p = &o->params[o->n_params++];
    *p = (dsi_out_param){
        .name = t->name, .shape = t->meta.shape, .count = ds_shape_count(t->meta.shape)};
    p->tensors[DSI_OUT_WEIGHT] = t;
    for (int k = DSI_OUT_FIRST; k < DSI_OUT_KINDS; ++k) {
        const ds_checkpoint_tensor *m = ds_checkpoint_find(o->ckpt, moments[k], t->name);
        if (m == NULL) {
            return unsupported(o, "holds a frozen parameter (one without moments)", t->name);
        }
        if (!ds_shape_equal(m->meta.shape, t->meta.shape)) {
            return ds_fail(o->ctx, DS_ERR_SHAPE, "%s: %s of '%.160s' has another shape than it",
                           ds_checkpoint_get_info(o->ckpt)->path, moments[k], t->name);
        }
        p->tensors[k] = m;
    }
    return DS_OK;
}

static ds_status take_all(dsi_deepspeed_out *o)
{
    o->params = dsi_arena_array(o->arena, ds_checkpoint_count(o->ckpt) + 1, sizeof *o->params);
    if (o->params == NULL) {
        return ds_fail(o->ctx, DS_ERR_NOMEM, "no memory for a folder for DeepSpeed");
    }
    for (size_t i = 0; i < ds_checkpoint_count(o->ckpt); ++i) {
        const ds_checkpoint_tensor *t = ds_checkpoint_at(o->ckpt, i);
        const bool master = strcmp(t->kind, "master") == 0;
        if (master || (strcmp(t->kind, "param") == 0 &&
                       ds_checkpoint_find(o->ckpt, "master", t->name) == NULL)) {
            DS_TRY(take(o, t));
        }
    }
    return o->n_params > 0 ? DS_OK : unsupported(o, "holds no weights", NULL);
}

/* ---- order ---- */

static int compare_rank(const void *a, const void *b)
{
    const dsi_out_param *x = a;
    const dsi_out_param *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int compare_name(const void *a, const void *b)
{
    return strcmp(((const dsi_out_param *)a)->name, ((const dsi_out_param *)b)->name);
}

/* After clear_ranks. */
static ds_status rank_one(dsi_deepspeed_out *o, const char *name, uint32_t rank)
{
    const dsi_out_param key = {.name = name};
    dsi_out_param *found = bsearch(&key, o->params, o->n_params, sizeof *o->params, compare_name);
    if (found == NULL || found->rank != UINT32_MAX) {
        return ds_fail(o->ctx, DS_ERR_ARG, "the order of parameters has '%.160s'%s%s", name,
                       found != NULL ? " twice" : ", which is none of ",
                       found != NULL ? "" : ds_checkpoint_get_info(o->ckpt)->path);
    }
    found->rank = rank;
    return DS_OK;
}

static ds_status sort_by_ranks(dsi_deepspeed_out *o)
{
    for (size_t i = 0; i < o->n_params; ++i) {
        if (o->params[i].rank == UINT32_MAX) {
            return ds_fail(o->ctx, DS_ERR_ARG, "the order of parameters lacks '%.160s'",
                           o->params[i].name);
        }
    }
    qsort(o->params, o->n_params, sizeof *o->params, compare_rank);
    return DS_OK;
}

static void clear_ranks(dsi_deepspeed_out *o)
{
    qsort(o->params, o->n_params, sizeof *o->params, compare_name);
    for (size_t i = 0; i < o->n_params; ++i) {
        o->params[i].rank = UINT32_MAX;
    }
}

static ds_status order_by_list(dsi_deepspeed_out *o)
{
    clear_ranks(o);
    for (size_t i = 0; i < o->given->n_order; ++i) {
        DS_TRY(rank_one(o, o->given->order[i], (uint32_t)i));
    }
    return sort_by_ranks(o);
}

/* The groups of a folder that DeepSpeed wrote, with their names in its order. */
static ds_status order_by_state(dsi_deepspeed_out *o, const json_t *groups)
{
    const size_t n = json_array_size(groups);
    uint32_t rank = 0;
    if (n < 1 || n > 2) {
        return unsupported(o, "has more than two groups of parameters", NULL);
    }
    clear_ranks(o);
    o->n_groups = n;
    for (size_t g = 0; g < n; ++g) {
        const json_t *names = json_array_get(groups, g);
        o->group_begin[g] = rank;
        for (size_t i = 0; i < json_array_size(names); ++i) {
            const char *name = json_string_value(json_array_get(names, i));
            DS_TRY(rank_one(o, name != NULL ? name : "?", rank++));
        }
    }
    o->group_begin[n] = rank;
    return sort_by_ranks(o);
}

static ds_status order_by_type(dsi_deepspeed_out *o)
{
    const char *text = ds_checkpoint_state(o->ckpt, "model");
    json_error_t error;
    json_t *model = text != NULL ? dsi_json_parse(text, strlen(text), 0, &error) : NULL;
    const char *type = json_string_value(json_object_get(model, "model_type"));
    const ds_status status = dsi_deepspeed_order(o->ctx, type, o->params, o->n_params);
    json_decref(model);
    return status;
}

/* ---- groups ---- */

/* Norms and biases, which are vectors, behind the others; each in its order. */
static ds_status split_groups(dsi_deepspeed_out *o, size_t n_groups)
{
    size_t n = 0;
    dsi_out_param *sorted = dsi_arena_array(o->arena, o->n_params, sizeof *sorted);
    if (sorted == NULL) {
        return ds_fail(o->ctx, DS_ERR_NOMEM, "no memory for a folder for DeepSpeed");
    }
    o->n_groups = n_groups;
    for (size_t g = 0; g < n_groups; ++g) {
        o->group_begin[g] = n;
        for (size_t i = 0; i < o->n_params; ++i) {
            if (n_groups == 1 || (o->params[i].shape.n_dims < 2) == (g == 1)) {
                sorted[n++] = o->params[i];
            }
        }
    }
    o->group_begin[n_groups] = n;
    o->n_groups = n_groups == 2 && o->group_begin[1] == n ? 1 : n_groups; /* no empty one */
    o->params = sorted;
    return DS_OK;
}

size_t dsi_out_group_count(const dsi_deepspeed_out *o)
{
    const json_t *all = json_object_get(o->engine, "decay_all");
    return all == NULL || json_integer_value(all) != 0 ? 1 : 2;
}

static ds_status find_groups(dsi_deepspeed_out *o)
{
    const double decay = o->values->optimizer.weight_decay;
    size_t n = dsi_out_group_count(o);
    if (o->given->n_groups > 0 && o->given->n_groups != n) {
        if (decay != 0.0) {
            return ds_fail(o->ctx, DS_ERR_ARG,
                           "%s was trained with weight decay on %s, which makes %zu group%s of "
                           "parameters, not %u",
                           ds_checkpoint_get_info(o->ckpt)->path,
                           n == 1 ? "all parameters" : "all but norms and biases", n,
                           n == 1 ? "" : "s", o->given->n_groups);
        }
        n = o->given->n_groups;
    }
    return split_groups(o, n);
}

/* A head that is tied has no tensor of its own, yet a name in the module. */
static void find_alias(dsi_deepspeed_out *o)
{
    static const char *const embeddings[] = {"model.embed_tokens.weight", "transformer.wte.weight"};
    const dsi_out_param *embedding = NULL;
    for (size_t i = 0; i < o->n_params; ++i) {
        const char *name = o->params[i].name;
        if (strcmp(name, "lm_head.weight") == 0 || strcmp(name, "score.weight") == 0) {
            return;
        }
        for (size_t k = 0; k < sizeof embeddings / sizeof embeddings[0]; ++k) {
            embedding = strcmp(name, embeddings[k]) == 0 ? &o->params[i] : embedding;
        }
    }
    if (embedding != NULL) {
        o->alias = "lm_head.weight";
        o->alias_of = embedding->name;
    }
}

ds_status dsi_out_take_params(dsi_deepspeed_out *o)
{
    DS_TRY(check_tensors(o));
    return take_all(o);
}

ds_status dsi_out_find_params(dsi_deepspeed_out *o)
{
    const char *text = ds_checkpoint_state(o->ckpt, "parameter_groups");
    json_error_t error;
    DS_TRY(dsi_out_take_params(o));
    o->decays[0] = true; /* norms and biases are the second group */
    find_alias(o);
    if (o->given->order != NULL) {
        DS_TRY(order_by_list(o));
    } else if (text != NULL) {
        json_t *groups = dsi_json_parse(text, strlen(text), 0, &error);
        const ds_status status = order_by_state(o, groups);
        json_decref(groups);
        return status;
    } else if (o->given->zero_stage > 0) {
        DS_TRY(order_by_type(o));
    }
    return find_groups(o);
}
