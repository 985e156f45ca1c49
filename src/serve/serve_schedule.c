/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: which run, in which batch.
 *
 * A step takes, in order of arrival: the next id of each sequence that lacks one; what is left of
 * the budget goes to the prompts of running sequences, then to those that wait. No request
 * overtakes another one that waits. Where no block is left, the youngest running sequence gives its
 * blocks up and waits again, with the ids that it has; they run again later, mostly from the prefix
 * cache. The oldest is never the one while another runs, and submit refuses what could not run
 * alone: so every step brings the oldest on, and nothing waits forever. Documents whose vectors
 * are wanted have batches of their own (embed.c), in turn with those of texts.
 */
#include "base/reserved.h"
#include "serve/server.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- submit ---- */
/* A source and what is made of it, which begins with an id that is not drawn. */
static ds_status check_pair(ds_server *s, const ds_serve_request *r)
{
    if (r->prompt_logprobs) {
        return ds_fail(s->ctx, DS_ERR_UNSUPPORTED,
                       "ds_serve_request: prompt_logprobs: the model's prompts are sources, whose "
                       "ids have no chances");
    }
    if (r->n > (size_t)s->max_length || r->max_new_tokens > s->max_length - 1) {
        return ds_fail(s->ctx, DS_ERR_LIMIT,
                       "the source has %zu tokens and a text of %lld is asked for; at most %lld "
                       "and %lld are possible",
                       r->n, (long long)r->max_new_tokens, (long long)s->max_length,
                       (long long)s->max_length - 1);
    }
    return DS_OK;
}

static ds_status check_request(ds_server *s, const ds_serve_request *r)
{
    if (r->n == 0 || r->max_new_tokens < 1 || r->min_new_tokens < 0) {
        return ds_fail(s->ctx, DS_ERR_ARG,
                       "ds_serve_request: %zu ids, max_new_tokens %lld, min_new_tokens %lld; "
                       "expected at least 1, 1 and 0",
                       r->n, (long long)r->max_new_tokens, (long long)r->min_new_tokens);
    }
    DS_TRY(s->pairs ? check_pair(s, r) : DS_OK);
    if (!s->pairs &&
        (r->n > (size_t)s->max_length || r->max_new_tokens > s->max_length - (int64_t)r->n)) {
        return ds_fail(s->ctx, DS_ERR_LIMIT,
                       "the prompt has %zu tokens and %lld more are asked for; together at most "
                       "%lld are possible",
                       r->n, (long long)r->max_new_tokens, (long long)s->max_length);
    }
    for (size_t i = 0; i < r->n; ++i) {
        if ((int64_t)r->ids[i] >= s->vocab_size) {
            return ds_fail(s->ctx, DS_ERR_ARG,
                           "token %u is outside of the model's vocabulary of %lld", r->ids[i],
                           (long long)s->vocab_size);
        }
    }
    DS_TRY(dsi_serve_adapter_check(s, r->adapter));
    return dsi_draw_check(s, r);
}

/* A copy of n items; *copy_out NULL for none. */
static bool copy(const void *from, size_t n, size_t each, const void **copy_out)
{
    void *to = n > 0 ? malloc(n * each) : NULL;
    if (to != NULL) {
        memcpy(to, from, n * each);
    }
    *copy_out = to;
    return n == 0 || to != NULL;
}

ds_status ds_serve_submit(ds_server *s, const ds_serve_request *r, uint64_t *uid_out)
{
    DS_TRY(DSI_RESERVED_CHECK(s->ctx, "ds_serve_request", r));
    DS_TRY(dsi_serve_check_leads(s));
    DS_TRY(check_request(s, r));
    dsi_sequences_clear(&s->done);
    dsi_beams_clear(s, false);
    if (r->beams != NULL) {
        DS_TRY(dsi_beams_submit(s, r));
        *uid_out = s->last_uid;
        return DS_OK;
    }
    dsi_sequence *q = NULL;
    DS_TRY(dsi_sequence_of_request(s, s->last_uid + 1, r, &q));
    q->request = *r;
    q->request.ids = NULL;
    q->request.bias = NULL;
    q->request.dry = r->dry != NULL ? dsi_dry_copy(r->dry) : NULL;
    q->surprise = 2.0 * r->sampling.tau;
    q->scores = r->prompt_logprobs ? calloc(r->n, sizeof *q->scores) : NULL;
    q->n_scored = 1; /* nothing is before the first */
    if (!copy(r->stop_ids, r->n_stop_ids, sizeof *r->stop_ids,
              (const void **)&q->request.stop_ids) ||
        !copy(r->bias, r->n_bias, sizeof *r->bias, (const void **)&q->request.bias) ||
        (r->dry != NULL && q->request.dry == NULL) || (r->prompt_logprobs && q->scores == NULL)) {
        dsi_sequence_destroy(&q);
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for a request");
    }
    const ds_status status = dsi_shadow_create(s, q);
    if (status < 0) {
        dsi_sequence_destroy(&q);
        return status;
    }
    dsi_serve_adapter_begin(s, q, r->adapter);
    q->n_cached = -1;
    s->last_uid += 1;
    dsi_sequences_append(&s->waiting, q);
    *uid_out = q->uid;
    return DS_OK;
}

