/* SPDX-License-Identifier: Apache-2.0 */
/* STREAM: windows of T tokens over documents joined end to end. */
#include "data/loader.h"

#include "base/rng.h"

enum { SITE_PHASE = 0x50484153 };

/* Token at which the epoch's first window starts. */
static uint64_t phase_of(const ds_loader *loader, const dsi_lane *lane, uint64_t epoch)
{
    const uint64_t length = (uint64_t)loader->params.seq_length;
    const uint64_t n = lane->dataset->info.n_tokens;
    if (!loader->params.shuffle || n < 2 * length + 1) {
        return 0;
    }
    return dsi_rng_below(lane->seed, SITE_PHASE, epoch, length);
}

/* Windows whose inputs start inside; in evaluation the last one may be short. */
uint64_t dsi_lane_windows(const ds_loader *loader, const dsi_lane *lane, uint64_t epoch)
{
    const uint64_t length = (uint64_t)loader->params.seq_length;
    const uint64_t usable = lane->dataset->info.n_tokens - 1 - phase_of(loader, lane, epoch);
    return loader->params.shuffle ? usable / length : (usable + length - 1) / length;
}

ds_status dsi_loader_check_stream(const ds_loader *loader, const dsi_lane *lane)
{
    const uint64_t n = lane->dataset->info.n_tokens;
    if (n < 2 || dsi_lane_windows(loader, lane, 0) == 0) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "the data holds %llu tokens, less than one row of %lld and its target",
                       (unsigned long long)n, (long long)loader->params.seq_length);
    }
    return DS_OK;
}

static void fill(ds_loader *loader, const dsi_lane *lane, dsi_row row, uint64_t start)
{
    const ds_dataset *dataset = lane->dataset;
    const dsi_store *tokens = dataset->tokens;
    const int64_t length = loader->params.seq_length;
    const uint64_t end = dataset->end;
    uint64_t d = dsi_dataset_document(dataset, start);
    uint64_t stop = dsi_dataset_begin(dataset, d + 1); /* of the current document */
    int64_t origin = 0;                                /* row position at which it starts */
    int64_t i = 0;
    for (; i < length && start + (uint64_t)i < end; ++i) {
        const uint64_t at = start + (uint64_t)i;
        while (at == stop) { /* more than once: empty documents */
            stop = dsi_dataset_begin(dataset, ++d + 1);
            origin = i;
        }
        const uint64_t next = at + 1;
        const bool counts = next < stop && (tokens->counted == NULL || tokens->counted[next] != 0);
        row.input_ids[i] = dsi_loader_id(loader, dataset, at);
        row.targets[i] = counts ? dsi_loader_id(loader, dataset, next) : -100;
        row.positions[i] = (int32_t)(i - origin);
        row.first[i] = (int32_t)origin;
    }
    if (loader->params.masking != NULL) {
        dsi_loader_mask(loader, lane, row, 0, start, i);
    }
    loader->batch_tokens += (uint64_t)i;
    dsi_loader_mark_source(loader, lane, row, 0, i);
    dsi_loader_clear_row(row, i, length);
}

void dsi_loader_row_stream(ds_loader *loader, const dsi_row *row)
{
    dsi_lane *lane = dsi_loader_lane(loader);
    if (row != NULL) {
        const uint64_t windows = dsi_lane_windows(loader, lane, lane->epoch);
        const uint64_t window = loader->params.shuffle
                                    ? dsi_permute(lane->next, windows, lane->seed, lane->epoch)
                                    : lane->next;
        fill(loader, lane, *row,
             lane->dataset->first + phase_of(loader, lane, lane->epoch) +
                 window * (uint64_t)loader->params.seq_length);
    }
    dsi_loader_drew(loader, lane);
}
