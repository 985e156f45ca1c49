/* SPDX-License-Identifier: Apache-2.0 */
/* Many sequences in a row over ranks that share the layers: what rank 0 runs, the others run.
 *
 * Rank 0 alone has requests, blocks and logits. An order is a message of FIRST_WORDS, and one of
 * the rest where there is more; what a few sequences decode fits the first. Of the tables it has
 * the blocks that the batch reads, and of a token what cannot be derived from them. Called by
 * generator_paged.c, generator_slots.c and src/serve.
 */
#include "base/clock.h"
#include "infer/generator.h"

#include <stdio.h>
#include <string.h>

enum { FIRST_WORDS = 512, HEAD_WORDS = 8, FOLDER_BYTES = 4096 };

/* Words of an order: what, words in all, then by kind; behind the head what is as long as they say.
 */
enum {
    WHAT,
    WORDS,
    RUN_TOKENS,
    RUN_LAST,
    RUN_EMBEDS,
    RUN_ROWS,
    RUN_COPIES,
    SOURCE_IDS = RUN_TOKENS,
    SOURCE_ADAPTER,
    SOURCE_KEPT, /* its keys and values are */
    SLOT = RUN_TOKENS,
    TURN = RUN_TOKENS
};

enum { ORDER_END, ORDER_BEAT, ORDER_RUN, ORDER_SOURCE, ORDER_SLOT, ORDER_TURN };

size_t dsi_paged_order_words(const ds_generator *g)
{
    const ds_paged *p = &g->paged;
    const size_t batch = HEAD_WORDS + 7 * (size_t)g->budget +
                         (size_t)(p->rows + p->sequences * (2 + p->table + 2 * DSI_STATE_COPIES));
    const size_t sources = g->pairs ? (size_t)(g->budget + p->sequences * (1 + p->table)) : 0;
    const size_t source = HEAD_WORDS + 2 * (size_t)g->max_length;
    const size_t folder = HEAD_WORDS + FOLDER_BYTES / sizeof(int32_t);
    size_t most = batch + sources > folder ? batch + sources : folder;
    most = g->pairs && source > most ? source : most;
    return most > FIRST_WORDS ? most : FIRST_WORDS;
}

static ds_status send(ds_generator *g, int32_t what, size_t n_words)
{
    g->orders[WHAT] = what;
    g->orders[WORDS] = (int32_t)n_words;
    g->ordered = dsi_clock_seconds();
    ds_status status = dsi_generator_order(g, g->orders, FIRST_WORDS);
    if (status >= 0 && n_words > FIRST_WORDS) {
        status = dsi_generator_order(g, g->orders + FIRST_WORDS, n_words - FIRST_WORDS);
    }
    g->lost = g->lost || status < 0;
    return status;
}

static ds_status receive(ds_generator *g)
{
    DS_TRY(dsi_generator_order(g, g->orders, FIRST_WORDS));
    const int64_t rest = (int64_t)g->orders[WORDS] - FIRST_WORDS;
    return rest > 0 ? dsi_generator_order(g, g->orders + FIRST_WORDS, (size_t)rest) : DS_OK;
}

/* ---- a batch --------------------------------------------------------------------------------- */

static int32_t *put(int32_t *to, const int32_t *words, int64_t n)
{
    if (n > 0) {
        memcpy(to, words, (size_t)n * sizeof *words);
    }
    return to + n;
}

/* The blocks up to a position. */
static int32_t *put_blocks(const ds_generator *g, int32_t *to, const int32_t *table, int32_t last)
{
    const int64_t n = last / g->paged.block + 1;
    *to++ = (int32_t)n;
    return put(to, table, n);
}

/* Of each row, whose tokens are neighbours, its number and the blocks that they read, of pairs
 * those of its source, too. */
static int32_t *put_tables(const ds_generator *g, int32_t *to, const dsi_paged_batch *b)
{
    for (int64_t i = 0; i < b->n; ++i) {
        if (i + 1 == b->n || b->of_token[i + 1] != b->of_token[i]) {
            const int64_t at = b->of_token[i] * g->paged.table;
            *to++ = b->of_token[i];
            to = put_blocks(g, to, b->tables + at, b->positions[i]);
            to = g->pairs ? put_blocks(g, to, b->source_tables + at, b->source_last[i]) : to;
        }
    }
    return to;
}

/* The others' side: where the words behind it are. */
static const int32_t *take_blocks(const int32_t *at, int32_t *table)
{
    const int32_t n = *at++;
    (void)put(table, at, n);
    return at + n;
}

/* Whether the model asks how long tokens' sequences are. */
static bool has_lengths(const ds_generator *g)
{
    return g->pieces[0].sequence != DS_NONE;
}

ds_status dsi_paged_lead(ds_generator *g, const dsi_paged_batch *b)
{
    int32_t *to = g->orders + HEAD_WORDS;
    g->orders[RUN_TOKENS] = (int32_t)b->n;
    g->orders[RUN_LAST] = (int32_t)b->n_last;
    g->orders[RUN_EMBEDS] = b->embeds;
    g->orders[RUN_ROWS] = 0;
    for (int64_t i = 0; i < b->n; ++i) {
        g->orders[RUN_ROWS] += i == 0 || b->of_token[i] != b->of_token[i - 1];
    }
    g->orders[RUN_COPIES] = (int32_t)b->n_copies;
    to = put(to, b->copies, 2 * b->n_copies);
    to = put(to, b->ids, b->n);
    to = put(to, b->positions, b->n);
    to = put(to, b->of_token, b->n);
    to = put(to, b->slots, b->n);
    to = g->slots.n > 0 ? put(to, b->adapters, b->n) : to;
    to = has_lengths(g) ? put(to, b->lengths, b->n) : to;
    to = g->pairs ? put(to, b->source_last, b->n) : to;
    to = put(to, b->last, b->n_last);
    to = put_tables(g, to, b);
    return send(g, ORDER_RUN, (size_t)(to - g->orders));
}

