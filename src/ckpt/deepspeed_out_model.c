/* SPDX-License-Identifier: Apache-2.0 */
/* The model's file of a folder for DeepSpeed: weights, names and shapes, place in the schedule,
 * counters. See deepspeed_out.h. */
#include "ckpt/deepspeed_out.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>

/* What the file holds while it is written. */
typedef struct values {
    dsi_out_vector *vectors; /* [n] */
    dsi_out_piece *pieces;   /* [n] */
    size_t *storages;        /* [n] */
} values;

static void put_whole(dsi_torch_out *t, const char *key, int64_t value)
{
    dsi_torch_text(t, key);
    dsi_torch_whole(t, value);
}

static void put_none(dsi_torch_out *t, const char *key)
{
    dsi_torch_text(t, key);
    dsi_torch_none(t);
}

/* ---- weights ---- */

/* A storage for elements of a parameter in the training dtype. */
static void make_storage(const dsi_deepspeed_out *o, dsi_torch_out *t, const dsi_out_param *p,
                         int64_t count, size_t i, values *v)
{
    v->pieces[i] = (dsi_out_piece){.param = p, .count = count};
    v->vectors[i] = (dsi_out_vector){.ckpt = o->ckpt,
                                     .kind = DSI_OUT_WEIGHT,
                                     .dtype = o->values->compute_dtype,
                                     .pieces = &v->pieces[i],
                                     .n = 1,
                                     .count = count};
    v->storages[i] = dsi_torch_storage(t, v->vectors[i].dtype, count, dsi_out_fill, &v->vectors[i]);
}

static void put_weights(const dsi_deepspeed_out *o, dsi_torch_out *t, bool weights, values *v)
{
    size_t alias = 0;
    dsi_torch_ordered(t);
    for (size_t i = 0; i < o->n_params && !t->failed; ++i) {
        const dsi_out_param *p = &o->params[i];
        make_storage(o, t, p, weights ? p->count : 0, i, v);
        alias = o->alias_of == p->name ? i : alias;
        dsi_torch_text(t, p->name);
        dsi_torch_tensor(t, v->storages[i], 0, weights ? p->shape : ds_shape_1d(0));
    }
    if (o->alias != NULL && !t->failed) {
        dsi_torch_text(t, o->alias);
        dsi_torch_tensor(t, v->storages[alias], 0,
                         weights ? o->params[alias].shape : ds_shape_1d(0));
    }
    dsi_torch_dict_end(t);
}

/* ---- weights as another folder has them ---- */

static const dsi_out_param *find_param(const dsi_deepspeed_out *o, const char *name)
{
    for (size_t i = 0; i < o->n_params; ++i) {
        if (strcmp(o->params[i].name, name) == 0) {
            return &o->params[i];
        }
    }
    return NULL;
}

/* Entry i of the other's module, whose storage stands; or that of which it is a second name; n:
 * neither. */
static size_t storage_of(const dsi_pickle *module, size_t i, const values *v)
{
    const size_t n = dsi_pickle_count(module);
    const dsi_pickle *own = module->list.items[2 * i + 1];
    if (v->pieces[i].param != NULL) {
        return i;
    }
    for (size_t k = 0; k < n; ++k) {
        const dsi_pickle *other = module->list.items[2 * k + 1];
        if (v->pieces[k].param != NULL && dsi_pickle_dense(own->tensor) != NULL &&
            dsi_pickle_dense(other->tensor) == dsi_pickle_dense(own->tensor) &&
            ds_shape_equal(other->tensor->shape, own->tensor->shape)) {
            return k;
        }
    }
    return n;
}

static bool is_buffer(const dsi_deepspeed_out *o, const char *name)
{
    const dsi_pickle *names = dsi_pickle_get(o->like, "buffer_names");
    for (size_t i = 0; i < dsi_pickle_count(names); ++i) {
        const char *text = dsi_pickle_text(dsi_pickle_at(names, i));
        if (text != NULL && strcmp(text, name) == 0) {
            return true;
        }
    }
    return false;
}

