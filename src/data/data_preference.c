/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of preferences as documents, as TRL's trainers take them: a pair is two documents side by
 * side, chosen and rejected, each with its prompt; a labelled answer is one. Called by data_take.c.
 *
 * Too long: the beginning of each document is kept, and a row whose prompt alone fills seq_length
 * is left out, as it would have no answer; or the end of each is kept; or a row with a document
 * that is too long is left out.
 *
 * A label lies in the flags of the document's first token (DSI_FLAG_UNDESIRED), which is never a
 * target.
 */
#include "data/data_take.h"
#include "data/preference.h"

#include <stdlib.h>
#include <string.h>

/* A document of a row. */
typedef struct answer {
    const uint32_t *ids;
    const uint8_t *counted;
    uint64_t n;
    bool undesired;
} answer;

typedef struct row_taker {
    ds_ctx *ctx;
    const ds_dataset_params *params;
    dsi_take *take;
    const char *path;
} row_taker;

static uint64_t limit(const row_taker *t)
{
    return (uint64_t)t->params->seq_length;
}

static uint64_t prompt_of(const answer *a)
{
    const uint8_t *first = memchr(a->counted, DSI_FLAG_COUNTS, a->n);
    return first != NULL ? (uint64_t)(first - a->counted) : a->n;
}

/* Whether all documents of a row may stay; counts those that may not. */
static bool stays(const row_taker *t, const answer *answers, size_t n)
{
    ds_dataset_info *info = &t->take->info;
    const bool keeps_end = t->params->too_long == DS_TOO_LONG_KEEP_END;
    for (size_t i = 0; i < n; ++i) {
        if (answers[i].n > limit(t) && t->params->too_long == DS_TOO_LONG_DROP) {
            info->n_dropped += 1;
            return false;
        }
        if ((!keeps_end && prompt_of(&answers[i]) >= limit(t)) ||
            prompt_of(&answers[i]) == answers[i].n || answers[i].n < 2) {
            info->n_uncounted += 1;
            return false;
        }
    }
    return true;
}

static ds_status add(const row_taker *t, const answer *a)
{
    const bool cuts = a->n > limit(t);
    const uint64_t n = cuts ? limit(t) : a->n;
    const uint64_t begin = cuts && t->params->too_long == DS_TOO_LONG_KEEP_END ? a->n - n : 0;
    uint8_t *flags = malloc(n);
    if (flags == NULL) {
        return ds_fail(t->ctx, DS_ERR_NOMEM, "no memory for a row of preferences");
    }
    memcpy(flags, a->counted + begin, n);
    flags[0] |= a->undesired ? DSI_FLAG_UNDESIRED : 0;
    const ds_status status = dsi_take_add(t->take, a->ids + begin, flags, n, false);
    t->take->info.n_truncated += cuts;
    free(flags);
    return status;
}

/* All pairs have columns of the reference, or none. */
static ds_status add_reference(const row_taker *t, const dsi_document *row)
{
    dsi_take *take = t->take;
    take->n_pairs += 1;
    take->n_references += row->reference != NULL;
    if (take->n_references != 0 && take->n_references != take->n_pairs) {
        return ds_fail(
            t->ctx, DS_ERR_FORMAT,
            "%s: of its pairs some have \"ref_chosen_logps\" and \"ref_rejected_logps\", "
            "pair %llu is the first that is otherwise: give all of them, or none",
            t->path, (unsigned long long)take->n_pairs);
    }
    if (row->reference == NULL) {
        return DS_OK;
    }
    return take->reference != NULL
               ? take->reference(take->user, row->reference)
               : ds_fail(t->ctx, DS_ERR_UNSUPPORTED,
                         "%s: the data cache has no place for \"ref_chosen_logps\" and "
                         "\"ref_rejected_logps\": --data_cache none keeps all in memory",
                         t->path);
}

static ds_status take_pair(const row_taker *t, const dsi_document *row)
{
    const uint64_t n = row->n_chosen;
    const answer both[2] = {{row->ids, row->counted, n, false},
                            {row->ids + n, row->counted + n, row->n - n, true}};
    if (t->params->rows == DS_ROWS_PAIRS) {
        if (!stays(t, both, 2)) {
            return DS_OK;
        }
        DS_TRY(add(t, &both[0]));
        DS_TRY(add(t, &both[1]));
        return add_reference(t, row);
    }
    for (int i = 0; i < 2; ++i) {
        DS_TRY(stays(t, &both[i], 1) ? add(t, &both[i]) : DS_OK);
    }
    return DS_OK;
}

ds_status dsi_take_preference(ds_ctx *ctx, const ds_dataset_params *params, const char *path,
                              dsi_take *take, const dsi_document *row)
{
    const row_taker t = {ctx, params, take, path};
    if (row->schema == DSI_SCHEMA_PREFERENCE) {
        return take_pair(&t, row);
    }
    if (row->schema == DSI_SCHEMA_UNPAIRED && params->rows == DS_ROWS_LABELLED) {
        const answer one = {row->ids, row->counted, row->n, !row->label};
        return stays(&t, &one, 1) ? add(&t, &one) : DS_OK;
    }
    return ds_fail(
        ctx, DS_ERR_ARG,
        "%s: plain text has no preferences, which this objective needs; give rows of them", path);
}
