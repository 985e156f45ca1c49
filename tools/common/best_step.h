/* SPDX-License-Identifier: Apache-2.0 */
/* Which evaluation of a run was the best, and when a run that no longer improves stops: what
 * Hugging Face's Trainer does with metric_for_best_model and its EarlyStoppingCallback. A pure
 * function of the values, in their order; the run's part is train_best.c. */
#ifndef DSI_TOOLS_BEST_STEP_H
#define DSI_TOOLS_BEST_STEP_H

#include <stdbool.h>
#include <stdint.h>

typedef struct best_rule {
    bool greater;     /* a greater value is better; else a smaller one */
    int64_t patience; /* evaluations in a row without improvement that stop the run; 0: none do */
    double
        threshold; /* what improves by no more counts as none; the best is updated all the same */
} best_rule;

/* All zero before the first value. */
typedef struct best_step {
    uint64_t step, newest; /* of the best value, of the newest; 0: none */
    double value;          /* the best; with step 0: of no meaning */
    bool seen;             /* a value came, if one that is not finite */
    int64_t without;       /* evaluations in a row, the newest ones, without improvement */
} best_step;

/* The value of an evaluation after `step`; true: it is the best so far. What is not a number, and
 * the infinity on the wrong side, never is. */
bool best_step_feed(best_step *best, const best_rule *rule, double value, uint64_t step);
bool best_step_stops(const best_step *best, const best_rule *rule);

#endif
