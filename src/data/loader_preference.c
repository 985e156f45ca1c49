/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of preferences: a draw is a pair of documents, or one with a label, each a row of its
 * own. What the loss reads besides is filled here too. See loader.h, deepspeed/preference.h.
 *
 * Of KTO a draw has a second, mismatched row: its prompt with the answer of its neighbour in the
 * order of the data, within groups of as many samples as a batch has, as TRL pairs them: a function
 * of the data and the batch alone, so that the reference of these rows is computed once as well.
 */
#include "data/loader.h"
#include "data/preference.h"

#include <stdlib.h>
#include <string.h>

typedef struct dsi_preference_rows {
    ds_preference loss;
    ds_loader_preference view;
    float *ref_logps;    /* (rows) */
    int32_t *labels;     /* (B) of labelled answers */
    int32_t *completion; /* (rows,T) of ORPO */
    /* of KTO */
    int32_t *mismatched; /* four planes (B,T) */
    float *mismatched_ref;
    ds_loader_batch mismatched_view;
    ds_loader_preference mismatched_more;
} dsi_preference_rows;

static bool of_pairs(const ds_loader *loader)
{
    return loader->params.preference != NULL &&
           ds_preference_is_paired(loader->params.preference->loss);
}

int64_t dsi_loader_rows_each(const ds_loader *loader)
{
    return of_pairs(loader) ? 2
           : loader->lanes != NULL && loader->lanes[0].dataset->info.rows == DS_ROWS_CONTRAST
               ? loader->lanes[0].dataset->n_parts
               : 1;
}

/* Data sets of the loss's kind of rows, and the other way round. */
static ds_status check_rows(const ds_loader *loader)
{
    static const char *const names[] = {[DS_ROWS_TEXT] = "no preferences",
                                        [DS_ROWS_PAIRS] = "pairs of preferences (DS_ROWS_PAIRS)",
                                        [DS_ROWS_LABELLED] = "labelled answers (DS_ROWS_LABELLED)",
                                        [DS_ROWS_CLASSES] = "classes",
                                        [DS_ROWS_TOKEN_CLASSES] = "classes",
                                        [DS_ROWS_SOURCES] = "sources",
                                        [DS_ROWS_VALUES] = "values",
                                        [DS_ROWS_CONTRAST] = "anchors and positives"};
    const ds_preference *p = loader->params.preference;
    const uint8_t want = p == NULL          ? DS_ROWS_TEXT
                         : of_pairs(loader) ? DS_ROWS_PAIRS
                                            : DS_ROWS_LABELLED;
    for (uint32_t i = 0; i < loader->n_lanes; ++i) {
        const uint8_t got = loader->lanes[i].dataset->info.rows;
        if (got != want && !(p == NULL && got >= DS_ROWS_CLASSES)) {
            return ds_fail(loader->ctx, DS_ERR_ARG,
                           "the loader's loss needs %s, the data set was opened with %s",
                           names[want], names[got]);
        }
    }
    return DS_OK;
}

static ds_status make_room(ds_loader *loader)
{
    dsi_preference_rows *p = loader->preference;
    const size_t batch = (size_t)loader->params.batch;
    const size_t rows = batch * (size_t)dsi_loader_rows_each(loader);
    const size_t length = (size_t)loader->params.seq_length;
    const bool orpo = p->loss.loss == DS_PREFERENCE_ORPO;
    const bool kto = p->loss.loss == DS_PREFERENCE_KTO;
    p->ref_logps = calloc(rows, sizeof *p->ref_logps);
    p->labels = calloc(batch, sizeof *p->labels);
    p->completion = orpo ? calloc(rows * length, sizeof *p->completion) : NULL;
    p->mismatched = kto ? calloc(batch * length, 4 * sizeof *p->mismatched) : NULL;
    p->mismatched_ref = kto ? calloc(batch, sizeof *p->mismatched_ref) : NULL;
    const bool fine = p->ref_logps != NULL && p->labels != NULL &&
                      (!orpo || p->completion != NULL) &&
                      (!kto || (p->mismatched != NULL && p->mismatched_ref != NULL));
    return fine ? DS_OK
                : ds_fail(loader->ctx, DS_ERR_NOMEM, "no memory for a batch of preferences");
}

