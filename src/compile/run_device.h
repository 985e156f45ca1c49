/* SPDX-License-Identifier: Apache-2.0 */
/* The device of a run as the cost model knows it: the shipped profile of its driver's name for it
 * (cost/device_names.c), with the memory that it and its host have. Called where a run, or a plan
 * of one on this machine, leaves the cost model a choice (state_place.h); nothing else of a run
 * depends on the device's name.
 */
#ifndef DSI_COMPILE_RUN_DEVICE_H
#define DSI_COMPILE_RUN_DEVICE_H

#include "compile/run_spec.h"
#include "cost/device.h"

typedef struct dsi_run_device {
    dsi_device device; /* of one rank; `name`: of the profile, "" where there is none */
    char name[128];    /* its driver's; "": the accelerator says none */
    uint32_t n_local;  /* ranks of its node */
} dsi_run_device;

/* Whether a run's plan depends on it. */
bool dsi_run_device_matters(const dsi_engine_spec *spec);

/* Memory is in whole GiB, the largest that are there of both kinds, so that ranks whose devices
 * differ by some pages agree. Nothing is opened. Errors: those of ds_accel.about. */
ds_status dsi_run_device_find(ds_ctx *ctx, const dsi_engine_spec *spec, dsi_run_device *found_out);

/* NULL: no profile. */
const dsi_device *dsi_run_device_profile(const dsi_run_device *found);

/* "NVIDIA H200, by the profile h200", or why there is none. */
enum { DSI_RUN_DEVICE_TEXT = 256 };
void dsi_run_device_text(const dsi_run_device *found, const dsi_engine_spec *spec,
                         char text_out[DSI_RUN_DEVICE_TEXT]);

#endif
