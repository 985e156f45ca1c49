/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's elastic batch sizes. See include/deepspeed/elasticity.h. Called by config_elastic.c
 * and ds_elastic.
 *
 * Version 0.1: candidates are each micro batch, and the least common multiple of all, times the
 * largest highly composite number that keeps them within the cap; the candidate that most numbers
 * of ranks divide wins. Version 0.2 does this for nodes, and falls back to the present number of
 * ranks. Divisions follow Python's: results equal DeepSpeed's for every input that it accepts.
 */
#include <deepspeed/elasticity.h>

#include "base/buf.h"
#include "base/reserved.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Multipliers: highly composite numbers up to 720720 (Ramanujan 1915; DeepSpeed's choice of them).
 */
static const int64_t multipliers[] = {
    1,      2,      4,      6,      12,     24,     36,     48,    60,    120,
    180,    240,    360,    720,    840,    1260,   1680,   2520,  5040,  7560,
    10080,  15120,  20160,  25200,  27720,  45360,  50400,  55440, 83160, 110880,
    166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};

/* A list of counts. */
typedef struct counts {
    int64_t *items;
    size_t n, capacity;
    bool failed;
} counts;

static void add(counts *list, int64_t count)
{
    if (list->n == list->capacity && !list->failed) {
        const size_t capacity = list->capacity != 0 ? 2 * list->capacity : 64;
        int64_t *items = realloc(list->items, capacity * sizeof *items);
        list->failed = items == NULL;
        list->items = items != NULL ? items : list->items;
        list->capacity = items != NULL ? capacity : list->capacity;
    }
    if (!list->failed) {
        list->items[list->n++] = count;
    }
}

