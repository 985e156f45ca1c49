/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a small model on the accelerator `sim` in many random schedules, each in another
 * configuration drawn at random, and compares weights, states, losses and the evaluation's loss
 * with those of `cpu`, bit for bit.
 *
 *     sim_schedules N [FIRST]     schedules FIRST to FIRST + N - 1; default FIRST 1
 *
 * A schedule is one seed of the device: the order of everything in STEPS steps and an evaluation.
 */
#include "base/rng.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3, CASES = 64 };

typedef struct result {
    uint64_t hash;
    double losses[STEPS], eval;
} result;

static uint32_t pick(uint32_t which, uint32_t site, uint32_t n)
{
    return (uint32_t)dsi_rng_below(11, site, which, n);
}

/* Configuration `which`, of CASES: what is away, what is made again, and when updates run. */
static dsi_engine_spec make_spec(uint32_t which, const char *folder)
{
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    static const dsi_residency places[] = {DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_HOST,
                                           DSI_RESIDENCY_DISK};
    dsi_engine_spec spec = small_spec(dtypes[pick(which, 0, 3)]);
    const bool zenflow = pick(which, 12, 3) == 0; /* whose states are never on the device */
    const dsi_residency states = places[zenflow ? 1 + pick(which, 1, 2) : pick(which, 1, 3)];
    const dsi_residency params = places[pick(which, 2, 3)];
    spec.offload = small_away(folder, states, params);
    spec.offload.how.activations = places[pick(which, 3, 3)];
    spec.offload.how.chunk = pick(which, 4, 2) == 0 ? 0 : 4096;
    spec.offload.how.reuse = pick(which, 5, 2) == 0 ? 0 : INT64_MAX;
    spec.offload.read_ahead = pick(which, 6, 2) == 0 ? 0 : 20000;
    spec.offload.update_ahead = pick(which, 7, 2) == 0 ? 0 : 60000;
    spec.offload.write_behind = pick(which, 8, 2) == 0 ? 0 : 60000;
    spec.offload.defer = pick(which, 9, 2) == 0;
    spec.recompute.mode = pick(which, 10, 2) == 0 ? DS_RECOMPUTE_NONE : DS_RECOMPUTE_FULL;
    spec.train.accumulation = pick(which, 11, 3) == 0 ? 2 : 1;
    spec.train.keep_nonfinite =
        !zenflow && spec.train.accumulation == 1 && spec.train.dtype != DS_DTYPE_F16;
    spec.train.keep_nonfinite = spec.train.keep_nonfinite && pick(which, 17, 3) != 0;
    spec.train.max_norm = spec.train.keep_nonfinite ? 0.0 : pick(which, 18, 2) == 0 ? 0.1 : 1e6;
    spec.train.zenflow = (dsi_zenflow_spec){.on = zenflow,
                                            .ratio = 0.2,
                                            .update_every = 2,
                                            .select_every = 3,
                                            .warm_up = 1,
                                            .overlap = zenflow && pick(which, 13, 2) == 0};
    spec.no_reuse = pick(which, 14, 4) == 0;
    return spec;
}

/* On `sim` alone: the processor updates what is in its memory, perhaps before the norm is known. */
static void update_on_host(dsi_engine_spec *spec, uint32_t which)
{
    const dsi_train_spec *t = &spec->train;
    spec->host_cores = 1.0;
    spec->offload.how.host = !t->zenflow.on && pick(which, 19, 4) != 0;
    spec->train.speculative = spec->offload.how.host && t->accumulation == 1 &&
                              !dsi_train_is_early(t) && pick(which, 20, 2) == 0;
}

static ds_status train(ds_engine *engine, result *got)
{
    small_batch room;
    for (int32_t step = 0; step < STEPS; ++step) {
        do {
            const ds_batch batch = small_feed(step, &room);
            DS_TRY(ds_engine_forward(engine, &batch));
            DS_TRY(ds_engine_backward(engine));
            DS_TRY(ds_engine_step(engine));
        } while (ds_engine_global_steps(engine) == (uint64_t)step);
        got->losses[step] = ds_engine_loss(engine);
    }
    const ds_batch batch = small_feed(STEPS, &room);
    return ds_engine_eval_batch(engine, &batch, &got->eval, NULL);
}

static ds_status run(ds_ctx *ctx, const ds_model *model, const dsi_engine_spec *spec, result *got)
{
    ds_engine *engine = NULL;
    const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ, .seed = 5};
    *got = (result){0};
    DS_TRY(dsi_engine_create(ctx, &params, spec, &engine));
    ds_status status = train(engine, got);
    status = status < 0 ? status : engine_hash(ctx, engine, &got->hash);
    ds_engine_destroy(&engine);
    return status;
}

/* Schedules first to end - 1; their configurations take turns. */
static ds_status compare(ds_ctx *ctx, const char *folder, ds_model *const models[2], long first,
                         long end)
{
    result *wanted = calloc(CASES, sizeof *wanted);
    bool known[CASES] = {false};
    ds_status status = DS_OK;
    for (long seed = first; wanted != NULL && seed < end && status >= 0; ++seed) {
        const uint32_t which = (uint32_t)(seed % CASES);
        const ds_model *model = models[pick(which, 15, 2)];
        dsi_engine_spec spec = make_spec(which, folder);
        result got;
        char text[64];
        if (!known[which]) {
            DS_TRY_GOTO(status, run(ctx, model, &spec, &wanted[which]), done);
            known[which] = true;
        }
        (void)snprintf(text, sizeof text, "sim:seed=%ld,turn=%u", seed,
                       1u << pick((uint32_t)seed, 16, 14));
        DS_TRY_GOTO(status, dsi_accel_choose(ctx, text, &spec.accel), done);
        update_on_host(&spec, which);
        DS_TRY_GOTO(status, run(ctx, model, &spec, &got), done);
        if (memcmp(&got, &wanted[which], sizeof got) != 0) {
            status = ds_fail(ctx, DS_ERR_STATE,
                             "schedule %ld, configuration %u: loss %.9g, expected %.9g; hash "
                             "%016llx, expected %016llx",
                             seed, which, got.losses[STEPS - 1], wanted[which].losses[STEPS - 1],
                             (unsigned long long)got.hash, (unsigned long long)wanted[which].hash);
        }
    }
done:
    free(wanted);
    return status;
}

int main(int argc, char **argv)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    const long n = argc > 1 ? strtol(argv[1], NULL, 10) : 0;
    const long first = argc > 2 ? strtol(argv[2], NULL, 10) : 1;
    ds_ctx *ctx = NULL;
    ds_model *models[2] = {NULL, NULL};
    if (n < 1 || ds_ctx_create(&params, &ctx) < 0) {
        (void)fprintf(stderr, "usage: sim_schedules N [FIRST]\n");
        return 2;
    }
    char *folder = scratch_make();
    models[0] = small_model(ctx, folder, small_gpt2);
    models[1] = small_model(ctx, folder, small_llama);
    const ds_status status = compare(ctx, folder, models, first, first + n);
    if (status < 0) {
        (void)fprintf(stderr, "sim_schedules: %s\n", ds_ctx_error(ctx));
    } else {
        (void)printf("%ld schedules, no difference\n", n);
    }
    ds_model_destroy(&models[0]);
    ds_model_destroy(&models[1]);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return status < 0 ? 1 : 0;
}
