/* SPDX-License-Identifier: Apache-2.0 */
/* Measures this machine and makes a device profile of it: the project's own kernels on random
 * operands of training's shapes, copies, collectives among the ranks of a job, and a file.
 *
 * This is the only part of cost/ that runs anything. Who calls it: ds_bench --profile, the
 * benchmark that compares predictions with measurements.
 */
#ifndef DSI_COST_MEASURE_H
#define DSI_COST_MEASURE_H

#include "cost/device.h"

typedef struct dsi_measure_spec {
    const char *name;   /* of the profile */
    dsi_comm *comm;     /* ranks of one node that measure together; NULL: this one alone */
    const char *folder; /* where a file is written and removed; NULL: the disk is not measured */
    size_t file_bytes;  /* 0: 512 MiB */
    uint32_t rounds;    /* how often each shape runs; 0: 5 */
} dsi_measure_spec;

/* Some minute. The figures are of the whole node (`shared`): all ranks with all their threads at
 * once, as far as there are cores for them; collectives always among all ranks. Collective when
 * comm is given; every rank gets the same profile. Errors: those of kernels, communicator and
 * file. */
ds_status dsi_measure(ds_ctx *ctx, const dsi_measure_spec *spec, dsi_device *device_out);

/* ---- parts ---- */

/* One operator on given sizes, see measure_ops.c. */
typedef struct dsi_measure_point {
    ds_op_class op_class;
    int variant; /* operand layouts; which operator of the class */
    int64_t m, n, k;
} dsi_measure_point;

enum { DSI_MEASURE_POINTS = 49 };

/* The points of a training step that are measured, for products that reach about `rate` FLOP/s: on
 * a slow processor with fewer rows. Pure. */
void dsi_measure_points(double rate, dsi_measure_point points_out[DSI_MEASURE_POINTS]);

typedef struct dsi_measure_sample {
    dsi_work work;
    double seconds; /* median */
} dsi_measure_sample;

typedef struct dsi_measure_trial dsi_measure_trial;

/* Makes operands for the processor's kernel at a point; the caller closes the trial. */
ds_status dsi_measure_open(ds_ctx *ctx, const dsi_measure_point *point, ds_dtype dtype,
                           dsi_measure_trial **trial_out);
void dsi_measure_close(dsi_measure_trial **trial);
const dsi_work *dsi_measure_work(const dsi_measure_trial *trial);
/* Runs it once. */
ds_status dsi_measure_run(dsi_measure_trial *trial, double *seconds_out);
/* Runs it for about `seconds`; the median. */
ds_status dsi_measure_median(dsi_measure_trial *trial, double seconds,
                             dsi_measure_sample *sample_out);

/* The rate that explains samples of one class best: the sizes of half, then the share of `peak`
 * (FLOP/s), by least squares of the logarithms. Pure. */
dsi_rate dsi_measure_fit(const dsi_measure_sample *samples, uint32_t n, double peak);

#endif
