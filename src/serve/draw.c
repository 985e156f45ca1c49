/* SPDX-License-Identifier: Apache-2.0 */
/* Drawing ids: what a request changes in its logits, then the sampler of generation.
 *
 * In order: biases, repetition, presence and frequency, dry (dry.c), ids that must not end the text
 * yet, the request's guide; then temperature, top-k, top-p, min-p (infer/sampler.c). Rows are
 * independent: a thread a row. The random number is a function of the request's seed and of the
 * position.
 */
#include "base/reserved.h"
#include "serve/server.h"

#include <deepspeed/accel.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static ds_status check_dry(const ds_server *s, const ds_dry *d)
{
    if (d == NULL) {
        return DS_OK;
    }
    DS_TRY(DSI_RESERVED_CHECK(s->ctx, "ds_dry", d));
    if (!(d->multiplier > 0.0 && isfinite(d->multiplier)) ||
        !(d->base >= 1.0 && isfinite(d->base)) || d->allowed_length < 1 || d->last_n < 0) {
        return ds_fail(s->ctx, DS_ERR_ARG,
                       "ds_dry: expected a multiplier above 0, a base and allowed_length of at "
                       "least 1 and last_n of at least 0; found %g, %g, %lld, %lld",
                       d->multiplier, d->base, (long long)d->allowed_length, (long long)d->last_n);
    }
    return DS_OK;
}

ds_status dsi_draw_check(ds_server *s, const ds_serve_request *r)
{
    DS_TRY(dsi_sampling_check(s->ctx, "ds_serve_request.sampling", &r->sampling));
    DS_TRY(check_dry(s, r->dry));
    DS_TRY(r->beams != NULL ? dsi_beams_check(s, r) : DS_OK);
    if (!isfinite(r->presence) || !isfinite(r->frequency) || !(r->repetition >= 0.0) ||
        !isfinite(r->repetition)) {
        return ds_fail(s->ctx, DS_ERR_ARG,
                       "ds_serve_request: expected finite presence and frequency and a repetition "
                       "above 0; found %g, %g, %g",
                       r->presence, r->frequency, r->repetition);
    }
    if (r->n_top < 0 || r->n_top > DS_SERVE_MOST_TOP || r->n_prompt_top < 0 ||
        r->n_prompt_top > DS_SERVE_MOST_TOP) {
        return ds_fail(s->ctx, DS_ERR_ARG,
                       "ds_serve_request: n_top is %d, n_prompt_top %d, expected 0 to %d", r->n_top,
                       r->n_prompt_top, DS_SERVE_MOST_TOP);
    }
    for (size_t i = 0; i < r->n_bias; ++i) {
        if ((int64_t)r->bias[i].id >= s->vocab_size || !isfinite(r->bias[i].bias)) {
            return ds_fail(
                s->ctx, DS_ERR_ARG,
                "a bias of %g for token %u: expected a finite one for a token below %lld",
                (double)r->bias[i].bias, r->bias[i].id, (long long)s->vocab_size);
        }
    }
    return DS_OK;
}

ds_status dsi_draw_create(ds_server *s)
{
    const size_t v = (size_t)s->vocab_size;
    s->n_rooms = ds_ctx_n_threads(s->ctx);
    s->rooms = calloc(s->n_rooms, sizeof *s->rooms);
    for (uint32_t i = 0; s->rooms != NULL && i < s->n_rooms; ++i) {
        dsi_draw_room *room = &s->rooms[i];
        room->logits = malloc(v * sizeof *room->logits);
        room->sample.weight = malloc(v * sizeof *room->sample.weight);
        room->sample.key = malloc(v * sizeof *room->sample.key);
        room->sample.order = malloc(v * sizeof *room->sample.order);
        room->matches = malloc((size_t)s->max_length * sizeof *room->matches);
        room->seen = calloc(v, sizeof *room->seen);
        if (room->logits == NULL || room->sample.weight == NULL || room->sample.key == NULL ||
            room->sample.order == NULL || room->matches == NULL || room->seen == NULL) {
            return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for sampling");
        }
    }
    return s->rooms != NULL ? DS_OK : ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for sampling");
}

void dsi_draw_destroy(ds_server *s)
{
    for (uint32_t i = 0; s->rooms != NULL && i < s->n_rooms; ++i) {
        free(s->rooms[i].logits);
        free(s->rooms[i].sample.weight);
        free(s->rooms[i].sample.key);
        free(s->rooms[i].sample.order);
        free(s->rooms[i].matches);
        free(s->rooms[i].seen);
    }
    free(s->rooms);
}

/* Ids of the text from `begin` on, each once: seen[id] is how often. */
static void penalise_text(const dsi_sequence *q, int64_t n, dsi_draw_room *room)
{
    const ds_serve_request *r = &q->request;
    for (int64_t i = q->n_prompt; i < n; ++i) {
        uint16_t *seen = &room->seen[q->ids[i]];
        *seen = (uint16_t)(*seen < UINT16_MAX ? *seen + 1 : UINT16_MAX);
    }
    for (int64_t i = q->n_prompt; i < n; ++i) {
        const uint32_t id = q->ids[i];
        if (room->seen[id] != 0) {
            const double times = room->seen[id];
            room->logits[id] = (float)(room->logits[id] - (r->presence + r->frequency * times));
            room->seen[id] = 0;
        }
    }
}

