/* SPDX-License-Identifier: Apache-2.0 */
/* Merges from the scores of pieces. See piece_merges.h. */
#include "io/piece_merges.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* From a piece to its place: open addressing; UINT32_MAX: empty. */
typedef struct table {
    const dsi_scored_piece *pieces;
    uint32_t *slots;
    size_t n;
} table;

static uint32_t *slot_of(const table *t, const char *text, size_t n)
{
    size_t at = (size_t)XXH3_64bits(text, n) & (t->n - 1);
    while (t->slots[at] != UINT32_MAX) {
        const dsi_scored_piece *piece = &t->pieces[t->slots[at]];
        if (piece->n == n && memcmp(piece->text, text, n) == 0) {
            break;
        }
        at = (at + 1) & (t->n - 1);
    }
    return &t->slots[at];
}

static bool index_pieces(const dsi_scored_piece *pieces, size_t n, table *t)
{
    *t = (table){.pieces = pieces, .n = 16};
    while (t->n < 2 * n) {
        t->n *= 2;
    }
    t->slots = malloc(t->n * sizeof *t->slots);
    if (t->slots == NULL) {
        return false;
    }
    memset(t->slots, 0xff, t->n * sizeof *t->slots);
    for (size_t i = 0; i < n; ++i) {
        if (pieces[i].merges) {
            *slot_of(t, pieces[i].text, pieces[i].n) = (uint32_t)i;
        }
    }
    return true;
}

typedef struct merges {
    dsi_piece_merge *items;
    size_t n, capacity;
} merges;

static bool add_merge(merges *m, dsi_piece_merge item)
{
    if (m->n == m->capacity) {
        const size_t capacity = m->capacity > 0 ? 2 * m->capacity : 4096;
        dsi_piece_merge *items = realloc(m->items, capacity * sizeof *items);
        if (items == NULL) {
            return false;
        }
        m->items = items;
        m->capacity = capacity;
    }
    item.order = m->n;
    m->items[m->n++] = item;
    return true;
}

/* All ways to cut a piece between two characters so that both parts are pieces. */
static bool cut_piece(const table *t, uint32_t id, merges *m)
{
    const dsi_scored_piece *piece = &t->pieces[id];
    for (size_t at = 1; at < piece->n; ++at) {
        if (((unsigned char)piece->text[at] & 0xc0) == 0x80) {
            continue; /* inside of a character */
        }
        const uint32_t left = *slot_of(t, piece->text, at);
        const uint32_t right = *slot_of(t, piece->text + at, piece->n - at);
        if (left != UINT32_MAX && right != UINT32_MAX &&
            !add_merge(m, (dsi_piece_merge){.score = piece->score,
                                            .left_score = t->pieces[left].score,
                                            .right_score = t->pieces[right].score,
                                            .whole = id,
                                            .left = left,
                                            .right = right})) {
            return false;
        }
    }
    return true;
}

static int falling(float a, float b)
{
    return (a < b) - (a > b);
}

/* Best scores first, pieces in their order; of one piece, the cut whose parts score best. */
static int compare_merges(const void *x, const void *y)
{
    const dsi_piece_merge *a = x;
    const dsi_piece_merge *b = y;
    const int keys[] = {falling(a->score, b->score), (a->whole > b->whole) - (a->whole < b->whole),
                        falling(a->left_score, b->left_score),
                        falling(a->right_score, b->right_score),
                        (a->order > b->order) - (a->order < b->order)};
    size_t i = 0;
    while (i + 1 < sizeof keys / sizeof keys[0] && keys[i] == 0) {
        ++i;
    }
    return keys[i];
}

ds_status dsi_piece_merges(ds_ctx *ctx, const dsi_scored_piece *pieces, size_t n,
                           dsi_piece_merge **merges_out, size_t *n_out)
{
    merges m = {0};
    table t;
    bool good = index_pieces(pieces, n, &t);
    for (uint32_t id = 0; good && id < n; ++id) {
        good = !pieces[id].merges || cut_piece(&t, id, &m);
    }
    free(t.slots);
    if (!good) {
        free(m.items);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
    }
    if (m.n > 0) {
        qsort(m.items, m.n, sizeof *m.items, compare_merges);
    }
    *merges_out = m.items;
    *n_out = m.n;
    return DS_OK;
}