static ds_status put_like(const dsi_deepspeed_out *o, dsi_torch_out *t, const dsi_pickle *module,
                          values *v)
{
    const size_t n = dsi_pickle_count(module);
    for (size_t i = 0; i < n; ++i) {
        const char *name = dsi_pickle_text(module->list.items[2 * i]);
        const dsi_pickle *value = module->list.items[2 * i + 1];
        if (name == NULL || !dsi_pickle_is(value, DSI_PICKLE_TENSOR)) {
            return ds_fail(o->ctx, DS_ERR_FORMAT, "%s: module is no dict of tensors",
                           o->given->like);
        }
        const dsi_out_param *p = find_param(o, name);
        if (p != NULL && !ds_shape_equal(p->shape, value->tensor->shape)) {
            return ds_fail(o->ctx, DS_ERR_FORMAT,
                           "%s: '%.160s' has another shape in module than in param_shapes",
                           o->given->like, name);
        }
        if (p != NULL) {
            make_storage(o, t, p, p->count, i, v);
        }
    }
    dsi_torch_ordered(t);
    for (size_t i = 0; i < n; ++i) {
        const char *name = dsi_pickle_text(module->list.items[2 * i]);
        const dsi_pickle *value = module->list.items[2 * i + 1];
        const size_t k = storage_of(module, i, v);
        dsi_torch_text(t, name);
        if (k < n) {
            dsi_torch_tensor(t, v->storages[k], 0, value->tensor->shape);
        } else if (!is_buffer(o, name) || !dsi_torch_copy(t, value)) {
            return ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                           "%s: '%.160s' is no parameter that is trained, no second name of one, "
                           "and no buffer that can be kept",
                           o->given->like, name);
        }
    }
    dsi_torch_dict_end(t);
    return DS_OK;
}

static ds_status put_module(const dsi_deepspeed_out *o, dsi_torch_out *t, bool weights, values *v)
{
    const dsi_pickle *module = dsi_pickle_get(o->like, "module");
    dsi_torch_text(t, "module");
    if (dsi_pickle_is(module, DSI_PICKLE_DICT) && o->given->zero_stage > 0) {
        return put_like(o, t, module, v);
    }
    if (o->like != NULL) {
        dsi_torch_none(
            t); /* a pipeline's: in the files of the layers; a universal one's: in zero */
    } else {
        put_weights(o, t, weights, v);
    }
    return DS_OK;
}

/* ---- names, shapes, counters ---- */

/* Keys of the other's file that are as they were. */
static ds_status keep_keys(const dsi_deepspeed_out *o, dsi_torch_out *t, const char *const *keys)
{
    for (; *keys != NULL; ++keys) {
        const dsi_pickle *value = dsi_pickle_get(o->like, *keys);
        if (value == NULL) {
            continue;
        }
        dsi_torch_text(t, *keys);
        if (!dsi_torch_copy(t, value)) {
            return ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                           "%s: %s has values of a class, which are not written", o->given->like,
                           *keys);
        }
    }
    return DS_OK;
}

static void put_shapes(const dsi_deepspeed_out *o, dsi_torch_out *t, const size_t *sizes, size_t n)
{
    size_t at = 0;
    dsi_torch_text(t, "param_shapes");
    dsi_torch_list(t);
    for (size_t i = 0; i < n; ++i) {
        dsi_torch_ordered(t);
        for (size_t k = 0; k < sizes[i]; ++k, ++at) {
            dsi_torch_text(t, o->params[at].name);
            dsi_torch_size(t, o->params[at].shape);
        }
        dsi_torch_dict_end(t);
    }
    dsi_torch_list_end(t);
    put_none(t, "frozen_param_shapes");
    put_none(t, "frozen_param_fragments");
    if (o->like == NULL) {
        dsi_torch_text(t, "shared_params");
        dsi_torch_dict(t);
        if (o->alias != NULL) {
            dsi_torch_text(t, o->alias);
            dsi_torch_text(t, o->alias_of);
        }
        dsi_torch_dict_end(t);
    }
}

