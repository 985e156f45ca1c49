/* SPDX-License-Identifier: Apache-2.0 */
/* Speed over a window of steps. See step_speed.h. */
#include "common/step_speed.h"

void step_speed_add(step_speed *speed, double tokens, double seconds)
{
    if (speed->n_steps++ <= STEP_SPEED_START) {
        speed->n = speed->next = 0;
    }
    speed->tokens[speed->next] = tokens;
    speed->seconds[speed->next] = seconds;
    speed->next = (speed->next + 1) % STEP_SPEED_WINDOW;
    speed->n += speed->n < STEP_SPEED_WINDOW ? 1 : 0;
}

static double sum(const double *values, size_t n)
{
    double total = 0.0;
    for (size_t i = 0; i < n; ++i) {
        total += values[i];
    }
    return total;
}

double step_speed_rate(const step_speed *speed)
{
    const double seconds = sum(speed->seconds, speed->n);
    return seconds > 0.0 ? sum(speed->tokens, speed->n) / seconds : 0.0;
}

double step_speed_seconds(const step_speed *speed)
{
    return speed->n > 0 ? sum(speed->seconds, speed->n) / (double)speed->n : 0.0;
}
