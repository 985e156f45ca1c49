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

#include "compile/run_spec.h"
#include <deepspeed/graph.h>

typedef struct dsi_autotune_state {
    int64_t n_steps;               /* that this process has taken */
    double begin;                  /* clock seconds at the start of the first measured step */
    double seconds[DS_MAX_PHASES]; /* of the measured steps, in their phases */
} dsi_autotune_state;

#endif
