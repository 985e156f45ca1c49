/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the events that steps wait for out of an engine's plan, one at a time, and trains on the
 * accelerator `sim`, or on `cuda` over the stand-in of its driver: what the plan states is what
 * orders the device, so without one of its events some schedule gives other bits, unless the order
 * of queues implies it (common/plan_order.h).
 *
 *     sim_events [EVERY [SEEDS [sim|cuda]]]     each EVERY-th event, default 1; most schedules for
 *                                               one, default 12
 *
 * States and parameters are on the host, one rank: nothing is begun by the host inside a phase,
 * which would order by itself. On `cuda` then the waits of the driver's calls are left out one at a
 * time, too, those of the accelerator itself among them. Fails when less than four in five of the
 * needed events are seen to be missing (on `cuda`, where a run takes a thousand times as long: when
 * none is), and when the plan as it is gives other bits than `cpu` (on
 * `cuda`, than in another order). Those that are not seen are printed: schedules that were not
 * drawn. With 200 for each event 648 of 654 are seen; the others are waits for the last write to
 * the host of a cell, which is read again long after.
 */
#include "common/engine_hash.h"
#include "common/plan_order.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "common/standin_load.h"
#include "train/engine.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 2 };

/* For kernels on the host layer, a fiber a thread. */
static const char tiny_gpt2[] =
    "{\"model_type\":\"gpt2\",\"vocab_size\":211,\"n_positions\":64,\"n_embd\":16,\"n_layer\":2,"
    "\"n_head\":2,\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"attn_pdrop\":0.1}";

typedef struct setting {
    const char *name;
    ds_dtype dtype;
    dsi_residency states, params;
    size_t ahead, behind;
    bool host, speculative; /* the processor updates them; before the norm is known */
} setting;

static const setting settings[] = {
    {"states on the host", DS_DTYPE_F32, DSI_RESIDENCY_HOST, DSI_RESIDENCY_DEVICE, 60000, 60000,
     false, false},
    {"states and parameters on the host", DS_DTYPE_BF16, DSI_RESIDENCY_HOST, DSI_RESIDENCY_HOST,
     60000, 60000, false, false},
    {"updates on the host", DS_DTYPE_F32, DSI_RESIDENCY_HOST, DSI_RESIDENCY_DEVICE, 60000, 60000,
     true, false},
    {"updates on the host ahead of the norm", DS_DTYPE_BF16, DSI_RESIDENCY_HOST,
     DSI_RESIDENCY_DEVICE, 60000, 60000, true, true},
};

typedef struct bench {
    ds_ctx *ctx;
    const ds_model *model;
    dsi_engine_spec spec;
    const char *folder;
    uint32_t every;
    bool on_cuda;
    standin_calls standin;
} bench;

/* The accelerator in an order; without captured graphs: those are captured when the engine is made,
 * with all that its plan waits for. ignore: the wait of the driver's that is left out; 0: none. */
static void draw_order(const bench *b, uint32_t seed, uint64_t ignore, char *accel_out, size_t n)
{
    char order[96];
    const unsigned turn = 64u << (2 * (seed % 6));
    if (!b->on_cuda) {
        (void)snprintf(accel_out, n, "sim:graphs=0,seed=%u,turn=%u", seed, turn);
        return;
    }
    (void)snprintf(order, sizeof order, "seed=%u,turn=%u,ignore=%llu", seed, turn,
                   (unsigned long long)ignore);
    b->standin.set(order);
    (void)snprintf(accel_out, n, "cuda:graphs=0");
}

/* Adds the norm of the gradient: without clipping no weight shows that it is wrong. */
static uint64_t with_norm(uint64_t hash, double norm)
{
    uint64_t bits = 0;
    memcpy(&bits, &norm, sizeof bits);
    return (hash ^ bits) * 0x100000001b3U;
}

