/* SPDX-License-Identifier: Apache-2.0 */
/* What of compression_training is in force behind so many updates, in closed form, so that a
 * resumed run needs nothing but the number of updates. See compress_graph.h.
 *
 * Weights outside of the forward pass (DeepSpeed's MoQ): the k-th call, counted from 1 where the
 * group comes into force, takes a bit away when k has reached the period, which then doubles; at
 * most one bit a call. With fp16_mixed_quantize the part of the plain weight falls from 1 by
 * change_ratio a call, and is 1 again where a bit is taken away. */
#include "compile/compress_graph.h"
#include "op/ops.h"

static void bits_at(const ds_compress_group *g, int64_t call, int64_t *bits_out,
                    int64_t *changed_out)
{
    int64_t bits = g->start_bits, next = g->period, changed = 0;
    for (int64_t taken = 0; bits > g->target_bits; ++taken) {
        const int64_t at = next > taken ? next : taken + 1; /* one bit a call, from the first on */
        if (call < at) {
            break;
        }
        bits -= 1;
        changed = at;
        next = next <= INT64_MAX / 2 ? next * 2 : INT64_MAX;
    }
    *bits_out = bits;
    *changed_out = changed;
}

void dsi_compress_control(const ds_compress_group *group, int64_t updates, float *control_out)
{
    const bool on = updates >= group->offset;
    int64_t bits = group->target_bits, changed = 0;
    control_out[0] = on ? 1.0f : 0.0f;
    if (group->technique != DS_COMPRESS_WEIGHTS) {
        return;
    }
    const int64_t call = updates - group->offset + 1;
    if (!group->in_forward && on) {
        bits_at(group, call, &bits, &changed);
    }
    const double mix = 1.0 - group->change_ratio * (double)(call - changed);
    control_out[DSI_QUANT_BITS] = (float)bits;
    control_out[DSI_QUANT_MIX] = on && group->mixed && mix > 0.0 ? (float)mix : 0.0f;
    control_out[DSI_QUANT_SPARE] = 0.0f;
}