static int rising(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a;
    const int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void sort_unique(counts *list)
{
    size_t n = 0;
    if (list->n > 0) {
        qsort(list->items, list->n, sizeof *list->items, rising);
    }
    for (size_t i = 0; i < list->n; ++i) {
        if (n == 0 || list->items[n - 1] != list->items[i]) {
            list->items[n++] = list->items[i];
        }
    }
    list->n = n;
}

static bool contains(const counts *list, int64_t count)
{
    for (size_t i = 0; i < list->n; ++i) {
        if (list->items[i] == count) {
            return true;
        }
    }
    return false;
}

/* ---- version 0.1 ----------------------------------------------------------------------------- */

static int64_t scaled(int64_t base, int64_t cap)
{
    const int64_t quotient = cap / base;
    int64_t best = 1;
    for (size_t i = 0; i < sizeof multipliers / sizeof multipliers[0]; ++i) {
        best = multipliers[i] <= quotient ? multipliers[i] : best;
    }
    return base * best;
}

/* Least common multiple of the micro batches, or cap + 1 when it is larger than the cap. */
static int64_t common_multiple(const ds_elastic_params *p, int64_t cap)
{
    int64_t multiple = 1;
    for (size_t i = 0; i < p->n_micro_batch_sizes; ++i) {
        int64_t a = multiple;
        int64_t b = p->micro_batch_sizes[i];
        while (b != 0) {
            const int64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (multiple / a > cap / p->micro_batch_sizes[i]) {
            return cap + 1;
        }
        multiple = multiple / a * p->micro_batch_sizes[i];
    }
    return multiple;
}

/* The numbers of ranks from low to high that divide batch / micro batch for some micro batch. */
static counts valid_for(const ds_elastic_params *p, int64_t batch, int64_t low, int64_t high)
{
    counts valid = {0};
    for (size_t i = 0; i < p->n_micro_batch_sizes; ++i) {
        const int64_t micro = p->micro_batch_sizes[i];
        const int64_t steps = batch % micro == 0 ? batch / micro : 0;
        for (int64_t d = 1; d <= steps / d; ++d) {
            if (steps % d == 0 && d >= low && d <= high) {
                add(&valid, d);
            }
            if (steps % d == 0 && steps / d >= low && steps / d <= high) {
                add(&valid, steps / d);
            }
        }
    }
    sort_unique(&valid);
    return valid;
}

/* The best batch within cap and the numbers that divide it; *batch_out 0: none. */
static counts best_batch(const ds_elastic_params *p, int64_t cap, int64_t low, int64_t high,
                         int64_t *batch_out)
{
    const size_t n = p->n_micro_batch_sizes;
    int64_t smallest = p->micro_batch_sizes[0];
    for (size_t i = 1; i < n; ++i) {
        smallest = p->micro_batch_sizes[i] < smallest ? p->micro_batch_sizes[i] : smallest;
    }
    int64_t batch = smallest;
    counts best = {0};
    bool found = false;
    low = low > 0 ? low : 1;
    high = high > 0 ? high : cap / smallest;
    for (size_t i = 0; i <= n; ++i) {
        const int64_t base = i < n ? p->micro_batch_sizes[i] : common_multiple(p, cap);
        if (base > cap) {
            continue;
        }
        const int64_t candidate = scaled(base, cap);
        counts valid = valid_for(p, candidate, low, high);
        const bool larger = p->prefer_larger_batch ? candidate > batch : candidate < batch;
        if (valid.n > best.n || (valid.n == best.n && larger)) {
            free(best.items);
            best = valid;
            batch = candidate;
            found = true;
        } else {
            best.failed = best.failed || valid.failed;
            free(valid.items);
        }
    }
    *batch_out = found ? batch : 0;
    return best;
}

/* ---- version 0.2 ----------------------------------------------------------------------------- */

/* Batch and ranks for the present number of ranks alone. */
static void fall_back(const ds_elastic_params *p, uint32_t world, counts *valid, int64_t *batch_out)
{
    const int64_t per_node = p->num_gpus_per_node / p->model_parallel_size;
    const double ranks = (double)world / (double)p->num_gpus_per_node * (double)per_node;
    double batch = 0;
    for (size_t i = 0; i < p->n_micro_batch_sizes; ++i) {
        const double smallest = (double)p->micro_batch_sizes[i] * ranks;
        const double candidate = floor((double)p->max_train_batch_size / smallest) * smallest;
        const bool better = p->prefer_larger_batch ? candidate > batch : candidate < batch;
        batch = i == 0 || better ? candidate : batch;
    }
    valid->n = 0;
    add(valid, (int64_t)ranks);
    *batch_out = (int64_t)batch;
}

static counts by_nodes(const ds_elastic_params *p, uint32_t world, int64_t *batch_out)
{
    const int64_t per_node = p->num_gpus_per_node / p->model_parallel_size;
    counts valid =
        best_batch(p, p->max_train_batch_size / per_node, p->min_gpus / p->num_gpus_per_node,
                   p->max_gpus / p->num_gpus_per_node, batch_out);
    *batch_out *= per_node;
    for (size_t i = 0; i < valid.n; ++i) {
        valid.items[i] *= per_node;
    }
    if (*batch_out != 0 && !contains(&valid, (int64_t)world / p->model_parallel_size)) {
        fall_back(p, world, &valid, batch_out);
    }
    return valid;
}

/* ---- the call -------------------------------------------------------------------------------- */

static ds_status check_counts(ds_ctx *ctx, const ds_elastic_params *p)
{
    if (p->n_micro_batch_sizes == 0 || p->max_train_batch_size < 1 || p->min_gpus < 1 ||
        p->max_gpus < p->min_gpus || p->num_gpus_per_node < 1 || p->model_parallel_size < 1) {
        return ds_fail(
            ctx, DS_ERR_CONFIG,
            "elasticity: expected micro_batch_sizes, sizes of at least 1 and min_gpus at "
            "most max_gpus, found max_train_batch_size %" PRId64 ", min_gpus %" PRId64
            ", max_gpus %" PRId64 ", num_gpus_per_node %" PRId64 ", model_parallel_size %" PRId64,
            p->max_train_batch_size, p->min_gpus, p->max_gpus, p->num_gpus_per_node,
            p->model_parallel_size);
    }
    if (p->max_train_batch_size > INT32_MAX || p->max_gpus > INT32_MAX) {
        return ds_fail(ctx, DS_ERR_CONFIG, "elasticity: expected sizes below 2^31");
    }
    return DS_OK;
}

static ds_status check(ds_ctx *ctx, const ds_elastic_params *p)
{
    DS_TRY(check_counts(ctx, p));
    const int64_t per_node = p->num_gpus_per_node / p->model_parallel_size;
    const bool by_node = p->version == 2;
    if (!by_node && p->model_parallel_size > 1) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "elasticity.model_parallel_size: expected 1 with version 0.1, found %" PRId64
                       "; take version 0.2",
                       p->model_parallel_size);
    }
    if (by_node && p->num_gpus_per_node % p->model_parallel_size != 0) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "elasticity.num_gpus_per_node: expected a multiple of model_parallel_size "
                       "%" PRId64 ", found %" PRId64,
                       p->model_parallel_size, p->num_gpus_per_node);
    }
    const int64_t cap = by_node ? p->max_train_batch_size / per_node : p->max_train_batch_size;
    for (size_t i = 0; i < p->n_micro_batch_sizes; ++i) {
        const int64_t micro = p->micro_batch_sizes[i];
        if (micro < 1 || micro > cap) {
            return ds_fail(ctx, DS_ERR_CONFIG,
                           "elasticity.micro_batch_sizes: expected sizes from 1 to %" PRId64
                           " (max_train_batch_size%s), found %" PRId64,
                           cap, by_node && per_node > 1 ? " / ranks of a node" : "", micro);
        }
    }
    return DS_OK;
}

