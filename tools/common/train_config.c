/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of a run: the file's, or the default; resolved for flags, model and data.
 * Called by train_setup.c, for a run and for ds_config check alike. */
#include "accel/accel.h"
#include "base/machine_memory.h"
#include "comm/comm.h"
#include "common/default_config.h"
#include "common/train.h"
#include "compile/run_spec.h"
#include "config/config_values.h"

#include <deepspeed/plan.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

ds_trainer_values train_trainer_values(const train_options *o, int64_t hidden, uint64_t steps)
{
    ds_trainer_values v = o->trainer;
    v.fill_sections = true;
    if (hidden > 0) {
        v.hidden_size = ds_known((double)hidden);
    }
    if (o->fp16_given) {
        v.fp16 = ds_known(o->fp16);
    }
    if (o->bf16_given) {
        v.bf16 = ds_known(o->bf16);
    }
    if (steps > 0) {
        v.total_steps = ds_known((double)steps);
    }
    return v;
}

static ds_trainer_values trainer_values(const train_run *run)
{
    return train_trainer_values(run->options,
                                run->model != NULL ? ds_model_get_info(run->model)->hidden_size : 0,
                                run->total_steps);
}

ds_status train_config_open(train_run *run)
{
    const train_options *o = run->options;
    const ds_config_params params = {.allow_unknown_keys = o->allow_unknown_keys,
                                     .strict = o->strict};
    if (o->deepspeed_config != NULL) {
        return ds_config_load_file(run->ctx, o->deepspeed_config, &params, &run->config);
    }
    const ds_trainer_values v = trainer_values(run);
    default_config made = {.n_ranks = run->n_ranks, .seq_length = run->seq_length, .trainer = &v};
    default_config_make(&made);
    if (ds_comm_rank(run->comm) == 0) {
        ds_log(run->ctx, DS_LOG_JOB, "%s", made.said);
    }
    return ds_config_load_text(run->ctx, "the default configuration", made.text, strlen(made.text),
                               &params, &run->config);
}

/* Steps for a schedule that needs them before they are known: --epochs. */
static ds_maybe steps_to_come(const train_run *run)
{
    const ds_config_item *total = ds_config_find(run->config, "scheduler.params.total_num_steps");
    const bool is_open = total == NULL || strcmp(total->value, "\"auto\"") == 0;
    return is_open ? ds_known(1e9) : (ds_maybe){0};
}

/* Memory of a rank: its device's, or its share of the machine, where that is least. */
static ds_status find_share(const train_run *run, uint64_t *bytes_out)
{
    dsi_comm_world world = {.local_size = run->n_ranks};
    if (run->comm != NULL) {
        DS_TRY(dsi_comm_world_read(run->ctx, &world));
    }
    const uint32_t local = world.local_size > 0 ? world.local_size : 1;
    dsi_accel_choice accel;
    DS_TRY(dsi_accel_choose(run->ctx, run->options->accelerator, &accel));
    const size_t device = dsi_accel_device_memory(run->ctx, &accel);
    const double own = device > 0 ? (double)device : (double)dsi_machine_memory() / (double)local;
    double *all = calloc(run->n_ranks, sizeof *all);
    if (all == NULL) {
        return ds_fail(run->ctx, DS_ERR_NOMEM, "no memory for a number a rank");
    }
    for (uint32_t r = 0; r < run->n_ranks; ++r) {
        all[r] = own;
    }
    const ds_status status =
        run->comm != NULL ? dsi_comm_gather(run->comm, &own, all, sizeof own, "memory of a rank")
                          : DS_OK;
    for (uint32_t r = 1; r < run->n_ranks; ++r) {
        all[0] = all[r] < all[0] ? all[r] : all[0];
    }
    *bytes_out = (uint64_t)all[0];
    free(all);
    return status;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Notices of `config`; not those of `said`, NULL or the file that it was made from, which name a
 * line, too. */
static void print_notices(const train_run *run, const ds_config *config, const ds_config *said)
{
    const size_t n_said = said != NULL ? ds_config_n_notices(said) : 0;
    for (size_t i = 0; ds_comm_rank(run->comm) == 0 && i < ds_config_n_notices(config); ++i) {
        const char *notice = ds_config_notice(config, i);
        size_t k = 0;
        while (k < n_said && !ends_with(ds_config_notice(said, k),
                                        notice + strlen(run->options->deepspeed_config))) {
            ++k;
        }
        if (k == n_said) {
            ds_log(run->ctx, DS_LOG_WARN, "%s", notice);
        }
    }
}

/* What a pipeline's "auto" becomes; the same on all ranks. *file_out, the caller's: what was read.
 */
static ds_status choose_pipeline(train_run *run, ds_config **file_out)
{
    const train_options *o = run->options;
    ds_plan_params params = {.model = run->model,
                             .config = run->config,
                             .seq_length = run->seq_length,
                             .n_threads = (uint32_t)o->threads,
                             .frozen = o->freeze.items,
                             .n_frozen = (uint32_t)o->freeze.n,
                             .preference = train_has_preference(run) ? &run->preference : NULL,
                             .adapter = run->adapter,
                             .distillation = run->teacher != NULL ? &run->distillation : NULL,
                             .accelerator = o->accelerator};
    ds_config *chosen = NULL;
    char *why = NULL;
    if (run->model == NULL || !dsi_config_values(run->config)->pipeline_open) {
        return DS_OK;
    }
    DS_TRY(find_share(run, &params.memory_bytes));
    DS_TRY(ds_plan_pipeline(run->ctx, &params, &chosen, &why));
    *file_out = run->config;
    run->config = chosen;
    if (ds_comm_rank(run->comm) == 0) {
        ds_log(run->ctx, DS_LOG_JOB, "%s", why);
    }
    free(why);
    return DS_OK;
}

/* Epochs become steps once the batch size is known; the schedule may then need the steps: resolve
 * twice. */
static ds_status resolve(train_run *run, ds_config **file_out)
{
    const train_options *o = run->options;
    run->total_steps = (uint64_t)o->steps;
    ds_trainer_values v = trainer_values(run);
    if (o->steps == 0) {
        v.total_steps = steps_to_come(run);
    }
    DS_TRY(ds_config_resolve(run->config, run->n_ranks, &v));
    DS_TRY(choose_pipeline(run, file_out));
    DS_TRY(dsi_run_mesh(run->ctx, dsi_config_values(run->config), run->n_ranks, &run->mesh));
    if (run->train_data.n > 0) {
        DS_TRY(train_data_loaders(run));
    }
    if (o->epochs > 0.0 && run->train_data.n > 0) {
        const int64_t rows = dsi_config_values(run->config)->batch.train_batch_size;
        const double all = o->epochs * (double)ds_loader_epoch_rows(run->train_loader);
        run->total_steps = (uint64_t)fmax(1.0, ceil(all / (double)rows));
        v = trainer_values(run);
        DS_TRY(ds_config_resolve(run->config, run->n_ranks, &v));
    }
    if (o->usual_epochs && run->train_data.n > 0 && ds_comm_rank(run->comm) == 0) {
        ds_log(run->ctx, DS_LOG_JOB, "neither --steps nor --epochs: %g epochs, as the Trainer",
               o->epochs);
    }
    return DS_OK;
}

ds_status train_config_resolve(train_run *run)
{
    ds_config *file = NULL; /* that run->config was made from */
    const ds_status status = resolve(run, &file);
    if (status >= 0 && file != NULL) {
        print_notices(run, file, NULL);
    }
    if (status >= 0) {
        print_notices(run, run->config, file);
    }
    ds_config_destroy(&file);
    return status;
}
