/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_loader, shared by loader*.c.
 *
 * A draw is a window (STREAM) or a sample (SAMPLES). Each dataset is a lane with an order and an
 * epoch of its own; which lane the next draw is from is a function of the seed and of the number of
 * draws before it (loader_lanes.c). With one lane its position is the loader's.
 */
#ifndef DSI_DATA_LOADER_H
#define DSI_DATA_LOADER_H

#include "data/dataset.h"

/* One row of a batch: T entries each. */
typedef struct dsi_row {
    int32_t *input_ids, *targets, *positions, *first;
    int32_t *sources; /* NULL: there is one lane */
} dsi_row;

typedef struct dsi_lane {
    const ds_dataset *dataset;
    double weight;
    uint64_t seed; /* of its order */
    uint64_t upto; /* draws whose number, of 2^64, is at most this, and above the lane before */
    uint64_t epoch, next; /* of its order */
} dsi_lane;

struct ds_loader {
    ds_ctx *ctx;
    ds_loader_params params;
    ds_masking masking; /* where params.masking is not NULL */
    bool samples;
    dsi_lane *lanes; /* [n_lanes], and as many again to work with */
    uint32_t n_lanes;
    int32_t *data;     /* four planes (B,T), of a mixture five */
    ds_tensor sources; /* of a mixture */
    uint64_t batch_tokens;
    uint64_t content; /* of all datasets */
    uint64_t bad;     /* a token that is no id of the vocabulary, met in this batch; DSI_NO_TOKEN */
    const ds_dataset *bad_dataset;
    /* the cursor, with that of each lane */
    uint64_t epoch;
    uint64_t next;                          /* draw of the epoch */
    struct dsi_preference_rows *preference; /* NULL: rows are not of preferences */
    struct dsi_task_rows *task;             /* NULL: rows are of no task of encoders */
};

#define DSI_NO_TOKEN UINT64_MAX

/* Token `at` of the dataset; notes one that is no id. */
int32_t dsi_loader_id(ds_loader *loader, const ds_dataset *dataset, uint64_t at);

void dsi_loader_clear_row(dsi_row row, int64_t from, int64_t length);
/* Notes that n tokens of a row are the lane's. */
void dsi_loader_mark_source(const ds_loader *loader, const dsi_lane *lane, dsi_row row,
                            int64_t origin, int64_t n);

/* ---- loader_lanes.c ---- */

/* Sets the shares of the lanes by their weights. */
void dsi_loader_share(ds_loader *loader);
/* Draws of the loader's epoch. */
uint64_t dsi_loader_draws(const ds_loader *loader);
/* The lane of the next draw; its `next` is below its draws. */
dsi_lane *dsi_loader_lane(ds_loader *loader);
/* The next draw is done. */
void dsi_loader_drew(ds_loader *loader, dsi_lane *lane);
/* All lanes to this place of their first order. */
void dsi_loader_rewind_to(ds_loader *loader, uint64_t epoch, uint64_t next);

/* Where row `index` of the batch lies. */
dsi_row dsi_loader_row_at(ds_loader *loader, int64_t index);

/* ---- preferences: loader_preference.c ---- */

/* Rows of a draw, 1 but for pairs. */
int64_t dsi_loader_rows_each(const ds_loader *loader);
/* Checks data sets against params->preference, and makes room. */
ds_status dsi_loader_open_preference(ds_loader *loader);
void dsi_loader_close_preference(ds_loader *loader);
/* Fills sample `index` of the batch, below 0: another rank's, and advances. */
void dsi_loader_draw_preference(ds_loader *loader, int64_t index);
/* The same of padding. */
void dsi_loader_clear_preference(ds_loader *loader, int64_t index);
/* What the batch has besides. */
const ds_loader_preference *dsi_loader_view_preference(ds_loader *loader);

/* Which draw of its data the lane's next one is. */
uint64_t dsi_loader_draw_of(const ds_loader *loader, const dsi_lane *lane);

/* ---- tasks of encoders: loader_task.c ---- */

/* Checks that data sets are alike, and makes room. */
ds_status dsi_loader_open_task(ds_loader *loader);
void dsi_loader_close_task(ds_loader *loader);
/* All of the batch to nothing; before it is filled. */
void dsi_loader_clear_task(ds_loader *loader);
/* Of n tokens of CLASSES or VALUES, from `begin` of the store on, at `origin` of a row: targets,
 * types and numbers. */
void dsi_loader_place_texts(ds_loader *loader, const ds_dataset *dataset, dsi_row row,
                            int64_t origin, uint64_t begin, int64_t n);
/* As of preferences, of CONTRAST. */
void dsi_loader_draw_contrast(ds_loader *loader, int64_t index);
void dsi_loader_clear_contrast(ds_loader *loader, int64_t index);
const ds_loader_task *dsi_loader_view_task(const ds_loader *loader);

/* ---- masking: loader_mask.c ---- */

ds_status dsi_loader_check_masking(ds_ctx *ctx, const ds_masking *masking);
/* Chooses among n tokens of a row, of the lane's data from token `at` on. */
void dsi_loader_mask(const ds_loader *loader, const dsi_lane *lane, dsi_row row, int64_t from,
                     uint64_t at, int64_t n);

/* ---- the two ways to cut rows ---- */

/* Fills one row, NULL: another rank's, passed over, and advances. The epoch has draws left. */
void dsi_loader_row_stream(ds_loader *loader, const dsi_row *row);
void dsi_loader_row_samples(ds_loader *loader, const dsi_row *row);
ds_status dsi_loader_check_stream(const ds_loader *loader, const dsi_lane *lane);
ds_status dsi_loader_check_samples(const ds_loader *loader, const dsi_lane *lane);
uint64_t dsi_lane_windows(const ds_loader *loader, const dsi_lane *lane, uint64_t epoch);
/* Rows that the draws of an epoch are packed into, from the present place on; moves the loader. */
uint64_t dsi_loader_pack_epoch(ds_loader *loader);

#endif
