/* SPDX-License-Identifier: Apache-2.0 */
/* Side jobs: work for the vector units and the caches that is spread over the steps of the tile
 * loop, where those units idle for most of the 64 cycles that four tile products take. Storing the
 * previous block of C, packing the next block of B and fetching the next panel of A all hide there.
 *
 * Invariant: a job's units are done in order, each once; which step does them changes no result.
 */
#ifndef DSI_ACCEL_CPU_AMX_SIDE_H
#define DSI_ACCEL_CPU_AMX_SIDE_H

#include <stdint.h>

typedef struct amx_side {
    void (*run)(struct amx_side *side, int64_t first, int64_t end); /* does units [first,end) */
    int64_t n_units;
    int64_t n_done;
    int64_t n_steps; /* of the tile loop, over which the units are spread */
    int64_t credit;
} amx_side;

static inline void amx_side_start(amx_side *side, int64_t n_units, int64_t n_steps)
{
    side->n_units = n_units;
    side->n_done = 0;
    side->n_steps = n_steps > 0 ? n_steps : 1;
    side->credit = 0;
}

/* Does the share of one step. */
static inline void amx_side_tick(amx_side *side)
{
    if (side->n_done >= side->n_units) {
        return;
    }
    int64_t end = side->n_done;
    side->credit += side->n_units;
    while (side->credit >= side->n_steps) {
        side->credit -= side->n_steps;
        ++end;
    }
    end = end < side->n_units ? end : side->n_units;
    if (end > side->n_done) {
        side->run(side, side->n_done, end);
        side->n_done = end;
    }
}

/* Does what is left. */
static inline void amx_side_drain(amx_side *side)
{
    if (side->n_done < side->n_units) {
        side->run(side, side->n_done, side->n_units);
        side->n_done = side->n_units;
    }
}

#endif
