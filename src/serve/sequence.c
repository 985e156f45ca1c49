/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences, their lists and their blocks. */
#include "serve/server.h"

#include <stdlib.h>
#include <string.h>

ds_status dsi_sequence_create(ds_server *s, uint64_t uid, const uint32_t *ids, size_t n,
                              int64_t most, dsi_sequence **sequence_out)
{
    dsi_sequence *q = calloc(1, sizeof *q);
    if (q != NULL) {
        q->ids = malloc((size_t)most * sizeof *q->ids);
        q->blocks = malloc((size_t)((most + s->block - 1) / s->block) * sizeof *q->blocks);
    }
    if (q == NULL || q->ids == NULL || q->blocks == NULL) {
        dsi_sequence_destroy(&q);
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for a sequence of %lld ids",
                       (long long)most);
    }
    if (n > 0) {
        memcpy(q->ids, ids, n * sizeof *ids);
    }
    q->uid = uid;
    q->n_ids = q->n_prompt = (int64_t)n;
    q->most = most;
    q->slot = -1;
    q->state = -1;
    q->kept.restores = q->kept.newest = -1;
    dsi_states_forget(s, q);
    *sequence_out = q;
    return DS_OK;
}

void dsi_sequence_destroy(dsi_sequence **sequence)
{
    dsi_sequence *q = *sequence;
    if (q != NULL && q->group == NULL) {
        dsi_source_leave(q);
        free(q->ids);
        free(q->blocks);
        dsi_sequence_destroy(&q->shadow);
        free(q->nexts);
        free(q->pooled);
        free(q->vector);
        free(q->scores);
        free((void *)(uintptr_t)q->request.stop_ids);
        free((void *)(uintptr_t)q->request.bias);
        free((void *)(uintptr_t)q->request.dry);
        free(q);
        *sequence = NULL;
    }
}

void dsi_sequences_append(dsi_sequences *list, dsi_sequence *q)
{
    q->next = NULL;
    if (list->last != NULL) {
        list->last->next = q;
    } else {
        list->first = q;
    }
    list->last = q;
    list->n += 1;
}

void dsi_sequences_insert(dsi_sequences *list, dsi_sequence *q)
{
    dsi_sequence **at = &list->first;
    while (*at != NULL && (*at)->uid < q->uid) {
        at = &(*at)->next;
    }
    q->next = *at;
    *at = q;
    list->last = q->next == NULL ? q : list->last;
    list->n += 1;
}

void dsi_sequences_remove(dsi_sequences *list, dsi_sequence *q)
{
    dsi_sequence **at = &list->first;
    dsi_sequence *before = NULL;
    while (*at != q) {
        before = *at;
        at = &(*at)->next;
    }
    *at = q->next;
    list->last = list->last == q ? before : list->last;
    list->n -= 1;
}

bool dsi_sequences_has(const dsi_sequences *list, const dsi_sequence *sequence)
{
    const dsi_sequence *q = list->first;
    while (q != NULL && q != sequence) {
        q = q->next;
    }
    return q != NULL;
}

dsi_sequence *dsi_sequences_find(const dsi_sequences *list, uint64_t uid)
{
    dsi_sequence *q = list->first;
    while (q != NULL && q->uid != uid) {
        q = q->next;
    }
    return q;
}

void dsi_sequences_clear(dsi_sequences *list)
{
    while (list->first != NULL) {
        dsi_sequence *q = list->first;
        list->first = q->next;
        dsi_sequence_destroy(&q);
    }
    *list = (dsi_sequences){0};
}

int64_t dsi_sequence_lacks(const ds_server *s, const dsi_sequence *q, int64_t n)
{
    const int64_t need = (q->n_computed + n + s->block - 1) / s->block;
    return need > q->n_blocks ? need - q->n_blocks : 0;
}

bool dsi_sequence_grow(ds_server *s, dsi_sequence *q, int64_t n)
{
    const int64_t lacks = dsi_sequence_lacks(s, q, n);
    if (lacks > dsi_block_pool_n_free(s->pool)) {
        return false;
    }
    for (int64_t i = 0; i < lacks; ++i) {
        q->blocks[q->n_blocks++] = dsi_block_pool_take(s->pool);
    }
    return true;
}

