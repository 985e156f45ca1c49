/* SPDX-License-Identifier: Apache-2.0 */
/* Measures operators of a training step, in turn, as a step runs them. See measure_session.h.
 *
 * A kernel that runs again and again finds its operands in caches and the clock as high as it
 * likes; in a step it finds neither. So all shapes of a type are opened at once, some hundred
 * megabytes, and run one after the other, round after round: rates and sizes of half are fitted to
 * what each takes in such a round.
 */
#include "cost/measure_session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SAMPLES = 12, MOST_ROUNDS = 32, ROUNDS = 5 };

typedef struct series {
    dsi_measure_point points[DSI_MEASURE_POINTS];
    dsi_measure_trial *trials[DSI_MEASURE_POINTS]; /* NULL on a rank that only waits */
    double runs[DSI_MEASURE_POINTS][MOST_ROUNDS];
    dsi_measure_sample samples[DSI_MEASURE_POINTS];
    double rounds[2][MOST_ROUNDS]; /* seconds of a round's products; of its other operators */
    double typical[2];             /* of them, the median */
    int n_rounds;
} series;

/* FLOP/s of a product that is not small. */
static ds_status speed_of(const dsi_measure_session *s, ds_dtype dtype, double *rate_out)
{
    static const dsi_measure_point usual = {DS_CLASS_LINEAR, 0, 512, 768, 768};
    dsi_measure_trial *trial = NULL;
    dsi_measure_sample sample = {.seconds = 0.0};
    DS_TRY(dsi_measure_open(s->ctx, &usual, dtype, &trial));
    const ds_status status = dsi_measure_median(trial, 0.02, &sample);
    dsi_measure_close(&trial);
    DS_TRY(status);
    DS_TRY(dsi_measure_average(s, &sample.seconds));
    *rate_out = sample.work.flops / sample.seconds;
    return DS_OK;
}

static ds_status open_series(const dsi_measure_session *s, ds_dtype dtype, series *all)
{
    double rate = 0.0;
    DS_TRY(speed_of(s, dtype, &rate));
    dsi_measure_points(rate, all->points);
    for (size_t i = 0; i < DSI_MEASURE_POINTS && s->active; ++i) {
        DS_TRY(dsi_measure_open(s->ctx, &all->points[i], dtype, &all->trials[i]));
        all->samples[i].work = *dsi_measure_work(all->trials[i]);
    }
    return DS_OK;
}

static void close_series(series *all)
{
    for (size_t i = 0; i < DSI_MEASURE_POINTS; ++i) {
        dsi_measure_close(&all->trials[i]);
    }
}

/* Products, and what memory bounds. */
static int group_of(const dsi_measure_point *point)
{
    return dsi_op_class_is_model(point->op_class) ? 0 : 1;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof values[0], by_value);
    return values[n / 2];
}

/* Every shape once a round; opening them has warmed up. Ranks begin each at once, as those of a
 * step do behind a collective: who is a shape ahead has memory for itself. */
static ds_status run_series(const dsi_measure_session *s, series *all)
{
    memset(all->rounds, 0, sizeof all->rounds);
    for (int round = 0; round < all->n_rounds; ++round) {
        for (size_t i = 0; i < DSI_MEASURE_POINTS; ++i) {
            DS_TRY(dsi_measure_average(s, &(double){0.0}));
            if (s->active) {
                DS_TRY(dsi_measure_run(all->trials[i], &all->runs[i][round]));
                all->rounds[group_of(&all->points[i])][round] += all->runs[i][round];
            }
        }
    }
    for (size_t i = 0; i < DSI_MEASURE_POINTS; ++i) {
        all->samples[i].seconds = median(all->runs[i], all->n_rounds);
        DS_TRY(dsi_measure_average(s, &all->samples[i].seconds));
    }
    for (int g = 0; g < 2; ++g) {
        all->typical[g] = median(all->rounds[g], all->n_rounds);
        DS_TRY(dsi_measure_average(s, &all->typical[g]));
    }
    return DS_OK;
}

/* The geometric mean of what the samples move over what memory can. */
static dsi_rate memory_rate(const dsi_measure_sample *samples, uint32_t n, double bandwidth)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; ++i) {
        sum += log(samples[i].work.bytes / (samples[i].seconds * bandwidth));
    }
    return (dsi_rate){.compute = 1.0, .memory = n > 0 ? exp(sum / (double)n) : 1.0};
}

