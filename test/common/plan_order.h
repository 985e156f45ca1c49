/* SPDX-License-Identifier: Apache-2.0 */
/* What is reachable from what in two runs of a plan's phases, and all pairs of steps that touch the
 * same bytes, found pair by pair: an oracle for events, apart from the plan's checker. For
 * plan_events and sim_events.
 */
#ifndef DS_TEST_PLAN_ORDER_H
#define DS_TEST_PLAN_ORDER_H

#include "plan/plan.h"

/* Steps of two training steps, numbered through: t is step t % n of the plan. */
typedef struct plan_order_pair {
    uint32_t before, behind;
} plan_order_pair;

typedef struct plan_order {
    const dsi_plan *plan;
    uint32_t n;             /* of the plan */
    size_t words;           /* of a set of steps */
    uint64_t *known;        /* per step: which have ended when it begins */
    uint64_t *waited;       /* which the host has waited for */
    plan_order_pair *pairs; /* of steps that touch the same bytes */
    size_t n_pairs, room;
    uint32_t moved, to; /* the step that has gone from the one place to the other, if any */
    bool queues;        /* steps of one stream end in their order, as a device's queues have it */
    plan_order_pair racy;
    bool host;       /* what the host waits for itself is known to all that it queues then */
    ds_phase judged; /* it looks at what this phase has made before it queues another; DS_NONE */
} plan_order;

void *plan_order_must(void *memory);
/* Fills in the pairs. The caller frees with plan_order_free. */
plan_order plan_order_make(const dsi_plan *plan, bool queues);
void plan_order_free(plan_order *g);
/* Whether two steps that touch the same bytes are without order, as the plan is now; g->racy: they.
 */
bool plan_order_is_racy(plan_order *g);

#endif
