/* SPDX-License-Identifier: Apache-2.0 */
/* autotuning.enabled in a run: the engine times the steps start_profile_step to end_profile_step,
 * counted from 1 in this process, and rank 0 writes what it measured as JSON. `deepspeed
 * --autotuning` sets this in its trials and reads the file; any program on the engine takes part by
 * being run with the trial's configuration.
 *
 * The file appears whole, or not at all: its writing ends with a rename. Nothing else changes: the
 * run goes on.
 */
#ifndef DSI_TRAIN_AUTOTUNE_MEASURE_H
#define DSI_TRAIN_AUTOTUNE_MEASURE_H

#include "config/config_values.h"
#include <deepspeed/graph.h>

typedef struct dsi_autotune_spec {
    bool enabled;
    bool model_info;     /* write that file too, when the engine is built */
    bool trial;          /* DS_AUTOTUNING_TRIAL is set: this process is ended in the midst of
                            training, and writes no checkpoint and no model folder */
    int64_t first, last; /* steps */
    char metric_path[DS_CONFIG_TEXT_BYTES], model_info_path[DS_CONFIG_TEXT_BYTES];
} dsi_autotune_spec;

typedef struct dsi_autotune_state {
    int64_t n_steps;                /* that this process has taken */
    double begin;                   /* clock seconds at the start of the first measured step */
    double seconds[DS_PHASE_COUNT]; /* of the measured steps, in their phases */
} dsi_autotune_state;

dsi_autotune_spec dsi_autotune_read(const ds_config_autotuning *config);

#endif
