/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the checker. Shared by plan_check*.c alone:
 *
 *     plan_check.c           contents of the arena and of cells, step by step
 *     plan_check_side.c      the phase concurrent with others
 *     plan_check_slots.c     what micro-batches in flight keep
 *     plan_check_streams.c   what happens before what, from streams and events
 */
#ifndef DSI_PLAN_CHECK_H
#define DSI_PLAN_CHECK_H

#include "plan/plan.h"

/* ERR_GRAPH that names step and invariant. */
ds_status dsi_plan_broken(const dsi_plan *plan, uint32_t s, int invariant, const char *what);

static inline bool dsi_ranges_meet(size_t a, size_t a_bytes, size_t b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

/* Invariant 10. */
ds_status dsi_plan_check_side(const dsi_plan *plan);
/* Invariant 8. */
ds_status dsi_plan_check_streams(const dsi_plan *plan);

/* Invariant 13. */
ds_status dsi_plan_check_slots(const dsi_plan *plan, uint32_t n_values);

#endif
