/* SPDX-License-Identifier: Apache-2.0 */
/* States that layers carry from token to token (op/paged_state.h), beside the one that a sequence
 * goes on from: those of begins, and those that guesses go back to.
 *
 * A row of states cannot be cut back as keys and values can, so it is copied. Rows are
 * [max_sequences] of sequences; with guesses as many again, each the state ahead of its sequence's
 * guesses; then the snapshots, each of the state at the end of a registered block. Copies are put
 * down in their order and done ahead of the next batch, on all ranks.
 *
 * Invariants:
 *  1. A snapshot whose block is not registered under its serial any more is dead: it is found by
 *     nobody and taken first. Of the others the least recently used is, but none that a sequence
 *     begins from and has not copied.
 *  2. What is read from a row was put there by an earlier copy or run, for copies are never done
 *     out of order: so a row may be given away as soon as its copy is put down.
 *  3. Between two batches a sequence puts down three copies at most (DSI_STATE_COPIES has one to
 *     spare): ahead of a batch that from a snapshot and that to its held row, behind it a snapshot
 *     or the way back.
 */
#include "serve/server.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int64_t dsi_states_rows(const ds_server *s)
{
    return s->max_sequences * (s->carries && s->max_draft > 0 ? 2 : 1) + s->n_snapshots;
}

ds_status dsi_states_create(ds_server *s)
{
    const int64_t n_blocks = s->generator->paged.blocks;
    if (s->n_snapshots == 0) {
        return DS_OK;
    }
    s->snapshots = calloc((size_t)s->n_snapshots, sizeof *s->snapshots);
    s->snapshot_of = malloc((size_t)n_blocks * sizeof *s->snapshot_of);
    if (s->snapshots == NULL || s->snapshot_of == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for snapshots of states");
    }
    memset(s->snapshot_of, 0xff, (size_t)n_blocks * sizeof *s->snapshot_of);
    return DS_OK;
}

void dsi_states_destroy(ds_server *s)
{
    free(s->snapshots);
    free(s->snapshot_of);
}

static void put_copy(ds_server *s, int64_t from, int64_t to)
{
    dsi_serve_batch *b = &s->batch;
    assert(b->n_copies < DSI_STATE_COPIES * s->max_sequences);
    b->copies[2 * b->n_copies] = (int32_t)from;
    b->copies[2 * b->n_copies + 1] = (int32_t)to;
    b->n_copies += 1;
}

void dsi_states_forget(ds_server *s, dsi_sequence *q)
{
    if (q->kept.restores >= 0) {
        s->snapshots[q->kept.restores].pins -= 1;
    }
    q->kept = (dsi_kept){.stops = {-1, -1}, .restores = -1, .newest = -1, .held_at = -1};
}

/* ---- snapshots ---- */
static int64_t row_of(const ds_server *s, int64_t snapshot)
{
    return dsi_states_rows(s) - s->n_snapshots + snapshot;
}

static bool is_dead(const ds_server *s, const dsi_snapshot *one)
{
    return one->serial == 0 || !dsi_block_pool_holds(s->pool, one->block, one->serial);
}

/* The snapshot at the end of a registered block; -1: none. */
static int32_t find(const ds_server *s, int32_t block)
{
    const int32_t i = s->n_snapshots > 0 ? s->snapshot_of[block] : -1;
    const bool is = i >= 0 && s->snapshots[i].block == block && !is_dead(s, &s->snapshots[i]);
    return is ? i : -1;
}

bool dsi_states_has(const ds_server *s, int32_t block)
{
    return find(s, block) >= 0;
}

/* Blocks of the sequence's begin that are registered, whether or not there is a snapshot. */
static int64_t n_known(const ds_server *s, const dsi_sequence *q)
{
    const int64_t most = dsi_sequence_most_shared(s, q);
    uint64_t serial = q->begin;
    int64_t n = 0;
    for (; n < most; ++n) {
        const int32_t b = dsi_block_pool_find(s->pool, serial, q->ids + n * s->block);
        if (b < 0) {
            break;
        }
        serial = dsi_block_pool_serial(s->pool, b);
    }
    return n;
}

/* Where it parts from what was computed before, and at the end of its last whole block but for the
 * id that runs in any case. */
void dsi_states_begin(ds_server *s, dsi_sequence *q)
{
    if (s->n_snapshots == 0) {
        return;
    }
    const int64_t parts = n_known(s, q) * s->block;
    const int64_t last = (q->n_ids - 1) / s->block * s->block;
    q->kept.stops[0] = parts > q->n_computed ? parts : -1;
    q->kept.stops[1] = last > q->n_computed ? last : -1;
    if (q->n_computed > 0) {
        q->kept.restores = find(s, q->tail);
        s->snapshots[q->kept.restores].pins += 1;
        s->snapshots[q->kept.restores].stamp = ++s->stamp;
    }
}

