/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a pipeline's layers and of experts in a folder that is like another: their names and
 * keys are the other's. See deepspeed_out_like.h.
 *
 *     layer_LL-model_states.pt                          keys inside of layer LL
 *     layer_L_expert_E_mp_rank_MM_model_states.pt       names of the module, among all experts
 */
#include "ckpt/deepspeed_out_like.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_status no_memory(const dsi_out_like_state *l)
{
    return ds_fail(l->o->ctx, DS_ERR_NOMEM, "no memory for a folder for DeepSpeed");
}

/* The module's name for a key: its layer's number (negative: it has the whole name) and the key, or
 * that of a tied module that has it. */
static ds_status own_name(const dsi_out_like_state *l, long layer, const char *key, char *own,
                          size_t n)
{
    size_t found = 0;
    if (layer < 0) {
        (void)snprintf(own, n, "%s", key);
        return DS_OK;
    }
    (void)snprintf(own, n, "%ld.%s", layer, key);
    if (dsi_out_own_find(l, own) != NULL) {
        return DS_OK;
    }
    for (size_t i = 0; i < l->n_names; ++i) {
        const char *entry = l->names[i].name;
        const size_t length = strlen(entry), tail = strlen(key);
        if (strncmp(entry, "tied_modules.", 13) == 0 && length > 14 + tail &&
            strcmp(entry + length - tail, key) == 0 && entry[length - tail - 1] == '.' &&
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

static ds_status put_layer(dsi_out_like_state *l, long layer, const dsi_pickle *root,
                           layer_values *v, dsi_torch_out *t)
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
        DS_TRY(dsi_out_own_param(l, own, value->tensor->shape, &v->params[i]));
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

static ds_status copy_layer(dsi_out_like_state *l, long layer, const char *name)
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

/* Of a pipeline's layer: its number. Of an expert: -1. False: neither. */
static bool is_layer(const char *name, long *layer_out)
{
    static const char end[] = "model_states.pt";
    const size_t n = strlen(name);
    char *rest = NULL;
    if (strncmp(name, "layer_", 6) != 0 || name[6] < '0' || name[6] > '9' || n < sizeof end ||
        strcmp(name + n - (sizeof end - 1), end) != 0) {
        return false;
    }
    *layer_out = strtol(name + 6, &rest, 10);
    if (strncmp(rest, "_expert_", 8) == 0) {
        *layer_out = -1;
        return true;
    }
    return *rest == '-';
}

ds_status dsi_out_layers(dsi_out_like_state *l)
{
    char **names = NULL;
    size_t n = 0;
    DS_TRY(dsi_folder_list(l->o->ctx, l->folder, &names, &n));
    ds_status status = DS_OK;
    for (size_t i = 0; i < n && status >= 0; ++i) {
        long layer = 0;
        if (is_layer(names[i], &layer)) {
            status = copy_layer(l, layer, names[i]);
        }
    }
    dsi_names_free(names, n);
    return status;
}