static void fit_class(const dsi_measure_session *s, const series *all, ds_op_class op_class,
                      dsi_peak peak)
{
    dsi_measure_sample samples[MOST_SAMPLES];
    uint32_t n = 0;
    for (size_t i = 0; i < DSI_MEASURE_POINTS && n < MOST_SAMPLES; ++i) {
        if (all->points[i].op_class == op_class) {
            samples[n++] = all->samples[i];
        }
    }
    s->device->rates[peak][op_class] = dsi_op_class_is_model(op_class)
                                           ? dsi_measure_fit(samples, n, s->device->peak[peak])
                                           : memory_rate(samples, n, s->device->memory_bandwidth);
}

/* A fit follows medians of shapes, a step pays for all that happens in it: what the rates predict
 * for the products of a round, and for the rest, is made what these took in the median round. Not
 * in the mean one, which has what other guests of the machine did in a round or two. */
static void scale_to_round(const dsi_measure_session *s, const series *all, dsi_peak peak)
{
    double predicted[2] = {0.0};
    for (size_t i = 0; i < DSI_MEASURE_POINTS; ++i) {
        predicted[group_of(&all->points[i])] += dsi_time_work(s->device, &all->samples[i].work);
    }
    for (int c = DSI_CLASS_FIRST; c < DS_CLASS_COMM; ++c) {
        dsi_rate *rate = &s->device->rates[peak][c];
        if (dsi_op_class_is_model((ds_op_class)c)) {
            rate->compute *= predicted[0] / all->typical[0];
        } else {
            rate->memory *= predicted[1] / all->typical[1];
        }
    }
}

static ds_status measure_dtype(const dsi_measure_session *s, dsi_peak peak, ds_dtype dtype,
                               series *all)
{
    double best = 0.0;
    ds_status status = open_series(s, dtype, all);
    status = status < 0 ? status : run_series(s, all);
    close_series(all);
    if (status < 0 || !s->active) {
        return status;
    }
    for (size_t i = 0; i < DSI_MEASURE_POINTS; ++i) {
        const dsi_measure_sample *sample = &all->samples[i];
        if (dsi_op_class_is_model(all->points[i].op_class)) {
            best = fmax(best, sample->work.flops / sample->seconds);
        }
    }
    s->device->peak[peak] = best;
    for (int c = DSI_CLASS_FIRST; c < DS_CLASS_COUNT; ++c) {
        fit_class(s, all, (ds_op_class)c, peak);
    }
    scale_to_round(s, all, peak);
    return DS_OK;
}

/* What a step costs that has nothing to do. */
static ds_status measure_latency(const dsi_measure_session *s)
{
    const dsi_measure_point tiny = {DS_CLASS_ELEMENTWISE, 3, 1, 16, 0};
    dsi_measure_trial *trial = NULL;
    dsi_measure_sample sample = {.seconds = 0.0};
    DS_TRY(dsi_measure_open(s->ctx, &tiny, DS_DTYPE_F32, &trial));
    const ds_status status = dsi_measure_median(trial, 0.01, &sample);
    dsi_measure_close(&trial);
    s->device->latency = sample.seconds;
    return status < 0 ? status : dsi_measure_average(s, &s->device->latency);
}

ds_status dsi_measure_kernels(dsi_measure_session *s)
{
    static const struct {
        dsi_peak peak;
        ds_dtype dtype;
    } dtypes[] = {
        {DSI_PEAK_F32, DS_DTYPE_F32}, {DSI_PEAK_BF16, DS_DTYPE_BF16}, {DSI_PEAK_F16, DS_DTYPE_F16}};
    series *all = calloc(1, sizeof *all);
    if (all == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory to measure kernels");
    }
    const uint32_t rounds = s->spec->rounds > 0 ? s->spec->rounds : (uint32_t)ROUNDS;
    all->n_rounds = (int)(rounds < MOST_ROUNDS ? rounds : (uint32_t)MOST_ROUNDS);
    ds_status status = measure_latency(s);
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes && status == DS_OK; ++i) {
        ds_log(s->ctx, DS_LOG_JOB, "measuring kernels in %s", ds_dtype_name(dtypes[i].dtype));
        status = measure_dtype(s, dtypes[i].peak, dtypes[i].dtype, all);
    }
    free(all);
    return status;
}
