/* Inside of ds_loader, shared by loader.c and the two ways to cut rows. */
#ifndef DSI_DATA_LOADER_H
#define DSI_DATA_LOADER_H

#include "data/dataset.h"

/* One row of a batch: T entries each. */
typedef struct dsi_row {
    int32_t *input_ids, *targets, *positions, *first;
} dsi_row;

struct ds_loader {
    ds_ctx *ctx;
    const ds_dataset *dataset;
    ds_loader_params params;
    int32_t *data; /* four planes (B,T) */
    uint64_t batch_tokens;
    uint64_t content; /* dsi_dataset_content */
    uint64_t bad;     /* a token that is no id of the vocabulary, met in this batch; DSI_NO_TOKEN */
    /* the cursor */
    uint64_t epoch;
    uint64_t next; /* STREAM: window; SAMPLES: sample of the epoch's order */
};

#define DSI_NO_TOKEN UINT64_MAX

/* Token `at` of the data; notes one that is no id. */
int32_t dsi_loader_id(ds_loader *loader, uint64_t at);

void dsi_loader_clear_row(dsi_row row, int64_t from, int64_t length);

/* Fills one row, NULL: another rank's, passed over, and advances; with `once` returns false at the
 * end of the epoch instead of going on. */
bool dsi_loader_row_stream(ds_loader *loader, const dsi_row *row, bool once);
bool dsi_loader_row_samples(ds_loader *loader, const dsi_row *row, bool once);
ds_status dsi_loader_check_stream(ds_loader *loader);
ds_status dsi_loader_check_samples(ds_loader *loader);
uint64_t dsi_loader_stream_rows(const ds_loader *loader, uint64_t epoch);
uint64_t dsi_loader_samples_rows(const ds_loader *loader, uint64_t epoch);

#endif
