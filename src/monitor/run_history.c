/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a history to what a page shows. See run_history.h. */
#include "monitor/run_history.h"

#include "io/json_load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

dsi_run_history *dsi_run_history_create(const char *name)
{
    dsi_run_history *h = calloc(1, sizeof *h);
    if (h == NULL) {
        return NULL;
    }
    h->name = strdup(name);
    h->loss = h->eval_loss = h->best_eval = NAN;
    if (h->name == NULL) {
        dsi_run_history_destroy(&h);
    }
    return h;
}

static void session_clear(dsi_run_session *s)
{
    free(s->verdict);
    free(s->error);
    free(s->why);
    *s = (dsi_run_session){0};
}

void dsi_run_history_destroy(dsi_run_history **history)
{
    dsi_run_history *h = *history;
    for (size_t i = 0; h != NULL && i < h->n_sessions; ++i) {
        session_clear(&h->sessions[i]);
    }
    if (h != NULL) {
        json_decref(h->start);
        free(h->name);
    }
    free(h);
    *history = NULL;
}

/* NAN for null and for what is not there. */
static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static double number_or_zero(const json_t *object, const char *key)
{
    const double value = number(object, key);
    return isfinite(value) ? value : 0.0;
}

static char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value != NULL ? strdup(value) : NULL;
}

/* A norm of -1 is that of a step whose gradients were not finite. */
static void feed_step(dsi_run_history *h, uint64_t step, const json_t *line)
{
    static const char *const keys[DSI_RUN_CURVES] = {
        [DSI_RUN_LOSS] = "loss",          [DSI_RUN_LR] = "lr",
        [DSI_RUN_NORM] = "grad_norm",     [DSI_RUN_SCALE] = "loss_scale",
        [DSI_RUN_SPEED] = "tokens_per_s", [DSI_RUN_MEMORY] = "memory_bytes"};
    for (int i = 0; i < DSI_RUN_CURVES; ++i) {
        const double value = keys[i] != NULL ? number(line, keys[i]) : NAN;
        if (keys[i] != NULL) {
            dsi_series_add(&h->curves[i], step, i == DSI_RUN_NORM && value < 0.0 ? NAN : value);
        }
    }
    if (json_is_true(json_object_get(line, "skipped"))) {
        dsi_series_add(&h->curves[DSI_RUN_SKIPPED], step, 1.0);
        h->n_skipped += 1;
    }
    h->loss = number(line, "loss");
    h->tokens += number_or_zero(line, "tokens");
    h->seconds += number_or_zero(line, "seconds");
    h->peak_bytes = fmax(h->peak_bytes, number_or_zero(line, "memory_bytes"));
    h->n_steps += 1;
    h->step = step;
}

/* A run that chooses its best step says which; else it is that of the least loss. */
static void feed_best(dsi_run_history *h, const json_t *line)
{
    const double value = number(line, "best_eval_loss");
    if (isfinite(value)) {
        h->best_eval = value;
        h->best_eval_step = (uint64_t)number_or_zero(line, "best_step");
    }
}

static void feed_eval(dsi_run_history *h, uint64_t step, const json_t *line)
{
    h->eval_loss = number(line, "eval_loss");
    h->eval_step = step;
    h->n_evals += 1;
    if (json_object_get(line, "best_step") != NULL) {
        feed_best(h, line);
    } else if (isfinite(h->eval_loss) && !(h->eval_loss >= h->best_eval)) {
        h->best_eval = h->eval_loss;
        h->best_eval_step = step;
    }
    dsi_series_add(&h->curves[DSI_RUN_EVAL], step, h->eval_loss);
}

static void feed_start(dsi_run_history *h, uint64_t step, json_t *line)
{
    if (h->n_sessions == DSI_RUN_SESSIONS) {
        session_clear(&h->sessions[0]);
        memmove(&h->sessions[0], &h->sessions[1], (DSI_RUN_SESSIONS - 1) * sizeof *h->sessions);
        h->n_sessions -= 1;
    }
    h->model_step = 0; /* another session ends otherwise */
    h->sessions[h->n_sessions++] =
        (dsi_run_session){.from = step,
                          .began = number_or_zero(line, "time"),
                          .resumed = json_is_true(json_object_get(line, "resumed")),
                          .restarted = json_is_true(json_object_get(line, "restarted"))};
    json_decref(h->start);
    h->start = json_incref(line);
}

static void feed_end(dsi_run_history *h, const json_t *line)
{
    if (h->n_sessions > 0) {
        dsi_run_session *s = &h->sessions[h->n_sessions - 1];
        free(s->verdict);
        free(s->error);
        free(s->why);
        s->why = text(line, "why");
        s->ended = number_or_zero(line, "time");
        s->verdict = text(line, "verdict");
        s->error = text(line, "error");
    }
}

static bool feed(dsi_run_history *h, json_t *line)
{
    const json_t *step_value = json_object_get(line, "step");
    const char *event = json_string_value(json_object_get(line, "event"));
    if (!json_is_integer(step_value) || json_integer_value(step_value) < 0) {
        return false;
    }
    const uint64_t step = (uint64_t)json_integer_value(step_value);
    if (event != NULL && strcmp(event, "start") == 0) {
        feed_start(h, step, line);
    } else if (event != NULL && strcmp(event, "end") == 0) {
        feed_end(h, line);
    } else if (json_object_get(line, "eval_loss") != NULL) {
        feed_eval(h, step, line);
    } else if (json_object_get(line, "save_stall_s") != NULL) {
        dsi_series_add(&h->curves[DSI_RUN_SAVES], step, 1.0);
        h->n_saves += 1;
        h->save_seconds += number_or_zero(line, "save_stall_s");
    } else if (json_object_get(line, "model_step") != NULL) {
        feed_best(h, line);
        h->model_step = (uint64_t)number_or_zero(line, "model_step");
    } else if (json_object_get(line, "loss") != NULL) {
        feed_step(h, step, line);
    } else {
        return false;
    }
    return true;
}

bool dsi_run_history_feed(dsi_run_history *h, const char *line, size_t n)
{
    json_error_t error;
    json_t *root = dsi_json_parse(line, n, 0, &error);
    const bool fed = json_is_object(root) && feed(h, root);
    json_decref(root);
    return fed;
}

const dsi_run_session *dsi_run_history_last(const dsi_run_history *h)
{
    return h->n_sessions > 0 ? &h->sessions[h->n_sessions - 1] : NULL;
}