/* The tensors stay where they are. */
static void make_views(const ds_loader *loader, dsi_preference_rows *p)
{
    const int64_t batch = loader->params.batch;
    const int64_t length = loader->params.seq_length;
    const int64_t rows = batch * dsi_loader_rows_each(loader);
    const ds_meta plane = {DS_DTYPE_I32, ds_shape_2d(rows, length)};
    if (ds_preference_has_reference(&p->loss)) {
        p->view.ref_logps = (ds_tensor){p->ref_logps, {DS_DTYPE_F32, ds_shape_1d(rows)}};
    }
    if (!of_pairs(loader)) {
        p->view.labels = (ds_tensor){p->labels, {DS_DTYPE_I32, ds_shape_1d(batch)}};
    }
    if (p->completion != NULL) {
        p->view.completion = (ds_tensor){p->completion, plane};
    }
    if (p->mismatched != NULL) {
        int32_t *at = p->mismatched;
        const int64_t each = batch * length;
        p->mismatched_more.ref_logps =
            (ds_tensor){p->mismatched_ref, {DS_DTYPE_F32, ds_shape_1d(batch)}};
        p->mismatched_more.labels = p->view.labels;
        p->mismatched_view = (ds_loader_batch){.input_ids = {at, plane},
                                               .targets = {at + each, plane},
                                               .positions = {at + 2 * each, plane},
                                               .first = {at + 3 * each, plane},
                                               .preference = &p->mismatched_more};
        p->view.mismatched = &p->mismatched_view;
    }
}

ds_status dsi_loader_open_preference(ds_loader *loader)
{
    const ds_preference *given = loader->params.preference;
    DS_TRY(check_rows(loader));
    if (given == NULL) {
        return DS_OK;
    }
    loader->preference = calloc(1, sizeof *loader->preference);
    if (loader->preference == NULL) {
        return ds_fail(loader->ctx, DS_ERR_NOMEM, "no memory for a batch of preferences");
    }
    loader->preference->loss = *given;
    loader->params.preference = &loader->preference->loss;
    DS_TRY(make_room(loader));
    make_views(loader, loader->preference);
    return DS_OK;
}

void dsi_loader_close_preference(ds_loader *loader)
{
    dsi_preference_rows *p = loader->preference;
    if (p != NULL) {
        free(p->ref_logps);
        free(p->labels);
        free(p->completion);
        free(p->mismatched);
        free(p->mismatched_ref);
        free(p);
        loader->preference = NULL;
    }
}

const ds_loader_preference *dsi_loader_view_preference(ds_loader *loader)
{
    return loader->preference != NULL ? &loader->preference->view : NULL;
}

/* Tokens of the store: those of document d, of which the first n_prompt do not count. */
typedef struct span {
    uint64_t begin, n, n_prompt;
} span;

static span span_of(const ds_dataset *dataset, uint64_t d)
{
    const uint8_t *flags = dataset->tokens->counted;
    span s = {.begin = dsi_dataset_begin(dataset, d)};
    s.n = dsi_dataset_begin(dataset, d + 1) - s.begin;
    while (s.n_prompt < s.n && (flags[s.begin + s.n_prompt] & DSI_FLAG_COUNTS) == 0) {
        s.n_prompt += 1;
    }
    return s;
}

/* Writes n tokens that begin at `begin` of the store, at position `at` of a row. */
static void copy(ds_loader *loader, const ds_dataset *dataset, dsi_row row, int64_t at,
                 uint64_t begin, uint64_t n)
{
    for (uint64_t i = 0; i < n; ++i) {
        row.input_ids[at + (int64_t)i] = dsi_loader_id(loader, dataset, begin + i);
        row.positions[at + (int64_t)i] = (int32_t)(at + (int64_t)i);
        row.first[at + (int64_t)i] = 0;
    }
}

/* Targets of a row of n tokens, of which those from `from` on count. */
static void aim(const ds_loader *loader, dsi_row row, int32_t *completion, int64_t n, int64_t from)
{
    const ds_preference_loss loss = loader->preference->loss.loss;
    for (int64_t i = 0; i < n; ++i) {
        const bool last = i + 1 == n;
        const int32_t answer = !last && i + 1 >= from ? row.input_ids[i + 1] : -100;
        row.targets[i] = answer;
        if (loss == DS_PREFERENCE_REWARD) {
            row.targets[i] = last ? row.input_ids[i] : -100; /* where the score is */
        } else if (loss == DS_PREFERENCE_ORPO) {
            row.targets[i] = last ? -100 : row.input_ids[i + 1];
            completion[i] = answer;
        }
    }
    for (int64_t i = n; loss == DS_PREFERENCE_ORPO && i < loader->params.seq_length; ++i) {
        completion[i] = -100;
    }
    dsi_loader_clear_row(row, n, loader->params.seq_length);
}

