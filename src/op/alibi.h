/* SPDX-License-Identifier: Apache-2.0 */
/* The slopes of linear position biases (Press et al., "Train Short, Test Long", 2022): what a head
 * subtracts from a score for each position between query and key. Used by the kernels of attention.
 */
#ifndef DSI_OP_ALIBI_H
#define DSI_OP_ALIBI_H

#include <math.h>
#include <stdint.h>

/* Head `head` of n: 2^(-most·(i+1)/p) for the first p of them, p the largest power of two that is
 * not above n; the rest lie between those, with odd multiples of half the step. */
static inline double dsi_alibi_slope(double most, int64_t n, int64_t head)
{
    int64_t p = 1;
    while (p * 2 <= n) {
        p *= 2;
    }
    return head < p ? exp2(-most * (double)(head + 1) / (double)p)
                    : exp2(-most * (double)(2 * (head - p) + 1) / (double)(2 * p));
}

#endif
