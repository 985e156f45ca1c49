/* SPDX-License-Identifier: Apache-2.0 */
/* Plans as simulated steps: operations and bytes against formulas that know nothing of plans, for
 * each ZeRO stage, with recompute and offload; and how the step time follows ranks and links. */
#include "common/check.h"
#include "compile/rank_plan.h"
#include "op/ops.h"
#include "plan/plan_sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { C = 64, L = 3, H = 4, T = 32, V = 128, B = 2 };

static ds_ctx *ctx;
static ds_model *model;

static int setup(void **state)
{
    char path[] = "plan_sim_XXXXXX";
    char text[512];
    ds_ctx_params params = ds_ctx_params_default();
    (void)state;
    params.level = DS_LOG_ERROR;
    params.n_threads = 1;
    (void)snprintf(
        text, sizeof text,
        "{\"model_type\":\"gpt2\",\"architectures\":[\"GPT2LMHeadModel\"],"
        "\"vocab_size\":%d,\"n_positions\":%d,\"n_embd\":%d,\"n_layer\":%d,\"n_head\":%d,"
        "\"resid_pdrop\":0.0,\"embd_pdrop\":0.0,\"attn_pdrop\":0.0}",
        V, T, C, L, H);
    const int file = mkstemp(path);
    if (file < 0 || write(file, text, strlen(text)) != (ssize_t)strlen(text) || close(file) != 0 ||
        ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const ds_status status = ds_model_from_config(ctx, path, &model);
    return unlink(path) != 0 || status < 0;
}

static int teardown(void **state)
{
    (void)state;
    ds_model_destroy(&model);
    ds_ctx_destroy(&ctx);
    return 0;
}

typedef struct made {
    dsi_rank_plan plan;
    dsi_sim_step *steps;
} made;

static made make(uint32_t n_ranks, uint32_t stage, ds_recompute recompute, bool disk)
{
    made m = {.plan = {.ctx = ctx}};
    const dsi_engine_spec spec = {
        .train = {.dtype = DS_DTYPE_BF16,
                  .comm_dtype = DS_DTYPE_BF16,
                  .accumulate_dtype = DS_DTYPE_F32,
                  .state_dtype = DS_DTYPE_F32,
                  .master = true,
                  .batch = B,
                  .seq_length = T,
                  .accumulation = 1,
                  .optimizer = DS_OPTIMIZER_ADAM,
                  .eps = 1e-8,
                  .max_norm = 1.0},
        .zero = {.mesh = dsi_mesh_data(n_ranks),
                 .stage = stage,
                 .reduce_each = true,
                 .comm_dtype = DS_DTYPE_BF16,
                 .reduce_bucket = 1000000,
                 .gather_bucket = 1000000,
                 .model_persistence = INT64_MAX,
                 .max_live = 1000000,
                 .max_reuse_distance = 0},
        .recompute = {.mode = recompute},
        .offload = {.states = disk ? DSI_RESIDENCY_DISK : DSI_RESIDENCY_DEVICE,
                    .ratio = 1.0,
                    .how = {.chunk = 4096},
                    .write_behind = 1 << 20,
                    .update_ahead = 1 << 20},
        .overlap = true,
        .isa = DS_ISA_REF};
    const dsi_rank_request request = {.model = model, .spec = &spec, .n_threads = 1};
    CHECK_OK(ctx, dsi_rank_plan_build(ctx, &request, &m.plan));
    CHECK_OK(ctx, dsi_plan_sim_steps(m.plan.train_plan, 2, &m.plan.residencies, &m.steps));
    return m;
}

static void drop(made *m)
{
    free(m->steps);
    dsi_rank_plan_free(&m->plan);
}

static double parameters(void)
{
    return (double)(V * C + T * C + 2 * C) + L * (12.0 * C * C + 13.0 * C);
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * fabs(want))) {
        fail_msg("got %.12g, expected %.12g", got, want);
    }
}

/* Six operations a parameter of a product and token, twelve an attended pair, head and dim. */
static double model_flops(void)
{
    const double pairs = 0.5 * T * (T + 1.0);
    return 6.0 * B * T * (12.0 * L * C * C + (double)V * C) + 12.0 * L * B * C * pairs;
}

static double products(const made *m, ds_phase phase)
{
    double flops = 0.0;
    for (uint32_t s = 0; s < m->plan.train_plan->n_steps; ++s) {
        const dsi_sim_step *step = &m->steps[s];
        const bool counts = step->phase == phase && step->stream == DSI_STREAM_COMPUTE &&
                            dsi_op_class_is_model(step->work.op_class);
        flops += counts ? step->work.flops : 0.0;
    }
    return flops;
}

/* The loss's products in either form: bf16, tokens by vocabulary by width. */
static uint32_t losses(const made *m)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < m->plan.train_plan->n_steps; ++s) {
        const dsi_work *work = &m->steps[s].work;
        if (m->steps[s].stream == DSI_STREAM_COMPUTE &&
            (work->op_class == DS_CLASS_LOSS || work->op_class == DS_CLASS_LOSS_BACKWARD)) {
            assert_int_equal(work->dtype, DS_DTYPE_BF16);
            assert_true(work->m == (int64_t)B * T && work->n == V && work->k == C);
            ++n;
        }
    }
    return n;
}

static double moved(const made *m, dsi_sim_stream stream, int coll)
{
    double bytes = 0.0;
    for (uint32_t s = 0; s < m->plan.train_plan->n_steps; ++s) {
        const dsi_sim_step *step = &m->steps[s];
        bytes += step->stream == stream && (coll < 0 || (int)step->coll == coll) ? step->work.bytes
                                                                                 : 0.0;
    }
    return bytes;
}

