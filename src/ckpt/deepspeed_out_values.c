/* SPDX-License-Identifier: Apache-2.0 */
/* Counters, rate, loss scaler and configuration of a run as DeepSpeed's files hold them. See
 * deepspeed_out.h. */
#include "ckpt/deepspeed_out.h"

#include "io/json_load.h"

#include <deepspeed/context.h>
#include <math.h>
#include <string.h>

/* ---- states ---- */

static ds_status read_state(const dsi_deepspeed_out *o, const char *name, json_t **json_out)
{
    const char *text = ds_checkpoint_state(o->ckpt, name);
    json_error_t error;
    *json_out = text != NULL ? dsi_json_parse(text, strlen(text), 0, &error) : NULL;
    return text == NULL || json_is_object(*json_out)
               ? DS_OK
               : ds_fail(o->ctx, DS_ERR_FORMAT, "%s: the state \"%s\" is no object",
                         ds_checkpoint_get_info(o->ckpt)->path, name);
}

/* Ranks whose batch the configuration has. */
static ds_status find_ranks(const dsi_deepspeed_out *o, const json_t *config, uint32_t *ranks_out)
{
    json_t *origin = NULL;
    DS_TRY(read_state(o, "origin", &origin));
    const json_int_t all = json_integer_value(json_object_get(config, "train_batch_size"));
    const json_int_t micro =
        json_integer_value(json_object_get(config, "train_micro_batch_size_per_gpu"));
    const json_int_t steps =
        json_integer_value(json_object_get(config, "gradient_accumulation_steps"));
    const json_int_t was = json_integer_value(json_object_get(origin, "ranks"));
    json_decref(origin);
    json_int_t n = was > 0 ? was : 1;
    if (all > 0 && micro > 0 && steps > 0 && micro <= all && steps <= all / micro) {
        n = all / micro / steps;
    }
    *ranks_out = n < 65536 ? (uint32_t)n : 1;
    return DS_OK;
}

static ds_status read_config(dsi_deepspeed_out *o)
{
    const char *own = ds_checkpoint_state(o->ckpt, "config");
    const char *text = own != NULL ? own : ds_checkpoint_state(o->ckpt, "ds_config");
    const ds_config_params params = {.allow_unknown_keys = true, .for_plan = true};
    json_t *config = NULL;
    uint32_t ranks = 1;
    if (text == NULL) {
        return ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                       "%s does not hold its configuration, so the optimizer's numbers are not "
                       "known",
                       ds_checkpoint_get_info(o->ckpt)->path);
    }
    DS_TRY(read_state(o, own != NULL ? "config" : "ds_config", &config));
    ds_status status = find_ranks(o, config, &ranks);
    /* the axes of the mesh do not matter here, and would want their ranks */
    (void)json_object_del(config, "tensor_parallel");
    (void)json_object_del(config, "sequence_parallel_size");
    (void)json_object_del(config, "expert_parallel");
    char *left = json_dumps(config, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(config);
    if (status >= 0) {
        status = left != NULL ? ds_config_load_text(o->ctx, "config", left, strlen(left), &params,
                                                    &o->config)
                              : ds_fail(o->ctx, DS_ERR_NOMEM, "no memory for a configuration");
    }
    free(left);
    DS_TRY(status);
    DS_TRY(ds_config_resolve(o->config, ranks, NULL));
    o->values = dsi_config_values(o->config);
    return DS_OK;
}

static ds_status counter(const dsi_deepspeed_out *o, const char *key, int64_t *value_out)
{
    const json_t *value = json_object_get(o->engine, key);
    *value_out = json_integer_value(value);
    return json_is_integer(value) && *value_out >= 0
               ? DS_OK
               : ds_fail(o->ctx, DS_ERR_FORMAT,
                         "%s: \"%s\" of the state \"engine\" is no whole number >= 0",
                         ds_checkpoint_get_info(o->ckpt)->path, key);
}

static ds_status check_optimizer(const dsi_deepspeed_out *o)
{
    const ds_config_values *v = o->values;
    if (v->optimizer.kind != DS_OPTIMIZER_ADAM) {
        return ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                       "%s is of the optimizer %s; only folders of Adam and AdamW are written for "
                       "DeepSpeed",
                       ds_checkpoint_get_info(o->ckpt)->path,
                       ds_optimizer_kind_name(v->optimizer.kind));
    }
    if (v->scheduler_has_groups) {
        return ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                       "%s has another scheduler.params for norms and biases, which is not written "
                       "for DeepSpeed",
                       ds_checkpoint_get_info(o->ckpt)->path);
    }
    return DS_OK;
}