/* Of the weights and states at the end and of every step's gradient norm. */
static ds_status train(bench *b, const char *accel, uint32_t without, uint64_t *hash_out)
{
    uint64_t norms = 0;
    ds_engine *engine = NULL;
    small_batch room;
    const ds_engine_params params = {.model = b->model, .seq_length = SMALL_SEQ, .seed = 5};
    DS_TRY(dsi_accel_choose(b->ctx, accel, &b->spec.accel));
    DS_TRY(dsi_engine_create(b->ctx, &params, &b->spec, &engine));
    if (without != DS_NONE) {
        engine->train_plan->steps[without].n_waits = 0;
    }
    ds_status status = DS_OK;
    const int32_t n =
        b->spec.train.speculative ? STEPS + 1 : STEPS; /* undone, accepted, and seen */
    for (int32_t step = 0; step < n && status >= 0; ++step) {
        const ds_batch batch = small_feed(step, &room);
        status = ds_engine_forward(engine, &batch);
        status = status < 0 ? status : ds_engine_backward(engine);
        if (status >= 0 && b->spec.train.speculative && step == 0) {
            status = ds_engine_set_lr(engine, 2e-3); /* too late for what is ahead: it is undone */
        }
        status = status < 0 ? status : ds_engine_step(engine);
        norms = with_norm(norms, ds_engine_grad_norm(engine));
    }
    status = status < 0 ? status : engine_hash(b->ctx, engine, hash_out);
    *hash_out ^= norms;
    ds_engine_destroy(&engine);
    return status;
}

/* Whether some schedule shows that step s has not waited. A run that fails shows it too. */
static ds_status is_seen(bench *b, uint32_t s, uint64_t wanted, uint32_t n_seeds, bool *seen_out)
{
    *seen_out = false;
    for (uint32_t seed = 1; seed <= n_seeds && !*seen_out; ++seed) {
        char accel[64];
        uint64_t hash = 0;
        draw_order(b, seed, 0, accel, sizeof accel);
        *seen_out = train(b, accel, s, &hash) < 0 || hash != wanted;
    }
    return DS_OK;
}

/* The steps whose waits are tried, and how many are not: without them all is in order still, since
 * steps of a queue end in their order. */
static ds_status find_waits(bench *b, uint32_t **steps_out, uint32_t *n_out, uint32_t *implied_out)
{
    ds_engine *engine = NULL;
    uint32_t at = 0;
    const ds_engine_params params = {.model = b->model, .seq_length = SMALL_SEQ, .seed = 5};
    DS_TRY(dsi_engine_create(b->ctx, &params, &b->spec, &engine));
    dsi_plan *plan = engine->train_plan;
    plan_order order = plan_order_make(plan, true);
    /* Ends of what the processor does are waited for where a phase ends, and what is behind that is
     * behind a wait of the host for all, too. */
    order.host = b->spec.offload.how.host;
    order.judged = dsi_engine_judges_between(engine) ? engine->own.phases.norm : DS_NONE;
    *steps_out = plan_order_must(malloc((plan->n_steps + 1) * sizeof **steps_out));
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const uint32_t n_waits = plan->steps[s].n_waits;
        if (n_waits == 0 || at++ % b->every != 0) {
            continue;
        }
        plan->steps[s].n_waits = 0;
        if (plan_order_is_racy(&order)) {
            (*steps_out)[(*n_out)++] = s;
        } else {
            *implied_out += 1;
        }
        plan->steps[s].n_waits = n_waits;
    }
    plan_order_free(&order);
    ds_engine_destroy(&engine);
    return DS_OK;
}

enum { DIFFERS = 1, WAITED = 2, SECONDS = 120 };

/* Trains in a child, which may fault: what a wait kept in memory may be gone. Returns bits. */
static int train_apart(bench *b, const char *accel, uint64_t wanted)
{
    int code = 0;
    (void)fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        uint64_t hash = 0;
        (void)freopen("/dev/null", "w", stderr);
        (void)signal(SIGSEGV, SIG_DFL);
        (void)alarm(SECONDS);
        const bool differs = train(b, accel, DS_NONE, &hash) < 0 || hash != wanted;
        _exit((differs ? DIFFERS : 0) | (b->standin.ignored_one() ? WAITED : 0));
    }
    if (child < 0 || waitpid(child, &code, 0) != child) {
        return 0;
    }
    return WIFEXITED(code) ? WEXITSTATUS(code) : DIFFERS | WAITED;
}

/* Each EVERY-th wait of the driver's in a run, left out. One that had nothing to wait for in any of
 * the orders is redundant there. */
