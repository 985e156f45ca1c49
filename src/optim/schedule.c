/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's five learning-rate schedules. See include/deepspeed/schedule.h; the Trainer's are in
 * schedule_trainer.c.
 *
 * t is DeepSpeed's last_batch_iteration: last_batch_iteration + updates. At t = -1 a schedule gives
 * what its constructor sets. Formulas keep DeepSpeed's order of operations, so that results agree
 * to the last bits.
 */
#include "base/reserved.h"
#include "optim/schedule_trainer.h"

#include <math.h>
#include <stddef.h>

#define MOST_UPDATES (INT64_C(1) << 53) /* beyond, t is no longer exact as a double */

static double log_or_line(const ds_schedule_params *p, int64_t t)
{
    const int64_t warmup = p->warmup_num_steps > 2 ? p->warmup_num_steps : 2;
    if (t >= warmup) {
        return 1.0;
    }
    if (p->warmup_type == DS_WARMUP_LOG) {
        return 1.0 / log((double)warmup) * log((double)(t + 1));
    }
    return (double)t / (double)warmup;
}

static double decay_factor(const ds_schedule_params *p, int64_t t)
{
    const int64_t warmup = p->warmup_num_steps > 2 ? p->warmup_num_steps : 2;
    if (t < warmup) {
        return log_or_line(p, t);
    }
    const int64_t rest = p->total_num_steps - warmup;
    const double left = (double)(p->total_num_steps - t) / (double)(rest > 1 ? rest : 1);
    return left > 0 ? left : 0;
}

static double warmup_lr(const ds_schedule_params *p, double optimizer_lr, int64_t t)
{
    const double high = isnan(p->warmup_max_lr) ? optimizer_lr : p->warmup_max_lr;
    if (t < 0) {
        return p->warmup_min_lr;
    }
    const double gamma =
        p->kind == DS_SCHEDULE_WARMUP_DECAY ? decay_factor(p, t) : log_or_line(p, t);
    return p->warmup_min_lr + (high - p->warmup_min_lr) * gamma;
}

static double cosine_ratio(const ds_schedule_params *p, int64_t t)
{
    const int64_t warmup = p->warmup_num_steps > 2 ? p->warmup_num_steps : 2;
    if (t < 0) {
        return 0.0;
    }
    if (t < warmup) {
        return p->warmup_min_ratio + (1.0 - p->warmup_min_ratio) * log_or_line(p, t);
    }
    const int64_t rest = p->total_num_steps - warmup;
    double part = (double)(t - warmup + 1) / (double)(rest > 1 ? rest : 1);
    part = part < 1 ? part : 1;
    const double pi = 3.14159265358979323846;
    const double ratio = (1 + cos(pi * part)) / 2;
    const double value = p->cos_min_ratio + (1.0 - p->cos_min_ratio) * ratio;
    return value > 0 ? value : 0;
}

/* Where in the cycle: 0 at both ends, 1 at the top. */
static double cycle_scale(const ds_schedule_params *p, int64_t t)
{
    const double first = p->cycle_first_step_size;
    const double second = isnan(p->cycle_second_step_size) ? first : p->cycle_second_step_size;
    const double whole = first + second;
    const double ratio = first / whole;
    const double b = (double)(t + 1);
    const double x = 1.0 + b / whole - floor(1 + b / whole);
    const bool rises = x <= ratio;
    const int64_t second_stairs =
        p->cycle_second_stair_count < 0 ? p->cycle_first_stair_count : p->cycle_second_stair_count;
    const int64_t stairs = rises ? p->cycle_first_stair_count : second_stairs;
    if (stairs > 0) {
        const double c = fmod(b, whole);
        const double count = (double)stairs;
        const double position = c <= first ? c * count / first : (whole - c) * count / second;
        return floor(position) / count;
    }
    return rises ? x / ratio : (x - 1) / (ratio - 1);
}

