/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint as the folder of a pipeline, for a PipelineModule that has saved one (given->like):
 * its stages, the order and names of their parameters and the files of its layers are those of the
 * new one; values, counters and the number of data-parallel ranks are the checkpoint's and the
 * caller's. See deepspeed_out.h.
 *
 *     mp_rank_SS_model_states.pt                       names, shapes, counters of stage SS
 *     [bf16_]zero_pp_rank_R_mp_rank_SS_optim_states.pt rank R's partition of them
 *     layer_LL-model_states.pt                         weights of layer LL
 */
#include "ckpt/ckpt_foreign.h"
#include "ckpt/deepspeed_out.h"
#include "io/torch_file.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96 };

typedef struct like {
    dsi_deepspeed_out *o;
    ds_checkpoint *ckpt;
    const char *folder;
    dsi_out_param *all; /* of the checkpoint, by name */
    size_t n_all;
    bool *used; /* [n_all] */
} like;

static ds_status no_memory(const like *l)
{
    return ds_fail(l->o->ctx, DS_ERR_NOMEM, "no memory for a folder for DeepSpeed");
}

static int compare_name(const void *a, const void *b)
{
    return strcmp(((const dsi_out_param *)a)->name, ((const dsi_out_param *)b)->name);
}

/* What the other folder's module calls `own` is a parameter of the model; NULL: it has none. */
static const ds_checkpoint_tensor *find_own(const like *l, const char *own)
{
    const dsi_ckpt_manifest *m = dsi_ckpt_manifest_of(l->ckpt);
    for (size_t i = 0; i < m->n_tensors; ++i) {
        const ds_checkpoint_tensor *t = &m->tensors[i];
        if (strcmp(t->kind, "master") == 0 && t->n_slices > 0 &&
            strcmp(m->slices[t->first_slice].entry, own) == 0) {
            return t;
        }
    }
    return NULL;
}

/* The checkpoint's parameter for a name of the other module. */
static ds_status find_param(like *l, const char *own, dsi_out_param *param_out)
{
    const ds_checkpoint_tensor *t = find_own(l, own);
    const dsi_out_param key = {.name = t != NULL ? t->name : own};
    const dsi_out_param *found = bsearch(&key, l->all, l->n_all, sizeof *l->all, compare_name);
    if (t == NULL || found == NULL || !ds_shape_equal(found->shape, t->meta.shape)) {
        return ds_fail(l->o->ctx, DS_ERR_ARG,
                       "%s has '%.160s' (%.160s), which %s has not, or has "
                       "in another shape",
                       l->folder, own, key.name, ds_checkpoint_get_info(l->o->ckpt)->path);
    }
    l->used[found - l->all] = true;
    *param_out = *found;
    param_out->name = dsi_arena_strdup(l->o->arena, own);
    return param_out->name != NULL ? DS_OK : no_memory(l);
}

/* ---- stages ---- */

static ds_status open_stage(const like *l, uint32_t stage, dsi_torch_file *file)
{
    char name[NAME_BYTES];
    (void)snprintf(name, sizeof name, "mp_rank_%02u_model_states.pt", stage);
    char *path = dsi_path_join(l->folder, name);
    const ds_status status =
        path != NULL ? dsi_torch_open(l->o->ctx, path, DSI_MAP_NO_LINK, file) : no_memory(l);
    free(path);
    return status;
}