/* The place in the schedule for DeepSpeed's own (last_batch_iteration) and for torch's LambdaLR,
 * which keeps its own base rates and functions. */
static void put_scheduler(const dsi_deepspeed_out *o, dsi_torch_out *t)
{
    const int64_t made = o->steps - o->skipped;
    dsi_torch_text(t, "lr_scheduler");
    dsi_torch_dict(t);
    put_whole(t, "last_batch_iteration", made - 1);
    put_whole(t, "last_epoch", made);
    put_whole(t, "_step_count", made + 1);
    dsi_torch_text(t, "_last_lr");
    dsi_torch_list(t);
    for (size_t g = 0; g < o->n_groups; ++g) {
        dsi_torch_real(t, o->lr);
    }
    dsi_torch_list_end(t);
    dsi_torch_text(t, "lr_lambdas");
    dsi_torch_list(t);
    for (size_t g = 0; g < o->n_groups; ++g) {
        dsi_torch_none(t);
    }
    dsi_torch_list_end(t);
    dsi_torch_dict_end(t);
}

static void put_model(const dsi_deepspeed_out *o, dsi_torch_out *t)
{
    put_scheduler(o, t);
    put_none(t, "data_sampler");
    put_none(t, "random_ltd");
    put_whole(t, "skipped_steps", o->skipped);
    put_whole(t, "global_steps", o->steps);
    put_whole(t, "global_samples", o->samples);
    put_whole(t, "dp_world_size", o->given->ranks);
    const uint32_t stages = o->n_stages > 0 ? o->n_stages : 1;
    const uint32_t tensor = o->n_tensor > 0 ? o->n_tensor : 1;
    put_whole(t, "mp_world_size", stages * tensor);
    dsi_torch_text(t, "checkpoint_parallel_dimensions");
    dsi_torch_dict(t);
    put_whole(t, "pp_degree", stages);
    put_whole(t, "tp_degree", tensor);
    dsi_torch_dict_end(t);
    dsi_out_config(o, t);
}

static ds_status put_all(const dsi_deepspeed_out *o, dsi_torch_out *t, bool weights,
                         const size_t *sub_groups, size_t n, values *v)
{
    static const char *const kept[] = {
        "buffer_names", "shared_params",    "universal_checkpoint_info",
        "num_experts",  "ds_autoep_layers", NULL};
    dsi_torch_dict(t);
    DS_TRY(put_module(o, t, weights, v));
    if (o->like == NULL) {
        dsi_torch_text(t, "buffer_names");
        dsi_torch_list(t);
        dsi_torch_list_end(t);
    }
    put_none(t, "optimizer");
    put_shapes(o, t, sub_groups, n);
    put_model(o, t);
    DS_TRY(keep_keys(o, t, kept));
    dsi_torch_dict_end(t);
    return DS_OK;
}

ds_status dsi_out_model_file(const dsi_deepspeed_out *o, const char *name, bool weights,
                             const size_t *sub_groups, size_t n)
{
    const size_t room = o->n_params + dsi_pickle_count(dsi_pickle_get(o->like, "module")) + 1;
    values v = {calloc(room, sizeof *v.vectors), calloc(room, sizeof *v.pieces),
                calloc(room, sizeof *v.storages)};
    char *path = dsi_path_join(o->folder, name);
    ds_status status = v.vectors != NULL && v.pieces != NULL && v.storages != NULL && path != NULL
                           ? DS_OK
                           : ds_fail(o->ctx, DS_ERR_NOMEM, "no memory to write %s", name);
    if (status >= 0) {
        dsi_torch_out t = dsi_torch_out_make(o->ctx);
        status = put_all(o, &t, weights, sub_groups, n, &v);
        status = status >= 0 ? dsi_torch_out_write(&t, path) : status;
        dsi_torch_out_free(&t);
    }
    free(path);
    free(v.storages);
    free(v.pieces);
    free(v.vectors);
    return status;
}