ds_status ds_serve_cancel(ds_server *s, uint64_t uid)
{
    if (dsi_beams_cancel(s, uid)) {
        return DS_OK;
    }
    dsi_sequences *list = &s->running;
    dsi_sequence *q = dsi_sequences_find(list, uid);
    if (q == NULL) {
        list = &s->waiting;
        q = dsi_sequences_find(list, uid);
    }
    if (q == NULL) {
        list = &s->embedding;
        q = dsi_sequences_find(list, uid);
        s->n_embedding -= q != NULL && q->n_blocks > 0;
    }
    if (q == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOT_FOUND, "ds_serve_cancel: there is no request %llu",
                       (unsigned long long)uid);
    }
    dsi_sequence_drop_blocks(s, q);
    dsi_sequences_remove(list, q);
    dsi_sequence_destroy(&q);
    return DS_OK;
}

/* ---- a batch ---- */
static void preempt(ds_server *s, dsi_sequence *q)
{
    dsi_sequence_drop_blocks(s, q);
    dsi_sequences_remove(&s->running, q);
    dsi_sequences_insert(&s->waiting, q);
    s->stats.n_preemptions += 1;
}

static int64_t pending(const dsi_sequence *q)
{
    return q->n_ids - q->n_computed;
}

/* Whether it lacks its next id: all before the last one ran, those that run again once more. */
static bool steps(const dsi_sequence *q)
{
    return pending(q) == 1 + q->kept.n_again;
}

/* Blocks that the prompts of running sequences lack. */
static int64_t promised(const ds_server *s)
{
    int64_t n = 0;
    for (const dsi_sequence *q = s->running.first; q != NULL; q = q->next) {
        n += pending(q) > 0 && !steps(q) ? dsi_sequence_lacks(s, q, pending(q)) : 0;
    }
    return n;
}

/* Mirostat must see each id before the next one is drawn. What runs again once more with each wrong
 * guess has an end. */
static bool may_guess(const ds_server *s, const dsi_sequence *q)
{
    return q->group == NULL && q->request.sampling.mirostat == 0 && q->kept.n_again <= s->max_draft;
}

/* Guesses of all by the drafter, which the batch may take or leave. */
static ds_status draft_all(ds_server *s)
{
    for (dsi_sequence *q = s->running.first; q != NULL; q = q->next) {
        const int64_t left = q->request.max_new_tokens - (q->n_ids - q->n_prompt) - 1;
        const bool may = steps(q) && dsi_sequence_lacks(s, q, pending(q)) == 0 && may_guess(s, q);
        const int64_t most = dsi_states_most_guesses(s, q, s->max_draft);
        q->n_wanted = !may ? 0 : most < left ? most : left;
    }
    return dsi_draft_by_model(s);
}

/* Guesses of a sequence: as many as budget and blocks leave room for when all that run have their
 * own. */
static void guess(ds_server *s, dsi_sequence *q)
{
    const int64_t left = q->request.max_new_tokens - (q->n_ids - q->n_prompt) - 1;
    const int64_t room = s->max_batch_tokens - s->batch.n - s->running.n - q->kept.n_again;
    int64_t most = s->max_draft < left ? s->max_draft : left;
    most = dsi_states_most_guesses(s, q, most < room ? most : room);
    if (most < 1 || !may_guess(s, q)) {
        q->n_draft = 0;
        return;
    }
    if (s->drafter == NULL) {
        dsi_draft(q, most);
    }
    q->n_draft = q->n_draft < most ? q->n_draft : most;
    const int64_t lacks = dsi_sequence_lacks(s, q, pending(q) + q->n_draft);
    if (q->n_draft > 0 && (lacks > dsi_block_pool_n_free(s->pool) - promised(s) ||
                           !dsi_sequence_grow(s, q, pending(q) + q->n_draft))) {
        q->n_draft = 0;
    }
    s->stats.n_drafted += q->n_draft;
}

