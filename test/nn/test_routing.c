/* SPDX-License-Identifier: Apache-2.0 */
/* The keys of expert_parallel that say how tokens are routed, against DeepSpeed's routers under the
 * same keys and models (golden/routing): with the identity as the router's weight, x are the
 * logits, and a token's result is the sum of what experts make of it by DeepSpeed's weights. What
 * has no room in the experts is refused by its key. */
#include "accel/cpu/registry.h"
#include "common/check.h"
#include "common/golden.h"
#include "config/config_values.h"
#include "exec/exec.h"
#include "ir/graph.h"
#include "model/expert_layer.h"
#include "plan/plan.h"

#include <deepspeed/nn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 6, EXPERTS = 8 };

static float number(const char *name, int64_t i)
{
    return sinf((float)(i * 7 + (int64_t)name[0])) * 0.5f;
}

static void fill(ds_cells *cells, dsi_exec *exec, const json_t *logits)
{
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        const bool router = strcmp(cell->name, "router") == 0;
        float *to = dsi_exec_host_view(exec, c);
        for (int64_t i = 0; i < ds_shape_count(cell->meta.shape); ++i) {
            to[i] = cell->kind != DS_CELL_PARAM
                        ? (float)json_number_value(json_array_get(logits, (size_t)i))
                    : router ? (i % (EXPERTS + 1) == 0 ? 1.0f : 0.0f)
                             : number(cell->name, i);
        }
    }
}

/* What expert e makes of x: one unit, glu of SiLU. */
static void expert(int64_t e, const double *x, double *y)
{
    double gate = 0.0;
    double up = 0.0;
    for (int64_t c = 0; c < EXPERTS; ++c) {
        gate += (double)number("gate", e * EXPERTS + c) * x[c];
        up += (double)number("up", e * EXPERTS + c) * x[c];
    }
    for (int64_t c = 0; c < EXPERTS; ++c) {
        y[c] = (double)number("down", e * EXPERTS + c) * gate / (1.0 + exp(-gate)) * up;
    }
}

/* Adds what expert e makes of x by its weight, of what it reads (first) or what it makes. */
static void add_expert(int64_t e, const double *x, double weight, bool first, double *sum)
{
    double read[EXPERTS];
    double y[EXPERTS];
    for (int c = 0; c < EXPERTS; ++c) {
        read[c] = first ? weight * x[c] : x[c];
    }
    expert(e, read, y);
    for (int c = 0; c < EXPERTS; ++c) {
        sum[c] += first ? y[c] : weight * y[c];
    }
}

static void compare(const json_t *one, const char *keys, const float *got)
{
    const json_t *weights = json_object_get(one, "weights");
    for (int64_t t = 0; t < TOKENS; ++t) {
        double x[EXPERTS];
        double want[EXPERTS] = {0.0};
        for (size_t c = 0; c < EXPERTS; ++c) {
            x[c] = json_number_value(
                json_array_get(json_object_get(one, "logits"), (size_t)t * EXPERTS + c));
        }
        for (int64_t e = 0; e < EXPERTS; ++e) {
            add_expert(e, x, json_number_value(json_array_get(weights, (size_t)(t * EXPERTS + e))),
                       strstr(keys, "\"pre\"") != NULL, want);
        }
        for (int c = 0; c < EXPERTS; ++c) {
            const double is = (double)got[t * EXPERTS + c];
            if (!(fabs(is - want[c]) <= 1e-5 * (1.0 + fabs(want[c])))) {
                fail_msg("%s of %s, token %lld, %d: %.9g, expected %.9g", keys,
                         json_string_value(json_object_get(one, "preset")), (long long)t, c, is,
                         want[c]);
            }
        }
    }
}

static ds_experts_params layer(const json_t *own)
{
    return (ds_experts_params){
        .n_experts = EXPERTS,
        .n_chosen = (int64_t)golden_number(own, "top_k"),
        .width = 1,
        .normalise = json_is_true(json_object_get(own, "normalise")),
        .activation = DS_ACT_SILU,
        .init_std = 0.02,
        .router = "router",
        .gate = "gate",
        .up = "up",
        .down = "down",
        .sigmoid = json_is_true(json_object_get(own, "sigmoid")),
        .factor = golden_number(own, "factor"),
        .n_groups = (int64_t)golden_number(own, "groups"),
        .top_groups = (int64_t)golden_number(own, "top_groups"),
        .group_by_two = json_is_true(json_object_get(own, "by_two")),
    };
}

