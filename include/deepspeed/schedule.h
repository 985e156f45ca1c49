/* Learning-rate schedules: DeepSpeed's five, as pure functions of the number of optimizer updates.
 *
 * A schedule has no state. `updates` counts the optimizer updates already applied (updates skipped
 * for overflow do not count): the first update of a run asks with 0, the next with 1. DeepSpeed's
 * last_batch_iteration at that moment is params->last_batch_iteration + updates.
 *
 * Source: deepspeed/runtime/lr_schedules.py, as docs/internals/schedule.md restates it.
 */
#ifndef DEEPSPEED_SCHEDULE_H
#define DEEPSPEED_SCHEDULE_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* id, DeepSpeed's name. NONE: the optimizer's learning rate, unchanged. */
#define DS_SCHEDULE_KIND_LIST(X)                                                                   \
    X(NONE, "none")                                                                                \
    X(WARMUP, "WarmupLR")                                                                          \
    X(WARMUP_DECAY, "WarmupDecayLR")                                                               \
    X(WARMUP_COSINE, "WarmupCosineLR")                                                             \
    X(ONE_CYCLE, "OneCycle")                                                                       \
    X(LR_RANGE_TEST, "LRRangeTest")

typedef enum ds_schedule_kind {
#define X(id, text) DS_SCHEDULE_##id,
    DS_SCHEDULE_KIND_LIST(X)
#undef X
        DS_SCHEDULE_KIND_COUNT
} ds_schedule_kind;

typedef enum ds_warmup_type { DS_WARMUP_LOG, DS_WARMUP_LINEAR } ds_warmup_type;

/* Names are DeepSpeed's. Learning rates are per update; steps are optimizer updates. */
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
} ds_schedule_params;

/* What the schedule sets for one update. */
typedef struct ds_schedule_point {
    double lr;
    double momentum;   /* the optimizer's first beta (SGD: momentum) */
    bool has_momentum; /* false: the schedule leaves the momentum alone */
} ds_schedule_point;

/* The defaults named above for one kind. Required values are NAN or 0. */
DS_API ds_schedule_params ds_schedule_default(ds_schedule_kind kind);

/* Checks the values of its kind. Errors: ERR_CONFIG, naming DeepSpeed's key. Any thread. */
DS_API ds_status ds_schedule_check(ds_ctx *ctx, const ds_schedule_params *params);

/* The point for the update after `updates` updates. params has passed ds_schedule_check.
 * optimizer_lr: `lr` of the optimizer. Pure; any thread. */
DS_API ds_schedule_point ds_schedule_at(const ds_schedule_params *params, double optimizer_lr,
                                        int64_t updates);

/* DeepSpeed's name of a kind ("WarmupLR"), never NULL. */
DS_API const char *ds_schedule_kind_name(ds_schedule_kind kind);

#ifdef __cplusplus
}
#endif
#endif