/* The next id of those that lack one: first the blocks of all of them, then with guesses. The
 * victims come later in the list, so none is in the batch. */
static ds_status add_steps(ds_server *s)
{
    for (dsi_sequence *q = s->running.first; q != NULL; q = q->next) {
        while (steps(q) && !dsi_sequence_grow(s, q, pending(q)) && s->running.last != q) {
            preempt(s, s->running.last);
        }
    }
    DS_TRY(s->drafter != NULL ? draft_all(s) : DS_OK);
    int64_t others = s->running.n;
    for (dsi_sequence *q = s->running.first; q != NULL; q = q->next) {
        const int64_t room = s->max_batch_tokens - s->batch.n - --others; /* each has one */
        if (!steps(q) || dsi_sequence_lacks(s, q, pending(q)) > 0) {
            continue;
        }
        if (pending(q) > room) {
            q->n_draft = 0;
            dsi_batch_add(s, q, room);
            continue;
        }
        guess(s, q);
        if (q->n_draft > 0) {
            dsi_states_hold(s, q);
        }
        dsi_batch_add(s, q, pending(q) + q->n_draft);
    }
    return DS_OK;
}

/* As much of the prompt as budget and blocks leave room for. */
static void add_piece(ds_server *s, dsi_sequence *q)
{
    const int64_t budget = s->max_batch_tokens - s->batch.n;
    const int64_t blocks = q->n_blocks + dsi_block_pool_n_free(s->pool);
    const int64_t room = blocks * s->block - q->n_computed;
    int64_t n = pending(q) < budget ? pending(q) : budget;
    n = dsi_batch_fits(s, q, dsi_states_until_stop(q, n < room ? n : room));
    if (n > 0 && dsi_sequence_grow(s, q, n)) {
        dsi_batch_add(s, q, n);
    }
}

static void add_pieces(ds_server *s)
{
    for (dsi_sequence *q = s->running.first; q != NULL; q = q->next) {
        if (pending(q) > 1 && !steps(q)) {
            add_piece(s, q);
        }
    }
}

/* Sources are read whole, before the batch: as many in a step as are one, or a budget. */
static bool may_read(const ds_server *s, const dsi_sequence *q)
{
    const int64_t n = dsi_source_to_read(q);
    return n == 0 || s->batch.n_source == 0 || s->batch.n_source + n <= s->max_batch_tokens;
}

/* Whether the first that waits may run: there are blocks for all its ids and one more. */
static bool admit(ds_server *s)
{
    dsi_sequence *q = s->waiting.first;
    int64_t n_free = 0;
    if (q == NULL || s->running.n == s->max_sequences || s->batch.n == s->max_batch_tokens ||
        (dsi_embed_waits(s) && s->running.n > 0)) {
        return false;
    }
    const int64_t shared = dsi_sequence_match(s, q, &n_free);
    const int64_t own = (q->n_ids + s->block) / s->block - shared + dsi_source_lacks(q);
    const int64_t reads = dsi_source_to_read(q);
    if (!may_read(s, q) || dsi_states_awaits(s, q, shared) ||
        (own > dsi_block_pool_n_free(s->pool) - n_free && s->running.n > 0) ||
        !dsi_sequence_take_state(s, q) || !dsi_source_hold(s, q)) {
        return false;
    }
    s->batch.n_source += reads;
    dsi_sequences_remove(&s->waiting, q);
    dsi_sequences_insert(&s->running, q);
    dsi_sequence_share(s, q, shared);
    if (q->n_cached < 0) {
        q->n_cached = q->n_computed;
        s->stats.n_prompt_tokens += s->pairs ? dsi_source_length(q) : q->n_prompt;
        s->stats.n_cached_tokens += q->n_cached;
    }
    add_piece(s, q);
    return true;
}

