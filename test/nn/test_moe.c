/* SPDX-License-Identifier: Apache-2.0 */
/* ds_nn_moe against DeepSpeed's gates (golden/moe_gates): with the identity as the router's weight,
 * x are the logits, and each token's result is the sum of what its experts make of it, by
 * DeepSpeed's weights, with our random numbers where it draws; the loss that balances is
 * DeepSpeed's. The residual form by its own formula. What it cannot do is refused. */
#include "accel/cpu/registry.h"
#include "common/check.h"
#include "common/golden.h"
#include "exec/exec.h"
#include "ir/graph.h"
#include "plan/plan.h"

#include <deepspeed/nn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 24, EXPERTS = 5, WIDTH = 3 };

static const struct {
    const char *name;
    int64_t n_chosen;
    double factor;
    bool by_score;
    ds_moe_noise noise;
    bool sample_second, random_tokens;
} cases[] = {
    {"top1", 1, 0.0, false, DS_MOE_NO_NOISE, false, false},
    {"top2", 2, 0.0, false, DS_MOE_NO_NOISE, false, false},
    {"top2_drop", 2, 0.7, false, DS_MOE_NO_NOISE, false, false},
    {"top3", 3, 0.0, true, DS_MOE_NO_NOISE, false, false},
    {"top3_position", 3, 0.6, false, DS_MOE_NO_NOISE, false, false},
    {"top3_probs", 3, 0.6, true, DS_MOE_NO_NOISE, false, false},
    {"top4_probs", 4, 0.5, true, DS_MOE_NO_NOISE, false, false},
    {"top1_rsample", 1, 0.0, false, DS_MOE_GUMBEL, false, false},
    {"top1_rts", 1, 0.6, false, DS_MOE_NO_NOISE, false, true},
    {"top2_second", 2, 0.0, false, DS_MOE_NO_NOISE, true, false},
    {"top2_second_drop", 2, 0.7, false, DS_MOE_NO_NOISE, true, false},
    {"top3_jitter", 3, 0.6, false, DS_MOE_JITTER, false, false},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* A parameter's numbers: small, different ones. */
static float number(const char *name, int64_t i)
{
    const size_t site = strlen(name);
    return sinf((float)(i * 7 + (int64_t)site * 13 + name[site - 8])) * 0.5f;
}

static float parameter(const char *name, int64_t i)
{
    const bool is_router = strstr(name, "gate.wg") != NULL;
    return is_router ? (i % (EXPERTS + 1) == 0 ? 1.0f : 0.0f) : number(name, i);
}

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

/* down(silu(up(x))) by the matrices of these names, the e-th of each. */
static void feed_forward(const char *up, const char *down, int64_t e, const float *x, double *y)
{
    for (int c = 0; c < EXPERTS; ++c) {
        y[c] = 0.0;
    }
    for (int64_t f = 0; f < WIDTH; ++f) {
        double sum = 0.0;
        for (int64_t c = 0; c < EXPERTS; ++c) {
            sum += (double)number(up, (e * WIDTH + f) * EXPERTS + c) * (double)x[c];
        }
        for (int64_t c = 0; c < EXPERTS; ++c) {
            y[c] += (double)number(down, (e * EXPERTS + c) * WIDTH + f) * silu(sum);
        }
    }
}

#define OF_EXPERTS "layer.deepspeed_moe.experts.deepspeed_experts.*."

static void expected(const float *x, const float *weights, bool residual, double *y)
{
    double one[EXPERTS];
    for (int c = 0; c < EXPERTS; ++c) {
        y[c] = 0.0;
    }
    for (int64_t e = 0; e < EXPERTS; ++e) {
        feed_forward(OF_EXPERTS "up_proj.weight", OF_EXPERTS "down_proj.weight", e, x, one);
        for (int c = 0; c < EXPERTS; ++c) {
            y[c] += (double)weights[e] * one[c];
        }
    }
    if (!residual) {
        return;
    }
    double share[2] = {0.0, 0.0};
    for (int i = 0; i < 2; ++i) {
        for (int c = 0; c < EXPERTS; ++c) {
            share[i] += (double)number("layer.coefficient.weight", i * EXPERTS + c) * (double)x[c];
        }
    }
    const double moe = 1.0 / (1.0 + exp(share[1] - share[0]));
    feed_forward("layer.mlp.up_proj.weight", "layer.mlp.down_proj.weight", 0, x, one);
    for (int c = 0; c < EXPERTS; ++c) {
        y[c] = moe * y[c] + (1.0 - moe) * one[c];
    }
}

/* Seed, step and first sample: make_moe_gates.py draws by them. */
static const int64_t random_state[4] = {77, 3, 0, 0};

static void fill(ds_cells *cells, dsi_exec *exec, const float *x)
{
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        if (cell->meta.dtype == DS_DTYPE_I64) {
            memcpy(dsi_exec_host_view(exec, c), random_state, sizeof random_state);
            continue;
        }
        float *to = dsi_exec_host_view(exec, c);
        for (int64_t i = 0; i < ds_shape_count(cell->meta.shape); ++i) {
            to[i] = cell->kind == DS_CELL_PARAM ? parameter(cell->name, i) : x[i];
        }
    }
}

