/* SPDX-License-Identifier: Apache-2.0 */
/* What a preference loss needs around the steps: the reference's log-probabilities of a data set,
 * the inputs of a batch, what is logged. See deepspeed/preference_engine.h. */
#include "op/ops.h"
#include "train/engine.h"

#include <deepspeed/preference_engine.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 64 /* the most that a sum takes */ };

static const ds_preference *loss_of(const ds_engine *engine)
{
    const ds_preference *p = &engine->spec.train.preference;
    return p->loss != DS_PREFERENCE_NONE ? p : NULL;
}

static ds_status need_loss(const ds_engine *engine, const char *call)
{
    return loss_of(engine) != NULL
               ? DS_OK
               : ds_fail(engine->ctx, DS_ERR_STATE,
                         "%s is not allowed: the engine has no preference loss", call);
}

/* ---- sums ------------------------------------------------------------------------------------ */

ds_status dsi_engine_add_preference(ds_engine *engine, bool evaluated)
{
    ds_preference_sums *sums = &engine->preference[evaluated];
    double *const fields[DSI_PREFERENCE_SUMS] = {&sums->rewards_chosen,
                                                 &sums->rewards_rejected,
                                                 &sums->accuracies,
                                                 &sums->margins,
                                                 &sums->logps_chosen,
                                                 &sums->logps_rejected,
                                                 &sums->n_chosen,
                                                 &sums->n_rejected,
                                                 &sums->nll,
                                                 &sums->log_odds,
                                                 &sums->kl};
    ds_tensor tensor;
    if (loss_of(engine) == NULL) {
        return DS_OK;
    }
    DS_TRY(dsi_exec_output(engine->exec, evaluated ? engine->eval_id : engine->train_id,
                           "preference_sums", &tensor));
    for (size_t i = 0; i < DSI_PREFERENCE_SUMS; ++i) {
        *fields[i] += (double)((const float *)tensor.data)[i];
    }
    return DS_OK;
}

ds_preference_sums ds_engine_preference_sums(ds_engine *engine, bool evaluated)
{
    const ds_preference_sums sums = engine->preference[evaluated];
    engine->preference[evaluated] = (ds_preference_sums){0};
    return sums;
}

/* ---- checkpoints ------------------------------------------------------------------------------
 */

void dsi_engine_print_preference(const ds_engine *engine, char text[DSI_PREFERENCE_BYTES])
{
    const ds_preference *p = loss_of(engine);
    text[0] = '\0';
    if (p != NULL) {
        (void)snprintf(text, DSI_PREFERENCE_BYTES,
                       "{\"loss\": \"%s\", \"reference_free\": %s, \"beta\": %.17g, "
                       "\"label_smoothing\": %.17g, \"gamma\": %.17g, \"center\": %.17g, "
                       "\"desirable_weight\": %.17g, \"undesirable_weight\": %.17g}",
                       ds_preference_loss_name(p->loss), p->reference_free ? "true" : "false",
                       p->beta, p->label_smoothing, p->gamma, p->center, p->desirable_weight,
                       p->undesirable_weight);
    }
}

ds_status dsi_engine_check_preference(const ds_engine *engine, const ds_checkpoint *ckpt)
{
    const char *saved = ds_checkpoint_state(ckpt, "preference");
    char own[DSI_PREFERENCE_BYTES];
    dsi_engine_print_preference(engine, own);
    if (strcmp(saved != NULL ? saved : "", own) == 0) {
        return DS_OK;
    }
    return ds_fail(engine->ctx, DS_ERR_CONFIG,
                   "%s was trained with the loss %s, this run has %s; resume with the same, or "
                   "begin with the weights alone (a model folder)",
                   ds_checkpoint_get_info(ckpt)->path, saved != NULL ? saved : "cross entropy",
                   own[0] != '\0' ? own : "cross entropy");
}

/* ---- batches --------------------------------------------------------------------------------- */

static void add_input(ds_preference_inputs *inputs, const char *name, ds_tensor tensor)
{
    if (tensor.data != NULL) {
        inputs->tensors[inputs->batch.n_tensors++] = (ds_named_tensor){name, tensor};
    }
}

static void list_inputs(const ds_preference *p, const ds_loader_batch *rows,
                        ds_preference_inputs *inputs)
{
    const ds_tensor kl = {&inputs->kl, {DS_DTYPE_F32, {0}}};
    inputs->batch = (ds_batch){inputs->tensors, 0};
    add_input(inputs, "input_ids", rows->input_ids);
    add_input(inputs, "targets", rows->targets);
    add_input(inputs, "positions", rows->positions);
    add_input(inputs, "first", rows->first);
    add_input(inputs, "ref_logps", rows->preference->ref_logps);
    add_input(inputs, "labels", rows->preference->labels);
    add_input(inputs, "completion", rows->preference->completion);
    add_input(inputs, "kl", p->loss == DS_PREFERENCE_KTO ? kl : (ds_tensor){0});
}

/* The log-probabilities of rows by the weights as they are; they are not counted. */
static ds_status evaluate(ds_engine *engine, const ds_loader_batch *rows, const float **logps_out)
{
    const ds_preference_sums before = engine->preference[true];
    ds_preference_inputs inputs = {.kl = 0.0f};
    ds_tensor logps;
    list_inputs(loss_of(engine), rows, &inputs);
    DS_TRY(ds_engine_eval_batch(engine, &inputs.batch, NULL, NULL));
    engine->preference[true] = before;
    DS_TRY(ds_engine_eval_output(engine, "logps", &logps));
    *logps_out = logps.data;
    return DS_OK;
}

