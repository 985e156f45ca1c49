/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule as data: names of the kinds and what holds where nothing is given, in a configuration
 * or in a program's own parameters. Formulas and checks are in optim/. */
#include <deepspeed/schedule.h>
#include <math.h>

ds_schedule_params ds_schedule_default(ds_schedule_kind kind)
{
    return (ds_schedule_params){
        .kind = kind,
        .last_batch_iteration = -1,
        .warmup_max_lr = kind == DS_SCHEDULE_WARMUP_DECAY ? 0.001 : NAN,
        .warmup_num_steps = kind >= DS_SCHEDULE_LINEAR ? 0 : 1000,
        .cos_min_ratio = 1e-4,
        .cycle_min_lr = NAN,
        .cycle_max_lr = NAN,
        .cycle_first_step_size = 2000,
        .cycle_second_step_size = NAN,
        .cycle_second_stair_count = -1,
        .cycle_momentum = true,
        .cycle_min_mom = 0.8,
        .cycle_max_mom = 0.9,
        .lr_range_test_min_lr = 1e-3,
        .lr_range_test_step_size = 2000,
        .lr_range_test_step_rate = 1,
        .num_cycles = kind == DS_SCHEDULE_COSINE_WITH_RESTARTS ? 1 : 0.5,
        .min_lr = NAN,
        .min_lr_rate = NAN,
        .default_lr = NAN,
        .warmup_lr_rate = NAN,
        .lr_end = 1e-7,
        .power = 1,
        .num_decay_steps = -1,
        .num_stable_steps = -1,
        .decay_ramp = DS_RAMP_COSINE,
    };
}

const char *ds_schedule_kind_name(ds_schedule_kind kind)
{
    static const char *const names[] = {
#define X(id, text) text,
        DS_SCHEDULE_KIND_LIST(X)
#undef X
    };
    return (unsigned)kind < DS_SCHEDULE_KIND_COUNT ? names[kind] : "?";
}
