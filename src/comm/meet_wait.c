/* SPDX-License-Identifier: Apache-2.0 */
/* Lines while ranks wait to meet. See meet_wait.h. */
#include "comm/meet_wait.h"

#include "base/clock.h"
#include <stdio.h>

#define FIRST_LINE_SECONDS 5.0
#define FOR_EVER           1e8

dsi_meet_wait dsi_meet_wait_begin(double timeout)
{
    const double now = dsi_clock_seconds();
    return (dsi_meet_wait){.begin = now, .next = now + FIRST_LINE_SECONDS, .timeout = timeout};
}

double dsi_meet_wait_left(const dsi_meet_wait *wait)
{
    const double left = wait->begin + wait->timeout - dsi_clock_seconds();
    return wait->timeout <= 0.0 ? FOR_EVER : left > 0.0 ? left : 0.0;
}

bool dsi_meet_wait_over(const dsi_meet_wait *wait)
{
    return dsi_meet_wait_left(wait) <= 0.0;
}

bool dsi_meet_wait_due(dsi_meet_wait *wait)
{
    const double now = dsi_clock_seconds();
    if (now < wait->next) {
        return false;
    }
    wait->next = now + (now - wait->begin);
    return true;
}

void dsi_meet_wait_say(ds_ctx *ctx, const dsi_meet_wait *wait, uint32_t rank, const char *who)
{
    char end[96] = "without end";
    if (wait->timeout > 0.0) {
        (void)snprintf(end, sizeof end, "gives up after %g s (DEEPSPEED_TIMEOUT, in minutes)",
                       wait->timeout);
    }
    ds_log(ctx, DS_LOG_WARN, "rank %u waits for %s since %.0f s, %s", rank, who,
           dsi_clock_seconds() - wait->begin, end);
}

void dsi_meet_missing(const bool *came, uint32_t size, char *text, size_t n)
{
    enum { ROOM_FOR_MORE = 24 };
    size_t used = 0;
    uint32_t n_missing = 0;
    uint32_t n_named = 0;
    for (uint32_t r = 0; r < size; ++r) {
        n_missing += came[r] ? 0 : 1;
    }
    used += (size_t)snprintf(text, n, n_missing == 1 ? "rank" : "ranks");
    for (uint32_t r = 0; r < size && used + ROOM_FOR_MORE < n; ++r) {
        if (!came[r]) {
            used += (size_t)snprintf(text + used, n - used, "%s %u", n_named++ > 0 ? "," : "", r);
        }
    }
    if (n_named < n_missing) {
        (void)snprintf(text + used, n - used, " and %u more", n_missing - n_named);
    }
}