static void penalise_all(const dsi_sequence *q, int64_t n, dsi_draw_room *room)
{
    const float factor = (float)q->request.repetition;
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t id = q->ids[i];
        if (room->seen[id] == 0) {
            const float x = room->logits[id];
            room->logits[id] = x > 0.0f ? x / factor : x * factor;
            room->seen[id] = 1;
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        room->seen[q->ids[i]] = 0;
    }
}

/* Far below any logit, and finite: the sampler refuses infinities as a model's fault. */
static const float LOWEST = -1e30f;

/* The logits that the id behind the first n is drawn from: the model's own where the request
 * changes nothing. */
static const float *adjust(const ds_server *s, const dsi_sequence *q, int64_t n,
                           const float *logits, dsi_draw_room *room)
{
    const ds_serve_request *r = &q->request;
    const bool repeats = r->repetition > 0.0 && r->repetition != 1.0;
    const bool text = r->presence != 0.0 || r->frequency != 0.0;
    const bool early = n - q->n_prompt < r->min_new_tokens;
    if (r->n_bias == 0 && !repeats && !text && !early && r->guide == NULL && r->dry == NULL) {
        return logits;
    }
    memcpy(room->logits, logits, (size_t)s->vocab_size * sizeof *logits);
    for (size_t i = 0; i < r->n_bias; ++i) {
        room->logits[r->bias[i].id] += r->bias[i].bias;
    }
    if (repeats) {
        penalise_all(q, n, room);
    }
    if (text) {
        penalise_text(q, n, room);
    }
    if (r->dry != NULL) {
        dsi_dry(r->dry, q->ids, n, room);
    }
    for (size_t i = 0; early && i < r->n_stop_ids; ++i) {
        if ((int64_t)r->stop_ids[i] < s->vocab_size) {
            room->logits[r->stop_ids[i]] = LOWEST;
        }
    }
    if (r->guide != NULL) {
        r->guide(r->guide_user, q->ids + q->n_prompt, (size_t)(n - q->n_prompt), room->logits,
                 s->vocab_size);
    }
    return room->logits;
}

/* log Σ exp: so that a log-probability is logit minus this. */
static double log_sum(const float *logits, int64_t n)
{
    double top = logits[0];
    double sum = 0.0;
    for (int64_t i = 1; i < n; ++i) {
        top = logits[i] > top ? logits[i] : top;
    }
    for (int64_t i = 0; i < n; ++i) {
        sum += exp(logits[i] - top);
    }
    return top + log(sum);
}

/* The at most `most` likeliest ids, the lower id first among equals; returns how many. */
static int32_t find_top(const ds_server *s, const float *logits, double below, int32_t most,
                        uint32_t *ids, float *logprobs)
{
    int32_t n = 0;
    for (int64_t id = 0; id < s->vocab_size && most > 0; ++id) {
        int32_t at = n;
        while (at > 0 && logits[id] > logprobs[at - 1]) {
            --at;
        }
        if (at == most) {
            continue;
        }
        n += n < most;
        for (int32_t i = n - 1; i > at; --i) {
            ids[i] = ids[i - 1];
            logprobs[i] = logprobs[i - 1];
        }
        ids[at] = (uint32_t)id;
        logprobs[at] = logits[id];
    }
    for (int32_t i = 0; i < n; ++i) {
        logprobs[i] = (float)(logprobs[i] - below);
    }
    return n;
}

/* Of the id of the prompt that stands behind the first n. */
static void score(const ds_server *s, const dsi_sequence *q, int64_t n, const float *logits)
{
    ds_prompt_score *to = &q->scores[n];
    const float own = logits[q->ids[n]];
    const double below = log_sum(logits, s->vocab_size);
    to->logprob = (float)(own - below);
    to->rank = 0;
    for (int64_t id = 0; id < s->vocab_size; ++id) {
        to->rank += logits[id] >= own;
    }
    to->n_top = find_top(s, logits, below, q->request.n_prompt_top, to->top_ids, to->top_logprobs);
}

typedef struct draw_job {
    ds_server *s;
    const float *logits;
    ds_serve_event *events;
} draw_job;

static void draw_row(void *arg, uint32_t task, uint32_t thread)
{
    const draw_job *job = arg;
    ds_server *s = job->s;
    dsi_draw_room *room = &s->rooms[thread];
    dsi_sequence *q = s->batch.wanting[task];
    const int64_t n = s->batch.behind[task];
    const float *logits = job->logits + (int64_t)task * s->vocab_size;
    if (s->batch.event[task] < 0) {
        score(s, q, n, logits);
        return;
    }
    ds_serve_event *event = &job->events[s->batch.event[task]];
    *event = (ds_serve_event){.finish = DS_SERVE_GOES_ON};
    if (q->group != NULL) {
        dsi_beams_rank(s, q, logits);
        return;
    }
    if (dsi_sample(s->ctx, adjust(s, q, n, logits, room), s->vocab_size, &q->request.sampling,
                   (uint64_t)n, &room->sample, &q->surprise, &event->id) < 0) {
        event->finish = DS_SERVE_ERROR;
        return;
    }
    if (q->request.logprobs) {
        const double below = log_sum(logits, s->vocab_size);
        event->logprob = (float)(logits[event->id] - below);
        event->n_top =
            find_top(s, logits, below, q->request.n_top, event->top_ids, event->top_logprobs);
    }
}

void dsi_draw(ds_server *s, const float *logits, ds_serve_event *events)
{
    draw_job job = {s, logits, events};
    if (s->batch.n_last > 0) {
        ds_parallel(s->ctx, draw_row, &job, (uint32_t)s->batch.n_last);
    }
}