static int32_t *completion_at(const ds_loader *loader, int64_t row)
{
    int32_t *all = loader->preference->completion;
    return all != NULL ? all + row * loader->params.seq_length : NULL;
}

static void place_document(ds_loader *loader, const ds_dataset *dataset, uint64_t d, int64_t row)
{
    const span s = span_of(dataset, d);
    const dsi_row at = dsi_loader_row_at(loader, row);
    copy(loader, dataset, at, 0, s.begin, s.n);
    aim(loader, at, completion_at(loader, row), (int64_t)s.n, (int64_t)s.n_prompt);
    loader->batch_tokens += s.n;
}

static dsi_row mismatched_at(const ds_loader *loader, int64_t row)
{
    const int64_t length = loader->params.seq_length;
    const int64_t plane = loader->params.batch * length;
    int32_t *at = loader->preference->mismatched + row * length;
    return (dsi_row){at, at + plane, at + 2 * plane, at + 3 * plane, NULL};
}

/* The prompt of document d with the answer of its neighbour. */
static void place_mismatched(ds_loader *loader, const ds_dataset *dataset, uint64_t d, int64_t row)
{
    const uint64_t batch = (uint64_t)loader->params.batch;
    const uint64_t group = d / batch * batch;
    const uint64_t end = group + batch < dataset->n_docs ? group + batch : dataset->n_docs;
    const span own = span_of(dataset, d);
    const span other = span_of(dataset, d > group ? d - 1 : end - 1);
    const uint64_t room = (uint64_t)loader->params.seq_length - own.n_prompt;
    const uint64_t n = other.n - other.n_prompt;
    const uint64_t fits = n < room ? n : room;
    const dsi_row at = mismatched_at(loader, row);
    copy(loader, dataset, at, 0, own.begin, own.n_prompt);
    copy(loader, dataset, at, (int64_t)own.n_prompt, other.begin + other.n_prompt, fits);
    aim(loader, at, NULL, (int64_t)(own.n_prompt + fits), (int64_t)own.n_prompt);
}

/* Log-probability `which` of a draw by the reference. */
static float reference_of(const ds_dataset *dataset, uint64_t draw, uint64_t which)
{
    return dataset->reference != NULL ? dataset->reference[2 * draw + which] : 0.0f;
}

static void place(ds_loader *loader, const ds_dataset *dataset, uint64_t draw, int64_t index)
{
    dsi_preference_rows *p = loader->preference;
    const int64_t batch = loader->params.batch;
    p->ref_logps[index] = reference_of(dataset, draw, 0);
    if (of_pairs(loader)) {
        p->ref_logps[batch + index] = reference_of(dataset, draw, 1);
        place_document(loader, dataset, 2 * draw, index);
        place_document(loader, dataset, 2 * draw + 1, batch + index);
        return;
    }
    place_document(loader, dataset, draw, index);
    const uint8_t flags = dataset->tokens->counted[dsi_dataset_begin(dataset, draw)];
    p->labels[index] = (flags & DSI_FLAG_UNDESIRED) == 0;
    if (p->mismatched != NULL) {
        p->mismatched_ref[index] = reference_of(dataset, draw, 1);
        place_mismatched(loader, dataset, draw, index);
    }
}

uint64_t dsi_loader_draw_of(const ds_loader *loader, const dsi_lane *lane)
{
    const uint64_t n = ds_dataset_n_draws(lane->dataset);
    return loader->params.shuffle ? dsi_permute(lane->next, n, lane->seed, lane->epoch)
                                  : lane->next;
}

void dsi_loader_draw_preference(ds_loader *loader, int64_t index)
{
    dsi_lane *lane = dsi_loader_lane(loader);
    const uint64_t draw = dsi_loader_draw_of(loader, lane);
    if (index >= 0) {
        place(loader, lane->dataset, draw, index);
    }
    dsi_loader_drew(loader, lane);
}

void dsi_loader_clear_preference(ds_loader *loader, int64_t index)
{
    dsi_preference_rows *p = loader->preference;
    const int64_t length = loader->params.seq_length;
    for (int64_t row = index; row < loader->params.batch * dsi_loader_rows_each(loader);
         row += loader->params.batch) {
        p->ref_logps[row] = 0.0f;
        dsi_loader_clear_row(dsi_loader_row_at(loader, row), 0, length);
        for (int64_t i = 0; p->completion != NULL && i < length; ++i) {
            completion_at(loader, row)[i] = -100;
        }
    }
    p->labels[index] = 0;
    if (p->mismatched != NULL) {
        p->mismatched_ref[index] = 0.0f;
        dsi_loader_clear_row(mismatched_at(loader, index), 0, length);
    }
}
