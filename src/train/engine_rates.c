/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of an update: rate, momentum, decay, bias correction. See engine.h. */
#include "op/ops.h"
#include "train/engine.h"

#include <math.h>

int64_t dsi_engine_updates(const ds_engine *engine)
{
    return (int64_t)(engine->global_steps - engine->skipped_steps);
}

/* Of Adafactor with relative_step, by the number of the update. */
static double relative_rate(const dsi_adafactor_spec *a, int64_t update)
{
    const double t = (double)update, most = a->warms_up ? 1e-6 * t : 1e-2;
    return fmin(most, 1.0 / sqrt(t));
}

static void current_rates(const ds_engine *engine, int group, double *lr, double *momentum)
{
    const dsi_engine_spec *spec = &engine->spec;
    const bool other = group == DSI_GROUP_NO_DECAY && spec->has_groups;
    const ds_schedule_point point = ds_schedule_at(
        other ? &spec->schedule_no_decay : &spec->schedule, spec->lr, dsi_engine_updates(engine));
    *lr = spec->train.adafactor.relative
              ? relative_rate(&spec->train.adafactor, dsi_engine_updates(engine) + 1)
              : point.lr;
    *momentum = point.has_momentum ? point.momentum : engine->spec.beta1;
    if (engine->forced_lr >= 0.0) {
        *lr = engine->forced_lr;
    }
}

double ds_engine_lr(const ds_engine *engine)
{
    double lr = 0.0;
    double momentum = 0.0;
    current_rates(engine, DSI_GROUP_DECAY, &lr, &momentum);
    return lr;
}

double ds_engine_momentum(const ds_engine *engine)
{
    double lr = 0.0;
    double momentum = 0.0;
    current_rates(engine, DSI_GROUP_DECAY, &lr, &momentum);
    return momentum;
}

/* Of the matrices of Muon: the schedule by their own rate. */
static ds_status write_muon(ds_engine *engine)
{
    const dsi_engine_spec *spec = &engine->spec;
    for (int group = 0; group < 2; ++group) {
        const bool other = group == DSI_GROUP_NO_DECAY && spec->has_groups;
        const ds_schedule_point point =
            ds_schedule_at(other ? &spec->schedule_no_decay : &spec->schedule, spec->muon_lr,
                           dsi_engine_updates(engine));
        float hyper[DSI_HYPER_SPARE + 1] = {0};
        hyper[DSI_HYPER_LR] = (float)(engine->forced_lr >= 0.0 ? engine->forced_lr : point.lr);
        hyper[DSI_HYPER_BETA1] = (float)spec->muon_momentum;
        hyper[DSI_HYPER_WEIGHT_DECAY] =
            group == DSI_GROUP_DECAY || spec->decay_all ? (float)spec->weight_decay : 0.0f;
        DS_TRY(
            dsi_exec_write_known(engine->exec, engine->own.muon_hyper[group], hyper, sizeof hyper));
    }
    return DS_OK;
}

/* Schedule-free: how much of update t goes into the average, t^r·lr^p over the sum of those so far,
 * with the largest rate so far; the rate of t. All updates are counted anew, so that a run that
 * goes on needs nothing but their number. 0 for other optimizers. */
static double average_part(const ds_engine *engine, int64_t update, double *lr)
{
    const dsi_schedule_free_spec *s = &engine->spec.train.schedule_free;
    const double warmup = (double)s->warmup_steps;
    double sum = 0.0, weight = 0.0;
    if (!s->on) {
        return 0.0;
    }
    for (int64_t k = 1; k <= update; ++k) {
        if (k > s->warmup_steps && s->average_power == 0.0) { /* all the rest weigh alike */
            weight = pow(*lr, s->rate_power);
            sum += weight * (double)(update - k + 1);
            break;
        }
        const double rate = *lr * (k < s->warmup_steps ? (double)k / warmup : 1.0);
        weight = pow((double)k, s->average_power) * pow(rate, s->rate_power);
        sum += weight;
    }
    *lr *= update < s->warmup_steps ? (double)update / warmup : 1.0;
    return sum > 0.0 ? weight / sum : 0.0;
}

/* AdEMAMix, of update t: alpha grows linearly, beta3 from beta1 on so that the steps in which the
 * slow moment halves grow linearly (the paper's appendix A.1). */
static void write_ademamix(const dsi_ademamix_spec *a, double beta1, double t, float *hyper)
{
    const double from = log(beta1), to = log(a->beta3);
    const double part = a->t_beta3 > 0 ? t / (double)a->t_beta3 : 1.0;
    const double beta3 = part < 1.0 ? exp(from * to / ((1.0 - part) * to + part * from)) : a->beta3;
    const double grown = a->t_alpha > 0 ? t * a->alpha / (double)a->t_alpha : a->alpha;
    hyper[DSI_HYPER_BETA3] = (float)fmin(beta3, a->beta3);
    hyper[DSI_HYPER_ALPHA] = (float)fmin(grown, a->alpha);
}

ds_status dsi_engine_write_hyper(ds_engine *engine, const ds_cell cells[2], int64_t update)
{
    const dsi_engine_spec *spec = &engine->spec;
    const double t = (double)update;
    for (int group = 0; group < 2; ++group) {
        double lr = 0.0;
        double beta1 = 0.0;
        current_rates(engine, group, &lr, &beta1);
        float hyper[DSI_HYPER_SPARE + 1] = {0};
        hyper[DSI_HYPER_BETA1] = (float)beta1;
        hyper[DSI_HYPER_BETA2] =
            (float)(spec->train.adafactor.on ? 1.0 - pow(t, spec->train.adafactor.decay_rate)
                                             : spec->beta2);
        hyper[DSI_HYPER_WEIGHT_DECAY] =
            group == DSI_GROUP_DECAY || spec->decay_all ? (float)spec->weight_decay : 0.0f;
        /* of the rounded betas, which the kernels use: 1 - 0.999 is off by 1e-5 of itself in fp32
         */
        const double b1 = (double)hyper[DSI_HYPER_BETA1];
        const double b2 = (double)hyper[DSI_HYPER_BETA2];
        hyper[DSI_HYPER_BIAS1] = spec->bias_correction ? (float)(1.0 - pow(b1, t)) : 1.0f;
        hyper[DSI_HYPER_BIAS2] = spec->bias_correction ? (float)sqrt(1.0 - pow(b2, t)) : 1.0f;
        hyper[DSI_HYPER_SPARE] = (float)average_part(engine, update, &lr);
        hyper[DSI_HYPER_LR] = (float)lr;
        hyper[DSI_HYPER_FIRST] = dsi_engine_updates(engine) == 0 ? 1.0f : 0.0f;
        if (spec->train.ademamix.on) {
            write_ademamix(&spec->train.ademamix, beta1, t, hyper);
        }
        DS_TRY(dsi_exec_write_known(engine->exec, cells[group], hyper, sizeof hyper));
    }
    return spec->train.muon.on ? write_muon(engine) : DS_OK;
}