bool dsi_sequence_may_run(const ds_server *s, const dsi_sequence *q)
{
    return !s->carries || q->state >= 0 || s->n_free_states > 0;
}

bool dsi_sequence_take_state(ds_server *s, dsi_sequence *q)
{
    if (!dsi_sequence_may_run(s, q)) {
        return false;
    }
    if (s->carries && q->state < 0) {
        q->state = s->free_states[--s->n_free_states];
    }
    return true;
}

/* The last block first: a begin outlives what follows it. */
void dsi_sequence_drop_blocks(ds_server *s, dsi_sequence *q)
{
    while (q->n_blocks > 0) {
        dsi_block_pool_release(s->pool, q->blocks[--q->n_blocks]);
    }
    dsi_source_release(s, q);
    dsi_states_forget(s, q);
    if (q->state >= 0) {
        s->free_states[s->n_free_states++] = q->state;
        q->state = -1;
    }
    q->n_computed = q->n_registered = 0;
    q->serial = q->begin;
    dsi_shadow_drop(s, q);
}

int64_t dsi_sequence_most_shared(const ds_server *s, const dsi_sequence *q)
{
    const bool scores = q->scores != NULL && q->n_scored < q->n_prompt;
    const int64_t runs = scores ? q->n_scored - 1 : q->n_ids - 1; /* this id does anyway */
    return s->cache ? runs / s->block : 0;
}

/* Of a model that carries a state: as far as a snapshot of it goes. */
int64_t dsi_sequence_match(const ds_server *s, const dsi_sequence *q, int64_t *n_free_out)
{
    const int64_t most = dsi_sequence_most_shared(s, q);
    uint64_t serial = q->begin;
    int64_t n_free = 0;
    int64_t n = 0;
    *n_free_out = 0;
    for (int64_t i = 0; i < most; ++i) {
        const int32_t b = dsi_block_pool_find(s->pool, serial, q->ids + i * s->block);
        if (b < 0) {
            break;
        }
        n_free += dsi_block_pool_is_free(s->pool, b);
        serial = dsi_block_pool_serial(s->pool, b);
        if (!s->carries || dsi_states_has(s, b)) {
            n = i + 1;
            *n_free_out = n_free;
        }
    }
    return n;
}

void dsi_sequence_share(ds_server *s, dsi_sequence *q, int64_t n_blocks)
{
    for (int64_t i = 0; i < n_blocks; ++i) {
        const int32_t b = dsi_block_pool_find(s->pool, q->serial, q->ids + i * s->block);
        dsi_block_pool_share(s->pool, b);
        q->serial = dsi_block_pool_serial(s->pool, b);
        q->blocks[q->n_blocks++] = q->tail = b;
    }
    q->n_registered = q->n_blocks;
    q->n_computed = q->n_blocks * s->block;
    dsi_states_begin(s, q);
}

/* That of the prompt, and behind it the position's own: as if each id that was drawn had run alone,
 * whatever was cut, guessed, dropped or run again. What put brings is a prompt each time. */
int64_t dsi_sequence_length_at(const dsi_sequence *q, int64_t position)
{
    const dsi_sequence *text = q->shadows != NULL ? q->shadows : q;
    const int64_t least = q->of_put ? q->n_ids : text->n_prompt;
    return position < least ? least : position + 1;
}

int64_t dsi_sequence_grown(const ds_server *s, const dsi_sequence *q)
{
    const int64_t fixed = s->generator->longest_fixed;
    return fixed > 0 && q->n_prompt > fixed ? q->n_prompt : 0;
}

void dsi_sequence_register(ds_server *s, dsi_sequence *q)
{
    if (q->of_put && s->generator->longest_fixed > 0) {
        return; /* its keys depend on how it was cut */
    }
    while (s->cache && (q->n_registered + 1) * s->block <= q->n_computed) {
        q->tail = dsi_block_pool_register(s->pool, q->blocks[q->n_registered], q->serial,
                                          q->ids + q->n_registered * s->block);
        q->serial = dsi_block_pool_serial(s->pool, q->tail);
        q->n_registered += 1;
    }
}