static ds_status make_batch(ds_server *s)
{
    dsi_batch_begin(s);
    DS_TRY(add_steps(s));
    add_pieces(s);
    while (admit(s)) {
    }
    while (s->batch.n == 0 && s->running.n > 1) { /* beams wait for beams of their search, too */
        preempt(s, s->running.last);
        add_pieces(s);
        while (s->batch.n == 0 && s->waiting.first->uid < s->running.last->uid && admit(s)) {
        }
    }
    if (s->batch.n == 0 && s->running.n == 1 && dsi_embed_waits(s)) {
        preempt(s, s->running.last); /* a beam that waits for one that the document keeps out */
    }
    return DS_OK;
}

/* What came of a row. */
static void take_event(ds_server *s, dsi_sequence *q, ds_serve_event *event)
{
    const ds_serve_request *r = &q->request;
    event->uid = q->uid;
    event->n_cached = q->n_cached;
    event->finish = q->spoiled ? DS_SERVE_ERROR : event->finish;
    if (event->finish != DS_SERVE_ERROR && q->scores != NULL && q->n_ids == q->n_prompt) {
        event->prompt = q->scores;
        event->n_prompt = q->n_prompt;
    }
    if (event->finish != DS_SERVE_ERROR) {
        q->ids[q->n_ids++] = event->id;
        s->stats.n_new_tokens += 1;
        event->finish =
            q->n_ids - q->n_prompt >= r->max_new_tokens ? DS_SERVE_LENGTH : DS_SERVE_GOES_ON;
        for (size_t i = 0; i < r->n_stop_ids; ++i) {
            event->finish = r->stop_ids[i] == event->id ? DS_SERVE_STOP : event->finish;
        }
    }
    if (event->finish != DS_SERVE_GOES_ON) {
        dsi_sequence_drop_blocks(s, q);
        dsi_sequences_remove(&s->running, q);
        dsi_sequences_append(&s->done, q);
    }
}

/* The rows of one sequence, from row i on: events as long as what was drawn is what was guessed.
 * Returns the next sequence's row. */
static int64_t take_rows(ds_server *s, int64_t i, ds_serve_event *events, size_t *n_out)
{
    dsi_sequence *q = s->batch.wanting[i];
    const int64_t n = q->n_draft;
    const int64_t own = s->batch.event[i];
    const int64_t ran = q->n_computed + n;
    if (own < 0) {
        q->n_scored = s->batch.behind[i] + 1;
        q->spoiled = q->spoiled || !isfinite(q->scores[s->batch.behind[i]].logprob);
        return i + 1;
    }
    if (q->group != NULL) {
        ds_serve_event event;
        if (dsi_beams_go_on(s, q->group, &event)) {
            events[(*n_out)++] = event;
        }
        return i + 1;
    }
    bool goes_on = true;
    q->n_draft = 0;
    for (int64_t k = 0; k <= n && goes_on; ++k) {
        const uint32_t guess = k < n ? q->ids[q->n_ids] : 0;
        ds_serve_event *event = &events[(*n_out)++];
        *event = events[own + k];
        take_event(s, q, event);
        goes_on = event->finish == DS_SERVE_GOES_ON && k < n && event->id == guess;
        s->stats.n_accepted += goes_on;
        if (event->finish == DS_SERVE_GOES_ON) {
            q->n_computed = q->n_ids - 1;
            dsi_sequence_register(s, q);
        }
    }
    if (n > 0 && q->n_blocks > 0) {
        dsi_states_go_back(s, q, ran);
    }
    return i + n + 1;
}

ds_status ds_serve_step(ds_server *s, ds_serve_event *events, size_t *n_out)
{
    const float *logits = NULL;
    *n_out = 0;
    DS_TRY(dsi_serve_check_leads(s));
    DS_TRY(dsi_generator_check_live(s->generator));
    if (s->embedding.n > 0 && !s->embedded) {
        DS_TRY(dsi_embed_step(s, events, n_out));
        s->embedded = s->batch.n > 0;
        if (s->embedded) {
            return DS_OK;
        }
    }
    s->embedded = false;
    DS_TRY(make_batch(s));
    if (s->batch.n == 0) {
        return dsi_paged_beat(s->generator);
    }
    DS_TRY(dsi_sources_read(s));
    DS_TRY(dsi_batch_run(s, false, &logits));
    dsi_draw(s, logits, events);
    for (int64_t i = 0; i < s->batch.n_last;) {
        i = take_rows(s, i, events, n_out);
    }
    return DS_OK;
}
