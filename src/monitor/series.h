/* SPDX-License-Identifier: Apache-2.0 */
/* A curve in bounded memory: every value while there are few, else means with their extremes over
 * equal numbers of steps. Used by the history of a run and its charts; one thread at a time. */
#ifndef DSI_MONITOR_SERIES_H
#define DSI_MONITOR_SERIES_H

#include <stddef.h>
#include <stdint.h>

enum { DSI_SERIES_POINTS = 1024 };

typedef struct dsi_point {
    uint64_t first, last;    /* steps */
    double sum, least, most; /* of the finite values */
    uint64_t n, n_finite;    /* values */
} dsi_point;

typedef struct dsi_series {
    dsi_point points[DSI_SERIES_POINTS];
    size_t n;
    uint64_t width; /* values a point; 0: empty */
} dsi_series;

/* Adds a value; what is not finite is a gap. Neighbours are merged when all points are taken. */
void dsi_series_add(dsi_series *series, uint64_t step, double value);
/* The mean of a point, NAN for a gap; and the middle of its steps. */
double dsi_point_value(const dsi_point *point);
double dsi_point_step(const dsi_point *point);
/* The least and the largest value; both NAN without one. */
void dsi_series_range(const dsi_series *series, double *least_out, double *most_out);
/* An exponential mean of the points, its bias corrected, as many as series->n. Returns over about
 * how many points: 1 is no smoothing. */
size_t dsi_series_smooth(const dsi_series *series, double *out);

#endif
