/* SPDX-License-Identifier: Apache-2.0 */
/* What fuzzers of data check of every batch of a loader. */
#ifndef DSI_TEST_FUZZ_ROWS_H
#define DSI_TEST_FUZZ_ROWS_H

#include "fuzz/fuzz_files.h"

#include <deepspeed/data.h>

/* Ids and targets are non-negative or the mark for "not counted"; a row sees only itself. */
static inline void fuzz_check_batch(const ds_loader_batch *batch, uint32_t max_id)
{
    const int64_t rows = batch->input_ids.meta.shape.dims[0];
    const int64_t length = batch->input_ids.meta.shape.dims[1];
    const int32_t *ids = batch->input_ids.data;
    const int32_t *targets = batch->targets.data;
    const int32_t *positions = batch->positions.data;
    const int32_t *first = batch->first.data;
    for (int64_t i = 0; i < rows * length; ++i) {
        const int64_t column = i % length;
        fuzz_require(ids[i] >= 0 && (uint32_t)ids[i] <= max_id, "id");
        fuzz_require(targets[i] == -100 || (targets[i] >= 0 && (uint32_t)targets[i] <= max_id),
                     "target");
        fuzz_require(targets[i] == -100 || column + 1 == length || targets[i] == ids[i + 1],
                     "the target is not the next id");
        fuzz_require(first[i] >= 0 && first[i] <= column, "first");
        fuzz_require(positions[i] == column - first[i], "position");
    }
    fuzz_require(batch->n_tokens <= (uint64_t)(rows * length), "tokens");
}

/* Reads an epoch as evaluation does, and some batches as training does. */
static inline void fuzz_walk(const ds_dataset *dataset, int64_t batch, int64_t length)
{
    const ds_dataset_info info = ds_dataset_get_info(dataset);
    const uint32_t max_id = info.max_id > 0 ? info.max_id : 999; /* a mapped .bin is checked here */
    ds_loader_params params = {
        .batch = batch, .seq_length = length, .seed = 3, .n_vocab = (int64_t)max_id + 1};
    ds_loader *loader = NULL;
    ds_loader_batch rows;
    if (ds_loader_create(fuzz_context(), dataset, &params, &loader) >= 0) {
        uint64_t tokens = 0;
        bool done = false;
        for (int i = 0; !done && i < 4096; ++i) {
            if (ds_loader_next_once(loader, &rows, &done) < 0) {
                fuzz_require(info.max_id == 0, "ids that were checked are refused");
                break;
            }
            fuzz_check_batch(&rows, max_id);
            tokens += rows.n_tokens;
        }
        fuzz_require(!done || tokens == info.n_tokens ||
                         (!info.samples && tokens + 1 == info.n_tokens),
                     "an epoch is not all tokens");
        ds_loader_destroy(&loader);
    }
    params.shuffle = true;
    if (ds_loader_create(fuzz_context(), dataset, &params, &loader) >= 0) {
        for (int i = 0; i < 16; ++i) {
            if (ds_loader_next(loader, &rows) < 0) {
                fuzz_require(info.max_id == 0, "ids that were checked are refused");
                break;
            }
            fuzz_require(rows.n_tokens > 0, "a batch without tokens");
            fuzz_check_batch(&rows, max_id);
        }
        ds_loader_destroy(&loader);
    }
}

#endif
