/* SPDX-License-Identifier: Apache-2.0 */
/* Loss scaling. See loss_scale.h. */
#include "optim/loss_scale.h"

#include <math.h>

dsi_loss_scale dsi_loss_scale_none(void)
{
    return dsi_loss_scale_static(1.0);
}

dsi_loss_scale dsi_loss_scale_static(double scale)
{
    return (dsi_loss_scale){.scale = scale, .last_overflow = -1};
}

dsi_loss_scale dsi_loss_scale_dynamic(double initial_scale, int64_t window, double min_scale,
                                      int64_t hysteresis, bool consecutive_hysteresis)
{
    return (dsi_loss_scale){.scale = initial_scale,
                            .dynamic = true,
                            .window = window,
                            .min_scale = min_scale,
                            .hysteresis = hysteresis,
                            .consecutive_hysteresis = consecutive_hysteresis,
                            .last_overflow = -1,
                            .hysteresis_left = hysteresis};
}

static ds_status shrink(ds_ctx *ctx, dsi_loss_scale *s)
{
    s->last_overflow = s->iteration;
    if (s->hysteresis_left > 1) {
        s->hysteresis_left -= 1;
        return DS_OK;
    }
    if (s->scale <= s->min_scale) {
        return ds_fail(ctx, DS_ERR_NUMERIC,
                       "fp16 gradients overflow at the smallest loss scale %g: lower the learning "
                       "rate, use bf16, or lower fp16.min_loss_scale",
                       s->scale);
    }
    s->scale = fmax(s->scale / 2.0, s->min_scale);
    return DS_OK;
}

ds_status dsi_loss_scale_update(ds_ctx *ctx, dsi_loss_scale *s, bool overflow)
{
    ds_status status = DS_OK;
    if (!s->dynamic) {
        s->last_overflow = overflow ? s->iteration : s->last_overflow;
    } else if (overflow) {
        status = shrink(ctx, s);
    } else {
        const int64_t stable = s->iteration - s->last_overflow - 1;
        if (s->consecutive_hysteresis) {
            s->hysteresis_left = s->hysteresis;
        }
        if (stable > 0 && stable % s->window == 0) {
            s->hysteresis_left = s->hysteresis;
            s->scale *= 2.0;
        }
    }
    s->iteration += 1;
    return status;
}
