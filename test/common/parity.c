/* SPDX-License-Identifier: Apache-2.0 */
#include "common/parity.h"

#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "ckpt/model_weights.h"
#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const parity_variants[PARITY_N] = {
    "gpt2",    "llama2",      "llama3",    "llama3_tied",  "mistral",     "qwen2",
    "qwen3",   "rope_linear", "rope_yarn", "rope_dynamic", "packed_gpt2", "packed_llama",
    "mixtral", "qwen2_moe",   "qwen3_moe", "olmoe",        "granitemoe"};

static void open_case(ds_ctx *ctx, const char *set, const char *name, parity_case *p)
{
    static const char *const inputs[4][2] = {{"input_ids", "tokens"},
                                             {"targets", "targets"},
                                             {"positions", "positions"},
                                             {"first", "first"}};
    char path[PARITY_PATH + 32];
    memset(p, 0, sizeof *p);
    p->name = name;
    golden_path(p->folder, sizeof p->folder, "%s/%s", set, name);
    p->golden = golden_read("%s/%s/golden.safetensors", set, name);
    p->scalars = golden_json("%s/%s/golden.json", set, name);
    (void)snprintf(path, sizeof path, "%s/config.json", p->folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &p->model));
    const golden_tensor *logits = golden_find(&p->golden, "logits");
    p->n_batch = logits->dims[0];
    p->n_seq = logits->dims[1];
    p->vocab = logits->dims[2];
    const bool encodes = ds_model_get_info(p->model)->encoder;
    p->task = strstr(name, "_sequence") != NULL ? DS_TASK_SEQUENCE_CLASSES
              : strstr(name, "_token") != NULL  ? DS_TASK_TOKEN_CLASSES
                                                : DS_TASK_TOKENS;
    p->n_classes = p->task != DS_TASK_TOKENS ? (uint32_t)p->vocab : 0;
    for (int i = 0; i < 4; ++i) {
        const int32_t *data = golden_i32(&p->golden, inputs[i][1]);
        p->tensors[i] = (ds_named_tensor){
            i == 1 && encodes ? "labels" : inputs[i][0],
            {(void *)(uintptr_t)data, {DS_DTYPE_I32, ds_shape_2d(p->n_batch, p->n_seq)}}};
    }
    p->batch = (ds_batch){p->tensors, 4};
}

void parity_open(ds_ctx *ctx, const char *name, parity_case *p)
{
    open_case(ctx, "parity", name, p);
}

void parity_open_encoder(ds_ctx *ctx, const char *name, parity_case *p)
{
    open_case(ctx, "encoder", name, p);
}

void parity_open_pairs(ds_ctx *ctx, const char *name, parity_case *p)
{
    open_case(ctx, "t5", name, p);
}

void parity_close(parity_case *p)
{
    ds_model_destroy(&p->model);
    golden_close(&p->golden);
    json_decref(p->scalars);
}

dsi_engine_spec parity_spec(const parity_case *p, ds_dtype dtype, ds_isa isa)
{
    return (dsi_engine_spec){.train = {.dtype = dtype,
                                       .comm_dtype = dtype,
                                       .accumulate_dtype = DS_DTYPE_F32,
                                       .state_dtype = DS_DTYPE_F32,
                                       .master = true,
                                       .batch = p->n_batch,
                                       .seq_length = p->n_seq,
                                       .task = p->task,
                                       .n_classes = p->n_classes,
                                       .accumulation = 1,
                                       .optimizer = DS_OPTIMIZER_ADAM,
                                       .eps = 1e-8,
                                       .decoupled_decay = true},
                             .lr = 1e-3,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .weight_decay = 0.01,
                             .decay_all = true,
                             .bias_correction = true,
                             .loss_scale = dsi_loss_scale_none(),
                             .schedule = ds_schedule_default(DS_SCHEDULE_NONE),
                             .isa = dsi_cpu_isa_capped(isa)};
}

ds_engine *parity_engine(ds_ctx *ctx, const parity_case *p, const dsi_engine_spec *spec)
{
    const ds_engine_params params = {
        .model = p->model, .seq_length = p->n_seq, .weights = p->folder};
    ds_engine *engine = NULL;
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, spec, &engine));
    return engine;
}

