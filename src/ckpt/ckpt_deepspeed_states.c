/* SPDX-License-Identifier: Apache-2.0 */
/* Counters, loss scaler and configuration of DeepSpeed for Python as the JSON states that an engine
 * of ours saves. See ckpt_deepspeed.h. A number that is missing or does not fit the others is an
 * error: a run that goes on from wrong counters would go on silently otherwise. */
#include "ckpt/ckpt_deepspeed.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_STATES = 6, MOST_VALUES = 1000000 };

/* ---- any value as JSON ---- */

static json_t *to_json(const dsi_pickle *value, size_t *left);

static json_t *list_to_json(const dsi_pickle *value, size_t *left)
{
    json_t *list = json_array();
    for (size_t i = 0; i < value->list.n; ++i) {
        json_t *item = to_json(value->list.items[i], left);
        if (item == NULL || json_array_append_new(list, item) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *dict_to_json(const dsi_pickle *value, size_t *left)
{
    json_t *object = json_object();
    for (size_t i = 0; i < value->list.n; i += 2) {
        const char *key = dsi_pickle_text(value->list.items[i]);
        json_t *item = key != NULL ? to_json(value->list.items[i + 1], left) : NULL;
        if (item == NULL || json_object_set_new(object, key, item) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static json_t *to_json(const dsi_pickle *value, size_t *left)
{
    if ((*left)-- == 0) {
        *left = 0;
        return NULL;
    }
    switch (value->kind) {
    case DSI_PICKLE_NONE:
        return json_null();
    case DSI_PICKLE_BOOL:
        return json_boolean(value->truth);
    case DSI_PICKLE_INT:
        return json_integer(value->whole);
    case DSI_PICKLE_REAL:
        return isfinite(value->real) ? json_real(value->real)
                                     : json_null(); /* steps_per_print: inf */
    case DSI_PICKLE_TEXT:
        return dsi_pickle_text(value) != NULL ? json_string(value->text.data) : NULL;
    case DSI_PICKLE_TUPLE:
    case DSI_PICKLE_LIST:
        return list_to_json(value, left);
    case DSI_PICKLE_DICT:
        return dict_to_json(value, left);
    default:
        return NULL;
    }
}

/* ---- the states ---- */

static ds_status no_memory(const dsi_deepspeed *d)
{
    return ds_fail(d->ctx, DS_ERR_NOMEM, "no memory to read %s", d->folder);
}

/* Takes json. */
static ds_status add_state(dsi_deepspeed *d, const char *section, json_t *json)
{
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    char *copy = text != NULL ? dsi_arena_strdup(d->m->arena, text) : NULL;
    free(text);
    json_decref(json);
    if (copy == NULL) {
        return no_memory(d);
    }
    d->m->states[d->m->n_states++] = (ds_text_pair){section, copy};
    return DS_OK;
}

static ds_status counter(const dsi_deepspeed *d, const char *key, int64_t *value_out)
{
    return dsi_pickle_whole(dsi_pickle_get(d->models[0].root, key), value_out) && *value_out >= 0
               ? DS_OK
               : ds_fail(d->ctx, DS_ERR_FORMAT, "%s: %s is no whole number >= 0", d->models[0].path,
                         key);
}

static const dsi_pickle *param_groups(const dsi_deepspeed *d)
{
    const char *base = d->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state";
    const dsi_pickle *groups = dsi_pickle_get(dsi_pickle_get(d->states[0], base), "param_groups");
    return groups != NULL ? groups : dsi_pickle_get(d->states[0], "param_groups"); /* universal */
}

/* Steps that the optimizer made, by what its states say; -1: they do not. */
static double optimizer_steps(const dsi_deepspeed *d)
{
    const dsi_pickle *groups = param_groups(d);
    const dsi_pickle *const places[] = {dsi_pickle_get(dsi_deepspeed_moments(d, 0, 0), "step"),
                                        dsi_pickle_get(d->states[0], "base_optimizer_state_step"),
                                        dsi_pickle_get(dsi_pickle_at(groups, 0), "step")};
    double steps = d->steps;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && steps < 0.0; ++i) {
        (void)dsi_pickle_number(places[i], &steps);
    }
    return steps;
}

/* Whether all that is trained has weight decay: 1, or with groups without it 0; -1: there is none,
 * or the groups do not say. */
static int decays_all(const dsi_deepspeed *d)
{
    const dsi_pickle *groups = param_groups(d);
    size_t with = 0;
    size_t without = 0;
    for (size_t i = 0; i < dsi_pickle_count(groups); ++i) {
        double decay = 0.0;
        if (dsi_pickle_number(dsi_pickle_get(dsi_pickle_at(groups, i), "weight_decay"), &decay)) {
            with += decay != 0.0;
            without += decay == 0.0;
        }
    }
    return with == 0 ? -1 : without == 0;
}

static ds_status add_engine(dsi_deepspeed *d)
{
    int64_t steps = 0;
    int64_t skipped = 0;
    int64_t samples = 0;
    DS_TRY(counter(d, "global_steps", &steps));
    DS_TRY(counter(d, "skipped_steps", &skipped));
    DS_TRY(counter(d, "global_samples", &samples));
    const double made = optimizer_steps(d);
    if (skipped > steps || (made >= 0.0 && made != (double)(steps - skipped))) {
        return ds_fail(d->ctx, DS_ERR_FORMAT,
                       "%s: global_steps %lld without skipped_steps %lld are not the %.0f steps "
                       "that the optimizer made",
                       d->folder, (long long)steps, (long long)skipped, made);
    }
    d->m->info.step = (uint64_t)steps;
    d->m->info.samples = (uint64_t)samples;
    json_t *engine =
        json_pack("{s:I,s:I,s:I,s:f}", "global_steps", (json_int_t)steps, "skipped_steps",
                  (json_int_t)skipped, "global_samples", (json_int_t)samples, "lr_override", -1.0);
    if (decays_all(d) >= 0) {
        (void)json_object_set_new(engine, "decay_all", json_integer(decays_all(d)));
    }
    return add_state(d, "engine", engine);
}

/* An attribute of the scaler as a whole number, or what it is without. */
static int64_t whole_or(const dsi_pickle *state, const char *key, int64_t otherwise)
{
    int64_t value = otherwise;
    (void)dsi_pickle_whole(dsi_pickle_get(state, key), &value);
    return value;
}

static ds_status add_loss_scaler(dsi_deepspeed *d)
{
    const dsi_pickle *scaler = dsi_pickle_get(d->states[0], "loss_scaler");
    const dsi_pickle *state =
        dsi_pickle_is(scaler, DSI_PICKLE_OBJECT) ? scaler->object.state : NULL;
    double scale = 0.0;
    if (state == NULL) {
        return DS_OK; /* BF16_Optimizer has none */
    }
    if (!dsi_pickle_number(dsi_pickle_get(state, "cur_scale"), &scale) || !(scale > 0.0) ||
        !isfinite(scale)) {
        return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: cur_scale of loss_scaler is no number > 0",
                       d->optims[0].path);
    }
    return add_state(d, "loss_scaler",
                     json_pack("{s:f,s:I,s:I,s:I}", "scale", scale, "iteration",
                               (json_int_t)whole_or(state, "cur_iter", 0), "last_overflow",
                               (json_int_t)whole_or(state, "last_overflow_iter", -1),
                               "hysteresis_left",
                               (json_int_t)whole_or(state, "cur_hysteresis", 1)));
}

static ds_status add_frozen(dsi_deepspeed *d)
{
    json_t *list = json_array();
    for (size_t i = 0; i < d->m->n_tensors; ++i) {
        if (strcmp(d->m->tensors[i].kind, "param") == 0) {
            (void)json_array_append_new(list, json_string(d->m->tensors[i].name));
        }
    }
    return add_state(d, "frozen", list);
}

/* How many of the lists of param_shapes are of group g: at stage 3 its sub-groups. */
static size_t lists_of_group(const dsi_deepspeed *d, size_t g)
{
    const dsi_pickle *vectors = dsi_pickle_get(dsi_pickle_at(param_groups(d), g), "params");
    return d->stage == 3 ? dsi_pickle_count(vectors) : 1;
}

/* Names in the order of the module, a list for each group of the optimizer: what writes such a
 * folder again goes by it. NULL: the groups do not say. */
static json_t *groups_of(const dsi_deepspeed *d)
{
    const dsi_pickle *shapes = dsi_pickle_get(d->models[0].root, "param_shapes");
    const size_t n = dsi_pickle_count(param_groups(d));
    json_t *groups = json_array();
    size_t at = 0;
    for (size_t g = 0; g < n; ++g) {
        json_t *names = json_array();
        for (size_t left = lists_of_group(d, g); left > 0; --left, ++at) {
            const dsi_pickle *list = dsi_pickle_at(shapes, at);
            for (size_t i = 0; dsi_pickle_is(list, DSI_PICKLE_DICT) && i < list->list.n; i += 2) {
                const char *name = dsi_pickle_text(list->list.items[i]);
                (void)json_array_append_new(names, json_string(name != NULL ? name : "?"));
            }
        }
        (void)json_array_append_new(groups, names);
    }
    if (n == 0 || at != dsi_pickle_count(shapes)) {
        json_decref(groups);
        return NULL;
    }
    return groups;
}

static ds_status add_groups(dsi_deepspeed *d)
{
    json_t *groups = d->pipeline || d->experts ? NULL : groups_of(d); /* ranks have their own */
    return groups != NULL ? add_state(d, "parameter_groups", groups) : DS_OK;
}

/* The optimizer by its moments: Adam's are the ones that are read. */
static const char *optimizer_of(const dsi_deepspeed *d, const json_t *config)
{
    const char *type =
        json_string_value(json_object_get(json_object_get(config, "optimizer"), "type"));
    bool first = false;
    bool second = false;
    for (size_t i = 0; i < d->m->n_tensors; ++i) {
        first = first || strcmp(d->m->tensors[i].kind, "exp_avg") == 0;
        second = second || strcmp(d->m->tensors[i].kind, "exp_avg_sq") == 0;
    }
    if (!first) {
        return type != NULL ? dsi_arena_strdup(d->m->arena, type) : "unknown";
    }
    if (type != NULL && strcasecmp(type, "lamb") == 0) {
        return "lamb";
    }
    return second ? "adam" : "lion";
}

ds_status dsi_deepspeed_states(dsi_deepspeed *d)
{
    const dsi_pickle *version = dsi_pickle_get(d->models[0].root, "ds_version");
    const char *text = dsi_pickle_text(version);
    size_t left = MOST_VALUES;
    const dsi_pickle *saved = dsi_pickle_get(d->models[0].root, "ds_config");
    json_t *config = saved != NULL ? to_json(saved, &left) : NULL;
    d->m->states = dsi_arena_array(d->m->arena, MOST_STATES, sizeof *d->m->states);
    d->m->info.optimizer = optimizer_of(d, config);
    ds_status status = d->m->states != NULL && d->m->info.optimizer != NULL ? DS_OK : no_memory(d);
    if (status >= 0 && config != NULL) {
        status = add_state(d, "ds_config", json_incref(config));
    }
    if (status >= 0) {
        status = add_engine(d);
    }
    if (status >= 0) {
        status = add_frozen(d);
    }
    if (status >= 0) {
        status = add_loss_scaler(d);
    }
    if (status >= 0) {
        status = add_groups(d);
    }
    if (status >= 0) {
        status = add_state(d, "origin",
                           json_pack("{s:s,s:s,s:I,s:I,s:I}", "program", "DeepSpeed for Python",
                                     "version", text != NULL ? text : "unknown", "zero_stage",
                                     (json_int_t)(d->stage > 0 ? d->stage : 1), "ranks",
                                     (json_int_t)d->n_ranks, "stages",
                                     (json_int_t)(d->pipeline ? d->n_model : 1)));
    }
    json_decref(config);
    return status;
}
