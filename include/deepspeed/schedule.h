/* SPDX-License-Identifier: Apache-2.0 */
/* Learning-rate schedules: DeepSpeed's five and those of Hugging Face's Trainer, as pure functions
 * of the number of optimizer updates.
 *
 * A schedule has no state. `updates` counts the optimizer updates already applied (updates skipped
 * for overflow do not count): the first update of a run asks with 0, the next with 1. DeepSpeed's
 * last_batch_iteration at that moment is params->last_batch_iteration + updates.
 *
 * Sources: deepspeed/runtime/lr_schedules.py and transformers/optimization.py, as
 * docs/internals/schedule.md restates them.
 */
#ifndef DEEPSPEED_SCHEDULE_H
#define DEEPSPEED_SCHEDULE_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* id, DeepSpeed's name, from LINEAR on the Trainer's. NONE: the optimizer's learning rate,
 * unchanged.
 */
#define DS_SCHEDULE_KIND_LIST(X)                                                                   \
    X(NONE, "none")                                                                                \
    X(WARMUP, "WarmupLR")                                                                          \
    X(WARMUP_DECAY, "WarmupDecayLR")                                                               \
    X(WARMUP_COSINE, "WarmupCosineLR")                                                             \
    X(ONE_CYCLE, "OneCycle")                                                                       \
    X(LR_RANGE_TEST, "LRRangeTest")                                                                \
    X(LINEAR, "linear")                                                                            \
    X(COSINE, "cosine")                                                                            \
    X(COSINE_WITH_RESTARTS, "cosine_with_restarts")                                                \
    X(COSINE_WITH_MIN_LR, "cosine_with_min_lr")                                                    \
    X(COSINE_WARMUP_WITH_MIN_LR, "cosine_warmup_with_min_lr")                                      \
    X(POLYNOMIAL, "polynomial")                                                                    \
    X(CONSTANT, "constant")                                                                        \
    X(CONSTANT_WITH_WARMUP, "constant_with_warmup")                                                \
    X(INVERSE_SQRT, "inverse_sqrt")                                                                \
    X(WARMUP_STABLE_DECAY, "warmup_stable_decay")

typedef enum ds_schedule_kind {
#define X(id, text) DS_SCHEDULE_##id,
    DS_SCHEDULE_KIND_LIST(X)
#undef X
        DS_SCHEDULE_KIND_COUNT
} ds_schedule_kind;

typedef enum ds_warmup_type { DS_WARMUP_LOG, DS_WARMUP_LINEAR } ds_warmup_type;

/* Of WARMUP_STABLE_DECAY, over the progress x of a phase from 0 to 1: a line, half a cosine, or
 * 1 - sqrt(x) (of the warm-up 1 - sqrt(1 - x)). */
typedef enum ds_ramp { DS_RAMP_LINEAR, DS_RAMP_COSINE, DS_RAMP_SQRT } ds_ramp;

/* Names are DeepSpeed's, of its schedules, and the Trainer's, of its own. Learning rates are per
 * update; steps are optimizer updates. */
