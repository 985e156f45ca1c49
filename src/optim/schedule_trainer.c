/* SPDX-License-Identifier: Apache-2.0 */
/* The learning-rate schedules of Hugging Face's Trainer: each is a factor of the optimizer's rate.
 * See schedule_trainer.h; formulas: docs/internals/schedule.md.
 *
 * Formulas keep the order of operations of transformers (optimization.py), so that results agree to
 * the last bits. Where transformers divides by zero (a polynomial whose warm-up is the whole run,
 * one update past its end) the schedule stays at its end.
 */
#include "optim/schedule_trainer.h"

#include <math.h>

#define PI 3.14159265358979323846

static double at_least_one(int64_t n)
{
    return n > 1 ? (double)n : 1.0;
}

/* Progress of what follows the warm-up, 1 at the end of the run. */
static double progress_of(const ds_schedule_params *p, int64_t step)
{
    return (double)(step - p->warmup_num_steps) /
           at_least_one(p->total_num_steps - p->warmup_num_steps);
}

static double linear(const ds_schedule_params *p, int64_t step)
{
    const double left = (double)(p->total_num_steps - step) /
                        at_least_one(p->total_num_steps - p->warmup_num_steps);
    return left > 0 ? left : 0;
}

/* From 1 to `least` and back, num_cycles times. */
static double cosine(const ds_schedule_params *p, double progress, double least)
{
    const double wave = 0.5 * (1.0 + cos(PI * p->num_cycles * 2.0 * progress));
    const double factor = wave * (1 - least) + least;
    return factor > 0 ? factor : 0;
}

static double restarts(const ds_schedule_params *p, double progress)
{
    if (progress >= 1.0) {
        return 0;
    }
    return 0.5 * (1.0 + cos(PI * fmod(p->num_cycles * progress, 1.0)));
}

static double polynomial(const ds_schedule_params *p, double lr, int64_t step)
{
    const int64_t rest = p->total_num_steps - p->warmup_num_steps;
    if (step > p->total_num_steps || rest <= 0) {
        return p->lr_end / lr;
    }
    const double left = 1 - (double)(step - p->warmup_num_steps) / (double)rest;
    return ((lr - p->lr_end) * pow(left, p->power) + p->lr_end) / lr;
}

static double inverse_sqrt(const ds_schedule_params *p, int64_t step)
{
    const int64_t usual = p->warmup_num_steps > 0 ? p->warmup_num_steps : 10000;
    const int64_t timescale = p->timescale > 0 ? p->timescale : usual;
    return 1.0 / sqrt((double)(step + timescale - p->warmup_num_steps) / (double)timescale);
}

static double least_rate(const ds_schedule_params *p, double optimizer_lr)
{
    const double lr = isnan(p->default_lr) ? optimizer_lr : p->default_lr;
    return isnan(p->min_lr) ? p->min_lr_rate : p->min_lr / lr;
}

/* Its warm-up starts above 0, and both phases are one update ahead of the others'. */
static double warm_cosine(const ds_schedule_params *p, double least, int64_t step)
{
    const int64_t warmup = p->warmup_num_steps;
    if (step >= warmup) {
        return cosine(p, progress_of(p, step + 1), least);
    }
    if (isnan(p->warmup_lr_rate)) {
        return ((double)step + 1.0) / at_least_one(warmup);
    }
    return p->warmup_lr_rate + (1.0 - p->warmup_lr_rate) * (double)step / at_least_one(warmup - 1);
}

static double above(double factor, double least)
{
    const double value = factor * (1.0 - least) + least;
    return value > 0 ? value : 0;
}

static double stable_warmup(const ds_schedule_params *p, int64_t step)
{
    const double x = (double)step / at_least_one(p->warmup_num_steps);
    const double rise[] = {[DS_RAMP_LINEAR] = x,
                           [DS_RAMP_COSINE] = 0.5 * (1.0 - cos(PI * x)),
                           [DS_RAMP_SQRT] = 1.0 - sqrt(1.0 - x)};
    return above(rise[p->warmup_ramp], p->min_lr_ratio);
}

static double stable_decay(const ds_schedule_params *p, int64_t step)
{
    const int64_t warmup = p->warmup_num_steps;
    const int64_t stable = p->num_stable_steps >= 0
                               ? p->num_stable_steps
                               : p->total_num_steps - warmup - p->num_decay_steps;
    if (step < warmup) {
        return stable_warmup(p, step);
    }
    const int64_t decayed = step - warmup - stable;
    if (decayed < 0) {
        return 1.0;
    }
    if (decayed >= p->num_decay_steps) {
        return p->min_lr_ratio;
    }
    const double x = (double)decayed / at_least_one(p->num_decay_steps);
    const double fall[] = {[DS_RAMP_LINEAR] = 1.0 - x,
                           [DS_RAMP_COSINE] = 0.5 * (1.0 + cos(PI * p->num_cycles * 2.0 * x)),
                           [DS_RAMP_SQRT] = 1.0 - sqrt(x)};
    return above(fall[p->decay_ramp], p->min_lr_ratio);
}

