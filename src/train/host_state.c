/* SPDX-License-Identifier: Apache-2.0 */
/* States of an engine as JSON texts. See host_state.h. A checkpoint is not trusted: a value that
 * is missing, of another type or out of its range is an error, never a zero. */
#include "train/host_state.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct section {
    ds_ctx *ctx;
    const char *path, *name;
    json_t *json;
} section;

static ds_status bad(const section *s, const char *key, const char *expected)
{
    return ds_fail(s->ctx, DS_ERR_FORMAT, "%s: state \"%s\": \"%s\" must be %s", s->path, s->name,
                   key, expected);
}

/* Steps are counted on from these: the ceiling keeps that from passing the range. */
#define MOST_COUNT (INT64_C(1) << 62)

static ds_status whole(const section *s, const char *key, int64_t min, int64_t *value_out)
{
    const json_t *value = json_object_get(s->json, key);
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > MOST_COUNT) {
        return bad(s, key,
                   min < 0 ? "a whole number from -1 to 2^62" : "a whole number from 0 to 2^62");
    }
    *value_out = (int64_t)json_integer_value(value);
    return DS_OK;
}

static ds_status count(const section *s, const char *key, uint64_t *value_out)
{
    int64_t value = 0;
    DS_TRY(whole(s, key, 0, &value));
    *value_out = (uint64_t)value;
    return DS_OK;
}

static ds_status real(const section *s, const char *key, double *value_out)
{
    const json_t *value = json_object_get(s->json, key);
    if (!json_is_number(value) || !isfinite(json_number_value(value))) {
        return bad(s, key, "a number");
    }
    *value_out = json_number_value(value);
    return DS_OK;
}

/* "zenflow" is there only when it was on. */
static ds_status take_zenflow(const section *engine, dsi_host_state *state)
{
    const section s = {engine->ctx, engine->path, "engine.zenflow",
                       json_object_get(engine->json, "zenflow")};
    int64_t chosen = 0;
    int64_t late = 0; /* without overlap_step it is not written */
    state->zenflow = s.json != NULL;
    if (!state->zenflow) {
        return DS_OK;
    }
    DS_TRY(whole(&s, "chosen", 0, &chosen));
    DS_TRY(whole(&s, "waiting", 0, &state->waiting));
    DS_TRY(whole(&s, "chosen_updates", 0, &state->chosen_updates));
    state->chosen = chosen != 0;
    if (json_object_get(s.json, "late") != NULL) {
        DS_TRY(whole(&s, "late", 0, &late));
        state->late = late != 0;
    }
    return whole(&s, "rest_updates", 0, &state->rest_updates);
}

/* How the run trains, where configuration and model do not say it. */
static ds_status take_rules(const section *s, dsi_host_state *state)
{
    int64_t decay_all = 0;
    int64_t average_targets = 0;
    state->has_decay = json_object_get(s->json, "decay_all") != NULL;
    state->has_average = json_object_get(s->json, "average_targets") != NULL;
    if (state->has_decay) {
        DS_TRY(whole(s, "decay_all", 0, &decay_all));
    }
    if (state->has_average) {
        DS_TRY(whole(s, "average_targets", 0, &average_targets));
    }
    state->decay_all = decay_all != 0;
    state->average_targets = average_targets != 0;
    return DS_OK;
}

static ds_status take_engine(const section *s, dsi_host_state *state)
{
    DS_TRY(count(s, "global_steps", &state->global_steps));
    DS_TRY(count(s, "skipped_steps", &state->skipped_steps));
    DS_TRY(count(s, "global_samples", &state->global_samples));
    DS_TRY(real(s, "lr_override", &state->forced_lr));
    DS_TRY(take_rules(s, state));
    DS_TRY(take_zenflow(s, state));
    return state->skipped_steps <= state->global_steps
               ? DS_OK
               : bad(s, "skipped_steps", "at most \"global_steps\"");
}