/* Groups and order of a stage's parameters, as its file has them. */
static ds_status take_stage(like *l, const dsi_pickle *groups)
{
    dsi_deepspeed_out *o = l->o;
    const size_t n = dsi_pickle_count(groups);
    o->n_params = 0;
    o->params = dsi_arena_array(o->arena, l->n_all + 1, sizeof *o->params);
    if (o->params == NULL) {
        return no_memory(l);
    }
    if (n != dsi_out_group_count(o)) {
        return ds_fail(o->ctx, DS_ERR_ARG,
                       "%s has %zu groups of parameters, and the checkpoint's weight decay is of "
                       "%zu",
                       l->folder, n, dsi_out_group_count(o));
    }
    o->n_groups = n;
    for (size_t g = 0; g < n; ++g) {
        const dsi_pickle *list = dsi_pickle_at(groups, g);
        o->group_begin[g] = o->n_params;
        for (size_t i = 0; dsi_pickle_is(list, DSI_PICKLE_DICT) && i < list->list.n; i += 2) {
            const char *own = dsi_pickle_text(list->list.items[i]);
            if (o->n_params == l->n_all) {
                return ds_fail(o->ctx, DS_ERR_FORMAT, "%s has a parameter twice", l->folder);
            }
            DS_TRY(find_param(l, own != NULL ? own : "?", &o->params[o->n_params]));
            ++o->n_params;
        }
    }
    o->group_begin[n] = o->n_params;
    return DS_OK;
}

static ds_status write_stage(like *l, uint32_t stage)
{
    dsi_torch_file file = {0};
    ds_status status = open_stage(l, stage, &file);
    if (status >= 0) {
        status = take_stage(l, dsi_pickle_get(file.root, "param_shapes"));
    }
    dsi_torch_close(&file);
    DS_TRY(status);
    l->o->stage = stage;
    return dsi_out_zero(l->o);
}

/* ---- layers ---- */

/* The own name of a layer's tensor: its layer's number and key, or a tied module's that has it. */
static ds_status own_name(const like *l, long layer, const char *key, char *own, size_t n)
{
    const dsi_ckpt_manifest *m = dsi_ckpt_manifest_of(l->ckpt);
    size_t found = 0;
    (void)snprintf(own, n, "%ld.%s", layer, key);
    if (find_own(l, own) != NULL) {
        return DS_OK;
    }
    for (size_t i = 0; i < m->n_tensors; ++i) {
        const ds_checkpoint_tensor *t = &m->tensors[i];
        const char *entry = t->n_slices > 0 ? m->slices[t->first_slice].entry : "";
        const size_t length = strlen(entry), tail = strlen(key);
        if (strcmp(t->kind, "master") == 0 && strncmp(entry, "tied_modules.", 13) == 0 &&
            length > 14 + tail && strcmp(entry + length - tail, key) == 0 &&
            entry[length - tail - 1] == '.' &&
            strchr(entry + 13, '.') == entry + length - tail - 1) {
            (void)snprintf(own, n, "%s", entry);
            ++found;
        }
    }
    return found == 1 ? DS_OK
                      : ds_fail(l->o->ctx, DS_ERR_UNSUPPORTED,
                                "%s: '%.160s' of layer %ld is no parameter of it, or of several "
                                "tied modules",
                                l->folder, key, layer);
}

/* What a file of a layer holds while it is written. */
typedef struct layer_values {
    dsi_out_param *params;
    dsi_out_vector *vectors;
    dsi_out_piece *pieces;
} layer_values;

static ds_status put_layer(like *l, long layer, const dsi_pickle *root, layer_values *v,
                           dsi_torch_out *t)
{
    char own[1024];
    dsi_torch_ordered(t);
    for (size_t i = 0; i < dsi_pickle_count(root); ++i) {
        const char *key = dsi_pickle_text(root->list.items[2 * i]);
        const dsi_pickle *value = root->list.items[2 * i + 1];
        if (key == NULL || !dsi_pickle_is(value, DSI_PICKLE_TENSOR)) {
            return ds_fail(l->o->ctx, DS_ERR_FORMAT, "%s: layer %ld is no dict of tensors",
                           l->folder, layer);
        }
        DS_TRY(own_name(l, layer, key, own, sizeof own));
        DS_TRY(find_param(l, own, &v->params[i]));
        v->pieces[i] = (dsi_out_piece){.param = &v->params[i], .count = v->params[i].count};
        v->vectors[i] = (dsi_out_vector){.ckpt = l->o->ckpt,
                                         .kind = DSI_OUT_WEIGHT,
                                         .dtype = l->o->values->compute_dtype,
                                         .pieces = &v->pieces[i],
                                         .n = 1,
                                         .count = v->params[i].count};
        dsi_torch_text(t, key);
        dsi_out_put(t, &v->vectors[i], v->params[i].shape);
    }
    dsi_torch_dict_end(t);
    return DS_OK;
}

