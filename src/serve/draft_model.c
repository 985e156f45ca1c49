/* SPDX-License-Identifier: Apache-2.0 */
/* Guesses by a smaller model (Leviathan et al., "Fast inference from transformers via speculative
 * decoding", 2023; here each id is drawn from the large model's own logits as ever, and a guess is
 * right when it is that id: so no bit depends on the small one).
 *
 * The drafter is a server whose batches are put together here: each sequence has a shadow in it,
 * with blocks of its own and the same ids. In a step the shadows first catch up with what was
 * drawn, within the drafter's budget, then each guesses its likeliest next id, round by round, all
 * in one batch. What was guessed wrong is overwritten. A shadow that lacks blocks, or whose ids the
 * drafter's vocabulary or length does not hold, guesses nothing. Where the models read sources the
 * drafter reads them too, each before the first batch in which a shadow needs it, and keeps it as
 * long as the model does. */
#include "serve/server.h"

#include <string.h>

ds_status dsi_shadow_create(ds_server *s, dsi_sequence *q)
{
    ds_server *d = s->drafter;
    if (d == NULL || q->group != NULL) {
        return DS_OK;
    }
    const int64_t most = q->most < d->max_length ? q->most : d->max_length;
    DS_TRY(q->source != NULL ? dsi_source_shadow(d, q, most, &q->shadow)
                             : dsi_sequence_create(d, q->uid, NULL, 0, most, &q->shadow));
    if (q->shadow != NULL) {
        q->shadow->shadows = q;
    }
    return DS_OK;
}

void dsi_shadow_drop(ds_server *s, dsi_sequence *q)
{
    if (q->shadow != NULL) {
        dsi_sequence_drop_blocks(s->drafter, q->shadow);
        q->shadow->n_ids = 0;
    }
}

/* The ids of the sequence; false: they do not fit. */
static bool follow(const ds_server *d, const dsi_sequence *q, int64_t wants)
{
    dsi_sequence *shadow = q->shadow;
    int64_t same = 0;
    if (shadow == NULL || q->n_ids + wants > shadow->most) {
        return false;
    }
    while (same < shadow->n_computed && shadow->ids[same] == q->ids[same]) {
        ++same;
    }
    for (int64_t i = same; i < q->n_ids; ++i) {
        if ((int64_t)q->ids[i] >= d->vocab_size) {
            return false;
        }
        shadow->ids[i] = q->ids[i];
    }
    shadow->n_ids = q->n_ids;
    shadow->n_computed = same < q->n_ids ? same : q->n_ids - 1;
    return true;
}

/* Adds what the shadow lacks to the drafter's batch. *wants: what it may guess; 0: it guesses
 * nothing in this step. */
static ds_status add_shadow(ds_server *d, dsi_sequence *shadow, int64_t *wants)
{
    const int64_t room = d->max_batch_tokens - d->batch.n;
    const int64_t lacks = shadow->n_ids - shadow->n_computed;
    const int64_t n = lacks < room ? lacks : room;
    if (n == 0 || d->batch.n_members == d->max_sequences || !dsi_source_hold(d, shadow) ||
        !dsi_sequence_grow(d, shadow, n)) {
        *wants = 0;
        return DS_OK;
    }
    DS_TRY(dsi_serve_source_read(d, shadow));
    dsi_batch_add(d, shadow, n);
    *wants = n == lacks ? *wants : 0;
    return DS_OK;
}

static uint32_t likeliest(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; ++i) {
        best = logits[i] > logits[best] ? i : best;
    }
    return (uint32_t)best;
}

/* Runs the batch: each shadow that has logits guesses the next id. */
static ds_status guess_round(ds_server *s)
{
    ds_server *d = s->drafter;
    const int64_t n = s->vocab_size < d->vocab_size ? s->vocab_size : d->vocab_size;
    const float *logits = NULL;
    if (d->batch.n == 0) {
        return DS_OK;
    }
    DS_TRY(dsi_batch_run(d, false, &logits));
    for (int64_t i = 0; i < d->batch.n_last; ++i) {
        dsi_sequence *shadow = d->batch.wanting[i];
        dsi_sequence *q = shadow->shadows;
        const uint32_t id = likeliest(logits + i * d->vocab_size, n);
        q->ids[q->n_ids + q->n_draft++] = id;
        shadow->ids[shadow->n_ids++] = id;
    }
    return DS_OK;
}

ds_status dsi_draft_by_model(ds_server *s)
{
    ds_server *d = s->drafter;
    dsi_batch_begin(d);
    for (dsi_sequence *q = s->running.first; q != NULL; q = q->next) {
        q->n_draft = 0;
        if (q->n_wanted > 0 && !follow(d, q, q->n_wanted)) {
            q->n_wanted = 0;
        }
        DS_TRY(q->n_wanted > 0 ? add_shadow(d, q->shadow, &q->n_wanted) : DS_OK);
    }
    DS_TRY(guess_round(s));
    for (int64_t k = 1; k < s->max_draft && d->batch.n_last > 0; ++k) {
        dsi_batch_begin(d);
        for (dsi_sequence *q = s->running.first; q != NULL; q = q->next) {
            if (q->n_wanted > k && q->n_draft == k) {
                DS_TRY(add_shadow(d, q->shadow, &q->n_wanted));
            }
        }
        DS_TRY(guess_round(s));
    }
    return DS_OK;
}