static ds_status take_loss_scaler(const section *s, dsi_host_state *state)
{
    DS_TRY(real(s, "scale", &state->scale));
    DS_TRY(whole(s, "iteration", 0, &state->iteration));
    DS_TRY(whole(s, "last_overflow", -1, &state->last_overflow));
    DS_TRY(whole(s, "hysteresis_left", 0, &state->hysteresis_left));
    return state->scale > 0.0 ? DS_OK : bad(s, "scale", "above 0");
}

static ds_status take_random(const section *s, dsi_host_state *state)
{
    const char *text = json_string_value(json_object_get(s->json, "seed"));
    char *end = NULL;
    errno = 0;
    state->seed = text != NULL && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    return end != NULL && *end == '\0' && errno == 0
               ? DS_OK
               : bad(s, "seed", "the text of a whole number below 2^64");
}

static ds_status parse(ds_ctx *ctx, const char *path, const char *name, const char *text,
                       ds_status (*take)(const section *s, dsi_host_state *state),
                       dsi_host_state *state)
{
    json_error_t error;
    section s = {ctx, path, name, text != NULL ? json_loads(text, 0, &error) : NULL};
    const ds_status status =
        json_is_object(s.json)
            ? take(&s, state)
            : ds_fail(ctx, DS_ERR_FORMAT, "%s: the state \"%s\" is missing or no object", path,
                      name);
    json_decref(s.json);
    return status;
}

ds_status dsi_host_state_parse(ds_ctx *ctx, const char *path, const dsi_host_state_texts *texts,
                               dsi_host_state *state_out)
{
    dsi_host_state state = {.scale = 1.0};
    DS_TRY(parse(ctx, path, "engine", texts->engine, take_engine, &state));
    if (texts->loss_scaler != NULL) {
        DS_TRY(parse(ctx, path, "loss_scaler", texts->loss_scaler, take_loss_scaler, &state));
    }
    if (texts->random != NULL) {
        DS_TRY(parse(ctx, path, "random", texts->random, take_random, &state));
        state.has_seed = true;
    }
    *state_out = state;
    return DS_OK;
}

/* The end of the section "engine". */
static void print_zenflow(const dsi_host_state *s, char *text, size_t n)
{
    if (!s->zenflow) {
        (void)snprintf(text, n, "}");
        return;
    }
    (void)snprintf(text, n,
                   ",\"zenflow\":{\"chosen\":%d,\"waiting\":%lld,\"chosen_updates\":%lld,"
                   "\"rest_updates\":%lld%s}}",
                   s->chosen ? 1 : 0, (long long)s->waiting, (long long)s->chosen_updates,
                   (long long)s->rest_updates, s->late ? ",\"late\":1" : "");
}

void dsi_host_state_print(const dsi_host_state *s, const char *name,
                          char text[DSI_HOST_STATE_BYTES])
{
    if (strcmp(name, "engine") == 0) {
        const int n =
            snprintf(text, DSI_HOST_STATE_BYTES,
                     "{\"global_steps\":%llu,\"skipped_steps\":%llu,\"global_samples\":%llu,"
                     "\"lr_override\":%.17g,\"decay_all\":%d,\"average_targets\":%d",
                     (unsigned long long)s->global_steps, (unsigned long long)s->skipped_steps,
                     (unsigned long long)s->global_samples, s->forced_lr, s->decay_all ? 1 : 0,
                     s->average_targets ? 1 : 0);
        print_zenflow(s, text + n, DSI_HOST_STATE_BYTES - (size_t)n);
    } else if (strcmp(name, "loss_scaler") == 0) {
        (void)snprintf(text, DSI_HOST_STATE_BYTES,
                       "{\"scale\":%.17g,\"iteration\":%lld,\"last_overflow\":%lld,"
                       "\"hysteresis_left\":%lld}",
                       s->scale, (long long)s->iteration, (long long)s->last_overflow,
                       (long long)s->hysteresis_left);
    } else {
        (void)snprintf(text, DSI_HOST_STATE_BYTES, "{\"seed\":\"%llu\"}",
                       (unsigned long long)s->seed);
    }
}