static ds_status copy_layer(like *l, long layer, const char *name)
{
    dsi_deepspeed_out *o = l->o;
    dsi_torch_file file = {0};
    char *from = dsi_path_join(l->folder, name);
    char *to = dsi_path_join(o->folder, name);
    ds_status status = from != NULL && to != NULL
                           ? dsi_torch_open(o->ctx, from, DSI_MAP_NO_LINK, &file)
                           : no_memory(l);
    if (status >= 0 && !dsi_pickle_is(file.root, DSI_PICKLE_DICT)) {
        status = ds_fail(o->ctx, DS_ERR_FORMAT, "%s is no dict of tensors", from);
    }
    if (status >= 0) {
        const size_t n = dsi_pickle_count(file.root) + 1;
        layer_values v = {dsi_arena_array(o->arena, n, sizeof *v.params),
                          dsi_arena_array(o->arena, n, sizeof *v.vectors),
                          dsi_arena_array(o->arena, n, sizeof *v.pieces)};
        dsi_torch_out t = dsi_torch_out_make(o->ctx);
        status = v.params != NULL && v.vectors != NULL && v.pieces != NULL
                     ? put_layer(l, layer, file.root, &v, &t)
                     : no_memory(l);
        status = status >= 0 ? dsi_torch_out_write(&t, to) : status;
        dsi_torch_out_free(&t);
    }
    dsi_torch_close(&file);
    free(to);
    free(from);
    return status;
}

static ds_status write_layers(like *l)
{
    char **names = NULL;
    size_t n = 0;
    DS_TRY(dsi_folder_list(l->o->ctx, l->folder, &names, &n));
    ds_status status = DS_OK;
    for (size_t i = 0; i < n && status >= 0; ++i) {
        char *end = NULL;
        if (strncmp(names[i], "layer_", 6) == 0 && strstr(names[i], "model_states.pt") != NULL) {
            const long layer = strtol(names[i] + 6, &end, 10);
            status = *end == '-' ? copy_layer(l, layer, names[i]) : DS_OK;
        }
    }
    dsi_names_free(names, n);
    return status;
}

static ds_status check_used(const like *l)
{
    for (size_t i = 0; i < l->n_all; ++i) {
        if (!l->used[i]) {
            return ds_fail(l->o->ctx, DS_ERR_ARG, "%s has '%.160s', which %s has not",
                           ds_checkpoint_get_info(l->o->ckpt)->path, l->all[i].name, l->folder);
        }
    }
    return DS_OK;
}

static ds_status write_all(like *l)
{
    int n_model = 0;
    bool pipeline = false;
    bool experts = false;
    (void)dsi_ckpt_foreign_zero_ranks(l->folder, &n_model, &pipeline, &experts);
    if (!pipeline) {
        return ds_fail(l->o->ctx, DS_ERR_ARG, "%s is no folder of a pipeline of DeepSpeed",
                       l->folder);
    }
    l->all = l->o->params;
    l->n_all = l->o->n_params;
    qsort(l->all, l->n_all, sizeof *l->all, compare_name);
    l->used = dsi_arena_array(l->o->arena, l->n_all + 1, sizeof *l->used);
    if (l->used == NULL) {
        return no_memory(l);
    }
    l->o->n_stages = (uint32_t)n_model;
    for (uint32_t s = 0; s < l->o->n_stages; ++s) {
        DS_TRY(write_stage(l, s));
    }
    DS_TRY(check_used(l));
    return write_layers(l);
}

ds_status dsi_out_pipeline(dsi_deepspeed_out *o)
{
    like l = {.o = o};
    DS_TRY(ds_checkpoint_open(o->ctx, o->given->like, NULL, &l.ckpt));
    l.folder = ds_checkpoint_get_info(l.ckpt)->path;
    const ds_status status = write_all(&l);
    ds_checkpoint_close(&l.ckpt);
    return status;
}