static ds_status follow_batch(ds_generator *g)
{
    const int32_t *at = g->orders + HEAD_WORDS;
    const int64_t n = g->orders[RUN_TOKENS];
    const float *rows = NULL;
    dsi_paged_batch b = {.n = n,
                         .n_last = g->orders[RUN_LAST],
                         .embeds = g->orders[RUN_EMBEDS] != 0,
                         .tables = g->tables,
                         .source_tables = g->tables + g->paged.sequences * g->paged.table,
                         .copies = at,
                         .n_copies = g->orders[RUN_COPIES]};
    b.ids = at + 2 * b.n_copies;
    b.positions = b.ids + n;
    b.of_token = b.positions + n;
    b.slots = b.of_token + n;
    b.adapters = b.slots + n;
    b.lengths = g->slots.n > 0 ? b.adapters + n : b.adapters;
    b.source_last = has_lengths(g) ? b.lengths + n : b.lengths;
    b.last = g->pairs ? b.source_last + n : b.source_last;
    at = b.last + b.n_last;
    for (int32_t i = 0; i < g->orders[RUN_ROWS]; ++i) {
        int32_t *table = g->tables + *at++ * g->paged.table;
        at = take_blocks(at, table);
        at = g->pairs ? take_blocks(at, table + g->paged.sequences * g->paged.table) : at;
    }
    return dsi_paged_run(g, &b, &rows);
}

/* ---- a source -------------------------------------------------------------------------------- */

ds_status dsi_paged_lead_source(ds_generator *g, const uint32_t *ids, int64_t n,
                                const int32_t *slots, int32_t adapter)
{
    int32_t *to = g->orders + HEAD_WORDS;
    g->orders[SOURCE_IDS] = (int32_t)n;
    g->orders[SOURCE_ADAPTER] = adapter;
    g->orders[SOURCE_KEPT] = slots != NULL;
    for (int64_t i = 0; i < n; ++i) {
        *to++ = (int32_t)ids[i];
    }
    to = slots != NULL ? put(to, slots, n) : to;
    return send(g, ORDER_SOURCE, (size_t)(to - g->orders));
}

static ds_status follow_source(ds_generator *g)
{
    const int32_t *at = g->orders + HEAD_WORDS;
    const int64_t n = g->orders[SOURCE_IDS];
    const float *rows = NULL;
    return dsi_pairs_read_source(g, (const uint32_t *)at, n,
                                 g->orders[SOURCE_KEPT] != 0 ? at + n : NULL,
                                 g->orders[SOURCE_ADAPTER], &rows);
}

/* ---- the rest -------------------------------------------------------------------------------- */

ds_status dsi_paged_lead_slot(ds_generator *g, int64_t slot, const char *folder)
{
    char *text = (char *)(g->orders + HEAD_WORDS);
    if (strlen(folder) >= FOLDER_BYTES) {
        return ds_fail(g->ctx, DS_ERR_ARG,
                       "an adapter's folder has a path of %zu bytes, most are "
                       "%d",
                       strlen(folder), FOLDER_BYTES - 1);
    }
    (void)snprintf(text, FOLDER_BYTES, "%s", folder);
    g->orders[SLOT] = (int32_t)slot;
    return send(g, ORDER_SLOT, HEAD_WORDS + FOLDER_BYTES / sizeof(int32_t));
}

ds_status dsi_paged_lead_turn(ds_generator *g, int32_t what, const char *text)
{
    if (g->lost) {
        return ds_fail(g->ctx, DS_ERR_PEER, "a rank that shares the layers is lost");
    }
    if (strlen(text) >= FOLDER_BYTES) {
        return ds_fail(g->ctx, DS_ERR_ARG, "a path of %zu bytes, most are %d", strlen(text),
                       FOLDER_BYTES - 1);
    }
    (void)snprintf((char *)(g->orders + HEAD_WORDS), FOLDER_BYTES, "%s", text);
    g->orders[TURN] = what;
    return send(g, ORDER_TURN, HEAD_WORDS + strlen(text) / sizeof(int32_t) + 1);
}

ds_status dsi_paged_beat(ds_generator *g)
{
    if (g->comm == NULL || dsi_clock_seconds() - g->ordered < 1.0) {
        return DS_OK;
    }
    DS_TRY(send(g, ORDER_BEAT, HEAD_WORDS));
    const ds_status status = dsi_comm_barrier(g->comm, "whether all ranks are there");
    g->lost = g->lost || status < 0;
    return status;
}

void dsi_paged_end(ds_generator *g)
{
    if (!g->lost) {
        (void)send(g, ORDER_END, HEAD_WORDS);
    }
}

ds_status dsi_paged_follow(ds_generator *g, int32_t *turn_out, const char **text_out)
{
    *turn_out = 0;
    for (;;) {
        DS_TRY(receive(g));
        switch (g->orders[WHAT]) {
        case ORDER_RUN:
            DS_TRY(follow_batch(g));
            break;
        case ORDER_SOURCE:
            DS_TRY(follow_source(g));
            break;
        case ORDER_SLOT:
            dsi_generator_slot_follow(g, g->orders[SLOT], (const char *)(g->orders + HEAD_WORDS));
            break;
        case ORDER_BEAT:
            DS_TRY(dsi_comm_barrier(g->comm, "whether all ranks are there"));
            break;
        case ORDER_TURN:
            *turn_out = g->orders[TURN];
            *text_out = (const char *)(g->orders + HEAD_WORDS);
            return DS_OK;
        default:
            return DS_OK;
        }
    }
}
