/* SPDX-License-Identifier: Apache-2.0 */
/* What batches have for tasks of encoders besides ids: types of tokens, numbers to learn, and of
 * contrast what each token weighs in its row's embedding. See ds_loader_task. Called by loader.c
 * and loader_samples.c. */
#include "data/loader.h"

#include <deepspeed/encoder.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct dsi_task_rows {
    ds_loader_task view;
    int32_t *types, *marks; /* (B,T); marks: labels of contrast (B) */
    float *labels, *counted, *pool;
    uint64_t n_values; /* of a document */
} dsi_task_rows;

static uint8_t rows_of(const ds_loader *loader)
{
    return loader->lanes[0].dataset->info.rows;
}

static bool has_task(const ds_loader *loader)
{
    const uint8_t rows = rows_of(loader);
    return rows == DS_ROWS_CLASSES || rows == DS_ROWS_VALUES || rows == DS_ROWS_CONTRAST;
}

static ds_status check_lanes(const ds_loader *loader)
{
    const ds_dataset *first = loader->lanes[0].dataset;
    for (uint32_t i = 1; i < loader->n_lanes; ++i) {
        const ds_dataset *other = loader->lanes[i].dataset;
        if (other->info.rows != first->info.rows || other->n_head != first->n_head ||
            other->n_parts != first->n_parts) {
            return ds_fail(
                loader->ctx, DS_ERR_ARG,
                "data source %u has rows of another kind, or of another number of values "
                "or negatives, than the first",
                i + 1);
        }
    }
    if (loader->params.pool >= DS_POOLS || loader->params.pool == DS_POOL_MAX) {
        return ds_fail(loader->ctx, DS_ERR_ARG,
                       "ds_loader_params.pool: expected one of ds_pool but MAX, which is no sum");
    }
    return DS_OK;
}

ds_status dsi_loader_open_task(ds_loader *loader)
{
    DS_TRY(check_lanes(loader));
    if (!has_task(loader)) {
        return DS_OK;
    }
    const bool contrast = rows_of(loader) == DS_ROWS_CONTRAST;
    const int64_t batch = loader->params.batch;
    const int64_t length = loader->params.seq_length;
    const int64_t rows = batch * dsi_loader_rows_each(loader);
    const size_t tokens = (size_t)rows * (size_t)length;
    dsi_task_rows *t = loader->task = calloc(1, sizeof *t);
    if (t == NULL) {
        return ds_fail(loader->ctx, DS_ERR_NOMEM, "no memory for a batch");
    }
    t->n_values = loader->lanes[0].dataset->n_head / sizeof(float);
    t->types = contrast ? NULL : calloc(tokens, sizeof *t->types);
    t->marks = contrast ? calloc((size_t)batch, sizeof *t->marks) : NULL;
    t->pool = contrast ? calloc(tokens, sizeof *t->pool) : NULL;
    t->labels = t->n_values > 0 ? calloc(tokens, t->n_values * sizeof *t->labels) : NULL;
    t->counted = t->n_values > 0 ? calloc(tokens, sizeof *t->counted) : NULL;
    if ((contrast ? t->marks == NULL || t->pool == NULL : t->types == NULL) ||
        (t->n_values > 0 && (t->labels == NULL || t->counted == NULL))) {
        return ds_fail(loader->ctx, DS_ERR_NOMEM,
                       "no memory for a batch of %lld rows of %lld tokens", (long long)rows,
                       (long long)length);
    }
    const ds_shape plane = ds_shape_2d(rows, length);
    if (contrast) {
        t->view.labels = (ds_tensor){t->marks, {DS_DTYPE_I32, ds_shape_1d(batch)}};
        t->view.pool = (ds_tensor){t->pool, {DS_DTYPE_F32, plane}};
        return DS_OK;
    }
    t->view.token_type_ids = (ds_tensor){t->types, {DS_DTYPE_I32, plane}};
    if (t->n_values > 0) {
        const ds_shape values = ds_shape_3d(rows, length, (int64_t)t->n_values);
        t->view.labels = (ds_tensor){t->labels, {DS_DTYPE_F32, values}};
        t->view.counted = (ds_tensor){t->counted, {DS_DTYPE_F32, plane}};
    }
    return DS_OK;
}

