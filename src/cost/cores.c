/* SPDX-License-Identifier: Apache-2.0 */
/* See cores.h. */
#include "cost/cores.h"

#include <math.h>

double dsi_cores_share(const dsi_cores *cores, uint32_t busy)
{
    const double ranks = cores->ranks > 0 ? (double)cores->ranks : 1.0;
    const double n = (double)cores->n;
    if (cores->n == 0) {
        return 1.0 / ranks;
    }
    const double threads = cores->threads > 0 ? (double)cores->threads : fmax(1.0, n / ranks);
    return fmin(threads / n, 1.0 / (double)(busy > 0 ? busy : 1));
}

double dsi_cores_speed(const dsi_cores *cores, uint32_t busy)
{
    return dsi_cores_share(cores, busy) / dsi_cores_share(cores, cores->ranks);
}