static double factor_of(const ds_schedule_params *p, double optimizer_lr, int64_t step)
{
    const double lr = isnan(p->default_lr) ? optimizer_lr : p->default_lr;
    if (p->kind == DS_SCHEDULE_CONSTANT) {
        return 1.0;
    }
    if (p->kind == DS_SCHEDULE_WARMUP_STABLE_DECAY) {
        return stable_decay(p, step);
    }
    if (p->kind == DS_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR) {
        return warm_cosine(p, least_rate(p, optimizer_lr), step);
    }
    if (step < p->warmup_num_steps) {
        return (double)step / at_least_one(p->warmup_num_steps);
    }
    switch (p->kind) {
    case DS_SCHEDULE_LINEAR:
        return linear(p, step);
    case DS_SCHEDULE_COSINE:
        return cosine(p, progress_of(p, step), 0);
    case DS_SCHEDULE_COSINE_WITH_RESTARTS:
        return restarts(p, progress_of(p, step));
    case DS_SCHEDULE_COSINE_WITH_MIN_LR:
        return cosine(p, progress_of(p, step), least_rate(p, optimizer_lr));
    case DS_SCHEDULE_POLYNOMIAL:
        return polynomial(p, lr, step);
    case DS_SCHEDULE_INVERSE_SQRT:
        return inverse_sqrt(p, step);
    default: /* CONSTANT_WITH_WARMUP */
        return 1.0;
    }
}

double dsi_schedule_trainer_lr(const ds_schedule_params *p, double optimizer_lr, int64_t step)
{
    return optimizer_lr > 0 ? optimizer_lr * factor_of(p, optimizer_lr, step) : 0.0;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static const int64_t most_steps = INT64_C(1) << 53; /* beyond, a count is no longer exact */

static ds_status check_count(ds_ctx *ctx, const char *key, int64_t value, int64_t least)
{
    return dsi_schedule_need(ctx, value >= least && value <= most_steps, key,
                             least == 1 ? "a whole number from 1 to 2^53"
                                        : "a whole number of at least 0, up to 2^53",
                             (double)value);
}

static ds_status check_ratio(ds_ctx *ctx, const char *key, double value)
{
    return dsi_schedule_need(ctx, value >= 0 && dsi_schedule_sane(value), key,
                             "a number of at least 0", value);
}

static ds_status check_least_rate(ds_ctx *ctx, const ds_schedule_params *p)
{
    if (isnan(p->min_lr) == isnan(p->min_lr_rate)) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "scheduler.params: %s needs one of min_lr and min_lr_rate, found %s",
                       ds_schedule_kind_name(p->kind), isnan(p->min_lr) ? "neither" : "both");
    }
    DS_TRY(isnan(p->min_lr) ? check_ratio(ctx, "min_lr_rate", p->min_lr_rate)
                            : check_ratio(ctx, "min_lr", p->min_lr));
    return isnan(p->warmup_lr_rate) ? DS_OK : check_ratio(ctx, "warmup_lr_rate", p->warmup_lr_rate);
}

static ds_status check_stable_decay(ds_ctx *ctx, const ds_schedule_params *p)
{
    DS_TRY(check_count(ctx, "num_decay_steps", p->num_decay_steps, 0));
    DS_TRY(dsi_schedule_need(ctx, p->num_stable_steps >= -1 && p->num_stable_steps <= most_steps,
                             "num_stable_steps", "a whole number of at least 0, up to 2^53",
                             (double)p->num_stable_steps));
    DS_TRY(dsi_schedule_need(ctx, p->warmup_ramp <= DS_RAMP_SQRT && p->decay_ramp <= DS_RAMP_SQRT,
                             "warmup_type and decay_type", "linear, cosine or 1-sqrt", NAN));
    return check_ratio(ctx, "min_lr_ratio", p->min_lr_ratio);
}

ds_status dsi_schedule_trainer_check(ds_ctx *ctx, const ds_schedule_params *p)
{
    const bool endless = p->kind == DS_SCHEDULE_CONSTANT ||
                         p->kind == DS_SCHEDULE_CONSTANT_WITH_WARMUP ||
                         p->kind == DS_SCHEDULE_INVERSE_SQRT;
    DS_TRY(check_count(ctx, "warmup_num_steps", p->warmup_num_steps, 0));
    DS_TRY(endless ? DS_OK : check_count(ctx, "total_num_steps", p->total_num_steps, 1));
    DS_TRY(dsi_schedule_need(ctx, p->num_cycles >= 0 && p->num_cycles <= 1e9, "num_cycles",
                             "a number from 0 to 1e9", p->num_cycles));
    DS_TRY(dsi_schedule_need(ctx, isnan(p->default_lr) || p->default_lr >= 1e-30, "default_lr",
                             "a number above 0", p->default_lr));
    switch (p->kind) {
    case DS_SCHEDULE_COSINE_WITH_MIN_LR:
    case DS_SCHEDULE_COSINE_WARMUP_WITH_MIN_LR:
        return check_least_rate(ctx, p);
    case DS_SCHEDULE_POLYNOMIAL:
        DS_TRY(check_ratio(ctx, "lr_end", p->lr_end));
        return dsi_schedule_need(ctx, p->power >= 0 && p->power <= 1e9, "power",
                                 "a number from 0 to 1e9", p->power);
    case DS_SCHEDULE_INVERSE_SQRT:
        return check_count(ctx, "timescale", p->timescale, 0);
    case DS_SCHEDULE_WARMUP_STABLE_DECAY:
        return check_stable_decay(ctx, p);
    default:
        return DS_OK;
    }
}