static ds_schedule_point cycle_point(const ds_schedule_params *p, int64_t t)
{
    const double first = p->cycle_first_step_size;
    const double second = isnan(p->cycle_second_step_size) ? first : p->cycle_second_step_size;
    ds_schedule_point point = {.has_momentum = p->cycle_momentum};
    if (t < 0) {
        point.lr = p->cycle_min_lr;
        point.momentum = p->cycle_min_mom;
        return point;
    }
    if ((double)t < first + second) {
        const double scale = cycle_scale(p, t);
        point.lr = p->cycle_min_lr + (p->cycle_max_lr - p->cycle_min_lr) * scale;
        point.momentum = p->cycle_max_mom - (p->cycle_max_mom - p->cycle_min_mom) * scale;
        return point;
    }
    const double n = (double)t - (first + second) + 1;
    const double interval = p->decay_step_size != 0 ? n / p->decay_step_size : 0;
    point.lr = p->cycle_min_lr / (1 + p->decay_lr_rate * interval);
    point.momentum = p->cycle_max_mom * (1 + p->decay_mom_rate * interval);
    return point;
}

static double range_lr(const ds_schedule_params *p, int64_t t)
{
    double k = (double)(t + 1) / (double)p->lr_range_test_step_size;
    k = p->lr_range_test_staircase ? floor(k) : k;
    return p->lr_range_test_min_lr * (1 + p->lr_range_test_step_rate * k);
}

ds_schedule_point ds_schedule_at(const ds_schedule_params *p, double optimizer_lr, int64_t updates)
{
    const int64_t t = p->last_batch_iteration + updates;
    const ds_schedule_point unchanged = {.lr = optimizer_lr};
    if (updates == 0 && p->last_batch_iteration != -1) {
        return unchanged; /* a constructor that goes on sets nothing */
    }
    switch (p->kind) {
    case DS_SCHEDULE_WARMUP:
    case DS_SCHEDULE_WARMUP_DECAY:
        return (ds_schedule_point){.lr = warmup_lr(p, optimizer_lr, t)};
    case DS_SCHEDULE_WARMUP_COSINE:
        return (ds_schedule_point){.lr = optimizer_lr * cosine_ratio(p, t)};
    case DS_SCHEDULE_ONE_CYCLE:
        return cycle_point(p, t);
    case DS_SCHEDULE_LR_RANGE_TEST:
        return (ds_schedule_point){.lr = range_lr(p, t)};
    case DS_SCHEDULE_NONE:
        break;
    default:
        return (ds_schedule_point){.lr = dsi_schedule_trainer_lr(p, optimizer_lr, t + 1)};
    }
    return unchanged;
}

ds_status dsi_schedule_need(ds_ctx *ctx, bool holds, const char *key, const char *expected,
                            double found)
{
    return holds ? DS_OK
                 : ds_fail(ctx, DS_ERR_CONFIG, "scheduler.params.%s: expected %s, found %g", key,
                           expected, found);
}

bool dsi_schedule_sane(double x)
{
    return fabs(x) <= 1e30; /* false for NAN */
}

static ds_status check_warmup(ds_ctx *ctx, const ds_schedule_params *p)
{
    const bool has_end = p->kind != DS_SCHEDULE_WARMUP;
    DS_TRY(dsi_schedule_need(ctx, p->warmup_num_steps >= 1, "warmup_num_steps",
                             "a whole number of at least 1", (double)p->warmup_num_steps));
    DS_TRY(dsi_schedule_need(ctx, !has_end || p->total_num_steps >= 1, "total_num_steps",
                             "a whole number of at least 1", (double)p->total_num_steps));
    if (p->kind == DS_SCHEDULE_WARMUP_COSINE) {
        DS_TRY(dsi_schedule_need(ctx, dsi_schedule_sane(p->warmup_min_ratio), "warmup_min_ratio",
                                 "a number up to 1e30", p->warmup_min_ratio));
        return dsi_schedule_need(ctx, dsi_schedule_sane(p->cos_min_ratio), "cos_min_ratio",
                                 "a number up to 1e30", p->cos_min_ratio);
    }
    DS_TRY(dsi_schedule_need(ctx, dsi_schedule_sane(p->warmup_min_lr), "warmup_min_lr",
                             "a number up to 1e30", p->warmup_min_lr));
    return dsi_schedule_need(ctx, isnan(p->warmup_max_lr) || dsi_schedule_sane(p->warmup_max_lr),
                             "warmup_max_lr", "a number up to 1e30", p->warmup_max_lr);
}