typedef struct ds_schedule_params {
    ds_schedule_kind kind;
    int64_t last_batch_iteration; /* default -1; k: go on after k+1 updates */

    /* WARMUP and WARMUP_DECAY: from min to max over warmup_num_steps; DECAY then falls to min at
     * total_num_steps. */
    double warmup_min_lr;       /* default 0 */
    double warmup_max_lr;       /* default of DECAY 0.001; NAN: the optimizer's learning rate */
    int64_t warmup_num_steps;   /* default 1000, >= 1; 1 acts as 2. Of COSINE too */
    ds_warmup_type warmup_type; /* default log. Of COSINE too */
    int64_t total_num_steps;    /* of DECAY and COSINE, required */

    /* WARMUP_COSINE: ratios of the optimizer's learning rate. */
    double warmup_min_ratio; /* default 0 */
    double cos_min_ratio;    /* default 1e-4 */

    /* ONE_CYCLE: up over the first step size, down over the second, then decay. */
    double cycle_min_lr, cycle_max_lr;   /* required */
    double decay_lr_rate;                /* default 0: no decay */
    double cycle_first_step_size;        /* default 2000, > 0 */
    double cycle_second_step_size;       /* >= 0; NAN: the first */
    int64_t cycle_first_stair_count;     /* default 0: a line, no stairs */
    int64_t cycle_second_stair_count;    /* -1: the first */
    double decay_step_size;              /* default 0: no decay */
    bool cycle_momentum;                 /* default true: the first beta runs against the rate */
    double cycle_min_mom, cycle_max_mom; /* default 0.8, 0.9 */
    double decay_mom_rate;               /* default 0 */

    /* LR_RANGE_TEST: grows without end. */
    double lr_range_test_min_lr;     /* default 1e-3 */
    int64_t lr_range_test_step_size; /* default 2000, > 0 */
    double lr_range_test_step_rate;  /* default 1 */
    bool lr_range_test_staircase;    /* default false */

    /* The Trainer's, factors of the optimizer's learning rate. warmup_num_steps (>= 0, default 0)
     * is of all but CONSTANT, total_num_steps (>= 1, required) of LINEAR, the COSINE ones,
     * POLYNOMIAL and WARMUP_STABLE_DECAY. */
    double num_cycles;  /* of the COSINE ones, waves, default 0.5; of RESTARTS, descents, 1 */
    double min_lr;      /* of COSINE_*_MIN_LR: the least rate; NAN: by min_lr_rate */
    double min_lr_rate; /* the least over the highest rate; one of the two is required */
    double default_lr;  /* that min_lr and lr_end are compared with, where groups of parameters have
                           others; NAN: the optimizer's */
    double warmup_lr_rate;    /* of COSINE_WARMUP_WITH_MIN_LR: the first over the highest rate; NAN:
                                 1 / warmup_num_steps */
    double lr_end;            /* of POLYNOMIAL, below the optimizer's rate, default 1e-7 */
    double power;             /* of POLYNOMIAL, default 1 */
    int64_t timescale;        /* of INVERSE_SQRT; 0: the warm-up, or 10000 without one */
    int64_t num_decay_steps;  /* of WARMUP_STABLE_DECAY, required, >= 0 */
    int64_t num_stable_steps; /* -1: what warm-up and decay leave of total_num_steps */
    double min_lr_ratio;      /* the least over the highest rate, at both ends, default 0 */
    ds_ramp warmup_ramp;      /* default LINEAR */
    ds_ramp decay_ramp;       /* default COSINE */
    DS_RESERVED(8);
} ds_schedule_params;

/* What the schedule sets for one update. */
typedef struct ds_schedule_point {
    double lr;
    double momentum;   /* the optimizer's first beta (SGD: momentum) */
    bool has_momentum; /* false: the schedule leaves the momentum alone */
    DS_RESERVED(4);
} ds_schedule_point;

/* The defaults named above for one kind. Required values are NAN or 0. */
DS_API ds_schedule_params ds_schedule_default(ds_schedule_kind kind);

/* Checks the values of its kind. Errors: ERR_CONFIG, naming DeepSpeed's key. Any thread. */
DS_API ds_status ds_schedule_check(ds_ctx *ctx, const ds_schedule_params *params);

/* The point for the update after `updates` updates. params has passed ds_schedule_check.
 * optimizer_lr: `lr` of the optimizer. Pure; any thread. */
DS_API ds_schedule_point ds_schedule_at(const ds_schedule_params *params, double optimizer_lr,
                                        int64_t updates);

/* The name of a kind ("WarmupLR", "linear"), never NULL. */
DS_API const char *ds_schedule_kind_name(ds_schedule_kind kind);

#ifdef __cplusplus
}
#endif
#endif
