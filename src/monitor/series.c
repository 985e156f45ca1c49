/* SPDX-License-Identifier: Apache-2.0 */
/* Curves in bounded memory. See series.h. */
#include "monitor/series.h"

#include <math.h>

enum { SMOOTH_PART = 40 /* of the points are in the mean */ };

static void merge(dsi_point *into, const dsi_point *next)
{
    into->last = next->last;
    into->least = fmin(into->least, next->least);
    into->most = fmax(into->most, next->most);
    into->sum += next->sum;
    into->n += next->n;
    into->n_finite += next->n_finite;
}

static void halve(dsi_series *s)
{
    for (size_t i = 0; i < s->n / 2; ++i) {
        dsi_point point = s->points[2 * i];
        merge(&point, &s->points[2 * i + 1]);
        s->points[i] = point;
    }
    s->n /= 2;
    s->width *= 2;
}

void dsi_series_add(dsi_series *s, uint64_t step, double value)
{
    const int finite = isfinite(value);
    const double edge = finite ? value : NAN; /* fmin and fmax pass over it */
    const dsi_point point = {.first = step,
                             .last = step,
                             .sum = finite ? value : 0.0,
                             .least = edge,
                             .most = edge,
                             .n = 1,
                             .n_finite = finite ? 1 : 0};
    s->width = s->width == 0 ? 1 : s->width;
    if (s->n > 0 && s->points[s->n - 1].n < s->width) {
        merge(&s->points[s->n - 1], &point);
        return;
    }
    if (s->n == DSI_SERIES_POINTS) {
        halve(s);
    }
    s->points[s->n++] = point;
}

double dsi_point_value(const dsi_point *p)
{
    return p->n_finite > 0 ? p->sum / (double)p->n_finite : NAN;
}

double dsi_point_step(const dsi_point *p)
{
    return 0.5 * ((double)p->first + (double)p->last);
}

void dsi_series_range(const dsi_series *s, double *least_out, double *most_out)
{
    *least_out = *most_out = NAN;
    for (size_t i = 0; i < s->n; ++i) {
        *least_out = fmin(*least_out, s->points[i].least);
        *most_out = fmax(*most_out, s->points[i].most);
    }
}

size_t dsi_series_smooth(const dsi_series *s, double *out)
{
    const size_t span = s->n / SMOOTH_PART + 1;
    const double keep = 1.0 - 1.0 / (double)span;
    double mean = 0.0;
    double weight = 0.0;
    for (size_t i = 0; i < s->n; ++i) {
        const double value = dsi_point_value(&s->points[i]);
        if (isfinite(value)) {
            mean = keep * mean + (1.0 - keep) * value;
            weight = keep * weight + (1.0 - keep);
        }
        out[i] = isfinite(value) ? mean / weight : NAN;
    }
    return span;
}