static ds_status check_cycle(ds_ctx *ctx, const ds_schedule_params *p)
{
    const double second = p->cycle_second_step_size;
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"cycle_min_lr", p->cycle_min_lr},
                   {"cycle_max_lr", p->cycle_max_lr},
                   {"cycle_min_mom", p->cycle_min_mom},
                   {"cycle_max_mom", p->cycle_max_mom},
                   {"decay_mom_rate", p->decay_mom_rate}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; ++i) {
        DS_TRY(dsi_schedule_need(ctx, dsi_schedule_sane(numbers[i].value), numbers[i].key,
                                 "a number up to 1e30", numbers[i].value));
    }
    DS_TRY(dsi_schedule_need(
        ctx, p->cycle_first_step_size >= 1e-30 && dsi_schedule_sane(p->cycle_first_step_size),
        "cycle_first_step_size", "a number above 0", p->cycle_first_step_size));
    DS_TRY(dsi_schedule_need(ctx, isnan(second) || (second >= 0 && dsi_schedule_sane(second)),
                             "cycle_second_step_size", "a number of at least 0", second));
    /* a decay below 0 would divide by 0 on its way */
    DS_TRY(dsi_schedule_need(ctx, p->decay_lr_rate >= 0 && dsi_schedule_sane(p->decay_lr_rate),
                             "decay_lr_rate", "a number of at least 0", p->decay_lr_rate));
    const double step = p->decay_step_size;
    return dsi_schedule_need(ctx, step == 0 || (step >= 1e-30 && dsi_schedule_sane(step)),
                             "decay_step_size", "a number of at least 0", step);
}

ds_status ds_schedule_check(ds_ctx *ctx, const ds_schedule_params *p)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_schedule_params", p));
    DS_TRY(dsi_schedule_need(
        ctx, p->last_batch_iteration >= -1 && p->last_batch_iteration <= MOST_UPDATES,
        "last_batch_iteration", "a whole number from -1 to 2^53", (double)p->last_batch_iteration));
    switch (p->kind) {
    case DS_SCHEDULE_WARMUP:
    case DS_SCHEDULE_WARMUP_DECAY:
    case DS_SCHEDULE_WARMUP_COSINE:
        return check_warmup(ctx, p);
    case DS_SCHEDULE_ONE_CYCLE:
        return check_cycle(ctx, p);
    case DS_SCHEDULE_LR_RANGE_TEST:
        DS_TRY(dsi_schedule_need(ctx, dsi_schedule_sane(p->lr_range_test_min_lr),
                                 "lr_range_test_min_lr", "a number up to 1e30",
                                 p->lr_range_test_min_lr));
        DS_TRY(dsi_schedule_need(ctx, dsi_schedule_sane(p->lr_range_test_step_rate),
                                 "lr_range_test_step_rate", "a number up to 1e30",
                                 p->lr_range_test_step_rate));
        return dsi_schedule_need(ctx, p->lr_range_test_step_size >= 1, "lr_range_test_step_size",
                                 "a whole number of at least 1",
                                 (double)p->lr_range_test_step_size);
    case DS_SCHEDULE_NONE:
        return DS_OK;
    default:
        break;
    }
    if (p->kind >= DS_SCHEDULE_LINEAR && p->kind < DS_SCHEDULE_KIND_COUNT) {
        return dsi_schedule_trainer_check(ctx, p);
    }
    return ds_fail(ctx, DS_ERR_CONFIG, "expected a schedule, found kind %d", (int)p->kind);
}
