/* SPDX-License-Identifier: Apache-2.0 */
/* A sum of squares of fp32 numbers whose value does not depend on the order or split of the work.
 *
 * Squares are cut on two grids fixed by the largest magnitude, so that all additions are exact
 * (Demmel and Nguyen, "Fast reproducible floating-point summation", ARITH 2013). Used by the
 * kernels of sum_squares and lamb. docs/internals/optim.md has the bounds.
 */
#ifndef DSI_BASE_EXACT_SUM_H
#define DSI_BASE_EXACT_SUM_H

#include <math.h>
#include <stdbool.h>

/* Elements that may be added between two carries, to each accumulator. */
#define DSI_EXACT_RUN (1u << 19)

typedef struct dsi_exact_grid {
    bool empty;    /* top is 0 or not finite: every part is 0 */
    double q1;     /* coarse quantum */
    double coarse; /* (x + coarse) - coarse rounds x to a multiple of q1 */
    double fine;   /* likewise for q2 = q1·2^-34 */
} dsi_exact_grid;

typedef struct dsi_exact_parts {
    double high; /* multiple of q1 */
    double low;  /* multiple of q2, in [0,q1) after dsi_exact_carry */
} dsi_exact_parts;

static inline dsi_exact_grid dsi_exact_grid_of(float top)
{
    dsi_exact_grid grid = {true, 0.0, 0.0, 0.0};
    if (top > 0.0f && isfinite(top)) {
        int exponent;
        (void)frexp((double)top, &exponent);
        grid.empty = false;
        grid.q1 = ldexp(1.0, 2 * exponent - 17);
        grid.coarse = 0x1.8p52 * grid.q1;
        grid.fine = grid.coarse * 0x1p-34;
    }
    return grid;
}

/* Adds x². Pre: |x| <= top, and a carry at least every DSI_EXACT_RUN elements. */
static inline void dsi_exact_add(const dsi_exact_grid *grid, float x, dsi_exact_parts *parts)
{
    const double square = (double)x * (double)x;
    const double high = (square + grid->coarse) - grid->coarse;
    const double low = ((square - high) + grid->fine) - grid->fine;
    parts->high += high;
    parts->low += low;
}

static inline void dsi_exact_carry(const dsi_exact_grid *grid, dsi_exact_parts *parts)
{
    if (!grid->empty) {
        const double carry = floor(parts->low / grid->q1) * grid->q1;
        parts->high += carry;
        parts->low -= carry;
    }
}

#endif
