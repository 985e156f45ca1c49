/* SPDX-License-Identifier: Apache-2.0 */
/* See autotune_measure.h. Keys of the file are DeepSpeed's: latency, throughput, FLOPS_per_gpu,
 * forward, backward, step; and more. Times are milliseconds of an optimizer step from end to end,
 * data included (DeepSpeed: the sum of the three parts). */
#include "train/autotune_measure.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/process_memory.h"
#include "io/file.h"
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_CEILING = 1 << 16 };

/* Bytes of this process that count (LAW 6): private memory and its part of shared memory. */
static double memory_now(void)
{
    dsi_process_memory memory;
    dsi_process_memory_read(&memory);
    return (double)(memory.anonymous + memory.shared);
}

static ds_status named(ds_ctx *ctx, const char *key, ds_status status)
{
    return status >= 0 ? DS_OK : ds_fail(ctx, status, "autotuning.%s: %s", key, ds_ctx_error(ctx));
}

static ds_status write_whole(ds_ctx *ctx, const char *key, const char *path, const dsi_buf *text)
{
    const ds_status status = text->failed
                                 ? ds_fail(ctx, DS_ERR_NOMEM, "no memory to write %s", path)
                                 : dsi_file_replace(ctx, path, dsi_buf_text(text), text->size);
    return status >= 0 ? DS_OK : ds_fail(ctx, status, "autotuning.%s: %s", key, ds_ctx_error(ctx));
}

/* Seconds of norm and update, and of what may run between them. */
static double after_backward(const dsi_autotune_state *state)
{
    double seconds = 0.0;
    for (ds_phase phase = DS_PHASE_STEP; phase < DS_MAX_PHASES; ++phase) {
        seconds += state->seconds[phase];
    }
    return seconds;
}

static ds_status write_metrics(const ds_engine *engine, double seconds)
{
    const dsi_autotune_spec *spec = &engine->spec.autotune;
    const dsi_autotune_state *state = &engine->autotune;
    const double n = (double)(spec->last - spec->first + 1);
    const double accumulation = (double)engine->spec.train.accumulation;
    const double rows = (double)engine->spec.train.batch * accumulation *
                        dsi_mesh_data_size(&engine->spec.zero.mesh);
    const double flops = ds_engine_flops(engine) * accumulation;
    const double ms = 1e3 / n;
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    dsi_buf_printf(
        &text,
        "{\"latency\": %.6f, \"throughput\": %.6f, \"FLOPS_per_gpu\": %.6g, \"forward\": %.6f, "
        "\"backward\": %.6f, \"step\": %.6f,\n \"train_batch_size\": %.0f, "
        "\"train_micro_batch_size_per_gpu\": %lld, \"gradient_accumulation_steps\": %.0f, "
        "\"n_ranks\": %u,\n \"first_step\": %lld, \"last_step\": %lld, \"memory_bytes\": %.0f}\n",
        seconds * ms, rows * n / seconds, flops * n / seconds,
        state->seconds[DS_PHASE_FORWARD] * ms, state->seconds[DS_PHASE_BACKWARD] * ms,
        after_backward(state) * ms, rows, (long long)engine->spec.train.batch, accumulation,
        ds_comm_size(engine->comm), (long long)spec->first, (long long)spec->last, memory_now());
    const ds_status status = write_whole(engine->ctx, "metric_path", spec->metric_path, &text);
    dsi_buf_free(&text);
    return status;
}

void dsi_engine_measure_phase(ds_engine *engine, ds_phase phase, double begin, double seconds)
{
    dsi_autotune_state *state = &engine->autotune;
    const int64_t step = state->n_steps + 1;
    if (step == engine->spec.autotune.first && state->begin <= 0.0) {
        state->begin = begin; /* of the very first step; else set at the end of the one before */
    }
    if (step >= engine->spec.autotune.first && step <= engine->spec.autotune.last) {
        state->seconds[phase] += seconds;
    }
}

ds_status dsi_engine_measure_step(ds_engine *engine)
{
    dsi_autotune_state *state = &engine->autotune;
    const double now = dsi_clock_seconds();
    if (!engine->spec.autotune.enabled) {
        return DS_OK;
    }
    state->n_steps += 1;
    if (state->n_steps == engine->spec.autotune.first - 1) {
        state->begin = now;
    }
    return state->n_steps == engine->spec.autotune.last && ds_comm_rank(engine->comm) == 0
               ? write_metrics(engine, now - state->begin)
               : DS_OK;
}

ds_status dsi_engine_write_model_info(const ds_engine *engine)
{
    const dsi_autotune_spec *spec = &engine->spec.autotune;
    if (!spec->enabled || ds_comm_rank(engine->comm) != 0) {
        return DS_OK;
    }
    DS_TRY(named(engine->ctx, "metric_path", dsi_file_check(engine->ctx, spec->metric_path)));
    if (!spec->model_info) {
        return DS_OK;
    }
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    dsi_buf_printf(&text,
                   "{\"num_params\": %llu, \"trainable_num_params\": %llu, "
                   "\"activation_mem_per_gpu\": %zu, \"rank\": 0}\n",
                   (unsigned long long)ds_engine_n_parameters(engine),
                   (unsigned long long)ds_engine_n_trainable(engine),
                   engine->train_plan->arena_bytes);
    const ds_status status =
        write_whole(engine->ctx, "model_info_path", spec->model_info_path, &text);
    dsi_buf_free(&text);
    return status;
}