/* Hardware does more than the model needs: attention's scores again; with full recompute logits
 * again, and the layers' forward pass once more, short of what nobody asks for again. */
static void operations(void **state)
{
    (void)state;
    const double attention = 4.0 * L * B * C * 0.5 * T * (T + 1.0);
    const double logits = 2.0 * B * T * (double)V * C;
    made plain = make(1, 0, DS_RECOMPUTE_NONE, false);
    near(dsi_plan_model_flops(plain.plan.train_plan), model_flops());
    near(products(&plain, DS_PHASE_FORWARD), model_flops() / 3.0);
    near(products(&plain, DS_PHASE_BACKWARD), model_flops() * 2.0 / 3.0 + 0.5 * attention);
    made again = make(1, 0, DS_RECOMPUTE_FULL, false);
    const double more =
        products(&again, DS_PHASE_BACKWARD) - products(&plain, DS_PHASE_BACKWARD) - logits;
    near(dsi_plan_model_flops(again.plan.train_plan), model_flops());
    assert_int_equal(losses(&plain), 3); /* logits kept, dx, dw */
    assert_int_equal(losses(&again), 2);
    assert_true(more > 0.5 * (model_flops() / 3.0 - logits));
    assert_true(more <= model_flops() / 3.0 - logits + 1.0);
    drop(&plain);
    drop(&again);
}

/* ZeRO's volumes of 2-byte gradients and parameters, beside some scalars of the norm: an all-reduce
 * of P in stage 0, a reduce-scatter and a gather in 1 and 2, two or more gathers in 3. */
static void communication(void **state)
{
    (void)state;
    const double p = 2.0 * parameters();
    for (uint32_t stage = 0; stage <= 3; ++stage) {
        made m = make(4, stage, DS_RECOMPUTE_NONE, false);
        const double gathered = moved(&m, DSI_STREAM_COMM, DS_COMM_ALL_GATHER);
        const double reduced = moved(&m, DSI_STREAM_COMM, DS_COMM_ALL_REDUCE);
        const double scattered = moved(&m, DSI_STREAM_COMM, DS_COMM_REDUCE_SCATTER);
        if (stage == 0) {
            near(gathered + scattered + 1.0, 1.0);
            assert_true(reduced >= p && reduced < p + 4096.0);
        } else {
            near(scattered, p);
            assert_true(reduced < 4096.0);
            if (stage == 3 ? gathered < 1.5 * p || gathered > 3.0 * p
                           : gathered < p || gathered > p + 4096.0) {
                fail_msg("stage %u gathers %.0f bytes of %.0f", stage, gathered, p);
            }
        }
        drop(&m);
    }
}

/* Master, moments and gradient go in and out; the parameter goes nowhere. */
static void offload(void **state)
{
    (void)state;
    made m = make(1, 0, DS_RECOMPUTE_NONE, true);
    made kept = make(1, 0, DS_RECOMPUTE_NONE, false);
    const double p = parameters();
    const double in = moved(&m, DSI_STREAM_DISK_READ, -1);
    const double out = moved(&m, DSI_STREAM_DISK_WRITE, -1);
    assert_true(in >= 12.0 * p && in < 24.0 * p);
    assert_true(out >= 12.0 * p && out < 20.0 * p);
    near(moved(&m, DSI_STREAM_COMM, -1) + moved(&m, DSI_STREAM_HOST_IN, -1) + 1.0, 1.0);
    near(dsi_plan_clear_bytes(m.plan.train_plan), dsi_plan_clear_bytes(kept.plan.train_plan));
    drop(&kept);
    drop(&m);
}

static double step_seconds(const made *m, const dsi_device *device)
{
    const dsi_sim_spec spec = {.device = device,
                               .steps = m->steps,
                               .phases = &m->plan.train_plan->phases,
                               .n_steps = m->plan.train_plan->n_steps,
                               .local_ranks = 2,
                               .accumulation = 1,
                               .peak_dtype = DS_DTYPE_BF16};
    dsi_timeline *t = NULL;
    CHECK_OK(ctx, dsi_simulate(ctx, &spec, &t));
    const double seconds = t->step.seconds;
    near(t->step.compute + t->step.exposed_comm + t->step.exposed_moves + t->step.bubble, seconds);
    dsi_timeline_destroy(&t);
    return seconds;
}

/* A slower link, less overlap or more ranks of equal batches never make a step shorter. */
static void properties(void **state)
{
    (void)state;
    dsi_device fast;
    CHECK_OK(ctx, dsi_device_find(ctx, "h100-sxm", &fast));
    for (uint32_t stage = 0; stage <= 3; ++stage) {
        made few = make(4, stage, DS_RECOMPUTE_NONE, false);
        made many = make(64, stage, DS_RECOMPUTE_NONE, false);
        dsi_device slow = fast;
        dsi_device serial = fast;
        slow.net.bandwidth *= 0.01;
        slow.node.bandwidth *= 0.01;
        serial.overlap = 0.0;
        const double base = step_seconds(&few, &fast);
        assert_true(step_seconds(&few, &slow) > base);
        assert_true(step_seconds(&few, &serial) >= base);
        if (stage == 0) { /* elsewhere the update is divided */
            assert_true(step_seconds(&many, &fast) >= base);
        }
        drop(&few);
        drop(&many);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations),
        cmocka_unit_test(communication),
        cmocka_unit_test(offload),
        cmocka_unit_test(properties),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
