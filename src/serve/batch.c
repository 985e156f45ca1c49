/* SPDX-License-Identifier: Apache-2.0 */
/* A ragged batch: ids of several sequences in a row. */
#include "serve/server.h"

#include <stdlib.h>

ds_status dsi_batch_create(ds_server *s)
{
    dsi_serve_batch *b = &s->batch;
    const size_t tokens = (size_t)s->max_batch_tokens;
    const size_t sequences = (size_t)s->max_sequences;
    const size_t rows = (size_t)s->generator->paged.rows;
    b->ids = malloc(6 * tokens * sizeof *b->ids);
    b->last = malloc((s->width > 0 ? tokens : rows) * sizeof *b->last);
    b->tables = calloc(sequences * (size_t)s->generator->paged.table, sizeof *b->tables);
    b->members = malloc((sequences + rows) * sizeof *b->members);
    b->behind = malloc(2 * rows * sizeof *b->behind);
    b->copies = malloc(2 * DSI_STATE_COPIES * sequences * sizeof *b->copies);
    if (s->pairs) {
        const size_t table = sequences * (size_t)s->generator->paged.table;
        b->source_tables = calloc(table + tokens + (size_t)s->max_length, sizeof *b->tables);
        if (b->source_tables == NULL) {
            return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for tables of sources");
        }
        b->source_last = b->source_tables + table;
        b->source_slots = b->source_last + tokens;
    }
    if (b->ids == NULL || b->last == NULL || b->tables == NULL || b->members == NULL ||
        b->behind == NULL || b->copies == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for a batch of %lld tokens",
                       (long long)s->max_batch_tokens);
    }
    b->positions = b->ids + tokens;
    b->of_token = b->positions + tokens;
    b->slots = b->of_token + tokens;
    b->adapters = b->slots + tokens;
    b->lengths = b->adapters + tokens;
    b->wanting = b->members + sequences;
    b->event = b->behind + rows;
    return DS_OK;
}

void dsi_batch_destroy(ds_server *s)
{
    free(s->batch.ids);
    free(s->batch.last);
    free(s->batch.tables);
    free(s->batch.source_tables);
    free(s->batch.members);
    free(s->batch.behind);
    free(s->batch.copies);
}

void dsi_batch_begin(ds_server *s)
{
    s->batch.n = s->batch.n_last = s->batch.n_members = s->batch.n_events = 0;
    s->batch.n_source = 0;
}

static void add_row(dsi_serve_batch *b, dsi_sequence *q, int64_t behind, int64_t token)
{
    b->wanting[b->n_last] = q;
    b->behind[b->n_last] = behind;
    b->event[b->n_last] = behind < q->n_prompt ? -1 : b->n_events++;
    b->last[b->n_last++] = (int32_t)token;
}

/* Whether the logits of the id at a position say how likely the next one of the prompt was. */
static bool scores(const dsi_sequence *q, int64_t position)
{
    return q->scores != NULL && position + 1 < q->n_prompt && position + 1 >= q->n_scored;
}

int64_t dsi_batch_fits(const ds_server *s, const dsi_sequence *q, int64_t n)
{
    const int64_t others = s->running.n - s->batch.n_members - 1;
    const int64_t room =
        s->generator->paged.rows - s->batch.n_last - (q->scores != NULL ? others : 0);
    int64_t fit = 0;
    for (int64_t rows = 0; fit < n; ++fit) {
        const int64_t position = q->n_computed + fit;
        rows += scores(q, position) || position + 1 == q->n_ids;
        if (rows > room) {
            break;
        }
    }
    return fit;
}

void dsi_batch_add(ds_server *s, dsi_sequence *q, int64_t n)
{
    dsi_serve_batch *b = &s->batch;
    const int64_t row = q->state >= 0 ? q->state : b->n_members;
    dsi_states_restore(s, q);
    int32_t *table = b->tables + row * s->generator->paged.table;
    for (int64_t i = 0; i < q->n_blocks; ++i) {
        table[i] = q->blocks[i];
    }
    if (q->source != NULL) {
        dsi_source_table(q, b->source_tables + row * s->generator->paged.table);
    }
    for (int64_t i = 0; i < n; ++i) {
        const int64_t position = q->n_computed + i;
        if (q->source != NULL) {
            b->source_last[b->n] = (int32_t)dsi_source_length(q) - 1;
        }
        b->ids[b->n] = (int32_t)q->ids[position];
        b->positions[b->n] = (int32_t)position;
        b->of_token[b->n] = (int32_t)row;
        b->adapters[b->n] = q->slot;
        b->lengths[b->n] = (int32_t)dsi_sequence_length_at(q, position);
        b->slots[b->n] = (int32_t)(q->blocks[position / s->block] * s->block + position % s->block);
        if (scores(q, position)) {
            add_row(b, q, position + 1, b->n);
        }
        b->n += 1;
    }
    b->members[b->n_members++] = q;
    q->n_batch = n;
    if (q->embeds || q->n_computed + n < q->n_ids) {
        return;
    }
    for (int64_t i = q->n_draft; i >= 0; --i) {
        add_row(b, q, q->n_ids + q->n_draft - i, b->n - 1 - i);
    }
}

ds_status dsi_batch_run(ds_server *s, bool embeds, const float **rows_out)
{
    dsi_serve_batch *b = &s->batch;
    for (int64_t i = 0; embeds && i < b->n; ++i) {
        b->last[i] = (int32_t)i;
    }
    const dsi_paged_batch batch = {.ids = b->ids,
                                   .positions = b->positions,
                                   .of_token = b->of_token,
                                   .slots = b->slots,
                                   .tables = b->tables,
                                   .last = b->last,
                                   .adapters = b->adapters,
                                   .lengths = b->lengths,
                                   .source_tables = b->source_tables,
                                   .source_last = b->source_last,
                                   .copies = b->copies,
                                   .n_copies = b->n_copies,
                                   .n = b->n,
                                   .n_last = embeds ? b->n : b->n_last,
                                   .embeds = embeds};
    b->n_copies = 0; /* a run that fails leaves no server that goes on */
    DS_TRY(dsi_paged_run(s->generator, &batch, rows_out));
    for (int64_t i = 0; i < b->n_members; ++i) {
        dsi_sequence *q = b->members[i];
        const int64_t n = q->n_batch - q->n_draft; /* guesses are none of its ids yet */
        q->n_computed += n;
        q->kept.n_again = q->kept.n_again > n ? q->kept.n_again - n : 0;
        dsi_sequence_register(s, q);
        if (q->n_draft == 0) {
            dsi_states_keep(s, q);
        }
    }
    s->stats.n_steps += 1;
    s->stats.n_tokens += b->n;
    return DS_OK;
}
