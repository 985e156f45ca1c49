/* SPDX-License-Identifier: Apache-2.0 */
/* SAMPLES: whole samples packed into rows in the epoch's order; a row ends where the next sample
 * would not fit, and with the epoch; with `alone` behind each sample. */
#include "data/loader.h"

static int64_t length_of(const ds_dataset *dataset, uint64_t d)
{
    return (int64_t)(dsi_dataset_begin(dataset, d + 1) - dsi_dataset_begin(dataset, d)) -
           (int64_t)dataset->n_head;
}

ds_status dsi_loader_check_samples(const ds_loader *loader, const dsi_lane *lane)
{
    const ds_dataset *dataset = lane->dataset;
    if (dataset->longest <= (uint64_t)loader->params.seq_length) {
        return DS_OK;
    }
    for (uint64_t d = 0; d < dataset->n_docs; ++d) {
        if (length_of(dataset, d) > loader->params.seq_length) {
            return ds_fail(loader->ctx, DS_ERR_ARG,
                           "sample %llu has %lld tokens, more than the sequence length %lld",
                           (unsigned long long)d, (long long)length_of(dataset, d),
                           (long long)loader->params.seq_length);
        }
    }
    return DS_OK;
}

/* Whether n tokens still go into a row with so many. */
static bool fits(const ds_loader *loader, int64_t used, int64_t n)
{
    return used == 0 || (loader->params.alone == 0 && n <= loader->params.seq_length - used);
}

static uint64_t sample_of(const ds_loader *loader, const dsi_lane *lane)
{
    return loader->params.shuffle
               ? dsi_permute(lane->next, lane->dataset->n_docs, lane->seed, lane->epoch)
               : lane->next;
}

/* In the place of flags of words stand classes and one more (schema_classes.c). */
static void place_classes(const ds_dataset *dataset, dsi_row row, int64_t origin, uint64_t begin,
                          int64_t n)
{
    for (int64_t i = 0; i < n; ++i) {
        const int32_t class = dataset->tokens->counted[begin + (uint64_t)i];
        row.targets[origin + i] = class > 0 ? class - 1 : -100;
    }
}

/* The source moves to the beginning of one list, its target to that of the other. */
static void place_source(const ds_loader *loader, const dsi_store *tokens, dsi_row row,
                         int64_t origin, uint64_t begin, int64_t n)
{
    int64_t source = 0;
    while (source < n && tokens->counted[begin + (uint64_t)source] == 0) {
        ++source;
    }
    for (int64_t i = 0; i < n; ++i) {
        row.targets[origin + i] = source + i < n ? row.input_ids[origin + source + i] : -100;
    }
    for (int64_t i = source; i < n; ++i) {
        row.input_ids[origin + i] = (int32_t)loader->params.pad_id;
    }
}

/* Writes sample d at position `origin` of the row. */
static void place(ds_loader *loader, const dsi_lane *lane, dsi_row row, uint64_t d, int64_t origin)
{
    const ds_dataset *dataset = lane->dataset;
    const dsi_store *tokens = dataset->tokens;
    const uint64_t begin = dsi_dataset_begin(dataset, d) + dataset->n_head;
    const int64_t n = length_of(dataset, d);
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t next = begin + (uint64_t)i + 1;
        const bool counts = i + 1 < n && (tokens->counted == NULL || tokens->counted[next] != 0);
        row.input_ids[origin + i] = dsi_loader_id(loader, dataset, begin + (uint64_t)i);
        row.targets[origin + i] = counts ? dsi_loader_id(loader, dataset, next) : -100;
        row.positions[origin + i] = (int32_t)i;
        row.first[origin + i] = (int32_t)origin;
    }
    if (dataset->info.rows == DS_ROWS_SOURCES) {
        place_source(loader, tokens, row, origin, begin, n);
    } else if (loader->task != NULL) {
        dsi_loader_place_texts(loader, dataset, row, origin, begin, n);
    } else if (dataset->info.rows >= DS_ROWS_CLASSES) {
        place_classes(dataset, row, origin, begin, n);
    }
    if (loader->params.masking != NULL) {
        dsi_loader_mask(loader, lane, row, origin, begin, n);
    }
}

uint64_t dsi_loader_pack_epoch(ds_loader *loader)
{
    const uint64_t draws = dsi_loader_draws(loader);
    uint64_t rows = 0;
    int64_t used = 0;
    for (uint64_t i = 0; i < draws; ++i) {
        dsi_lane *lane = dsi_loader_lane(loader);
        const int64_t n = length_of(lane->dataset, sample_of(loader, lane));
        const bool goes_on = rows > 0 && fits(loader, used, n);
        rows += !goes_on;
        used = goes_on ? used + n : n;
        dsi_loader_drew(loader, lane);
    }
    return rows;
}

void dsi_loader_row_samples(ds_loader *loader, const dsi_row *row)
{
    const int64_t length = loader->params.seq_length;
    const uint64_t draws = dsi_loader_draws(loader);
    int64_t used = 0;
    while (loader->next < draws) {
        dsi_lane *lane = dsi_loader_lane(loader);
        const uint64_t d = sample_of(loader, lane);
        const int64_t n = length_of(lane->dataset, d);
        if (!fits(loader, used, n)) {
            break;
        }
        if (row != NULL) {
            place(loader, lane, *row, d, used);
            dsi_loader_mark_source(loader, lane, *row, used, n);
        }
        used += n;
        dsi_loader_drew(loader, lane);
    }
    if (row != NULL) {
        loader->batch_tokens += (uint64_t)used;
        dsi_loader_clear_row(*row, used, length);
    }
}