static void check(ds_ctx *ctx, const golden_file *golden, size_t at, bool residual)
{
    const ds_trace trace = {
        .mode = DS_TRACE_TRAIN, .dtype = DS_DTYPE_F32, .batch = 1, .seq_length = TOKENS};
    const dsi_plan_env env = {.n_threads = 1, .isa = DS_ISA_REF, .choose = dsi_cpu_kernel_choose};
    const ds_moe_params params = {.n_experts = EXPERTS,
                                  .n_chosen = cases[at].n_chosen,
                                  .width = WIDTH,
                                  .activation = DS_ACT_SILU,
                                  .residual = residual,
                                  .capacity_factor = cases[at].factor,
                                  .min_capacity = 2,
                                  .drop_by_score = cases[at].by_score,
                                  .noise = cases[at].noise,
                                  .sample_second = cases[at].sample_second,
                                  .random_tokens = cases[at].random_tokens};
    char name[64];
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    ds_nn *nn = NULL;
    dsi_plan *plan = NULL;
    dsi_exec *exec = NULL;
    ds_tensor y;
    ds_tensor balance;
    ds_value loss = DS_NONE;
    uint32_t id = 0;
    (void)snprintf(name, sizeof name, "%s.logits", cases[at].name);
    const float *x = golden_f32(golden, name);
    (void)snprintf(name, sizeof name, "%s.weights", cases[at].name);
    const float *weights = golden_f32(golden, name);
    (void)snprintf(name, sizeof name, "%s.l_aux", cases[at].name);
    const float *l_aux = golden_f32(golden, name);
    CHECK_OK(ctx, ds_cells_create(ctx, 64, &cells));
    CHECK_OK(ctx, ds_graph_create(ctx, cells, &graph));
    CHECK_OK(ctx, ds_nn_create(graph, &trace, &nn));
    const ds_value in = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_3d(1, TOKENS, EXPERTS));
    ds_nn_output(nn, "y", ds_nn_moe(nn, "layer", in, &params, &loss));
    ds_nn_output(nn, "balance", loss);
    CHECK_OK(ctx, ds_nn_status(nn));
    ds_nn_destroy(&nn);
    CHECK_OK(ctx, dsi_plan_build(graph, &env, &plan));
    CHECK_OK(ctx, dsi_exec_create(ctx, cells, NULL, &exec));
    CHECK_OK(ctx, dsi_exec_add(exec, plan, &id));
    CHECK_OK(ctx, dsi_exec_allocate(exec));
    fill(cells, exec, x);
    CHECK_OK(ctx, dsi_exec_run(exec, id, DS_PHASE_FORWARD));
    CHECK_OK(ctx, dsi_exec_output(exec, id, "y", &y));
    CHECK_OK(ctx, dsi_exec_output(exec, id, "balance", &balance));
    for (int t = 0; t < TOKENS; ++t) {
        double want[EXPERTS];
        expected(x + t * EXPERTS, weights + t * EXPERTS, residual, want);
        for (int c = 0; c < EXPERTS; ++c) {
            const double got = (double)((const float *)y.data)[t * EXPERTS + c];
            if (!(fabs(got - want[c]) <= 1e-5 * (1.0 + fabs(want[c])))) {
                fail_msg("%s, token %d, %d: %.9g, expected %.9g", cases[at].name, t, c, got,
                         want[c]);
            }
        }
    }
    if (!(fabsf(*(const float *)balance.data - *l_aux) <= 1e-5f * *l_aux)) {
        fail_msg("%s: the balance is %.9g, expected %.9g", cases[at].name,
                 *(const float *)balance.data, *l_aux);
    }
    dsi_exec_destroy(&exec);
    dsi_plan_destroy(&plan);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

