/* SPDX-License-Identifier: Apache-2.0 */
/* See best_step.h. Compared with the Trainer's own on random series: test_best_step. */
#include "common/best_step.h"

#include <math.h>

static bool is_better(const best_rule *rule, double value, double than)
{
    return rule->greater ? value > than : value < than;
}

bool best_step_feed(best_step *best, const best_rule *rule, double value, uint64_t step)
{
    const double worst = rule->greater ? -INFINITY : INFINITY;
    const double before = best->step > 0 ? best->value : worst;
    const bool better = is_better(rule, value, before);
    const bool improves = better && fabs(value - before) > rule->threshold;
    best->without =
        improves || !best->seen ? 0 : best->without + 1; /* nothing was before the first */
    best->seen = true;
    best->newest = step;
    if (better) {
        best->value = value;
        best->step = step;
    }
    return better;
}

bool best_step_stops(const best_step *best, const best_rule *rule)
{
    return rule->patience > 0 && best->without >= rule->patience;
}
