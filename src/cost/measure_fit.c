/* SPDX-License-Identifier: Apache-2.0 */
/* Fits the share of the peak and the sizes of half to measured products. See measure.h.
 *
 * log(seconds · peak / flops) = -log(share) + sum over m, n, k of log(1 + half/size). For given
 * halves the best share is a mean; the halves are searched one after the other, some rounds on a
 * grid of powers of sqrt(2), the rest near what was found: deterministic, and the fit is smooth
 * enough for that.
 */
#include "cost/measure.h"

#include <math.h>

enum { GRID = 25, COARSE = 6, ROUNDS = 40 };

static double candidate(int round, int i, double found)
{
    if (round < COARSE) {
        return i == 0 ? 0.0 : exp2(0.5 * (double)(i - 1));
    }
    return found * exp2((double)(i - GRID / 2) / 64.0);
}

/* Of the peak at large sizes. More is a curve that is bent beyond what was measured: large halves
 * and a large share fit the same points. */
#define MOST_SHARE 2.0

static double spread(int64_t size, double half)
{
    return size > 0 ? log1p(half / (double)size) : 0.0;
}

/* Mean and squared error of the samples for given halves. */
static double error_of(const dsi_measure_sample *samples, uint32_t n, double peak,
                       const double half[3], double *mean_out)
{
    double sum = 0.0;
    double squares = 0.0;
    for (uint32_t i = 0; i < n; ++i) {
        const dsi_work *w = &samples[i].work;
        const double rest = log(samples[i].seconds * peak / w->flops) - spread(w->m, half[0]) -
                            spread(w->n, half[1]) - spread(w->k, half[2]);
        sum += rest;
        squares += rest * rest;
    }
    *mean_out = sum / (double)n;
    return squares - sum * sum / (double)n;
}

dsi_rate dsi_measure_fit(const dsi_measure_sample *samples, uint32_t n, double peak)
{
    double half[3] = {0.0, 0.0, 0.0};
    double mean = 0.0;
    double best = error_of(samples, n, peak, half, &mean);
    for (int round = 0; round < ROUNDS; ++round) {
        for (int d = 0; d < 3; ++d) {
            const double found = half[d];
            double kept = found;
            for (int i = 0; i < GRID; ++i) {
                half[d] = candidate(round, i, found);
                const double error = error_of(samples, n, peak, half, &mean);
                if (error < best * (1.0 - 1e-9) && exp(-mean) <= MOST_SHARE) {
                    best = error;
                    kept = half[d];
                }
            }
            half[d] = kept;
        }
    }
    (void)error_of(samples, n, peak, half, &mean);
    return (dsi_rate){.compute = exp(-mean),
                      .memory = 1.0,
                      .half_m = half[0],
                      .half_n = half[1],
                      .half_k = half[2]};
}