/* The layer under keys, in a graph; or the tracer's status. */
static ds_status trace(ds_ctx *ctx, const char *keys, const ds_experts_params *params,
                       ds_cells *cells, ds_graph **graph_out)
{
    ds_config *config = NULL;
    ds_nn *nn = NULL;
    char text[512];
    (void)snprintf(text, sizeof text, "{\"train_batch_size\": 1, \"expert_parallel\": %s}", keys);
    CHECK_OK(ctx, ds_config_load_text(ctx, "keys", text, strlen(text), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    const ds_trace how = {.mode = DS_TRACE_TRAIN,
                          .dtype = DS_DTYPE_F32,
                          .batch = 1,
                          .seq_length = TOKENS,
                          .routing = &dsi_config_values(config)->routing};
    CHECK_OK(ctx, ds_graph_create(ctx, cells, graph_out));
    CHECK_OK(ctx, ds_nn_create(*graph_out, &how, &nn));
    const ds_value x = ds_nn_input(nn, "x", DS_DTYPE_F32, ds_shape_3d(1, TOKENS, EXPERTS));
    ds_nn_output(nn, "y", ds_model_experts(nn, x, params, NULL));
    const ds_status status = ds_nn_status(nn);
    ds_nn_destroy(&nn);
    ds_config_destroy(&config);
    return status;
}

static void keys_are_deepspeeds(void **state)
{
    ds_ctx *ctx = *state;
    const dsi_plan_env env = {.n_threads = 1, .isa = DS_ISA_REF, .choose = dsi_cpu_kernel_choose};
    json_t *cases = golden_json("routing/routing.json");
    json_t *one;
    size_t i;
    assert_true(json_array_size(cases) >= 40);
    json_array_foreach(cases, i, one)
    {
        json_t *keys = json_copy(json_object_get(one, "keys"));
        const ds_experts_params params = layer(json_object_get(one, "own"));
        ds_cells *cells = NULL;
        ds_graph *graph = NULL;
        dsi_plan *plan = NULL;
        dsi_exec *exec = NULL;
        ds_tensor y;
        uint32_t id = 0;
        json_object_set_new(keys, "enabled", json_true());
        char *text = json_dumps(keys, 0);
        CHECK_OK(ctx, ds_cells_create(ctx, 64, &cells));
        CHECK_OK(ctx, trace(ctx, text, &params, cells, &graph));
        CHECK_OK(ctx, dsi_plan_build(graph, &env, &plan));
        CHECK_OK(ctx, dsi_exec_create(ctx, cells, NULL, &exec));
        CHECK_OK(ctx, dsi_exec_add(exec, plan, &id));
        CHECK_OK(ctx, dsi_exec_allocate(exec));
        fill(cells, exec, json_object_get(one, "logits"));
        CHECK_OK(ctx, dsi_exec_run(exec, id, DS_PHASE_FORWARD));
        CHECK_OK(ctx, dsi_exec_output(exec, id, "y", &y));
        compare(one, text, y.data);
        dsi_exec_destroy(&exec);
        dsi_plan_destroy(&plan);
        ds_graph_destroy(&graph);
        ds_cells_destroy(&cells);
        free(text);
        json_decref(keys);
    }
    json_decref(cases);
}

static void what_has_no_room_is_refused(void **state)
{
    static const struct {
        const char *keys, *says;
    } bad[] = {
        {"{\"enabled\": true, \"top_k\": 9}", "top_k: expected at most the 8 experts of a layer"},
        {"{\"enabled\": true, \"top_k\": 3, \"num_expert_groups\": 4, \"num_limited_groups\": 1}",
         "top_k: expected at most the 2 experts of num_limited_groups groups, found 3"},
        {"{\"enabled\": true, \"num_expert_groups\": 3, \"num_limited_groups\": 1}",
         "num_expert_groups: expected a divisor of the 8 experts of a layer, with 2 or more"},
        {"{\"enabled\": true, \"num_expert_groups\": 8, \"num_limited_groups\": 4}",
         "num_expert_groups: expected a divisor of the 8 experts of a layer, with 2 or more"},
    };
    json_t *own = json_pack("{s:i,s:b,s:b,s:f,s:i,s:i,s:b}", "top_k", 2, "normalise", 1, "sigmoid",
                            0, "factor", 1.0, "groups", 0, "top_groups", 0, "by_two", 0);
    const ds_experts_params params = layer(own);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        ds_cells *cells = NULL;
        ds_graph *graph = NULL;
        CHECK_OK(*state, ds_cells_create(*state, 64, &cells));
        CHECK_FAILS(*state, trace(*state, bad[i].keys, &params, cells, &graph), DS_ERR_CONFIG,
                    bad[i].says);
        ds_graph_destroy(&graph);
        ds_cells_destroy(&cells);
    }
    json_decref(own);
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
        cmocka_unit_test(keys_are_deepspeeds),
        cmocka_unit_test(what_has_no_room_is_refused),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
