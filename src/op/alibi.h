/* SPDX-License-Identifier: Apache-2.0 */
/* The slopes of linear position biases (Press et al., "Train Short, Test Long", 2022): what a head
 * subtracts from a score for each position between query and key. Used by the kernels of attention.
 * Falcon's (alibi_rounded) are added to q·k before its scale, counted from the beginning of the
 * document and rounded to bf16: bf16(bf16(slope)·bf16(j - first)). Rounding makes them differ from
 * the plain ones by more than a number a query. */
#ifndef DSI_OP_ALIBI_H
#define DSI_OP_ALIBI_H

#include "base/half.h"

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

static inline float dsi_alibi_bf16(double x)
{
    return dsi_bf16_to_f32(dsi_f32_to_bf16((float)x));
}

/* Falcon's bias of a key, `place` positions behind the beginning of its document. */
static inline float dsi_alibi_bias(double slope, int64_t place)
{
    return dsi_alibi_bf16((double)dsi_alibi_bf16(slope) * (double)dsi_alibi_bf16((double)place));
}

#endif