static ds_status try_driver(bench *b, const setting *c, uint64_t wanted, uint32_t n_seeds,
                            bool *right_out)
{
    char accel[64];
    uint64_t hash = 0;
    uint64_t n = 0;
    uint64_t seen = 0;
    uint64_t idle = 0;
    draw_order(b, 1, 0, accel, sizeof accel);
    DS_TRY(train(b, accel, DS_NONE, &hash));
    const uint64_t all = b->standin.waits();
    for (uint64_t at = 1; at <= all; at += b->every, ++n) {
        int found = 0;
        for (uint32_t seed = 1; seed <= n_seeds && (found & DIFFERS) == 0; ++seed) {
            draw_order(b, seed, at, accel, sizeof accel);
            found |= train_apart(b, accel, wanted);
        }
        seen += (found & DIFFERS) != 0 ? 1 : 0;
        idle += found == 0 ? 1 : 0;
    }
    (void)printf("%s: waits of the driver left out one at a time: %llu of %llu tried, %llu seen, "
                 "%llu had nothing to wait for\n",
                 c->name, (unsigned long long)n, (unsigned long long)all, (unsigned long long)seen,
                 (unsigned long long)idle);
    *right_out = *right_out && seen > 0;
    return DS_OK;
}

static ds_status try_setting(bench *b, const setting *c, uint32_t n_seeds, bool *right_out)
{
    uint32_t *steps = NULL;
    uint32_t n = 0;
    uint32_t implied = 0;
    uint32_t seen = 0;
    uint64_t wanted = 0;
    uint64_t hash = 0;
    b->spec = small_spec(c->dtype);
    b->spec.offload = small_away(b->folder, c->states, c->params);
    b->spec.offload.read_ahead = b->spec.offload.update_ahead = c->ahead;
    b->spec.offload.write_behind = c->behind;
    b->spec.offload.how.host = c->host;
    b->spec.host_cores = 1.0;
    b->spec.train.speculative = c->speculative;
    char accel[64];
    draw_order(b, 2, 0, accel, sizeof accel);
    DS_TRY(train(b, b->on_cuda ? accel : "cpu", DS_NONE, &wanted));
    draw_order(b, 1, 0, accel, sizeof accel);
    DS_TRY(train(b, b->on_cuda ? "cuda" : "sim:seed=1", DS_NONE, &hash));
    DS_TRY(find_waits(b, &steps, &n, &implied));
    for (uint32_t i = 0; i < n; ++i) {
        bool found = false;
        DS_TRY(is_seen(b, steps[i], wanted, n_seeds, &found));
        seen += found ? 1 : 0;
        if (!found) {
            (void)printf("%s: step %u: no schedule shows that it has not waited\n", c->name,
                         steps[i]);
        }
    }
    free(steps);
    (void)printf("%s: waits taken out one at a time: %u implied by queues, %u needed, %u of them "
                 "seen\n",
                 c->name, implied, n, seen);
    *right_out = n > 0 && hash == wanted && (b->on_cuda ? seen > 0 : 5 * seen >= 4 * n);
    return b->on_cuda ? try_driver(b, c, wanted, n_seeds, right_out) : DS_OK;
}

int main(int argc, char **argv)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    const uint32_t every = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1;
    const uint32_t n_seeds = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 12;
    ds_ctx *ctx = NULL;
    const bool on_cuda = argc > 3 && strcmp(argv[3], "cuda") == 0;
    standin_calls standin = {NULL, NULL, NULL};
    bool right = true;
    if (on_cuda && !standin_load(DS_BINARY_DIR, &standin)) {
        return 1;
    }
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    char *folder = scratch_make();
    ds_model *model = small_model(ctx, folder, on_cuda ? tiny_gpt2 : small_gpt2);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; ++i) {
        bench b = {.ctx = ctx,
                   .model = model,
                   .folder = folder,
                   .every = every,
                   .on_cuda = on_cuda,
                   .standin = standin};
        bool fits = false;
        const ds_status status = try_setting(&b, &settings[i], n_seeds, &fits);
        if (status < 0) {
            (void)fprintf(stderr, "sim_events: %s: %s\n", settings[i].name, ds_ctx_error(ctx));
        }
        right = right && fits && status >= 0;
    }
    ds_model_destroy(&model);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return right ? 0 : 1;
}