int64_t dsi_states_until_stop(const dsi_sequence *q, int64_t n)
{
    for (int i = 0; i < 2; ++i) {
        const int64_t left = q->kept.stops[i] - q->n_computed;
        n = left > 0 && left < n ? left : n;
    }
    return n;
}

bool dsi_states_awaits(const ds_server *s, const dsi_sequence *q, int64_t n_blocks)
{
    const int64_t most = s->n_snapshots > 0 ? dsi_sequence_most_shared(s, q) * s->block : 0;
    if (most <= n_blocks * s->block) {
        return false;
    }
    for (const dsi_sequence *r = s->running.first; r != NULL; r = r->next) {
        for (int i = 0; i < 2 && r->begin == q->begin; ++i) {
            const int64_t at = r->kept.stops[i];
            if (at > r->n_computed && at > n_blocks * s->block && at <= most &&
                memcmp(r->ids, q->ids, (size_t)at * sizeof *q->ids) == 0) {
                return true;
            }
        }
    }
    return false;
}

void dsi_states_restore(ds_server *s, dsi_sequence *q)
{
    if (q->kept.restores >= 0) {
        put_copy(s, row_of(s, q->kept.restores), q->state);
        s->snapshots[q->kept.restores].pins -= 1;
        q->kept.restores = -1;
    }
}

/* The one that is taken next; -1: all are begun from. */
static int32_t victim(const ds_server *s)
{
    int32_t best = -1;
    for (int32_t i = 0; i < (int32_t)s->n_snapshots; ++i) {
        const dsi_snapshot *one = &s->snapshots[i];
        if (one->pins > 0) {
            continue;
        }
        if (is_dead(s, one)) {
            return i;
        }
        best = best < 0 || one->stamp < s->snapshots[best].stamp ? i : best;
    }
    return best;
}

/* Whether the sequence's newest snapshot is of its own text alone, so far. */
static bool may_replace(const ds_server *s, const dsi_kept *kept)
{
    return kept->newest >= 0 && s->snapshots[kept->newest].pins == 0 &&
           s->snapshots[kept->newest].stamp == kept->newest_stamp;
}

/* At the stops of a prompt; of a text that is made at the end of each block, in the place of the
 * last such. */
void dsi_states_keep(ds_server *s, dsi_sequence *q)
{
    dsi_kept *kept = &q->kept;
    const bool makes = q->n_computed >= q->n_prompt;
    const bool stops = q->n_computed == kept->stops[0] || q->n_computed == kept->stops[1];
    if (s->n_snapshots == 0 || q->of_put || q->embeds || !(makes || stops) || q->n_computed == 0 ||
        q->n_registered * s->block != q->n_computed ||
        !dsi_block_pool_holds(s->pool, q->tail, q->serial)) {
        return;
    }
    int32_t i = find(s, q->tail);
    if (i >= 0) {
        s->snapshots[i].stamp = ++s->stamp;
        return;
    }
    i = makes && may_replace(s, kept) ? kept->newest : victim(s);
    if (i < 0) {
        return;
    }
    s->snapshots[i] = (dsi_snapshot){.block = q->tail, .serial = q->serial, .stamp = ++s->stamp};
    s->snapshot_of[q->tail] = i;
    kept->newest = makes ? i : -1;
    kept->newest_stamp = s->stamp;
    put_copy(s, q->state, row_of(s, i));
}

/* ---- guesses ---- */
int64_t dsi_states_most_guesses(const ds_server *s, const dsi_sequence *q, int64_t n)
{
    const int64_t left = (s->block - q->n_ids % s->block) % s->block;
    return s->n_snapshots > 0 && left < n ? left : n;
}

void dsi_states_hold(ds_server *s, dsi_sequence *q)
{
    if (s->carries && q->kept.held_at != q->n_computed) {
        dsi_states_restore(s, q);
        put_copy(s, q->state, s->max_sequences + q->state);
        q->kept.held_at = q->n_computed;
    }
}

/* What was right runs again behind the held state, with the next id: to the same bits, as any ids
 * in any pieces do. */
void dsi_states_go_back(ds_server *s, dsi_sequence *q, int64_t ran)
{
    if (!s->carries) {
        return;
    }
    if (q->n_computed == ran) {
        dsi_states_keep(s, q);
        return;
    }
    put_copy(s, s->max_sequences + q->state, q->state);
    q->kept.n_again = q->n_computed - q->kept.held_at;
    q->n_computed = q->kept.held_at;
}