ds_status dsi_out_read_states(dsi_deepspeed_out *o)
{
    DS_TRY(read_state(o, "engine", &o->engine));
    DS_TRY(read_state(o, "loss_scaler", &o->scaler));
    if (o->engine == NULL) {
        return ds_fail(o->ctx, DS_ERR_UNSUPPORTED,
                       "%s holds no counters of a run, which DeepSpeed would go on with",
                       ds_checkpoint_get_info(o->ckpt)->path);
    }
    DS_TRY(counter(o, "global_steps", &o->steps));
    DS_TRY(counter(o, "skipped_steps", &o->skipped));
    DS_TRY(counter(o, "global_samples", &o->samples));
    if (o->skipped > o->steps) {
        return ds_fail(o->ctx, DS_ERR_FORMAT, "%s: more steps were skipped than were made",
                       ds_checkpoint_get_info(o->ckpt)->path);
    }
    DS_TRY(read_config(o));
    DS_TRY(check_optimizer(o));
    const double forced = json_number_value(json_object_get(o->engine, "lr_override"));
    const bool is_forced = json_is_number(json_object_get(o->engine, "lr_override")) && forced >= 0;
    const ds_schedule_point point =
        ds_schedule_at(&o->values->scheduler, o->values->optimizer.lr, o->steps - o->skipped);
    o->lr = is_forced ? forced : point.lr;
    o->beta1 = point.has_momentum ? point.momentum : o->values->optimizer.beta1;
    return DS_OK;
}

/* ---- keys and values ---- */

static void put_whole(dsi_torch_out *t, const char *key, int64_t value)
{
    dsi_torch_text(t, key);
    dsi_torch_whole(t, value);
}

static void put_real(dsi_torch_out *t, const char *key, double value)
{
    dsi_torch_text(t, key);
    dsi_torch_real(t, value);
}

static void put_bool(dsi_torch_out *t, const char *key, bool value)
{
    dsi_torch_text(t, key);
    dsi_torch_bool(t, value);
}

static void put_text(dsi_torch_out *t, const char *key, const char *value)
{
    dsi_torch_text(t, key);
    dsi_torch_text(t, value);
}

static void put_none(dsi_torch_out *t, const char *key)
{
    dsi_torch_text(t, key);
    dsi_torch_none(t);
}

/* By which DeepSpeed knows a group of experts. */
static void put_own_keys(const dsi_deepspeed_out *o, dsi_torch_out *t, size_t g)
{
    const dsi_pickle *group = dsi_pickle_at(o->like_groups, g);
    const char *name = dsi_pickle_text(dsi_pickle_get(group, "name"));
    const dsi_pickle *moe = dsi_pickle_get(group, "moe");
    if (name != NULL) {
        put_text(t, "name", name);
    }
    if (dsi_pickle_is(moe, DSI_PICKLE_BOOL)) {
        put_bool(t, "moe", moe->truth);
    }
}

/* What torch's Adam, FusedAdam and DeepSpeedCPUAdam have in common and what one of them wants.
 * n_vectors: flat vectors of each group, numbered through. */
void dsi_out_param_groups(const dsi_deepspeed_out *o, dsi_torch_out *t, const size_t *n_vectors,
                          bool decay)
{
    const ds_config_optimizer *a = &o->values->optimizer;
    int64_t number = 0;
    dsi_torch_text(t, "param_groups");
    dsi_torch_list(t);
    for (size_t g = 0; g < o->n_groups; ++g) {
        dsi_torch_dict(t);
        put_real(t, "lr", o->lr);
        dsi_torch_text(t, "betas");
        dsi_torch_tuple(t);
        dsi_torch_real(t, o->beta1);
        dsi_torch_real(t, a->beta2);
        dsi_torch_tuple_end(t);
        put_real(t, "eps", a->eps);
        if (decay) {
            put_real(t, "weight_decay", o->decays[g] ? a->weight_decay : 0.0);
        }
        put_bool(t, "bias_correction", a->bias_correction);
        put_bool(t, "amsgrad", false);
        put_bool(t, "maximize", false);
        put_none(t, "foreach");
        put_bool(t, "capturable", false);
        put_bool(t, "differentiable", false);
        put_none(t, "fused");
        put_bool(t, "decoupled_weight_decay", a->decoupled);
        put_whole(t, "step", o->steps - o->skipped); /* FusedAdam's, of versions before 0.9 */
        dsi_torch_text(t, "params");
        dsi_torch_list(t);
        for (size_t i = 0; i < n_vectors[g]; ++i) {
            dsi_torch_whole(t, number++);
        }
        dsi_torch_list_end(t);
        put_own_keys(o, t, g);
        dsi_torch_dict_end(t);
    }
    dsi_torch_list_end(t);
}

static int64_t scaler_whole(const dsi_deepspeed_out *o, const char *key)
{
    return json_integer_value(json_object_get(o->scaler, key));
}