void dsi_loader_close_task(ds_loader *loader)
{
    dsi_task_rows *t = loader->task;
    if (t != NULL) {
        free(t->types);
        free(t->marks);
        free(t->labels);
        free(t->counted);
        free(t->pool);
        free(t);
        loader->task = NULL;
    }
}

const ds_loader_task *dsi_loader_view_task(const ds_loader *loader)
{
    return loader->task != NULL ? &loader->task->view : NULL;
}

static void clear(ds_tensor *tensor, int byte)
{
    if (tensor->data != NULL) {
        memset(tensor->data, byte, ds_meta_bytes(tensor->meta));
    }
}

void dsi_loader_clear_task(ds_loader *loader)
{
    dsi_task_rows *t = loader->task;
    if (t == NULL) {
        return;
    }
    clear(&t->view.token_type_ids, 0);
    clear(&t->view.labels, 0);
    clear(&t->view.counted, 0);
    clear(&t->view.pool, 0);
    for (int64_t i = 0; t->marks != NULL && i < loader->params.batch; ++i) {
        t->marks[i] = -100;
    }
}

void dsi_loader_place_texts(ds_loader *loader, const ds_dataset *dataset, dsi_row row,
                            int64_t origin, uint64_t begin, int64_t n)
{
    dsi_task_rows *t = loader->task;
    const uint8_t *flags = dataset->tokens->counted + begin;
    const int64_t at = row.input_ids - loader->data + origin; /* in a plane */
    const bool class = dataset->info.rows == DS_ROWS_CLASSES;
    for (int64_t i = 0; i < n; ++i) {
        row.targets[origin + i] = -100;
        t->types[at + i] = class && i == 0 ? 0 : flags[i];
    }
    if (class) {
        row.targets[origin] = (int32_t)flags[0] - 1;
        return;
    }
    memcpy(t->labels + at * (int64_t)t->n_values, flags - dataset->n_head, dataset->n_head);
    t->counted[at] = 1.0f;
}

/* What token i of n weighs. */
static float weight_of(uint64_t pool, int64_t i, int64_t n)
{
    switch (pool) {
    case DS_POOL_FIRST:
        return i == 0 ? 1.0f : 0.0f;
    case DS_POOL_LAST:
        return i == n - 1 ? 1.0f : 0.0f;
    case DS_POOL_MEAN_SQRT:
        return (float)(1.0 / sqrt((double)n));
    case DS_POOL_WEIGHTED:
        return (float)((double)(i + 1) / (0.5 * (double)n * (double)(n + 1)));
    default:
        return (float)(1.0 / (double)n);
    }
}

static void place_part(ds_loader *loader, const ds_dataset *dataset, uint64_t d, int64_t index)
{
    const dsi_row row = dsi_loader_row_at(loader, index);
    const uint64_t begin = dsi_dataset_begin(dataset, d);
    const int64_t n = (int64_t)(dsi_dataset_begin(dataset, d + 1) - begin);
    float *pool = loader->task->pool + index * loader->params.seq_length;
    for (int64_t i = 0; i < n; ++i) {
        row.input_ids[i] = dsi_loader_id(loader, dataset, begin + (uint64_t)i);
        row.targets[i] = -100;
        row.positions[i] = (int32_t)i;
        row.first[i] = 0;
        pool[i] = weight_of(loader->params.pool, i, n);
    }
    dsi_loader_clear_row(row, n, loader->params.seq_length);
    loader->batch_tokens += (uint64_t)n;
}

void dsi_loader_draw_contrast(ds_loader *loader, int64_t index)
{
    dsi_lane *lane = dsi_loader_lane(loader);
    const ds_dataset *dataset = lane->dataset;
    const uint64_t draw = dsi_loader_draw_of(loader, lane);
    for (uint64_t k = 0; index >= 0 && k < dataset->n_parts; ++k) {
        place_part(loader, dataset, draw * dataset->n_parts + k,
                   (int64_t)k * loader->params.batch + index);
    }
    if (index >= 0) {
        loader->task->marks[index] = (int32_t)index;
    }
    dsi_loader_drew(loader, lane);
}

void dsi_loader_clear_contrast(ds_loader *loader, int64_t index)
{
    const int64_t rows = loader->params.batch * dsi_loader_rows_each(loader);
    for (int64_t row = index; row < rows; row += loader->params.batch) {
        dsi_loader_clear_row(dsi_loader_row_at(loader, row), 0, loader->params.seq_length);
    }
}