static void gates_are_deepspeeds(void **state)
{
    golden_file golden = golden_read("moe_gates/gates.safetensors");
    for (size_t i = 0; i < N_CASES; ++i) {
        check(*state, &golden, i, false);
    }
    check(*state, &golden, 2, true);
    golden_close(&golden);
}

static void refuse(ds_ctx *ctx, const ds_trace *trace, const ds_moe_params *params,
                   ds_status status, const char *says)
{
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    ds_nn *nn = NULL;
    CHECK_OK(ctx, ds_cells_create(ctx, 64, &cells));
    CHECK_OK(ctx, ds_graph_create(ctx, cells, &graph));
    CHECK_OK(ctx, ds_nn_create(graph, trace, &nn));
    const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_3d(1, TOKENS, EXPERTS));
    (void)ds_nn_moe(nn, "layer", x, params, NULL);
    CHECK_FAILS(ctx, ds_nn_status(nn), status, says);
    ds_nn_destroy(&nn);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
}

static void what_it_cannot_do_is_refused(void **state)
{
    const ds_trace one = {.dtype = DS_DTYPE_F32, .batch = 1, .seq_length = TOKENS};
    ds_trace shared = one;
    ds_moe_params p = {.n_experts = 4, .n_chosen = 2, .width = WIDTH, .activation = DS_ACT_SILU};
    shared.sequence_ranks = 2;
    p.n_chosen = 5;
    refuse(*state, &one, &p, DS_ERR_ARG, "1 to n_experts chosen");
    p.n_chosen = 2;
    p.activation = DS_ACT_NONE;
    refuse(*state, &one, &p, DS_ERR_ARG, "expected an activation");
    p.activation = DS_ACT_SILU;
    p.capacity_factor = 1.0;
    refuse(*state, &shared, &p, DS_ERR_UNSUPPORTED, "with sequence_parallel_size 2");
    p.noise = DS_MOE_GUMBEL;
    refuse(*state, &one, &p, DS_ERR_ARG, "of one chosen expert");
    p.noise = DS_MOE_NO_NOISE;
    p.random_tokens = true;
    refuse(*state, &one, &p, DS_ERR_ARG, "random_tokens of one");
    p.random_tokens = false;
    p.capacity_factor = 0.0;
    shared.sequence_ranks = 0;
    shared.expert_ranks = 3;
    refuse(*state, &shared, &p, DS_ERR_CONFIG, "3 ranks (expert_parallel.autoep_size");
}

static int make_ctx(void **state)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    return ds_ctx_create(&params, (ds_ctx **)state) < 0;
}

static int drop_ctx(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gates_are_deepspeeds),
        cmocka_unit_test(what_it_cannot_do_is_refused),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