/* The loss: the last node, but for what is added to it; of logits that were capped or have a bias
 * one that is not fused with their product. */
static const dsi_node_info *loss_node(const ds_graph *graph)
{
    uint32_t i = graph->n_nodes;
    do {
        assert_int_not_equal(i, 0);
        --i;
    } while (graph->nodes[i].op != &dsi_op_linear_cross_entropy &&
             graph->nodes[i].op != &dsi_op_cross_entropy);
    return &graph->nodes[i];
}

/* Adds the whole logits as an output, from the operands of the loss. */
static void add_logits(ds_ctx *ctx, ds_graph *graph)
{
    const dsi_linear_attrs attrs = {.out_dtype = DS_DTYPE_F32};
    ds_value out[DS_MAX_OUT];
    const dsi_node_info *node = loss_node(graph);
    const ds_value in[2] = {dsi_node_in(graph, node)[0], dsi_node_in(graph, node)[1]};
    if (node->op == &dsi_op_cross_entropy) {
        CHECK_OK(ctx, ds_graph_output(graph, "logits", in[0]));
        return;
    }
    CHECK_OK(ctx, ds_graph_apply(graph, &dsi_op_linear, &attrs, in, 2, out));
    CHECK_OK(ctx, ds_graph_output(graph, "logits", out[0]));
}

static void fill_cells(ds_ctx *ctx, const parity_case *p, ds_cells *cells, dsi_exec *exec)
{
    ds_safetensors *st = NULL;
    dsi_weights *weights = NULL;
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, p->folder, &st));
    CHECK_OK(ctx, dsi_weights_match(ctx, p->model, cells, st, false, &weights));
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        if (cell->kind == DS_CELL_PARAM) {
            const dsi_weight weight = dsi_weights_of(weights, c);
            CHECK_OK(ctx, dsi_weight_read(ctx, &weight, 0, ds_shape_count(cell->meta.shape),
                                          cell->meta.dtype, dsi_exec_host_view(exec, c)));
        }
        for (int i = 0; cell->kind == DS_CELL_INPUT && i < 4; ++i) {
            if (strcmp(cell->name + strlen("eval/"), p->tensors[i].name) == 0) {
                memcpy(dsi_exec_host_view(exec, c), p->tensors[i].tensor.data,
                       ds_meta_bytes(cell->meta));
            }
        }
    }
    dsi_weights_destroy(&weights);
    ds_safetensors_close(&st);
}

float *parity_logits(ds_ctx *ctx, const parity_case *p, ds_dtype dtype, ds_isa isa)
{
    const ds_trace trace = {.mode = DS_TRACE_EVAL,
                            .dtype = dtype,
                            .batch = p->n_batch,
                            .seq_length = p->n_seq,
                            .task = p->task,
                            .n_classes = p->n_classes};
    const dsi_plan_env env = {
        .n_threads = 2, .isa = dsi_cpu_isa_capped(isa), .choose = dsi_cpu_kernel_choose};
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    dsi_plan *plan = NULL;
    dsi_exec *exec = NULL;
    ds_tensor logits;
    uint32_t id = 0;
    CHECK_OK(ctx, ds_cells_create(ctx, 1 << 16, &cells));
    CHECK_OK(ctx, dsi_forward_graph(p->model, &trace, NULL, NULL, cells, &graph));
    add_logits(ctx, graph);
    CHECK_OK(ctx, dsi_plan_build(graph, &env, &plan));
    CHECK_OK(ctx, dsi_exec_create(ctx, cells, NULL, &exec));
    CHECK_OK(ctx, dsi_exec_add(exec, plan, &id));
    CHECK_OK(ctx, dsi_exec_allocate(exec));
    fill_cells(ctx, p, cells, exec);
    CHECK_OK(ctx, dsi_exec_run(exec, id, DS_PHASE_FORWARD));
    CHECK_OK(ctx, dsi_exec_output(exec, id, "logits", &logits));
    const size_t bytes = ds_meta_bytes(logits.meta);
    float *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, logits.data, bytes);
    dsi_exec_destroy(&exec);
    dsi_plan_destroy(&plan);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
    return copy;
}
