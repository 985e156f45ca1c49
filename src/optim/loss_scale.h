/* SPDX-License-Identifier: Apache-2.0 */
/* Loss scaling for fp16: DeepSpeed's algorithm (deepspeed/runtime/fp16/loss_scaler.py), the same
 * for every ZeRO stage. Host state, advanced once an optimizer step.
 */
#ifndef DSI_OPTIM_LOSS_SCALE_H
#define DSI_OPTIM_LOSS_SCALE_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct dsi_loss_scale {
    double scale;
    bool dynamic; /* false: scale never changes; overflowing steps are still skipped */
    int64_t window;
    double min_scale;
    int64_t hysteresis;
    bool consecutive_hysteresis;
    /* state */
    int64_t iteration;
    int64_t last_overflow; /* iteration of the newest overflow, -1 before */
    int64_t hysteresis_left;
} dsi_loss_scale;

/* Constant 1: fp32 and bf16. */
dsi_loss_scale dsi_loss_scale_none(void);
dsi_loss_scale dsi_loss_scale_static(double scale);
dsi_loss_scale dsi_loss_scale_dynamic(double initial_scale, int64_t window, double min_scale,
                                      int64_t hysteresis, bool consecutive_hysteresis);

/* One step with or without overflow. Errors: ERR_NUMERIC when the scale is at its minimum and the
 * gradients still overflow. */
ds_status dsi_loss_scale_update(ds_ctx *ctx, dsi_loss_scale *s, bool overflow);

#endif