/* fp16 has a scale; without it DeepSpeed has one of 1, which only stage 3 must find. */
void dsi_out_loss_scaler(const dsi_deepspeed_out *o, dsi_torch_out *t, bool always)
{
    static const char module[] = "deepspeed.runtime.fp16.loss_scaler";
    const ds_config_fp16 *f = &o->values->fp16;
    const bool dynamic = f->enabled && f->dynamic;
    const double scale = json_number_value(json_object_get(o->scaler, "scale"));
    if (f->enabled || always) {
        dsi_torch_text(t, "loss_scaler");
        dsi_torch_object(t, module, dynamic ? "DynamicLossScaler" : "LossScaler");
        put_real(t, "cur_scale", f->enabled && scale > 0.0 ? scale : 1.0);
        put_bool(t, "dynamic", dynamic);
        if (dynamic) {
            put_whole(t, "cur_iter", scaler_whole(o, "iteration"));
            put_whole(t, "last_overflow_iter", scaler_whole(o, "last_overflow"));
            put_real(t, "scale_factor", 2.0);
            put_whole(t, "scale_window", f->loss_scale_window);
            put_real(t, "min_scale", f->min_loss_scale);
            put_whole(t, "delayed_shift", f->hysteresis);
            put_whole(t, "cur_hysteresis", scaler_whole(o, "hysteresis_left"));
            put_bool(t, "consecutive_hysteresis", f->consecutive_hysteresis);
            put_bool(t, "raise_error_at_min_scale", true);
            dsi_torch_text(t, "dtype");
            dsi_torch_global(t, "torch", "float16");
        }
        dsi_torch_object_end(t);
    }
    put_bool(t, "dynamic_loss_scale", dynamic);
    put_bool(t, "overflow", false);
}

static void put_json(dsi_torch_out *t, const json_t *value)
{
    size_t i;
    const json_t *item;
    const char *key;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        dsi_torch_dict(t);
        json_object_foreach((json_t *)value, key, item)
        {
            dsi_torch_text(t, key);
            put_json(t, item);
        }
        dsi_torch_dict_end(t);
        break;
    case JSON_ARRAY:
        dsi_torch_list(t);
        json_array_foreach(value, i, item)
        {
            put_json(t, item);
        }
        dsi_torch_list_end(t);
        break;
    case JSON_STRING:
        dsi_torch_text(t, json_string_value(value));
        break;
    case JSON_INTEGER:
        dsi_torch_whole(t, json_integer_value(value));
        break;
    case JSON_REAL:
        dsi_torch_real(t, json_real_value(value));
        break;
    case JSON_NULL:
        dsi_torch_none(t);
        break;
    default:
        dsi_torch_bool(t, json_is_true(value));
    }
}

/* The keys that say how the run trained, and the stage of the folder: DeepSpeed loads none of it,
 * its tools print it, and a run of this library compares it. */
void dsi_out_config(const dsi_deepspeed_out *o, dsi_torch_out *t)
{
    static const char *const keys[] = {"train_micro_batch_size_per_gpu",
                                       "gradient_accumulation_steps", "gradient_clipping",
                                       "optimizer", "scheduler"};
    char *text = NULL;
    json_error_t error;
    const ds_config_values *v = o->values;
    const dsi_pickle *experts =
        dsi_pickle_get(dsi_pickle_get(o->like, "ds_config"), "expert_parallel");
    dsi_torch_text(t, "ds_config");
    dsi_torch_dict(t);
    if (experts != NULL) { /* by its preset the names are read again */
        dsi_torch_text(t, "expert_parallel");
        if (!dsi_torch_copy(t, experts)) {
            dsi_torch_none(t);
        }
    }
    if (ds_config_print(o->config, false, &text) >= 0) {
        json_t *config = dsi_json_parse(text, strlen(text), 0, &error);
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; ++i) {
            const json_t *value = json_object_get(config, keys[i]);
            if (value != NULL) {
                dsi_torch_text(t, keys[i]);
                put_json(t, value);
            }
        }
        json_decref(config);
    }
    free(text);
    dsi_torch_text(t, "zero_optimization");
    dsi_torch_dict(t);
    put_whole(t, "stage", o->given->zero_stage > 0 ? o->given->zero_stage : 1);
    dsi_torch_dict_end(t);
    if (v->fp16.enabled || v->bf16.enabled) {
        dsi_torch_text(t, v->fp16.enabled ? "fp16" : "bf16");
        dsi_torch_dict(t);
        put_bool(t, "enabled", true);
        dsi_torch_dict_end(t);
    }
    dsi_torch_dict_end(t);
    put_text(t, "ds_version", DSI_OUT_VERSION);
}