static ds_status refuse_world(ds_ctx *ctx, const ds_elastic_params *p, const counts *valid,
                              uint32_t world)
{
    enum { SHOWN = 40 };
    dsi_buf list = dsi_buf_make(2048);
    for (size_t i = 0; i < valid->n && i < SHOWN; ++i) {
        dsi_buf_printf(&list, "%s%" PRId64, i > 0 ? ", " : "", valid->items[i]);
    }
    if (valid->n > SHOWN) {
        dsi_buf_printf(&list, " … (%zu in all)", valid->n);
    }
    const ds_status status = ds_fail(
        ctx, DS_ERR_ARG, "elasticity: expected a number of ranks among %s, found %" PRIu32 "%s",
        dsi_buf_text(&list), world,
        p->model_parallel_size > 1 ? " (the list counts data-parallel ranks)" : "");
    dsi_buf_free(&list);
    return status;
}

/* The largest micro batch that divides what a rank gets. */
static int64_t micro_batch(const ds_elastic_params *p, int64_t batch, uint32_t world)
{
    int64_t best = 0;
    for (size_t i = 0; i < p->n_micro_batch_sizes; ++i) {
        const int64_t micro = p->micro_batch_sizes[i];
        best = batch / (int64_t)world % micro == 0 && micro > best ? micro : best;
    }
    return best;
}

static ds_status finish(ds_ctx *ctx, const ds_elastic_params *p, uint32_t world, int64_t batch,
                        const counts *valid, ds_elastic_result *result_out)
{
    if (valid->failed) {
        return ds_fail(ctx, DS_ERR_NOMEM, "elasticity: no memory for the numbers of ranks");
    }
    if (batch == 0 || valid->n == 0) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "elasticity: no batch of at most %" PRId64 " samples fits from %" PRId64
                       " to %" PRId64 " ranks%s; change max_train_batch_size, min_gpus or max_gpus",
                       p->max_train_batch_size, p->min_gpus, p->max_gpus,
                       p->version == 2 ? " in whole nodes" : "");
    }
    if (world != 0 && !contains(valid, world)) {
        return refuse_world(ctx, p, valid, world);
    }
    const int64_t micro = world != 0 ? micro_batch(p, batch, world) : 0;
    if (world != 0 && micro == 0) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "elasticity: none of micro_batch_sizes divides the %" PRId64
                       " samples that each of %" PRIu32 " ranks gets of a batch of %" PRId64,
                       batch / (int64_t)world, world, batch);
    }
    *result_out = (ds_elastic_result){.train_batch_size = batch,
                                      .valid_gpus = valid->items,
                                      .n_valid_gpus = valid->n,
                                      .micro_batch_size = micro};
    return DS_OK;
}

ds_status ds_elastic_compute(ds_ctx *ctx, const ds_elastic_params *params, uint32_t world_size,
                             ds_elastic_result *result_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_elastic_params", params));
    DS_TRY(check(ctx, params));
    if (params->version == 2 && world_size == 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "elasticity: version 0.2 needs a number of ranks; give one, or take version "
                       "0.1");
    }
    int64_t batch = 0;
    counts valid = params->version == 2 ? by_nodes(params, world_size, &batch)
                                        : best_batch(params, params->max_train_batch_size,
                                                     params->min_gpus, params->max_gpus, &batch);
    const ds_status status = finish(ctx, params, world_size, batch, &valid, result_out);
    if (status < 0) {
        free(valid.items);
    }
    return status;
}

void ds_elastic_free(ds_elastic_result *result)
{
    free(result->valid_gpus);
    *result = (ds_elastic_result){0};
}
