/* SPDX-License-Identifier: Apache-2.0 */
/* See graph_run.h. */
#include "common/graph_run.h"

#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/half.h"
#include "common/check.h"
#include "op/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = 1 << 16, PATH_BYTES = 4096 };

void *graph_run_cell(const graph_run *run, ds_cell_kind kind, const char *name, size_t *count_out)
{
    const ds_cell cell = ds_cells_find(run->cells, kind, name);
    if (cell == DS_NONE) {
        return NULL;
    }
    *count_out = (size_t)ds_shape_count(ds_cells_get(run->cells, cell)->meta.shape);
    return dsi_exec_host_view(run->exec, cell);
}

static void open_model(graph_run *run, ds_ctx *ctx, const char *folder)
{
    char path[PATH_BYTES];
    *run = (graph_run){.ctx = ctx};
    golden_path(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &run->model));
    CHECK_OK(ctx, ds_cells_create(ctx, MAX_CELLS, &run->cells));
}

static void reparse(ds_ctx *ctx, ds_cells *cells, ds_graph **graph)
{
    char *text = NULL;
    CHECK_OK(ctx, ds_graph_print(*graph, &text));
    ds_graph_destroy(graph);
    CHECK_OK(ctx, ds_graph_parse(ctx, text, cells, ds_op_find, graph));
    free(text);
}

/* Lowers the graph and makes memory for it. */
static void open_exec(graph_run *run, const ds_graph *graph, const graph_run_params *params)
{
    const dsi_plan_env env = {.n_threads = ds_ctx_n_threads(run->ctx),
                              .isa = dsi_cpu_isa_capped(params->isa),
                              .choose = dsi_cpu_kernel_choose,
                              .no_reuse = params->no_reuse,
                              .n_slots = params->n_slots,
                              .no_fuse = params->no_fuse};
    CHECK_OK(run->ctx, dsi_plan_build(graph, &env, &run->plan));
    CHECK_OK(run->ctx, dsi_plan_check(run->plan));
    CHECK_OK(run->ctx, dsi_exec_create(run->ctx, run->cells, NULL, &run->exec));
    CHECK_OK(run->ctx, dsi_exec_add(run->exec, run->plan, &run->id));
    CHECK_OK(run->ctx, dsi_exec_allocate(run->exec));
}

static void put(void *data, ds_dtype dtype, size_t i, float value)
{
    if (dtype == DS_DTYPE_BF16) {
        ((uint16_t *)data)[i] = dsi_f32_to_bf16(value);
    } else if (dtype == DS_DTYPE_F16) {
        ((uint16_t *)data)[i] = dsi_f32_to_f16(value);
    } else {
        ((float *)data)[i] = value;
    }
}

/* The weight of a cell; returns of how many tensors, those that the * of its name stands for. */
static size_t load_cell(graph_run *run, ds_cell c, const golden_file *file)
{
    const ds_cell_info *info = ds_cells_get(run->cells, c);
    const char *star = strchr(info->name, '*');
    const size_t n = star != NULL ? (size_t)info->meta.shape.dims[0] : 1;
    const size_t each = (size_t)ds_shape_count(info->meta.shape) / n;
    for (size_t part = 0; part < n; ++part) {
        char name[512];
        (void)snprintf(name, sizeof name, "%s", info->name);
        if (star != NULL) {
            (void)snprintf(name, sizeof name, "%.*s%zu%s", (int)(star - info->name), info->name,
                           part, star + 1);
        }
        const float *from = golden_f32(file, name);
        assert_int_equal(golden_find(file, name)->count, each);
        for (size_t i = 0; i < each; ++i) {
            put(dsi_exec_host_view(run->exec, c), info->meta.dtype, part * each + i, from[i]);
        }
    }
    return n;
}

static void load_weights(graph_run *run, const char *folder)
{
    golden_file file = golden_read("%s/model.safetensors", folder);
    size_t n = 0;
    for (ds_cell c = 0; c < ds_cells_count(run->cells); ++c) {
        const ds_cell_kind kind = ds_cells_get(run->cells, c)->kind;
        if (kind == DS_CELL_PARAM || kind == DS_CELL_MASTER) {
            const size_t loaded = load_cell(run, c, &file);
            n += kind == DS_CELL_PARAM ? loaded : 0;
        }
    }
    assert_int_equal(n, file.n_tensors);
    golden_close(&file);
}

static void put_input(const graph_run *run, const char *name, const int32_t *data, size_t n)
{
    size_t count = 0;
    int32_t *to = graph_run_cell(run, DS_CELL_INPUT, name, &count);
    assert_non_null(to);
    assert_int_equal(count, n);
    memcpy(to, data, n * sizeof *data);
}