/* Padding has no counted target. */
static bool has_target(const ds_loader_batch *rows, int64_t row)
{
    const int64_t length = rows->targets.meta.shape.dims[1];
    const int32_t *targets = (const int32_t *)rows->targets.data + row * length;
    for (int64_t i = 0; i < length; ++i) {
        if (targets[i] != -100) {
            return true;
        }
    }
    return false;
}

/* z of KTO before it is cut at 0: mean log-ratio of mismatched rows, of all ranks. */
static ds_status divergence(ds_engine *engine, const ds_loader_batch *rows, float *kl_out)
{
    const float *ref = rows->preference->ref_logps.data;
    const float *logps = NULL;
    double sums[2] = {0.0, 0.0};
    DS_TRY(evaluate(engine, rows, &logps));
    for (int64_t i = 0; i < rows->targets.meta.shape.dims[0]; ++i) {
        if (has_target(rows, i)) {
            sums[0] += (double)logps[i] - (double)ref[i];
            sums[1] += 1.0;
        }
    }
    DS_TRY(ds_comm_sum(engine->data_comm, sums, 2));
    *kl_out = sums[1] > 0.0 ? (float)(sums[0] / sums[1]) : 0.0f;
    return DS_OK;
}

ds_status ds_engine_preference_batch(ds_engine *engine, const ds_loader_batch *rows,
                                     ds_preference_inputs *inputs)
{
    DS_TRY(need_loss(engine, "ds_engine_preference_batch"));
    if (rows->preference == NULL) {
        return ds_fail(engine->ctx, DS_ERR_ARG,
                       "a batch without preferences for the loss \"%s\": give the loader the loss, "
                       "too",
                       ds_preference_loss_name(loss_of(engine)->loss));
    }
    *inputs = (ds_preference_inputs){.kl = 0.0f};
    if (rows->preference->mismatched != NULL) {
        DS_TRY(divergence(engine, rows->preference->mismatched, &inputs->kl));
    }
    list_inputs(loss_of(engine), rows, inputs);
    return DS_OK;
}

/* ---- the reference --------------------------------------------------------------------------- */

/* All draws of the data, each evaluated by one of the ranks: the others leave it 0. */
static ds_status evaluate_all(ds_engine *engine, ds_loader *loader, uint64_t n_draws, float *table)
{
    const uint64_t batch = (uint64_t)engine->spec.train.batch;
    const uint64_t ranks = ds_comm_size(engine->data_comm);
    const bool paired = ds_preference_is_paired(loss_of(engine)->loss);
    bool done = false;
    for (uint64_t first = batch * ds_comm_rank(engine->data_comm);; first += batch * ranks) {
        const float *logps = NULL;
        ds_loader_batch rows;
        DS_TRY(ds_loader_next_once(loader, &rows, &done));
        if (done) {
            return DS_OK;
        }
        DS_TRY(evaluate(engine, &rows, &logps));
        const uint64_t n = first < n_draws ? n_draws - first : 0;
        for (uint64_t i = 0; i < batch && i < n; ++i) {
            table[2 * (first + i)] = logps[i];
            table[2 * (first + i) + 1] = paired ? logps[batch + i] : 0.0f;
        }
        if (rows.preference->mismatched == NULL) {
            continue;
        }
        DS_TRY(evaluate(engine, rows.preference->mismatched, &logps));
        for (uint64_t i = 0; i < batch && i < n; ++i) {
            table[2 * (first + i) + 1] = logps[i];
        }
    }
}

/* Of each number all ranks but one have 0: the sum is exact. */
static ds_status share(ds_engine *engine, float *table, uint64_t n)
{
    double piece[PIECE];
    for (uint64_t at = 0; at < n && ds_comm_size(engine->data_comm) > 1; at += PIECE) {
        const uint64_t count = n - at < PIECE ? n - at : PIECE;
        for (uint64_t i = 0; i < count; ++i) {
            piece[i] = (double)table[at + i];
        }
        DS_TRY(ds_comm_sum(engine->data_comm, piece, (uint32_t)count));
        for (uint64_t i = 0; i < count; ++i) {
            table[at + i] = (float)piece[i];
        }
    }
    return DS_OK;
}

ds_status ds_engine_reference(ds_engine *engine, ds_dataset *dataset)
{
    DS_TRY(need_loss(engine, "ds_engine_reference"));
    const ds_preference *p = loss_of(engine);
    const uint64_t n = ds_dataset_n_draws(dataset);
    const ds_loader_params params = {.batch = engine->spec.train.batch,
                                     .seq_length = engine->spec.train.seq_length,
                                     .n_vocab = ds_model_get_info(engine->model)->vocab_size,
                                     .rank = ds_comm_rank(engine->data_comm),
                                     .n_ranks = ds_comm_size(engine->data_comm),
                                     .preference = p};
    ds_loader *loader = NULL;
    if (!ds_preference_has_reference(p)) {
        return DS_OK;
    }
    DS_TRY(ds_loader_create(engine->ctx, dataset, &params, &loader));
    float *table = calloc((size_t)(2 * n) + 1, sizeof *table);
    ds_status status = table != NULL ? evaluate_all(engine, loader, n, table)
                                     : ds_fail(engine->ctx, DS_ERR_NOMEM,
                                               "no memory for the reference's %llu numbers",
                                               (unsigned long long)(2 * n));
    status = status < 0 ? status : share(engine, table, 2 * n);
    status = status < 0 ? status : ds_dataset_set_reference(dataset, table, (size_t)(2 * n));
    free(table);
    ds_loader_destroy(&loader);
    return status;
}
