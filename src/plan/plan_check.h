/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the checker. Shared by plan_check*.c alone:
 *
 *     plan_check.c           contents of the arena and of cells, step by step
 *     plan_check_beside.c    what runs beside other phases
 *     plan_check_carried.c   swaps that end in the next step
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
ds_status dsi_plan_check_beside(const dsi_plan *plan);
/* Invariant 12. */
ds_status dsi_plan_check_carried(const dsi_plan *plan);

#endif
