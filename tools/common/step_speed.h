/* SPDX-License-Identifier: Apache-2.0 */
/* How fast steps are: over the newest ones, without those that warm up. */
#ifndef DSI_TOOLS_STEP_SPEED_H
#define DSI_TOOLS_STEP_SPEED_H

#include <stddef.h>
#include <stdint.h>

enum {
    STEP_SPEED_START = 2,  /* steps that warm up, as many as DeepSpeed's timer passes over */
    STEP_SPEED_WINDOW = 32 /* steps, at most */
};

typedef struct step_speed {
    double tokens[STEP_SPEED_WINDOW], seconds[STEP_SPEED_WINDOW];
    uint64_t n_steps; /* seen */
    size_t n, next;   /* in the window */
} step_speed;

/* One step. A step that warms up stands alone, until the next one. */
void step_speed_add(step_speed *speed, double tokens, double seconds);

/* Of the window: tokens a second, and the mean duration of a step. 0 before the first. */
double step_speed_rate(const step_speed *speed);
double step_speed_seconds(const step_speed *speed);

#endif