void graph_run_open(graph_run *run, ds_ctx *ctx, const char *folder, const ref_batch *batch,
                    const graph_run_params *params)
{
    const dsi_train_spec spec = {.dtype = params->dtype,
                                 .comm_dtype = DS_DTYPE_F32,
                                 .accumulate_dtype = DS_DTYPE_F32,
                                 .state_dtype = DS_DTYPE_F32,
                                 .master = params->dtype != DS_DTYPE_F32,
                                 .batch = batch->b,
                                 .seq_length = batch->t,
                                 .accumulation =
                                     params->accumulation > 1 ? params->accumulation : 1,
                                 .optimizer = DS_OPTIMIZER_ADAM,
                                 .eps = 1e-8,
                                 .decoupled_decay = true};
    const size_t n = (size_t)(batch->b * batch->t);
    ds_graph *graph = NULL;
    size_t count = 0;
    open_model(run, ctx, folder);
    CHECK_OK(ctx, dsi_train_graph(run->model, &spec, run->cells, &graph, &run->own));
    if (params->reparse) {
        reparse(ctx, run->cells, &graph);
    }
    open_exec(run, graph, params);
    ds_graph_destroy(&graph);
    load_weights(run, folder);
    put_input(run, "train/input_ids", batch->tokens, n);
    put_input(run, "train/positions", batch->positions, n);
    put_input(run, "train/first", batch->first, n);
    put_input(run, "train/targets", batch->targets, n);
    *(float *)graph_run_cell(run, DS_CELL_SCALAR, "loss_seed", &count) = 1.0f;
    *(float *)graph_run_cell(run, DS_CELL_SCALAR, "inverse_scale", &count) = 1.0f;
}

void graph_run_close(graph_run *run)
{
    dsi_exec_destroy(&run->exec);
    dsi_plan_destroy(&run->plan);
    ds_cells_destroy(&run->cells);
    ds_model_destroy(&run->model);
}

static float loss_of(const graph_run *run)
{
    ds_tensor loss;
    CHECK_OK(run->ctx, dsi_exec_output(run->exec, run->id, "loss", &loss));
    return *(const float *)loss.data;
}

float graph_run_pass(graph_run *run)
{
    CHECK_OK(run->ctx, dsi_exec_run(run->exec, run->id, DS_PHASE_FORWARD));
    const float loss = loss_of(run);
    CHECK_OK(run->ctx, dsi_exec_run(run->exec, run->id, DS_PHASE_BACKWARD));
    return loss;
}

void graph_run_update(graph_run *run, const ref_adamw_params *params)
{
    const double t = (double)params->step;
    for (size_t group = 0; group < 2; ++group) {
        float *hyper = dsi_exec_host_view(run->exec, run->own.hyper[group]);
        hyper[DSI_HYPER_LR] = (float)params->lr;
        hyper[DSI_HYPER_BETA1] = (float)params->beta1;
        hyper[DSI_HYPER_BETA2] = (float)params->beta2;
        hyper[DSI_HYPER_WEIGHT_DECAY] = (float)params->weight_decay;
        hyper[DSI_HYPER_BIAS1] = (float)(1.0 - pow(params->beta1, t));
        hyper[DSI_HYPER_BIAS2] = (float)sqrt(1.0 - pow(params->beta2, t));
        hyper[DSI_HYPER_FIRST] = params->step == 1 ? 1.0f : 0.0f;
    }
    CHECK_OK(run->ctx,
             dsi_exec_run(run->exec, run->id, dsi_phases_find(&run->plan->phases, "norm")));
    CHECK_OK(run->ctx,
             dsi_exec_run(run->exec, run->id, dsi_phases_find(&run->plan->phases, "update")));
}

void graph_run_logits(ds_ctx *ctx, const char *folder, const int32_t *tokens, int64_t t, ds_isa isa,
                      float *logits)
{
    const ds_trace trace = {.mode = DS_TRACE_GENERATE,
                            .dtype = DS_DTYPE_F32,
                            .batch = 1,
                            .seq_length = t,
                            .kv_length = t};
    const graph_run_params params = {.dtype = DS_DTYPE_F32, .isa = isa};
    graph_run run;
    ds_graph *graph = NULL;
    char name[64];
    size_t count = 0;
    open_model(&run, ctx, folder);
    CHECK_OK(ctx, dsi_forward_graph(run.model, &trace, NULL, NULL, run.cells, &graph));
    open_exec(&run, graph, &params);
    ds_graph_destroy(&graph);
    load_weights(&run, folder);
    snprintf(name, sizeof name, "generate.%lld/input_ids", (long long)t);
    put_input(&run, name, tokens, (size_t)t);
    snprintf(name, sizeof name, "generate.%lld/positions", (long long)t);
    int32_t *positions = graph_run_cell(&run, DS_CELL_INPUT, name, &count);
    snprintf(name, sizeof name, "generate.%lld/last", (long long)t);
    int32_t *last = graph_run_cell(&run, DS_CELL_INPUT, name, &count);
    snprintf(name, sizeof name, "generate.%lld/length", (long long)t);
    int32_t *length = graph_run_cell(&run, DS_CELL_INPUT, name, &count);
    if (length != NULL) {
        *length = (int32_t)t;
    }
    for (int32_t i = 0; i < t; ++i) {
        positions[i] = i;
    }
    for (int32_t i = 0; i < t; ++i) {
        ds_tensor row;
        *last = i;
        CHECK_OK(ctx, dsi_exec_run(run.exec, run.id, DS_PHASE_FORWARD));
        CHECK_OK(ctx, dsi_exec_output(run.exec, run.id, "logits", &row));
        const size_t v = (size_t)ds_shape_last(row.meta.shape);
        memcpy(logits + (size_t)i * v, row.data, v * sizeof(float));
    }
    graph_run_close(&run);
}
