/* SPDX-License-Identifier: Apache-2.0 */
/* The mean over the losses of a step: of the means of its micro-batches (DeepSpeed), or over all
 * its counted targets (newer versions of Hugging Face's Trainer). Called by engine_run.c.
 *
 * Over targets: with n_i counted targets and mean loss l_i in each micro-batch of each rank and
 * N = Σ n_i the gradient is Σ n_i ∇l_i / N. N is known behind the last backward only, so a
 * micro-batch is seeded by n_i / P, P a power of two so that the quotient is exact, and what
 * updates are multiplied by besides the loss scale's inverse is P · ranks / N: the ranks with
 * samples of their own, since the reduction takes the mean over them. Nothing depends on the stage,
 * on when gradients are reduced or on which rank had which targets but the order of the sums, which
 * is LAW 4b's.
 *
 * Invariant: step_targets is N of the micro-batches behind backward, the one in it included; the
 * same on all ranks.
 */
#include "train/engine_pipe.h"

#include <math.h>
#include <string.h>

/* At least as large as any N / ranks of the usual models. */
static double unit(const dsi_train_spec *t)
{
    int exponent = 0;
    (void)frexp((double)t->batch * (double)t->seq_length * (double)t->accumulation, &exponent);
    return ldexp(1.0, exponent);
}

ds_status dsi_engine_check_average(const ds_engine *engine)
{
    const dsi_engine_spec *s = &engine->spec;
    const bool seeded = s->zero.quantized.errors && s->zero.quantized.seeded;
    const char *against = s->train.zenflow.on               ? "zero_optimization.zenflow"
                          : s->zero.sum                     ? "gradient_allreduce_op \"sum\""
                          : s->train.n_gradient_outputs > 0 ? "gradient_outputs"
                          : seeded ? "zero_optimization.zeropp_loco_param and fp16, whose seed is "
                                     "the unit of what was lost"
                                   : NULL;
    bool counts = false;
    if (s->average != DS_AVERAGE_TARGETS) {
        return DS_OK;
    }
    if (engine->pipe != NULL && !dsi_pipe_has_loss(engine->pipe)) {
        counts = true; /* the last stage has it, or says so */
    }
    for (uint32_t i = 0; i < engine->train_plan->n_outputs; ++i) {
        counts = counts || strcmp(engine->train_plan->outputs[i].name, "count") == 0;
    }
    if (against != NULL) {
        return ds_fail(engine->ctx, DS_ERR_CONFIG,
                       "a loss averaged over targets is not built with %s; change one of them",
                       against);
    }
    return counts && engine->own.loss_seed != DS_NONE
               ? DS_OK
               : ds_fail(engine->ctx, DS_ERR_CONFIG,
                         "a loss averaged over targets needs the outputs \"loss\" and \"count\" of "
                         "the model; average over micro-batches, or declare them");
}

ds_status dsi_engine_add_targets(ds_engine *engine)
{
    double n = 0.0;
    if (engine->spec.average != DS_AVERAGE_TARGETS) {
        return DS_OK;
    }
    DS_TRY(dsi_exec_real(engine->exec, engine->train_id, "count", &engine->count));
    n = engine->count;
    if (engine->pipe == NULL && engine->micro_step == 0) {
        engine->step_targets = 0.0;
    }
    DS_TRY(ds_comm_sum(engine->data_comm, &n, 1));
    engine->step_targets += n;
    return DS_OK;
}

double dsi_engine_loss_seed(const ds_engine *engine)
{
    const dsi_train_spec *t = &engine->spec.train;
    const double scale = engine->spec.loss_scale.scale;
    return engine->spec.average == DS_AVERAGE_TARGETS ? scale * (engine->count / unit(t))
                                                      : scale / (double)t->accumulation;
}

double dsi_engine_inverse_scale(const ds_engine *engine)
{
    const double inverse = 1.0 / engine->spec.loss_scale.scale;
    if (engine->spec.average != DS_AVERAGE_TARGETS || engine->step_targets <= 0.0) {
        return inverse;
    }
    return inverse * unit(&engine->spec.train) *
           (double)dsi_mesh_data_size(&engine->spec.zero.mesh) / engine->step_targets;
}
